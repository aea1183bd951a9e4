"""What is built, fetched and run by others' tools is named exactly: pins, extras, the image of the server."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", each)[0].lower().replace("_", "-") for each in requirements}


def test_what_builds_a_release_is_pinned() -> None:
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", each) for each in PROJECT["build-system"]["requires"])


def test_every_package_that_is_asked_for_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    asked = packages([*PROJECT["project"]["dependencies"], *(each for extra in extras for each in extra)])
    assert asked - {"regard"} <= {name.lower().replace("_", "-") for name in PINS}


def test_a_workflow_runs_actions_of_one_commit() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text("utf-8"))
        assert used
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used)


RUNTIME = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

EXTRAS = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Missing())
from regard.cli import main
main()
"""


def without_extras(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command where only the packages of `pip install regard` are there."""
    extras = PROJECT["project"]["optional-dependencies"]
    names = packages([each for extra in extras.values() for each in extra]) - {"regard"}
    modules = ",".join(name.replace("-", "_") for name in names)
    return subprocess.run([sys.executable, "-c", RUNTIME, modules, *arguments], capture_output=True, text=True)


def test_the_runtime_does_without_extras(tmp_path: Path) -> None:
    said = without_extras("translate", "Where is the library?")
    assert (said.returncode, said.stdout.count("\n")) == (0, 1), said.stderr
    picture = without_extras("inspect", "Where is the library?", "-o", str(tmp_path / "maps.svg"))
    assert picture.stderr == "error: this needs the package matplotlib: pip install 'regard[plot]'\n"
    (tmp_path / "text").write_text("Hello.\n")
    files = ["--source", str(tmp_path / "text"), "--reference", str(tmp_path / "text")]
    shipped = str(ROOT / "regard" / "shipped" / "en-es")
    scored = without_extras("evaluate", shipped, *files, "--json")
    assert json.loads(scored.stdout)["sentences"] == 1
    refused = without_extras("evaluate", shipped, *files, "--picture", str(tmp_path / "trust.svg"))
    assert refused.stderr == picture.stderr


def test_the_server_is_imported_without_extras() -> None:
    assert without_extras("serve", "--precision", "none", "--port", "0").stderr.startswith("error: ")
    code = RUNTIME.replace("from regard.cli import main\nmain()", "import regard.serving.run")
    names = "matplotlib,tensorboard,ray,onnx,ctranslate2,transformers,httpx"
    done = subprocess.run([sys.executable, "-c", code, names], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
STEPS = [tuple(line.split(" ", 1)) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]


def test_the_image_serves_as_a_user_without_rights() -> None:
    last = dict(STEPS)  # of each instruction
    assert last["USER"].isdigit()
    assert last["USER"] != "0"
    assert json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])[:1] == ["regard", "serve"]
    assert "/health" in last["HEALTHCHECK"]
    copied = [word for kind, rest in STEPS if kind == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_is_given_what_a_wheel_is_made_of() -> None:
    ignored = {line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if not line.startswith("#")}
    made = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "regard"}
    assert not ignored & {*made, "constraints.txt"}
    assert {".*", "models", "runs"} <= ignored  # among them .git, .venv and .env


def test_compose_publishes_to_this_machine_alone_and_asks_for_keys() -> None:
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"].values()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["environment"]["REGARD_API_KEYS"].startswith("${REGARD_API_KEYS:?")
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert all(volume.endswith(":ro") for volume in service["volumes"])
