"""OpenAI's API: which models there are, and a route for each kind of work that a model may be for."""

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from regard.models import storage
from regard.serving import forms
from regard.serving.completions import Completed, CompletionQuestion, CompletionRequest, failed
from regard.serving.errors import RefusalError
from regard.serving.registry import Served
from regard.serving.service import Service
from regard.tasks.asks import ReachError

# What a model of each kind is asked by.
ROUTES = {"translation": "POST /translate", "completion": "POST /v1/completions", "embedding": "POST /v1/embeddings"}


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

    def asked_of(kind: str, model: str) -> Served:
        """The model that is meant, if it is of this kind."""
        served = service.registry.get(model)
        if served.task.called != kind:
            message = f"{served.id} is a {served.task.called} model: ask it by {ROUTES[served.task.called]}"
            raise RefusalError(404, message, param="model", code="model_not_supported")
        return served

    @routes.post(
        "/completions",
        summary="Go on with a text.",
        response_model=Completed,
        responses=failures(400, 404, 503, 504),
        openapi_extra=_body(CompletionRequest),
    )
    async def completions(request: Request) -> Any:
        said = forms.json_object(await request.body())
        served = asked_of("completion", forms.checked(WorkRequest, said, typed=True).model)
        question = CompletionQuestion(forms.checked(CompletionRequest, said, typed=True), served.id)
        request.state.characters = forms.admitted(question.texts, service.config.characters, "prompt")

        async def answered() -> Completed:
            return await asyncio.to_thread(question.completed, await service.answers(served, question))

        def begin() -> Iterator[bytes]:
            service.queues[served.id].prepare(question)
            return question.pieces()

        try:
            if question.asked.stream:
                return await service.streamed(request, served, begin, "text/event-stream", failed)
            return await service.attended(request, answered())
        except ReachError as error:
            raise RefusalError(400, str(error), reason="size", param="prompt", code="context_length_exceeded") from None
        except ValueError as error:
            raise RefusalError(400, str(error)) from None

    @routes.post(
        "/embeddings",
        summary="There is no embedding model yet: always an error.",
        responses=failures(400, 404),
        openapi_extra=_body(WorkRequest),
    )
    async def embeddings(request: Request) -> None:
        said = forms.json_object(await request.body())
        asked_of("embedding", forms.checked(WorkRequest, said, typed=True).model)

    return routes


def _body(model: Any) -> dict[str, Any]:
    """What OpenAPI says of a body of JSON; parts of it stand where they are named."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(at: Any) -> Any:
        if isinstance(at, dict):
            named = parts.get(str(at.get("$ref", "")).removeprefix("#/$defs/"))
            return whole(named) if named is not None else {key: whole(value) for key, value in at.items()}
        return [whole(each) for each in at] if isinstance(at, list) else at

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": whole(schema)}}}}


def _about(served: Served) -> Model:
    try:
        created = (served.path / storage.WEIGHTS).stat().st_mtime
    except OSError:  # it has vanished
        created = 0
    return Model(id=served.id, created=int(created))
