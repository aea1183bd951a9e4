"""OpenAI's API: which models there are, and a route for each kind of work that a model may be for."""

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from regard.models import storage
from regard.serving import forms, pictures, reading
from regard.serving.chat import ChatQuestion, ChatRequest, Conversed
from regard.serving.completions import Completed, CompletionQuestion, CompletionRequest, failed
from regard.serving.errors import RefusalError
from regard.serving.registry import Served
from regard.serving.service import Service
from regard.tasks.asks import ReachError


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: str = "model"
    created: int  # when its weights were written, in seconds since 1970
    owned_by: str = "regard"


class Models(BaseModel):
    """All of them."""

    object: str = "list"
    data: list[Model]


class WorkRequest(BaseModel):
    """As much of a request as has to be read to know who can do it."""

    model: str = Field(description="an id of /v1/models")


class Fault(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """An error in OpenAI's form."""

    error: Fault


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document."""
    return {status: {"model": Failure} for status in statuses}


def router(service: Service) -> APIRouter:
    """The routes."""
    guard = Depends(service.door.guard)
    routes = APIRouter(
        prefix="/v1", tags=["OpenAI"], dependencies=[guard], responses=failures(401, 403, 408, 413, 421, 429)
    )

    @routes.get("/models", summary="The models.")
    async def models() -> Models:
        return Models(data=[_about(served) for served in service.registry])

    @routes.get("/models/{id}", summary="One model.", responses=failures(404))
    async def model(id: str) -> Model:
        return _about(service.registry.get(id))

    async def written(request: Request, route: str, form: Any, kind: type[CompletionQuestion]) -> Any:
        said = forms.json_object(await request.body())
        served = service.registry.asked(route, forms.checked(WorkRequest, said, typed=True).model)
        question = kind(forms.checked(form, said, typed=True), served.id)
        request.state.characters = forms.admitted(question.texts, service.config.characters, kind.param)

        async def answered() -> Any:
            return await asyncio.to_thread(question.completed, await service.answers(served, question))

        queue = service.queue(served)

        def begin() -> Iterator[bytes]:
            queue.prepare(question)
            return question.pieces()

        try:
            if question.asked.stream:
                return await service.streamed(request, served, begin, "text/event-stream", failed)
            return await service.attended(request, answered())
        except ReachError as error:
            raise RefusalError(
                400, str(error), reason="size", param=kind.param, code="context_length_exceeded"
            ) from None
        except ValueError as error:
            raise RefusalError(400, str(error)) from None

    @routes.post(
        "/completions",
        summary="Go on with a text.",
        response_model=Completed,
        responses=failures(400, 404, 503, 504),
        openapi_extra=forms.described(CompletionRequest),
        include_in_schema="POST /v1/completions" in service.routes,
    )
    async def completions(request: Request) -> Any:
        return await written(request, "POST /v1/completions", CompletionRequest, CompletionQuestion)

    @routes.post(
        "/chat/completions",
        summary="Go on with a conversation.",
        response_model=Conversed,
        responses=failures(400, 404, 503, 504),
        openapi_extra=forms.described(ChatRequest),
        include_in_schema="POST /v1/chat/completions" in service.routes,
    )
    async def chat(request: Request) -> Any:
        return await written(request, "POST /v1/chat/completions", ChatRequest, ChatQuestion)

    @routes.post(
        "/embeddings",
        summary="Make vectors of texts.",
        response_model=reading.Embeddings,
        responses=failures(400, 404, 503, 504),
        openapi_extra=forms.described(reading.EmbeddingRequest, reading.limits(service.registry, service.config)),
        include_in_schema="POST /v1/embeddings" in service.routes,
    )
    async def embeddings(request: Request) -> Any:
        said = forms.json_object(await request.body())
        served = service.registry.asked("POST /v1/embeddings", forms.checked(WorkRequest, said, typed=True).model)
        asked = forms.checked(reading.EmbeddingRequest, said, typed=True)
        question = reading.embeddings(asked, served.id, pictures.given_to(served))
        return await service.told(request, served, question, "input")

    return routes


def _about(served: Served) -> Model:
    try:
        created = (served.path / storage.WEIGHTS).stat().st_mtime
    except OSError:  # it has vanished
        created = 0
    return Model(id=served.id, created=int(created))
