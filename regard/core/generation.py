"""How a model is continued token by token: what a search starts, steps and reorders.

Letters: B sources, S their length, R rows, V vocabulary.

A source is what a model reads before it writes the first token: a sentence, or a prompt without its last token, which
the first step reads. A model that is one of these two shapes has the rest from here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Source = Sequence[int]


def padded(rows: Sequence[Source], pad: int, vocabulary: int) -> Tensor:
    """Rows of ids, of which there are so many -> (B, longest), filled up with `pad`.

    >>> padded([[5, 6], [7]], pad=0, vocabulary=8).tolist()
    [[5, 6], [7, 0]]
    """
    for ids in filter(len, rows):
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"a sentence has the ids {min(ids)} to {max(ids)}, the model reads 0 to {vocabulary - 1}: was it made "
                "with another tokenizer?"
            )
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids in rows], dtype=torch.int64)


def of_like_length(lengths: Sequence[int], tokens: int, rows: int | None = None) -> Iterator[list[int]]:
    """Which sequences go together, each once, the longest first: at most `rows`, and so many `tokens`, or one sequence.

    >>> list(of_like_length([2, 9, 3, 3], tokens=8))
    [[1], [2, 3], [0]]
    """
    order, start = sorted(range(len(lengths)), key=lambda i: -lengths[i]), 0
    while start < len(order):
        n = max(1, tokens // max(1, lengths[order[start]]))
        yield order[start : start + (n if rows is None else min(n, rows))]
        start += n if rows is None else min(n, rows)


def longest(model: Any) -> int | None:
    """The most tokens that a model has positions for, beside those of what was added; None: it reads any number."""
    most: int | None = model.config.longest
    return None if most is None else most - getattr(model, "ahead", 0)


def room_beside(source: Source, longest: int | None) -> int | None:
    """Tokens that an output may have which has positions of its own."""
    if not len(source):
        raise ValueError("it is empty: give it at least its end token")
    if longest is not None and len(source) > longest:
        raise ValueError(f"it has {len(source)} tokens, the model reads {longest} at most: split it")
    return longest


def room_after(source: Source, longest: int | None) -> int | None:
    """Tokens that an output may have which goes on where the source ends: the positions that it has left."""
    if longest is None:
        return None
    if (room := longest - len(source)) < 1:
        raise ValueError(f"it has {len(source) + 1} tokens, the model has {longest} places: shorten it")
    return room


@dataclass(frozen=True)
class Begun:
    """A source that was read already, and how the output begins: what comes before the token that the first step reads.
    Those that start together begin with as many tokens."""

    memory: Any  # one row of it
    written: Source = ()

    def __len__(self) -> int:
        return len(self.written)


@dataclass(frozen=True)
class Illustrated:
    """A prompt with pictures in it: at places that its model knows by their ids, their patches stand."""

    ids: Source
    pixels: Tensor  # (N, C, H, W)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Reading:
    """An encoder-decoder at work: R rows, of which K in a row read one row of the memory."""

    memory: Any  # `reorder(index)` returns those rows of it
    cache: Any

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        """Keep these rows (n,) of what was decoded, and these of the memory, in that order; None leaves them alone."""
        if memory is not None:
            self.memory = self.memory.reorder(memory)
        self.cache.reorder(rows, memory)


class EncoderDecoder:
    """What reads a source into a memory, and writes beside it."""

    config: Any  # vocabulary, source_vocabulary, pad, longest
    alike = False  # sources that start together may differ in length: they are padded

    encode: Any  # (B, S) -> memory
    continued: Any  # tokens (R, T), memory, cache -> what the output layer reads, (R, T, d)
    output: Any  # (R, T, d) -> logits (R, T, V)
    new_cache: Any  # what `decode` remembers of the tokens before

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T), right-padded -> logits of each next token (B, T, V)."""
        return self.decode(target, self.encode(source))

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What the output layer reads, (B, T, d): for `linear_cross_entropy` with `output`'s weight and bias."""
        return self.continued(target, self.encode(source))

    def decode(self, target: Tensor, memory: Any, cache: Any = None) -> Tensor:
        """target (R, T) -> logits (R, T, V). With a cache (`new_cache()`), target holds the new tokens only."""
        return self.output(self.continued(target, memory, cache))

    def start(self, sources: Sequence[Source], device: torch.device) -> Reading:
        """B sources -> what `step` continues, a row for each."""
        source = padded(sources, self.config.pad, self.config.source_vocabulary or self.config.vocabulary)
        return Reading(self.encode(source.to(device)), self.new_cache())

    def extend(self, tokens: Tensor, state: Reading) -> None:
        """More tokens of each row, (R, T), of which none says what comes after it."""
        self.continued(tokens, state.memory, state.cache)

    def step(self, tokens: Tensor, state: Reading) -> Tensor:
        """The newest token of each row, (R,) -> logits of the next one (R, V)."""
        return self.decode(tokens[:, None], state.memory, state.cache)[:, -1]

    def room(self, source: Source) -> int | None:
        """Tokens that the output may have; a `ValueError` says why the source cannot be read."""
        return room_beside(source, longest(self))


class DecoderOnly:
    """What goes on with what it has read: a language model. Sources that start together are equally long, so that no
    row has padding before it."""

    config: Any  # vocabulary, longest
    alike = True

    features: Any  # tokens (R, T), cache -> (R, T, d)
    output: Any  # (R, T, d) -> logits (R, T, V)
    new_cache: Any

    def start(self, sources: Sequence[Source], device: torch.device) -> Any:
        """B prompts without their last tokens -> a cache of them, a row for each."""
        cache, read = self.new_cache(), padded(sources, 0, self.config.vocabulary)
        if read.shape[1]:
            self.extend(read.to(device), cache)
        return cache

    def extend(self, tokens: Tensor, state: Any) -> None:
        """More tokens of each row, (R, T), of which none says what comes after it."""
        self.features(tokens, state)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """The newest token of each row, (R,) -> logits of the next one (R, V)."""
        return self.output(self.features(tokens[:, None], state))[:, -1]

    def room(self, source: Source) -> int | None:
        """Tokens that the output may have; a `ValueError` says why the prompt cannot be read."""
        return room_after(source, longest(self))
