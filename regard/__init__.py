"""The Transformer, whole: train it on your own data, use it, and see every layer and head."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.api import load
    from regard.inspection.taps import edit, record

__all__ = ["__version__", "edit", "load", "record"]
__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    # torch takes a second to load: only who asks for it waits, so that `regard --help` does not.
    if name in ("edit", "record"):
        from regard.inspection import taps

        return getattr(taps, name)
    if name == "load":
        from regard.api import load

        return load
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
