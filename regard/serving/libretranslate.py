"""LibreTranslate's API: /translate, /detect, /languages and /frontend/settings, as its clients know them."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from babel import Locale, UnknownLocaleError
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from regard.serving import forms
from regard.serving.detect import Detected
from regard.serving.errors import RefusalError
from regard.serving.markup import Page
from regard.serving.queue import Asked
from regard.serving.registry import Served
from regard.serving.service import Service
from regard.tasks.asks import Answer, Ask, Settings, listed

ALTERNATIVES, TEXTS = 16, 1_000  # of a request, at most
Pair = tuple[str, str]  # of languages: source, target


class TranslateRequest(BaseModel):
    """A text or several, and from which language into which."""

    q: str | Annotated[list[str], Field(max_length=TEXTS)] = Field(description="the text; in JSON also a list of texts")
    source: str = Field(description="a language code of /languages, or auto")
    target: str = Field(description="a language code of /languages")
    format: Literal["text", "html"] = Field("text", description="html: tags stay, the text between is translated")
    alternatives: int = Field(0, ge=0, le=ALTERNATIVES, description="how many other translations to give")
    api_key: str | None = Field(None, description="where the server asks for one")
    model: str | None = Field(None, description="an id of /v1/models; left out: the first for these languages")


class DetectRequest(BaseModel):
    """A text in some language."""

    q: str = Field(description="the text")
    api_key: str | None = Field(None, description="where the server asks for one")


class Translated(BaseModel):
    """Lists where a list of texts was sent."""

    translatedText: str | list[str]  # noqa: N815  names of the API
    detectedLanguage: Detected | list[Detected] | None = Field(None, description="only for source auto")  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = Field(None, description="only where asked for")
    warning: str | list[str | None] | None = Field(None, description="only where the model can but guess, and at what")


class Language(BaseModel):
    """A language that is read or written, and those it is translated into."""

    code: str
    name: str
    targets: list[str]


class Problem(BaseModel):
    """What is wrong, in one line."""

    error: str


BAD = "something is missing, of a wrong type, unsupported or too long; or a key is required"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: BAD,
        404: "no model here translates",
        403: "invalid key, or a page of an origin that may not ask",
        408: "the body came too slowly",
        413: "the body is too large",
        421: "the server is not called so",
        429: "slow down, and try again after `Retry-After` seconds",
        503: "the model cannot be loaded, or the server is shutting down",
        504: "it took too long",
    }.items()
}
WRITTEN_AS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")


def router(service: Service) -> APIRouter:
    """The routes."""
    pairs: dict[Pair, Served] = {}
    for served in service.registry:
        if served.task.name == "translate":
            pairs.setdefault(served.languages, served)
    routes = APIRouter(tags=["LibreTranslate"], include_in_schema=bool(pairs))

    @routes.post(
        "/translate",
        response_model=Translated,
        response_model_exclude_none=True,
        responses=PROBLEMS,
        openapi_extra=_body(TranslateRequest, service, pairs),
        summary="Translate a text, or a list of texts.",
    )
    async def translate(request: Request) -> dict[str, Any]:
        asked = await forms.read(request, TranslateRequest)
        service.door.admit(request, asked.api_key)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        request.state.characters = forms.admitted(texts, service.config.characters)
        return await service.attended(request, answered(asked, texts))

    async def answered(asked: TranslateRequest, texts: list[str]) -> dict[str, Any]:
        able = pairs
        if asked.model is not None:
            served = service.registry.asked("POST /translate", asked.model)
            able = {served.languages: served}
        if not able:
            first = service.registry.get()
            raise RefusalError(404, f"no model here translates: {first.id} is {first.task.a_model}")
        target = known(asked.target, [target for _, target in able])
        guesses = await languages_of(texts, asked.source, target, able)
        html, best = asked.format == "html", 1 + asked.alternatives
        # Others are not to wait for somebody's markup: it is read and written in a thread.
        pages = await asyncio.to_thread(list, map(Page, texts)) if html else [None] * len(texts)
        parts = [page.texts if page else [text] for text, page in zip(texts, pages, strict=True)]
        answers: dict[int, list[Answer]] = {}
        for source in dict.fromkeys(guess.language for guess in guesses):  # those of one language go together
            rows = [row for row, guess in enumerate(guesses) if guess.language == source]
            asks = [part for row in rows for part in parts[row]]
            got = iter(await service.answers(able[source, target], translating(asks, best=best, align=html)))
            answers |= {row: [next(got) for _ in parts[row]] for row in rows}
        outputs = []  # for each text, the best first
        for row, page in enumerate(pages):
            found = [answer.translations for answer in answers[row]]
            written = await asyncio.to_thread(page.filled, found, best) if page else [each.text for each in found[0]]
            outputs.append(list(dict.fromkeys(written)))
        said: dict[str, list[Any]] = {"translatedText": [each[0] for each in outputs]}
        if asked.source == "auto":
            said["detectedLanguage"] = guesses
        if asked.alternatives:
            said["alternatives"] = [each[1:best] for each in outputs]
        warnings = [_warning(answers[row]) for row in range(len(texts))]
        if any(warnings):
            said["warning"] = warnings
        return {name: values[0] if isinstance(asked.q, str) else values for name, values in said.items()}

    @routes.post(
        "/detect",
        responses={status: PROBLEMS[status] for status in (400, 403, 408, 413, 421, 429, 504)},
        openapi_extra=_body(DetectRequest, service, pairs),
        summary="Guess the language of a text.",
    )
    async def detect(request: Request) -> list[Detected]:
        asked = await forms.read(request, DetectRequest)
        service.door.admit(request, asked.api_key)
        request.state.characters = forms.admitted([asked.q], service.config.characters)
        return await service.attended(request, asyncio.to_thread(service.detector.guess, asked.q))

    @routes.get("/languages", summary="The languages, and what each is translated into.")
    async def languages() -> list[Language]:
        codes = dict.fromkeys([source for source, _ in pairs] + [target for _, target in pairs])
        return [Language(code=code, name=name_of(code), targets=[t for s, t in pairs if s == code]) for code in codes]

    @routes.get("/frontend/settings", summary="What a page for translating has to know.")
    async def settings() -> dict[str, Any]:
        pair = next(iter(pairs), ("", ""))
        source, target = ({"code": code, "name": name_of(code)} for code in pair)
        return {
            "charLimit": service.config.characters,
            "frontendTimeout": 500,
            "apiKeys": bool(service.config.api_keys),
            "keyRequired": bool(service.config.api_keys),
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {"source": source, "target": target},
        }

    async def languages_of(texts: list[str], source: str, target: str, able: Iterable[Pair]) -> list[Detected]:
        """The language of each text: the one that is named, or a guess among those that have the target."""
        if source == "auto":
            among = [source for source, to in able if to == target]
            return await asyncio.to_thread(lambda: [service.detector.sure(text, among) for text in texts])
        source = known(source, [source for source, _ in able])
        if (source, target) not in able:
            raise RefusalError(400, f"{target} is not available as a target language from {source}")
        return [Detected(confidence=100.0, language=source)] * len(texts)

    return routes


def translating(texts: Sequence[str], *, best: int = 1, align: bool = False) -> Callable[[Any], Asked]:
    """What is asked of a translator for some texts: the `best` outputs of each."""

    def asked(translator: Any) -> Asked:
        given = {"best": best, "align": align, "beam": max(best, translator.decode.beam)}
        return [Ask(text) for text in texts], Settings.of(given, translator.decode).bare()

    return asked


def known(code: str, served: Sequence[str]) -> str:
    """The served language that is meant by a code: itself, or the one that only its region or case sets apart.

    >>> known("es", ["en", "es"]), known("ES-mx", ["en", "es"])
    ('es', 'es')
    """
    if code in served:
        return code
    for candidate in served:
        if re.split("[-_]", candidate.lower())[0] == re.split("[-_]", code.lower())[0]:
            return candidate
    raise RefusalError(400, f"{code[:20]} is not supported", code="unsupported_language")


def name_of(code: str) -> str:
    """A language in English.

    >>> name_of("es"), name_of("source")
    ('Spanish', 'source')
    """
    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def _warning(answers: Sequence[Answer]) -> str | None:
    """What a client is told where a text has something that the model cannot know."""
    strange = list(dict.fromkeys(stretch for answer in answers for stretch in answer.unknown))
    return f"the model has no sub-words for {listed(strange)}, and can only guess" if strange else None


def _body(model: type[BaseModel], service: Service, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What OpenAPI says of a body that comes as JSON or as a form: with the limits and languages of this server."""
    schema = model.model_json_schema()
    fields = schema["properties"]
    text = {"type": "string", "maxLength": service.config.characters, "pattern": "^[^\\u0000]*$"}
    sources, targets = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    for name, codes in {"source": ["auto", *sources], "target": targets}.items():
        if name in fields:
            fields[name]["enum"] = codes
    several = {"type": "array", "items": text, "maxItems": TEXTS}
    q = {"description": fields["q"]["description"]}
    form = {**schema, "properties": {**fields, "q": q | text}}
    typed = {**schema, "properties": {**fields, "q": q | ({"anyOf": [text, several]} if "source" in fields else text)}}
    kinds = {kind: {"schema": typed if kind == WRITTEN_AS[0] else form} for kind in WRITTEN_AS}
    return {"requestBody": {"required": True, "content": kinds}}
