"""Hugging Face's inference API, by which its client asks a model that reads or summarises: POST /models/{id}."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from regard.serving import forms, pictures, reading
from regard.serving.errors import RefusalError
from regard.serving.libretranslate import Problem
from regard.serving.queue import Asked
from regard.serving.reading import QuestionAsked, texts_of
from regard.serving.service import Service
from regard.tasks.asks import Ask, Settings
from regard.tasks.embed import near
from regard.tasks.reader import Given

ROUTE = "POST /models/{id}"
NAMES = {  # what it calls our settings
    "top_k": "top",
    "max_answer_len": "longest",
    "dimensions": "dimensions",
    "max_new_tokens": "limit",
    "num_beams": "beam",
}
PARAMETERS = {  # that a model for each task is asked by
    "classify": ("top_k",),
    "recognise": ("top_k",),
    "graph": ("top_k",),
    "mask": ("top_k",),
    "answer": ("top_k", "max_answer_len"),
    "tag": (),
    "embed": ("dimensions",),
    "match": ("dimensions",),
    "caption": ("max_new_tokens", "num_beams"),
    "summarise": ("max_new_tokens", "num_beams"),
}
NEUTRAL: dict[str, Any] = {"aggregation_strategy": "simple", "normalize": True, "truncate": False}  # it is done so


class PipelineRequest(BaseModel):
    """What is to be read; what else a task may be told stands beside it or in `parameters`."""

    model_config = ConfigDict(extra="allow")
    inputs: Any = Field(
        description="a text or a list; to be answered {question, context}; to be compared {source_sentence, sentences}"
    )
    parameters: dict[str, Any] | None = None


def router(service: Service) -> APIRouter:
    """The route."""
    problems: Any = {status: {"model": Problem} for status in (400, 401, 403, 404, 408, 413, 421, 429, 503, 504)}
    routes = APIRouter(tags=["Hugging Face"], dependencies=[Depends(service.door.guard)], responses=problems)

    @routes.post(
        "/models/{id}",
        summary="Ask a model that reads, as its task has it.",
        openapi_extra=forms.described(PipelineRequest),
        include_in_schema=ROUTE in service.routes,
    )
    async def ask(id: str, request: Request) -> JSONResponse:
        if pictures.uploaded(request):
            return await pictures.told_of(service, request, ROUTE, id)
        asked = forms.checked(PipelineRequest, forms.json_object(await request.body()), typed=True)
        served = service.registry.asked(ROUTE, id)
        given = {**(asked.parameters or {}), **(asked.model_extra or {})}
        if served.task.name == "match":
            labels, prompt = (given.pop(name, None) for name in ("candidate_labels", "hypothesis_template"))
            question = pictures.matched(asked.inputs, labels, prompt)
        else:
            question = QUESTIONS[served.task.name](asked.inputs)
        question.settings |= _settings(given, served.task.name)
        return await service.told(request, served, question, "inputs")

    return routes


def _settings(given: dict[str, Any], task: str) -> dict[str, Any]:
    for name, value in given.items():
        if name not in PARAMETERS[task] and value not in (None, NEUTRAL.get(name)):
            raise RefusalError(
                400, f"{name[:40]} = {str(value)[:40]!r} is not supported: leave it out", param=name[:40]
            )
        if name in PARAMETERS[task] and value is not None and type(value) is not int:
            raise RefusalError(400, f"{name} = {str(value)[:40]!r}: it is a whole number", param=name)
    return {NAMES[name]: given[name] for name in PARAMETERS[task] if given.get(name) is not None}


def _parts(inputs: Any, *names: str) -> list[Any]:
    if not isinstance(inputs, dict) or any(name not in inputs for name in names):
        raise RefusalError(400, f"inputs is an object of {' and '.join(names)}", param="inputs")
    return [inputs[name] for name in names]


def classes(inputs: Any) -> QuestionAsked:
    """For each text its classes."""
    if isinstance(inputs, dict):
        text, pair = texts_of(_parts(inputs, "text", "text_pair"))
        asks = [Given(text, pair)]
    else:
        asks = list(map(Given, texts_of(inputs)))

    def told(classifier: Any, answers: list[Any]) -> Any:
        return [reading.predictions(classifier, each) for each in answers]

    return QuestionAsked(asks, told, top=None)


def vectors(inputs: Any) -> QuestionAsked:
    """For each text its vector; or how near some are to one."""
    if isinstance(inputs, dict):
        source, others = _parts(inputs, "source_sentence", "sentences")
        return QuestionAsked(list(map(Given, [*texts_of(source), *texts_of(others)])), lambda _, answers: near(answers))
    return QuestionAsked(list(map(Given, texts_of(inputs))), lambda _, answers: [each.numbers for each in answers])


def gaps(inputs: Any) -> QuestionAsked:
    """What may stand in the gap of a text; of several, a list for each."""

    def told(filler: Any, answers: list[Any]) -> Any:
        found = [
            [
                {"score": p, "token": id, "token_str": token, "sequence": text}
                for p, id, token, text in zip(gap.probabilities, gap.ids, gap.tokens, gap.texts, strict=True)
            ]
            for each in answers
            for gap in each
        ]
        return found[0] if len(found) == 1 else found

    return QuestionAsked(list(map(Given, texts_of(inputs))), told)


def entities(inputs: Any) -> QuestionAsked:
    """What is found in a text; or in each of a list."""

    def told(tagger: Any, answers: list[Any]) -> Any:
        found = [
            [
                {"entity_group": s.label, "score": s.probability, "word": s.text, "start": s.start, "end": s.end}
                for s in each.spans
            ]
            for each in answers
        ]
        return found[0] if isinstance(inputs, str) else found

    return QuestionAsked(list(map(Given, texts_of(inputs))), told)


def replies(inputs: Any) -> QuestionAsked:
    """What answers a question; of several, the likeliest first."""
    question, context = texts_of(_parts(inputs, "question", "context"))

    def told(answerer: Any, answers: list[Any]) -> Any:
        (reply,) = answers
        each = reply.best if len(reply.best) > 1 else [reply]
        found = [{"answer": x.text, "score": x.probability, "start": x.start or 0, "end": x.end or 0} for x in each]
        return found[0] if len(found) == 1 else found

    return QuestionAsked([Given(question, context)], told)


class SummariesAsked(QuestionAsked):
    """The same of a model that writes."""

    def __call__(self, predictor: Any) -> Asked:
        self.predictor = predictor
        return [Ask(ask.text) for ask in self.read], Settings.of(self.settings, predictor.decode)


def summaries(inputs: Any) -> QuestionAsked:
    """For each text its summary."""
    return SummariesAsked(
        list(map(Given, texts_of(inputs))),
        lambda _, answers: [{"summary_text": each.translations[0].text} for each in answers],
    )


QUESTIONS: dict[str, Callable[[Any], QuestionAsked]] = {
    "classify": classes,
    "recognise": pictures.classes,
    "caption": pictures.captions,
    "graph": classes,
    "embed": vectors,
    "mask": gaps,
    "tag": entities,
    "answer": replies,
    "summarise": summaries,
}
