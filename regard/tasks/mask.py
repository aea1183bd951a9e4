"""Masked language modelling: text with gaps in, what stood there out. How BERT learns, before it learns anything else.

Of the tokens a share is hidden: most are masked, some are others, some stay; whole words or spans, if wanted. Which, is
drawn for each batch anew. Beside it, a model may learn whether two stretches follow each other (BERT), and in which
order (ALBERT).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rust
from torch import nn

from regard.checks import at_least, one_of, share
from regard.core.outputs import HeadConfig
from regard.data.batching import Batch
from regard.data.documents import Passage
from regard.data.tokenizers import Tokenizer
from regard.tasks.reader import BARS, Framed, Given, Pictured, Rated, Reader, batched, windows
from regard.tasks.task import Evidence, Measured, Sections
from regard.tasks.texts import OverText, TextConfig
from regard.tasks.uses import FillUse
from regard.training.objectives import IGNORE, Masked, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

UNITS = ("token", "word", "span")
RELATIONS = ("none", "next", "order")
MASKED, OTHER = 0.8, 0.1  # of the hidden tokens, so many are masked, and so many are others; the rest stay
SPAN, LONGEST = 0.2, 10  # of spans: the chance to end at each word, and the most words (SpanBERT)
SAMPLES = 5
GAPS = ("[MASK]", "<mask>")  # as people write them, whichever the model knows
Ids = NDArray[Any]


@dataclass(frozen=True)
class MaskConfig:
    """What a model is for."""

    name: str = "mask"
    block: int = 128  # tokens that are read together, marks among them
    share: float = 0.15  # of them are hidden
    unit: str = "token"  # what is hidden at a time: token, word, span (of whole words)
    relation: str = "none"  # of two stretches: next (does it follow?), order (which is first?)

    def __post_init__(self) -> None:
        at_least(8, **{"task.block": self.block})
        share(whole=False, **{"task.share": self.share})
        one_of(UNITS, **{"task.unit": self.unit})
        one_of(RELATIONS, **{"task.relation": self.relation})


@dataclass(frozen=True)
class Guessing:
    """It is judged by what it was hidden, the same for every model with these tokens."""


@dataclass(frozen=True)
class Gap:
    """A gap, and what may stand in it."""

    tokens: list[str]  # the likeliest first, as a person reads them
    probabilities: list[float]
    texts: list[str]  # the text with each in this gap
    ids: list[int]  # of the tokens
    around: tuple[int, int] | None = None  # of a text that is too long: from which character to before which other


class Filler(Reader):
    """A model that fills gaps, and its tokenizer.

    >>> filler = load("runs/bert")                                  # doctest: +SKIP
    >>> filler.fill("The cat [MASK] on the mat.")[0].tokens[0]      # doctest: +SKIP
    'sat'
    """

    @property
    def gap(self) -> str:
        """How a gap is written: [MASK], <mask>."""
        return str(self.tokenizer.rust.id_to_token(self.tokenizer.marks.need("mask")[0]))

    @overload
    def fill(self, text: str, **settings: Any) -> list[Gap]: ...
    @overload
    def fill(self, text: Sequence[str], **settings: Any) -> list[list[Gap]]: ...
    def fill(self, text: str | Sequence[str], **settings: Any) -> Any:
        """What may stand in each gap of a text, or of each in a list."""
        asks = [Given(each) for each in ([text] if isinstance(text, str) else text)]
        found = self.answers(asks, FillUse(**vars(self.use) | settings))
        return found[0] if isinstance(text, str) else found

    @cached_property
    def _finding(self) -> Rust:
        """The tokenizer, which finds gaps in a text."""
        rust = Rust.from_str(self.tokenizer.rust.to_str())
        how: Any = {"lstrip": not self.tokenizer.spaced, "normalized": False}
        rust.add_special_tokens([AddedToken(gap, **how) for gap in {self.gap, *GAPS}])
        return rust

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a text, its gaps among them, and where each stands."""
        marks, found = self.tokenizer.marks, self._finding.encode(text)
        gaps = {self._finding.token_to_id(gap) for gap in (self.gap, *GAPS)}
        kept = [n for n, i in enumerate(found.ids) if i in gaps or i not in self.tokenizer.silent or i == marks.unk]
        ids = [marks.need("mask")[0] if found.ids[n] in gaps else found.ids[n] for n in kept]
        return ids, [found.offsets[n] for n in kept]

    def framed(self, asks: Sequence[Given], room: int = 0, long: str = "windows") -> list[list[Framed]]:
        """What the model reads of each text, its gaps among it: all, or of a long one as much around each gap as the
        model reads, and in windows if there is none."""
        marks, read = self.tokenizer.marks, list[list[Framed]]()
        (mask,) = marks.need("mask")
        for ask in asks:
            ids, _ = self._tokens(ask.text)
            own = list(windows(marks, ids, None, self.longest, ask.place or repr(ask.text[:40])))
            gaps = [n for n, i in enumerate(ids) if i == mask]
            if len(own) > 1 and gaps:
                most = own[0].tokens
                firsts = [min(max(0, gap - most // 2), len(ids) - most) for gap in gaps]
                own = [Framed(*marks.around(ids[n : n + most]), n, own[0].begins, most) for n in firsts]
            read.append(own)
        return read

    def spans(self, text: str) -> list[tuple[int, int]]:
        return self._tokens(text)[1]

    def looking(self, read: Framed, weights: torch.Tensor) -> torch.Tensor:
        """The rows of the gaps, if there are any."""
        gaps = [n for n, i in enumerate(read.ids) if i == self.tokenizer.marks.mask]
        return weights[gaps] if gaps else weights

    def answers(self, asks: Sequence[Given], settings: FillUse) -> list[list[Gap]]:
        """The gaps of each text."""
        read = self.framed(asks)
        for ask, (first, *_) in zip(asks, read, strict=True):
            if self.tokenizer.marks.mask not in first.ids:
                where = ask.place or repr(ask.text[:40])
                raise ValueError(f"{where} has no gap: write {self.gap} where something is to be filled in")
        said = iter(self.outputs([each for row in read for each in row]))
        return [
            self._filled(ask, row, [next(said) for _ in row], settings.top) for ask, row in zip(asks, read, strict=True)
        ]

    def pictured(self, ask: Given) -> Pictured:
        (gaps,) = self.answers([ask], FillUse(top=BARS))
        words = [[self.tokenizer.decode([i]).strip() or t for i, t in zip(g.ids, g.tokens, strict=True)] for g in gaps]
        bars = [
            [Rated(word, p, chosen=not n) for n, (word, p) in enumerate(zip(some, gap.probabilities, strict=True))]
            for some, gap in zip(words, gaps, strict=True)
        ]
        return Pictured(" · ".join(some[0] for some in words), bars)

    def _filled(self, ask: Given, read: list[Framed], said: list[torch.Tensor], top: int) -> list[Gap]:
        """What may stand in each gap: by what was read of the whole text, or around that gap."""
        ids, spans = self._tokens(ask.text)
        (mask,), silent = self.tokenizer.marks.need("mask"), self.tokenizer.silent
        found = []
        for n, place in enumerate(place for place, i in enumerate(ids) if i == mask):
            own, logits = (read[n], said[n]) if read[0].tokens < len(ids) else (read[0], said[0])
            p = logits[own.begins + place - own.first].double().softmax(-1)
            p[[i for i in silent if i < len(p)]] = 0.0
            best = p.topk(min(top, len(p)))
            before, after = ([i for i in some if i != mask] for some in (ids[:place], ids[place + 1 :]))
            chosen = best.indices.tolist()
            texts = [self.tokenizer.decode([*before, i, *after]) for i in chosen]
            part = spans[own.first][0], spans[own.first + own.tokens - 1][1]
            cut = part if own.tokens < len(ids) else None
            found.append(Gap(self.tokenizer.pieces(chosen), best.values.tolist(), texts, chosen, cut))
        return found


@dataclass(frozen=True)
class Masking(OverText):
    """Text with gaps in, what stood there out."""

    block: int = MaskConfig.block
    share: float = MaskConfig.share
    unit: str = MaskConfig.unit
    relation: str = MaskConfig.relation

    name, called, verb = "mask", "masked language", "fill"
    sections = Sections(MaskConfig, TextConfig, FillUse, Guessing)
    marks = ("mask",)

    @classmethod
    def can(cls, model: type[nn.Module], heads: Sequence[str]) -> bool:
        return len(heads) > 1 and not hasattr(model, "step")  # what reads both ways, and writes nothing

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig(hidden="gelu", relation=0 if self.relation == "none" else 2)

    @property
    def room(self) -> int:
        """Tokens of text in a block: beside them stand two marks, or three."""
        return self.block - (2 if self.relation == "none" else 3)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 here")
        starts, (mask,) = words_begin(tokenizer), tokenizer.marks.need("mask")
        ordinary = np.array([i for i in range(len(tokenizer)) if i not in tokenizer.silent])

        def batch(rows: Sequence[tuple[Ids]], draw: Random) -> Batch:
            random = np.random.default_rng(draw.getrandbits(63))
            pairs, relation = related(self.drawn(rows, draw), self.relation, random)
            read, labels = [], []
            for first, second in pairs:
                ids, segments = tokenizer.marks.around(first.tolist(), None if second is None else second.tolist())
                whole = np.array(ids)
                text = ~np.isin(whole, list(tokenizer.silent))
                chosen = hidden(whole, text, starts, self.share, self.unit, random)
                labels.append(np.where(chosen, whole, IGNORE))
                how = random.random(len(whole))
                whole[chosen & (how < MASKED)] = mask
                other = chosen & (how >= MASKED) & (how < MASKED + OTHER)
                whole[other] = random.choice(ordinary, int(other.sum()))
                read.append(Framed(whole.tolist(), segments))
            tensors = dict(batched(read, tokenizer.marks.pad or 0, True).tensors)
            said = np.full(tensors["tokens"].shape, IGNORE)
            for row, each in zip(said, labels, strict=True):
                row[: len(each)] = each
            tensors["labels"] = torch.from_numpy(said)
            if relation is not None:
                tensors["relation"] = torch.from_numpy(relation)
            return Batch(tensors, int((said != IGNORE).sum()))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Masked(model, smoothing, ignore=IGNORE)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: FillUse, **how: Any) -> Filler:
        return Filler(models, tokenizer, use, **how)

    def measure(self, predictor: Filler, held_out: Sequence[Passage], recipe: Any) -> Measured:
        """Loss and accuracy on held-out text, the same tokens hidden each time; without a recipe, on all of it."""
        collate, found, relations = self.collate(predictor.tokenizer, 0.0), list[torch.Tensor](), list[torch.Tensor]()
        most = None if recipe is None else recipe.train.validate_sentences
        blocks = [(ids,) for ids in self.stretches(held_out, predictor.tokenizer, most)]
        for i in range(0, len(blocks), 32):
            batch = collate(blocks[i : i + 32], Random(f"held out {i}")).to(predictor.device)
            labels = batch["labels"]
            with torch.inference_mode():
                inputs = {name: x for name, x in batch.inputs.items() if name != "relation"}
                features = predictor.model.features(**inputs)  # type: ignore[operator]
                chosen = labels != IGNORE
                z = predictor.model.output(features[chosen][:, None])[:, 0].float().log_softmax(-1)  # type: ignore[operator]
                y, best = labels[chosen], z.max(1)
                row = i + chosen.nonzero()[:, 0]
                each = row, -z.gather(1, y[:, None])[:, 0], best.indices == y, best.values.exp()
                found.append(torch.stack([x.double() for x in each]).cpu())
                if self.relation != "none":
                    said = predictor.model.output.relation(features).argmax(1)  # type: ignore[union-attr, operator]
                    relations.append((said == batch["relation"]).cpu())
        of, nats, right, confidence = torch.cat(found, 1).numpy()
        sums = [np.bincount(of.astype(int), x, len(blocks)) for x in (nats, right, np.ones(len(of)))]  # of each block

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            loss, accuracy = (x[rows].sum() / max(1.0, sums[2][rows].sum()) for x in sums[:2])
            measures = {"loss": float(loss), "perplexity": float(np.exp(min(loss, 700.0))), "accuracy": float(accuracy)}
            return measures | ({"relation": float(torch.cat(relations)[rows].double().mean())} if relations else {})

        evidence = Evidence(len(sums[0]), figures, confidence, right.astype(bool))
        return Measured.of(evidence, "loss", self._samples(predictor, held_out))

    def _samples(self, predictor: Filler, held_out: Sequence[Passage]) -> list[Sample]:
        samples = []
        for passage in held_out[:SAMPLES]:
            words = passage.text.split()[:12]
            if len(words) > 4:
                gapped = " ".join([*words[:4], predictor.gap, *words[5:]])
                samples.append(Sample(gapped, predictor.fill(gapped, top=1)[0].tokens[0], words[4]))
        return samples or [Sample("", "", "")]


def words_begin(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Of each id, whether a word begins with it: ##ing goes on with one, and so does what has no space before it."""
    pieces = [str(tokenizer.rust.id_to_token(i)) for i in range(len(tokenizer))]
    if any(piece.startswith("##") for piece in pieces):
        return np.array([not piece.startswith("##") for piece in pieces])
    spaced = np.array([piece[:1] in ("Ġ", "▁", " ") for piece in pieces])
    return spaced if spaced.any() else np.ones(len(pieces), bool)


def hidden(
    ids: Ids, text: NDArray[np.bool_], starts: NDArray[np.bool_], share: float, unit: str, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Which tokens of a row are hidden: this share of what is text, at least one, whole units each."""
    chosen = np.zeros(len(ids), bool)
    places = np.flatnonzero(text)
    if not len(places):
        return chosen
    wanted = max(1, round(share * len(places)))
    begins = places if unit == "token" else places[starts[ids[places]] | (places == places[0])]
    ends = np.append(begins[1:], len(ids))
    for n in random.permutation(len(begins)):
        if chosen.sum() >= wanted:
            break
        words = min(LONGEST, int(random.geometric(SPAN))) if unit == "span" else 1
        last = min(n + words, len(begins)) - 1
        stretch = np.arange(begins[n], ends[last])
        chosen[stretch[text[stretch]]] = True
    return chosen


def related(
    texts: Sequence[Ids], relation: str, random: np.random.Generator
) -> tuple[list[tuple[Ids, Ids | None]], NDArray[np.int64] | None]:
    """Each text as one stretch, or as two that follow each other, 0, or do not, 1: in place of the second stands that
    of another row, or both change places."""
    if relation == "none":
        return [(text, None) for text in texts], None
    cuts = [int(random.integers(1, max(2, len(text)))) for text in texts]
    pairs: list[tuple[Ids, Ids | None]] = [(text[:cut], text[cut:]) for text, cut in zip(texts, cuts, strict=True)]
    wrong = random.random(len(texts)) < 0.5
    if relation == "order":
        pairs = [(b, a) if swap and b is not None else (a, b) for (a, b), swap in zip(pairs, wrong, strict=True)]
        return pairs, wrong.astype(np.int64)
    wrong &= len(texts) > 1
    others = (np.arange(len(texts)) + random.integers(1, max(2, len(texts)), len(texts))) % len(texts)
    pairs = [(a, pairs[o][1]) if swap else (a, b) for (a, b), swap, o in zip(pairs, wrong, others, strict=True)]
    room = max(map(len, texts))  # a stranger's may be longer
    return [(a, b[: room - len(a)] if b is not None else None) for a, b in pairs], wrong.astype(np.int64)


TASK = Masking
