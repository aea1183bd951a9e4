"""Conversations as a language model reads them: a template in Jinja writes messages out as one text, and that is ids.

Text and ids are those that transformers' `apply_chat_template` gives, with `sanitize_control_tokens`: the marks in it
are those that the template writes. What a message says is text, and "<|im_end|>" in it is nothing but characters.
"""

import json
import re
from bisect import bisect_left
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

from regard.data.tokenizers import Tokenizer, no_panic, state
from regard.data.tools import Calls, Tool, told

Message = Mapping[str, Any]  # role, content, and what else a template may know
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around the name of a mark in a message: no text has these, by Unicode's own word
BEGIN, END = "\ufdd2", "\ufdd3"  # around what an assistant has said
SEEN = "\ufdd4"  # where a picture stands in a message
PICTURE = -1  # and what stands there among ids
PROBE = "regard"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% if bos_token is defined and bos_token != eos_token %}{{ bos_token }}{% endif %}"
    "{% for m in messages %}{{ '### ' + m['role'] + '\\n' + m['content'] }}"
    "{{ (eos_token if m['role'] == 'assistant' else '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\\n' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "plain": PLAIN}  # which there are without a file
MARKED = {CHATML: ("<|im_start|>", "<|im_end|>")}  # and the marks that they write beside a tokenizer's own


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
        self._marked = re.compile(f"{OPEN}({self._control.pattern}){CLOSE}|[{OPEN}{CLOSE}{SEEN}]")
        with no_panic("the tokenizer"):
            plain = [token for token in added if token["content"] not in control]
            self._bare = Rust.from_str(json.dumps(content | {"added_tokens": plain}))
            self._rust = Rust.from_str(json.dumps(content))
            self._rust.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names.values()])

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[str, list[int]]:
        """What a model reads to go on with a conversation, in which it may call functions: the text, and the ids. A
        content may be in parts, texts and pictures ({"type": "image"}): where one stands, -1 does, or its mark."""
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

    def answered(self, messages: Sequence[Message]) -> tuple[list[int], list[tuple[int, int]]]:
        """A whole conversation, and where in its ids each answer stands: from the first one that an assistant writes
        after what `encode` gives of the messages before, to behind the mark that ends it. Spaces around an answer are
        left out: after one, a model would be taught to write other sub-words than those that it is asked for."""
        own = [k for k, message in enumerate(messages) if message.get("role") == "assistant"]
        said = [{**m, "content": m["content"].strip()} if k in own else m for k, m in enumerate(messages)]
        said = self._guarded(said)
        marked = [{**m, "content": f"{BEGIN}{m['content']}{END}"} if k in own else m for k, m in enumerate(said)]
        text, places = "", []
        for piece in re.split(f"([{BEGIN}{END}])", self._render(marked, add_generation_prompt=False)):
            if piece in (BEGIN, END):
                places.append(len(text))
            text += piece if piece not in (BEGIN, END) else ""
        if not own or len(places) != 2 * len(own):
            raise ValueError(
                f"the chat template writes {len(places) // 2} of {len(own)} answers: there is nothing to learn"
            )
        starts, ids = map(list, zip(*self._placed(text), strict=True))
        spans = []
        for k, begin, end, after in zip(own, places[::2], places[1::2], [*places[2::2], len(text)], strict=True):
            before = self._render(said[:k], add_generation_prompt=True) if k else ""
            begin = (
                len(before) if text.startswith(before) and len(before) <= begin else begin - (text[begin - 1] == " ")
            )
            last = bisect_left(starts, end)
            closing = (n for n in range(last, bisect_left(starts, after)) if ids[n] == self.end)
            spans.append((bisect_left(starts, begin), next(closing, last - 1) + 1))
        return ids, spans

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
            laid = [*map(self._laid, messages)]
            return self._template.render(messages=laid, tools=tools, documents=None, **self._given, **how)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error.message}") from None
        except Exception as error:  # whatever happens in it
            raise ValueError(f"the chat template cannot write these messages: {error}") from None

    def _laid(self, message: Message) -> Message:
        """A message as the template reads it: its content as one text, or in parts."""
        content = message.get("content")
        if isinstance(content, str) and self._in_parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content, list) and not self._in_parts:
            texts = (SEEN if part["type"] == "image" else part["text"] for part in content)
            return {**message, "content": "\n".join(texts)}
        return message

    @cached_property
    def _in_parts(self) -> bool:
        """Whether what is said in one text is lost in the template."""
        said = [{"role": "user", "content": PROBE}]
        try:
            return PROBE not in self._template.render(messages=said, tools=None, documents=None, **self._given)
        except Exception:  # whatever happens in it: it happens again where it is told
            return False

    def _guarded(self, said: Any) -> Any:
        """What messages say, with each name of a mark in it set apart."""
        if isinstance(said, str):
            return self._control.sub(rf"{OPEN}\g<0>{CLOSE}", re.sub(f"[{OPEN}-{SEEN}]", "", said))
        if isinstance(said, Mapping):
            return {key: self._guarded(value) for key, value in said.items()}
        return [*map(self._guarded, said)] if isinstance(said, list | tuple) else said

    def _ids(self, text: str) -> list[int]:
        return [i for _, i in self._placed(text)]

    def _placed(self, text: str) -> list[tuple[int, int]]:
        """The ids of what a template has written, each with where it begins: names that are set apart are cut as text
        is, as are the others if the template has torn one of them."""
        apart = [(found.start() + 1, found.end() - 1, self._bare) for found in self._marked.finditer(text) if found[1]]
        cuts = [0, *(at for found in self._marked.finditer(text) for at in found.span()), len(text)]
        rest = [(a, b, self._rust) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        seen = {found.start() for found in re.finditer(SEEN, text)}
        pictures = [(at, at + 1, self._rust) for at in seen]
        (_, end, rust), *others = sorted([*rest, *apart, *pictures], key=lambda piece: piece[:2])
        ids, line = self._encode(rust, text[:end]), [i for _, i in self._encode(rust, "\n")]
        for begin, end, rust in others:
            if begin < end and begin in seen:
                ids.append((begin, PICTURE))
            elif begin < end:
                # After a line's end, for at the beginning of a text some put a space.
                found = self._encode(rust, f"\n{text[begin:end]}")
                after = [i for _, i in found[: len(line)]] == line
                found = [(at - 1, i) for at, i in found[len(line) :]] if after else self._encode(rust, text[begin:end])
                ids += [(begin + at, i) for at, i in found]
        return ids

    def _encode(self, rust: Rust, text: str) -> list[tuple[int, int]]:
        try:
            with no_panic():
                found = rust.encode(text, add_special_tokens=False)
        except TypeError:
            raise ValueError("a message is not Unicode text: it holds half of a surrogate pair") from None
        return [(at, i) for (at, _), i in zip(found.offsets, found.ids, strict=True)]


def with_marks(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """A tokenizer with marks of these names, too: those that are new stand after all its tokens. No text gives them.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = with_marks(Tokenizer.learn(TokensConfig("byte", size=0), ["x"]), ["<|im_end|>"])
    >>> len(tokens), tokens.pieces([260]), tokens.decode(tokens.encode("<|im_end|>")), tokens.decode([260])
    (261, ['<|im_end|>'], '<|im_end|>', '')
    """
    content, ids = json.loads(tokenizer.rust.to_str()), dict[str, int]()
    vocabulary, new = content["model"]["vocab"], len(tokenizer)
    for name in names:
        found = tokenizer.rust.token_to_id(name)
        if tokenizer.kind == "none" or not (isinstance(vocabulary, dict) or tokenizer.kind == "unigram"):
            raise ValueError(f"this tokenizer cannot have the mark {name}: a text that says so would give it, too")
        ids[name], new = (new, new + 1) if found is None else (found, new)
        if isinstance(vocabulary, dict):
            vocabulary.setdefault(name, ids[name])
        elif found is None:
            vocabulary.append([name, vocabulary[-1][1]])
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in ids]
    if content["post_processor"] is None:
        rust = Rust.from_str(json.dumps(content))
        rust.post_processor = state(tokenizer.marks, [], ids)
        return Tokenizer(rust.to_str())
    stated = content["post_processor"]["special_tokens"]
    stated |= {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()}
    return Tokenizer(json.dumps(content))
