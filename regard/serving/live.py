"""A model that can be looked at and changed while it works, beside the one that serves others.

Letters: H heads, S source length, T target length, V vocabulary.

A `Look` says at what: the inputs of a model, token by token, and which heads are scaled. The last of them is what the
model writes. Of a translation this is the target: position t reads (<s>, target[0], ...)[t] and predicts target[t]. A
language model has no other, and what stands before it is its own: position t reads tokens[t], predicts tokens[t + 1].
Of a model that reads (`LiveReader`) there is one, of which nothing is predicted.
"""

import copy
import math
import re
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.adaptation import change
from regard.core.added import without
from regard.core.mixers import Tap
from regard.core.quantised import bits_of, dequantise, is_quantised
from regard.data.batching import Batch
from regard.data.sentences import split
from regard.data.spelling import characters, unknown, whole
from regard.decoding.beam import Beam, length_penalty
from regard.decoding.edits import log_soft_max
from regard.decoding.module import Generative, Module
from regard.decoding.protocol import DAMAGED, Awake, Floats, Hypothesis, Request, SearchConfig, best_of, bounded
from regard.inspection.axes import axes, grids, inputs, layer_of
from regard.inspection.importance import head_importance
from regard.inspection.measures import Tokens
from regard.inspection.taps import attentions, edit, record
from regard.inspection.times import apart, over_all
from regard.inspection.views import dots, norm_maps
from regard.models.family import blank
from regard.serving.shown import Shown, examples
from regard.serving.turns import safe_point
from regard.tasks.asks import short

CHARACTERS, TOKENS = 2_000, 512  # of a text; of an input
BEAM, ALTERNATIVES = 16, 64  # at most
FACTOR = 100.0  # by which a head is scaled, at most
BUDGET = 256 * 2**20  # bytes of recorded attention that are kept

Edits = Mapping[str, Mapping[int, float]]
Line = dict[str, Any]


class TooLargeError(ValueError):
    """More was asked for than the explorer looks at."""


class Switched(NamedTuple):
    """How a model is changed while it is looked at."""

    heads: tuple[tuple[str, int, float], ...] = ()  # attention, head, factor
    off: tuple[str, ...] = ()  # what was added to the model and is not to act, by name


AS_IT_IS = Switched()


@dataclass(frozen=True)
class Look:
    """The inputs of a model, in its order, and how it is changed."""

    ids: tuple[tuple[int, ...], ...]
    changes: Switched = AS_IT_IS
    segments: tuple[int, ...] = ()  # of two texts that are read together, in which each token is
    picture: str = ""  # what is seen, by its name: its ids are then those of its places


class Recorded(NamedTuple):
    """What one attention did."""

    weights: Tensor  # (H, T, S), before heads are scaled
    values: Tensor  # (H, S, d_v); where it looks at parts of what is seen, what `norm_maps` makes of them (H, T, S)


def replica(model: nn.Module) -> nn.Module:
    """A model that shares the numbers of another, but not its taps; one of whole numbers or bf16 becomes fp32.

    >>> model = nn.Linear(2, 2)
    >>> replica(model) is not model, replica(model).weight is model.weight
    (True, True)
    """
    if is_quantised(model):
        plain = blank(model.config, getattr(model, "head", None))
        plain = change.changed(plain, change.plain(change.listed(model)))
        whole = model.state_dict(keep_vars=True)
        tied: dict[int, nn.Parameter] = {}  # what had several names has them again
        for name, x in dequantise(whole).items():
            tied.setdefault(id(whole[name]), nn.Parameter(x.detach()))
        plain.load_state_dict({name: tied[id(x)] for name, x in whole.items() if id(x) in tied}, assign=True)
        return plain.eval()
    tensors = list(chain(model.parameters(), model.buffers()))
    shared = tensors if all(x.dtype == torch.float32 for x in tensors if x.is_floating_point()) else []
    copied = copy.deepcopy(model, {id(x): x for x in shared})
    for tap in copied.modules():
        if isinstance(tap, Tap):
            tap.watchers.clear()  # somebody may be looking at the other model at this moment
    return copied.float().eval()


class Live:
    """The model of a predictor, to be looked at: each method may be called from any thread."""

    def __init__(self, predictor: Any, *, budget: int = BUDGET) -> None:
        """`budget`: bytes of recorded attention that are kept for the next question."""
        self.predictor, self.tokenizer = predictor, predictor.tokenizer
        self.model = replica(self._of(predictor))
        self.device = next(self.model.parameters()).device
        self.attentions, self.axes, self.inputs = attentions(self.model), axes(self.model), inputs(self.model)
        self.grids = grids(self.model)
        self.additions = change.additions(self.model)
        self._open()
        for attention in self.attentions.values():
            attention.register_forward_pre_hook(lambda *_: safe_point())
        self._lock = Lock()  # taps have one owner at a time
        self._budget, self._held = budget // 4, OrderedDict[tuple[Look, str], Recorded]()

    @staticmethod
    def _of(predictor: Any) -> nn.Module:
        """The model that is looked at."""
        return cast(nn.Module, predictor.model)

    def _open(self) -> None:
        predictor = self.predictor
        self.eos = predictor.eos
        self._begin = [] if len(self.inputs) == 1 else [predictor.bos]  # before what is written
        reach = math.inf if predictor.reach is None else predictor.reach + 1
        self.longest = int(min(TOKENS, reach))  # tokens of an input, the end included
        self._module = Module(cast(Generative, self.model))

    def look(self, given: Mapping[str, Sequence[int]], edits: Edits, off: Sequence[str] = ()) -> Look:
        """Something to look at, if there is such a thing: the inputs of the model by name."""
        for name in self.inputs:
            if name not in given:
                raise ValueError(f"{name}: it is missing, this model reads {' and '.join(self.inputs)}")
            if not given[name]:
                raise ValueError(f"the {name} is empty: it has at least its end token, {self.eos}")
        for name in given.keys() - {*self.inputs}:
            raise ValueError(f"{name}: this model reads {' and '.join(self.inputs)} alone")
        found = Look(tuple(self._ids(name, given[name]) for name in self.inputs), self._changes(edits, off))
        if not self.steps(found)[1]:
            raise ValueError(f"{self.inputs[-1]} has one token, and none is predicted: give another")
        return found

    def steps(self, look: Look) -> tuple[int | None, tuple[int, ...]]:
        """What the first step of the writing reads, and what each of them predicts; None, and what is read, of a model
        that reads."""
        whole = (*self._begin, *look.ids[-1])
        return whole[0], whole[1:]

    def _ids(self, name: str, ids: Sequence[int]) -> tuple[int, ...]:
        if len(ids) > self.longest:
            raise TooLargeError(f"the {name} has {len(ids)} tokens: at most {self.longest} are looked at")
        config: Any = self.model.config
        size = (name == "source" and config.source_vocabulary) or config.vocabulary
        for i, id in enumerate(ids):
            if not 0 <= id < size:
                raise ValueError(f"{name}[{i}] = {id} is no token: they are 0 to {size - 1}")
            if id == self.eos and (i or self._begin) and i < len(ids) - 1:
                raise ValueError(f"{name}[{i}] is the end token, and {len(ids) - 1 - i} follow: leave them out")
        return tuple(ids)

    def _changes(self, edits: Edits, off: Sequence[str]) -> Switched:
        """In one order, without factors that change nothing: so that what is the same is known to be."""
        for name in off:
            if name not in (known := [each.name for each in self.additions]):
                has = f"it has {', '.join(known)}" if known else "it adds to no other"
                raise ValueError(f"nothing that was added to this model is called {short(name)}: {has}")
        found = []
        for name, heads in edits.items():
            self.check(name, *heads)
            for head, factor in heads.items():
                if not abs(factor) <= FACTOR:  # NaN is not
                    raise ValueError(f"{name} head {head} times {factor}: a factor lies within ±{FACTOR:g}")
                if factor != 1.0:
                    found.append((name, head, float(factor)))
        return Switched(tuple(sorted(found)), tuple(sorted({*off})))

    def check(self, name: str, *heads: int) -> None:
        """Refuse an attention or a head that the model does not have."""
        if name not in self.attentions:
            raise ValueError(f"no attention is named {short(name)}: the model has {', '.join(self.attentions)}")
        for head in heads:
            if not 0 <= head < self.attentions[name].heads:
                raise ValueError(f"{name} has heads 0 to {self.attentions[name].heads - 1}, not {head}")

    def translate(
        self,
        text: str,
        prefix: Sequence[int] = (),
        edits: Edits | None = None,
        beam: int = 1,
        alternatives: int = 8,
        sentence: int = 0,
        pair: str = "",
        off: Sequence[str] = (),
    ) -> Iterator[Line | None]:
        """A translation as lines: the source, each token as it is chosen, and what came of it.

        Of a text in several sentences, each of which the model reads by itself, one is looked at: the `sentence`, from
        0, or the last. The output begins with `prefix`, and is this alone if it ends in the end token. A wider beam
        gives its tokens at the end, and None after each step before: a place to stop.

        What a language model reads is the beginning of its output: the text, or `prefix` in its place.
        """
        self._admit(text)
        if pair:
            raise ValueError("pair: this model reads one text: leave it out")
        self._bound(beam, alternatives)
        decode, begin = self.predictor.decode, self._ids("prefix", prefix)
        as_one = not self._begin or decode.split is False
        sentences = [text.strip()] if as_one else [piece.text for piece in split(text) if piece.text]
        sentence = min(sentence, len(sentences) - 1)
        ids = self.tokenizer.encode(sentences[sentence])
        strange = unknown(self.tokenizer, sentences[sentence], ids)
        about = {"sentences": sentences, "sentence": sentence, "unknown": strange}
        text_only = characters(self.tokenizer)
        awake = None if text_only is None else Awake(text_only)
        config = SearchConfig(beam=beam, alpha=decode.alpha, extra=decode.extra)
        if self._begin:
            source, first, most = self._ids("source", [*ids, self.eos]), self._begin[0], self.longest
        else:
            first, *rest = self._ids("text", self.predictor.ids(text))
            source, begin, most = (), begin or tuple(rest), self.longest - 1
            about["given"] = len(rest)
        room = len(source or begin) + config.extra
        request = bounded(Request(source, first, room, prefix=begin, refusal=awake), config, most)
        if (size := len(begin)) > request.room:
            raise TooLargeError(f"the prefix has {size} tokens, the output at most {request.room}: shorten the prefix")
        return self._translating(request, self._changes(edits or {}, off), config, alternatives, about)

    @staticmethod
    def _admit(text: str, name: str = "text") -> None:
        if len(text) > CHARACTERS:
            raise TooLargeError(f"the {name} has {len(text):,} characters: at most {CHARACTERS:,} are looked at")
        if not text.strip():
            raise ValueError(f"there is no {name}: type a sentence")

    @staticmethod
    def _bound(beam: int, alternatives: int) -> None:
        for name, value, low, high in (("beam", beam, 1, BEAM), ("alternatives", alternatives, 0, ALTERNATIVES)):
            if not low <= value <= high:
                raise ValueError(f"{name} = {value}: it lies between {low} and {high}")

    def _translating(
        self, request: Request, changes: Switched, config: SearchConfig, alternatives: int, about: Line
    ) -> Iterator[Line | None]:
        began = time.perf_counter()
        shown, start = Shown(self.tokenizer), [] if self._begin else [request.first]
        source = () if start else tuple(about.pop("ids", request.source))
        read = shown.all(start) if start else self.shown(self.inputs[0], source)
        yield {"kind": "source", "tokens": read, **about}
        plain = config.beam == 1 and (config.shortest, config.block, config.repetition) == (0, 0, 1.0)
        if plain or request.prefix[-1:] == (self.eos,):
            steps = self._greedy(request, changes)
        else:
            target = yield from self._beam(request, changes, config)
            along = ((*start, *target),) if start else (source, target)
            look = Look(along, changes, picture=about.get("picture", ""))
            steps = iter(zip(self._log_p(look), target, strict=True))
        ids, total = list[int](), 0.0
        for step, (log_p, id) in enumerate(steps):
            said = self._said(shown, log_p, id, alternatives)
            yield {"kind": "token", "step": step, **said, "forced": step < len(request.prefix)}
            ids.append(id)
            total += said["log_p"]
        yield {
            "kind": "done",
            "text": self.decoded([*start, *ids[: whole(self.tokenizer, ids)]]),
            "log_probability": total,
            "score": total / length_penalty(len(ids), config.alpha, config.penalty),
            "cut": ids[-1] != self.eos,
            "milliseconds": round(1000 * (time.perf_counter() - began), 2),
        }

    def shown(self, name: str, ids: Sequence[int]) -> list[Line]:
        """What stands along an input, as a page shows it."""
        return Shown(self.tokenizer).all(ids)

    def _greedy(self, request: Request, changes: Switched) -> Iterator[tuple[Floats, int]]:
        """The log-probabilities (V,) of each step and the token that is chosen."""
        rows, id, written = self._module.rows(), request.first, list[int]()
        with self.turn(changes):
            rows.start([request.source])
        for step in range(request.room):
            with self.turn(changes):
                (log_p,) = log_soft_max(rows.step(np.array([id])))
            possible = log_p.copy()
            possible[[] if request.refusal is None else request.refusal.refused(written)] = -math.inf
            id = request.prefix[step] if step < len(request.prefix) else int(possible.argmax())
            written.append(id)
            yield log_p, id
            if id == self.eos:
                return

    def _beam(
        self, request: Request, changes: Switched, config: SearchConfig
    ) -> Generator[None, None, tuple[int, ...]]:
        """Steps of a beam search, and at last its best output, with its end unless it was cut."""
        fleet, rows = Beam(config, self.eos), self._module.rows()
        with self.turn(changes):
            rows.start([request.source])
        fleet.add([(0, request)])
        done: list[tuple[int, list[Hypothesis]]] = []
        while not done:
            with self.turn(changes):
                done = fleet.step(rows)
            yield
        best = done[0][1][0]
        return (*best.tokens, *[self.eos] * (len(best.token_scores) - len(best.tokens)))

    def score(self, look: Look, alternatives: int = 8) -> dict[str, Any]:
        """How likely the model holds each token of a given target."""
        if not 0 <= alternatives <= ALTERNATIVES:
            raise ValueError(f"alternatives = {alternatives}: it lies between 0 and {ALTERNATIVES}")
        shown, (first, predicted) = Shown(self.tokenizer), self.steps(look)
        shown.all([] if first is None else [first])
        steps = zip(self._log_p(look), predicted, strict=True)
        tokens = [self._said(shown, *each, alternatives) for each in steps]
        return {"tokens": tokens, "log_probability": math.fsum(token["log_p"] for token in tokens)}

    def _said(self, shown: Shown, log_p: Floats, id: int, alternatives: int) -> Line:
        """A token that was chosen where the log-probabilities were these (V,), and what else it might have been."""
        best = best_of(log_p[None], max(1, alternatives), normalise=False)
        others = shown.possible(best.tokens[0, :alternatives].tolist())
        return {
            **shown.all([id])[0],
            "log_p": float(log_p[id]),
            "alternatives": [
                {**other, "p": math.exp(value)}
                for other, value in zip(others, best.scores[0].tolist(), strict=False)  # none, if none is asked for
            ],
        }

    def _log_p(self, look: Look) -> Floats:
        """The log-probabilities (T, V) at each position of a given target."""
        with self.turn(look.changes):
            return log_soft_max(self.run(look)[0].float().cpu().numpy())

    @torch.inference_mode()
    def run(self, look: Look) -> Tensor:
        """One pass -> logits (1, T, V), all of them numbers."""
        logits = self.model(**self.batch(look).inputs)
        if not all(end.isfinite() for end in logits.aminmax()):
            raise ValueError(DAMAGED)
        return logits

    def batch(self, look: Look) -> Batch:
        """One row, where the model is."""
        first, predicted = self.steps(look)
        rows = {**dict(zip(self.inputs, look.ids, strict=True)), self.inputs[-1]: (first, *predicted[:-1])}
        both = (*rows.items(), ("labels", predicted))
        return Batch({name: torch.tensor([ids], device=self.device) for name, ids in both}, len(predicted))

    @contextmanager
    def turn(self, changes: Switched) -> Iterator[None]:
        """The model to oneself, changed: for a step at a time, since others wait for theirs."""
        with self._lock, changed(self.model, changes):
            yield

    @contextmanager
    def apart(self, changes: Switched) -> Iterator[nn.Module]:
        """A replica that is changed, for work that takes long: nobody waits for it."""
        with self._lock:  # nobody watches a tap now
            model = replica(self.model)
        with changed(model, changes):
            yield model

    def recorded(self, look: Look, names: Iterable[str]) -> Iterator[tuple[str, Recorded]]:
        """What attentions did. One pass records them all, or, where that is more than is kept, one at a time."""
        at_once = self.size(look) <= self._budget
        for name in names:
            safe_point()
            with self._lock:
                if (look, name) not in self._held:
                    self._hold(look, list(self.attentions) if at_once else [name])
                self._held.move_to_end((look, name))  # the newest now
                found = self._held[look, name]
                held = sum(self.size(*key) for key in self._held)
                while held > self._budget and len(self._held) > 1:
                    held -= self.size(*self._held.popitem(last=False)[0])
            yield name, found

    def _hold(self, look: Look, names: list[str]) -> None:
        with record(self.model, names, what=("weights", "values")) as seen, changed(self.model, look.changes):
            self.run(look)
            if apart(self.model):
                for name in names:
                    both = seen[name], norm_maps(self.attentions[name], seen[name], seen.values[name])
                    self._held[look, name] = Recorded(*(over_all(self.model, name, x)[0].float().cpu() for x in both))
                return
        for name in names:
            T, S = self.lengths(look, name)  # what was taught may stand before the tokens, and is none
            if not self.additions and seen[name].shape[-2:] != (T, S):
                raise ValueError(f"{name} does not look from {T} places at {S}, but at parts of them: it is not shown")
            weights, values = seen[name][0][:, -T:, -S:], seen.values[name][0][:, -S:]
            self._held[look, name] = Recorded(weights.float().cpu(), values.float().cpu())

    def lengths(self, look: Look, name: str) -> tuple[int, int]:
        """How many tokens stand along both sides of an attention's maps."""
        whole = dict(zip(self.inputs, map(len, look.ids), strict=True))
        whole[self.inputs[-1]] = len(self.steps(look)[1])
        return whole[self.axes[name].queries.input], whole[self.axes[name].keys.input]

    def size(self, look: Look, *names: str) -> int:
        """How many numbers are recorded of some attentions, or of all."""
        laid = [(self.attentions[name], *self.lengths(look, name)) for name in names or self.attentions]
        return sum(a.heads * S * (T + a.d_v) for a, T, S in laid)

    @cached_property
    def marks(self) -> Tokens:
        """What measures must know of the tokens."""
        return Tokens.of(self.tokenizer.marks, self.tokenizer.pieces(range(len(self.tokenizer))))

    def importance(self, look: Look) -> Mapping[str, Tensor]:
        """How much each head's part in this matters, (H,) by name: to how likely the model holds what it writes."""
        with self.apart(look.changes) as model:
            return head_importance(model, [self.batch(look)], pad=self.marks.pad)

    def decoded(self, ids: Iterable[int]) -> str:
        """The text of some tokens, whatever marks are among them."""
        return self.tokenizer.decode([id for id in ids if id not in self.tokenizer.silent])

    def examples(self, task: str, language: str) -> list[Any]:
        """Texts to try."""
        kind = self.tokenizer.kind if self._begin else "beginnings"
        return examples("en" if task == "denoise" else language, kind)

    def about(self) -> dict[str, Any]:
        """The shape of the model, for a page."""
        config: Any = self.model.config
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "d_model": config.d_model,
            "inputs": self.inputs,
            "attentions": [
                {
                    "name": name,
                    "kind": self.axes[name].kind,
                    "queries": self.axes[name].queries._asdict(),
                    "keys": self.axes[name].keys._asdict(),
                    "causal": self.axes[name].causal,
                    "role": self.axes[name].role,
                    "layer": layer_of(name),
                    "heads": a.heads,
                    "dots": dots(a) and not apart(self.model),
                }
                for name, a in self.attentions.items()
            ],
            "changes": [
                {**each._asdict(), "parts": [self._part(*part) for part in change.amounts(self.model, each.name)]}
                for each in self.additions
            ],
            "new_head": getattr(getattr(self.model, "base", None), "head", False),
            **self._manner(),
            "note": f"int{bits} weights, shown as fp32" if (bits := bits_of(self.predictor.model)) else "",
        }

    @staticmethod
    def _part(path: str, role: str, amount: float | None) -> dict[str, Any]:
        """What a change has changed: in which stack and layer, and which block of that it is in."""
        place, layer, block = re.sub(r"\.sublayer\b", "", path), None, ""
        if found := re.fullmatch(r"(.+?)\.layers\.(\d+)\.?(.*)", place):
            place, layer, block = found[1], int(found[2]), found[3].partition(".")[0]
        return {"place": place, "layer": layer, "block": block, "role": role, "amount": amount}

    def _manner(self) -> dict[str, Any]:
        """What is particular to a model that writes."""
        config: Any = self.model.config
        sides = ("encoder", "decoder")[not self._begin :]
        alone = None if self._begin else getattr(config, "layers", None)
        layers = {side: getattr(config, f"{side}_layers", alone) for side in sides}
        return {"layers": layers, "reads": False, "second": "", "beam": self.predictor.decode.beam}


@contextmanager
def changed(model: nn.Module, changes: Switched) -> Iterator[None]:
    """Inside the block, a model is changed: what its heads say, not whereto they look; and what was added to it."""
    factors: dict[str, dict[int, float]] = {}
    for name, head, factor in changes.heads:
        factors.setdefault(name, {})[head] = factor
    scaled = edit(model, factors, what="outputs") if factors else nullcontext()
    with scaled, without(model, *changes.off) if changes.off else nullcontext():
        yield
