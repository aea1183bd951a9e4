"""Pictures in requests: uploads, base64 in JSON, or the file itself; and what a model that sees tells of them."""

import binascii
import hashlib
import io
import logging
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from regard.data.labelled_pictures import is_picture
from regard.data.pictures import PictureError, opened
from regard.serving import forms, reading
from regard.serving.errors import RefusalError
from regard.serving.queue import Asked
from regard.serving.reading import QuestionAsked
from regard.serving.registry import Registry, Served
from regard.tasks.viewer import Viewed

MOST = 64  # pictures of a request
SHELF = 2**27  # bytes of pictures that are kept to be looked at
SAMPLES = 24  # of those that a folder has, at most
THUMB = 160  # pixels along the longer side of a small picture
TASK = "recognise"
LOG = logging.getLogger("regard.serving")
FILES = ("image/", "multipart/form-data", "application/octet-stream")  # what is sent as it is


class PicturesAsked(QuestionAsked):
    """What some pictures show."""

    def __init__(self, contents: list[bytes], alone: bool, raw: bool = False, **settings: Any) -> None:
        def told(classifier: Any, answers: list[Any]) -> Any:
            found = [reading.predictions(classifier, each, raw)[: settings.get("top")] for each in answers]
            return found[0] if alone else found

        super().__init__([], told, **settings)
        self.pictures = [Viewed(content, f"picture {i}") for i, content in enumerate(contents, start=1)]

    def __call__(self, predictor: Any) -> Asked:
        self.predictor = predictor
        return self.pictures, replace(predictor.use, **self.settings)


class Shelf:
    """Pictures to be looked at, by names that are made of their content; those unused for longest go first. Samples
    stay."""

    def __init__(self, samples: Sequence[Path] = (), budget: int = SHELF) -> None:
        """`samples` are files, or folders of them; one that cannot be opened is refused, or left out of a folder."""
        self._held, self._budget, self._lock = OrderedDict[str, bytes](), budget, Lock()
        self._kept = {_named(content): content for content in _samples(samples)}
        self.samples = list(self._kept)  # their names

    def put(self, content: bytes) -> str:
        """The name of a picture that is here from now on; `PictureError` if it is none."""
        opened(content, place="the picture")
        name = _named(content)
        with self._lock:
            self._held[name] = content
            self._held.move_to_end(name)
            while sum(map(len, self._held.values())) > self._budget and len(self._held) > 1:
                self._held.popitem(last=False)
        return name

    def __getitem__(self, name: str) -> bytes:
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                return self._held[name]
        if name not in self._kept:
            raise RefusalError(404, "the picture is not here, or not any more: choose it again", param="picture")
        return self._kept[name]

    def small(self, name: str) -> bytes:
        """A picture, small, as PNG."""
        image, out = opened(self[name]), io.BytesIO()
        image.thumbnail((THUMB, THUMB))
        image.save(out, "PNG")
        return out.getvalue()


def _named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _samples(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        if not path.is_dir():
            opened(path)  # now, not when somebody looks
            yield path.read_bytes()
            continue
        for each in islice((each for each in sorted(path.rglob("*")) if is_picture(each.name)), SAMPLES):
            try:
                opened(each)
                yield each.read_bytes()
            except PictureError as error:
                LOG.warning("left out: %s", error)


def uploaded(request: Request) -> bool:
    """Whether a request brings files, and no JSON."""
    return request.headers.get("content-type", "").strip().lower().startswith(FILES)


async def files_of(request: Request) -> tuple[list[bytes], dict[str, str]]:
    """The files that a request brings, and what else a form says."""
    if not request.headers.get("content-type", "").strip().lower().startswith("multipart"):
        return _some([await request.body()]), {}
    size = len(await request.body())
    async with request.form(max_files=MOST, max_fields=forms.FIELDS, max_part_size=size) as form:
        parts = form.multi_items()
        found = [await part.read() for _, part in parts if isinstance(part, UploadFile)]
        return _some(found), {name: part for name, part in parts if isinstance(part, str)}


def decoded(inputs: Any) -> list[bytes]:
    """Pictures in base64, one or more, each perhaps after `data:image/png;base64,`."""
    each = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(each, list) or not all(isinstance(one, str) for one in each):
        raise RefusalError(400, "inputs: a picture in base64, or a list of them", param="inputs")
    try:
        return _some([b64decode(one.rpartition("base64,")[2], validate=True) for one in each])
    except (binascii.Error, ValueError):
        raise RefusalError(
            400, "inputs: this model sees pictures: send one in base64, or as a file", param="inputs"
        ) from None


def _some(found: list[bytes]) -> list[bytes]:
    if not found or not all(found):
        raise RefusalError(400, "there is no picture: send a file, or base64 as inputs", param="inputs", code="empty")
    if len(found) > MOST:
        raise RefusalError(400, f"{len(found)} pictures: send {MOST} at most", reason="size", param="inputs")
    return found


def that_sees(registry: Registry, route: str, id: str | None) -> Served:
    """The model of this id, if it sees, or the first that does."""
    able = [served for served in registry if served.task.name == TASK]
    if id is None and able:
        return able[0]
    if (served := registry.asked(route, id)).task.name != TASK:
        raise RefusalError(400, f"{served.id} is {served.task.a_model}: it reads texts, and sees no pictures")
    return served


def asked_of(fields: dict[str, str]) -> dict[str, Any]:
    """Settings that a form says."""
    if not (top := fields.get("top_k", "")):
        return {}
    if not top.isdecimal() or not int(top):
        raise RefusalError(400, f"top_k = {top[:20]!r}: it is a whole number from 1 on", param="top_k")
    return {"top": int(top)}
