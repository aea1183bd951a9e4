"""Many sentences through one search: which are at work together, and who takes the place of those that leave."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import chain
from threading import Event, Lock
from typing import Protocol

import torch

from regard.decoding.beam import Beam, maximum, whole
from regard.decoding.constrained import Constrained, check
from regard.decoding.protocol import Awake, Hypothesis, Request, Rows, Searchable, SearchConfig, Special
from regard.decoding.sampling import Sampling


class Fleet(Protocol):
    """Sentences under one kind of search, side by side over one `Rows`."""

    width: int  # rows that a sentence comes to need

    def __len__(self) -> int:
        """Rows at work."""

    def add(self, indexed: list[tuple[int, Request]]) -> None:
        """Sentences that were just started, one row each, after those at work."""

    def step(self, rows: Rows) -> list[tuple[int, list[Hypothesis]]]:
        """One token for every row -> the sentences that are done, by index, with their outputs."""

    def settled(self, index: int) -> list[int]:
        """The tokens with which all outputs of this sentence are already known to begin."""


class Kind(Protocol):
    """What makes a fleet."""

    def __call__(self, config: SearchConfig, special: Special, longest: int | None, /) -> Fleet: ...


def search(
    model: Searchable,
    requests: Sequence[Request],
    config: SearchConfig,
    special: Special,
    *,
    rows: int = 256,
    tokens: int = 8192,
    workers: int = 1,
) -> list[list[Hypothesis]]:
    """For each request its outputs, the best first.

    Each of the `workers`, which are threads, has at most so many rows and source tokens at work, or one sentence. None
    of the three changes an output, nor does the order of the requests, as far as the model's scores do not hang on
    the company that a sentence has.
    """
    for name, value in (("rows", rows), ("tokens", tokens), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{name} = {value}: it must be at least 1")
    for i, request in enumerate(requests):
        _check(request, i, model, config, special)
    if config.sampling is not None and config.best > rows:  # no draw hangs on another: in rounds, then
        rounds = -(-config.best // rows)
        each = -(-config.best // rounds)
        parts = [replace(request, draw=request.draw + n * each) for request in requests for n in range(rounds)]
        some = replace(config, best=each)
        found = search(model, parts, some, special, rows=rows, tokens=tokens, workers=workers)
        return [[*chain(*found[i : i + rounds])][: config.best] for i in range(0, len(found), rounds)]
    # Where all scores are needed, they come in another way, which may round otherwise: such sentences stay apart, so
    # that nobody's output hangs on whether there are any.
    queues: dict[tuple[Kind, bool], deque[int]] = {}
    for i in sorted(range(len(requests)), key=lambda i: -len(requests[i].source)):
        queues.setdefault((_kind(requests[i], config), whole(config, requests[i])), deque()).append(i)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    workers = min(workers, len(requests))
    lock, stop = Lock(), Event()

    def draw(queue: deque[int], room: int, tokens: int, alone: bool) -> list[int]:
        """The next sentences that fit, but leave the other workers their share."""
        taken: list[int] = []
        with lock:
            share = -(-len(queue) // workers)
            while queue and len(taken) < share:
                room, tokens = room - 1, tokens - len(requests[queue[0]].source)
                if min(room, tokens) < 0 and not (alone and not taken):
                    break
                taken.append(queue.popleft())
        return taken

    def work() -> None:
        for (kind, _), queue in queues.items():
            fleet, state, at_work = kind(config, special, model.longest), model.rows(), dict[int, int]()
            places = max(1, rows // fleet.width)
            while not stop.is_set():
                room, free = places - len(at_work), tokens - sum(at_work.values())
                # Those who start together make one batch where rows are not ragged, and a small one is not worth it.
                worth = model.ragged or not at_work or (2 * room >= places and 2 * free >= tokens)
                if worth and (new := draw(queue, room, free, not at_work)):
                    state.start([requests[i].source for i in new])
                    fleet.add([(i, requests[i]) for i in new])
                    at_work.update((i, len(requests[i].source)) for i in new)
                if not at_work:
                    break
                for i, outputs in fleet.step(state):
                    results[i] = outputs
                    del at_work[i]

    if workers <= 1:
        work()
    else:
        cores = torch.get_num_threads()
        with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(max(1, cores // workers))) as pool:
            try:
                for future in as_completed([pool.submit(work) for _ in range(workers)]):
                    future.result()
            finally:  # the others need not go on after an error
                stop.set()
                torch.set_num_threads(cores)
    if woken := [i for i, outputs in enumerate(results) if not outputs]:
        again = [_awake(requests[i]) for i in woken]
        found = search(model, again, config, special, rows=rows, tokens=tokens, workers=workers or 1)
        for i, outputs in zip(woken, found, strict=True):
            results[i] = outputs
    return results


def _awake(request: Request) -> Request:
    """For a sentence at which its refusal has woken: a search in which it is awake from the beginning."""
    assert request.refusal is not None, "only such a sentence has no output"
    return replace(request, refusal=Awake(request.refusal))


def stream(model: Searchable, request: Request, config: SearchConfig, special: Special) -> Iterator[list[int]]:
    """The tokens of the best output, as soon as they are certain: what has been said is never taken back.

    Greedy search is certain of each token at once; a beam when all its hypotheses begin alike.
    """
    _check(request, 0, model, config, special)
    fleet, rows, said = _kind(request, config)(config, special, model.longest), model.rows(), 0
    rows.start([request.source])
    fleet.add([(0, request)])
    while True:
        done = fleet.step(rows)
        if done and not done[0][1]:  # up to here, it would have said the same
            request = _awake(request)
            fleet, rows = _kind(request, config)(config, special, model.longest), model.rows()
            rows.start([request.source])
            fleet.add([(0, request)])
            continue
        tokens = done[0][1][0].tokens if done else fleet.settled(0)
        if len(tokens) > said:
            yield tokens[said:]
            said = len(tokens)
        if done:
            return


def _kind(request: Request, config: SearchConfig) -> Kind:
    if config.sampling is not None:
        return Sampling
    if request.required:
        return Constrained
    return Beam


def _check(request: Request, index: int, model: Searchable, config: SearchConfig, special: Special) -> None:
    """Refuse what cannot be searched for, before anything else is."""
    if not len(request.source):
        raise ValueError(f"sentence {index} is empty: give it at least its end token")
    if model.longest is not None and len(request.source) > model.longest:
        raise ValueError(
            f"sentence {index} has {len(request.source)} tokens, the model reads {model.longest} at most: split it"
        )
    limit = maximum(request, config, model.longest)
    if len(request.prefix) > limit:
        raise ValueError(
            f"the prefix of sentence {index} has {len(request.prefix)} tokens, its output may have {limit}: shorten "
            "the prefix or raise `extra`"
        )
    if special.eos in request.prefix:
        raise ValueError(f"the prefix of sentence {index} contains the end token {special.eos}: leave it out")
    if () in request.forbidden:
        raise ValueError(f"a forbidden phrase of sentence {index} is empty, and every output contains it: leave it out")
    if request.required and config.sampling is not None:
        raise ValueError(f"sentence {index} has required phrases, which need a beam search: leave `sampling` out")
    if request.required:
        check(request, config, special, limit)
    if request.rule is not None:
        if request.required or request.forbidden or request.refusal or config.shortest or config.block:
            raise ValueError(
                f"sentence {index} has a rule, which says all that may be written: leave required and forbidden "
                "phrases, `shortest` and `block` out"
            )
        for t in range(len(request.prefix) + 1):  # without a prefix: whether it can be followed at all
            try:
                allowed = request.rule.allowed(request.source, request.prefix[:t], limit - t)
            except ValueError as error:
                raise ValueError(f"sentence {index}: {error}") from None
            if t < len(request.prefix) and request.prefix[t] not in allowed:
                raise ValueError(f"token {request.prefix[t]} of the prefix of sentence {index} breaks its rule")
    phrases = {"prefix": (request.prefix,), "required": request.required, "forbidden": request.forbidden}
    for name, lists in phrases.items():
        for token in (token for phrase in lists for token in phrase):
            if not 0 <= token < model.vocabulary:
                raise ValueError(
                    f"token {token} ({name}, sentence {index}) is none of the model's: they are 0 to "
                    f"{model.vocabulary - 1}"
                )
