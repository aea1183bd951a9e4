"""A language model and its tokenizer, for a person: text in, more text out."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, overload

import torch
from torch import nn

from regard.core.generation import of_like_length
from regard.core.losses import token_log_probabilities
from regard.data.spelling import characters
from regard.data.tokenizers import Tokenizer
from regard.decoding.protocol import ENDLESS, Hypothesis, Request, SearchConfig
from regard.inspection.axes import END
from regard.inspection.maps import attention_maps
from regard.inspection.page import AttentionMap, attention_page
from regard.tasks.asks import Completion, Prompt, Score, Writing, short
from regard.tasks.searching import Searcher

SCORED = 4_096  # tokens that are scored at a time


class Generator(Searcher):
    """A language model and its tokenizer. Several models make an ensemble.

    The settings of each method are the names in `Writing`, `SearchConfig` and `SamplingConfig`.

    >>> generator = load("runs/shakespeare")                   # doctest: +SKIP
    >>> generator.generate("ROMEO:", limit=50, seed=1)         # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        decode: SearchConfig,
        *,
        engine: str = "auto",
        workers: int | None = None,
        rows: int = 256,
        bitwise: bool = False,
        shortlists: Any = None,
    ) -> None:
        super().__init__(
            [model] if isinstance(model, nn.Module) else model,
            tokenizer,
            engine=engine,
            workers=workers,
            rows=rows,
            bitwise=bitwise,
            shortlists=shortlists,
            backward=False,
        )
        self.decode = decode
        places: list[int | None] = [cast(Any, each).config.longest for each in self.models]
        self.reach = min((n for n in places if n is not None), default=None)

    @overload
    def generate(self, prompt: str = "", **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], **settings: Any) -> list[str]: ...
    def generate(self, prompt: str | list[str] = "", **settings: Any) -> str | list[str]:
        """What follows a prompt, or each in a list; an empty one is the beginning of a text."""
        found = [each[0].text for each in self._each(prompt, settings)]
        return found[0] if isinstance(prompt, str) else found

    @overload
    def completions(self, prompt: str = "", **settings: Any) -> list[Completion]: ...
    @overload
    def completions(self, prompt: list[str], **settings: Any) -> list[list[Completion]]: ...
    def completions(self, prompt: str | list[str] = "", **settings: Any) -> list[Completion] | list[list[Completion]]:
        """The `best` outputs for a prompt, or for each in a list, with their scores."""
        found = self._each(prompt, settings)
        return found[0] if isinstance(prompt, str) else found

    def _each(self, prompt: str | list[str], settings: Mapping[str, Any]) -> list[list[Completion]]:
        texts = [prompt] if isinstance(prompt, str) else prompt
        return self.answers([Prompt(text) for text in texts], Writing.of(settings, self.decode))

    def answers(self, prompts: Sequence[Prompt], settings: Writing) -> list[list[Completion]]:
        """The outputs for each of some prompts, all at once in memory: what the other methods are made of."""
        ids = [self.ids(prompt.text, prompt.place) for prompt in prompts]
        requests = [self._request(row, prompt, settings) for row, prompt in zip(ids, prompts, strict=True)]
        found = self._search(requests, settings.search)
        return [
            [self._completion(row, prompt, h, settings) for h in outputs]
            for row, prompt, outputs in zip(ids, prompts, found, strict=True)
        ]

    def stream(self, prompt: str | Prompt = "", **settings: Any) -> Iterator[str]:
        """What follows a prompt, piece by piece as it becomes certain: together they are `generate(prompt)`."""
        chosen = Writing.of(settings, self.decode)
        if chosen.search.best > 1:
            raise ValueError(f"best = {chosen.search.best}: one output can be streamed")
        asked = Prompt(prompt) if isinstance(prompt, str) else prompt
        ids = self.ids(asked.text, asked.place)
        if chosen.echo and asked.text:
            yield asked.text
        before, said = self.tokenizer.decode(ids), 0
        written: list[int] = []
        for written in self._streamed(self._request(ids, asked, chosen), chosen.search):
            text = self.tokenizer.certain([*ids, *written])[len(before) :]
            end = _stopped(text, chosen.stop)
            # What may be the beginning of a stop text is not said before it is known not to be.
            safe = end if end is not None else len(text) - max(map(len, chosen.stop), default=1) + 1
            if safe > said:
                yield text[said:safe]
                said = safe
            if end is not None:
                return
        text = self.tokenizer.decode([*ids, *written])[len(before) :]
        end = _stopped(text, chosen.stop)
        if rest := text[said:end]:
            yield rest

    def score(self, texts: Sequence[str]) -> list[Score]:
        """How likely the model holds each text, from its beginning to its end."""
        rows = [[*self.ids(text), self.eos] for text in texts]
        found: list[Score] = [Score(0.0, [], [])] * len(rows)
        for some in of_like_length([len(row) for row in rows], SCORED):
            width = max(len(rows[i]) for i in some)
            read = torch.tensor([[*rows[i], *[0] * (width - len(rows[i]))] for i in some], device=self.device)
            labels = torch.tensor([[*rows[i][1:], *[-100] * (width - len(rows[i]))] for i in some], device=self.device)
            each = torch.stack(
                [token_log_probabilities(model, {"tokens": read[:, :-1]}, labels, ignore=-100) for model in self.models]
            )
            for i, log_p in zip(
                some, (each.double().logsumexp(0) - torch.tensor(len(each)).log()).tolist(), strict=True
            ):
                own = log_p[: len(rows[i]) - 1]
                found[i] = Score(sum(own), [*self.tokenizer.pieces(rows[i][1:-1]), END], own)
        return found

    def attention(
        self, text: str, *, names: str | Sequence[str] = "*", heads: Sequence[int] | None = None, view: str = "weights"
    ) -> list[AttentionMap]:
        """What every head looks at while the model reads a text, and says what comes next."""
        ids = self.ids(text)
        if not ids:
            raise ValueError("there is no map of an empty text: give some")
        inputs = {"tokens": torch.tensor([ids], device=self.device)}
        pieces = {"tokens": self.tokenizer.pieces(ids)}
        return attention_maps(self.model, inputs, pieces, names=names, heads=heads, view=view)

    def attention_page(self, text: str) -> str:
        """A self-contained HTML page of every head while the model reads a text."""
        return attention_page(self.attention(text), title=short(text))

    def ids(self, text: str, place: str = "") -> list[int]:
        """What the model reads of a text: its sub-words, and before them what stands before every document."""
        (begin, _), bos = self.tokenizer.marks.frame, self.tokenizer.marks.bos
        ids = [*([] if self.tokenizer.imported else begin), *self.tokenizer.encode(text)]
        if not ids and bos is not None:
            ids = [bos]
        if not ids:
            raise ValueError("an empty prompt, and the tokenizer has no mark of a beginning: give some text")
        if self.reach is not None and len(ids) > self.reach:
            raise ValueError(
                f"{place or short(text)} has {len(ids)} sub-words, the model has {self.reach} places: shorten it"
            )
        return ids

    def _request(self, ids: list[int], prompt: Prompt, settings: Writing) -> Request:
        seed = 0
        if settings.search.sampling is not None:
            key = f"{settings.seed if prompt.seed is None else prompt.seed} {prompt.text}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
        limit = settings.search.limit
        room = ENDLESS if limit is None else limit
        if self.reach is None and limit is None:
            raise ValueError("this model writes without end: say how much by `limit`")
        return Request(ids[:-1], ids[-1], room, seed=seed, refusal=characters(self.tokenizer, False))

    def _completion(self, ids: list[int], prompt: Prompt, h: Hypothesis, settings: Writing) -> Completion:
        before = self.tokenizer.decode(ids)
        text = self.tokenizer.decode([*ids, *h.tokens])[len(before) :]
        end = _stopped(text, settings.stop)
        why = "stop" if end is not None or len(h.token_scores) > len(h.tokens) else "length"
        text = text[:end]
        tokens = self.tokenizer.pieces(h.tokens)
        whole = prompt.text + text if settings.echo else text
        return Completion(whole, tokens, h.score, h.log_probability, h.token_scores, why, len(ids))


def _stopped(text: str, stops: Sequence[str]) -> int | None:
    """Where a text ends that is to end before any of these; None if it has none of them."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=None)
