"""OpenAI's completions of a language model, asked for by OpenAI's own client."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

import regard
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from regard.tasks.asks import Prompt, Writing
from tests.serving.servers import Hold, directory, running
from tests.serving.toys import LINES, writer


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    return Registry([directory(root / "translator"), writer(root / "writer")])


@pytest.fixture(scope="module")
def generator(registry: Registry) -> Any:
    return regard.load(registry.get("writer").path)


def test_both_kinds_of_models_are_listed_and_each_is_asked_its_own_way(client: openai.OpenAI, address: str) -> None:
    assert [model.id for model in client.models.list()] == ["translator", "writer"]
    with pytest.raises(openai.NotFoundError, match="a translation model: ask it by POST /translate"):
        client.completions.create(model="translator", prompt="a")
    with pytest.raises(openai.NotFoundError, match="writer is a completion model: ask it by POST /v1/completions"):
        client.embeddings.create(model="writer", input="a")
    assert httpx.get(f"{address}/languages").json()[0]["code"] == "en"


def test_without_a_translation_model_it_is_said(registry: Registry) -> None:
    with running(Registry([registry.get("writer").path])) as (address, _):
        answer = httpx.post(f"{address}/translate", data={"q": "a", "source": "en", "target": "es"})
        assert httpx.get(f"{address}/languages").json() == []
        assert httpx.get(f"{address}/ready").status_code == 200
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "no model here translates: writer is a completion model"},
    )


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 3}, {"temperature": 1.0, "top_p": 0.9, "seed": 5}])
def test_it_says_what_the_generator_says(client: openai.OpenAI, generator: Any, settings: dict[str, Any]) -> None:
    own = {"beam": 1} if settings == {"temperature": 0} else settings
    found = client.completions.create(model="writer", prompt=LINES[0], max_tokens=12, **settings)
    (expected,) = generator.completions(LINES[0], limit=12, **own)
    (choice,) = found.choices
    assert (found.object, found.model) == ("text_completion", "writer")
    assert (choice.text, choice.index, choice.finish_reason) == (expected.text, 0, expected.why)
    read = 1 + len(LINES[0])  # the mark of a beginning, and characters
    usage = found.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (read, len(expected.tokens))
    assert usage.total_tokens == read + len(expected.tokens)


def test_a_prompt_comes_in_four_ways(client: openai.OpenAI, generator: Any) -> None:
    ids = [generator.ids(text) for text in LINES[:2]]

    def texts(prompt: Any) -> list[str]:
        found = client.completions.create(model="writer", prompt=prompt, temperature=0)
        assert [choice.index for choice in found.choices] == list(range(len(found.choices)))
        return [choice.text for choice in found.choices]

    expected = generator.generate(LINES[:2], beam=1)
    assert expected[0] != expected[1]
    assert texts(LINES[:2]) == texts(ids) == expected
    assert texts(LINES[0]) == texts(ids[0]) == expected[:1]
    assert texts("") == [generator.generate("", beam=1)]
    without = client.completions.create(model="writer", prompt=ids[0][1:], temperature=0)  # as it stands: no mark
    assert without.usage is not None
    assert without.usage.prompt_tokens == len(LINES[0])


def test_outputs_are_drawn_one_by_one_and_the_likeliest_given(client: openai.OpenAI, generator: Any) -> None:
    drawn = generator.completions("a dog", best=4, seed=1)
    assert len({each.text for each in drawn}) == 4

    def texts(**settings: Any) -> list[str]:
        found = client.completions.create(model="writer", prompt="a dog", seed=1, **settings)
        return [choice.text for choice in found.choices]

    assert texts(n=4) == [each.text for each in drawn]
    ranked = sorted(drawn, key=lambda each: -each.log_probability / len(each.token_scores))
    assert texts(n=2, best_of=4) == [each.text for each in ranked[:2]]
    assert texts(n=2, temperature=0) == 2 * [generator.generate("a dog", beam=1)]
    assert texts(n=2, temperature=0, extra_body={"beam": 3}) == [
        each.text for each in generator.completions("a dog", best=2, beam=3)
    ]
    assert texts(extra_body={"top_k": 1}) == [generator.generate("a dog", beam=1)]  # our own settings, by their names


def test_without_a_seed_chance_is_chance(client: openai.OpenAI) -> None:
    found = client.completions.create(model="writer", prompt=["a"] * 4, temperature=1.0)
    assert len({choice.text for choice in found.choices}) > 1


def test_a_stop_text_ends_an_output(client: openai.OpenAI, generator: Any) -> None:
    whole = generator.generate("a dog", beam=1)
    stop = whole[10:12]
    for given in (stop, ["☃", stop]):
        (choice,) = client.completions.create(model="writer", prompt="a dog", temperature=0, stop=given).choices
        assert choice.text == whole[: whole.index(stop)]
        assert choice.finish_reason == "stop"
    (choice,) = client.completions.create(
        model="writer", prompt="a dog", temperature=0, max_tokens=3, echo=True
    ).choices
    assert (choice.text, choice.finish_reason) == ("a dog" + whole[:3], "length")


def test_probabilities_are_those_of_the_model(client: openai.OpenAI, generator: Any) -> None:
    text = LINES[0]
    found = client.completions.create(model="writer", prompt=text, max_tokens=5, temperature=0, logprobs=3, echo=True)
    (choice,), (score,) = found.choices, generator.score([found.choices[0].text])
    told = choice.logprobs
    assert told is not None
    assert "".join(told.tokens or []) == choice.text
    assert told.token_logprobs == pytest.approx(score.token_scores[:-1], abs=1e-5)
    assert told.text_offset == list(range(len(choice.text)))
    for token, log_p, top in zip(
        (told.tokens or [])[len(text) :], told.token_logprobs[len(text) :], told.top_logprobs[len(text) :], strict=True
    ):
        assert len(top) == 3
        assert max(top.values()) == top[token] == log_p  # the likeliest was taken
    (bare,) = client.completions.create(model="writer", prompt=text, max_tokens=5, temperature=0, logprobs=0).choices
    assert bare.logprobs is not None
    assert bare.logprobs.tokens == (told.tokens or [])[len(text) :]
    assert bare.logprobs.top_logprobs == [{}] * 5
    (cut,) = client.completions.create(
        model="writer", prompt=text, temperature=0, logprobs=0, stop=choice.text[-2:]
    ).choices
    assert cut.logprobs is not None
    assert "".join(cut.logprobs.tokens or []) == cut.text  # nothing of what comes after


def test_a_prompt_is_told_and_nothing_written(client: openai.OpenAI, generator: Any) -> None:
    asked = {"model": "writer", "prompt": LINES[:2], "echo": True, "logprobs": 2, "stop": "a"}
    found = client.completions.create(max_tokens=0, **asked)
    assert [(each.text, each.finish_reason) for each in found.choices] == [(text, "length") for text in LINES[:2]]
    for choice, score in zip(found.choices, generator.score(LINES[:2]), strict=True):
        told = choice.logprobs
        assert told is not None
        assert "".join(told.tokens or []) == choice.text
        assert told.token_logprobs == pytest.approx(score.token_scores[:-1], abs=1e-5)
    assert found.usage is not None
    assert (found.usage.completion_tokens, found.usage.total_tokens) == (0, found.usage.prompt_tokens)


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt": LINES[0], "temperature": 0},
        {"prompt": LINES[:2], "seed": 2, "n": 2},
        {"prompt": "a", "seed": 1, "echo": True, "logprobs": 2},
        {"prompt": "a", "temperature": 0, "stop": "e"},
        {"prompt": "a", "temperature": 0, "max_tokens": 3, "n": 2},
    ],
)
def test_what_is_streamed_is_the_answer(client: openai.OpenAI, settings: dict[str, Any]) -> None:
    whole = client.completions.create(model="writer", **settings)
    pieces = list(
        client.completions.create(model="writer", stream=True, stream_options={"include_usage": True}, **settings)
    )
    assert len({piece.id for piece in pieces}) == 1
    *chunks, last = pieces
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len(chunks) > len(whole.choices)
    for choice in whole.choices:
        own = [piece.choices[0] for piece in chunks if piece.choices[0].index == choice.index]
        assert "".join(each.text for each in own) == choice.text
        assert [each.finish_reason for each in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert own[-1].logprobs == choice.logprobs


def test_a_stream_is_server_sent_events(address: str) -> None:
    body = {"model": "writer", "prompt": "a", "stream": True, "max_tokens": 2}
    answer = httpx.post(f"{address}/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["choices"][0]["index"] == 0 for event in events)


def test_what_goes_wrong_in_mid_stream_is_told(
    client: openai.OpenAI, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Iterator[str]:
        yield "a"
        raise ValueError("the weights are damaged")

    monkeypatch.setattr(registry.get("writer").predictor(), "streamed", broken)
    stream = client.completions.create(model="writer", prompt="a", stream=True)
    assert next(stream).choices[0].text == "a"
    with pytest.raises(openai.APIError, match="the weights are damaged"):
        next(stream)


def test_company_changes_nothing(client: openai.OpenAI, registry: Registry, generator: Any) -> None:
    asked = [(text, seed) for seed in range(5) for text in (*LINES, "", "a")]

    def text(ask: tuple[str, int]) -> str:
        return client.completions.create(model="writer", prompt=ask[0], seed=ask[1], max_tokens=20).choices[0].text

    hold = Hold(registry.get("writer"))
    try:
        with ThreadPoolExecutor(len(asked)) as clients:
            found = clients.map(text, asked)
            assert hold.begun.wait(30)
            time.sleep(0.3)
            hold.go.set()
            assert list(found) == [generator.generate(prompt, seed=seed, limit=20) for prompt, seed in asked]
        assert len(hold.batches) < len(asked)
    finally:
        hold.release()


def wait_for(address: str, line: str) -> None:
    """Until the metrics say so."""
    deadline = time.monotonic() + 20
    while line not in httpx.get(f"{address}/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_leaves_is_not_answered(address: str, registry: Registry) -> None:
    hold = Hold(registry.get("writer"))
    try:
        with ThreadPoolExecutor(2) as clients:
            body = {"model": "writer", "prompt": "first"}
            first = clients.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=30)
            assert hold.begun.wait(30)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/completions", json={**body, "prompt": "second"}, timeout=0.3)
            wait_for(address, 'regard_queue_length{model="writer"} 1.0')
            hold.go.set()
            assert first.result(30).status_code == 200
        assert hold.batches == [["first"]]
    finally:
        hold.release()


def test_a_stream_that_nobody_reads_ends(
    client: openai.OpenAI, registry: Registry, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    steps = []

    def endless(*_: Any) -> Iterator[str]:
        while len(steps) < 10_000:
            steps.append(1)
            time.sleep(0.001)
            yield "a" * 100

    monkeypatch.setattr(registry.get("writer").predictor(), "streamed", endless)
    with client.completions.create(model="writer", prompt="a", stream=True) as stream:
        next(iter(stream))
    wait_for(address, 'regard_queue_length{model="writer"} 0.0')
    seen = len(steps)
    time.sleep(0.1)
    assert len(steps) == seen < 10_000


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"logit_bias": {"5": 1.0}}, "logit_bias is not supported: leave it out", "logit_bias"),
        ({"suffix": "the end"}, "suffix is not supported", "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported", "presence_penalty"),
        ({"prompt": "a" * 128}, "the prompt has 129 sub-words, the model has 128 places: shorten it", "prompt"),
        ({"prompt": [10_000]}, "are they another tokenizer's", None),
        ({"prompt": []}, "a list of 0 prompts: give 1 to 1,000", None),
        ({"prompt": [[]]}, "an empty prompt", None),
        ({"prompt": ["a"] * 1_001}, "a list of 1001 prompts", "prompt"),
        ({"prompt": "a\0"}, "prompt has a character that is no text", "prompt"),
        ({"prompt": "a" * 10_001}, "exceeds text limit", "prompt"),
        ({"prompt": 7}, "prompt: ", "prompt"),
        ({"temperature": "hot"}, "temperature: ", "temperature"),
        ({"temperature": -1}, "temperature = -1", None),
        ({"top_p": 0}, "top_p = 0", None),
        ({"max_tokens": -1}, "max_tokens: ", "max_tokens"),
        ({"max_tokens": 0}, "max_tokens = 0 writes nothing", "max_tokens"),
        ({"max_tokens": 0, "echo": True, "stream": True}, "max_tokens = 0 writes nothing", "max_tokens"),
        ({"n": 0}, "n: ", "n"),
        ({"logprobs": 21}, "logprobs: ", "logprobs"),
        ({"seed": -1}, "seed = -1", None),
        ({"stop": ""}, "a stop text is empty", None),
        ({"beem": 3}, "beem: Extra inputs", "beem"),
        ({"beam": 100_000}, "to be written exceed the limit of 10000", None),
        ({"n": 128, "prompt": ["a", "b"]}, "to be written exceed the limit of 10000", None),
        ({"shortest": 200}, "shortest = 200", None),
        ({"stream": True, "n": 1, "best_of": 2}, "best_of outputs are compared", "best_of"),
        ({"stream": True, "n": 2, "beam": 2, "temperature": 0}, "leave n or stream out", None),
        ({"stream": True, "prompt": "a" * 128}, "128 places", "prompt"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    address: str, fields: dict[str, Any], message: str, param: str | None
) -> None:
    answer = httpx.post(f"{address}/v1/completions", json={"model": "writer", "prompt": "a", **fields}, timeout=30)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["type"] == "invalid_request_error"
    assert re.search(message, error["message"]), error
    assert "\n" not in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="writer", prompt="a" * 200)
    assert refused.value.code == "context_length_exceeded"


def test_what_nobody_asked_to_change_is_taken(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model="writer", prompt="a", logit_bias={}, suffix="", presence_penalty=0, frequency_penalty=0, user="me", seed=1
    )
    assert found.choices[0].text == client.completions.create(model="writer", prompt="a", seed=1).choices[0].text


def test_a_prompt_of_ids_goes_on_after_the_last_end(generator: Any) -> None:
    ids = (*generator.ids("a dog"), generator.eos, *generator.ids("two"))
    settings = Writing.of({"beam": 1, "limit": 9}, generator.decode)
    ((found,),) = generator.answers([Prompt("two", ids=ids)], settings)
    assert (len(found.text), found.read) == (len(found.ids), list(ids))
    assert "".join(generator.streamed(Prompt("two", ids=ids), settings)) == found.text


def test_a_server_with_a_short_limit_refuses_what_would_take_long(registry: Registry) -> None:
    with running(registry, ServeConfig(explorer=False, tokens=50)) as (address, _):
        body = {"model": "writer", "prompt": "a dog", "max_tokens": 44}
        answers = [
            httpx.post(f"{address}/v1/completions", json={**body, "max_tokens": most}, timeout=30) for most in (44, 45)
        ]
    assert [answer.status_code for answer in answers] == [200, 400]
