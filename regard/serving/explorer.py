"""The explorer's page and its routes: docs/explorer.md describes them."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, Field

from regard.adaptation.recall import recall_of
from regard.decoding.protocol import DAMAGED
from regard.serving import graphs, looks
from regard.serving.errors import RefusalError
from regard.serving.live import Line, Live, Look, TooLargeError
from regard.serving.pictures import Album, files_of
from regard.serving.readers import LiveReader
from regard.serving.registry import Registry, Served
from regard.serving.seers import LiveDescriber, LiveLooker, LiveMatcher, LiveViewer, Seeing
from regard.serving.service import Service
from regard.tasks.reader import Reader
from regard.tasks.searching import Searcher

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILE = re.compile(rf"[a-z0-9_-]+\.({'|'.join(TYPES)})", re.ASCII)
SEERS: dict[str, type[Seeing]] = {  # by task
    "recognise": LiveViewer,
    "match": LiveMatcher,
    "caption": LiveDescriber,
    "look": LiveLooker,
}
Ids = list[int]
INPUTS = {"source", "target", "tokens", "segments", "picture"}


class Asked(BaseModel, extra="forbid"):
    """What every question says."""

    model: str | None = None
    edits: dict[str, dict[int, float]] = {}
    off: list[str] = []  # what was added to the model and is not to act


class TranslateAsked(Asked):
    text: str = ""
    picture: str | None = None  # by its name, for a model that sees
    prefix: Ids = []
    beam: int = 1
    alternatives: int = 8
    sentence: Annotated[int, Field(ge=0)] = 0
    pair: str = ""  # what stands beside the text, for a model that reads: its pair, its context, or lines


class LookAsked(Asked):
    """The inputs of the model: of a language model `tokens`, the first of which is read alone."""

    source: Ids | None = None
    target: Ids | None = None
    tokens: Ids | None = None
    segments: Ids | None = None  # of two texts that are read together
    picture: str | None = None  # by its name, for a model that sees


class ScoreAsked(LookAsked):
    alternatives: int = 8


class Wanted(BaseModel, extra="forbid"):
    name: str
    heads: Annotated[list[int], Field(min_length=1)] | None = None


class MapsAsked(LookAsked):
    view: Literal["weights", "norm", "rollout"] = "weights"
    attentions: Annotated[list[Wanted], Field(min_length=1)]
    pool: Annotated[int, Field(ge=0)] = 0
    dtype: Literal["u8", "f32"] = "u8"


class NeuronAsked(LookAsked):
    attention: str
    head: int
    query: int


class _Models:
    """The served models, each with a `Live` beside it from its first use on."""

    def __init__(self, registry: Registry, album: Album) -> None:
        self._registry, self._lock, self._lives, self._album = registry, Lock(), dict[str, Live](), album

    def served(self, id: str | None) -> Served:
        """The model that is meant."""
        return self._registry.get(id)

    def get(self, id: str | None) -> Live:
        served = self.served(id)
        try:
            predictor = served.predictor()
            with self._lock:
                live = self._lives.get(served.id)
                if live is None or live.predictor is not predictor:  # its files have changed
                    self._lives = {id: each for id, each in self._lives.items() if id in self._registry.ids}
                    live = self._lives[served.id] = _live(predictor, served, self._album)
                return live
        except (OSError, ValueError) as error:
            raise RefusalError(503, f"the model {served.id} cannot be loaded: {error}", reason="model") from None

    def about(self, id: str) -> dict[str, Any]:
        """What a page knows of a model."""
        served = self.served(id)
        try:
            live = self.get(id)
        except RefusalError as error:
            return {"id": id, "error": error.message}
        source, target = served.languages
        return {
            "id": id,
            "task": served.task.name,
            "source": source,
            "target": target,
            **live.about(),
            "examples": live.examples(served.task.name, source),
            "atlas": (served.path / "heads.json").is_file(),
            "remembers": recall_of(live.model) is not None,
        }


def _live(predictor: Any, served: Served, album: Album) -> Live:
    if seeing := SEERS.get(served.task.name):
        return seeing(predictor, album)
    if not isinstance(predictor, Reader | Searcher) or hasattr(served.task, "sight"):
        other = f"graph?model={served.id}" if served.task.name == graphs.TASK else ""
        message = f"{served.id} is {served.task.a_model}: "
        message += f"look at /explore/{other}" if other else "the explorer does not show such"
        raise RefusalError(404, message, param="model")
    return LiveReader(predictor) if isinstance(predictor, Reader) else Live(predictor)


def _seeing(live: Live) -> Seeing:
    if not isinstance(live, Seeing):
        raise ValueError("this model reads texts, and sees no pictures")
    return live


@contextmanager
def _plainly() -> Iterator[None]:
    """Inside the block, what cannot be looked at becomes a refusal."""
    try:
        yield
    except TooLargeError as error:
        raise RefusalError(413, str(error), reason="size") from None
    except ValueError as error:
        raise RefusalError(503 if str(error) == DAMAGED else 400, str(error)) from None


def router(service: Service) -> APIRouter:
    """The page under /explore/, and what it asks under /explore/api/."""
    album = Album(service.config.pictures)
    models = _Models(service.registry, album)
    routes = APIRouter(prefix="/explore", include_in_schema=False)

    async def looked(
        request: Request, asked: LookAsked, answer: Callable[[Live, Look], Any], *, long: bool = False
    ) -> Response:
        def work() -> Response:
            live = models.get(asked.model)
            given = asked.model_dump(include=INPUTS, exclude_none=True)
            found = answer(live, live.look(given, asked.edits, asked.off))
            return found if isinstance(found, Response) else _json(found)

        with _plainly():
            return await service.attended(request, service.looked(models.served(asked.model), work, long=long))

    @routes.get("/api/models")
    async def get_models(request: Request) -> dict[str, Any]:
        shown = [served for served in service.registry if served.task.name != "search"]  # an index is no model
        found = asyncio.gather(*(service.looked(served, partial(models.about, served.id)) for served in shown))
        default = next((served.id for served in shown), None)
        return {"default": default, "models": await service.attended(request, found)}

    @routes.post("/api/translate")
    async def translate(asked: TranslateAsked, request: Request) -> Response:
        def begin() -> Iterator[bytes]:
            live, given = models.get(asked.model), asked.model_dump(exclude={"model"}, exclude_none=True)
            if asked.picture is not None and not isinstance(live, Seeing):
                raise ValueError("picture: this model reads texts: leave it out")
            return map(_line, live.translate(**given))

        def failed(message: str) -> bytes:
            return _line({"kind": "error", "error": message})

        with _plainly():
            return await service.streamed(request, models.served(asked.model), begin, "application/x-ndjson", failed)

    @routes.post("/api/pictures")
    async def put_picture(request: Request, model: str | None = None) -> Response:
        (content, *_), _ = await files_of(request)

        def work() -> Response:
            name = album.put(content)
            _seeing(models.get(model)).read(name)
            return _json({"picture": name})

        with _plainly():
            return await service.attended(request, service.looked(models.served(model), work))

    @routes.get("/api/pictures/{name}")
    async def get_picture(name: str, request: Request, model: str | None = None) -> Response:
        """As a model sees it; without one, small."""

        def work() -> Response:
            png = album.small(name) if model is None else _seeing(models.get(model)).png(name)
            return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})

        with _plainly():
            return await service.attended(request, service.looked(models.served(model), work))

    @routes.post("/api/score")
    async def score(asked: ScoreAsked, request: Request) -> Response:
        return await looked(request, asked, lambda live, look: live.score(look, asked.alternatives))

    @routes.post("/api/maps")
    async def maps(asked: MapsAsked, request: Request) -> Response:
        def answer(live: Live, look: Look) -> Response:
            found = looks.maps(live, look, asked.view, [(each.name, each.heads) for each in asked.attentions])
            packed = looks.pack(asked.view, found, dtype=asked.dtype, pool=asked.pool)
            return Response(packed, media_type="application/octet-stream")

        return await looked(request, asked, answer)

    @routes.post("/api/neuron")
    async def neuron(asked: NeuronAsked, request: Request) -> Response:
        one = asked.attention, asked.head, asked.query
        return await looked(request, asked, lambda live, look: looks.neuron(live, look, *one))

    @routes.post("/api/measures")
    async def measures(asked: LookAsked, request: Request) -> Response:
        return await looked(request, asked, looks.measures, long=True)

    @routes.post("/api/recall")
    async def recall(asked: LookAsked, request: Request) -> Response:
        return await looked(request, asked, looks.recalled, long=True)

    @routes.post("/api/faithfulness")
    async def faithfulness(asked: LookAsked, request: Request) -> Response:
        return await looked(request, asked, looks.faithfulness, long=True)

    @routes.post("/api/page")
    async def page(asked: LookAsked, request: Request) -> Response:
        def answer(live: Live, look: Look) -> Response:
            html = looks.page(live, look).encode("utf-8", "xmlcharrefreplace")
            name = {"Content-Disposition": 'attachment; filename="attention.html"'}
            return Response(html, media_type="text/html", headers=name)

        return await looked(request, asked, answer, long=True)

    @routes.get("/api/atlas")
    async def atlas(request: Request, model: str | None = None) -> Response:
        served = models.served(model)
        path = served.path / "heads.json"
        try:
            found = service.looked(served, lambda: json.dumps(json.loads(path.read_bytes())))
            return Response(await service.attended(request, found), media_type="application/json")
        except FileNotFoundError:
            raise RefusalError(404, f"{served.id} has no atlas: run `regard heads {served.path} ...`") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RefusalError(503, f"{path} cannot be read: {error}") from None

    @routes.get("")
    def without_slash() -> RedirectResponse:
        return RedirectResponse("explore/")  # relative: the server may stand behind a prefix

    @routes.get("/")
    def index(request: Request) -> Response:
        return _file("index.html", request)

    graphs.add(routes, service)

    @routes.get("/{name}")
    def file(name: str, request: Request) -> Response:
        return _file(name, request)

    return routes


def _file(name: str, request: Request) -> Response:
    """A file of the page; the browser asks each time whether it has changed."""
    path = resources.files("regard.serving").joinpath("web", name)
    if not (known := FILE.fullmatch(name)) or not path.is_file():
        raise RefusalError(404, "there is no such file")
    content = path.read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{TYPES[known[1]]}; charset=utf-8", headers=headers)


def _line(line: Line | None) -> bytes:
    """A line as JSON; nothing where there is none yet."""
    return b"" if line is None else json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _json(content: Any) -> JSONResponse:
    """An answer, written in the thread that found it: the larger ones take a while."""
    try:
        return JSONResponse(content)
    except ValueError:  # JSON has no NaN
        raise ValueError(DAMAGED) from None
