"""OpenAI's completions: what a request may say, how it is asked of a language model, and the form of the answers."""

import json
import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from regard.checks import at_least
from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.serving.errors import RefusalError
from regard.serving.queue import Asked
from regard.serving.shown import Shown
from regard.tasks.asks import SAMPLING, Completion, Followed, Prompt, Writing, names_of

PROMPTS, LIKELIEST = 1_000, 20  # of a request, at most; of a place
NAMES = {"max_tokens": "limit", "best_of": "best"}  # what OpenAI calls our settings
NEUTRAL = {"logit_bias": {}, "suffix": "", "presence_penalty": 0, "frequency_penalty": 0}  # what none here can do
SEEDS = 2**53  # what is drawn where nobody names a seed


class StreamOptions(BaseModel):
    """What else is sent piece by piece."""

    include_usage: bool = False


class _Named(BaseModel):
    """The fields that have a name, a type or a meaning of OpenAI's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str = Field(description="an id of /v1/models")
    prompt: str | list[str] | list[int] | list[list[int]] | None = Field(
        "", description="a text to go on with, or its token ids; or a list of them"
    )
    n: int = Field(1, ge=1, le=128, description="outputs for each prompt")
    best_of: int | None = Field(None, ge=1, le=128, description="outputs of which the likeliest n are given")
    max_tokens: int | None = Field(None, ge=1, description="sub-words that are written at most")
    stop: str | list[str] | None = Field(None, description="a text, or several, before which an output ends")
    logprobs: int | None = Field(
        None, ge=0, le=LIKELIEST, description="log p of each token, and of so many likeliest in its place"
    )
    stream: bool | None = Field(None, description="send it piece by piece as it is written, as server-sent events")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="is not looked at")
    logit_bias: dict[str, float] | None = Field(None, description="not supported, as the three that follow")
    suffix: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


_TYPES: dict[str, Any] = {
    each.name: each.type for kind in (Writing, SearchConfig, SamplingConfig) for each in fields(kind)
}
_OURS: dict[str, Any] = {name: (_TYPES[name] | None, None) for name in names_of(Writing) if name != "stop"}
CompletionRequest: Any = create_model("CompletionRequest", __base__=_Named, **_OURS)


class Logprobs(BaseModel):
    """Of each token its text, log p, the likeliest in its place, and where in the text it begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


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

    def __init__(self, asked: Any, model: str) -> None:
        for name, neutral in NEUTRAL.items():
            if getattr(asked, name) not in (None, neutral):
                message = f"{name} is not supported: leave it out"
                raise RefusalError(400, message, param=name, code="unsupported_parameter")
        self.asked, self._settings = asked, _settings(asked)
        self._envelope: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        prompt = "" if asked.prompt is None else asked.prompt
        self.prompts: list[Any] = [prompt] if isinstance(prompt, str) or isinstance((*prompt, "")[0], int) else prompt
        if not 1 <= len(self.prompts) <= PROMPTS:
            message = f"Invalid request: prompt is a list of {len(prompt)} prompts: give 1 to {PROMPTS:,}"
            raise RefusalError(400, message, param="prompt")
        self.texts = [each for each in self.prompts if isinstance(each, str)]
        if asked.stream and (self._settings["best"] or 1) > asked.n:
            message = "best_of outputs are compared when all are written: leave it or stream out"
            raise RefusalError(400, message, param="best_of")

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
            ids = None if isinstance(each, str) else tuple(each)
            text = each if isinstance(each, str) else generator.tokenizer.decode(each)
            # Not of the settings: requests of other seeds are answered together.
            seed = secrets.randbelow(SEEDS) if asked.seed is None else asked.seed
            self.asks.append(Prompt(text, "the prompt", seed=seed, ids=ids, tell=asked.logprobs))
        return self.asks, self.settings

    def completed(self, answers: Sequence[Sequence[Completion]]) -> Completed:
        """For each prompt its n outputs: of more, the likeliest by the token; of fewer, the same again."""
        n, choices = self.asked.n, list[Choice]()
        for outputs in answers:
            if len(outputs) > n:
                outputs = sorted(outputs, key=lambda each: -each.log_probability / max(1, len(each.token_scores)))
            for i in range(n):
                found = outputs[i % len(outputs)]
                choices.append(self._choice(found, len(choices), found.text))
        return Completed(**self._envelope, choices=choices, usage=_usage(answers))

    def pieces(self) -> Iterator[bytes]:
        """The same as server-sent events, one output after the other; b"" where nothing is certain yet."""
        answers = list[list[Completion]]()
        for at, prompt in enumerate(self.asks):
            answers.append([])
            for n in range(self.asked.n):
                index = at * self.asked.n + n
                if n and self.settings.search.sampling is None:  # it would be the same again
                    yield self._event([Choice(text=answers[-1][0].text, index=index)])
                else:
                    coming = _Ending(self.generator.streamed(prompt, self.settings, n))
                    for text in coming:
                        yield self._event([Choice(text=text, index=index)]) if text else b""
                    answers[-1].append(coming.end)
                yield self._event([self._choice(answers[-1][-1], index, "")])
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            yield self._event([], _usage(answers))
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[Choice], usage: Usage | None = None) -> bytes:
        found = Completed(**self._envelope, choices=choices, usage=usage)
        return b"data: " + found.model_dump_json().encode() + b"\n\n"

    def _choice(self, found: Completion, index: int, text: str) -> Choice:
        told = None if found.told is None else _logprobs(found, found.told, Shown(self.generator.tokenizer))
        return Choice(text=text, index=index, logprobs=told, finish_reason=found.why)


class _Ending:
    """What a generator yields, and then what it returns."""

    def __init__(self, made: Generator[str, None, Completion]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[str]:
        self.end = yield from self._made


def failed(message: str) -> bytes:
    """What is sent when it cannot go on."""
    return b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"


def _settings(asked: Any) -> dict[str, Any]:
    """What is said of our settings, by our names, but for the seed."""
    given = {name: getattr(asked, name) for name in (*_OURS, "stop") if name != "seed"}
    given |= {ours: value for name, ours in NAMES.items() if (value := getattr(asked, name)) is not None}
    if asked.n > (given["best"] or 1):
        given["best"] = asked.n
    if given["temperature"] == 0.0:  # the likeliest token each time: there is one such output, unless a beam has more
        given |= dict.fromkeys(SAMPLING)
        given["beam"] = given["beam"] or 1
        given["best"] = min(given["best"] or 1, given["beam"])
    return given


def _usage(answers: Sequence[Sequence[Completion]]) -> Usage:
    read = sum(len(outputs[0].read) for outputs in answers)
    written = sum(len(each.ids) for outputs in answers for each in outputs)
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _logprobs(found: Completion, told: Sequence[Followed], shown: Shown) -> Logprobs:
    """Of the tokens that have a text: marks have none, nor has what comes after a stop text."""
    shown.all(found.read[: len(found.read) + len(found.ids) - len(told)])
    places, texts = [], list[str]()
    for each in told:
        others = dict(zip(shown.adds([*each.others]), each.others.values(), strict=True))
        (text,) = shown.adds([each.id])
        if not shown.all([each.id])[0]["special"]:
            places.append((each.log_p, None if each.log_p is None else others))
            texts.append(text)
    if texts and not found.text.startswith(" "):
        texts[0] = texts[0].removeprefix(" ")  # before a text there is none
    offsets = [0, *accumulate(map(len, texts))]
    last = sum(offset < len(found.text) for offset in offsets[:-1])
    return Logprobs(
        tokens=texts[:last],
        token_logprobs=[log_p for log_p, _ in places[:last]],
        top_logprobs=[others for _, others in places[:last]],
        text_offset=offsets[:last],
    )
