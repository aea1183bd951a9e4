"""OpenAI's completions: what a request may say, how it is asked of a language model, and the form of the answers."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, create_model

from regard.checks import at_least
from regard.data.spelling import fragments
from regard.decoding.forms import Form
from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.serving.errors import RefusalError
from regard.serving.queue import Asked
from regard.serving.shown import Shown
from regard.tasks.asks import SAMPLING, Completion, Followed, Prompt, Writing, names_of
from regard.tasks.generator import Ending

PROMPTS, LIKELIEST = 1_000, 20  # of a request, at most; of a place
NAMES = {"max_tokens": "limit", "max_completion_tokens": "limit", "best_of": "best"}  # what OpenAI calls our settings
NEUTRAL: dict[str, Any] = {"logit_bias": {}, "suffix": "", "presence_penalty": 0, "frequency_penalty": 0}  # which
# none here can do
FORMS = ("schema", "regex", "grammar")  # of each prompt, not of the settings: requests of other forms go together
SEEDS = 2**53  # what is drawn where nobody names a seed


class StreamOptions(BaseModel):
    """What else is sent piece by piece."""

    include_usage: bool = False


class WritingRequest(BaseModel):
    """The fields that have a name, a type or a meaning of OpenAI's, whatever is gone on with."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str = Field(description="an id of /v1/models")
    n: int = Field(1, ge=1, le=128, description="outputs for each prompt")
    max_tokens: int | None = Field(None, ge=1, description="sub-words that are written at most")
    stop: str | list[str] | None = Field(None, description="a text, or several, before which an output ends")
    stream: bool | None = Field(None, description="send it piece by piece as it is written, as server-sent events")
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = Field(
        None, description='text; or what the output is: {"type": "json_object"}, {"type": "json_schema", ...}'
    )
    regex: str | None = Field(None, description="a regular expression that the output matches as a whole")
    grammar: str | None = Field(None, description="a grammar that it keeps, in Lark's notation")
    user: str | None = Field(None, description="is not looked at")
    logit_bias: dict[str, float] | None = Field(None, description="not supported, as the two that follow")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Prompted(WritingRequest):
    """And where it is a text."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = Field(
        "", description="a text to go on with, or its token ids; or a list of them"
    )
    max_tokens: int | None = Field(
        None, ge=0, description="sub-words that are written at most; 0, with echo: the prompt is told, and no more"
    )
    best_of: int | None = Field(None, ge=1, le=128, description="outputs of which the likeliest n are given")
    logprobs: int | None = Field(
        None, ge=0, le=LIKELIEST, description="log p of each token, and of so many likeliest in its place"
    )
    suffix: str | None = Field(None, description="not supported")


_TYPES: dict[str, Any] = {
    each.name: each.type for kind in (Writing, SearchConfig, SamplingConfig) for each in fields(kind)
}
OURS: dict[str, Any] = {name: (_TYPES[name] | None, None) for name in names_of(Writing) if name not in ("stop", *FORMS)}
CompletionRequest: Any = create_model("CompletionRequest", __base__=_Prompted, **OURS)


class Logprobs(BaseModel):
    """Of each token its text, log p, the likeliest in its place, and where in the text it begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Place(NamedTuple):
    """A token of an output, and what might have stood there."""

    id: int
    text: str
    log_p: float | None  # None: nothing stands before it
    others: list[tuple[int, str, float]]  # the likeliest: id, text, log p


class Choice(BaseModel):
    """An output, or a piece of one."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Usage(BaseModel):
    """Sub-words, all that were written among them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completed(BaseModel):
    """An answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class CompletionQuestion:
    """What a request asks of a language model, and the answer in OpenAI's form."""

    id, param = "cmpl", "prompt"  # what the ids of answers begin with, and what says what is to be gone on with

    def __init__(self, asked: Any, model: str) -> None:
        for name, neutral in NEUTRAL.items():
            if getattr(asked, name, None) not in (None, neutral):
                message = f"{name} is not supported: leave it out"
                raise RefusalError(400, message, param=name, code="unsupported_parameter")
        if asked.max_tokens == 0 and (asked.stream or not asked.echo):
            message = "max_tokens = 0 writes nothing: have the prompt told by echo, without stream"
            raise RefusalError(400, message, param="max_tokens")
        self.asked, self._settings, self.form = asked, _settings(asked), _form(asked)
        self._envelope: dict[str, Any] = {
            "id": f"{self.id}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self.prompts = self._prompts()
        self.texts = [text for each in self.prompts for text in self._texts(each)]
        if asked.stream and (self._settings["best"] or 1) > asked.n:
            message = "best_of outputs are compared when all are written: leave it or stream out"
            raise RefusalError(400, message, param="best_of")

    def _prompts(self) -> list[Any]:
        """What is to be gone on with."""
        prompt = "" if self.asked.prompt is None else self.asked.prompt
        given = [prompt] if isinstance(prompt, str) or isinstance((*prompt, "")[0], int) else prompt
        if not 1 <= len(given) <= PROMPTS:
            message = f"Invalid request: prompt is a list of {len(prompt)} prompts: give 1 to {PROMPTS:,}"
            raise RefusalError(400, message, param="prompt")
        return given

    def _texts(self, said: Any) -> list[str]:
        """Of one of these, what is text."""
        return [said] if isinstance(said, str) else []

    def _prompt(self, said: Any) -> Prompt:
        """And what the model is asked for it."""
        ids = None if isinstance(said, str) else tuple(said)
        text = said if isinstance(said, str) else self.generator.tokenizer.decode(said)
        return Prompt(text, "the prompt", ids=ids, tell=self.asked.logprobs)

    def __call__(self, generator: Any) -> Asked:
        """What its `answers` is to be asked; a ValueError says what it cannot be."""
        self.generator, asked = generator, self.asked
        self.settings = Writing.of(self._settings, generator.decode)
        at_least(0, seed=asked.seed)
        search = self.settings.search
        if asked.stream and search.sampling is None and search.best > 1:
            raise ValueError(f"a beam of {search.beam} has its outputs all at once: leave n or stream out")
        self.asks = []
        for each in self.prompts:
            # Not of the settings: requests of other seeds are answered together.
            seed = secrets.randbelow(SEEDS) if asked.seed is None else asked.seed
            prompt = self._prompt(each)
            self.asks.append(replace(prompt, seed=seed, form=prompt.form or self.form))
        return self.asks, self.settings

    def completed(self, answers: Sequence[Sequence[Completion]]) -> Any:
        """For each prompt its n outputs: of more, the likeliest by the token; of fewer, the same again."""
        n, choices = self.asked.n, list[Any]()
        if self.asked.max_tokens == 0:
            rows = zip(self.asks, answers, strict=True)
            answers = [[_unwritten(ask, each) for each in outputs] for ask, outputs in rows]
        for outputs in answers:
            if len(outputs) > n:
                outputs = sorted(outputs, key=lambda each: -each.log_probability / max(1, len(each.token_scores)))
            for i in range(n):
                found = outputs[i % len(outputs)]
                choices.append(self._choice(found, len(choices)))
        return self._whole(choices=choices, usage=_usage(answers), **self._envelope)

    def pieces(self) -> Iterator[bytes]:
        """The same as server-sent events, one output after the other; b"" where nothing is certain yet."""
        answers = list[list[Completion]]()
        for at, prompt in enumerate(self.asks):
            answers.append([])
            for n in range(self.asked.n):
                index = at * self.asked.n + n
                yield self._opening(index)
                again = n and self.settings.search.sampling is None  # it would be the same again
                coming = Ending(self.generator.streamed(prompt, self.settings, n))
                for text in self._said([answers[-1][0].text] if again else coming):
                    yield self._event([self._piece(text, index)]) if text else b""
                if not again:
                    answers[-1].append(coming.end)
                yield self._event([self._piece("", index, answers[-1][-1])])
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            yield self._event([], _usage(answers))
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[Any], usage: Usage | None = None) -> bytes:
        found = self._whole(choices=choices, usage=usage, streamed=True, **self._envelope)
        return b"data: " + found.model_dump_json().encode() + b"\n\n"

    def _whole(self, streamed: bool = False, **parts: Any) -> Any:
        """An answer, or a part of one."""
        return Completed(**parts)

    def _said(self, pieces: Iterable[str]) -> Iterable[str]:
        """Of the pieces of an output, what is text."""
        return pieces

    def _opening(self, index: int) -> bytes:
        """What is sent before the pieces of an output."""
        return b""

    def _choice(self, found: Completion, index: int) -> Any:
        """An output."""
        return self._piece(found.text, index, found)

    def _piece(self, text: str, index: int, found: Completion | None = None) -> Any:
        """A piece of one; the last has all that is found."""
        told, why = (None, None) if found is None else (self._told(found), found.why)
        return Choice(text=text, index=index, logprobs=told, finish_reason=why)

    def _told(self, found: Completion) -> Any:
        """What is said of the tokens of an output."""
        if found.told is None:
            return None
        places = self._places(found, found.told)
        return Logprobs(
            tokens=[each.text for each in places],
            token_logprobs=[each.log_p for each in places],
            top_logprobs=[None if each.log_p is None else {t: p for _, t, p in each.others} for each in places],
            text_offset=[0, *accumulate(map(self._characters, places))][: len(places)],
        )

    def _bytes(self, id: int, text: str) -> bytes:
        """What a token adds to a text: of some it is only a part of a character, and their text names its bytes."""
        tokens = self.generator.tokenizer
        return tokens.spelled(id) if id in fragments(tokens) else text.encode()

    def _characters(self, place: Place) -> int:
        return sum(byte & 0xC0 != 0x80 for byte in self._bytes(place.id, place.text))  # that begin in it

    def _places(self, found: Completion, told: Sequence[Followed]) -> list[Place]:
        """The tokens that have a text: marks have none, nor has what comes after a stop text."""
        shown, places, size = Shown(self.generator.tokenizer), list[Place](), 0
        shown.all(found.read[: len(found.read) + len(found.ids) - len(told)])
        for each in told:
            others = zip(each.others, shown.adds([*each.others]), each.others.values(), strict=True)
            (text,) = shown.adds([each.id])
            if not shown.all([each.id])[0]["special"] and size < len(found.text.encode()):
                if not places and not found.text.startswith(" "):
                    text = text.removeprefix(" ")  # before a text there is none
                places.append(Place(each.id, text, each.log_p, list(others)))
                size += len(self._bytes(each.id, text))
        return places


def failed(message: str) -> bytes:
    """What is sent when it cannot go on."""
    return b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"


def _settings(asked: Any) -> dict[str, Any]:
    """What is said of our settings, by our names, but for the seed."""
    given: dict[str, Any] = {name: getattr(asked, name, None) for name in (*OURS, "stop") if name != "seed"}
    given |= {ours: value for name, ours in NAMES.items() if (value := getattr(asked, name, None)) is not None}
    if given["limit"] == 0:
        given["limit"] = 1  # a search writes something; it is not told
    if asked.n > (given["best"] or 1):
        given["best"] = asked.n
    if given["temperature"] == 0.0:  # the likeliest token each time: there is one such output, unless a beam has more
        given |= dict.fromkeys(SAMPLING)
        given["beam"] = given["beam"] or 1
        given["best"] = min(given["best"] or 1, given["beam"])
    return given


def _unwritten(ask: Prompt, found: Completion) -> Completion:
    """A prompt as it was read, without what was written after it."""
    told = found.told and found.told[: len(found.read)]
    return replace(found, text=ask.text, tokens=[], token_scores=[], ids=[], told=told, why="length")


def _form(asked: Any) -> Form | None:
    """What an output is to be, as `response_format` says it, or one of our own fields."""
    said: dict[str, Any] = asked.response_format or {"type": "text"}
    schema, kind = None, said.get("type")
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        body = said.get("json_schema")
        if not isinstance(body, dict) or not isinstance(schema := body.get("schema"), dict | bool):
            raise _wrong("response_format.json_schema.schema is no JSON Schema: give an object")
    elif kind != "text":
        raise _wrong(f"response_format.type = {str(kind)[:40]!r}: choose text, json_object, json_schema")
    try:
        return Form.of(schema, asked.regex, asked.grammar)
    except ValueError as error:
        raise _wrong(str(error).replace("schema and", "response_format and")) from None


def _wrong(message: str) -> RefusalError:
    return RefusalError(400, message, param="response_format")


def _usage(answers: Sequence[Sequence[Completion]]) -> Usage:
    read = sum(len(outputs[0].read) for outputs in answers)
    written = sum(len(each.ids) for outputs in answers for each in outputs)
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
