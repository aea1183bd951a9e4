"""The models that are served: which there are, and each of them loaded when it is first asked for.

A directory that only adds to a model that is served, too, has the weights of that in common with it. Those in a folder
of LoRAs are served as they come and go: whoever asks for one makes the registry look whether it is there.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from regard import api
from regard.checks import hint, one_of
from regard.data.collection import ABOUT
from regard.data.shelf import PICTURE, SETTINGS, Shelf, is_index
from regard.models import storage
from regard.serving.errors import RefusalError

LOG = logging.getLogger("regard.serving")
ROUTES = {  # by which a model is asked, by what it is for
    "translate": ("POST /translate",),
    "generate": ("POST /v1/completions", "POST /v1/chat/completions"),
    "classify": ("POST /predict", "POST /rerank", "POST /models/{id}"),
    "look": ("POST /v1/completions", "POST /v1/chat/completions"),
    "recognise": ("POST /predict", "POST /models/{id}"),
    "match": ("POST /v1/embeddings", "POST /embed", "POST /models/{id}"),
    "caption": ("POST /models/{id}",),
    "graph": ("POST /predict", "POST /models/{id}"),
    "embed": ("POST /v1/embeddings", "POST /embed", "POST /rerank", "POST /models/{id}"),
    "mask": ("POST /models/{id}",),
    "tag": ("POST /models/{id}",),
    "answer": ("POST /models/{id}",),
    "summarise": ("POST /models/{id}",),
    "transcribe": ("POST /v1/audio/transcriptions", "POST /v1/audio/translations"),
    "search": ("POST /search", "POST /ask"),
}
WRITE = ("translate", "summarise", "generate", "transcribe")
# Of which a predictor is made.
FILES = (storage.CONFIG, storage.WEIGHTS, storage.TEMPLATE, "tokenizer.json", "recipe.yaml", ABOUT, SETTINGS)
SEARCHING = SimpleNamespace(name="search", a_model="an index of documents")  # what an index is for
Stamp = list[tuple[int, int, int]]  # of each file there is: its identity, time and size


def stamped(path: Path) -> Stamp:
    """What the files of a directory are known by."""
    there = [(path / name).stat() for name in FILES if (path / name).exists()]
    return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in there]


class Served:
    """One model: what is known of it without its weights, and the predictor that it is loaded into."""

    def __init__(self, id: str, path: Path, base: "Served | None" = None, **how: Any) -> None:
        """`how` it is loaded: the keyword arguments of `regard.load`. It may add to another one, its `base`."""
        self.id, self.path, self.base = id, path, base
        # Requests to those that only differ in LoRA are answered together.
        alike = base is not None and type(storage.config(path)) is type(storage.config(base.path))
        self.joins = alike and (about := storage.adding(path)) is not None and about.lora
        self.task: Any = SEARCHING  # what a model is for
        if is_index(path):  # it is looked at now, not when the first request comes
            if Shelf.at(path).unit == PICTURE:
                raise ValueError(f"{path} is an index of pictures, which is not served: serve the model that sees them")
        else:
            storage.config(path)
            self.task = api.told(path).task
        self.languages: tuple[str, str] = getattr(self.task, "languages", ("", ""))  # source, target
        # What a model that reads makes of a text is the same to the bit, whatever else is read with it.
        self.passing = False  # whether it may go while others stay
        self._how, self._lock = {"bitwise": self.task.name not in WRITE, **how}, Lock()
        if base is not None:
            self._how.pop("precision", None)  # it has the base's
        self._loaded: tuple[tuple[Stamp, Any], Any] | None = None  # what it was loaded from, and beside whom

    @property
    def routes(self) -> list[str]:
        """By which it is asked."""
        task = self.task
        told = task.name == "classify" and (task.kind == "number" or (task.kind == "one" and len(task.labels) == 2))
        ranks = task.name != "classify" or (told and task.pairs is not False)
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
            beside = None if self.base is None else self.base.predictor()
            known = stamped(self.path), beside
            if self._loaded is None or self._loaded[0] != known:
                self._loaded = None  # not two of them in memory
                self._loaded = known, api.load(self.path, beside=beside, **self._how)
            return self._loaded[1]


class Registry:
    """The served models by id, which is the name of the directory; the first is the one meant where none is named."""

    def __init__(self, paths: Sequence[Path], loras: Path | None = None, **how: Any) -> None:
        """`how` models are loaded: the keyword arguments of `regard.load`, such as precision and workers.

        In the folder `loras` are directories that add to one of these models, and may come and go.
        """
        if not paths:
            raise ValueError("there is no model to serve: name at least one model directory")
        if loras is not None and not loras.is_dir():
            raise ValueError(f"loras = {loras}: there is no such folder")
        one_of(api.PRECISIONS, precision=how.get("precision"))  # now, not when the first request comes
        self._how, self._folder, self._lock = how, loras, Lock()
        self.gone: set[Served] = set()  # what was served, and may still be at work
        adding = [None if is_index(path) else storage.adding(path) for path in paths]
        ids, made = list[str](), dict[str, Served]()
        for path in paths:
            name = path.resolve().name or "model"
            ids.append(next(id for id in chain([name], (f"{name}~{n}" for n in count(2))) if id not in ids))
        self._bases: dict[str, Served] = {}  # those that stand alone, by their digests
        self._loras: dict[str, tuple[Stamp, Served | None]] = {}  # of the folder: as seen, and whether it can be served
        for id, path, about in sorted(zip(ids, paths, adding, strict=True), key=lambda each: each[2] is not None):
            under = None if about is None else self._bases.get(about.digest)
            if under is not None and id != path.resolve().name:
                there = made[path.resolve().name].path
                raise ValueError(f"{there} and {path} have one name, by which they are asked: give one of them another")
            made[id] = Served(id, path, under, **how)
            if about is None and not is_index(path) and (loras is not None or any(adding)):
                self._bases.setdefault(storage.summed(path), made[id])
            elif about is not None and under is None:
                storage.summed(path)  # its base is where it says: now, not when the first request comes
        self._models = {id: made[id] for id in ids}
        for name in self._names():
            if name in made and not os.path.samefile(made[name].path, self._folder / name):  # type: ignore[operator]
                raise ValueError(
                    f"{made[name].path} and {loras}/{name} have one name, by which they are asked: give one of them "
                    "another"
                )
            self._look(name)

    @property
    def ids(self) -> list[str]:
        """Of all models, in the order they were named in."""
        return [served.id for served in self]

    def __iter__(self) -> Iterator[Served]:
        for name in {*self._names(), *list(self._loras)}:
            self._look(name)
        with self._lock:
            found = [self._loras[name][1] for name in sorted(self._loras)]
        return iter([*self._models.values(), *(served for served in found if served is not None)])

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
            return next(iter(self._models.values()))
        if id in self._models:
            return self._models[id]
        self._look(id)
        if (served := self._loras.get(id, ([], None))[1]) is None:
            message = f"there is no model {id!r}: {hint(id, self.ids)}"
            raise RefusalError(404, message, param="model", code="model_not_found")
        return served

    def _names(self) -> list[str]:
        """What is in the folder."""
        try:
            return [] if self._folder is None else [n for n in os.listdir(self._folder) if not n.startswith(".")]
        except OSError:  # it has vanished
            return []

    def _look(self, name: str) -> None:
        """See whether the folder has a directory of this name, and whether it can be served; the log says why not."""
        with self._lock:
            if self._folder is None or name in self._models or name not in (*self._names(), *self._loras):
                return
            path = self._folder / name
            try:
                stamp = stamped(path)
            except OSError:  # it goes at this moment
                stamp = []
            if stamp and self._loras.get(name, ([], None))[0] == stamp:
                return
            if (before := self._loras.pop(name, ([], None))[1]) is not None:
                LOG.info("%s is not served any more", path)
                self.gone.add(before)
            if not stamp:
                return
            try:
                served = self._lora(name, path)
                LOG.info("%s is served: it adds to %s", path, served.base.id if served.base else "")
            except (ValueError, OSError) as error:
                served = None
                LOG.error("%s is not served: %s", path, error)
            self._loras[name] = stamp, served

    def _lora(self, name: str, path: Path) -> Served:
        about = storage.adding(path)
        if about is None:
            raise ValueError("it adds to no other model; name it beside the models that are served")
        if not (path / storage.WEIGHTS).is_file():
            raise ValueError(f"it has no {storage.WEIGHTS}")
        if about.digest not in self._bases:
            known = ", ".join(f"{served.path} ({digest[:12]})" for digest, served in self._bases.items())
            raise ValueError(
                f"it adds to {about.place} (digest {about.digest[:12]}), which is not served: there is {known}"
            )
        served = Served(name, path, self._bases[about.digest], **self._how)
        served.passing = True
        return served
