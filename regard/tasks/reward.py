"""Reward: a text, or an answer to a prompt, in; one number out, the larger the better; learnt of pairs of answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from regard.checks import at_least, one_of, share
from regard.core.generation import DecoderOnly
from regard.core.outputs import POOLS, HeadConfig
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.chat import MARKED, ChatTemplate, with_marks
from regard.data.dialogues import words
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.tasks.classify import SHOWN, Evaluation, shortened
from regard.tasks.converse import check_marks, template_of
from regard.tasks.prefer import PreferenceConfig, both
from regard.tasks.reader import Framed, Given, Reader, batched, check_length
from regard.tasks.task import Evidence, Measured, Sections, Task
from regard.tasks.uses import RewardUse
from regard.training.objectives import Objective, Preferred
from regard.training.run import Sample
from regard.training.stream import Collate

SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class RewardConfig:
    """What a model is for."""

    name: str = "reward"
    template: str | None = None  # chatml, plain, or a .jinja; left out: that of the model it begins with, else none
    pool: str | None = None  # what stands for a text: first, last, mean, max; left out: as the model is made
    dropout: float = 0.0  # before the number
    centre: float = 0.0  # so much of the square of the two rewards' sum is added: keeps them around zero

    def __post_init__(self) -> None:
        one_of(POOLS, **{"task.pool": self.pool})
        share(whole=False, **{"task.dropout": self.dropout})
        at_least(0, **{"task.centre": self.centre})


@dataclass(frozen=True)
class Rewarded:
    """What an answer is worth."""

    value: float
    windows: int = 1  # in which it was read


class Rewarder(Reader):
    """A model that tells how good an answer is, and its tokenizer.

    >>> rewarder = load("runs/reward")                        # doctest: +SKIP
    >>> rewarder.reward("You are welcome.", "Thank you!")     # doctest: +SKIP
    1.7
    """

    template: str | None = None  # how a conversation is written out, in Jinja; None: a prompt and an answer are a pair

    @property
    def pairs(self) -> bool:
        """Whether a prompt and its answer are read as a pair."""
        return self.template is None

    @overload
    def reward(self, text: str, prompt: Any = None, **settings: Any) -> float: ...
    @overload
    def reward(self, text: Sequence[str], prompt: Any = None, **settings: Any) -> list[float]: ...
    def reward(self, text: Any, prompt: Any = None, **settings: Any) -> Any:
        """How good an answer is, or each of a list, to a prompt: a text, or messages."""
        chosen, one = replace(self.use, **settings), isinstance(text, str)
        found = [
            each.value for each in self.answers([self.given(x, prompt) for x in ([text] if one else text)], chosen)
        ]
        return found[0] if one else found

    def given(self, answer: str, prompt: Any = None) -> Given:
        """An answer as it is read."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*(prompt or ())]
        if self.template is None:
            return Given(words(messages), answer) if messages else Given(answer)
        ids, spans = self._chat.answered([*messages, {"role": "assistant", "content": answer}])
        return Given(answer, ids=tuple(ids[: spans[-1][1]]))

    @cached_property
    def _chat(self) -> ChatTemplate:
        return ChatTemplate(self.template or "", self.tokenizer)

    def framed(self, asks: Sequence[Given], room: int = 0, long: str = "windows") -> list[list[Framed]]:
        """What the model reads of each; what a template has written is cut where it is too long, as in training, and so
        is a prompt that leaves its answer no room."""
        if self.template is None:
            cut = {} if long == "refuse" or self.longest is None else self._shortened(asks, self.longest)
            rest = iter(super().framed([ask for i, ask in enumerate(asks) if i not in cut], room, long))
            return [cut[i] if i in cut else next(rest) for i in range(len(asks))]
        found = []
        for ask in asks:
            own = ask if ask.ids is not None else self.given(ask.pair or ask.text, ask.text if ask.pair else None)
            ids = list(own.ids or ())
            if self.longest is not None and len(ids) > self.longest and long == "refuse":
                raise ValueError(f"{ask.text[:40]!r} has {len(ids)} tokens, the model reads {self.longest}: shorten it")
            found.append([Framed(ids[: self.longest], [0] * len(ids[: self.longest]))])
        return found

    def _shortened(self, asks: Sequence[Given], longest: int) -> dict[int, list[Framed]]:
        """Of those whose prompt is too long, by their numbers, what is learnt of such."""
        pairs = {i: ask for i, ask in enumerate(asks) if ask.pair is not None and ask.ids is None}
        prompts = self.tokenizer.encode_batch([ask.text for ask in pairs.values()])
        marks, found = self.tokenizer.marks, dict[int, list[Framed]]()
        room = longest - len(marks.around([], [])[0])
        for (i, ask), prompt in zip(pairs.items(), prompts, strict=True):
            if len(prompt) >= room:
                answer = self.tokenizer.encode_batch([ask.pair or ""])[0]
                found[i] = [Framed(*marks.around(*shortened(prompt, answer, room)))]
        return found

    def answers(self, asks: Sequence[Given], settings: RewardUse) -> list[Rewarded]:
        """What each is worth: what the other methods are made of."""
        windows = self.framed(asks, long=settings.long)
        said = iter(self.outputs([each for row in windows for each in row]))
        return [Rewarded(float(torch.stack([next(said) for _ in row]).mean()), len(row)) for row in windows]


@dataclass(frozen=True)
class Reward(Task):
    """An answer in, a number out."""

    longest: int | None = PreferenceConfig.max_length
    pool: str | None = None
    dropout: float = 0.0
    centre: float = 0.0
    chat: str = ""  # the template; a model directory has it as a file

    name, called = "reward", "reward"
    sections = Sections(RewardConfig, PreferenceConfig, RewardUse, Evaluation)
    row, rows = "pair", "pairs"
    by_rows = True
    stands = "classes"

    @classmethod
    def of(cls, recipe: Any) -> "Reward":
        t = recipe.task
        return cls(recipe.data.max_length, t.pool, t.dropout, t.centre, template_of(recipe, ""))

    def noted(self) -> dict[str, Any]:
        return {key: value for key, value in super().noted().items() if key != "chat"}

    def check(self, recipe: Any) -> None:
        check_length(recipe)
        check_marks(recipe, self.chat)

    def head(self, model: type[nn.Module]) -> HeadConfig:
        pool = self.pool or ("last" if issubclass(model, DecoderOnly) else "first")
        return HeadConfig("classes", 1, pool=pool, dropout=self.dropout)

    def tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        marks = MARKED.get(self.chat)
        return with_marks(tokenizer, marks) if marks else tokenizer

    def texts(self, row: Row) -> Sequence[str]:
        return [words(row["messages"]), row["chosen"], row["rejected"]]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        ids, segments = Column.ids(vocabulary), Column("uint8", ragged=False)
        margin = Column("float32", ragged=False)
        return {"chosen": ids, "rejected": ids, "first": segments, "second": segments, "margin": margin}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        template, most = ChatTemplate(self.chat, tokenizer) if self.chat else None, self.longest or 2**30
        marks = tokenizer.marks
        for row in rows:
            margin = [row.get("margin", 0.0)]
            if template is not None:
                found = both(row, template, most)
                if found is None:
                    yield None
                    continue
                chosen, rejected, _ = found
                yield type(found)((chosen, rejected, [0] * len(chosen), [0] * len(rejected), margin))
                continue
            prompt, *both_sides = tokenizer.encode_batch([words(row["messages"]), *(row[side] for side in SIDES)])
            room = most - len(marks.around([], [])[0])
            framed = [marks.around(*shortened(prompt, answer, room)) for answer in both_sides]
            yield (*(ids for ids, _ in framed), *(segments for _, segments in framed), margin)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad = tokenizer.marks.pad or 0

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            read = [Framed(row[i].tolist(), row[i + 2].tolist()) for row in rows for i in (0, 1)]
            inputs = {name: x.unflatten(0, (-1, 2)) for name, x in batched(read, pad, True).tensors.items()}
            margin = torch.from_numpy(np.concatenate([row[4] for row in rows]))
            return Batch({**inputs, "margin": margin}, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Preferred(model, self.centre)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: RewardUse, **how: Any) -> Rewarder:
        rewarder = Rewarder(models, tokenizer, use, longest=self.longest, **how)
        rewarder.template = self.chat or None
        return rewarder

    def measure(self, predictor: Rewarder, held_out: Sequence[Row], recipe: Any) -> Measured:
        """How often, and by how much, the chosen answer has the larger reward."""
        asks = [predictor.given(row[side], row["messages"]) for row in held_out for side in SIDES]
        said = np.array([each.value for each in predictor.answers(asks, predictor.use)]).reshape(-1, 2)
        lead = said[:, 0] - said[:, 1]
        loss = -F.logsigmoid(torch.from_numpy(lead - np.array([row.get("margin", 0.0) for row in held_out]))).numpy()

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            accuracy, each = float((lead[some] > 0).mean()), {"loss": loss, "margin": lead, "reward": said.mean(1)}
            return {"accuracy": accuracy} | {name: float(x[some].mean()) for name, x in each.items()}

        shown = zip(held_out[:SHOWN], said, strict=False)
        samples = [
            Sample(words(row["messages"]), f"{a:.2f}: {row['chosen']}", row["rejected"]) for row, (a, _) in shown
        ]
        return Measured.of(Evidence(len(lead), figures), "accuracy", samples)


TASK = Reward
