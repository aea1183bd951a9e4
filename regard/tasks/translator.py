"""A trained model and its tokenizer, for a person: text in, text out."""

import math
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast, overload

import numpy as np
import torch
from torch import nn

from regard.core.generation import EncoderDecoder
from regard.data.batching import collate
from regard.data.kept import Links
from regard.data.sentences import FULL, stopped, unstopped
from regard.data.tokenizers import Tokenizer
from regard.decoding import scoring
from regard.decoding.beam import length_penalty
from regard.decoding.protocol import Hypothesis, Request, SearchConfig
from regard.decoding.rescoring import rescore
from regard.decoding.risk import choose
from regard.evaluation.translation import sentence_chrf
from regard.inspection.alignment import align_words, attends_to_source, source_attention
from regard.inspection.axes import END
from regard.inspection.maps import attention_maps, without_special
from regard.inspection.page import AttentionMap, attention_page
from regard.inspection.words import words_of_prefixes, words_of_spans
from regard.tasks.asks import (
    Alternative,
    Answer,
    Ask,
    DecodeConfig,
    Part,
    Score,
    Settings,
    Translation,
    joined,
    listed,
    short,
    unread,
    windows,
)
from regard.tasks.requesting import in_parts, requested
from regard.tasks.searching import Searcher, in_words

ALIGNED = 2_048  # tokens whose attention is held at a time


class Translator(Searcher):
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
        longest: int | None = None,
        **how: Any,
    ) -> None:
        """`longest`: sub-words of a sentence that the model is used to; how it is searched, `Searcher` says."""
        super().__init__(model, tokenizer, **how)
        self.decode = decode or DecodeConfig()
        self.second: tuple[Translator, float] | None = None  # another to rank outputs with, and the weight of its word
        self.reach = None if self.places is None else self.places - 1  # the end has a place, too
        self.longest = min((n for n in (longest, self.reach) if n is not None), default=None)

    def size(self, asks: Sequence[Ask], settings: Settings) -> tuple[int, int]:
        """Sub-words of some texts; what is written is about as long, and not counted."""
        return sum(map(len, self.tokenizer.encode_batch([ask.text for ask in asks]))), 0

    def written(self, answer: Answer) -> int:
        """The sub-words of an answer: of the best output."""
        return len(answer.translations[0].tokens)

    @property
    def reads(self) -> str:
        """How lines are read, unless somebody says otherwise: for evaluations to state."""
        return "line by line" if self.decode.split is False else "sentence by sentence"

    @overload
    def translate(self, text: str, **settings: Any) -> str: ...
    @overload
    def translate(self, text: list[str], **settings: Any) -> list[str]: ...
    def translate(self, text: str | list[str], **settings: Any) -> str | list[str]:
        """The translation of a text, or of each in a list; `beam=1` is greedy. A blank text stays as it is.

        Any other has at least one sub-word, unless `shortest=0`. Of what the model cannot know, as another script, it
        warns; `hypotheses` has it by name.
        """
        chosen, strange = Settings.of(settings, self.decode).bare(), dict[str, None]()
        said, cut = list[str](), 0
        for answer in self._each([text] if isinstance(text, str) else text, chosen):
            said.append(answer.translations[0].text)
            strange |= dict.fromkeys(answer.unknown)
            cut += answer.cut > 0
        if cut and chosen.long == "cut":
            warnings.warn(f"{cut} of {len(said)} texts were cut to {self.longest} sub-words", stacklevel=2)
        if strange:
            warnings.warn(f"the model has no sub-words for {listed([*strange])}, and can only guess", stacklevel=2)
        return said[0] if isinstance(text, str) else said

    def translate_lines(self, lines: Iterable[str], **settings: Any) -> Iterator[str]:
        """A translation for each line, in order and in constant memory."""
        for answer in self._each(lines, Settings.of(settings, self.decode).bare()):
            yield answer.translations[0].text

    @overload
    def hypotheses(self, text: str, **settings: Any) -> list[Translation]: ...
    @overload
    def hypotheses(self, text: list[str], **settings: Any) -> list[list[Translation]]: ...
    def hypotheses(self, text: str | list[str], **settings: Any) -> list[Translation] | list[list[Translation]]:
        """The `best` outputs for a text, or for each in a list, with scores; `align=True` adds word alignments."""
        chosen = Settings.of(settings, self.decode)
        found = [answer.translations for answer in self._each([text] if isinstance(text, str) else text, chosen)]
        return found[0] if isinstance(text, str) else found

    def _each(self, texts: Iterable[str], settings: Settings) -> Iterator[Answer]:
        for window in windows(map(Ask, texts)):
            yield from self.answers(window, settings)

    def stream(self, text: str | Ask, **settings: Any) -> Generator[str, None, Answer]:
        """The translation of a text, piece by piece as it becomes certain: together they are `translate(text)`.

        What `yield from` gives in the end is the answer, without scores.
        """
        chosen = Settings.of(settings, self.decode)
        if chosen.mbr or chosen.search.best > 1 or self.second is not None:
            raise ValueError("mbr, best and a second opinion compare whole outputs: there is nothing to stream of them")
        self._forward_only("a stream")
        ask = Ask(text) if isinstance(text, str) else text
        (parts,), (cut,) = self._parts([ask], chosen)
        read = sum(bool(part.ids) for part in parts)
        written = []
        for part in parts:
            pieces = self._pieces(part, ask, read, chosen) if part.ids else iter([part.text])
            for piece in chain(pieces, [part.gap]):
                if piece:
                    written.append(piece)
                    yield piece
        unknown = tuple(dict.fromkeys(stretch for part in parts for stretch in part.unknown))
        return Answer([replace(unread("".join(written)), unknown=unknown)], cut)

    def score(self, sources: Sequence[str | Ask], targets: Sequence[str | Ask]) -> list[Score]:
        """How likely the model holds each target as a translation of its source."""
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets: they must be as many")
        pairs = list(zip(map(self._ids, sources), map(self._ids, targets), strict=True))
        order = -1 if self.backward else 1
        read = [([*source, self.eos], target[::order]) for source, target in pairs]
        each = [
            scoring.log_probabilities(
                cast(EncoderDecoder, model), read, first=self.bos, eos=self.eos, device=self.device
            )
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
        before = (request.first, *request.prefix)
        rows = self.searchable.rows()
        rows.start([request.source])
        for token in before[:-1]:
            rows.step(np.array([token]))
        refused = set() if request.refusal is None else {*request.refusal.refused(request.prefix)}
        if len(request.prefix) < chosen.search.shortest:
            refused.add(self.eos)
        best = rows.best(np.array(before[-1:]), count + len(refused))
        each = zip(best.tokens[0].tolist(), best.scores[0].tolist(), strict=True)
        tokens, scores = zip(*[pair for pair in each if pair[0] not in refused][:count], strict=True)
        going = [replace(request, prefix=(*request.prefix, token)) for token in tokens if token != self.eos]
        found = iter(self._search(going, chosen.bare().search))
        outputs = [list(request.prefix) if token == self.eos else next(found)[0].tokens for token in tokens]
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
            written = self._search([self._request(read, Ask(text), 1, chosen)], chosen.search)[0][0].tokens
        if not (special or written):
            raise ValueError(f"{short(text)}: nothing is written, and special tokens are left out: there is no map")
        batch = collate([(read.ids, written)], marks=self.tokenizer.marks).to(self.device)
        ids = {"source": read.ids, "target": written}
        maps = attention_maps(
            self.model,
            batch.inputs,
            {name: [*self.tokenizer.pieces(each), END] for name, each in ids.items()},
            words={name: in_words(self.tokenizer, each) for name, each in ids.items()} if words else None,
            names=names,
            heads=heads,
            view=view,
        )
        return maps if special else list(map(without_special, maps))

    def attention_page(self, text: str, target: str | None = None) -> str:
        """A self-contained HTML page of every head while the model writes its translation, or a given one."""
        said = self.hypotheses(text, keep=False)[0].text if target is None else target
        return attention_page(self.attention(text, target), title=f"{text} → {said}")

    def answers(self, asks: Sequence[Ask], settings: Settings) -> list[Answer]:
        """The outputs for each of some texts, all at once in memory: what the other methods are made of."""
        if settings.align:
            self._forward_only("an alignment")
        texts, cuts = self._parts(asks, settings)
        read = [[part for part in parts if part.ids] for parts in texts]
        # Each with what it is read in instead, should nobody know where something belongs that it keeps.
        known = [[each for part in row for each in (part, *part.pieces) if each.ids] for row in read]
        requests = [
            self._request(part, ask, len(row), settings)
            for ask, row, parts in zip(asks, read, known, strict=True)
            for part in parts
        ]
        said = iter(self._translations([part for parts in known for part in parts], requests, settings))
        answers = []
        for parts, cut in zip(texts, cuts, strict=True):
            each = [self._said(part, said, settings) for part in parts]
            outputs = min((len(e) for e, part in zip(each, parts, strict=True) if part.ids), default=1)
            whole = [joined(parts, [e[min(k, len(e) - 1)] for e in each]) for k in range(outputs)]
            answers.append(Answer(whole, cut))
        return answers

    def _said(self, part: Part, found: Iterator[list[Translation]], settings: Settings) -> list[Translation]:
        """The outputs of a part, the things that it keeps in their places."""
        if not part.ids:
            return [unread(part.text)]
        outputs = [replace(each, unknown=part.unknown) for each in next(found)]
        if part.without is not None:
            each = [next(found) if piece.ids else [unread(piece.text)] for piece in part.pieces]
            for k, said in enumerate(outputs):
                filled = part.without.filled(said.text, said.alignment or [])
                if filled is None:
                    apart = [some[min(k, len(some) - 1)] for some in each]
                    outputs[k] = replace(joined(part.pieces, apart), unknown=part.unknown)
                else:
                    outputs[k] = replace(said, text=filled.text, alignment=filled.links)
            if not settings.align:
                outputs = [replace(each, alignment=None) for each in outputs]
        return outputs

    def _ids(self, text: str | Ask) -> list[int]:
        ask = Ask(text) if isinstance(text, str) else text
        ids = self.tokenizer.encode(ask.text)
        if self.reach is not None and len(ids) > self.reach:
            where = ask.place or short(ask.text)
            raise ValueError(f"{where} has {len(ids)} sub-words, the model has positions for {self.reach}: shorten it")
        return ids

    def _sentence(self, text: str, settings: Settings, subject: str) -> Part:
        """The one part of a text that is read."""
        (parts,), _ = self._parts([Ask(text)], replace(settings, keep=False))
        read = [part for part in parts if part.ids]
        if len(read) != 1:
            raise ValueError(
                f"{subject} for one sentence, got {len(read)}: {short(text)}. Give one of them, or have the text read "
                "as one (split=False, --no-split)"
            )
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
        return requested(part, ask, parts, settings, self.tokenizer, longest, self.backward)

    def _ranked(self, requests: Sequence[Request], parts: Sequence[Part], settings: Settings) -> list[list[Hypothesis]]:
        """Of all that a beam has found, or chance has drawn, the best by the word of two models."""
        assert self.second is not None
        if settings.mbr is not None:
            raise ValueError("mbr and a second opinion both choose one of several outputs: leave one of them out")
        (other, weight), search = self.second, SearchConfig(**vars(settings.search))
        if search.sampling is None:
            search = replace(search, best=search.beam)
        found = self._search(requests, search)
        texts = self.tokenizer.decode_batch([h.tokens for row in found for h in row])
        sources = [part.read for part, row in zip(parts, found, strict=True) for _ in row]
        said = iter(other.score(sources, texts))
        ranked = []
        for row in found:
            norms = [length_penalty(len(h.token_scores), search.alpha, search.penalty) for h in row]
            ranked.append(rescore(row, [next(said).log_probability / norm for norm in norms], weight))
        return [row[: settings.search.best] for row in ranked]

    def _translations(
        self, parts: Sequence[Part], requests: Sequence[Request], settings: Settings
    ) -> list[list[Translation]]:
        """The outputs of each part as text."""
        found = (
            self._search(requests, settings.search) if self.second is None else self._ranked(requests, parts, settings)
        )
        texts = iter(self.tokenizer.decode_batch([h.tokens for hypotheses in found for h in hypotheses]))
        named = [[(next(texts), h) for h in hypotheses] for hypotheses in found]
        if settings.mbr is not None:
            named = [[each[choose([text for text, _ in each], sentence_chrf)]] for each in named]
        wanted = [settings.align or (part.without is not None and self._aligns) for part in parts]
        bare = [settings.stops and not stopped(part.read) for part in parts]
        links = iter(
            self._aligned(
                (part.read, part.ids, h.tokens, self._words(h.tokens))
                for part, each, want in zip(parts, named, wanted, strict=True)
                for _, h in each
                if want
            )
        )
        return [
            [
                Translation(
                    unstopped(text) if ends_bare else text,
                    self.tokenizer.pieces(h.tokens),
                    h.score,
                    h.log_probability,
                    h.token_scores,
                    next(links) if want else None,
                )
                for text, h in each
            ]
            for each, want, ends_bare in zip(named, wanted, bare, strict=True)
        ]

    @property
    def _aligns(self) -> bool:
        """Whether words can be aligned."""
        return not self.backward and all(map(attends_to_source, self.models))

    def _words(self, ids: list[int]) -> list[int]:
        """The word of its text that each of some ids is a part of."""
        return words_of_prefixes(self.tokenizer.decode_batch([ids[: i + 1] for i in range(len(ids))]))

    def _aligned(
        self, given: Iterable[tuple[str, list[int], list[int], list[int]]], layer: int | None = None
    ) -> list[Links]:
        """Alignments of pairs (source text, its ids, target ids, words of the target ids)."""
        pairs = list(given)
        links: list[Links] = [[] for _ in pairs]
        for rows in scoring.batches([(source, target) for _, source, target, _ in pairs], ALIGNED):
            batch = collate([(pairs[i][1], pairs[i][2]) for i in rows], marks=self.tokenizer.marks).to(self.device)
            weights = [source_attention(model, batch.inputs, layer=layer) for model in self.models]
            for i, row in zip(rows, torch.stack(weights).mean(0), strict=True):
                text, _, _, words = pairs[i]
                links[i] = align_words(row, words_of_spans(text, self.tokenizer.spans(text)), words)
        return links

    def _pieces(self, part: Part, ask: Ask, read: int, settings: Settings) -> Iterator[str]:
        """The text of a part, as far as tokens to come cannot change it; with things to place, all of it at once."""
        requests = [self._request(each, ask, read, settings) for each in (part, *part.pieces) if each.ids]
        if part.without is not None:
            known = [each for each in (part, *part.pieces) if each.ids]
            yield self._said(part, iter(self._translations(known, requests, settings)), settings)[0].text
            return
        yield from self._certain(
            self._streamed(requests[0], settings.search), settings.stops and not stopped(part.read)
        )

    def _certain(self, outputs: Iterable[list[int]], bare: bool) -> Iterator[str]:
        """The text of longer and longer outputs, as far as tokens to come cannot change it."""
        ids: list[int] = []
        said = 0
        for ids in outputs:
            text = self.tokenizer.certain(ids)
            text = text.rstrip().rstrip(FULL) if bare else text  # a space may yet be what follows a last stop
            if len(text) > said:
                yield text[said:]
                said = len(text)
        text = self.tokenizer.decode(ids)
        if rest := (unstopped(text) if bare else text)[said:]:
            yield rest
