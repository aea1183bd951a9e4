"""Texts and their summaries: rows, or a folder of stories."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.rows import WAYS, Row, RowFiles
from regard.data.text import Skipped, decoded
from regard.files import digest, read_whole

HEADING = re.compile(r"^@(\w+)[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True)
class SummaryFiles(RowFiles):
    """Where texts and their summaries are: one tsv, csv or jsonl, or a folder of stories.

    In a jsonl, a text may be a list of sentences, and a summary a list of several: each of them is right, and the first
    is learnt. A story is a file with a text, and after a line such as @highlight its summary; what has the same heading
    is one summary, and `columns: {summary: subject}` takes what is headed @subject alone. White space is one space.
    """

    ways = (*WAYS, "folder")
    parts = ("text", "summary")

    folder: str | None = None  # of files, a story each

    def fingerprint(self) -> str:
        if not self.folder:
            return super().fingerprint()
        how = [self.columns, *(digest(path) for path in self._stories())]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; one with a blank text or no summary is left out, and counted in `skipped`."""
        for row in self.rows() if self.folder else super().read(skipped):
            if row["text"] and row["summary"]:
                yield row
            elif skipped is not None:
                skipped.empty += 1

    def rows(self) -> Iterator[Row]:
        """The rows as they stand in the file, or in the files of the folder in the order of their names."""
        if not self.folder:
            yield from super().rows()
            return
        for path in self._stories():
            text, *parts = HEADING.split(decoded(read_whole(path), f"{path}:"))
            found: dict[str, str] = {}
            for name, part in zip(parts[::2], parts[1::2], strict=True):
                found[name] = f"{found.get(name, '')} {part}"
            if wanted := self.columns.get("summary"):
                found = {name: part for name, part in found.items() if name == wanted}
            row = {"text": text, **({"summary": [*found.values()]} if found else {})}
            yield self._complete(row, str(path), {"text": text} | dict.fromkeys(map("@{}".format, parts[::2])))

    def _stories(self) -> list[Path]:
        found = sorted(path for path in Path(self.path).iterdir() if path.is_file() and path.name[0] != ".")
        if not found:
            raise ValueError(f"{self.path} has no file in it: each is to be a text, a line @summary, and its summary")
        return found

    def _complete(self, row: Row, where: str, held: Any) -> Row:
        found = {}
        for name, value in super()._complete(row, where, held).items():
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{where}: {name!r} is a text, or a list of them, got {json.dumps(value)[:40]}")
            found[name] = [line for line in (" ".join(text.split()) for text in texts) if line]
        return {"text": " ".join(found["text"]), "summary": found["summary"]}
