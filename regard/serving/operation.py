"""What those ask who keep a server running: is it alive, is it ready, how does it do; and what routes there are."""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from regard.data.shelf import SETTINGS
from regard.models import storage
from regard.serving.libretranslate import Problem
from regard.serving.registry import SEARCHING, Served
from regard.serving.service import Service

STYLE = "body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem } td { padding: 0 2rem 0 0 }"
DIGEST = b64encode(sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{DIGEST}'; base-uri 'none'; frame-ancestors 'none'"
PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>regard</title><style>{style}</style>
<h1>Models</h1><ul>{models}</ul>
<h1>Routes</h1><table>{rows}</table>
<p>Schemas of all requests and answers: <a href=/openapi.json>openapi.json</a>
"""


class Health(BaseModel):
    """The server is alive."""

    status: str = "ok"


class Readiness(BaseModel):
    """Whether a model can answer, and how each of them is: loaded, to be loaded when asked, or missing."""

    status: str
    models: dict[str, str]


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/health", summary="Whether the server is alive.")
    async def health() -> Health:
        return Health()

    @routes.get(
        "/ready", summary="Whether a model can answer.", response_model=Readiness, responses={503: {"model": Readiness}}
    )
    async def ready() -> JSONResponse:
        states = {served.id: state(served) for served in service.registry}
        some = any(state != "missing" for state in states.values())
        return JSONResponse({"status": "ready" if some else "not ready", "models": states}, 200 if some else 503)

    @routes.get(
        "/metrics",
        summary="Figures for Prometheus.",
        dependencies=[Depends(service.door.guard)],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, 401: {"model": Problem}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/spec", summary="The OpenAPI document; also at /openapi.json.")
    async def spec(request: Request) -> dict[str, Any]:
        return request.app.openapi()

    @routes.get("/docs", summary="This list.", response_class=HTMLResponse)
    async def docs(request: Request) -> HTMLResponse:
        rows = "".join(
            f"<tr><td>{method.upper()}<td><code>{escape(path)}</code><td>{escape(about.get('summary', ''))}"
            for path, methods in request.app.openapi()["paths"].items()
            for method, about in methods.items()
        )
        models = "".join(f"<li>{escape(served.about)}" for served in service.registry)
        return HTMLResponse(
            PAGE.format(style=STYLE, models=models, rows=rows), headers={"Content-Security-Policy": POLICY}
        )

    return routes


def state(served: Served) -> str:
    """How a model is, without loading it."""
    needed = (SETTINGS,) if served.task is SEARCHING else (storage.CONFIG, storage.WEIGHTS)
    there = all((served.path / name).is_file() for name in needed)
    if not there:
        return "missing"
    return "loaded" if served.loaded else "to be loaded"
