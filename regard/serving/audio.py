"""OpenAI's routes for speech: a sound file in a form, and what is said in it, as text, subtitles or JSON."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

from babel import Locale
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from regard.data.sound import read
from regard.serving import forms
from regard.serving.completions import failed
from regard.serving.errors import RefusalError
from regard.serving.openai import failures
from regard.serving.queue import Queue
from regard.serving.service import Service
from regard.serving.turns import in_thread, safe_point
from regard.tasks.transcribe import Hearing
from regard.tasks.transcripts import Segment, Transcript

EVENTS = "text/event-stream"
SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}


class SpeechRequest(BaseModel):
    """What a form says beside the file."""

    model: str = Field(description="an id of /v1/models")
    language: str | None = Field(None, description="of the speech, as en; found if left out")
    prompt: str = Field("", description="names and words that are likely, as if they were said before")
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0, le=1, description="the first; where an output looks wrong, others are tried")
    stream: bool = Field(False, description="tell what is said as it is heard")
    words: bool = Field(False, description="and when each word is, in verbose_json: timestamp_granularities[] word")


def router(service: Service) -> APIRouter:
    """The routes."""
    statuses = failures(400, 401, 403, 404, 408, 413, 421, 429, 503, 504)
    routes = APIRouter(
        prefix="/v1/audio", tags=["OpenAI"], dependencies=[Depends(service.door.guard)], responses=statuses
    )

    async def heard(request: Request, route: str, **more: Any) -> Any:
        asked, sound, name = await _form(request)
        served = service.registry.asked(route, asked.model)
        request.state.characters = forms.admitted([asked.prompt], service.config.characters, "prompt")
        queue = service.queue(served)

        def begin() -> Hearing:
            transcriber = queue.predictor()
            given = {"language": asked.language, "prompt": asked.prompt, "temperature": asked.temperature, **more}
            given |= {"words": True} if asked.words else {}
            try:
                how = transcriber.settings(**{key: value for key, value in given.items() if value})
            except ValueError as error:
                raise RefusalError(400, str(error), param="language") from None
            try:
                return transcriber.hearing(read(sound, name, 60 * service.config.minutes), how)
            except ValueError as error:
                raise RefusalError(400, str(error), param="file", code="invalid_file") from None

        def work() -> Transcript:
            hearing = begin()
            for _ in hearing:
                safe_point()
            return hearing.transcript

        if asked.stream:
            return await service.streamed(request, served, lambda: _events(begin()), EVENTS, failed)
        said = await service.attended(request, _placed(queue, work))
        return told(said, asked, "translate" if more else "transcribe")

    def add(name: str, summary: str, **more: Any) -> None:
        async def asked(request: Request) -> Any:
            return await heard(request, f"POST /v1/audio/{name}", **more)

        asked.__name__ = name
        here = f"POST /v1/audio/{name}" in service.routes
        how: dict[str, Any] = {"response_model": None, "openapi_extra": _described(), "include_in_schema": here}
        routes.post(f"/{name}", summary=summary, **how)(asked)

    add("transcriptions", "Write down what is said.")
    add("translations", "Write down in English what is said in another language.", translate=True)
    return routes


async def _placed(queue: Queue, work: Any) -> Transcript:
    with queue.place():
        found: Transcript = await in_thread(queue.short, work)
        return found


async def _form(request: Request) -> tuple[SpeechRequest, bytes, str]:
    """What is asked, and the file with its name."""
    try:
        async with request.form(max_files=1, max_fields=forms.FIELDS) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise RefusalError(400, "Invalid request: send a form with a sound as its file", param="file")
            fields: dict[str, Any] = {name: form.get(name) for name in SpeechRequest.model_fields if form.get(name)}
            fields["words"] = "word" in form.getlist("timestamp_granularities[]")
            name = " ".join((file.filename or "the file").split())[:100]
            return forms.checked(SpeechRequest, fields, typed=False), await file.read(), name
    except (HTTPException, UnicodeError):  # what starlette finds wrong with a form
        raise RefusalError(400, "Invalid request: the body is no multipart form") from None


def told(said: Transcript, asked: SpeechRequest, task: str) -> Response:
    """What is sent, in the form that was asked for."""
    form = asked.response_format
    if form in SUBTITLES:
        return PlainTextResponse(said.written(form), media_type=f"{SUBTITLES[form]}; charset=utf-8")
    if form == "text":
        return PlainTextResponse(f"{said.text}\n")
    usage = {"type": "duration", "seconds": math.ceil(said.duration)}
    if form == "json":
        return JSONResponse({"text": said.text, "usage": usage})
    whole = {"task": task, "language": _name(said.language), "duration": said.duration, "text": said.text}
    whole["segments"] = [_segment(i, each) for i, each in enumerate(said.segments)]
    if asked.words:
        words = [word for each in said.segments for word in each.words or ()]
        whole["words"] = [{"word": w.word.strip(), "start": round(w.start, 2), "end": round(w.end, 2)} for w in words]
    return JSONResponse({**whole, "usage": usage})


def _segment(i: int, each: Segment) -> dict[str, Any]:
    """A segment by OpenAI's names."""
    return {
        "id": i,
        "seek": 0,
        "start": round(each.start, 2),
        "end": round(each.end, 2),
        "text": each.text,
        "tokens": [*each.tokens],
        "temperature": each.temperature,
        "avg_logprob": each.log_probability,
        "compression_ratio": each.compression,
        "no_speech_prob": each.silence,
    }


def _name(language: str) -> str:
    """In English, as OpenAI has it.

    >>> _name("en"), _name("haw"), _name("")
    ('english', 'hawaiian', '')
    """
    return str(Locale("en").languages.get(language, language)).lower()


def _events(hearing: Hearing) -> Iterator[bytes]:
    """What is said, as it is heard, and all of it at the end."""
    for said in hearing:
        delta = "".join(each.text for each in said)
        if hearing.segments[: len(said)] == said:  # the first
            delta = delta.lstrip()
        yield _event({"type": "transcript.text.delta", "delta": delta}) if delta else b""
    usage = {"type": "duration", "seconds": math.ceil(hearing.duration)}
    yield _event({"type": "transcript.text.done", "text": hearing.transcript.text, "usage": usage})


def _event(said: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(said, ensure_ascii=False).encode() + b"\n\n"


def _described() -> dict[str, Any]:
    """For the OpenAPI document."""
    schema = SpeechRequest.model_json_schema()
    schema["properties"] = {"file": {"type": "string", "format": "binary"}, **schema["properties"]}
    del schema["properties"]["words"]
    kinds = {"type": "array", "items": {"type": "string", "enum": ["word", "segment"]}}
    schema["properties"]["timestamp_granularities[]"] = kinds
    schema["required"] = ["file", "model"]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
