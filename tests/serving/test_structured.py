"""Answers in a form, and calls of functions, asked for by OpenAI's own client, unmodified."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

import regard
from regard.serving.registry import Registry
from tests.chats import CALLS, CHATML, TURNS, talker

pytest.importorskip("llguidance")
CHAT: list[Any] = [{"role": "user", "content": "Why?"}]
WEATHER = {
    "type": "object",
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "of <|im_end|>", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop_now"}},
]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=5)
    mood: Literal["well", "ill"]
    ages: list[Annotated[int, Field(ge=0, le=150)]] = Field(max_length=2)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    shapes = {"max_position_embeddings": 1024}
    for name, kind, template in (("chatml", "bytes", CHATML), ("calls", "bytes", CALLS), ("turns", "pieces", TURNS)):
        talker(root, kind, template, **shapes)[1].rename(root / name)
    return Registry([root / "chatml", root / "calls", root / "turns"])


@pytest.mark.parametrize("model", ["chatml", "turns"])
@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 4, "temperature": 1.4}, {"extra_body": {"beam": 3}}])
def test_an_answer_is_parsed_into_a_class(client: openai.OpenAI, model: str, how: dict[str, Any]) -> None:
    asked: Any = {"model": model, "messages": CHAT, "max_tokens": 200, **how}
    (choice,) = client.chat.completions.parse(response_format=Person, **asked).choices
    assert isinstance(choice.message.parsed, Person)
    assert choice.finish_reason == "stop"
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    pieces = client.chat.completions.create(response_format=form, stream=True, **asked)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert Person.model_validate_json(text) == choice.message.parsed


def test_a_bare_object_a_pattern_and_a_grammar(client: openai.OpenAI) -> None:
    for seed in range(3):
        how: Any = {"model": "chatml", "messages": CHAT, "max_tokens": 60, "seed": seed}
        (choice,) = client.chat.completions.create(response_format={"type": "json_object"}, **how).choices
        assert choice.message.content is not None
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        (choice,) = client.chat.completions.create(extra_body={"regex": "[a-c]{3,5}"}, **how).choices
        assert re.fullmatch("[a-c]{3,5}", choice.message.content or "")
        written = client.completions.create(
            model="chatml", prompt="a", max_tokens=20, seed=seed, extra_body={"grammar": 'start: "a"+ "b"'}
        )
        assert re.fullmatch("a+b?", written.choices[0].text)
    how = {"model": "chatml", "messages": CHAT, "max_tokens": 60, "seed": 0}
    assert client.chat.completions.create(response_format={"type": "text"}, **how).choices[0].message.content


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    how: Any = {"model": "chatml", "messages": CHAT, "max_tokens": 3}
    (choice,) = client.chat.completions.create(response_format=form, **how).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(response_format=Person, **how)
    (choice,) = client.chat.completions.create(tools=TOOLS, tool_choice="required", **how).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)


@pytest.mark.parametrize("model", ["chatml", "calls", "turns"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"seed": 2, "n": 2, "temperature": 1.4}, {"temperature": 0, "n": 2}]
)
def test_a_function_is_called_in_its_form(client: openai.OpenAI, model: str, choice: Any, how: Any) -> None:
    asked: Any = {"model": model, "messages": CHAT, "tools": TOOLS, "tool_choice": choice, "max_tokens": 200, **how}
    found = client.chat.completions.create(**asked)
    assert len(found.choices) == how.get("n", 1)
    for each in found.choices:
        assert (each.finish_reason, each.message.content) == ("tool_calls", None)
        (call,) = each.message.tool_calls or ()
        assert call.id.startswith("call_")
        given = json.loads(call.function.arguments)
        if call.function.name == "weather" or choice != "required":
            Draft202012Validator(WEATHER).validate(given)
        else:
            assert (call.function.name, given) == ("stop_now", {})
    pieces = [piece.choices[0] for piece in client.chat.completions.create(stream=True, **asked)]
    for each in found.choices:
        own = [piece for piece in pieces if piece.index == each.index]
        (delta,) = [call for piece in own for call in piece.delta.tool_calls or ()]
        assert own[-1].finish_reason == "tool_calls"
        assert "".join(piece.delta.content or "" for piece in own) == ""
        (call,) = each.message.tool_calls or ()
        assert (delta.index, delta.type) == (0, "function")
        assert delta.function is not None
        assert (delta.function.name, delta.function.arguments) == (call.function.name, call.function.arguments)


def test_none_and_auto_leave_the_answer_as_it_is(client: openai.OpenAI, registry: Registry) -> None:
    how: Any = {"model": "calls", "messages": CHAT, "temperature": 0, "max_tokens": 20}
    bare = client.chat.completions.create(**how)
    none = client.chat.completions.create(tools=TOOLS, tool_choice="none", **how)
    assert (none.choices[0].message, none.usage) == (bare.choices[0].message, bare.usage)
    auto = client.chat.completions.create(tools=TOOLS, **how)
    model = regard.load(registry.get("calls").path)
    prompt = model.conversation(CHAT, TOOLS)
    assert auto.usage is not None
    assert auto.usage.prompt_tokens == len(prompt.ids)
    ((found,),) = model.answers([prompt], regard.tasks.asks.Writing.of({"beam": 1, "limit": 20}, model.decode))
    assert auto.choices[0].message.content == found.text
    streamed = client.chat.completions.create(tools=TOOLS, stream=True, **how)
    assert "".join(piece.choices[0].delta.content or "" for piece in streamed) == found.text


def test_functions_are_written_as_transformers_writes_them(tmp_path: Any) -> None:
    theirs, ours = talker(tmp_path, "bytes", CALLS, max_position_embeddings=1024)
    model = regard.load(ours)
    tools = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": WEATHER}}]
    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Köln"}}}
    said = [*CHAT, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "4"}]
    ids = theirs.apply_chat_template(said, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert [*model.conversation(said, tools).ids] == ids
    assert model.calls == ("<tool>\n", "\n</tool>", "arguments")
    forged = model.conversation(CHAT, TOOLS)
    assert forged.ids.count(model.eos) == model.conversation(CHAT, tools).ids.count(model.eos)


@pytest.mark.parametrize("model", ["chatml", "calls", "turns"])
def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI, model: str) -> None:
    how: Any = {"model": model, "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    first = client.chat.completions.create(messages=CHAT, tool_choice="required", **how).choices[0].message
    (call,) = first.tool_calls or ()
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "it rains"}
    messages = [*CHAT, first.model_dump(), result]
    again = client.chat.completions.create(messages=messages, **how)
    fewer = client.chat.completions.create(messages=CHAT, **how)
    assert again.usage is not None
    assert fewer.usage is not None
    assert again.usage.prompt_tokens > fewer.usage.prompt_tokens


def test_requests_of_other_forms_are_answered_together_as_alone(client: openai.OpenAI) -> None:
    patterns = [None, "[a-c]{4,9}", "[x-z ]{4,9}", "(the )+cat"]

    def text(pattern: str | None) -> Any:
        how: Any = {"extra_body": {"regex": pattern}} if pattern else {}
        found = client.chat.completions.create(model="chatml", messages=CHAT, seed=1, max_tokens=12, **how)
        return found.choices[0].message.content

    alone = [text(pattern) for pattern in patterns]
    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(text, patterns * 2)) == alone * 2


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is no JSON Schema", "response_format"),
        (
            {"response_format": {"type": "json_object"}, "regex": "a"},
            "response_format and regex are both",
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "integer", "maximum": "a"}},
                }
            },
            "the schema cannot be kept",
            None,
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}},
            "nothing satisfies the schema",
            None,
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}},
            r"cannot be held to \(uniqueItems\): leave it out",
            None,
        ),
        ({"regex": "("}, "unclosed group", None),
        ({"grammar": "start"}, "the grammar cannot be kept", None),
        ({"tool_choice": "required"}, "tool_choice = 'required': choose none, auto", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "g"}}}, "'g', which tools has not", "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, r"tools\[2\].function.name = 'weather'", "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, r"tools\[0\].function.name = 'a b'", "tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "leave tool_choice or response_format out",
            "tool_choice",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_said_in_one_line(address: str, fields: Any, message: str, param: Any, stream: bool) -> None:
    body = {"model": "chatml", "messages": CHAT, "stream": stream, **fields}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=30)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert re.search(message, error["message"]), error
    assert "\n" not in error["message"]
    assert error["param"] == param
