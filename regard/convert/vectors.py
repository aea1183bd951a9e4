"""Vectors of words, as GloVe, word2vec and fastText write them: a word a line and its numbers, perhaps after a line
that counts both. They become an encoder without layers: a text is the mean of its words.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.convert.tables.table import BRACKETS
from regard.convert.theirs import Theirs
from regard.convert.vocabularies import listed
from regard.files import regular_size

CUT = r"n't|'(?:s|re|ve|ll|d|m)\b|\w+?(?=n't\b)|\w+|[^\w\s]"  # as in the Penn Treebank, whose words GloVe has


def read(path: Path) -> Theirs:
    """The words and their vectors; of marks they are 0, of an unknown word the mean of all, as GloVe's authors say."""
    regular_size(path)
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    first = int(len(lines[0].split()) == 2)  # N and d, as word2vec has them
    words, table = _parsed(path, lines, first)
    marks = torch.zeros(len(BRACKETS), table.shape[1])
    marks[list(BRACKETS).index("unk")] = table.mean(0)
    pieces = [*BRACKETS.values(), *words]
    (most, times), *_ = Counter(pieces).most_common(1)
    if times > 1:
        raise ValueError(
            f"{path} has the word {most!r} {times} times, or it is the name of a mark: leave one line of it"
        )
    lower = all(word == word.lower() for word in words)
    files = {
        "config.json": {
            "model_type": "vectors",
            "vocab_size": len(pieces),
            "d_model": table.shape[1],
            "pad_token_id": 0,
        },
        "tokenizer.json": listed(pieces, BRACKETS["unk"], CUT, (BRACKETS["cls"], BRACKETS["sep"]), lowercase=lower),
        "tokenizer_config.json": {f"{name}_token": mark for name, mark in BRACKETS.items()},
    }
    return Theirs(files, {"stem.tokens.weight": torch.cat([marks, table])})


def _parsed(path: Path, lines: Sequence[bytes], first: int) -> tuple[list[str], Tensor]:
    """Words, and numbers (N, d); a word may have spaces in it."""
    width = len(lines[first].split()) - 1 if lines[first:] else 0
    words, numbers = list[str](), np.empty((len(lines) - first, max(width, 0)), np.float32)
    for i, line in enumerate(lines[first:]):
        word, *rest = line.rstrip().rsplit(b" ", width)
        try:
            numbers[i] = rest
            words.append(word.decode())
        except ValueError:
            rest = []
        if width < 2 or not rest or not np.isfinite(numbers[i]).all():
            what = f"{path}, line {first + i + 1}: {line[:40].decode('utf-8', 'replace')!r}"
            raise ValueError(f"{what} is no word and its {max(width, 2)} numbers, as a file of word vectors has them")
    return words, torch.from_numpy(numbers)
