"""regard for a person: `load` a model directory, and use it."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch
from torch import nn

from regard import recipe as recipes
from regard.asks import (
    Alternative,
    Answer,
    Ask,
    Links,
    Part,
    Score,
    Settings,
    Translation,
    joined,
    short,
    unread,
    windows,
)
from regard.core.attention import Tap
from regard.core.quantised import is_quantised, quantise
from regard.data.batching import collate
from regard.data.lexicon import Shortlist
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import pool, scoring
from regard.decoding.beam import length_penalty
from regard.decoding.ensemble import Ensemble
from regard.decoding.module import EncoderDecoder, Module, longest_of
from regard.decoding.protocol import Hypothesis, Request, Searchable
from regard.decoding.rescoring import rescore, turned
from regard.decoding.risk import choose
from regard.evaluation.translation import sentence_chrf
from regard.inspection.alignment import align_words, source_attention, words_of_prefixes, words_of_spans
from regard.inspection.maps import Words, in_words, translation_maps, without_special, words_of_pieces
from regard.inspection.page import AttentionMap, attention_page
from regard.models import storage
from regard.native import Native, Shortlists, UnavailableError, UnsupportedError
from regard.recipe import DataConfig, DecodeConfig
from regard.requesting import SPECIAL as SPECIAL  # the marks that searches know
from regard.requesting import in_parts, requested
from regard.shipped import located
from regard.shipped import shipped as shipped  # regard.api.shipped() is part of this door

ENGINES = ("auto", "native", "torch")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": None}
ALIGNED = 2_048  # tokens whose attention is held at a time


class Translator:
    """A trained model and its tokenizer: text in, text out. Several models make an ensemble.

    The settings of each method are the names in `Settings`, `SearchConfig` and `SamplingConfig`; docs/decoding.md
    explains them.

    >>> translator = load("runs/quickstart")                       # doctest: +SKIP
    >>> translator.translate("Where is the library?", beam=8)      # doctest: +SKIP
    '¿Dónde está la biblioteca?'
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        decode: DecodeConfig | None = None,
        *,
        engine: str = "auto",
        workers: int | None = None,
        rows: int = 256,
        bitwise: bool = False,
        longest: int | None = None,
        shortlists: Shortlists | None = None,
        backward: bool = False,
    ) -> None:
        """`longest`: sub-words of a sentence that the model is used to; `rows` are searched side by side.

        `backward`: the model writes its outputs from the last sub-word to the first (`data.target_order`).
        """
        if engine not in ENGINES:
            raise ValueError(f"engine = {engine!r}: choose one of {', '.join(ENGINES)}")
        for name, value in (("workers", workers), ("rows", rows)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: it must be at least 1")
        self.models = [each.eval() for each in ([model] if isinstance(model, nn.Module) else model)]
        self.model, self.tokenizer, self.decode = self.models[0], tokenizer, decode or DecodeConfig()
        self.engine, self.rows, self.bitwise, self.backward = engine, rows, bitwise, backward
        self.second: tuple[Translator, float] | None = None  # another to rank outputs with, and the weight of its word
        tables = [
            n - 1 for each in self.models if (n := longest_of(each.config)) is not None
        ]  # the end has a place, too
        self.reach = min(tables, default=None)
        self.longest = min((n for n in (longest, self.reach) if n is not None), default=None)
        self._workers, self._shortlists = workers, shortlists
        self._made: tuple[object, Searchable] | None = None  # an engine, and what it was made from
        self._without: str | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def searchable(self) -> Searchable:
        """The engine that searches drive: PyTorch while somebody watches a tap, and made anew for changed weights."""
        watched = any(tap.watchers for model in self.models for tap in model.modules() if isinstance(tap, Tap))
        made_from = watched, [(p.data_ptr(), p._version) for model in self.models for p in model.parameters()]
        if self._made is None or self._made[0] != made_from:
            engines = [self._engine(model, watched) for model in self.models]
            self._made = made_from, engines[0] if len(engines) == 1 else Ensemble(engines)
        return self._made[1]

    @property
    def without_native(self) -> str | None:
        """Why this machine cannot have the native engine, the quickest on a CPU; None: it can, or has no use for it."""
        assert self.searchable
        return self._without

    def _engine(self, model: nn.Module, watched: bool) -> Searchable:
        if self.engine != "torch" and self.device.type == "cpu" and not watched:
            try:
                return Native(model, shortlists=self._shortlists)
            except UnavailableError as error:
                reason = str(error)
                self._without = None if isinstance(error, UnsupportedError) else reason
        else:
            reason = "a tap is watched" if watched else f"the engine is {self.engine}, the device {self.device}"
        if self.engine == "native":
            raise ValueError(f"there is no native engine for this model ({reason}): use torch")
        if self._shortlists is not None:
            raise ValueError(f"shortlists are for the native engine, and it cannot be used ({reason})")
        return Module(cast(EncoderDecoder, model), pad=PAD, bitwise=self.bitwise)

    @overload
    def translate(self, text: str, **settings: Any) -> str: ...
    @overload
    def translate(self, text: list[str], **settings: Any) -> list[str]: ...
    def translate(self, text: str | list[str], **settings: Any) -> str | list[str]:
        """The translation of a text, or of each in a list; `beam=1` is greedy. A blank text stays as it is.

        Any other has at least one sub-word, unless `shortest=0`.
        """
        said = list(self.translate_lines([text] if isinstance(text, str) else text, **settings))
        return said[0] if isinstance(text, str) else said

    def translate_lines(self, lines: Iterable[str], **settings: Any) -> Iterator[str]:
        """A translation for each line, in order and in constant memory."""
        chosen = Settings.of(settings, self.decode).bare()
        for window in windows(Ask(line) for line in lines):
            for answer in self.answers(window, chosen):
                yield answer.translations[0].text

    @overload
    def hypotheses(self, text: str, **settings: Any) -> list[Translation]: ...
    @overload
    def hypotheses(self, text: list[str], **settings: Any) -> list[list[Translation]]: ...
    def hypotheses(self, text: str | list[str], **settings: Any) -> list[Translation] | list[list[Translation]]:
        """The `best` outputs for a text, or for each in a list, with scores; `align=True` adds word alignments."""
        chosen = Settings.of(settings, self.decode)
        asks = (Ask(each) for each in ([text] if isinstance(text, str) else text))
        found = [answer.translations for window in windows(asks) for answer in self.answers(window, chosen)]
        return found[0] if isinstance(text, str) else found

    def stream(self, text: str | Ask, **settings: Any) -> Generator[str, None, int]:
        """The translation of a text, piece by piece as it becomes certain: together they are `translate(text)`.

        What `yield from` gives in the end is `Answer.cut`.
        """
        chosen = Settings.of(settings, self.decode)
        if chosen.mbr or chosen.search.best > 1 or self.second is not None:
            raise ValueError("mbr, best and a second opinion compare whole outputs: there is nothing to stream of them")
        self._forward_only("a stream")
        ask = Ask(text) if isinstance(text, str) else text
        (parts,), (cut,) = self._parts([ask], chosen)
        read = sum(bool(part.ids) for part in parts)
        for part in parts:
            if part.ids:
                request = self._request(part, ask, read, chosen)
                yield from self._pieces(pool.stream(self._alone(), request, chosen.search, SPECIAL))
            if rest := part.gap if part.ids else part.text + part.gap:
                yield rest
        return cut

    def score(self, sources: Sequence[str | Ask], targets: Sequence[str | Ask]) -> list[Score]:
        """How likely the model holds each target as a translation of its source."""
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets: they must be as many")
        pairs = list(zip(map(self._ids, sources), map(self._ids, targets), strict=True))
        order = -1 if self.backward else 1
        read = [([*source, EOS], target[::order]) for source, target in pairs]
        each = [
            scoring.log_probabilities(cast(EncoderDecoder, model), read, special=SPECIAL, device=self.device)
            for model in self.models
        ]
        found = []
        for (_, target), rows in zip(pairs, zip(*each, strict=True), strict=True):
            log_p = (np.logaddexp.reduce(np.array(rows, np.float64)) - math.log(len(rows))).tolist()
            log_p[:-1] = log_p[:-1][::order]
            found.append(Score(math.fsum(log_p), [*self.tokenizer.pieces(target), "</s>"], log_p))
        return found

    def align(self, source: str, target: str, *, layer: int | None = None) -> Links:
        """Which word of the source each word of the target comes from: (source word, target word), from 0."""
        self._forward_only("an alignment")
        read, written = self._ids(source), self._ids(target)
        words = words_of_spans(target, self.tokenizer.spans(target))
        return self._aligned([(source, read, written, words)], layer)[0]

    def alternatives(self, text: str, prefix: str = "", count: int = 5, **settings: Any) -> list[Alternative]:
        """The likeliest tokens after the beginning `prefix` of an output, each with the output that it leads to."""
        if count < 1:
            raise ValueError(f"count = {count}: it must be at least 1")
        self._forward_only("alternatives")
        chosen = Settings.of({**settings, "prefix": prefix}, self.decode)
        request = self._request(self._sentence(text, chosen, "alternatives are"), Ask(text), 1, chosen)
        before = (BOS, *request.prefix)
        rows = self.searchable.rows()
        rows.start([request.source])
        for token in before[:-1]:
            rows.step(np.array([token]))
        refused = set() if request.refusal is None else {*request.refusal.refused(request.prefix)}
        if len(request.prefix) < chosen.search.shortest:
            refused.add(EOS)
        best = rows.best(np.array(before[-1:]), count + len(refused))
        each = zip(best.tokens[0].tolist(), best.scores[0].tolist(), strict=True)
        tokens, scores = zip(*[pair for pair in each if pair[0] not in refused][:count], strict=True)
        going = [replace(request, prefix=(*request.prefix, token)) for token in tokens if token != EOS]
        found = iter(self._search(going, chosen.bare()))
        outputs = [list(request.prefix) if token == EOS else next(found)[0].tokens for token in tokens]
        return [
            Alternative(piece, math.exp(log_p), said)
            for piece, log_p, said in zip(
                self.tokenizer.pieces(tokens),
                scores,
                self.tokenizer.decode_batch(outputs),
                strict=True,
            )
        ]

    def attention(
        self,
        text: str,
        target: str | None = None,
        *,
        names: str | Sequence[str] = "*",
        heads: Sequence[int] | None = None,
        view: str = "weights",
        words: bool = False,
        special: bool = True,
        **settings: Any,
    ) -> list[AttentionMap]:
        """What every head looks at while the model writes its translation of a sentence, or a given one.

        `names` are patterns of attentions, `heads` the numbers of some. The view "norm" shows lengths of what is moved
        instead of weights. `words` puts sub-words together; without `special`, start and end symbols are left out.
        """
        self._forward_only("a map of attention")
        chosen = Settings.of(settings, self.decode)
        read = self._sentence(text, chosen, "attention is")
        written = self._ids(target) if target is not None else None
        if written is None:
            written = self._search([self._request(read, Ask(text), 1, chosen)], chosen)[0][0].tokens
        if not (special or written):
            raise ValueError(f"{short(text)}: nothing is written, and special tokens are left out: there is no map")
        batch = collate([(read.ids, written)]).to(self.device)
        pieces = [[*self.tokenizer.pieces(ids), "</s>"] for ids in (read.ids, written)]
        maps = translation_maps(self.model, batch.source, batch.target, *pieces, names=names, heads=heads, view=view)
        if words:
            maps = [in_words(each, self._in_words(read.ids), self._in_words(written)) for each in maps]
        return maps if special else list(map(without_special, maps))

    def attention_page(self, text: str, target: str | None = None) -> str:
        """A self-contained HTML page of every head while the model writes its translation, or a given one."""
        said = self.translate(text) if target is None else target
        return attention_page(self.attention(text, target), title=f"{text} → {said}")

    def answers(self, asks: Sequence[Ask], settings: Settings) -> list[Answer]:
        """The outputs for each of some texts, all at once in memory: what the other methods are made of."""
        if settings.align:
            self._forward_only("an alignment")
        texts, cuts = self._parts(asks, settings)
        read = [[part for part in parts if part.ids] for parts in texts]
        requests = [
            self._request(part, ask, len(row), settings) for ask, row in zip(asks, read, strict=True) for part in row
        ]
        known = [part for row in read for part in row]
        found = self._search(requests, settings) if self.second is None else self._ranked(requests, known, settings)
        said = iter(self._translations(known, found, settings))
        answers = []
        for parts, cut in zip(texts, cuts, strict=True):
            each = [next(said) if part.ids else [unread(part.text)] for part in parts]
            outputs = min((len(e) for e, part in zip(each, parts, strict=True) if part.ids), default=1)
            whole = [joined(parts, [e[min(k, len(e) - 1)] for e in each]) for k in range(outputs)]
            answers.append(Answer(whole, cut))
        return answers

    def _ids(self, text: str | Ask) -> list[int]:
        ask = Ask(text) if isinstance(text, str) else text
        ids = self.tokenizer.encode(ask.text)
        if self.reach is not None and len(ids) > self.reach:
            where = ask.place or short(ask.text)
            raise ValueError(f"{where} has {len(ids)} sub-words, the model has positions for {self.reach}: shorten it")
        return ids

    def _sentence(self, text: str, settings: Settings, subject: str) -> Part:
        """The one part of a text that is read."""
        (parts,), _ = self._parts([Ask(text)], settings)
        read = [part for part in parts if part.ids]
        if len(read) != 1:
            raise ValueError(f"{subject} for one sentence, got {len(read)}: {short(text)}")
        return read[0]

    def _parts(self, asks: Sequence[Ask], settings: Settings) -> tuple[list[list[Part]], list[int]]:
        """What the model reads of each text, and how many sentences of it had to be cut."""
        return in_parts(asks, settings, self.tokenizer, self.longest)

    def _forward_only(self, subject: str) -> None:
        if self.backward:
            raise ValueError(f"{subject} begins at the beginning, and this model writes its outputs from their end")

    def _request(self, part: Part, ask: Ask, parts: int, settings: Settings) -> Request:
        longest = None if self.reach is None else self.reach + 1
        if any((settings.prefix, ask.prefix, settings.require, ask.require, settings.forbid, ask.forbid)):
            self._forward_only("a phrase")
        return requested(part, ask, parts, settings, self.tokenizer, longest)

    def _search(self, requests: Sequence[Request], settings: Settings) -> list[list[Hypothesis]]:
        engine = self._alone() if len(requests) == 1 else self.searchable
        # PyTorch's products have threads of their own.
        torch_only = isinstance(engine, Module) or (isinstance(engine, Ensemble) and not engine.ragged)
        workers = self._workers or (1 if torch_only else torch.get_num_threads())
        found = pool.search(engine, requests, settings.search, SPECIAL, rows=self.rows, workers=workers)
        return [list(map(turned, row)) for row in found] if self.backward else found

    def _ranked(self, requests: Sequence[Request], parts: list[Part], settings: Settings) -> list[list[Hypothesis]]:
        """Of all that a beam has found, or chance has drawn, the best by the word of two models."""
        assert self.second is not None
        if settings.mbr is not None:
            raise ValueError("mbr and a second opinion both choose one of several outputs: leave one of them out")
        (other, weight), search = self.second, replace(settings.search, scores=True)
        if search.sampling is None:
            search = replace(search, best=search.beam)
        found = self._search(requests, replace(settings, search=search))
        texts = self.tokenizer.decode_batch([h.tokens for row in found for h in row])
        sources = [part.text for part, row in zip(parts, found, strict=True) for _ in row]
        said = iter(other.score(sources, texts))
        ranked = []
        for row in found:
            norms = [length_penalty(len(h.token_scores), search.alpha, search.penalty) for h in row]
            ranked.append(rescore(row, [next(said).log_probability / norm for norm in norms], weight))
        return [row[: settings.search.best] for row in ranked]

    def _alone(self) -> Searchable:
        """The engine for one sentence at a time: the cores share each product."""
        engine = self.searchable
        return engine.with_threads(self._workers or torch.get_num_threads()) if isinstance(engine, Native) else engine

    def _translations(
        self, parts: list[Part], found: list[list[Hypothesis]], settings: Settings
    ) -> list[list[Translation]]:
        """The outputs of each part as text."""
        texts = iter(self.tokenizer.decode_batch([h.tokens for hypotheses in found for h in hypotheses]))
        named = [[(next(texts), h) for h in hypotheses] for hypotheses in found]
        if settings.mbr is not None:
            named = [[each[choose([text for text, _ in each], sentence_chrf)]] for each in named]
        links: Iterator[Links | None] = iter([None] * sum(map(len, named)))
        if settings.align:
            pairs = [(part, h.tokens) for part, each in zip(parts, named, strict=True) for _, h in each]
            links = iter(self._aligned([(part.text, part.ids, ids, self._words(ids)) for part, ids in pairs]))
        pieces = self.tokenizer.pieces
        return [
            [
                Translation(text, pieces(h.tokens), h.score, h.log_probability, h.token_scores, next(links))
                for text, h in each
            ]
            for each in named
        ]

    def _words(self, ids: list[int]) -> list[int]:
        """The word of its text that each of some ids is a part of."""
        return words_of_prefixes(self.tokenizer.decode_batch([ids[: i + 1] for i in range(len(ids))]))

    def _in_words(self, ids: list[int]) -> Words:
        """The words that some ids make."""
        of = words_of_pieces(self.tokenizer.pieces(ids), self.tokenizer.kind)
        groups: list[list[int]] = [[] for _ in set(of)]
        for word, id in zip(of, ids, strict=True):
            groups[word].append(id)
        texts = self.tokenizer.decode_batch(groups)
        return Words(
            of, [text.strip() or "".join(self.tokenizer.pieces(g)) for text, g in zip(texts, groups, strict=True)]
        )

    def _aligned(
        self, pairs: Sequence[tuple[str, list[int], list[int], list[int]]], layer: int | None = None
    ) -> list[Links]:
        """Alignments of pairs (source text, its ids, target ids, words of the target ids)."""
        links: list[Links] = [[] for _ in pairs]
        for rows in scoring.batches([(source, target) for _, source, target, _ in pairs], ALIGNED):
            batch = collate([(pairs[i][1], pairs[i][2]) for i in rows]).to(self.device)
            weights = [source_attention(model, batch.source, batch.target, layer=layer) for model in self.models]
            for i, row in zip(rows, torch.stack(weights).mean(0), strict=True):
                text, _, _, words = pairs[i]
                links[i] = align_words(row, words_of_spans(text, self.tokenizer.spans(text)), words)
        return links

    def _pieces(self, tokens: Iterable[list[int]]) -> Iterator[str]:
        """Text of more and more tokens, as far as those to come cannot change it."""
        ids: list[int] = []
        said = 0
        for more in tokens:
            ids += more
            text = self.tokenizer.certain(ids)
            if len(text) > said:
                yield text[said:]
                said = len(text)
        if rest := self.tokenizer.decode(ids)[said:]:
            yield rest


def load(
    directory: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "cpu",
    engine: str = "auto",
    workers: int | None = None,
    rows: int = 256,
    bitwise: bool = False,
    precision: str | None = None,
    shortlist: bool = False,
    rescore: str | Path | None = None,
    weight: float = 1.0,
) -> Translator:
    """The model in a directory that `regard train` has written; several directories make an ensemble.

    Without a directory, the model that comes with regard: English to Spanish, which also goes by its name, en-es.
    `engine` is native (compiled C, on the CPU), torch, or the first of them that there is; `workers` are threads.
    `precision` is that of the weights as they are on the disk, or fp32, bf16 (which native reads as fp32), int8.
    `shortlist` restricts the output to tokens that go with the source, as `regard shortlist` has learned it. `rescore`
    is another model, by whose word, of this `weight`, outputs are ranked as well.
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision = {precision!r}: choose one of {', '.join(PRECISIONS)}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {device!r} here ({str(error).splitlines()[0]}): use cpu") from None
    places = [located(directory)] if isinstance(directory, str | Path | None) else list(map(located, directory))
    if not places:
        raise ValueError("an ensemble has at least 1 model, got none")
    models = [storage.load(place, device=device, dtype=PRECISIONS.get(precision or "")) for place in places]
    if precision == "int8":
        models = [model if is_quantised(model) else quantise(model) for model in models]
    tokenizers = [Tokenizer.load(place / "tokenizer.json") for place in places]
    for place, tokenizer in zip(places, tokenizers, strict=True):
        if tokenizer.__reduce__() != tokenizers[0].__reduce__():
            raise ValueError(f"{places[0]} and {place} have different tokens: an ensemble shares one tokenizer")
    all_told = [recipes.load(str(file)) if (file := place / "recipe.yaml").exists() else None for place in places]
    told, orders = all_told[0], [each is not None and each.data.target_order == "backward" for each in all_told]
    if len(set(orders)) > 1:
        raise ValueError("some of these models write from left to right and others not: an ensemble has one order")
    longest = DataConfig.max_length if told is None else told.data.max_length
    listed = Shortlist.load(places[0]) if shortlist else None
    if listed is not None and len(listed.offsets) - 1 != len(tokenizers[0]):
        raise ValueError(
            f"{places[0]} has a shortlist for {len(listed.offsets) - 1:,} tokens, not for its {len(tokenizers[0]):,}: "
            f"make it again with `regard shortlist {places[0]}`"
        )
    translator = Translator(
        models,
        tokenizers[0],
        recipes.imported_decode(places[0]) if told is None else told.decode,
        engine=engine,
        workers=workers,
        rows=rows,
        bitwise=bitwise,
        longest=longest,
        shortlists=listed,
        backward=orders[0],
    )
    if rescore is not None:
        if not 0.0 <= weight < math.inf:
            raise ValueError(f"weight = {weight}: that of a second opinion is at least 0")
        translator.second = load(rescore, device=device, precision=precision), weight
    return translator
