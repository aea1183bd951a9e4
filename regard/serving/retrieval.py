"""What an index is asked over HTTP: /search finds passages, /ask has a model read them; and a plain page for both."""

import re
from base64 import b64encode
from dataclasses import asdict, replace
from hashlib import sha256
from importlib import resources
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from regard.data.passages import Standing
from regard.serving import forms
from regard.serving.errors import RefusalError
from regard.serving.libretranslate import Problem
from regard.serving.queue import Asked
from regard.serving.reading import QuestionAsked
from regard.serving.registry import Served
from regard.serving.service import Service
from regard.tasks.ask import FAR, CitedAnswer, near, put_to, writing
from regard.tasks.reader import Given
from regard.tasks.uses import AskUse

SEARCH, ASK = "POST /search", "POST /ask"
MOST = 100  # passages of an answer
READERS = ("POST /v1/chat/completions", "answer")  # what can read: a language model that talks, a model to answer


class SearchRequest(BaseModel):
    """A query in, passages out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    query: str = Field(min_length=1)
    top: int = Field(10, ge=1, le=MOST, description="so many, the nearest first")
    by: str = Field("meaning", pattern="^(meaning|words|both)$", description="meaning, words, both")
    index: str | None = Field(None, description="an id of /v1/models; left out: the first index")


class FoundPassage(BaseModel):
    """A passage, and where it stands."""

    id: str
    file: str
    page: int | None
    line: int | None
    text: str
    score: float


class FoundPassages(BaseModel):
    """All of them."""

    hits: list[FoundPassage]


class AskRequest(BaseModel):
    """A question in, an answer and what it is taken from out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    question: str = Field(min_length=1)
    top: int = Field(AskUse.top, ge=1, le=MOST, description="passages that are read")
    by: str = Field("meaning", pattern="^(meaning|words|both)$", description="how they are found: meaning, words, both")
    least: float = Field(AskUse.least, ge=-1, le=1, description="by meaning: passages of a smaller score are not read")
    index: str | None = Field(None, description="an id of /v1/models; left out: the first index")
    reader: str | None = Field(None, description="an id of /v1/models; left out: the first that answers, or talks")


class CitedPassage(BaseModel):
    """A passage that an answer comes from, and where in it that stands."""

    file: str
    page: int | None
    line: int | None
    text: str
    score: float
    start: int | None
    end: int | None


class AskAnswer(BaseModel):
    """An answer, or why there is none."""

    answer: str
    citations: list[CitedPassage]
    probability: float | None
    why: str
    unread: int


def router(service: Service) -> APIRouter:
    """The routes."""
    problems: Any = {status: {"model": Problem} for status in (400, 401, 403, 404, 408, 413, 421, 429, 503, 504)}
    routes = APIRouter(tags=["retrieval"], dependencies=[Depends(service.door.guard)], responses=problems)
    there = SEARCH in service.routes
    text = {"string": {"maxLength": service.config.characters, "pattern": "^[^\\u0000]*$"}}
    limits = {"query": text, "question": text}

    @routes.post(
        "/search",
        summary="Find passages in an index.",
        response_model=FoundPassages,
        openapi_extra=forms.described(SearchRequest, limits),
        include_in_schema=there,
    )
    async def search(request: Request) -> JSONResponse:
        asked = forms.checked(SearchRequest, forms.json_object(await request.body()), typed=True)

        def told(_: Any, answers: list[Any]) -> dict[str, Any]:
            return {"hits": [{**hit._asdict(), **Standing.of(hit.id)._asdict()} for hit in answers[0]]}

        question = QuestionAsked([Given(asked.query)], told, top=asked.top, by=asked.by)
        return await service.told(request, service.registry.asked(SEARCH, asked.index), question, "query")

    @routes.post(
        "/ask",
        summary="Answer a question from an index, and say where the answer stands.",
        response_model=AskAnswer,
        openapi_extra=forms.described(AskRequest, limits),
        include_in_schema=there,
    )
    async def ask(request: Request) -> JSONResponse:
        asked = forms.checked(AskRequest, forms.json_object(await request.body()), typed=True)
        index, reader = service.registry.asked(ASK, asked.index), _reader(service, asked.reader)
        request.state.characters = forms.admitted([asked.question], service.config.characters, "question")

        async def work() -> JSONResponse:
            question = QuestionAsked([Given(asked.question)], lambda *_: None, top=asked.top, by=asked.by)
            (hits,) = await service.answers(index, question)
            use = replace(AskUse(), by=asked.by, least=asked.least)
            if some := near(Given(asked.question), hits, use):
                put = None

                def about(predictor: Any) -> Asked:
                    nonlocal put
                    put = put_to(predictor, asked.question, some)
                    return [put.ask], writing(predictor)

                (said,) = await service.answers(reader, about)
                assert put is not None
                found = put.answered(said)
            else:
                found = CitedAnswer("", why=FAR)
            row = asdict(found)
            return JSONResponse({"answer": row.pop("text"), **row})

        try:
            return await service.attended(request, work())
        except ValueError as error:
            raise RefusalError(400, str(error), param="question") from None

    page = resources.files("regard.serving").joinpath("web", "ask.html").read_text("utf-8")

    @routes.get("/ask", include_in_schema=False)
    async def form() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _policy(page)})

    return routes


def _reader(service: Service, id: str | None) -> Served:
    able = [served for served in service.registry if {served.task.name, *served.routes} & {*READERS}]
    if id is not None:
        named = service.registry.get(id)
        if named not in able:
            raise RefusalError(404, f"{named.about}; a question is answered by a model to answer, or one that talks")
        return named
    if not able:
        raise RefusalError(404, "no model is served that reads passages: serve a model to answer, or one that talks")
    return min(able, key=lambda served: served.task.name != "answer")


def _policy(page: str) -> str:
    """Nothing runs, or is loaded, but what stands in the page."""
    kinds = {}
    for kind in ("script", "style"):
        inner = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert inner is not None
        kinds[kind] = b64encode(sha256(inner[1].encode()).digest()).decode()
    own = "; ".join(f"{kind}-src 'sha256-{digest}'" for kind, digest in kinds.items())
    return f"default-src 'none'; {own}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
