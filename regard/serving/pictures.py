"""Pictures in requests: uploads, base64 in JSON, or the file itself; and what a model that sees tells of them."""

import binascii
import hashlib
import io
import logging
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import JSONResponse
from PIL import Image
from starlette.datastructures import UploadFile

from regard.data.labelled_pictures import is_picture
from regard.data.pictures import PictureError, opened
from regard.data.videos import shots
from regard.serving import forms, reading
from regard.serving.errors import RefusalError
from regard.serving.reading import QuestionAsked
from regard.serving.registry import Registry, Served
from regard.tasks.match import nearest, prompts
from regard.tasks.reader import Given
from regard.tasks.uses import ClassifyUse
from regard.tasks.viewer import Viewed

MOST = 64  # pictures of a request
SHELF = 2**27  # bytes of pictures that are kept to be looked at
SAMPLES = 24  # of those that a folder has, at most
THUMB = 160  # pixels along the longer side of a small picture
LOG = logging.getLogger("regard.serving")
FILES = ("image/", "video/", "multipart/form-data", "application/octet-stream")  # what is sent as it is
URL = "data:image/"  # a picture begins so where a text may stand, too


class PicturesAsked(QuestionAsked):
    """What some pictures show; of one that is `alone`, the answer is no list of answers."""

    def __init__(self, contents: list[bytes], told: Callable[[Any, Any], Any], alone: bool, **settings: Any) -> None:
        def all_told(predictor: Any, answers: list[Any]) -> Any:
            found = [told(predictor, each) for each in answers]
            return found[0] if alone else found

        super().__init__(viewed(contents), all_told, **settings)


def viewed(contents: list[bytes]) -> list[Viewed]:
    """Pictures, known by their numbers."""
    return [Viewed(content, f"picture {i}") for i, content in enumerate(contents, start=1)]


def sees(served: Served) -> bool:
    """Whether a model sees pictures."""
    return hasattr(served.task, "sight")


def classes(inputs: Any, raw: bool = False, **settings: Any) -> PicturesAsked:
    """What class pictures are of: those that a model has."""
    contents, alone = decoded(inputs)

    def told(classifier: Any, each: Any) -> list[Any]:
        return reading.predictions(classifier, each, raw)[: settings.get("top")]

    return PicturesAsked(contents, told, alone, **settings)


def captions(inputs: Any, **settings: Any) -> QuestionAsked:
    """What pictures show, in words."""
    contents, _ = decoded(inputs)
    return PicturesAsked(contents, lambda _, each: {"generated_text": each.text}, False, **settings)


def matched(inputs: Any, labels: Any = None, prompt: Any = None, **settings: Any) -> QuestionAsked:
    """The vectors of pictures and texts; or which of some labels, in words, pictures show."""
    if labels is None:
        asks: list[Any] = viewed(decoded(inputs)[0]) if _contents(inputs) else shown(reading.texts_of(inputs))
        return QuestionAsked(asks, lambda _, answers: [each.numbers for each in answers], **settings)
    contents, alone = decoded(inputs)
    words = labels.split(",") if isinstance(labels, str) else labels
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise RefusalError(400, "candidate_labels is a list of texts", param="candidate_labels")
    names = list(dict.fromkeys(each.strip() for each in words))
    try:
        texts = prompts({name: name for name in names}, str(prompt or "{}").replace("{}", "{label}"))
    except ValueError as error:
        raise RefusalError(400, str(error), param="candidate_labels") from None

    def told(matcher: Any, answers: list[Any]) -> Any:
        vectors = np.stack([each.vector for each in answers])
        found = nearest(matcher, vectors[: len(contents)], vectors[len(contents) :], names, ClassifyUse())
        said = [[{"label": label, "score": p} for label, p in each.probabilities.items()] for each in found]
        return said[0] if alone else said

    return QuestionAsked([*viewed(contents), *map(Given, texts)], told)


def given_to(served: Served) -> Callable[[list[Any]], list[Any]]:
    """How texts, or token ids, are asked of a model: of one that sees, what begins as a picture is one."""
    return shown if sees(served) else lambda given: [*map(reading.given_of, given)]


def shown(given: list[Any]) -> list[Given | Viewed]:
    """Texts, and pictures among them."""
    urls = {i: text for i, text in enumerate(given) if isinstance(text, str) and text.startswith(URL)}
    pictures = dict(zip(urls, viewed(decoded([*urls.values()])[0] if urls else []), strict=True))
    return [pictures[i] if i in urls else reading.given_of(each) for i, each in enumerate(given)]


class Album:
    """Pictures to be looked at, by names that are made of their content; those unused for longest go first. Samples
    stay."""

    def __init__(self, samples: Sequence[Path] = (), budget: int = SHELF) -> None:
        """`samples` are files, or folders of them; one that cannot be opened is refused, or left out of a folder."""
        self._held, self._budget, self._lock = OrderedDict[str, bytes](), budget, Lock()
        self._kept = {_named(content): content for content in _samples(samples)}
        self.samples = {moves: [name for name, x in self._kept.items() if _seen(x, moves)] for moves in (False, True)}

    def put(self, content: bytes) -> str:
        """The name of a picture that is here from now on; `PictureError` if it is none."""
        first(content, "the picture")
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
        image, out = first(self[name], "the picture"), io.BytesIO()
        image.thumbnail((THUMB, THUMB))
        image.save(out, "PNG")
        return out.getvalue()


def first(source: Any, place: str) -> Image.Image:
    """A picture, or of a video its first one that a model of two would see; `PictureError` if it is neither."""
    try:
        return opened(source, place=place)
    except PictureError:
        with suppress(PictureError, ValueError):
            return shots(source, 2, place)[0]
        raise


def _named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _seen(content: bytes, moves: bool) -> bool:
    """Whether a sample can be seen as a picture, or as a video: a GIF may be both."""
    with suppress(ValueError):  # it is none, or PyAV is not there
        return bool(shots(content, 2, "") if moves else opened(content))
    return False


def _samples(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        if not path.is_dir():
            first(path, str(path))  # now, not when somebody looks
            yield path.read_bytes()
            continue
        for each in islice((each for each in sorted(path.rglob("*")) if is_picture(each.name)), SAMPLES):
            try:
                first(each, str(each))
                yield each.read_bytes()
            except PictureError as error:
                LOG.warning("left out: %s", error)


def uploaded(request: Request) -> bool:
    """Whether a request brings files, and no JSON."""
    return request.headers.get("content-type", "").strip().lower().startswith(FILES)


async def told_of(service: Any, request: Request, route: str, id: str | None = None) -> JSONResponse:
    """What a model says of the files that a request brings."""
    files, fields = await files_of(request)
    served = that_sees(service.registry, route, id or fields.get("model"))
    inputs: Any = files[0] if len(files) == 1 else files
    if served.task.name == "match":
        question = matched(inputs, fields.get("candidate_labels"), fields.get("hypothesis_template"))
    else:
        question = captions(inputs) if served.task.name == "caption" else classes(inputs, **asked_of(fields))
    answer: JSONResponse = await service.told(request, served, question, "inputs")
    return answer


async def files_of(request: Request) -> tuple[list[bytes], dict[str, str]]:
    """The files that a request brings, and what else a form says."""
    if not request.headers.get("content-type", "").strip().lower().startswith("multipart"):
        return _some([await request.body()]), {}
    size = len(await request.body())
    async with request.form(max_files=MOST, max_fields=forms.FIELDS, max_part_size=size) as form:
        parts = form.multi_items()
        found = [await part.read() for _, part in parts if isinstance(part, UploadFile)]
        return _some(found), {name: part for name, part in parts if isinstance(part, str)}


def _contents(inputs: Any) -> bool:
    """Whether what is asked about are files, and no text that names them."""
    return isinstance(inputs, bytes) or (isinstance(inputs, list) and any(isinstance(each, bytes) for each in inputs))


def decoded(inputs: Any) -> tuple[list[bytes], bool]:
    """Pictures, and whether it is one alone: files, or base64, each perhaps after `data:image/png;base64,`."""
    alone = isinstance(inputs, str | bytes)
    each = [inputs] if alone else inputs
    if _contents(inputs):
        return _some(each), alone
    if not isinstance(each, list) or not all(isinstance(one, str) for one in each):
        raise RefusalError(400, "inputs: a picture in base64, or a list of them", param="inputs")
    try:
        return _some([b64decode(one.rpartition("base64,")[2], validate=True) for one in each]), alone
    except (binascii.Error, ValueError):
        raise RefusalError(
            400, "inputs: this model sees pictures: send one in base64, or as a file", param="inputs"
        ) from None


def of_url(url: Any, place: str) -> bytes:
    """The picture that a URL holds. None is fetched."""
    if not isinstance(url, str) or not url.startswith(URL) or ";base64," not in url[:100]:
        message = f"{place}: give the picture itself, as {URL}png;base64,...: nothing is fetched"
        raise RefusalError(400, message, param="messages")
    try:
        return b64decode(url.partition(";base64,")[2], validate=True)
    except (binascii.Error, ValueError):
        raise RefusalError(400, f"{place} is no base64: encode the file of the picture", param="messages") from None


def _some(found: list[bytes]) -> list[bytes]:
    if not found or not all(found):
        raise RefusalError(400, "there is no picture: send a file, or base64 as inputs", param="inputs", code="empty")
    if len(found) > MOST:
        raise RefusalError(400, f"{len(found)} pictures: send {MOST} at most", reason="size", param="inputs")
    return found


def that_sees(registry: Registry, route: str, id: str | None) -> Served:
    """The model of this id, if it sees, or the first that does."""
    if id is None and (able := [served for served in registry if sees(served) and route in served.routes]):
        return able[0]
    if not sees(served := registry.asked(route, id)):
        raise RefusalError(400, f"{served.id} is {served.task.a_model}: it reads texts, and sees no pictures")
    return served


def asked_of(fields: dict[str, str]) -> dict[str, Any]:
    """Settings that a form says."""
    if not (top := fields.get("top_k", "")):
        return {}
    if not top.isdecimal() or not int(top):
        raise RefusalError(400, f"top_k = {top[:20]!r}: it is a whole number from 1 on", param="top_k")
    return {"top": int(top)}
