"""Learning from instructions and preferences: from files through training to a model that talks; what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.data.arrays import Column, Table
from regard.data.chat import CHATML, PLAIN, ChatTemplate
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.evaluation.rouge import overlaps
from regard.recipes import reading
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.studies.judging import judge
from regard.tasks.converse import ANSWER, FIRST, Converse, Packs, packed
from regard.tasks.prefer import Prefer, both, fingerprint
from regard.tasks.task import Measured
from regard.training.objectives import IGNORE, PREFERENCES, NextToken
from regard.training.run import Sample

QUIET = Console(quiet=True)
MODEL = "{preset: llama-tiny, layers: 1, d_model: 32, d_ff: 48, heads: 2, max_length: 96}"
TRAIN = (
    "train: {steps: 6, batch_tokens: 512, smoothing: 0.0, checkpoint_every: 3, shards: 1, validate_every: 3, "
    "optimiser: {name: adamw}, schedule: {name: constant, peak: 0.003, warmup: 2}}"
)
COLOURS = ["red", "green", "blue", "black"]


def recipe(folder: Path, name: str, task: str, data: str, model: str = MODEL) -> Path:
    path = folder / f"{name}.yaml"
    lines = [f"task: {task}", f"data: {data}", f"model: {model}", "tokens: {kind: char, size: 0}", TRAIN]
    path.write_text("\n".join(lines))
    return path


def run(path: Path, *changes: str, out: str = "") -> Path:
    place = path.parent / "runs" / (out or path.stem)
    assert train(reading.load(str(path), changes), place, name=path.stem, console=QUIET, overwrite=True)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preferences")
    talks = [
        {"instruction": f"Is {colour} {i} good?", "output": f"Yes, {colour} is."}
        for i, colour in enumerate(COLOURS * 20)
    ]
    (folder / "talks.json").write_text(json.dumps(talks))
    pairs = [{"prompt": each["instruction"], "chosen": each["output"], "rejected": "No!"} for each in talks]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return folder


TALKS = "{train: {json: talks.json}, hold_out: 4, max_length: 96}"
PAIRS = "{train: {jsonl: pairs.jsonl}, hold_out: 4, max_length: 96}"


@pytest.fixture(scope="module")
def talker(folder: Path) -> Path:
    return run(recipe(folder, "talker", "{name: converse}", TALKS), "train.steps=60")


def same(a: Path, b: Path) -> bool:
    ours, theirs = (load_file(place / "model.safetensors") for place in (a, b))
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_model_that_was_taught_to_talk_talks(talker: Path) -> None:
    assert (talker / "chat_template.jinja").read_text() == CHATML
    assert json.loads((talker / "config.json").read_text())["task"] == {"name": "generate", "block": 96, "apart": True}
    model = regard.load(talker, task="generate")
    marks = {str(model.tokenizer.rust.id_to_token(i)) for i in model.tokenizer.silent}
    assert {"<|im_start|>", "<|im_end|>"} <= marks
    prompt = model.conversation("Is red 7 good?")
    assert prompt.end == model.tokenizer.rust.token_to_id("<|im_end|>")
    assert model.chat("Is red 7 good?", beam=1, limit=40).startswith("Yes")
    figures = json.loads((talker / "evaluation.json").read_text())
    assert figures["perplexity"]["score"] == pytest.approx(np.exp(figures["loss"]["score"]))


def test_only_answers_are_learnt_and_blocks_change_nothing(folder: Path, talker: Path) -> None:
    tokens = Tokenizer.load(talker / "tokenizer.json")
    task = Converse(96, CHATML)
    rows = [
        {"messages": [{"role": "user", "content": c}, {"role": "assistant", "content": c * 2}], "where": ""}
        for c in COLOURS
    ]
    examples = list(task.examples(rows, tokens))
    for (ids, parts), colour in zip(examples, COLOURS, strict=True):
        said = [i for i, part in zip(ids, parts, strict=True) if part == ANSWER]
        assert tokens.decode(said[:-1]) == colour * 2
        assert said[-1] == tokens.rust.token_to_id("<|im_end|>") == ids[-1]
    together = packed([tuple([x for each in column for x in each] for column in zip(*examples, strict=True))])
    assert together.count == sum(2 * len(colour) + 1 for colour in COLOURS)
    objective = NextToken(regard.load(talker).model.double(), 0.0, IGNORE)
    alone = sum(objective(**packed([each]).tensors) for each in examples)
    torch.testing.assert_close(objective(**together.tensors), alone, rtol=1e-10, atol=1e-10)


def test_what_is_too_long_is_cut_or_left_out(talker: Path) -> None:
    tokens = Tokenizer.load(talker / "tokenizer.json")
    asked, said = {"role": "user", "content": "is " * 9}, {"role": "assistant", "content": "red " * 9}
    row = {"messages": [asked, said], "where": ""}
    sizes = {n: next(iter(Converse(n, CHATML).examples([row], tokens))) for n in (20, 60, 96)}
    assert sizes[20] is None
    assert [type(sizes[n]).__name__ for n in (60, 96)] == ["Cut", "tuple"]
    pair = {"messages": [asked], "chosen": "red red red", "rejected": "red red blue", "where": "line 3"}
    template = ChatTemplate(CHATML, tokens)
    whole = both(pair, template, 96)
    assert whole is not None
    begin = whole[2][0]
    assert both(pair, template, begin) is None  # the prompt has all the places
    assert both(pair, template, begin + 5) is None  # what is left is the same
    cut = both(pair, template, begin + 10)
    assert type(cut).__name__ == "Cut"
    with pytest.raises(ValueError, match="line 3: the chat template writes 0 of 1 answers"):
        both(pair, ChatTemplate("{{ messages[0].content }}", tokens), 96)


def test_blocks_hold_every_conversation_once_and_are_full(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [([i % 50 + 1] * n, [FIRST, *[ANSWER] * (n - 1)]) for i, n in enumerate(draw.integers(2, 30, 300))]
    columns = {"tokens": Column.ids(60), "parts": Column("uint8", ragged=False)}
    packs = Packs(Table.build(tmp_path / "table", rows, columns), 64)
    found = packs.rows(np.arange(len(packs)))
    assert sum((parts == FIRST).sum() for _, parts in found) == 300
    assert [len(ids) for ids, _ in found] == packs.lengths(np.arange(len(packs)))[:, 0].tolist()
    assert max(len(ids) for ids, _ in found) <= 64
    assert packs.tokens / (64 * len(packs)) > 0.97


@pytest.mark.parametrize("task", ["converse", "reward", "prefer"])
def test_a_resumed_run_is_the_same_model_bit_for_bit(task: str, folder: Path, talker: Path) -> None:
    data = TALKS if task == "converse" else PAIRS
    path = recipe(folder, f"whole-{task}", f"{{name: {task}}}", data, "{from: runs/talker, dropout: 0.1}")
    whole, parts = run(path), folder / "runs" / f"parts-{task}"
    train(reading.load(str(path), ["train.steps=3"]), parts, name="again", console=QUIET)
    train(reading.load(str(path)), parts, name="again", console=QUIET, resume=True)
    assert same(whole, parts)
    assert (parts / "chat_template.jinja").read_text() == CHATML


def test_preferences_are_learnt_beside_a_reference_that_is_asked_once(
    folder: Path, talker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(folder, "dpo", "{name: prefer, beta: 0.5}", PAIRS, "{from: runs/talker}")
    place = run(path, "train.steps=12")
    figures = {name: each["score"] for name, each in json.loads((place / "evaluation.json").read_text()).items()}
    assert figures["accuracy"] == 1.0
    assert figures["margin"] > 0.1
    assert figures["loss"] < np.log(2)
    assert figures["kl"] > 0
    told = prepare(reading.load(str(path))).train.directory.parent
    tables = sorted(each.name for each in told.iterdir() if each.is_dir())
    assert f"reference-{fingerprint(regard.load(talker).model)}" in tables
    assert sum(name.startswith("held-out-") for name in tables) >= 2
    monkeypatch.setattr("regard.tasks.prefer.answers", lambda *_, **__: pytest.fail("the reference was asked again"))
    monkeypatch.setattr(Prefer, "measure", lambda *_: Measured(0.0, {}, [Sample("", "", "")]))
    run(path, "train.steps=12", out="dpo-again")  # with what is kept
    for change in ("{prompt: {length: 2}}", "{lora: {rank: 2}}"):  # the reference is without what is added
        run(path, "train.steps=1", f"changes=[{change}]", out="dpo-added")


@pytest.mark.parametrize("loss", ["ipo", "kto", "simpo", "orpo", "robust"])
def test_every_loss_moves_the_chosen_answer_ahead(loss: str, folder: Path, talker: Path) -> None:
    path = recipe(folder, loss, f"{{name: prefer, loss: {loss}, beta: 0.5}}", PAIRS, "{from: runs/talker}")
    place = run(path, "train.steps=12")
    figures = {name: each["score"] for name, each in json.loads((place / "evaluation.json").read_text()).items()}
    assert figures["accuracy"] > 0.9
    assert regard.load(place).chat("Is red 7 good?", beam=1, limit=4)


@pytest.mark.parametrize("model", ["talker", "encoder"])
def test_rewards_rank_answers(model: str, folder: Path, talker: Path) -> None:
    encoder = "{preset: bert-tiny, layers: 1, d_model: 32, d_ff: 48, heads: 2, max_length: 96}"
    shape = encoder if model == "encoder" else "{from: runs/talker}"
    place = run(recipe(folder, f"reward-{model}", "{name: reward}", PAIRS, shape), "train.steps=25")
    rewarder = regard.load(place)
    assert (rewarder.template is None) == (model == "encoder")
    good, bad = rewarder.reward(["Yes, red is.", "No!"], "Is red 3 good?")
    assert good > bad
    assert rewarder.reward("No!", [{"role": "user", "content": "Is red 3 good?"}]) == pytest.approx(bad, abs=1e-5)
    assert isinstance(rewarder.reward("Yes"), float)
    long = "Is red 3 good? " * 500  # leaves an answer no room: it is cut as in training
    assert rewarder.reward("No!", long) == pytest.approx(rewarder.reward("No!", long + "?"), abs=1e-5)
    if rewarder.template is None:
        with pytest.raises(ValueError, match="shorten it"):
            rewarder.reward("No!", long, long="refuse")
    found = judge(place, folder / "pairs.jsonl")
    assert found["rows"] == 80
    assert found["figures"]["accuracy"]["score"] > 0.9
    low, high = found["figures"]["margin"]["low"], found["figures"]["margin"]["high"]
    assert low < found["figures"]["margin"]["score"] < high
    # What is read is what was learnt from.
    task: Any = regard.api.told(place).task
    row = {
        "messages": [{"role": "user", "content": "Is red 3 good?"}],
        "chosen": "Yes.",
        "rejected": "No!",
        "where": "",
    }
    task = type(task)(**{**vars(task), "chat": rewarder.template or ""})
    (example,) = task.examples([row], rewarder.tokenizer)
    assert rewarder.framed([rewarder.given("Yes.", row["messages"])])[0][0].ids == list(example[0])


@pytest.mark.parametrize("task", ["reward", "prefer"])
def test_dialogues_that_are_one_text_are_learnt_from(task: str, folder: Path, talker: Path) -> None:
    """As hh-rlhf has them: two of all turns, of which the last answer differs; some are longer than the model reads."""
    rows = list[str]()
    for i, colour in enumerate(COLOURS * 20):
        asked = f"\n\nHuman: {i}?\n\nAssistant: Yes.\n\nHuman: {colour} {i}{'?' * 90 * (i % 4 == 0)}\n\nAssistant:"
        rows.append(json.dumps({"chosen": f"{asked} Yes, {colour} is.", "rejected": f"{asked} No!"}) + "\n")
    for name, some in (("dialogues", rows[:60]), ("held", rows[60:])):
        (folder / f"{name}.jsonl").write_text("".join(some))
    held = "valid: {jsonl: held.jsonl}, test: {jsonl: held.jsonl}"
    data = f"{{train: {{jsonl: dialogues.jsonl}}, {held}, max_length: 96}}"
    place = run(recipe(folder, f"dialogues-{task}", f"{{name: {task}}}", data, "{from: runs/talker}"))
    figures = json.loads((place / "evaluation.json").read_text())
    assert 0 <= figures["accuracy"]["score"] <= 1
    (row, *_) = prepare(reading.load(str(folder / f"dialogues-{task}.yaml"))).valid
    assert [each["role"] for each in row["messages"]] == ["user", "assistant", "user"]
    assert row["rejected"] == "No!"


def test_answers_are_judged_and_rewarded(folder: Path, talker: Path) -> None:
    silent = run(recipe(folder, "silent", "{name: converse}", TALKS), "train.steps=1")
    place = run(recipe(folder, "reward-answers", "{name: reward}", PAIRS, "{from: runs/talker}"), "train.steps=25")
    found = judge(talker, folder / "talks.json", against=silent, reward=place, search={})
    rows = json.loads((folder / "talks.json").read_text())
    model, rewarder = regard.load(talker), regard.load(place)
    said = [model.chat(row["instruction"]) for row in rows]
    thought = [rewarder.reward(text, row["instruction"]) for text, row in zip(said, rows, strict=True)]
    near = [100 * overlaps(text, row["output"])[-1] for text, row in zip(said, rows, strict=True)]
    figures = {name: x["score"] for name, x in found["figures"].items()}
    assert figures["reward"] == pytest.approx(np.mean(thought), abs=1e-5)
    assert figures["rougeL"] == pytest.approx(np.mean(near))
    task = Converse(96, CHATML)
    held = [
        {
            "messages": [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": row["output"]},
            ],
            "where": "",
        }
        for row in rows
    ]
    objective = NextToken(model.model, 0.0, IGNORE)
    with torch.no_grad():
        each = [packed([example]) for example in task.examples(held, model.tokenizer)]
        loss = sum(float(objective(**batch.tensors)) for batch in each) / sum(batch.count for batch in each)
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["against"]["loss"]["score"] < 0 < found["against"]["reward"]["score"]
    assert found["wins"] > 0.5
    with pytest.raises(ValueError, match="--reward is for a language model that answers"):
        judge(place, folder / "pairs.jsonl", reward=place)


def test_what_a_recipe_cannot_do_is_said(folder: Path, talker: Path) -> None:
    def refused(task: str, data: str = PAIRS, model: str = "{from: runs/talker}", *changes: str) -> str:
        with pytest.raises(ValueError, match=r".") as error:
            run(recipe(folder, "wrong", task, data, model), *changes)
        return str(error.value)

    assert "task.loss = dpo asks a reference: say by model.from" in refused("{name: prefer}", model=MODEL)
    assert "task.loss" in refused("{name: prefer, loss: dpi}")
    assert "exo needs more" in refused("{name: prefer, loss: exo}")
    assert "task.template = 'chatm': " in refused("{name: converse, template: chatm}", TALKS)
    assert "it must hold the 200 tokens" in refused(
        "{name: converse}", TALKS.replace("96", "200"), MODEL.replace("max_length", "positions: learned, max_length")
    )
    assert "no training pair is left: all 73" in refused("{name: prefer}", PAIRS.replace("96", "12"))
    shutil.copytree(talker, folder / "runs" / "full", dirs_exist_ok=True)
    (folder / "runs" / "full" / "chat_template.jinja").unlink()
    bare = Tokenizer.learn(TokensConfig("byte", 0), ["x"])
    bare.save(folder / "runs" / "full" / "tokenizer.json")
    said = refused("{name: converse}", TALKS, "{from: runs/full}")
    assert said.endswith("more tokens: choose plain, which needs none")
    assert "<|im_start|> and <|im_end|>" in said


def test_a_model_without_marks_is_taught_by_words_alone(folder: Path) -> None:
    path = recipe(folder, "plain", "{name: converse, template: plain}", TALKS)
    model = regard.load(run(path))
    assert model.template == PLAIN
    assert len(model.tokenizer) == model.model.config.vocabulary
    assert model.conversation("Is red 7 good?").text == "<s>### user\nIs red 7 good?\n### assistant\n"
    own = folder / "own.jinja"
    own.write_text(PLAIN.replace("###", "##"))
    path = recipe(folder, "own", "{name: converse, template: own.jinja}", TALKS)
    assert regard.load(run(path)).template == own.read_text()


def test_marks_take_the_room_that_a_model_has(folder: Path, talker: Path) -> None:
    """As those have whose vocabulary is rounded up."""
    roomy = folder / "runs" / "roomy"
    shutil.copytree(talker, roomy, dirs_exist_ok=True)
    (roomy / "chat_template.jinja").unlink()
    marked = Tokenizer.load(roomy / "tokenizer.json")
    texts = json.loads((folder / "talks.json").read_text())
    plain = Tokenizer.learn(TokensConfig("char", len(marked) - 2), [" ".join(each.values()) for each in texts])
    plain.save(roomy / "tokenizer.json")
    place = run(recipe(folder, "rooms", "{name: converse}", TALKS, "{from: runs/roomy}"))
    model = regard.load(place)
    assert len(model.tokenizer) == len(plain) + 2 <= model.model.config.vocabulary
    assert model.conversation("Is red 7 good?").end == len(plain) + 1
    assert Prefer(96, CHATML).tokens(plain).__reduce__() == model.tokenizer.__reduce__()


def test_the_page_shows_recipes_that_can_be_read_and_every_loss(folder: Path, talker: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "preferences.md").read_text("utf-8")
    shown = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 4
    for text in shown:
        (folder / "shown.yaml").write_text(re.sub(r"from: runs/[\w-]+", "from: runs/talker", text))
        reading.load(str(folder / "shown.yaml"))
    assert set(PREFERENCES) <= set(re.findall(r"`([a-z-]+)`", page))
