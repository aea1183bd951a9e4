"""Where pictures and their captions are: tables that name files.

A row has an `image`, which is opened when it is needed, its `captions`, and a `name`, by which it is known; and perhaps
a `question`, to which the captions are answers.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from regard.data.labelled_pictures import file_end
from regard.data.rows import Row, RowFiles
from regard.data.text import Skipped
from regard.files import regular_size


@dataclass(frozen=True)
class CaptionFiles(RowFiles):
    """Pictures with captions: a tsv, csv or jsonl with the path of a picture, from where that file lies, and a caption;
    a jsonl may have a list of them. Rows of one picture, and one question, that follow each other are one."""

    parts = ("image", "caption")
    optional = ("question",)

    def fingerprint(self) -> str:
        """The same for the same rows, wherever they lie: pictures are known by their sizes and ends."""
        said = hashlib.sha256()
        for row in self.rows():
            asked = [row["question"]] if "question" in row else []
            said.update(json.dumps([row["name"], row["captions"], *file_end(row["image"]), *asked]).encode())
        return said.hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; a picture that is not there, or has no caption, is left out and counted in `skipped`."""
        found, first = False, None
        for row in self.rows():
            there, first = os.path.isfile(row["image"]), first or row["image"]
            if there and row["captions"]:
                found = True
                yield row
            elif skipped is not None:
                skipped.notes["pictures without a caption" if there else "pictures are named, but not there"] += 1
        if not found and first is not None:
            raise ValueError(f"{self.path} names no picture that is there and has a caption: the first is {first}")

    def rows(self) -> Iterator[Row]:
        """All rows."""
        regular_size(self.path)  # no pipe: rows are read several times
        base = Path(self.path).parent
        for (name, asked), some in groupby(
            super().rows(), lambda row: (str(row["image"]).strip(), row.get("question"))
        ):
            said = (each for row in some for each in _listed(row["caption"]))
            if name:
                more = {} if asked is None else {"question": " ".join(str(asked).split())}
                yield {"image": str(base / name), "captions": [each for each in said if each], "name": name, **more}


def _listed(caption: object) -> list[str]:
    return [" ".join(str(each).split()) for each in (caption if isinstance(caption, list) else [caption])]
