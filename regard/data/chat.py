"""Conversations as a language model reads them: a template in Jinja writes messages out as one text, and that is ids.

Text and ids are those that transformers' `apply_chat_template` gives, with `sanitize_control_tokens`: the marks in it
are those that the template writes. What a message says is text, and "<|im_end|>" in it is nothing but characters.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rust

from regard.data.tokenizers import Tokenizer, no_panic
from regard.data.tools import Calls, Tool, told

Message = Mapping[str, Any]  # role, content, and what else a template may know
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around the name of a mark in a message: no text has these, by Unicode's own word
PROBE = "regard"


class _Generation(Extension):
    """{% generation %}, by which a template says what of it an assistant has written: it stays as it stands."""

    tags = {"generation"}  # noqa: RUF012  as Jinja has it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """How messages become the ids that a model reads.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig("char", size=0), ["user: hi!"])
    >>> chat = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content + eos_token }}{% endfor %}", tokens)
    >>> chat.encode([{"role": "user", "content": "hi!"}])
    ('user: hi!</s>', [12, 11, 7, 10, 6, 4, 8, 9, 5, 2])
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """A template in Jinja, which runs where it can change nothing, for a tokenizer."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self._knows_tools = "tools" in find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template is no Jinja: line {error.lineno}: {error.message}") from None
        marks, content = tokenizer.marks, json.loads(tokenizer.rust.to_str())
        self._tokenizer, added = tokenizer, content["added_tokens"]
        names = {i: str(tokenizer.rust.id_to_token(i)) for i in tokenizer.silent}
        self._given = {f"{name}_token": names[i] for name, i in marks._asdict().items() if i is not None}
        # What controls a conversation: the marks, and what a template writes of the tokens that are found in texts.
        written = [token["content"] for token in added if token["content"] in source and token["content"].strip()]
        control = sorted({*names.values(), *written}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)) or "(?!)")
        self._silent = re.compile("|".join(map(re.escape, names.values())) or "(?!)")
        self._marked = re.compile(f"{OPEN}({self._control.pattern}){CLOSE}|[{OPEN}{CLOSE}]")
        with no_panic("the tokenizer"):
            plain = [token for token in added if token["content"] not in control]
            self._bare = Rust.from_str(json.dumps(content | {"added_tokens": plain}))
            self._rust = Rust.from_str(json.dumps(content))
            self._rust.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names.values()])

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[str, list[int]]:
        """What a model reads to go on with a conversation, in which it may call functions: the text, and the ids."""
        given = self._guarded([*tools]) or None
        if self._knows_tools or not (
            tools or any(each.get("tool_calls") or each["role"] == "tool" for each in messages)
        ):
            text = self._render(self._guarded([*messages]), tools=given, add_generation_prompt=True)
        else:
            try:
                text = self._render(self._guarded(told(messages, tools, "system")), add_generation_prompt=True)
            except ValueError:  # some know no system
                text = self._render(self._guarded(told(messages, tools, "user")), add_generation_prompt=True)
        return self._marked.sub(lambda found: found[1] or "", text), self._ids(text)

    @cached_property
    def end(self) -> int | None:
        """The mark that the template writes after an answer, if there is one."""
        turns = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}]
        try:
            after = self._render(turns, add_generation_prompt=False).rpartition(PROBE)[2]
        except ValueError:
            return None
        return next((i for i in self._ids(after) if i in self._tokenizer.silent), None)

    @cached_property
    def calls(self) -> Calls:
        """How the template writes a call, if it is a JSON object between texts without marks; else a bare one."""
        tool = {"type": "function", "function": {"name": PROBE, "description": PROBE, "parameters": {}}}
        call = {"type": "function", "id": PROBE, "function": {"name": PROBE, "arguments": {PROBE: PROBE}}}
        turns: list[Any] = [
            {"role": "user", "content": PROBE},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            begin = self._render(turns[:1], tools=[tool], add_generation_prompt=True)
            text = self._render(turns, tools=[tool], add_generation_prompt=False)
            rest = text.removeprefix(begin)
            start, end = rest.find("{"), rest.rfind("}") + 1
            said = json.loads(rest[start:end])
            (key,) = [key for key, value in said.items() if value == {PROBE: PROBE}]
        except (ValueError, AttributeError):
            return Calls()
        if text == rest or list(said) != ["name", key] or self._silent.search(rest[:start]):
            return Calls()
        return Calls(rest[:start], self._silent.split(rest[end:])[0].rstrip("\n"), key)

    def _render(self, messages: Any, *, tools: Any = None, **how: Any) -> str:
        if not messages:
            raise ValueError("a conversation has at least one message: give some")
        try:
            return self._template.render(messages=messages, tools=tools, documents=None, **self._given, **how)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error.message}") from None
        except Exception as error:  # whatever happens in it
            raise ValueError(f"the chat template cannot write these messages: {error}") from None

    def _guarded(self, said: Any) -> Any:
        """What messages say, with each name of a mark in it set apart."""
        if isinstance(said, str):
            return self._control.sub(rf"{OPEN}\g<0>{CLOSE}", said.replace(OPEN, "").replace(CLOSE, ""))
        if isinstance(said, Mapping):
            return {key: self._guarded(value) for key, value in said.items()}
        return [*map(self._guarded, said)] if isinstance(said, list | tuple) else said

    def _ids(self, text: str) -> list[int]:
        """The ids of what a template has written: names that are set apart are cut as text is, as are the others if
        the template has torn one of them."""
        first, *others = self._marked.split(text)
        ids, line = self._encode(self._rust, first), self._encode(self._rust, "\n")
        for i, piece in enumerate(others):
            if piece:
                rust = self._rust if i % 2 else self._bare
                # After a line's end, for at the beginning of a text some put a space.
                found = self._encode(rust, f"\n{piece}")
                ids += found[len(line) :] if found[: len(line)] == line else self._encode(rust, piece)
        return ids

    def _encode(self, rust: Rust, text: str) -> list[int]:
        try:
            with no_panic():
                return rust.encode(text, add_special_tokens=False).ids
        except TypeError:
            raise ValueError("a message is not Unicode text: it holds half of a surrogate pair") from None
