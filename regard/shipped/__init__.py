"""The models that come with regard, a directory each: where they are, and which is meant when none is named.

Nothing is imported, and whoever opens a model comes in. Begin with `en-es/README.md`.
"""

from importlib import resources
from os.path import isdir, isfile  # which answer for a name that is too long, too
from pathlib import Path

SHIPPED = Path(str(resources.files(__name__)))
DEFAULT = "en-es"


def shipped(name: str = DEFAULT) -> Path:
    """The directory of a model that comes with regard."""
    if not isfile(SHIPPED / name / "config.json"):
        raise ValueError(
            f"this installation of regard comes without the model {name}: name a model directory, such as one that "
            "`regard train quickstart` makes"
        )
    return SHIPPED / name


def located(model: str | Path | None = None) -> Path:
    """Where a model is: in a directory, or else among those that come with regard; None is the default of these.

    >>> located("runs/quickstart").name
    'quickstart'
    """
    name = str(DEFAULT if model is None else model)
    if model is None or (not isdir(name) and Path(name).name == name and isfile(SHIPPED / name / "config.json")):
        return shipped(name)
    return Path(name)
