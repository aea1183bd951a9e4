"""The models that are served: which there are, and each of them loaded when it is first asked for."""

from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Any

from regard import api
from regard.checks import hint, one_of
from regard.models import storage
from regard.serving.errors import RefusalError

ROUTES = {  # by which a model is asked, by what it is for
    "translate": ("POST /translate",),
    "generate": ("POST /v1/completions", "POST /v1/chat/completions"),
    "classify": ("POST /predict", "POST /rerank", "POST /models/{id}"),
    "recognise": ("POST /predict", "POST /models/{id}"),
    "embed": ("POST /v1/embeddings", "POST /embed", "POST /rerank", "POST /models/{id}"),
    "mask": ("POST /models/{id}",),
    "tag": ("POST /models/{id}",),
    "answer": ("POST /models/{id}",),
    "summarise": ("POST /models/{id}",),
}
WRITE = ("translate", "summarise", "generate")
# Of which a predictor is made.
FILES = (storage.CONFIG, storage.WEIGHTS, storage.TEMPLATE, "tokenizer.json", "recipe.yaml")
Stamp = list[tuple[int, int, int]]  # of each file there is: its identity, time and size


class Served:
    """One model: what is known of it without its weights, and the predictor that it is loaded into."""

    def __init__(self, id: str, path: Path, **how: Any) -> None:
        """`how` it is loaded: the keyword arguments of `regard.load`."""
        self.id, self.path = id, path
        storage.config(path)  # now, not when the first request comes
        self.task = api.told(path).task  # what a model is for
        self.languages: tuple[str, str] = getattr(self.task, "languages", ("", ""))  # source, target
        # What a model that reads makes of a text is the same to the bit, whatever else is read with it.
        self._how, self._lock = {"bitwise": self.task.name not in WRITE, **how}, Lock()
        self._loaded: tuple[Stamp, Any] | None = None

    @property
    def routes(self) -> list[str]:
        """By which it is asked."""
        task: Any = self.task
        ranks = task.name != "classify" or task.kind == "number" or (task.kind == "one" and len(task.labels) == 2)
        able = {"POST /rerank": ranks, "POST /v1/chat/completions": (self.path / storage.TEMPLATE).is_file()}
        return [route for route in ROUTES.get(task.name, ()) if able.get(route, True)]

    @property
    def about(self) -> str:
        """What it is, and how it is asked."""
        routes = " or ".join(self.routes).replace("{id}", self.id)
        asked = f"ask it by {routes}" if routes else "there is no route to it"
        mute = "POST /v1/completions" in self.routes and "POST /v1/chat/completions" not in self.routes
        return f"{self.id} is {self.task.a_model}: {asked}{'; it has no chat template' if mute else ''}"

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._loaded is not None

    def predictor(self) -> Any:
        """The model, loaded at first use and again when its files have changed; safe in several threads.

        What is wrong with its files is a ValueError or an OSError, for as long as it is wrong.
        """
        with self._lock:
            stamp = self._stamp()
            if self._loaded is None or self._loaded[0] != stamp:
                self._loaded = None  # not two of them in memory
                self._loaded = stamp, api.load(self.path, **self._how)
            return self._loaded[1]

    def _stamp(self) -> Stamp:
        there = [(self.path / name).stat() for name in FILES if (self.path / name).exists()]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in there]


class Registry:
    """The served models by id, which is the name of the directory; the first is the one meant where none is named."""

    def __init__(self, paths: Sequence[Path], **how: Any) -> None:
        """`how` models are loaded: the keyword arguments of `regard.load`, such as precision and workers."""
        if not paths:
            raise ValueError("there is no model to serve: name at least one model directory")
        one_of(api.PRECISIONS, precision=how.get("precision"))  # now, not when the first request comes
        self._models: dict[str, Served] = {}
        for path in paths:
            name = path.resolve().name or "model"
            id = next(id for id in chain([name], (f"{name}~{n}" for n in count(2))) if id not in self._models)
            self._models[id] = Served(id, path, **how)

    @property
    def ids(self) -> list[str]:
        """Of all models, in the order they were named in."""
        return list(self._models)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._models.values())

    def asked(self, route: str, id: str | None = None) -> Served:
        """A model that is asked by this route: the one of this id, or the first there is."""
        if id is None and (able := next((served for served in self if route in served.routes), None)):
            return able
        if route not in (served := self.get(id)).routes:
            raise RefusalError(404, served.about, param="model", code="model_not_supported")
        return served

    def get(self, id: str | None = None) -> Served:
        """A model by its id."""
        if id is None:
            return next(iter(self))
        if id not in self._models:
            message = f"there is no model {id!r}: {hint(id, self._models)}"
            raise RefusalError(404, message, param="model", code="model_not_found")
        return self._models[id]
