"""What is special about building regard: a wheel for Linux on x86-64 has the engine in it, compiled for each kind of
processor, so that a machine without a compiler is quick, too.

Without a compiler here, on other systems, and in place (`pip install --editable`) there is none in it: then the engine
is compiled at first use.
"""

import importlib.util
import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST = 17  # glibc 2.17 is the oldest that tags of today name


class EngineHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or sysconfig.get_platform() != "linux-x86_64":
            return
        compiler = _compiler(Path(self.root))
        self.folder = tempfile.TemporaryDirectory()
        made = Path(self.folder.name) / "engine.so"
        try:
            compiler.for_every_processor(compiler.command(), made)
        except compiler.UnavailableError as error:
            self.app.display_warning(f"a wheel without the engine, which is then compiled at first use: {error}")
            return
        content = made.read_bytes()
        build_data["force_include"][str(made)] = f"regard/native/engine-{compiler.digest(content)}.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_system(content)}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def _compiler(root: Path) -> Any:
    """The module that knows how, alone: what the rest of the package imports is not there when a wheel is built."""
    spec = importlib.util.spec_from_file_location("compiler", root / "regard" / "native" / "compiler.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _system(library: bytes) -> str:
    """Which systems have what it needs: those with this glibc or a later one, for it needs nothing else."""
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    return f"manylinux_2_{max(OLDEST, *needed)}" if needed else "linux"
