"""Functions that a model may call: how it is told of them, and how a call stands in what it writes."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}
TOLD = "You can call functions. Each is described by a line of JSON:"
HOW = 'To call one, answer with nothing but {"name": its name, "arguments": an object}. Otherwise answer as usual.'


class Call(NamedTuple):
    """A function, and what it is given, in JSON."""

    name: str
    arguments: str


class Calls(NamedTuple):
    """How a call is written: {"name": ..., "arguments": ...} between two texts."""

    before: str = ""
    after: str = ""
    key: str = "arguments"

    def found(self, text: str, names: Collection[str]) -> tuple[str, list[Call]]:
        """What an answer says before it calls, and the calls of some functions; all of it if there is none.

        >>> Calls().found('{"name": "f", "arguments": {"x": 1}}', ["f"])
        ('', [Call(name='f', arguments='{"x": 1}')])
        >>> Calls("<call>", "</call>").found('Yes. <call>{"name": "g", "arguments": {}}</call>', ["f"])[1]
        []
        """
        before, after = self.before.strip(), self.after.strip()
        said, _, rest = text.partition(before) if before else ("", "", text)
        calls = []
        for part in re.split(re.escape(before), rest) if before else [rest]:
            try:
                call = json.loads(part.strip().removesuffix(after))
                name, given = call["name"], call[self.key]
            except (ValueError, LookupError, TypeError, RecursionError):
                return text, []
            if name not in names or not isinstance(given, dict):
                return text, []
            calls.append(Call(name, json.dumps(given, ensure_ascii=False)))
        return said.rstrip(), calls

    def certain(self, text: str) -> int:
        """With how many of its characters an answer that begins so is surely no call."""
        before = self.before.strip()
        if not before:
            return 0 if text.lstrip()[:1] in ("", "{") else len(text)
        at = text.find(before)
        return len(text[:at].rstrip()) if at >= 0 else max(0, len(text[: len(text) - len(before) + 1].rstrip()))


def told(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], role: str) -> list[dict[str, Any]]:
    """A conversation in plain text for a template that knows no functions: what there are is said by the first message
    of a role, a call is what would call it, and what a function gives is said by the user."""
    plain = []
    for message in messages:
        calls = [each["function"] for each in message.get("tool_calls") or ()]
        said = [json.dumps({key: call[key] for key in ("name", "arguments")}, ensure_ascii=False) for call in calls]
        content = "\n".join(filter(None, [message.get("content") or "", *said]))
        plain.append({"role": "user" if message["role"] == "tool" else message["role"], "content": content})
    if tools:
        lines = [TOLD, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools), HOW]
        at = next((i for i, message in enumerate(plain) if message["role"] == role), None)
        if at is None:
            at = 0
            plain.insert(0, {"role": role, "content": ""})
        plain[at]["content"] = "\n\n".join(filter(None, [plain[at]["content"], "\n".join(lines)]))
    return plain
