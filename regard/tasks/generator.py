"""A language model and its tokenizer, for a person: text in, more text out."""

import hashlib
import math
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import torch
from torch import nn

from regard.core.generation import of_like_length
from regard.core.losses import token_log_probabilities
from regard.data.chat import PICTURE, ChatTemplate, Message
from regard.data.spelling import added, characters, openings, whole
from regard.data.tokenizers import Tokenizer
from regard.data.tools import Calls, Tool
from regard.decoding import pool
from regard.decoding.forms import Form, Forms, Kept
from regard.decoding.protocol import ENDLESS, Hypothesis, Request, SearchConfig, bounded
from regard.decoding.scoring import Forked, continuations
from regard.inspection.axes import END
from regard.inspection.maps import attention_maps, without_special
from regard.inspection.page import AttentionMap, attention_page
from regard.tasks.asks import Completion, Followed, Prompt, ReachError, Score, Writing, short
from regard.tasks.prompted import Prompted
from regard.tasks.searching import Searcher, in_words

SCORED = 4_096  # tokens that are scored at a time
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}  # what a function is given
Streamed = abc.Generator[str, None, Completion]


class Generator(Searcher):
    """A language model and its tokenizer. Several models make an ensemble.

    A text that outgrows the places of a model is gone on with from its last tokens, for which half of the places are
    kept. The settings of each method are the names in `Writing`, `SearchConfig` and `SamplingConfig`.

    >>> generator = load("runs/shakespeare")                   # doctest: +SKIP
    >>> generator.generate("ROMEO:", limit=50, seed=1)         # doctest: +SKIP
    """

    template: str | None = None  # how a conversation is written out, in Jinja
    patches: list[int] | None = None  # what stands for a picture among ids, if it sees any

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        decode: SearchConfig,
        **how: Any,
    ) -> None:
        super().__init__(model, tokenizer, **how)
        self.decode, self.reach = decode, self.places

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
        rows = [self._read(prompt) for prompt in prompts]
        requests = [self._request(ids, prompt, settings) for ids, prompt in zip(rows, prompts, strict=True)]
        found = self._search(requests, settings.search)
        one, done = replace(settings.search, best=1), set[tuple[int, int]]()
        while going := {
            (i, k): request
            for i, outputs in enumerate(found)
            for k, h in enumerate(outputs)
            if not (_ended(h) or (i, k) in done)
            and (request := self._further(rows[i], h.tokens, prompts[i], settings, k)) is not None
        }:
            for (i, k), (more,) in zip(going, self._search(list(going.values()), one), strict=True):
                found[i][k] = _joined(found[i][k], more)
                if not more.tokens:
                    done.add((i, k))
        return [
            [self._completion(ids, prompt, h, settings, _ended(h)) for h in outputs]
            for ids, prompt, outputs in zip(rows, prompts, found, strict=True)
        ]

    def size(self, prompts: Sequence[Prompt], settings: Writing) -> tuple[int, int]:
        """Sub-words of some prompts, and how many are written after them at most; an error where none can be."""
        search, read, written = settings.search, 0, 0
        for prompt in prompts:
            ids = self._read(prompt)
            read += len(ids)
            asked = self._request(ids, prompt, settings)
            room = search.limit or self._bounded(asked, search).room
            written += room * (search.beam if search.sampling is None else search.best)
        return read, written

    def written(self, answer: Sequence[Completion]) -> int:
        """The sub-words of an answer."""
        return sum(len(each.ids) for each in answer)

    def stream(self, prompt: str | Prompt = "", **settings: Any) -> Streamed:
        """What follows a prompt, piece by piece as it becomes certain: together they are `generate(prompt)`."""
        chosen = Writing.of(settings, self.decode)
        if chosen.search.best > 1:
            raise ValueError(f"best = {chosen.search.best}: one output can be streamed")
        coming = Ending(self.streamed(Prompt(prompt) if isinstance(prompt, str) else prompt, chosen))
        yield from filter(None, coming)
        return coming.end

    def streamed(self, prompt: Prompt, settings: Writing, draw: int = 0) -> Streamed:
        """The same of one of the outputs that are drawn; "" where nothing is certain yet, and at last the whole."""
        ids = self._read(prompt)
        request = self._bounded(self._request(ids, prompt, settings), settings.search)
        if settings.echo:
            yield prompt.text
        context, written, said = self._context(ids), list[int](), 0
        begin, kept, end = len(self.tokenizer.decode(context)), list[int](), None
        going: Request | None = replace(request, draw=draw)
        while going is not None and end is None:
            before = len(written)
            for more in pool.stream(self._alone(), going, settings.search, self.eos):
                written += more
                kept = written[: whole(self.tokenizer, written)]
                text = self.tokenizer.certain([*context, *kept])[begin:]
                end = _stopped(text, settings.stop)
                # What may be the beginning of a stop text is not said before it is known not to be.
                safe = end if end is not None else len(text) - max(map(len, settings.stop), default=1) + 1
                yield text[said:safe] if safe > said else ""
                said = max(said, safe)
                if end is not None:
                    break
            ended = len(written) - before < self._bounded(going, settings.search).room
            written = kept
            going = None if ended or len(kept) <= before else self._further(ids, kept, prompt, settings, draw)
        ended = end is None and ended
        found = self._completion(ids, prompt, Hypothesis(kept, math.nan, math.nan, []), settings, ended)
        yield found.text[len(prompt.text) * settings.echo + said :]
        return found

    def conversation(
        self, messages: str | Sequence[Message], tools: Sequence[Tool] = (), called: Sequence[str] = ()
    ) -> Prompt:
        """What the model reads to go on with a conversation: messages with a `role` (system, user, assistant) and a
        `content` each, or what a user says first. It is written out as the model's template has it. `tools` are
        functions that may be called, and one of those that are to be `called` must."""
        if self._chat is None:
            raise ValueError(
                "the model has no chat template: have it go on with a text (`regard generate`, POST /v1/completions), "
                "or put a chat_template.jinja into its directory"
            )
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if self.patches is None and any(isinstance(each.get("content"), list) for each in said):
            raise ValueError("this model reads text alone: leave the pictures out, or ask a model that sees")
        (text, ids), end = self._chat.encode(said, tools), self._chat.end
        if self.patches is not None:
            ids = [i for id in ids for i in (self.patches if id in (PICTURE, self.patches[0]) else [id])]
        if self.memory is not None and len(ids) > self.memory:
            raise ReachError(
                f"the conversation has {len(ids):,} sub-words, the model {self.memory:,} places: leave out its oldest "
                "messages, or shorten them"
            )
        given = {tool["function"]["name"]: tool["function"].get("parameters") or NOTHING for tool in tools}
        form = Form.call({name: given[name] for name in called}, *self._chat.calls) if called else None
        return Prompt(text, "the conversation", ids=tuple(ids), end=None if end == self.eos else end, form=form)

    @property
    def calls(self) -> Calls:
        """How the model calls functions in a conversation."""
        return Calls() if self._chat is None else self._chat.calls

    @property
    def memory(self) -> int | None:
        """Tokens that a conversation has at most: as many as the model has places, or is made for."""
        return self.reach or getattr(self.model.config, "max_length", None)

    @cached_property
    def _chat(self) -> ChatTemplate | None:
        return None if self.template is None else ChatTemplate(self.template, self.tokenizer)

    def chat(self, messages: str | Sequence[Message], **settings: Any) -> str:
        """What the model answers in a conversation."""
        ((found, *_),) = self.answers([self.conversation(messages)], Writing.of(settings, self.decode))
        return found.text

    def stream_chat(self, messages: str | Sequence[Message], **settings: Any) -> Iterator[str]:
        """The same, piece by piece as it becomes certain."""
        return self.stream(self.conversation(messages), **settings)

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

    def followed(self, before: Sequence[int], texts: Sequence[Forked]) -> list[list[list[float]]]:
        """How likely the model holds each token of each way in which each text may go on, all ids (`continuations`)."""
        return continuations(self._alone(), before, texts, rows=1 if self.bitwise else self.rows, tokens=SCORED)

    def prompted(
        self, prompt: str, labels: Sequence[str] | Mapping[str, str], examples: Iterable[Any] = (), **how: bool
    ) -> Prompted:
        """A classifier, which asks this model by a prompt with {text} and {label}, after examples (text, label)."""
        return Prompted(self, prompt, labels, examples, **how)

    def classify(self, text: Any, *, top: int | None = None, **asked: Any) -> Any:
        """What a text is, or each of a list: as `prompted` is asked, with `prompt`, `labels` and perhaps `examples`."""
        return self.prompted(**asked).classify(text, top=top)

    def attention(
        self,
        text: str,
        *,
        names: str | Sequence[str] = "*",
        heads: Sequence[int] | None = None,
        view: str = "weights",
        words: bool = False,
        special: bool = True,
    ) -> list[AttentionMap]:
        """What every head looks at while the model reads a text, and says at each token what comes next.

        Rows are named by what comes next, the last by the end; without `special`, start and end are left out. `words`
        puts sub-words together.
        """
        ids = self.ids(text)
        if not (special or ids[1:]):
            raise ValueError(f"{short(text)}: nothing is predicted but the end: there is no map without special tokens")
        inputs = {"tokens": torch.tensor([ids], device=self.device)}
        start, *rest = self.tokenizer.pieces(ids)
        how: Any = {"names": names, "heads": heads, "view": view, "start": start}
        how["words"] = {"tokens": in_words(self.tokenizer, ids[1:])} if words else None
        maps = attention_maps(self.model, inputs, {"tokens": [*rest, END]}, **how)
        return maps if special else list(map(without_special, maps))

    def attention_page(self, text: str) -> str:
        """A self-contained HTML page of every head while the model reads a text."""
        return attention_page(self.attention(text), title=short(text))

    def ids(self, text: str, place: str = "") -> list[int]:
        """What the model reads of a text: its sub-words, and before them what stands before every document."""
        return self._read(Prompt(text, place))

    def _read(self, prompt: Prompt) -> list[int]:
        (begin, _), bos = self.tokenizer.marks.frame, self.tokenizer.marks.bos
        ids = self.tokenizer.encode(prompt.text) if prompt.ids is None else [*prompt.ids]
        if prompt.ids is None and not self.tokenizer.imported:
            ids = [*begin, *ids]
        if not ids and prompt.ids is None and bos is not None:
            ids = [bos]
        if not ids:
            raise ValueError("an empty prompt, and the tokenizer has no mark of a beginning: give some text")
        if self.reach is not None and len(ids) > self.reach:
            where = prompt.place or short(prompt.text)
            raise ReachError(f"{where} has {len(ids)} sub-words, the model has {self.reach} places: shorten it")
        return ids

    def _context(self, ids: list[int]) -> list[int]:
        """What a text goes on from: all that is read since the last document ended."""
        ends = [n for n, id in enumerate(ids, start=1) if id == self.eos]
        return ids[max(ends, default=0) :]

    def _request(self, ids: list[int], prompt: Prompt, settings: Writing) -> Request:
        seed = 0
        if settings.search.sampling is not None:
            key = f"{settings.seed if prompt.seed is None else prompt.seed} {prompt.text}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
        limit = settings.search.limit
        room = ENDLESS if limit is None else limit
        if self.reach is None and limit is None:
            raise ValueError("this model writes without end: say how much by `limit`")
        ends, rule = self._ends(ids, prompt, settings), self._rule(ids, prompt, settings)
        refusal = characters(self.tokenizer, False) if rule is None else None  # a form is of characters
        return Request(ids[:-1], ids[-1], room, seed=seed, rule=rule, refusal=refusal, ends=ends)

    def _rule(self, ids: list[int], prompt: Prompt, settings: Writing, after: Sequence[int] = ()) -> Kept | None:
        """What holds an output to its form, where it has one."""
        form = prompt.form or settings.form
        if form is None:
            return None
        opening = None if self.tokenizer.decode(self._context(ids)) else openings(self.tokenizer)
        return self._forms.rule(form, prompt.end, opening, after)

    @cached_property
    def _forms(self) -> Forms:
        tokens = self.tokenizer
        return Forms(added(tokens), tokens.silent, self.eos, tokens.encode)

    def _ends(self, ids: list[int], prompt: Prompt, settings: Writing) -> Callable[[Sequence[int]], bool] | None:
        """What tells that an output is done: it certainly has a stop text, or the token that ends it."""
        if not settings.stop and prompt.end is None:
            return None
        tokens, context = self.tokenizer, self._context(ids)
        begin = len(tokens.decode(context))
        # Whether a stop text has just been completed is seen from the last tokens, of which each adds a byte or more;
        # a space at their beginning may be lost.
        last = max((len(stop.encode()) for stop in settings.stop), default=0) + 4
        seen = [stop.lstrip(" ") for stop in settings.stop]

        def ends(written: Sequence[int]) -> bool:
            if written[-1] == prompt.end:
                return True
            if _stopped(tokens.decode(written[-last:]), seen) is None:
                return False
            return _stopped(tokens.certain([*context, *written])[begin:], settings.stop) is not None

        return ends

    def _further(
        self, ids: list[int], written: list[int], prompt: Prompt, settings: Writing, output: int
    ) -> Request | None:
        """The request for what follows an output that only ended because the model has no more places; None: it did
        not, or nothing more is wanted."""
        limit, text = settings.search.limit, [*ids, *written]
        if self.reach is None or limit is None or len(written) >= limit or written[-1:] == [prompt.end]:
            return None
        if settings.stop and _stopped(self.after(ids, written), settings.stop) is not None:
            return None
        last = text[-max(1, self.reach // 2) :]
        asked = self._request(last, replace(prompt, text=f"{prompt.text} {len(written)} {output}"), settings)
        return replace(asked, room=limit - len(written), rule=self._rule(ids, prompt, settings, written))

    def _bounded(self, request: Request, search: SearchConfig) -> Request:
        return bounded(request, search, self.searchable.room(request.source))

    def _completion(self, ids: list[int], prompt: Prompt, h: Hypothesis, settings: Writing, ended: bool) -> Completion:
        text = self.after(ids, h.tokens)
        end = _stopped(text, settings.stop)
        why = "stop" if end is not None or ended or h.tokens[-1:] == [prompt.end] else "length"
        text = text[:end]
        tokens = self.tokenizer.pieces(h.tokens)
        told = None
        if prompt.tell is not None:
            told = self._foretold([*ids, *h.tokens], prompt.tell)[0 if settings.echo else len(ids) :]
        text = prompt.text + text if settings.echo else text
        rule = self._rule(ids, prompt, settings)
        complete = None if rule is None else end is None and rule.complete(h.tokens)
        return Completion(text, tokens, h.score, h.log_probability, h.token_scores, why, ids, h.tokens, told, complete)

    def after(self, ids: list[int], written: list[int]) -> str:
        """What some tokens say after others."""
        context = self._context(ids)
        return self.tokenizer.decode([*context, *written])[len(self.tokenizer.decode(context)) :]

    @torch.inference_mode()
    def _foretold(self, ids: list[int], n: int) -> list[Followed]:
        """How likely each token of a text was held, and the n likeliest in its place."""
        read = torch.tensor([ids], device=self.device)
        each = torch.stack([model(tokens=read)[0, :-1].double().log_softmax(-1) for model in self.models])
        log_p = each.logsumexp(0) - math.log(len(each))  # (T - 1, V)
        best = log_p.topk(min(n, log_p.shape[1]))
        own = log_p.gather(1, read[0, 1:, None])[:, 0].tolist()
        others = [dict(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        return [Followed(ids[0], None, {}), *map(Followed, ids[1:], own, others)]


class Ending:
    """What a stream yields, and then what it returns."""

    end: Completion

    def __init__(self, made: Streamed) -> None:
        self._made = made

    def __iter__(self) -> Iterator[str]:
        self.end = yield from self._made


def _ended(h: Hypothesis) -> bool:
    """Whether the model itself has ended an output."""
    return len(h.token_scores) > len(h.tokens)


def _joined(h: Hypothesis, more: Hypothesis) -> Hypothesis:
    log_p = h.log_probability + more.log_probability
    return Hypothesis([*h.tokens, *more.tokens], h.score + more.score, log_p, [*h.token_scores, *more.token_scores])


def _stopped(text: str, stops: Sequence[str]) -> int | None:
    """Where a text ends that is to end before any of these; None if it has none of them."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=None)
