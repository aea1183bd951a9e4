"""regard for a person: `load` a model directory, and use it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from regard import recipe as recipes
from regard.data.batching import collate
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding.beam import beam
from regard.inspection.maps import translation_maps
from regard.inspection.page import attention_page
from regard.models import storage
from regard.recipe import DecodeConfig

AHEAD = 2_000  # lines read at a time, to be sorted by length


class Translator:
    """A trained model and its tokenizer: text in, text out.

    >>> translator = load("runs/quickstart")              # doctest: +SKIP
    >>> translator.translate("Where is the library?")     # doctest: +SKIP
    '¿Dónde está la biblioteca?'
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, decode: DecodeConfig | None = None) -> None:
        self.model, self.tokenizer, self.decode = model.eval(), tokenizer, decode or DecodeConfig()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @overload
    def translate(self, text: str, *, beam: int | None = None, alpha: float | None = None) -> str: ...
    @overload
    def translate(self, text: list[str], *, beam: int | None = None, alpha: float | None = None) -> list[str]: ...
    def translate(
        self, text: str | list[str], *, beam: int | None = None, alpha: float | None = None
    ) -> str | list[str]:
        """The translation of a sentence, or of each in a list; `beam` 1 is greedy."""
        said = list(self.translate_lines([text] if isinstance(text, str) else text, beam=beam, alpha=alpha))
        return said[0] if isinstance(text, str) else said

    def translate_lines(
        self, lines: Iterable[str], *, beam: int | None = None, alpha: float | None = None, batch_tokens: int = 2048
    ) -> Iterator[str]:
        """A translation for each line, in order and in constant memory; a blank line stays blank."""
        stream = iter(lines)
        while chunk := list(islice(stream, AHEAD)):
            ids = self.tokenizer.encode_batch([line if line.strip() else "" for line in chunk])
            said = [""] * len(chunk)
            for rows in _by_length(ids, batch_tokens):
                for row, tokens in zip(rows, self._search([ids[i] for i in rows], beam, alpha), strict=True):
                    said[row] = self.tokenizer.decode(tokens)
            yield from said

    def attention_page(self, text: str, target: str | None = None) -> str:
        """A self-contained HTML page of every head while the model writes its translation, or a given one."""
        said = self.translate(text) if target is None else target
        read, written = self.tokenizer.encode(text), self.tokenizer.encode(said)
        batch = collate([(read, written)])
        pieces = [[*self.tokenizer.pieces(ids), "</s>"] for ids in (read, written)]
        maps = translation_maps(self.model, batch.source.to(self.device), batch.target.to(self.device), *pieces)
        return attention_page(maps, title=f"{text} → {said}")

    def _search(self, ids: list[list[int]], width: int | None, alpha: float | None) -> list[list[int]]:
        source = collate([(row, []) for row in ids]).source.to(self.device)
        maximum = torch.tensor([len(row) + 1 + self.decode.extra for row in ids], device=self.device)
        config: Any = self.model.config
        if config.positions == "learned":  # no further than the table goes
            maximum.clamp_(max=config.max_length)
        found = beam(
            self.model,  # type: ignore[arg-type]
            source,
            bos=BOS,
            eos=EOS,
            pad=PAD,
            width=self.decode.beam if width is None else width,
            alpha=self.decode.alpha if alpha is None else alpha,
            maximum=maximum,
        )
        return [hypotheses[0].tokens for hypotheses in found]


def load(directory: str | Path, *, device: str = "cpu") -> Translator:
    """The model in a directory that `regard train` has written."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {device!r} here ({str(error).splitlines()[0]}): use cpu") from None
    directory = Path(directory)
    model = storage.load(directory, device=device)
    tokenizer = Tokenizer.load(directory / "tokenizer.json")
    recipe = directory / "recipe.yaml"
    return Translator(model, tokenizer, recipes.load(str(recipe)).decode if recipe.exists() else None)


def _by_length(ids: list[list[int]], tokens: int) -> Iterator[list[int]]:
    """Rows that are not blank in batches of similar length: rows times the longest is at most `tokens`, or one row."""
    batch: list[int] = []
    for row in sorted((i for i, row in enumerate(ids) if row), key=lambda i: -len(ids[i])):
        if batch and (len(batch) + 1) * (len(ids[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
