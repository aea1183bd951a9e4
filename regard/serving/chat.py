"""OpenAI's chat completions: the messages of a conversation in, an answer out; else as `completions.py` has it."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from regard.serving import pictures
from regard.serving.completions import LIKELIEST, OURS, CompletionQuestion, Usage, WritingRequest
from regard.serving.errors import RefusalError
from regard.tasks.asks import Completion, Prompt, ReachError
from regard.tasks.viewer import Viewed

NAME = re.compile("[A-Za-z0-9_-]{1,64}")
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT = {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}}}
IMAGE = {"type": "object", "required": ["type", "image_url"], "properties": {"type": {"const": "image_url"}}}
MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "enum": ROLES},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [TEXT, IMAGE]}}]},
    },
}


class _Conversed(WritingRequest):
    """What is gone on with is a conversation."""

    messages: list[Annotated[dict[str, Any], WithJsonSchema(MESSAGE)]] = Field(
        min_length=1, max_length=10_000, description="what was said, each with its role and its content"
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="another name of max_tokens")
    logprobs: bool | None = Field(None, description="tell log p of each token")
    top_logprobs: int | None = Field(None, ge=0, le=LIKELIEST, description="and of so many likeliest in its place")
    tools: list[dict[str, Any]] | None = Field(None, max_length=128, description="functions that may be called")
    tool_choice: str | dict[str, Any] | None = Field(
        None, description='none, auto, required, or one: {"type": "function", "function": {"name": ...}}'
    )
    parallel_tool_calls: bool | None = Field(None, description="is not looked at: one is called at a time, if it must")
    store: bool | None = Field(None, description="is not looked at, as the two that follow")
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


ChatRequest: Any = create_model(
    "ChatRequest", __base__=_Conversed, **{name: kind for name, kind in OURS.items() if name != "echo"}
)


class Likely(BaseModel):
    """A token, log p, and its bytes: some are only a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Likely):
    """The same of one that was written, and the likeliest in its place."""

    top_logprobs: list[Likely]


class ChatLogprobs(BaseModel):
    """What is said of each token."""

    content: list[ChatToken]
    refusal: None = None


class Called(BaseModel):
    """A function, and what it is given, in JSON."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call of it."""

    id: str
    type: str = "function"
    function: Called


class ChatMessage(BaseModel):
    """What is answered."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """An answer of several."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatPiece(BaseModel):
    """A piece of one."""

    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class Conversed(BaseModel):
    """All of them."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice | ChatPiece]
    usage: Usage | None = None


class ChatQuestion(CompletionQuestion):
    """What a request asks of a model that talks, and the answer in OpenAI's form."""

    id, param = "chatcmpl", "messages"

    def _prompts(self) -> list[Any]:
        if self.asked.top_logprobs is not None and not self.asked.logprobs:
            raise RefusalError(400, "top_logprobs are told with logprobs: set it to true", param="top_logprobs")
        self._tools, self._forced = _tools(self.asked)
        if self._forced and self.form is not None:
            message = "a function must be called, and the answer keep a form: leave tool_choice or response_format out"
            raise RefusalError(400, message, param="tool_choice")
        said = [_message(each, f"messages[{i}]") for i, each in enumerate(self.asked.messages)]
        shown = sum(part["type"] == "image" for each in said for part in _parts(each))
        if shown > pictures.MOST:
            raise RefusalError(400, f"{shown} pictures: send {pictures.MOST} at most", reason="size", param="messages")
        return [said]

    def _texts(self, said: Any) -> list[str]:
        shown = [json.dumps(self._tools, ensure_ascii=False)] if self._tools else []
        return [*shown, *map(_text, said)]

    def _prompt(self, said: Any) -> Prompt:
        try:
            prompt: Prompt = self.generator.conversation(said, self._tools, self._forced)
        except ReachError:
            raise
        except ValueError as error:
            raise RefusalError(400, str(error), param="messages") from None
        told = (self.asked.top_logprobs or 0) if self.asked.logprobs else None
        return replace(prompt, tell=told)

    def _whole(self, streamed: bool = False, **parts: Any) -> Conversed:
        return Conversed(object="chat.completion.chunk" if streamed else "chat.completion", **parts)

    def _opening(self, index: int) -> bytes:
        return self._event([ChatPiece(index=index, delta={"role": "assistant", "content": ""})])

    def _choice(self, found: Completion, index: int) -> ChatChoice:
        said, calls = self._called(found.text)
        message = ChatMessage(content=said if said or not calls else None, tool_calls=calls or None)
        why = "tool_calls" if calls else found.why
        return ChatChoice(index=index, message=message, logprobs=self._told(found), finish_reason=why)

    def _piece(self, text: str, index: int, found: Completion | None = None) -> ChatPiece:
        delta: dict[str, Any] = {"content": text} if text else {}
        if found is None:
            return ChatPiece(index=index, delta=delta)
        _, calls = self._called(found.text)
        if calls:
            delta["tool_calls"] = [{"index": i, **call.model_dump()} for i, call in enumerate(calls)]
        why = "tool_calls" if calls else found.why
        return ChatPiece(index=index, delta=delta, logprobs=self._told(found), finish_reason=why)

    def _called(self, text: str) -> tuple[str, list[ToolCall]]:
        """What an answer says, and which functions it calls."""
        if not self._tools:
            return text, []
        said, calls = self.generator.calls.found(text, [tool["function"]["name"] for tool in self._tools])
        made = [Called(name=call.name, arguments=call.arguments) for call in calls]
        return said, [ToolCall(id=f"call_{secrets.token_hex(12)}", function=each) for each in made]

    def _said(self, pieces: Iterable[str]) -> Iterator[str]:
        """What may be a call is held back until it is known to be none."""
        text, sent = "", 0
        for piece in pieces:
            text += piece
            safe = self.generator.calls.certain(text) if self._tools else len(text)
            yield text[sent:safe]
            sent = max(sent, safe)
        yield self._called(text)[0][sent:]

    def _told(self, found: Completion) -> ChatLogprobs | None:
        if found.told is None:
            return None

        def likely(id: int, text: str, log_p: float | None) -> dict[str, Any]:
            return {"token": text, "logprob": log_p, "bytes": [*self._bytes(id, text)]}

        told = [
            ChatToken(
                **likely(each.id, each.text, each.log_p), top_logprobs=[Likely(**likely(*one)) for one in each.others]
            )
            for each in self._places(found, found.told)
        ]
        return ChatLogprobs(content=told)


def _message(said: dict[str, Any], place: str) -> dict[str, Any]:
    """A message as a template reads it: its role, and its text."""
    role, content = said.get("role"), said.get("content")
    if role not in ROLES:
        raise RefusalError(400, f"{place}.role = {str(role)[:40]!r}: choose {', '.join(ROLES)}", param="messages")
    calls = [_call(each, f"{place}.tool_calls[{i}]") for i, each in enumerate(_list(said.get("tool_calls")))]
    if calls and content is None:
        content = ""
    if isinstance(content, list):
        content = [_part(part, f"{place}.content[{i}]") for i, part in enumerate(content)]
        if all(part["type"] == "text" for part in content):
            content = "\n".join(part["text"] for part in content)
        elif role != "user":
            raise RefusalError(400, f"{place}: a picture is shown by the user, not by {role}", param="messages")
    if not isinstance(content, str | list):
        raise RefusalError(400, f"{place}.content is no text: give a string, or a list of text parts", param="messages")
    named = {key: said[key] for key in ("name", "tool_call_id") if isinstance(said.get(key), str)}
    more = {"tool_calls": calls} if calls else {}
    return {"role": "system" if role == "developer" else role, "content": content, **named, **more}


def _part(part: Any, place: str) -> dict[str, Any]:
    """A part of a message: a text, or a picture."""
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        held = part.get("image_url")
        content = pictures.of_url(held.get("url") if isinstance(held, dict) else held, place)
        return {"type": "image", "image": Viewed(content, place)}
    raise RefusalError(400, f"{place} is of type {str(kind)[:40]!r}: give text, or image_url", param="messages")


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _text(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    said = "\n".join(part["text"] for part in _parts(message) if part["type"] == "text")
    return said + (json.dumps(calls, ensure_ascii=False) if calls else "")


def _call(said: Any, place: str) -> dict[str, Any]:
    """A call that was made, as a template reads it."""
    try:
        name, given = said["function"]["name"], json.loads(said["function"]["arguments"] or "{}")
        if isinstance(name, str) and isinstance(given, dict):
            id = {"id": said["id"]} if isinstance(said.get("id"), str) else {}
            return {**id, "type": "function", "function": {"name": name, "arguments": given}}
    except (LookupError, TypeError, ValueError, RecursionError):
        pass
    message = f'{place} is no call: give {{"function": {{"name": ..., "arguments": a JSON object as text}}}}'
    raise RefusalError(400, message, param="messages")


def _tools(asked: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The functions that may be called, and the names of those of which one must be."""
    names = list[str]()
    for i, tool in enumerate(asked.tools or ()):
        about = tool.get("function")
        if tool.get("type") != "function" or not isinstance(about, dict):
            raise RefusalError(400, f'tools[{i}] is no function: give {{"type": "function", ...}}', param="tools")
        name, given = about.get("name"), about.get("parameters")
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in names:
            message = (
                f"tools[{i}].function.name = {str(name)[:40]!r}: up to 64 letters, digits, _ and -, each name once"
            )
            raise RefusalError(400, message, param="tools")
        if not isinstance(given, dict | None):
            raise RefusalError(400, f"tools[{i}].function.parameters is no JSON Schema: give an object", param="tools")
        names.append(name)
    choice = asked.tool_choice or "auto"
    if choice == "none":
        return [], []
    if choice == "auto" or (choice == "required" and names):
        return asked.tools or [], names if choice == "required" else []
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if name in names:
        return asked.tools, [name]
    wrong = f"names the function {name!r}, which tools has not" if name else f"= {str(choice)[:40]!r}"
    message = f"tool_choice {wrong}: choose none, auto, or of the tools given required, or one"
    raise RefusalError(400, message, param="tool_choice")
