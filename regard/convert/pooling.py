"""What makes one vector of a text in a directory of Sentence Transformers: modules.json, and the folders it names."""

import json
from pathlib import Path
from typing import Any

from regard.convert.hub import parsed, told_by
from regard.core.outputs import HeadConfig
from regard.files import write_whole

MODULES = "modules.json"
POOLS = {"first": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
MODE, KIND = "pooling_mode_", "sentence_transformers.models."


def read_pooling(directory: Path) -> dict[str, Any] | None:
    """Our settings of a vector; None if the directory says nothing of it."""
    path = directory / MODULES
    if not path.is_file():
        return None
    modules, head = parsed(path), dict[str, Any]()
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ValueError(f"{path} is not a list of modules")
    kinds = {str(each.get("path")): str(each.get("type")).rpartition(".")[2] for each in modules}
    for folder, kind in kinds.items() if "Pooling" in kinds.values() else ():
        if kind == "Pooling":
            about = told_by(directory, f"{folder}/config.json")
            said = [key.removeprefix(MODE) for key, value in about.items() if key.startswith(MODE) and value is True]
            said = [about["pooling_mode"]] if "pooling_mode" in about else said  # as they write it of late
            fits = [pool for pool, theirs in POOLS.items() if said in ([theirs], [theirs.partition("_")[0]])]
            if not fits:
                raise ValueError(
                    f"{path}: pooling by {said} cannot be expressed, only by one of {', '.join(POOLS.values())}"
                )
            head["pool"] = fits[0]
        elif kind == "Normalize":
            head["normalise"] = True
        elif kind != "Transformer":
            raise ValueError(f"{path}: a module {kind} cannot be expressed, only Transformer, Pooling and Normalize")
    return head or None


def write_pooling(head: HeadConfig, d_model: int, directory: Path) -> None:
    """Write the files that say how a vector is made."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if head.normalise else {})
    modules = [{"idx": i, "name": str(i), "path": path, "type": KIND + kinds[path]} for i, path in enumerate(kinds)]
    modes = {f"{MODE}{theirs}": pool == head.pool for pool, theirs in POOLS.items()}
    about = {"word_embedding_dimension": d_model} | modes
    write_whole(directory / MODULES, json.dumps(modules, indent=2) + "\n")
    write_whole(directory / "1_Pooling" / "config.json", json.dumps(about, indent=2) + "\n")
