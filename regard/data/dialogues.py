"""Conversations that are learnt from: messages of a person and an assistant; and of two answers, which was preferred.

A row says them as `messages` ({"role": ..., "content": ...}, as every program has them), or as a prompt and an answer,
each of which may go by the names that others give it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.data.rows import WAYS, Row, RowFiles, inside
from regard.data.text import Skipped, check_text, decoded, from_json, open_bytes

NAMES = {  # of a part, in place of its own
    "messages": ("conversations", "conversation"),
    "prompt": ("instruction", "question", "query"),
    "input": ("context",),
    "answer": ("output", "completion", "response"),
}
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # as others call them
SPOKEN = re.compile(r"\n\n(Human|Assistant): ?")  # who speaks next, in a conversation that is one text
BAD = 0.1  # of the pairs may say nothing
Turns = list[dict[str, Any]]


@dataclass(frozen=True)
class DialogueFiles(RowFiles):
    """Where conversations are: one tsv, csv or jsonl, or a json, which is a list of objects; `.gz` if you like.

    A row has `messages`, or a `prompt`, perhaps with an `input`, and its `answer`; and perhaps a `system` message. Of
    two conversations it may have the one that was `chosen`.
    """

    ways = (*WAYS, "json")
    parts: ClassVar[tuple[str, ...]] = ("prompt", "answer")
    optional: ClassVar[tuple[str, ...]] = ("messages", "input", "system")

    json: str | None = None  # one file, a list of JSON objects

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The conversations, in order, each with `messages`; one without an answer is counted in `skipped`."""
        for row in filter(_any, self.rows()):
            if said(row):
                yield row
            elif skipped is not None:
                skipped.notes["conversations have no answer, and are left out"] += 1

    def rows(self) -> Iterator[Row]:
        if not self.json:
            yield from super().rows()
            return
        with open_bytes(self.path) as stream:
            held = from_json(decoded(stream.read(), f"{self.path}:"), self.path, "; a jsonl has an object a line")
        if not isinstance(held, list):
            raise ValueError(f"{self.path} is no list of JSON objects: name it as jsonl if it has an object a line")
        for number, each in enumerate(held, start=1):
            yield self._complete({}, f"{self.path}, object {number}", each)

    def _complete(self, row: Row, where: str, held: Any) -> Row:
        """The messages of a row, whatever it calls them."""
        if isinstance(held, Mapping):
            row = {name: x for name in (*self.parts, *self.optional) if (x := self._found(name, held)) is not None}
        for name, x in row.items():
            check_text("" if isinstance(x, list) else str(x), name, where)
            if not isinstance(
                x, str | list if name in ("chosen", "rejected", "prompt", "messages") else str | float | int
            ):
                raise ValueError(f"{where}: {name} is {x!r:.40}, no text: say what stands where by `columns`")
        messages = turns(row.pop("messages"), where) if "messages" in row else None
        return self._made(row, messages, where, held)

    def _found(self, name: str, held: Mapping[str, Any]) -> Any:
        known = [self.columns[name]] if name in self.columns else [name, *NAMES.get(name, ())]
        return next((x for place in known if (x := inside(held, str(place))) is not None), None)

    def _made(self, row: Row, messages: Turns | None, where: str, held: Any) -> Row:
        chosen = whole(held.get("chosen")) if isinstance(held, Mapping) and "prompt" not in row else None
        if messages is None and isinstance(chosen, list):
            messages = turns(chosen, where)
        if messages is None:
            messages = [
                *asked(row, where, self.parts[0], held),
                {"role": "assistant", "content": str(row.get("answer", ""))},
            ]
        return {"messages": messages, "where": where}


@dataclass(frozen=True)
class PreferenceFiles(DialogueFiles):
    """Where pairs of answers are: a `prompt` (a text, or messages), the answer that was `chosen`, and the one that was
    `rejected`. Without a prompt, it is the messages with which both begin."""

    parts: ClassVar[tuple[str, ...]] = ("chosen", "rejected")
    optional: ClassVar[tuple[str, ...]] = ("prompt", "messages", "input", "system", "margin")

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The pairs, in order; those with an empty answer, or twice the same one, are counted, and too many refused."""
        counts, firsts, bad, count = Skipped() if skipped is None else skipped, dict[str, str](), 0, 0
        for row in filter(_any, self.rows()):
            count += 1
            answers = [row[side].strip() for side in ("chosen", "rejected")]
            if all(answers) and answers[0] != answers[1]:
                yield row
                continue
            why = row.get("wrong", "twice the same answer" if all(answers) else "an empty answer")
            bad, first = bad + 1, firsts.setdefault(why, row["where"].rpartition(", ")[2])
            counts.notes[f"pairs left out with {why} (the first: {first})"] += 1
        if bad > BAD * count:
            raise ValueError(
                f"{self.path}: {bad:,} of {count:,} pairs have an empty answer, twice the same one or no prompt in "
                f"common, the first in {next(iter(firsts.values()))}: look where chosen and rejected stand (`columns`)"
            )

    def _made(self, row: Row, messages: Turns | None, where: str, held: Any) -> Row:
        for name in self.parts:
            if name not in row:
                raise ValueError(f"{where} has no {name!r}, only {_keys(held)}: say where it stands by `columns`")
        both = [whole(row[name]) for name in self.parts]
        sides = [turns(x, where) if isinstance(x, list) else None for x in both]
        if isinstance(row.get("prompt"), list):
            messages = turns(row.pop("prompt"), where)
        if messages is None and "prompt" in row:
            messages = asked(row, where, "prompt", held)
        if messages is None:  # what both have in common
            if sides[0] is None or sides[1] is None:
                raise ValueError(f"{where} has no prompt, only {_keys(held)}: say where it stands by `columns`")
            messages = [a for a, b in zip(sides[0][:-1], sides[1][:-1], strict=False) if a == b]
        texts = []
        for side, x in zip(sides, both, strict=True):
            if side is not None:
                begun = side[: len(messages)] == messages
                if len(side) != 1 + len(messages) * begun or side[-1]["role"] != "assistant":
                    wrong = "no answers to the same prompt"
                    return {"messages": messages, "chosen": "", "rejected": "", "where": where, "wrong": wrong}
            texts.append(x if side is None else side[-1]["content"])
        try:
            margin = {"margin": float(row["margin"])} if "margin" in row else {}
        except ValueError:
            raise ValueError(f"{where}: margin is {row['margin']!r:.40}, no number") from None
        return {"messages": messages, "chosen": str(texts[0]), "rejected": str(texts[1]), **margin, "where": where}


def turns(held: Any, where: str) -> Turns:
    """Messages, each with a role and a content; those of ShareGPT (from, value), too."""
    found = []
    for each in held if isinstance(held, list) else [None]:
        role, content = (
            (each.get("role", each.get("from")), each.get("content", each.get("value"))) if each else ("", 0)
        )
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(f"{where}: messages are a list of objects with a role and a content, got {held!r:.60}")
        check_text(content, "content", where)
        found.append({"role": ROLES.get(role, role), "content": content})
    return found


def asked(row: Row, where: str, name: str, held: Any) -> Turns:
    """What a person says first: the prompt, and below it the input, if there is one."""
    if name not in row:
        raise ValueError(f"{where} has neither messages nor {name!r}, only {_keys(held)}: say so by `columns`")
    parts = [str(part) for part in (row["prompt"], row.get("input", "")) if str(part).strip()]
    system = [{"role": "system", "content": row["system"]}] if row.get("system", "").strip() else []
    return [*system, {"role": "user", "content": "\n\n".join(parts)}]


def whole(text: Any) -> Any:
    r"""A conversation that is one text, as messages; anything else as it is.

    >>> [each["role"] for each in whole("\n\nHuman: Hi!\n\nAssistant: Hello.")]
    ['user', 'assistant']
    """
    if not isinstance(text, str) or not SPOKEN.match(text):
        return text
    roles = {"Human": "user", "Assistant": "assistant"}
    _, *found = SPOKEN.split(text)
    return [{"role": roles[who], "content": what} for who, what in zip(found[::2], found[1::2], strict=True)]


def said(row: Row) -> str:
    """The last answer of a conversation, "" if there is none."""
    answers = [each["content"] for each in row["messages"] if each["role"] == "assistant"]
    return answers[-1].strip() if answers else ""


def words(messages: Sequence[Mapping[str, Any]]) -> str:
    """What messages say, one below the other."""
    return "\n".join(each["content"] for each in messages)


def _any(row: Row) -> bool:
    """Whether a row is more than a blank line."""
    return "messages" in row


def _keys(held: Any) -> Any:
    return [key for key, value in held.items() if value is not None] if isinstance(held, Mapping) else repr(held)[:40]
