"""OpenAI's chat completions: the messages of a conversation in, an answer out; else as `completions.py` has it."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from regard.serving.completions import LIKELIEST, OURS, CompletionQuestion, Usage, WritingRequest
from regard.serving.errors import RefusalError
from regard.tasks.asks import Completion, Prompt, ReachError

ROLES = ("system", "developer", "user", "assistant", "tool")
PARTS = {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}}}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "enum": ROLES},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": PARTS}]},
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
    tools: list[Any] | None = Field(None, description="not supported")
    response_format: dict[str, Any] | None = Field(None, description="not supported, but for text")
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


class ChatMessage(BaseModel):
    """What is answered."""

    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """An answer of several."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatPiece(BaseModel):
    """A piece of one."""

    index: int
    delta: dict[str, str]
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
        return [[_message(each, f"messages[{i}]") for i, each in enumerate(self.asked.messages)]]

    def _texts(self, said: Any) -> list[str]:
        return [each["content"] for each in said]

    def _prompt(self, said: Any) -> Prompt:
        try:
            prompt: Prompt = self.generator.conversation(said)
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
        message = ChatMessage(content=found.text)
        return ChatChoice(index=index, message=message, logprobs=self._told(found), finish_reason=found.why)

    def _piece(self, text: str, index: int, found: Completion | None = None) -> ChatPiece:
        told, why = (None, None) if found is None else (self._told(found), found.why)
        return ChatPiece(index=index, delta={"content": text} if text else {}, logprobs=told, finish_reason=why)

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


def _message(said: dict[str, Any], place: str) -> dict[str, str]:
    """A message as a template reads it: its role, and its text."""
    role, content = said.get("role"), said.get("content")
    if role not in ROLES:
        raise RefusalError(400, f"{place}.role = {str(role)[:40]!r}: choose {', '.join(ROLES)}", param="messages")
    if said.get("tool_calls"):
        raise RefusalError(400, f"{place}.tool_calls is not supported: leave it out", param="messages")
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else part
            if kind != "text" or not isinstance(part.get("text"), str):
                message = f"{place}.content has a part of type {str(kind)[:40]!r}: the model reads text alone"
                raise RefusalError(400, message, param="messages")
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RefusalError(400, f"{place}.content is no text: give a string, or a list of text parts", param="messages")
    named = {"name": said["name"]} if isinstance(said.get("name"), str) else {}
    return {"role": "system" if role == "developer" else role, "content": content, **named}
