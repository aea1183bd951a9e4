"""Reinforcement: what a step minimises, by plain loops; runs that repeat, stop and go on; what is refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.data.batching import Position
from regard.models.decoder import Decoder, llama_tiny
from regard.recipes import reading
from regard.recipes import train as training
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.tasks.reinforce import Drawn, Reinforce, ReinforceConfig, learnt
from regard.training.distributed import World
from regard.training.objectives import IGNORE
from regard.training.policies import CRITIC, Critic, critic_of, distance, in_groups, in_time, weighed
from regard.training.run import Report

QUIET = Console(quiet=True)
MODEL = "{preset: llama-tiny, layers: 1, d_model: 32, d_ff: 48, heads: 2, max_length: 64}"
COLOURS = ["red", "green", "blue", "black"]


def steps(n: int, more: str = "") -> str:
    how = "optimiser: {name: adamw}, schedule: {name: constant, peak: 0.003, warmup: 2}"
    return f"train: {{steps: {n}, batch_tokens: 512, smoothing: 0.0, shards: 1, {more}{how}}}"


def recipe(folder: Path, name: str, *lines: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines))
    return path


def run(path: Path, *changes: str, out: str = "", **how: Any) -> Path:
    place = path.parent / "runs" / (out or path.stem)
    assert train(reading.load(str(path), changes), place, name=path.stem, console=QUIET, overwrite=True, **how)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that talks of colours, and where prompts for it are."""
    folder = tmp_path_factory.mktemp("reinforce")
    rows = [{"text": f"{a} and {b} {n}.", "label": a} for n in range(15) for a in COLOURS for b in COLOURS]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = "data: {train: {jsonl: texts.jsonl}, hold_out: 8}"
    run(recipe(folder, "lm", "task: {name: generate, block: 32}", data, f"model: {MODEL}", CHARACTERS, steps(80)))
    return folder


CHARACTERS = "tokens: {kind: char, size: 0}"
PROMPTS = "data: {train: {jsonl: texts.jsonl}, hold_out: 12, first: 3}"
TASK = "task: {name: reinforce, group: 4, answer: 8, beta: 0.02}"


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    more = "validate_every: 4, "
    return recipe(folder, "rl", TASK, PROMPTS, "model: {from: runs/lm}", steps(8, more))


def many_e(prompts: list[str], answers: list[str]) -> list[float]:
    return [answer.count("e") / max(1, len(answer)) for answer in answers]


def same(a: Path, b: Path) -> bool:
    ours, theirs = (load_file(place / "model.safetensors") for place in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


# What a step minimises


@pytest.fixture(scope="module")
def batch() -> tuple[Any, list[Drawn], list[dict[str, np.ndarray[Any, Any]]]]:
    """A model in fp64, answers of several lengths, and what is known of their tokens: not what the model says."""
    torch.manual_seed(3)
    model = Decoder(llama_tiny(20, layers=1, d_model=16, d_ff=24, heads=2)).double().eval()
    draw = np.random.default_rng(0)
    answers = [Drawn(draw.integers(3, 20, n).tolist(), begin, "", "", 0.0) for n, begin in ((6, 2), (9, 3), (4, 3))]
    known = []
    for each in answers:
        ids = torch.tensor([each.ids])
        said = model(ids[:, :-1])[0].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].detach().numpy()
        own = said[each.begin - 1 :]
        drawn, reference, gain = (own + 0.3 * draw.normal(size=len(own)) for _ in range(3))
        values, returns = draw.normal(size=(2, len(own)))
        row = {"drawn": drawn, "reference": reference, "advantages": gain - own, "values": values, "returns": returns}
        known.append(row)
    return model, answers, known


def exact(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
    """A batch, in fp64."""
    found = dict(learnt(rows).tensors)
    for name in rows[0][2]:
        found[name] = found[name].double()
        for row, (answer, _, known) in enumerate(rows):
            found[name][row, answer.begin - 1 : len(answer.ids) - 1] = torch.from_numpy(known[name])
    return found


def by_loops(model: Any, answers: list[Drawn], known: Any, c: ReinforceConfig, weights: Sequence[float]) -> float:
    """The same, a token at a time."""
    total, high = 0.0, c.clip if c.high is None else c.high
    for answer, row, weight in zip(answers, known, weights, strict=True):
        log_p = []
        for t in range(answer.begin, len(answer.ids)):
            z = (model(torch.tensor([answer.ids[:t]]))[0, -1] / c.temperature).tolist()
            log_p.append(z[answer.ids[t]] - math.log(sum(map(math.exp, z))))
        gone = [a - b for a, b in zip(log_p, row["drawn"], strict=True)]
        if c.ratio == "sequence":
            gone = [sum(gone) / len(gone)] * len(gone)
        for t, x in enumerate(gone):
            r, gain, ref = math.exp(x), row["advantages"][t], row["reference"][t]
            each = -min(r * gain, min(max(r, 1 - c.clip), 1 + high) * gain)
            if c.way == "grpo":
                each += c.beta * (math.exp(ref - log_p[t]) - (ref - log_p[t]) - 1) * (r if c.corrected else 1)
            else:
                with torch.no_grad():
                    h = model.features(torch.tensor([answer.ids[: answer.begin + t]]))[0, -1].float()
                    v = float(model.critic(h[None])[0])
                old, right = row["values"][t], row["returns"][t]
                near = min(max(v, old - c.value_clip), old + c.value_clip)
                each += c.value * 0.5 * max((v - right) ** 2, (near - right) ** 2)
            total += weight * each
    return total


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 0.3, "clip": 0.05, "corrected": False},
        {"clip": 0.1, "high": 0.4, "temperature": 0.7},
        {"ratio": "sequence", "clip": 0.02},
        {"loss": "dapo"},
        {"loss": "dr_grpo", "answer": 10},
    ],
)
def test_grpo_is_what_loops_make_of_it(settings: dict[str, Any], batch: Any) -> None:
    model, answers, known = batch
    c = ReinforceConfig(**settings)
    sizes = np.array([each.size for each in answers])
    weights = weighed(sizes, c.loss, c.answer).tolist()
    objective = Reinforce(c).objective(model, 0.0, None)  # type: ignore[arg-type]
    three = [{name: row[name] for name in ("drawn", "reference", "advantages")} for row in known]
    found = objective(**exact(list(zip(answers, weights, three, strict=True))))
    assert found.item() == pytest.approx(by_loops(model, answers, known, c, weights), rel=1e-6)
    # And in a mean over tokens, weights are the means that each loss is named for.
    each = [by_loops(model, [a], [k], c, [1.0]) for a, k in zip(answers, known, strict=True)]
    mean = {
        "grpo": np.mean([x / n for x, n in zip(each, sizes, strict=True)]),
        "dapo": sum(each) / sizes.sum(),
        "dr_grpo": sum(each) / (len(each) * c.answer),
    }[c.loss]
    assert found.item() / sizes.sum() == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"value": 0.7, "value_clip": 0.05, "clip": 0.03}])
def test_ppo_is_what_loops_make_of_it(settings: dict[str, Any], batch: Any) -> None:
    model, answers, known = batch
    c = ReinforceConfig(way="ppo", **settings)
    critic = critic_of(model, c.beta)
    torch.nn.init.normal_(critic.value.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    objective = Reinforce(c).objective(model, 0.0, None)  # type: ignore[arg-type]
    try:
        found = objective(**exact([(a, 1.0, row) for a, row in zip(answers, known, strict=True)]))
        assert found.item() == pytest.approx(by_loops(model, answers, known, c, [1.0] * 3), rel=1e-6)
    finally:
        delattr(model, CRITIC)


def test_advantages_in_time_by_their_definition() -> None:
    """The sum of all errors that follow, each worth less by gamma · lam."""
    draw, gamma, lam = np.random.default_rng(1), 0.9, 0.8
    rewards, values = draw.normal(size=(2, 7))
    errors = [rewards[t] + gamma * (values[t + 1] if t < 6 else 0.0) - values[t] for t in range(7)]
    expected = [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, 7)) for t in range(7)]
    np.testing.assert_allclose(in_time(rewards, values, gamma, lam), expected)
    # By hand: 1 at the end, nothing foretold, half of it each token before.
    assert in_time(np.array([0.0, 0.0, 1.0]), np.zeros(3), 1.0, 0.5).tolist() == [0.25, 0.5, 1.0]


def test_advantages_in_groups_by_hand() -> None:
    rewards = np.array([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])
    np.testing.assert_allclose(in_groups(rewards), [[-1 / 1.0001, 0, 1 / 1.0001], [0, 0, 0]])
    spread = math.sqrt(sum((x - 3) ** 2 for x in rewards.flatten()) / 5) + 1e-4
    np.testing.assert_allclose(in_groups(rewards, "batch")[0], [-1 / spread, 0, 1 / spread])
    assert in_groups(rewards, "none")[0].tolist() == [-1, 0, 1]


def test_a_distance_is_right_on_average_and_never_negative() -> None:
    draw = np.random.default_rng(2)
    p, q = (x / x.sum() for x in draw.random((2, 6)))
    each = distance(np.log(p), np.log(q))
    assert each.min() >= 0
    assert (p * each).sum() == pytest.approx((p * np.log(p / q)).sum())


def test_the_corrected_leash_has_the_gradient_of_kl() -> None:
    """On average over what p draws, at p itself; as published it has another one."""
    draw = torch.Generator().manual_seed(0)
    z, q = torch.randn(2, 6, generator=draw, dtype=torch.float64)
    z.requires_grad_()
    log_p, q = z.log_softmax(0), q.log_softmax(0)
    p = log_p.exp().detach()
    (right,) = torch.autograd.grad((log_p.exp() * (log_p - q)).sum(), z, retain_graph=True)
    each, ratio = distance(log_p, q), (log_p - log_p.detach()).exp()
    (corrected,) = torch.autograd.grad((p * each * ratio).sum(), z, retain_graph=True)
    (published,) = torch.autograd.grad((p * each).sum(), z)
    torch.testing.assert_close(corrected, right)
    assert not torch.allclose(published, right)


def test_a_leash_is_drawn_in_where_answers_go_too_far() -> None:
    critic = Critic(4, 0.1)
    for kl, factor in ((6.6, 1.01), (60.0, 1.02), (0.0, 0.98), (6.0, 1.0)):
        before = float(critic.beta)
        critic.adapt(kl, target=6.0)
        assert float(critic.beta) == pytest.approx(before * factor)


def test_what_ppo_learns_from_is_what_loops_make_of_it(batch: Any) -> None:
    model, answers, _ = batch
    critic = critic_of(model, 0.2)
    try:
        torch.nn.init.normal_(critic.value.weight, generator=torch.Generator().manual_seed(1))
        other = Decoder(model.config).double().eval()
        task = replace(Reinforce(ReinforceConfig(way="ppo", beta=0.2, gamma=0.9, lam=0.8)), reference=other)
        rated = [each._replace(reward=float(n)) for n, each in enumerate(answers)]
        found = task.told(model, rated)
        gains, every = [], []
        for each in rated:
            ids = torch.tensor([each.ids])
            said = [
                m(ids[:, :-1])[0].log_softmax(-1).gather(1, ids[0, 1:, None])[each.begin - 1 :, 0]
                for m in (model, other)
            ]
            values = critic(model.features(ids[:, :-1])[0, each.begin - 1 :]).tolist()
            rewards = [-0.2 * (a - b).item() for a, b in zip(*said, strict=True)]
            rewards[-1] += each.reward
            gains.append(in_time(np.array(rewards), np.array(values), 0.9, 0.8))
            every += gains[-1].tolist()
        for row, gain in zip(found, gains, strict=True):
            np.testing.assert_allclose(row["advantages"], (gain - np.mean(every)) / np.std(every), rtol=1e-5)
            np.testing.assert_allclose(row["returns"], gain + row["values"], rtol=1e-5)
    finally:
        delattr(model, CRITIC)


# Runs


def interrupted(path: Path, changes: Sequence[str], out: str, at: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is stopped after so many steps, and goes on."""
    place, follow = path.parent / "runs" / out, training._Run.follow

    def stopping(self: Any, say: Any) -> Any:
        real = self.trainer.run

        def events() -> Any:
            for event in real():
                if isinstance(event, Report) and event.step == at:
                    self.trainer.interrupt()
                yield event

        self.trainer.run = events
        return follow(self, say)

    how: Any = {"name": out, "console": QUIET, "reward": many_e}
    with monkeypatch.context() as patched:
        patched.setattr(training._Run, "follow", stopping)
        assert not train(reading.load(str(path), changes), place, overwrite=True, **how)
    assert train(reading.load(str(place / "recipe.yaml")), place, resume=True, **how)
    return place


@pytest.mark.parametrize(
    "changes",
    [
        ["task.parts=2", "task.passes=2"],
        ["task.way=ppo", "task.parts=2", "task.passes=2", "task.target=1.0"],
        ["task.way=ppo", "task.parts=2", "changes=[{lora: {rank: 2}}]", "train.average=1"],
    ],
    ids=["grpo", "ppo", "lora"],
)
def test_a_run_that_stops_within_a_draw_goes_on_bit_for_bit(
    changes: list[str], plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [*changes, "train.average=1"]  # the last weights, not the best ones
    whole = run(plain, *changes, out="whole", reward=many_e)
    assert same(run(plain, *changes, out="again", reward=many_e), whole)
    assert not same(run(plain, *changes, "train.seed=2", out="other", reward=many_e), whole)
    stopped = interrupted(plain, changes, "stopped", 3, monkeypatch)  # of 4 steps
    assert same(stopped, whole)
    lines = [[json.loads(line) for line in (place / "metrics.jsonl").open()] for place in (whole, stopped)]
    seen = [[(x["step"], x["reward"], x["kl"]) for x in each if x["kind"] == "validation"] for each in lines]
    assert seen[0] == seen[1]
    assert [step for step, *_ in seen[0]] == [0, 4, 8]
    assert seen[0][0][2] == pytest.approx(0.0, abs=1e-9)
    names = load_file(whole / "model.safetensors").keys()
    assert not any(CRITIC in name for name in names)
    assert all("lora" in name for name in names) == ("lora" in changes[2])
    assert regard.load(whole, task="generate").generate("red", limit=5, seed=1)


def test_reward_rises_and_the_leash_holds(plain: Path) -> None:
    how = ["train.steps=40", "train.validate_every=40", "task.group=8", "train.batch_tokens=1024"]
    figures = {}
    for beta in (0.0, 2.0):
        place = run(plain, *how, f"task.beta={beta}", "train.average=1", out=f"beta-{beta}", reward=many_e)
        said = [json.loads(line) for line in (place / "metrics.jsonl").open()]
        figures[beta] = [line for line in said if line["kind"] == "validation"]
    free, held = figures[0.0], figures[2.0]
    assert free[-1]["reward"] > free[0]["reward"] + 0.3
    assert held[-1]["kl"] < free[-1]["kl"] / 5
    assert held[-1]["length"] <= 8


def test_ppo_learns_too(plain: Path) -> None:
    how = ["task.way=ppo", "task.beta=0.001", "train.steps=80", "train.validate_every=80", "train.batch_tokens=1024"]
    place = run(plain, *how, "train.average=1", out="ppo", reward=many_e)
    first, last = [x for x in map(json.loads, (place / "metrics.jsonl").open()) if x["kind"] == "validation"]
    assert last["reward"] > first["reward"] + 0.15


def equipped(path: Path, *changes: str, worth: Any = many_e) -> tuple[Any, Any, Any]:
    """The task of a recipe, ready to draw; its corpus, and the recipe."""
    loaded = reading.load(str(path), changes)
    data = prepare(loaded)
    task: Any = data.task.equipped(training._begin(loaded, data), data.tokenizer, worth, 1)
    return task, task.corpus(data.train), loaded


def test_a_draw_is_a_function_of_seed_place_and_prompt(plain: Path) -> None:
    def draw(*changes: str, position: Position = Position()) -> Any:  # noqa: B008  frozen
        task, corpus, loaded = equipped(plain, *changes)
        return next(task.stream(corpus, task.collate(None, 0.0), loaded.train, World(), position))

    first, again, other, later = draw(), draw(), draw("train.seed=2"), draw(position=Position(0, 1))
    for name, x in first.parts[0].tensors.items():
        assert torch.equal(x, again.parts[0][name]), name
    assert not any(torch.equal(first.parts[0]["tokens"], each.parts[0]["tokens"]) for each in (other, later))
    assert len(first.then) == 0
    several = draw("task.parts=2", "task.passes=3")
    assert len(several.then) == 5
    assert {work.after for work in several.then} == {several.after}
    # No two answers to one prompt, nor to two prompts that are alike, hang on the same chance.
    task, _, _ = equipped(plain)
    tokenizer = task.tokenizer
    read = [tokenizer.marks.bos, *tokenizer.encode("red")]
    found = task.answers(task.open([task.policy], tokenizer, None), [(read, read[1:])] * 2, "key", 16)
    texts = [[each.text for each in found[i : i + 16]] for i in (0, 16)]
    assert texts[0] != texts[1]
    assert len({*texts[0]}) > 1
    assert all(each.prompt == "red" and each.ids[: each.begin] == read and each.size <= 8 for each in found)


def test_parts_of_a_step_add_up(plain: Path) -> None:
    losses = []
    for n in (1, 3):
        task, corpus, loaded = equipped(plain, f"train.accumulate={n}", "task.parts=2", "task.loss=grpo")
        work = next(task.stream(corpus, task.collate(None, 0.0), loaded.train, World(), Position()))
        objective = task.objective(task.policy, 0.0, None)
        losses.append(sum(objective(**part.tensors).item() for part in work.parts))
        assert len(work.parts) == n
        assert sum(part.count for part in work.parts) == work.tokens
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-4)


def test_before_the_first_step_ratio_and_distance_are_none(plain: Path) -> None:
    """So the loss is minus the mean advantage; and log p is of the temperature at which it was drawn."""
    task, corpus, loaded = equipped(plain, "task.temperature=0.5", "task.beta=1.0")
    work = next(task.stream(corpus, task.collate(None, 0.0), loaded.train, World(), Position()))
    (part,) = work.parts
    objective = task.objective(task.policy, 0.0, None)
    count = part["labels"] != IGNORE
    expected = -(part["advantages"] * part["weight"][:, None])[count].sum()
    assert objective(**part.tensors).item() == pytest.approx(float(expected), abs=1e-3)
    log_p = (
        (task.policy(part["tokens"]) / 0.5).log_softmax(-1).gather(2, part["labels"].clamp(min=0)[:, :, None])[:, :, 0]
    )
    torch.testing.assert_close(part["drawn"][count], log_p[count].detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(part["drawn"], part["reference"])
    assert work.tokens == int(count.sum()) == part.count


def test_what_does_not_learn_is_not_held_twice(plain: Path) -> None:
    task, _, _ = equipped(plain, "changes=[{lora: {rank: 2}}]")
    ours, theirs = dict(task.policy.named_parameters()), dict(task.reference.named_parameters())
    assert all((ours[name] is theirs[name]) == ("lora" not in name) for name in theirs)
    task, _, _ = equipped(plain)
    assert not {*map(id, task.policy.parameters())} & {*map(id, task.reference.parameters())}


@pytest.mark.parametrize("change", ["prompt: {length: 3}", "prefix: {length: 3}"])
def test_the_leash_is_held_by_the_model_without_what_is_added(change: str, plain: Path) -> None:
    task, _, _ = equipped(plain, f"changes=[{{{change}}}]")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(task.reference(ids), regard.load(plain.parent / "runs" / "lm").model(ids))
        assert not torch.allclose(task.reference(ids), task.policy.eval()(ids))


# Who tells what an answer is worth


@pytest.fixture(scope="module")
def judges(folder: Path) -> dict[str, Path]:
    """A classifier of colours, and a reward model."""
    data = "data: {train: {jsonl: texts.jsonl}, hold_out: 8, max_length: 32}"
    model = "model: {preset: bert-tiny, layers: 1, d_model: 32, d_ff: 48, heads: 2, max_length: 64}"
    found = {"classes": run(recipe(folder, "classes", "task: {name: classify}", data, model, CHARACTERS, steps(2)))}
    pairs = [{"prompt": f"{c} {n}?", "chosen": "yes.", "rejected": "no"} for n in range(20) for c in COLOURS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    data = "data: {train: {jsonl: pairs.jsonl}, hold_out: 8, max_length: 32}"
    found["number"] = run(recipe(folder, "number", "task: {name: reward}", data, model, CHARACTERS, steps(2)))
    return found


def test_a_model_tells_what_an_answer_is_worth(plain: Path, judges: dict[str, Path]) -> None:
    from regard.recipes.rewards import worth

    def told(*changes: str) -> Any:
        found = worth(reading.load(str(plain), changes), None)
        assert found is not None
        return found(["red", "gr"], [" and so", "een"])

    name, label = f"task.reward={judges['classes']}", "task.label=green"
    classifier = regard.load(judges["classes"])
    p = [each.probabilities["green"] for each in classifier.classify(["red and so", "green"])]
    assert told(name, label) == pytest.approx(p, rel=1e-5)
    odds = [math.log(x / (1 - x)) for x in p]
    assert told(name, label, "task.scale=logit") == pytest.approx(odds, rel=1e-4)
    rewarder = regard.load(judges["number"])
    expected = [rewarder.reward(" and so", "red"), rewarder.reward("een", "gr")]
    assert told(f"task.reward={judges['number']}") == pytest.approx(expected)
    place = run(plain, name, label, "train.steps=2", "train.validate_every=2", out="judged")
    assert json.loads((place / "evaluation.json").read_text())["reward"]["score"] == pytest.approx(0.25, abs=0.1)


def test_a_policy_that_talks_ends_its_answers(folder: Path) -> None:
    """With a template, prompts are what a user says, and an answer ends with the mark that ends it."""
    path = recipe(
        folder, "talk", "task: {name: reinforce, group: 2, answer: 6, template: plain}",
        "data: {train: {jsonl: texts.jsonl}, hold_out: 12}", "model: {from: runs/lm}", steps(2, "validate_every: 2, "),
    )  # fmt: skip
    task, _, _ = equipped(path)
    (read, own), *_ = task.examples([{"text": "red and blue 3."}], task.tokenizer)
    assert task.tokenizer.decode(own) == "red and blue 3."
    assert len(read) > len(own)
    place = run(path, reward=many_e)
    assert (place / "chat_template.jinja").exists()
    assert regard.load(place).chat("red", limit=4, seed=1) is not None


# What is refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["task.group=1"], "task.group = 1: grpo compares"),
        (["task.parts=5"], "task.parts = 5: a prompt has 4 answers"),
        (["task.way=reinforce"], "choose grpo or ppo"),
        (["task.clip=1.0"], "task.clip = 1.0"),
        (["task.answer=62"], "the model has"),
        (["data.first=0"], "data.first = 0"),
        (["train.batch_tokens=0"], "train.batch_tokens = 0"),
        (["task.template=chatml"], "data.first and task.template"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(change: list[str], said: str, plain: Path, folder: Path) -> None:
    base = str(learnt_places(folder)) if "task.answer=62" in change else str(folder / "runs" / "lm")
    with pytest.raises(ValueError, match=said) as caught:
        reading.load(str(plain), [*change, f"model.from={base}"])
    assert "\n" not in str(caught.value).strip()


def learnt_places(folder: Path) -> Path:
    """A model that has 64 places and no more."""
    if not (folder / "runs" / "gpt").exists():
        data = "data: {train: {jsonl: texts.jsonl}, hold_out: 8}"
        model = MODEL.replace("llama-tiny", "gpt-tiny")
        run(recipe(folder, "gpt", "task: {name: generate, block: 32}", data, f"model: {model}", CHARACTERS, steps(1)))
    return folder / "runs" / "gpt"


@pytest.mark.parametrize(
    ("worth", "said"),
    [
        (lambda prompts, answers: [math.nan] * len(answers), "is nan: it must be a number"),
        (lambda prompts, answers: [None] * len(answers), "is nan: it must be a number"),
        (lambda prompts, answers: [0.0], "the reward has told 1 numbers of"),
        (None, "task.reward: name the directory"),
    ],
)
def test_a_reward_that_is_none_is_told(worth: Any, said: str, plain: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run(plain, out="refused", reward=worth)


def test_a_judge_that_cannot_is_told(plain: Path, judges: dict[str, Path], folder: Path) -> None:
    from regard.recipes.rewards import worth

    classes, number, lm = judges["classes"], judges["number"], folder / "runs" / "lm"
    for change, said in (
        ([f"task.reward={classes}"], "it has 4 classes, and task.label names one: black, blue, green, red"),
        ([f"task.reward={classes}", "task.label=gren"], "task.label = 'gren': did you mean 'green'"),
        ([f"task.reward={number}", "task.label=red"], "tells one number"),
        ([f"task.reward={lm}"], "this is neither"),
        ([f"task.reward={folder / 'nowhere'}"], "is not a directory"),
    ):
        with pytest.raises(ValueError, match=said):
            worth(reading.load(str(plain), change), None)
    with pytest.raises(ValueError, match="generate asks for none"):
        worth(reading.load(str(folder / "lm.yaml")), many_e)


def test_prompts_that_are_too_long_are_left_out_and_counted(plain: Path, folder: Path) -> None:
    changes = ["data.first=null", "data.max_length=17"]
    assert any("skipped" in text for text in prepare(reading.load(str(plain), changes)).remarks)
    with pytest.raises(ValueError, match="no training prompt is left"):
        prepare(reading.load(str(plain), ["data.first=null", "data.max_length=2"]))


def test_several_processes_are_refused(plain: Path) -> None:
    loaded = reading.load(str(plain))
    data = prepare(loaded)
    with pytest.raises(ValueError, match="one process"):
        data.task.equipped(training._begin(loaded, data), data.tokenizer, many_e, 2)
