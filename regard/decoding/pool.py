"""Many sentences through one search: which are at work together, and who takes the place of those that leave."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import chain
from threading import Event, Lock
from typing import Protocol

import numpy as np
import torch

from regard.checks import at_least
from regard.decoding.beam import Beam, common_beginning, whole
from regard.decoding.constrained import Constrained, check
from regard.decoding.protocol import Awake, Hypothesis, Request, Rows, Searchable, SearchConfig, bounded
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

    def said(self, index: int) -> list[list[int]]:
        """What the outputs of this sentence are, or may go on from."""


FleetKind = Callable[[SearchConfig, int], Fleet]  # the second is eos


def search(
    model: Searchable,
    requests: Sequence[Request],
    config: SearchConfig,
    eos: int,
    *,
    rows: int = 256,
    tokens: int = 8192,
    workers: int = 1,
) -> list[list[Hypothesis]]:
    """For each request its outputs, the best first; an output ends in `eos`.

    Each of the `workers`, which are threads, has at most so many rows and source tokens at work, or one sentence. None
    of the three changes an output, nor does the order of the requests, as far as the model's scores do not hang on
    the company that a sentence has.
    """
    at_least(1, rows=rows, tokens=tokens, workers=workers)
    requests = [_checked(request, i, model, config, eos) for i, request in enumerate(requests)]
    if config.sampling is not None and config.best > rows:  # no draw hangs on another: in rounds, then
        rounds = -(-config.best // rows)
        each = -(-config.best // rounds)
        parts = [replace(request, draw=request.draw + n * each) for request in requests for n in range(rounds)]
        some = replace(config, best=each)
        found = search(model, parts, some, eos, rows=rows, tokens=tokens, workers=workers)
        return [[*chain(*found[i : i + rounds])][: config.best] for i in range(0, len(found), rounds)]
    # Where all scores are needed, they come in another way, which may round otherwise: such sentences stay apart, so
    # that nobody's output hangs on whether there are any.
    queues: dict[tuple[FleetKind, bool], deque[int]] = {}
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
            fleet, state, at_work = kind(config, eos), model.rows(), dict[int, int]()
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
        found = search(model, again, config, eos, rows=rows, tokens=tokens, workers=workers or 1)
        for i, outputs in zip(woken, found, strict=True):
            results[i] = outputs
    return results


def _awake(request: Request) -> Request:
    """For a sentence at which its refusal has woken: a search in which it is awake from the beginning."""
    assert request.refusal is not None, "only such a sentence has no output"
    return replace(request, refusal=Awake(request.refusal))


def stream(model: Searchable, request: Request, config: SearchConfig, eos: int) -> Iterator[list[int]]:
    """The tokens of the best output, as soon as they are certain: what has been said is never taken back.

    Greedy search is certain of each token at once; a beam when all its hypotheses begin alike.
    """
    request = _checked(request, 0, model, config, eos)
    fleet, rows, said = _kind(request, config)(config, eos), model.rows(), 0
    rows.start([request.source])
    fleet.add([(0, request)])
    while True:
        done = fleet.step(rows)
        if done and not done[0][1]:  # up to here, it would have said the same
            request = _awake(request)
            fleet, rows = _kind(request, config)(config, eos), model.rows()
            rows.start([request.source])
            fleet.add([(0, request)])
            continue
        tokens = done[0][1][0].tokens if done else common_beginning(fleet.said(0))
        if len(tokens) > said:
            yield tokens[said:]
            said = len(tokens)
        if done:
            return


def _kind(request: Request, config: SearchConfig) -> FleetKind:
    if config.sampling is not None:
        return Sampling
    if request.required:
        return Constrained
    return Beam


def _checked(request: Request, index: int, model: Searchable, config: SearchConfig, eos: int) -> Request:
    """The request with its room; what cannot be searched for is refused before anything else is."""
    try:
        request = bounded(request, config, model.room(request.source))
        _check(request, model, config, eos)
    except ValueError as error:
        raise ValueError(f"sentence {index}: {error}") from None
    return request


def _check(request: Request, model: Searchable, config: SearchConfig, eos: int) -> None:
    prefix, room = request.prefix, request.room
    if len(prefix) > room:
        raise ValueError(
            f"its prefix has {len(prefix)} tokens, its output may have {room}: shorten the prefix or raise `extra`"
        )
    if eos in prefix:
        raise ValueError(f"its prefix contains the end token {eos}: leave it out")
    if () in request.forbidden:
        raise ValueError("a forbidden phrase is empty, and every output contains it: leave it out")
    if request.required and config.sampling is not None:
        raise ValueError("it has required phrases, which need a beam search: leave `sampling` out")
    if request.required:
        check(request, config, eos)
    if request.rule is not None:
        if request.required or request.forbidden or request.refusal or config.shortest or config.block:
            raise ValueError(
                "it has a rule, which says all that may be written: leave required and forbidden phrases, `shortest` "
                "and `block` out"
            )
        for t in range(len(prefix) + 1):  # without a prefix: whether it can be followed at all
            allowed = request.rule.allowed(request.source, prefix[:t], room - t)
            allowed = np.flatnonzero(allowed).tolist() if isinstance(allowed, np.ndarray) else allowed
            if t < len(prefix) and prefix[t] not in allowed:
                raise ValueError(f"token {prefix[t]} of its prefix breaks its rule")
    phrases = {"prefix": (prefix,), "required": request.required, "forbidden": request.forbidden}
    for name, lists in {"first": ((request.first,),), **phrases}.items():
        for token in (token for phrase in lists for token in phrase):
            if not 0 <= token < model.vocabulary:
                raise ValueError(f"token {token} ({name}) is none of the model's: they are 0 to {model.vocabulary - 1}")
