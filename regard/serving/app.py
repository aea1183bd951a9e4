"""The application: every API of the server on one set of models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from regard.serving import audio, explorer, inference, libretranslate, openai, operation, pictures, pipelines, retrieval
from regard.serving.config import ServeConfig
from regard.serving.errors import RefusalError, response
from regard.serving.limits import Gate
from regard.serving.registry import Registry
from regard.serving.service import Service


def create_app(registry: Registry, config: ServeConfig | None = None) -> FastAPI:
    """An ASGI application that serves some models.

    >>> app = create_app(Registry([Path("runs/quickstart")]))      # doctest: +SKIP
    """
    config = config or ServeConfig()
    service = Service(registry, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(title="regard", version=version("regard"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    for room in (libretranslate, openai, audio, inference, pipelines, retrieval, operation):
        app.include_router(room.router(service))
    if config.explorer:
        guard = Depends(service.door.guard)
        app.include_router(explorer.router(service), dependencies=[guard], include_in_schema=False)

    @app.get("/", include_in_schema=False)
    async def home() -> RedirectResponse:
        asked = any(served.task.name == "search" for served in registry)
        return RedirectResponse("/ask" if asked else "/explore/" if config.explorer else "/docs")

    @app.exception_handler(RefusalError)
    async def refuse(request: Request, refusal: RefusalError) -> JSONResponse:
        service.metrics.refused.labels(refusal.reason).inc()
        return response(request.url.path, refusal)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        return response(request.url.path, RefusalError(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        return response(request.url.path, RefusalError(400, f"{name}: {first['msg']}".removeprefix(": "), param=name))

    sees = any(map(pictures.sees, registry))
    app.add_middleware(Gate, config=config, metrics=service.metrics, sees=sees)
    if config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app
