"""Reinforcement: a language model answers prompts, is told what its answers are worth, and learns from that.

What a step learns from is drawn from the model as it then is: a batch of the stream is one of prompts, and the answers
to it make the steps of one draw, which a checkpoint keeps until they are done.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.checks import above, at_least, hint, one_of, share
from regard.core.added import called, new
from regard.core.generation import DecoderOnly, of_like_length
from regard.data.arrays import Column, Table
from regard.data.batching import Batch, Ints, Position, batches_from
from regard.data.chat import MARKED, ChatTemplate, with_marks
from regard.data.corpora import fetched
from regard.data.rows import Row, RowFiles
from regard.data.tokenizers import Tokenizer
from regard.decoding.protocol import Request, SamplingConfig, SearchConfig
from regard.tasks.asks import short
from regard.tasks.classify import Classifier, Evaluation
from regard.tasks.converse import check_marks, template_of
from regard.tasks.generate import Generate, WriteConfig
from regard.tasks.generator import Generator
from regard.tasks.reader import Given
from regard.tasks.reward import Rewarder
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.training import policies
from regard.training.objectives import CRITIC, IGNORE, Objective, likelihood
from regard.training.policies import Floats, Reinforced, critic_of, distance
from regard.training.run import Sample, Work
from regard.training.stream import Collate

TOKENS = 4_096  # of answers that are looked at together
SAMPLES = 100
Worth = Callable[[list[str], list[str]], Sequence[float]]  # prompts and answers -> what each answer is worth


@dataclass(frozen=True)
class ReinforceConfig:
    """What a model is for."""

    name: str = "reinforce"
    way: str = "grpo"  # or ppo
    reward: str | None = None  # a model directory, a classifier or a reward model; left out: a function, from Python
    label: str | None = None  # of a classifier: the class that answers are to be of
    scale: str = "probability"  # of that class, or its logit
    template: str | None = None  # chatml, plain, or a .jinja; left out: that of the model it begins with, else none
    answer: int = 48  # tokens of an answer, at most
    temperature: float = 1.0  # at which answers are drawn, and log p is taken
    group: int = 8  # answers to each prompt
    passes: int = 1  # over the answers of a draw; ppo is usually given 4
    parts: int = 1  # steps of a pass
    beta: float = 0.05  # what a nat away from the model as it was costs: of grpo in the loss, of ppo in the reward
    corrected: bool = True  # of grpo: that cost times the ratio, so that its gradient is KL's; false: as published
    clip: float = 0.2  # a ratio of probabilities counts from 1 - clip
    high: float | None = None  # to 1 + high; left out: clip
    advantages: str = "group"  # of grpo, over the deviation of the group, of the batch, or none (Dr. GRPO)
    loss: str = "grpo"  # of grpo: the mean of each answer's mean (grpo), of all tokens (dapo), or over answer (dr_grpo)
    ratio: str = "token"  # of grpo: of each token, or of the sequence (GSPO)
    gamma: float = 1.0  # of ppo: what a token later is worth
    lam: float = 0.95  # of ppo: how far advantages look ahead
    value: float = 0.1  # of ppo: how much the error of the critic counts
    value_clip: float = 0.2  # of ppo: by how much the critic's word may change in a draw
    target: float | None = None  # of ppo: nats of an answer by which beta is adapted; left out: it stays

    def __post_init__(self) -> None:
        own = {f"task.{name}": value for name, value in vars(self).items()}
        one_of(("grpo", "ppo"), **{"task.way": self.way})
        one_of(("probability", "logit"), **{"task.scale": self.scale})
        one_of(policies.SCALES, **{"task.advantages": self.advantages})
        one_of(policies.LOSSES, **{"task.loss": self.loss})
        one_of(("token", "sequence"), **{"task.ratio": self.ratio})
        at_least(1, **{key: own[key] for key in ("task.answer", "task.group", "task.passes", "task.parts")})
        at_least(0, **{key: own[key] for key in ("task.beta", "task.value", "task.value_clip")})
        above(0, **{key: own[key] for key in ("task.temperature", "task.clip", "task.high", "task.target")})
        share(whole=True, **{"task.gamma": self.gamma, "task.lam": self.lam})
        share(whole=False, **{"task.clip": self.clip})
        if self.way == "grpo" and self.group < 2:
            raise ValueError(
                "task.group = 1: grpo compares answers to one prompt, so it needs 2; or set task.way to ppo"
            )
        if self.parts > self.group:
            raise ValueError(f"task.parts = {self.parts}: a prompt has {self.group} answers (task.group) to share out")


class PromptFiles(RowFiles):
    """Where prompts are: in a `text` each."""

    parts: ClassVar[tuple[str, ...]] = ("text",)


@dataclass(frozen=True)
class PromptConfig(Data):
    """Where prompts come from."""

    train: PromptFiles | None = None  # your own files
    valid: PromptFiles | None = None  # held out of train if left out
    test: PromptFiles | None = None  # held out of train if left out
    first: int | None = None  # a prompt is the first so many tokens of a text; left out: all of it
    max_length: int = 128  # tokens of a prompt; longer ones are left out, and counted

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, **{"data.first": self.first, "data.max_length": self.max_length})

    def of_corpus(self, name: str, progress: Any) -> dict[str, PromptFiles]:
        found = fetched(name, progress=progress)
        if any(paths[0].suffix != ".jsonl" for paths in found.values()):
            raise ValueError(f"{name} is no corpus of texts that stand alone: choose one that is, such as imdb")
        return {split: PromptFiles(jsonl=str(path)) for split, (path,) in found.items()}


class Drawn(NamedTuple):
    """What was drawn for a prompt."""

    ids: list[int]  # of both
    begin: int  # where it begins in them
    prompt: str
    text: str
    reward: float

    @property
    def size(self) -> int:
        """Its tokens."""
        return len(self.ids) - self.begin


@dataclass(frozen=True)
class Reinforce(Task):
    """A prompt in, an answer out that is worth more."""

    how: ReinforceConfig = ReinforceConfig()
    longest: int = PromptConfig.max_length
    first: int | None = None
    chat: str = ""  # the template; a model directory has it as a file
    block: int = 256  # tokens that the model reads together
    worth: Worth | None = field(default=None, compare=False)
    reference: nn.Module | None = field(default=None, compare=False)  # the model that is begun with
    policy: nn.Module | None = field(default=None, compare=False)  # the same that learns
    tokenizer: Tokenizer | None = field(default=None, compare=False)

    name, called = "reinforce", "completion"
    sections = Sections(ReinforceConfig, PromptConfig, WriteConfig, Evaluation)
    row, rows = "prompt", "prompts"
    needs = DecoderOnly
    beforehand = True

    @classmethod
    def of(cls, recipe: Any) -> "Reinforce":
        first, block = recipe.data.first, getattr(recipe.model.build(2**16), "max_length", None)
        chat = template_of(recipe, "") if first is None else ""
        return cls(recipe.task, recipe.data.max_length, first, chat, block or cls.block)

    def noted(self) -> dict[str, Any]:
        """A language model, as any other: what it was taught by is in its recipe."""
        return Generate(self.block).noted()

    def prepared_by(self) -> list[Any]:
        return [self.name, self.longest, self.first, self.chat]

    def check(self, recipe: Any) -> None:
        if recipe.model.base is None:
            raise ValueError("task.name = reinforce: say by model.from which model it begins with")
        if recipe.data.first is not None and recipe.task.template is not None:
            raise ValueError(
                "data.first and task.template: of a text that is cut there is no conversation; leave one out"
            )
        check_marks(recipe, self.chat)
        if recipe.train.batch_rows:
            raise ValueError("train.batch_rows: what is drawn is counted in positions, by train.batch_tokens")
        if not recipe.train.batch_tokens:
            raise ValueError("train.batch_tokens = 0: say how many positions the answers of a draw may have")
        longest = recipe.model.build(2**16).longest
        prompt = self.longest if self.first is None else self.first + 1
        if longest is not None and longest < prompt + self.how.answer:
            raise ValueError(
                f"a prompt of {prompt} tokens ({'data.max_length' if self.first is None else 'data.first'}) and an "
                f"answer of {self.how.answer} (task.answer): the model has {longest} places; lower one of them"
            )

    def equipped(self, model: nn.Module, tokenizer: Tokenizer, worth: Worth | None, processes: int) -> "Reinforce":
        """With a reference: a copy of the model, but for what does not learn, and without what is added to it."""
        if processes > 1:
            raise ValueError("task.name = reinforce: answers are drawn in one process; start it without torchrun")
        same = {id(p): p for p in model.parameters() if not p.requires_grad}
        reference = deepcopy(model, same).eval().requires_grad_(False)
        for name in new(reference):
            for _, part in called(reference)[name]:
                part.on = False
        return replace(self, worth=worth, reference=reference, policy=model, tokenizer=tokenizer)

    def tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        marks = MARKED.get(self.chat)
        return with_marks(tokenizer, marks) if marks else tokenizer

    def texts(self, row: Row) -> Sequence[str]:
        return [row["text"]]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"tokens": Column.ids(vocabulary), "text": Column.ids(vocabulary)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        """What is read of each prompt, and its own sub-words."""
        template, (begin, _) = ChatTemplate(self.chat, tokenizer) if self.chat else None, tokenizer.marks.frame
        for row, ids in zip(rows, tokenizer.encode_batch([row["text"] for row in rows]), strict=True):
            own = ids[: self.first]
            read = own if tokenizer.imported else [*begin, *own]
            if template is not None:
                read = template.encode([{"role": "user", "content": row["text"]}])[1]
            yield (read, own) if 0 < len(read) <= (self.longest if self.first is None else len(read)) else None

    def corpus(self, table: Table) -> "Prompts":
        return Prompts(table, self.how.answer, self.how.group)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 for prompts")
        return lambda rows, draw: learnt(rows)

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        c = self.how
        how: dict[str, Any] = {"clip": (c.clip, c.clip if c.high is None else c.high), "temperature": c.temperature}
        if c.way == "grpo":
            return Reinforced(model, beta=c.beta, corrected=c.corrected, whole=c.ratio == "sequence", **how)
        critic_of(model, c.beta)
        return Reinforced(model, value=c.value, value_clip=c.value_clip, **how)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: WriteConfig, **how: Any) -> Generator:
        generator = Generator(models, tokenizer, use, **how)
        generator.template = self.chat or None
        return generator

    def steps(self) -> int:
        return self.how.passes * self.how.parts

    def stream(self, corpus: Any, collate: Collate, config: Any, world: Any, position: Position) -> Iterator[Work]:
        """The steps of one draw after the other, each from the model as it then is."""
        assert self.policy is not None
        assert self.tokenizer is not None
        for after, indices in batches_from(corpus, position, tokens=config.batch_tokens, seed=config.seed):
            start, key = time.perf_counter(), f"{config.seed} {after.epoch} {after.batch}"
            writer = self.open([self.policy], self.tokenizer, WriteConfig())  # anew: a step may not show in its weights
            answers = self.answers(writer, corpus.rows(indices), key, self.how.group)
            columns, sizes = self.told(self.policy, answers), np.array([each.size for each in answers])
            works, draw = list[Work](), Random(key)
            for _ in range(self.how.passes):
                order = np.array(draw.sample(range(len(answers)), len(answers)))
                for some in np.array_split(order, self.how.parts):
                    weight = np.zeros(len(answers), np.float32)
                    loss = self.how.loss if self.how.way == "grpo" else "dapo"
                    weight[some] = policies.weighed(sizes[some], loss, self.how.answer)
                    shares = [part for part in np.array_split(some, config.accumulate) if len(part)]
                    parts = [collate([(answers[i], weight[i], columns[i]) for i in part], draw) for part in shares]
                    works.append(Work(parts, int(sizes[some].sum()), after))
            yield replace(works[0], then=works[1:], seconds=time.perf_counter() - start)

    def answers(self, writer: Generator, prompts: Sequence[Any], key: str, group: int) -> list[Drawn]:
        """So many answers to each prompt (what is read, its own sub-words), and what they are worth: those of the n-th
        are a function of the key, n, and the model."""
        search, chat = SearchConfig(best=group, sampling=SamplingConfig(self.how.temperature)), writer.template
        end = ChatTemplate(chat, writer.tokenizer).end if chat else None
        requests = list[Request]()
        for n, (ids, _) in enumerate(prompts):
            seed = int.from_bytes(hashlib.blake2b(f"{key} {n}".encode(), digest_size=7).digest())
            ends = None if end is None else (lambda written: written[-1] == end)
            requests.append(Request(ids[:-1], ids[-1], self.how.answer, seed=seed, ends=ends))
        texts, found = writer.tokenizer.decode_batch([own for _, own in prompts]), list[Drawn]()
        for (ids, _), text, outputs in zip(prompts, texts, writer.found(requests, search), strict=True):
            for h in outputs:
                mark = [writer.eos] if len(h.token_scores) > len(h.tokens) else []
                found.append(Drawn([*ids, *h.tokens, *mark], len(ids), text, writer.after(ids, h.tokens), 0.0))
        worth = self.rewards([each.prompt for each in found], [each.text for each in found])
        return [each._replace(reward=x) for each, x in zip(found, worth, strict=True)]

    def rewards(self, prompts: list[str], answers: list[str]) -> list[float]:
        """What each answer is worth, if that is a number."""
        assert self.worth is not None, "a run equips its task"
        found = [math.nan if x is None else float(x) for x in self.worth(prompts, answers)]
        if len(found) != len(answers):
            raise ValueError(
                f"the reward has told {len(found)} numbers of {len(answers)} answers: it tells one of each"
            )
        for text, x in zip(answers, found, strict=True):
            if not math.isfinite(x):
                raise ValueError(f"the reward of {short(text)} is {x}: it must be a number")
        return found

    def told(self, model: nn.Module, answers: Sequence[Drawn]) -> list[dict[str, Floats]]:
        """What a step must know of each token of some answers: its advantage, log p as it was drawn and of the
        reference; of ppo also what the critic has said, and what has come of it."""
        c, rewards = self.how, np.array([each.reward for each in answers])
        drawn, values = self.said(model, answers)
        reference, _ = self.said(self.reference, answers)
        rows = [{"drawn": a, "reference": b} for a, b in zip(drawn, reference, strict=True)]
        if c.way == "grpo":
            gains = policies.in_groups(rewards.reshape(-1, c.group), c.advantages).flatten()
            return [{**row, "advantages": np.full(len(row["drawn"]), x)} for row, x in zip(rows, gains, strict=True)]
        critic = critic_of(model, c.beta)
        costs = [-float(critic.beta) * (row["drawn"] - row["reference"]) for row in rows]
        for cost, x in zip(costs, rewards, strict=True):
            cost[-1] += x
        found = [policies.in_time(each, told, c.gamma, c.lam) for each, told in zip(costs, values, strict=True)]
        every = np.concatenate(found)
        if c.target is not None:
            gone = distance(np.concatenate(drawn), np.concatenate(reference)).sum() / len(rows)
            critic.adapt(float(gone), c.target)
        return [
            {**row, "advantages": (x - every.mean()) / (every.std() + 1e-8), "values": told, "returns": x + told}
            for row, x, told in zip(rows, found, values, strict=True)
        ]

    @torch.inference_mode()
    def said(self, model: Any, answers: Sequence[Drawn]) -> tuple[list[Floats], list[Floats]]:
        """log p that a model gives each token of some answers; and what its critic foretells, if it has one."""
        found = [[np.zeros(0)] * len(answers) for _ in range(2)]
        for some in of_like_length([len(each.ids) for each in answers], TOKENS):
            batch = learnt([(answers[i], 0.0, {}) for i in some]).to(next(model.parameters()).device)
            hidden, labels = model.features(tokens=batch["tokens"]), batch["labels"]
            each = [likelihood(model, hidden, labels, self.how.temperature)]
            each += [model.critic(hidden[labels != IGNORE])] if hasattr(model, CRITIC) else []
            for column, x in zip(found, each, strict=False):
                parts = np.split(x.double().cpu().numpy(), np.cumsum([answers[i].size for i in some])[:-1])
                for i, part in zip(some, parts, strict=True):
                    column[i] = part
        return found[0], found[1]

    def measure(self, predictor: Generator, held_out: Sequence[Row], recipe: Any) -> Measured:
        """What answers to held-out prompts are worth, how long they are, and how far from the reference: nats of a
        whole answer. The best model is that of the largest reward; of ppo, less what its distance costs."""
        some = held_out[: recipe.train.validate_sentences]
        prompts = [each for each in self.examples(some, predictor.tokenizer) if each is not None]
        if not prompts:
            raise ValueError(f"no held-out prompt has up to data.max_length = {self.longest} tokens: raise it")
        answers = self.answers(predictor, prompts, f"{recipe.train.seed} held out", 1)
        log_p, reference = (self.said(model, answers)[0] for model in (predictor.model, self.reference))
        gone = [float(distance(a, b).sum()) for a, b in zip(log_p, reference, strict=True)]
        each = {"reward": [a.reward for a in answers], "kl": gone, "length": [a.size for a in answers]}
        columns = {name: np.array(x, np.float64) for name, x in each.items()}

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            return {name: float(x[some].mean()) for name, x in columns.items()}

        samples = [Sample(a.prompt, a.text, f"{a.reward:.3f}") for a in answers[:SAMPLES]]
        found = Measured.of(Evidence(len(answers), figures), "reward", samples)
        return found._replace(score=found.score - self.how.beta * found.measures["kl"] * (self.how.way == "ppo"))


class Prompts:
    """The prompts of a table, of which each takes as many positions as all its answers may."""

    marks = 0

    def __init__(self, table: Table, answer: int, group: int) -> None:
        self.table, self.answer, self.group = table, answer, group

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, indices: Ints) -> Ints:
        return self.group * (self.table.lengths(indices)[:, :1] + self.answer)

    def rows(self, indices: Ints) -> list[Any]:
        return [[ids.tolist() for ids in row] for row in self.table.rows(indices)]


def learnt(rows: Sequence[tuple[Drawn, float, dict[str, Floats]]]) -> Batch:
    """A batch of answers, what a token of each counts, and what is known of its tokens by name: (B, T) of each.

    >>> batch = learnt([(Drawn([5, 6, 7], 1, "", "", 0.0), 1.0, {"drawn": np.array([-1.0, -2.0])})])
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["drawn"].tolist()
    ([[5, 6]], [[6, 7]], [[-1.0, -2.0]])
    """
    shape = (len(rows), max(len(answer.ids) for answer, *_ in rows) - 1)
    tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
    columns = {name: np.zeros(shape, np.float32) for name in rows[0][2]}
    for row, (answer, _, known) in enumerate(rows):
        n, place = len(answer.ids) - 1, slice(answer.begin - 1, len(answer.ids) - 1)
        tokens[row, :n], labels[row, place] = answer.ids[:-1], answer.ids[answer.begin :]
        for name, x in known.items():
            columns[name][row, place] = x
    weight = np.array([weight for _, weight, _ in rows], np.float32)
    arrays = {"tokens": tokens, "labels": labels, "weight": weight, **columns}
    count = sum(answer.size for answer, *_ in rows)
    return Batch({name: torch.from_numpy(x) for name, x in arrays.items()}, count)


def judged_by(predictor: Any, config: ReinforceConfig, alone: bool) -> Worth:
    """What a model says an answer is worth: a reward model by its number, a classifier by a class of the text that
    prompt and answer make, or of the answer `alone`."""
    place, label = f"task.reward = {config.reward}", config.label
    if isinstance(predictor, Rewarder):
        if label is not None:
            raise ValueError(f"task.label = {label!r}: {config.reward} tells one number, and no classes; leave it out")
        return lambda prompts, answers: [
            each.value for each in predictor.answers(list(map(predictor.given, answers, prompts)), predictor.use)
        ]
    if not isinstance(predictor, Classifier):
        raise ValueError(f"{place}: a classifier or a reward model says what an answer is worth, this is neither")
    number = predictor.kind == "number"
    if number and label is not None:
        raise ValueError(f"task.label = {label!r}: {config.reward} tells a number, and no classes; leave it out")
    if not number and label not in predictor.labels:
        what = f"it has {len(predictor.labels)} classes, and task.label names one: {', '.join(predictor.labels)}"
        raise ValueError(
            f"{place}: {what}" if label is None else f"task.label = {label!r}: {hint(label, predictor.labels)}"
        )
    at = 0 if number else predictor.labels.index(str(label))

    def worth(prompts: list[str], answers: list[str]) -> list[float]:
        texts = answers if alone else [a + b for a, b in zip(prompts, answers, strict=True)]
        z = np.array([each.logits for each in predictor.answers(list(map(Given, texts)), predictor.use)])
        if number:
            return z[:, 0].tolist()
        z = z / predictor.use.temperature
        others = np.zeros(len(z)) if predictor.kind == "several" else np.logaddexp.reduce(np.delete(z, at, 1), 1)
        odds = z[:, at] - others
        return (odds if config.scale == "logit" else np.exp(-np.logaddexp(0.0, -odds))).tolist()

    return worth


TASK = Reinforce
