"""Preference: a language model is steered towards answers that were chosen over others (DPO and its kin).

What the model that is begun with says of all answers, the reference, is found once, before the first step, and kept
beside the token arrays: no second model is in memory while it learns.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import above, at_least, choose, share
from regard.core.added import new, without
from regard.core.generation import of_like_length
from regard.core.losses import token_log_probabilities
from regard.data.arrays import Column, Table
from regard.data.batching import Batch, Ints
from regard.data.chat import ChatTemplate
from regard.data.dialogues import PreferenceFiles, words
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.decoding.protocol import SamplingConfig
from regard.tasks.asks import Writing
from regard.tasks.classify import Evaluation
from regard.tasks.converse import ConversationConfig, Templated, answered
from regard.tasks.generate import WriteConfig
from regard.tasks.generator import Generator
from regard.tasks.task import Cut, Evidence, Measured, Sections
from regard.training.objectives import ALONE, IGNORE, IMITATE, PREFERENCES, Likelier, Objective, Pairs, answers
from regard.training.stream import Collate

TOKENS = 4_096  # of pairs that are looked at together
REFERENCE = {"reference": Column("float32", ragged=False)}
DRAWN, LONG = 16, 48  # answers of the reference by which it is told how far a model has gone from it; tokens of each


@dataclass(frozen=True)
class PreferConfig:
    """What a model is for."""

    name: str = "prefer"
    template: str | None = None  # chatml, plain, or a .jinja; left out: that of the model it begins with, else chatml
    loss: str = (
        "dpo"  # robust, hinge, ipo, exo, nca, bco, sppo, kto, apo-zero, apo-down; no reference: cpo, simpo, orpo
    )
    beta: float = 0.1  # how much a preference counts against staying near the reference
    gamma: float = 0.5  # of simpo: by how much the chosen answer is to lead
    smoothing: float = 0.0  # share of pairs that may be the wrong way round: of dpo, robust, exo, cpo, simpo
    imitate: float | None = (
        None  # so much of the loss of the chosen answers is added; left out: 1 for cpo, orpo, else 0
    )

    def __post_init__(self) -> None:
        choose("task.loss", self.loss, PREFERENCES)
        above(0, **{"task.beta": self.beta})
        at_least(0, **{"task.gamma": self.gamma, "task.imitate": self.imitate})
        share(whole=False, **{"task.smoothing": self.smoothing})
        if self.loss == "robust" and self.smoothing >= 0.5:
            raise ValueError(f"task.smoothing = {self.smoothing}: of robust it lies below 0.5")
        if self.loss == "exo" and not self.smoothing:
            raise ValueError("task.smoothing = 0.0: exo needs more, such as 0.001")


@dataclass(frozen=True)
class PreferenceConfig(ConversationConfig):
    """Where pairs of answers come from."""

    train: PreferenceFiles | None = None  # your own files
    valid: PreferenceFiles | None = None  # held out of train if left out
    test: PreferenceFiles | None = None  # held out of train if left out
    max_length: int = 512  # tokens of a prompt and an answer; longer answers are cut, and counted


def both(row: Row, template: ChatTemplate, longest: int) -> tuple[Any, ...] | None:
    """The chosen and the rejected answer of a pair, each after the prompt, as ids cut to so many; where they begin.

    None if the prompt leaves no room, or what is left is the same."""
    found, begins = [], []
    for name in ("chosen", "rejected"):
        try:
            ids, spans = template.answered([*row["messages"], {"role": "assistant", "content": row[name]}])
        except ValueError as error:
            raise ValueError(f"{row['where']}: {error}") from None
        found.append(ids[: spans[-1][1]])
        begins.append(spans[-1][0])
    read = [ids[:longest] for ids in found]
    if any(len(ids) <= begin for ids, begin in zip(read, begins, strict=True)) or read[0] == read[1]:
        return None
    return (Cut if read != found else tuple)((*read, begins))


@dataclass(frozen=True)
class Prefer(Templated):
    """Messages in, an answer out that people would choose."""

    loss: str = "dpo"
    beta: float = 0.1
    gamma: float = 0.5
    smoothing: float = 0.0
    imitate: float | None = None

    name, called = "prefer", "conversation"
    sections = Sections(PreferConfig, PreferenceConfig, WriteConfig, Evaluation)
    row, rows = "pair", "pairs"
    by_rows = True

    def check(self, recipe: Any) -> None:
        super().check(recipe)
        if recipe.model.base is None and self.loss not in ALONE:
            raise ValueError(f"task.loss = {self.loss} asks a reference: say by model.from which model it begins with")

    def prepared_by(self) -> list[Any]:
        return [self.name, self.longest, self.chat]

    def texts(self, row: Row) -> Sequence[str]:
        return [words(row["messages"]), row["chosen"], row["rejected"]]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        ids = Column.ids(vocabulary)
        return {"chosen": ids, "rejected": ids, "begins": Column("uint32", ragged=False)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        template = ChatTemplate(self.chat, tokenizer)
        return (both(row, template, self.longest) for row in rows)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 for conversations")
        return lambda rows, draw: paired(rows)

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        imitate = IMITATE.get(self.loss, 0.0) if self.imitate is None else self.imitate
        return Likelier(model, self.loss, self.beta, self.gamma, self.smoothing, imitate)

    def recalled(
        self, model: nn.Module, corpus: Table, tokenizer: Tokenizer, held_out: Sequence[Sequence[Row]]
    ) -> "Recalled":
        """With log p of both answers of each pair; held-out ones, too, and of some what the reference would answer."""
        added = new(model.eval())
        with without(model, *added) if added else nullcontext():
            return self._asked(model, corpus, tokenizer, held_out)

    def _asked(
        self, model: nn.Module, corpus: Table, tokenizer: Tokenizer, held_out: Sequence[Sequence[Row]]
    ) -> "Recalled":
        digest, folder = fingerprint(model, of_base=True), corpus.directory.parent
        lengths = corpus.lengths(np.arange(len(corpus))).max(axis=1).tolist()
        said = ([pair] for pair in _said(model, lengths, corpus.rows))
        told = Table.build(folder / f"reference-{digest}", said, REFERENCE)
        for rows in held_out:
            examples = list(self.examples(rows, tokenizer))
            name = hashlib.sha256(f"{digest} {examples}".encode()).hexdigest()[:24]
            own = self._noted(model, tokenizer, rows, examples)
            columns = REFERENCE | {"drawn": Column.ids(len(tokenizer)), "log_p": Column("float32")}
            table = Table.build(folder / f"held-out-{name}", own, columns)
            for row, (reference, drawn, log_p) in zip(rows, table.rows(np.arange(len(rows))), strict=True):
                row["reference"] = reference
                if len(drawn):
                    row["drawn"] = drawn, log_p
        return Recalled(corpus, told)

    def _noted(
        self, model: nn.Module, tokenizer: Tokenizer, rows: Sequence[Row], examples: Sequence[Any]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Of each row what the reference says of its answers; an answer that it would give, and log p of its tokens."""
        read = [i for i, each in enumerate(examples) if each is not None]
        lengths = [max(map(len, examples[i][:2])) for i in read]
        said = dict(zip(read, _said(model, lengths, lambda some: [examples[read[i]] for i in some]), strict=True))
        generator = self.open([model], tokenizer, WriteConfig())
        prompts = {i: generator.conversation(rows[i]["messages"]) for i in read[:DRAWN]}
        prompts = {i: prompt for i, prompt in prompts.items() if len(prompt.ids or ()) + LONG <= self.longest}
        chance = Writing(WriteConfig(limit=LONG, sampling=SamplingConfig()))
        found = dict(zip(prompts, generator.answers(list(prompts.values()), chance), strict=True)) if prompts else {}
        for i in range(len(rows)):
            drawn = [*(prompts[i].ids or ()), *found[i][0].ids] if i in found and found[i][0].ids else []
            yield said.get(i, []), drawn, _each(model, drawn, len(found[i][0].ids)) if drawn else []

    def measure(self, predictor: Generator, held_out: Sequence[Row], recipe: Any) -> Measured:
        """How often and by how much the chosen answer is preferred, and how far the model has gone from the reference.

        Of the tokens that the reference has drawn, with r = p / p_ref: the mean of r - 1 - log r is KL(reference, p).
        """
        examples = zip(held_out, self.examples(held_out, predictor.tokenizer), strict=True)
        rows = [(*each, row.get("reference", (0.0, 0.0))) for row, each in examples if each is not None]
        if not rows:
            raise ValueError(f"no held-out answer begins within data.max_length = {self.longest} tokens: raise it")
        objective: Any = self.objective(predictor.model, 0.0, predictor.tokenizer)
        found, batches = dict[str, NDArray[np.float64]](), of_like_length([max(map(len, r[:2])) for r in rows], TOKENS)
        for some in batches:
            batch = paired([rows[i] for i in some])
            with torch.inference_mode():
                pairs = answers(predictor.model, **batch.to(predictor.device).tensors)
                chosen, rejected = self.rewards(pairs)
                each = {"loss": objective.of(pairs, *objective.how) - objective.imitate * pairs.means[0]}
            each |= {"accuracy": (chosen > rejected).float(), "margin": chosen - rejected}
            each |= {"likelier": (pairs.chosen > pairs.rejected).float()}
            for name, x in each.items():
                found.setdefault(name, np.zeros(len(rows)))[some] = x.double().cpu().numpy()
        drawn = [row["drawn"] for row in held_out if "drawn" in row]
        ratios = [_each(predictor.model, ids, len(log_p)) - log_p for ids, log_p in drawn]
        gone = np.concatenate([np.expm1(x) - x for x in ratios]) if ratios else None

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            told = {name: float(x[some].mean()) for name, x in found.items()}
            return told | ({} if gone is None else {"kl": float(gone.mean())})

        return Measured.of(Evidence(len(rows), figures), "loss", answered(predictor, held_out))

    def rewards(self, p: Pairs) -> tuple[Tensor, Tensor]:
        """By what the loss ranks the two answers."""
        chosen, rejected = p.gains if self.loss not in ALONE else p.means if self.loss != "cpo" else p[:2]
        return self.beta * chosen, self.beta * rejected


class Recalled:
    """The rows of a table, each with what the reference has said of it."""

    def __init__(self, table: Table, told: Table) -> None:
        self.table, self.told, self.marks = table, told, table.marks

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, indices: Ints) -> Ints:
        return self.table.lengths(indices)

    def rows(self, indices: Ints) -> list[Any]:
        return [(*row, *told) for row, told in zip(self.table.rows(indices), self.told.rows(indices), strict=True)]


def paired(rows: Sequence[Sequence[Any]]) -> Batch:
    """A batch of pairs, (B, 2, T) of each: `tokens`, `labels` of the answers; `reference` (B, 2), if it is known.

    >>> batch = paired([([5, 6, 7], [5, 8], [2, 1], [-1.5, -2.0])])
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["reference"].tolist()
    ([[[5, 6], [5, 0]]], [[[-100, 7], [8, -100]]], [[-1.5, -2.0]])
    """
    width = max(len(ids) for row in rows for ids in row[:2]) - 1
    shape = (len(rows), 2, width)
    tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
    reference = np.zeros((len(rows), 2), np.float32)
    for row, (chosen, rejected, begins, *told) in enumerate(rows):
        for side, ids in enumerate((chosen, rejected)):
            n, begin = len(ids) - 1, max(1, int(begins[side]))
            tokens[row, side, :n], labels[row, side, begin - 1 : n] = ids[:-1], ids[begin:]
        reference[row] = told[0] if told else 0.0
    tensors = {"tokens": tokens, "labels": labels, "reference": reference}
    return Batch({name: torch.from_numpy(x) for name, x in tensors.items()}, len(rows))


def fingerprint(model: nn.Module, *, of_base: bool = False) -> str:
    """The same for the same model, wherever it lies; or for all that add to one, that one's."""
    found, base = hashlib.sha256(repr(getattr(model, "config", "")).encode()), getattr(model, "base", None)
    apart = base.own if of_base and base is not None else ()
    for name, tensor in ((name, x) for name, x in model.state_dict().items() if name not in apart):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:24]


@torch.inference_mode()
def _said(model: nn.Module, lengths: Sequence[int], rows: Callable[[Any], Sequence[Any]]) -> Iterator[list[float]]:
    """log p of both answers of each pair."""
    found = np.zeros((len(lengths), 2), np.float32)
    for some in of_like_length([2 * n for n in lengths], TOKENS):
        pairs = answers(model, **paired(rows(some)).to(next(model.parameters()).device).tensors)
        found[some] = torch.stack(pairs[:2], 1).cpu().numpy()
    yield from found.tolist()


@torch.inference_mode()
def _each(model: nn.Module, ids: Sequence[int], last: int) -> NDArray[np.float64]:
    """log p of each of the last tokens."""
    read = torch.tensor([[*map(int, ids)]], device=next(model.parameters()).device)
    labels = read[:, 1:].clone()
    labels[:, :-last] = IGNORE
    found = token_log_probabilities(model, {"tokens": read[:, :-1]}, labels, ignore=IGNORE)
    return found[0, -last:].double().cpu().numpy()


TASK = Prefer
