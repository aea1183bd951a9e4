"""OpenAI's API: which models there are, and a route for each kind of work that a model may be for."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from regard.models import storage
from regard.serving import forms
from regard.serving.errors import RefusalError
from regard.serving.registry import Served, UnknownModelError
from regard.serving.service import Service

# What a model of each kind is asked by. A kind that has no model yet has its route: it says so.
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
    """As much of a request as has to be read to know that nobody can do it."""

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
        return _about(_named(service, id))

    schema = WorkRequest.model_json_schema()

    def unserved(kind: str) -> None:
        @routes.post(
            ROUTES[kind].split("/v1")[1],
            summary=f"There is no {kind} model yet: always an error.",
            responses=failures(400, 404),
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        )
        async def refuse(request: Request) -> None:
            asked = forms.checked(WorkRequest, forms.json_object(await request.body()), typed=True)
            served = _named(service, asked.model)
            message = f"{served.id} is a {served.task.kind} model: ask it by {ROUTES[served.task.kind]}"
            raise RefusalError(404, message, param="model", code="model_not_supported")

    for kind in ROUTES.keys() - {served.task.kind for served in service.registry}:
        unserved(kind)
    return routes


def _named(service: Service, id: str) -> Served:
    try:
        return service.registry.get(id)
    except UnknownModelError as error:
        raise RefusalError(404, str(error.args[0]), param="model", code="model_not_found") from None


def _about(served: Served) -> Model:
    try:
        created = (served.path / storage.WEIGHTS).stat().st_mtime
    except OSError:  # it has vanished
        created = 0
    return Model(id=served.id, created=int(created))
