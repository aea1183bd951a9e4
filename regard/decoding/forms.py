"""Forms that an output keeps, token by token: a JSON schema, a regular expression, a grammar.

Letters: V vocabulary. Which tokens may follow is told by llguidance, from the bytes that each adds to a text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, stack_size
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checks import need

Mask = NDArray[np.bool_]
# JSON is written as `json.dumps` has it: white space that a model may choose is white space that it may never end.
STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
STYLE |= {"lenient": False, "coerce_one_of": False}  # what cannot be kept is refused
KEPT = 64  # forms that are ready
NAMES = {
    "schema": re.compile(r"\$\w*ref", re.IGNORECASE),
    "regex": re.compile("(?!)"),
    "grammar": re.compile(r"\$\w*ref|[\w}]\s*:|\\u00(?:24|6[56]|72)", re.IGNORECASE),  # JSON may spell $ref otherwise
}
LINKS, STACK = 500, 2**26  # names that lead to others: a long chain of them takes a deep stack, of so many bytes


@dataclass(frozen=True)
class Form:
    """What an output is as a whole."""

    kind: str  # schema, regex, grammar
    text: str  # JSON Schema in JSON; a regular expression; a grammar in Lark's notation

    @classmethod
    def of(cls, schema: Any = None, regex: str | None = None, grammar: str | None = None) -> "Form | None":
        """The one that is given, if one is.

        >>> Form.of({"type": "integer"})
        Form(kind='schema', text='{"type": "integer"}')
        >>> Form.of("{", regex="a*")
        Traceback (most recent call last):
        ValueError: schema and regex are both given, and an output keeps one form: leave one of them out
        """
        given = {"schema": schema, "regex": regex, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names[:2])} are both given, and an output keeps one form: leave one of "
                             "them out")  # fmt: skip
        if not names:
            return None
        return cls(names[0], _schema(schema) if schema is not None else given[names[0]])

    @classmethod
    def call(cls, functions: Mapping[str, Any], before: str = "", after: str = "", key: str = "arguments") -> "Form":
        """A call of one of some functions, by name what each is given as a JSON Schema: JSON between two texts.

        >>> print(Form.call({"f": {"type": "object"}}, "<call>").text)  # doctest: +ELLIPSIS
        start: "<call>" (call_0) ""
        call_0: "{\\"name\\": \\"f\\", \\"arguments\\": " given_0 "}"
        given_0: %json {"type": "object", "x-guidance": {...}}
        """
        names = " | ".join(f"call_{i}" for i in range(len(functions)))
        lines = [f"start: {json.dumps(before)} ({names}) {json.dumps(after)}"]
        for i, (name, schema) in enumerate(functions.items()):
            head = json.dumps({"name": name, key: 0}, ensure_ascii=False).removesuffix("0}")
            lines.append(f"call_{i}: {json.dumps(head, ensure_ascii=False)} given_{i} {json.dumps('}')}")
            lines.append(f"given_{i}: %json {json.dumps({**schema, 'x-guidance': STYLE}, ensure_ascii=False)}")
        return cls("grammar", "\n".join(lines))


def _schema(given: Any) -> str:
    """A schema in JSON."""
    try:
        found = json.loads(given) if isinstance(given, str | bytes) else json.loads(json.dumps(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema is no JSON: {error}") from None
    if not isinstance(found, dict | bool):
        raise ValueError(f'the schema is {type(found).__name__} in JSON: give an object such as {{"type": "object"}}')
    return json.dumps(found, ensure_ascii=False)


class Forms:
    """Forms for one vocabulary."""

    def __init__(
        self, added: Sequence[bytes], marks: Set[int], eos: int, encode: Callable[[str], Sequence[int]]
    ) -> None:
        """`added`: what each token adds to a text; `marks` add none, `eos` ends an output, `encode` reads a text."""
        self._package = need("llguidance", "forms")
        self._eos = eos
        self._text = np.array([bool(spelled) and i not in marks for i, spelled in enumerate(added)])  # (V,)
        vocabulary = _Vocabulary(added, self._text, eos, encode)
        self._tokens = vocabulary.own = self._package.LLTokenizer(vocabulary, n_vocab=len(added))
        self._ready = dict[Form, Any]()

    def rule(
        self, form: Form, end: int | None = None, opening: Mask | None = None, after: Sequence[int] = ()
    ) -> "Kept":
        """A search's `Rule`. `end` is another token that ends an output, `opening` (V,) what it may begin with if not
        with any, and `after` what was written before it."""
        if form not in self._ready:
            if len(self._ready) == KEPT:
                self._ready.clear()
            links = len(NAMES[form.kind].findall(form.text))
            if links > LINKS:
                raise ValueError(
                    f"the {form.kind} has {links:,} names that lead to others, and {LINKS} can be kept: ask for less"
                )
            self._ready[form] = self._compiled(form)
        state = self._ready[form].deep_copy()
        state.consume_tokens([token for token in after if self._text[token]])
        kept = Kept(state, self._text, self._eos, end, None if after else opening)
        if not (after or kept.allowed(None, (), 0).any()):
            raise ValueError(f"nothing that the model can write keeps the {form.kind}: ask for less")
        return kept

    def _compiled(self, form: Form) -> Any:
        matcher, text = self._package.LLMatcher, form.text
        try:
            if form.kind == "schema":
                schema = json.loads(text)
                if schema is False:
                    raise ValueError("Unsatisfiable schema: false")
                grammar = matcher.grammar_from_json_schema({} if schema is True else schema, overrides=STYLE)
            else:
                grammar = (matcher.grammar_from_regex if form.kind == "regex" else matcher.grammar_from_lark)(text)
            made = _with_room(lambda: matcher(self._tokens, grammar, log_level=0))
            if made.is_error():
                raise ValueError(made.get_error())
        except ValueError as error:
            raise ValueError(_told(form, str(error))) from None
        return made


def _with_room(work: Callable[[], Any]) -> Any:
    """What is done in a thread whose stack is deep."""
    before = stack_size(STACK)
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()
    finally:
        stack_size(before)


def _told(form: Form, error: str) -> str:
    """What is wrong with a form, in a line.

    >>> _told(Form("schema", "{}"), 'Unimplemented keys: ["not"]')
    'the schema asks for what cannot be held to (not): leave it out'
    """
    lines = error.splitlines()
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    if said.startswith("Unsatisfiable schema: "):
        return f"nothing satisfies the schema: {said.partition(': ')[2]}"
    if said.startswith("Unimplemented keys: "):
        keys = json.loads(said.partition(": ")[2])
        return f"the schema asks for what cannot be held to ({', '.join(keys)}): leave it out"
    if form.kind == "regex":
        return f"regex = {form.text[:60]!r} cannot be kept: {said}"
    return f"the {form.kind} cannot be kept: {said}"


class _Vocabulary:
    """As llguidance asks for one: a token that is no text begins with a byte that no text has."""

    is_tokenizer_wrapper, bos_token_id = True, None
    own: Any

    def __init__(self, added: Sequence[bytes], text: Mask, eos: int, encode: Callable[[str], Sequence[int]]) -> None:
        self.eos_token_id, self.special_token_ids = eos, np.flatnonzero(~text).tolist()
        self.tokens = [spelled if text[i] else b"\xff[%d]" % i for i, spelled in enumerate(added)]
        self._text, self._encode = text, encode

    def __call__(self, text: str) -> list[int]:
        """A text that a form leaves no choice about as the model knows it; as few tokens as will do, if it would begin
        with another one."""
        ids = [i for i in self._encode(text) if self._text[i]]
        same = b"".join(self.tokens[i] for i in ids) == text.encode()
        return ids if same else self.own.greedy_tokenize(text)


class Kept:
    """A form while one request is searched for. A search goes on by one token: the states of two lengths are enough."""

    def __init__(self, start: Any, text: Mask, eos: int, end: int | None = None, opening: Mask | None = None) -> None:
        self._start, self._text, self._eos, self._end, self._opening = start, text, eos, end, opening
        self._length, self._before, self._now = 0, dict[tuple[int, ...], Any](), dict[tuple[int, ...], Any]()
        self._lock = Lock()  # draws of one request may be in several hands

    def allowed(self, source: Any, written: Sequence[int], room: int) -> Mask:
        """(V,): what may follow; the end only where the form is complete. Of a form that is longer than the room, what
        fits is its beginning; none, where no token can go on with it."""
        mask = np.zeros(len(self._text), bool)
        if written and written[-1] == self._end:
            mask[self._eos] = True
            return mask
        with self._lock:
            state = self._state(tuple(written))
            if not state.is_error():
                bits = np.frombuffer(state.compute_bitmask(), np.uint8)
                mask = np.unpackbits(bits, count=len(mask), bitorder="little").view(bool) & self._text
            if self._opening is not None and not written:
                mask &= self._opening
            mask[self._eos] = state.is_accepting()
        if self._end is not None:
            mask[self._end] = mask[self._eos]
        return mask

    def complete(self, written: Sequence[int]) -> bool:
        """Whether this is the form from its beginning to its end."""
        with self._lock:
            return bool(
                self._state(tuple(written[:-1] if written and written[-1] == self._end else written)).is_accepting()
            )

    def _state(self, written: tuple[int, ...]) -> Any:
        if len(written) != self._length:
            self._before = self._now if len(written) == self._length + 1 else {}
            self._length, self._now = len(written), {}
        if written not in self._now:
            before = self._before.get(written[:-1])
            state = (self._start if before is None else before).deep_copy()
            state.consume_tokens([*written] if before is None else [written[-1]])
            self._now[written] = state
        return self._now[written]
