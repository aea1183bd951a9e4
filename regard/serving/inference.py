"""text-embeddings-inference's API: /embed, /rerank and /predict, as its clients know them."""

from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from regard.serving import forms, pictures, reading
from regard.serving.service import Service

M = TypeVar("M", bound=BaseModel)


class InferenceProblem(BaseModel):
    """What is wrong, in one line, and of which kind that is."""

    error: str
    error_type: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": InferenceProblem} for status in (400, 401, 403, 404, 408, 413, 421, 422, 429, 503, 504)
}


def router(service: Service) -> APIRouter:
    """The routes."""
    guard = Depends(service.door.guard)
    routes = APIRouter(tags=["text-embeddings-inference"], dependencies=[guard], responses=PROBLEMS)

    limits = reading.limits(service.registry, service.config)

    def listed(path: str, asked: type[BaseModel], answer: Any) -> dict[str, Any]:
        """What the OpenAPI document says of a route, if any model is asked by it."""
        shown = f"POST {path}" in service.routes
        return {"openapi_extra": forms.described(asked, limits), "response_model": answer, "include_in_schema": shown}

    async def read(request: Request, kind: type[M]) -> M:
        return forms.checked(kind, forms.json_object(await request.body()), typed=True)

    @routes.post(
        "/embed",
        summary="Make vectors of texts, or of pictures.",
        **listed("/embed", reading.EmbedRequest, list[list[float]]),
    )
    async def embed(request: Request) -> JSONResponse:
        if pictures.uploaded(request):
            return await pictures.told_of(service, request, "POST /embed")
        asked = await read(request, reading.EmbedRequest)
        served = service.registry.asked("POST /embed", asked.model)
        return await service.told(request, served, reading.embed(asked, pictures.given_to(served)), "inputs")

    predictions = list[reading.Prediction] | list[list[reading.Prediction]]

    @routes.post(
        "/predict",
        summary="Classify texts, pairs, pictures, or molecules as SMILES.",
        **listed("/predict", reading.PredictRequest, predictions),
    )
    async def predict(request: Request) -> JSONResponse:
        if pictures.uploaded(request):
            return await pictures.told_of(service, request, "POST /predict")
        asked = await read(request, reading.PredictRequest)
        served = service.registry.asked("POST /predict", asked.model)
        if pictures.sees(served):
            shown = pictures.classes(asked.inputs, asked.raw_scores)
            return await service.told(request, served, shown, "inputs")
        return await service.told(request, served, reading.predict(asked), "inputs")

    @routes.post(
        "/rerank",
        summary="Put texts into the order in which they answer a question.",
        **listed("/rerank", reading.RerankRequest, list[reading.Rank]),
    )
    async def rerank(request: Request) -> JSONResponse:
        asked = await read(request, reading.RerankRequest)
        served = service.registry.asked("POST /rerank", asked.model)
        return await service.told(request, served, reading.rerank(asked, served.task.name), "texts")

    return routes
