"""The explorer's page and its routes: docs/explorer.md describes them."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator
from importlib import resources
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from regard.api import Translator
from regard.serving import looks
from regard.serving.live import Line, Live, Look, TooLargeError
from regard.serving.packing import pack
from regard.serving.registry import Registry, UnknownModelError
from regard.serving.shown import examples

log = logging.getLogger(__name__)
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILE = re.compile(rf"[a-z0-9_-]+\.({'|'.join(TYPES)})", re.ASCII)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Ids = list[int]


class Asked(BaseModel):
    """What every question says."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str | None = None
    edits: dict[str, dict[int, float]] = {}


class TranslateAsked(Asked):
    text: str
    prefix: Ids = []
    beam: int = 1
    alternatives: int = 8
    sentence: Annotated[int, Field(ge=0)] = 0


class LookAsked(Asked):
    source: Ids
    target: Ids


class ScoreAsked(LookAsked):
    alternatives: int = 8


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
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


class Plain(APIRoute):
    """A route whose errors are one line: {"error": ...}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except RequestValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first["loc"][1:])
                response = _error(400, f"{place}: {first['msg']}" if place else first["msg"])
            except HTTPException as error:
                response = _error(error.status_code, str(error.detail))
            except UnknownModelError as error:
                response = _error(404, str(error))
            except TooLargeError as error:
                response = _error(413, str(error))
            except ValueError as error:
                response = _error(400, str(error))
            response.headers.update(HEADERS)
            return response

        return answer


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


class _Models:
    """The served models, each with a `Live` beside it from its first use on."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self._lock = registry, Lock()
        self._lives: dict[str, tuple[Translator, Live]] = {}

    def get(self, id: str | None) -> Live:
        served = self.registry.get(id)
        try:
            translator = served.translator()
            with self._lock:
                held = self._lives.get(served.id)
                if held is None or held[0] is not translator:  # its files have changed
                    held = self._lives[served.id] = translator, Live(translator)
            return held[1]
        except (OSError, ValueError) as error:
            raise HTTPException(503, f"the model {served.id} cannot be loaded: {error}") from None

    def about(self, id: str) -> dict[str, Any]:
        """What a page knows of a model."""
        served = self.registry.get(id)
        try:
            live = self.get(id)
        except HTTPException as error:
            return {"id": id, "error": error.detail}
        source, target = served.languages
        return {
            "id": id,
            "source": source,
            "target": target,
            **live.about(),
            "examples": examples(source, live.tokenizer.kind),
            "atlas": (served.path / "heads.json").is_file(),
        }

    def look(self, asked: LookAsked) -> tuple[Live, Look]:
        live = self.get(asked.model)
        return live, live.look(asked.source, asked.target, asked.edits)


def router(registry: Registry) -> APIRouter:
    """The page under /explore/, and what it asks under /explore/api/."""
    models = _Models(registry)
    routes = APIRouter(prefix="/explore", route_class=Plain, include_in_schema=False)

    @routes.get("/api/models")
    def get_models() -> dict[str, Any]:
        return {"default": registry.ids[0], "models": [models.about(id) for id in registry.ids]}

    @routes.post("/api/translate")
    def translate(asked: TranslateAsked) -> StreamingResponse:
        live = models.get(asked.model)
        lines = live.translate(asked.text, asked.prefix, asked.edits, asked.beam, asked.alternatives, asked.sentence)
        return StreamingResponse(
            _ndjson(lines), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"}
        )

    @routes.post("/api/score")
    def score(asked: ScoreAsked) -> dict[str, Any]:
        live, look = models.look(asked)
        return live.score(look, asked.alternatives)

    @routes.post("/api/maps")
    def maps(asked: MapsAsked) -> Response:
        live, look = models.look(asked)
        found = looks.maps(live, look, asked.view, [(each.name, each.heads) for each in asked.attentions])
        data = pack(asked.view, found, dtype=asked.dtype, pool=asked.pool)
        return Response(data, media_type="application/octet-stream")

    @routes.post("/api/neuron")
    def neuron(asked: NeuronAsked) -> dict[str, Any]:
        live, look = models.look(asked)
        return looks.neuron(live, look, asked.attention, asked.head, asked.query)

    @routes.post("/api/measures")
    def measures(asked: LookAsked) -> dict[str, Any]:
        return looks.measures(*models.look(asked))

    @routes.post("/api/faithfulness")
    def faithfulness(asked: LookAsked) -> dict[str, Any]:
        return looks.faithfulness(*models.look(asked))

    @routes.get("/api/atlas")
    def atlas(model: str | None = None) -> Response:
        served = registry.get(model)
        path = served.path / "heads.json"
        try:
            return Response(json.dumps(json.loads(path.read_bytes())), media_type="application/json")
        except FileNotFoundError:
            raise HTTPException(404, f"{served.id} has no atlas: run `regard heads {served.path} ...`") from None
        except (OSError, ValueError, RecursionError) as error:
            raise HTTPException(503, f"{path} cannot be read: {error}") from None

    @routes.post("/api/page")
    def page(asked: LookAsked) -> Response:
        html = looks.page(*models.look(asked)).encode("utf-8", "xmlcharrefreplace")
        name = {"Content-Disposition": 'attachment; filename="attention.html"'}
        return Response(html, media_type="text/html", headers=name)

    @routes.get("")
    def without_slash() -> RedirectResponse:
        return RedirectResponse("explore/")  # relative: the server may stand behind a prefix

    @routes.get("/")
    def index(request: Request) -> Response:
        return _file("index.html", request)

    @routes.get("/{name}")
    def file(name: str, request: Request) -> Response:
        return _file(name, request)

    return routes


def _file(name: str, request: Request) -> Response:
    """A file of the page; the browser asks each time whether it has changed."""
    path = resources.files("regard.serving").joinpath("web", name)
    if not (known := FILE.fullmatch(name)) or not path.is_file():
        raise HTTPException(404, "there is no such file")
    content = path.read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{TYPES[known[1]]}; charset=utf-8", headers=headers)


def _ndjson(lines: Iterator[Line | None]) -> Iterator[bytes]:
    """Each line as JSON; an empty piece where there is none yet, at which a client that has left is noticed."""
    try:
        for line in lines:
            yield b"" if line is None else json.dumps(line, ensure_ascii=False).encode() + b"\n"
    except Exception as error:
        if not isinstance(error, ValueError):
            log.exception("the explorer failed in mid-stream")
        message = str(error) if isinstance(error, ValueError) else "internal error"
        yield json.dumps({"kind": "error", "error": message}).encode() + b"\n"
