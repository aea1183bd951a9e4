"""A language model that sees, from files to answers: learnt alone or from two directories, asked and judged."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.core.outputs import HeadConfig
from regard.data.chat import CHATML, MARKED, ChatTemplate, with_marks
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.files import cache_folder
from regard.models import storage
from regard.models.family import build, configure
from regard.recipes import reading as recipes
from regard.recipes.train import train
from regard.tasks.asks import Writing
from regard.tasks.look import asked
from tests.captions import captioned
from tests.eyes import eyes, png

YAML = """
task: {name: look, question: "What is it?"}
data: {train: {jsonl: train.jsonl}, valid: {jsonl: test.jsonl}, test: {tsv: test.tsv}, max_length: 24}
tokens: {kind: bpe, size: 290}
model: MODEL
train: {steps: 100, batch_rows: 16, smoothing: 0.0, schedule: {name: linear, peak: 0.01, warmup: 4}, validate_every: 99}
decode: {sampling: null, beam: 1, limit: 12}
"""
TINY = """{preset: seer-tiny, size: 16, convolutions: 2, layers: 2, d_model: 32, d_ff: 64, heads: 2, picture_layers: 1,
        picture_d_model: 32, picture_d_ff: 64, picture_heads: 2}"""
QUIET = Console(quiet=True)
PARTS = """{% for m in messages %}{{ m['role'].upper() + ': ' }}
{%- for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}
{%- for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c['text'] + ' ' }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("look")
    captioned(made, "train", 90, 0)
    captioned(made, "test", 12, 1)
    (made / "cache").mkdir()
    (cache_folder() / "native").mkdir(parents=True, exist_ok=True)
    (made / "cache" / "native").symlink_to(cache_folder() / "native")  # an engine need not be compiled for this
    return made


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


def learn(place: Path, name: str, model: str, *overrides: str) -> Path:
    """The run of a model, made once."""
    if not (place / name).exists():
        (place / f"{name}.yaml").write_text(YAML.replace("MODEL", model))
        train(recipes.load(str(place / f"{name}.yaml"), overrides), place / name, name=name, console=QUIET)
    return place / name


def invoke(*words: object, stdin: str = "") -> str:
    result = CliRunner().invoke(cli.app, [*map(str, words)], input=stdin, env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def fail(capsys: Any, monkeypatch: Any, *words: object) -> str:
    monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    _, error = capsys.readouterr()
    assert (end.value.code, error.count("\n")) == (2, 1), error
    return str(error)


def test_it_answers_what_pictures_show(place: Path) -> None:
    looker = regard.load(learn(place, "run", TINY))
    pictures = [str(place / f"test{i}.png") for i in range(12)]
    said = [looker.chat("What is it?", images=[each]) for each in pictures]
    assert [("red", "green", "blue")[i % 3] in text for i, text in enumerate(said)].count(True) >= 11
    assert looker.caption(pictures[1]) == said[1]
    figures = json.loads((place / "run" / "evaluation.json").read_text())
    assert [*figures] == ["bleu1", "bleu2", "bleu3", "bleu4", "cider"]
    assert figures["bleu4"]["score"] > 80
    told = json.loads(invoke("evaluate", place / "run", place / "test.jsonl", "--json"))
    assert told["figures"]["cider"]["score"] == pytest.approx(figures["cider"]["score"])


def test_the_command_is_shown_a_picture(place: Path) -> None:
    run, image = learn(place, "run", TINY), place / "test2.png"
    expected = regard.load(run).chat("What is it?", images=[image])
    assert invoke("chat", run, "What is it?", "--image", image) == f"{expected}\n"
    assert invoke("caption", run, image) == f"{image}\t{expected}\n"
    alone = regard.load(run).chat("What is it?")
    assert invoke("chat", run, "What is it?") == f"{alone}\n"
    # A conversation goes on about the picture that it began with.
    first, second = invoke("chat", run, "--image", image, stdin="What is it?\nAnd now?\n").splitlines()
    before = [*asked("What is it?", [image]), {"role": "assistant", "content": first}]
    assert second == regard.load(run).chat([*before, {"role": "user", "content": "And now?"}])


def test_what_cannot_be_shown_is_refused_in_a_line(place: Path, monkeypatch: Any, capsys: Any) -> None:
    run = learn(place, "run", TINY)
    assert "train.jsonl is no picture" in fail(capsys, monkeypatch, "chat", run, "x", "--image", place / "train.jsonl")
    talker = language(place / "talker")
    error = fail(capsys, monkeypatch, "chat", talker, "x", "--image", place / "test0.png")
    assert "reads text alone" in error
    assert "is a picture, and texts are read here" in fail(capsys, monkeypatch, "chat", talker, place / "test0.png")
    with pytest.raises(ValueError, match="reads text alone"):
        regard.load(talker).chat(asked("x", [place / "test0.png"]))
    assert "sees pictures" in fail(capsys, monkeypatch, "heads", run, "--text", place / "train.tsv")


def test_a_resumed_run_is_the_same_model_bit_for_bit(place: Path) -> None:
    through = learn(place, "short", TINY, "train.steps=4", "train.checkpoint_every=2", "train.validate_every=4")
    half = place / "half"
    shutil.copytree(through, half)
    shutil.rmtree(next((half / "trainer").glob("step-00000004*")))
    (half / "model.safetensors").unlink()
    train(recipes.load(str(half / "recipe.yaml")), half, name="half", resume=True, console=QUIET)
    a, b = (load_file(run / "model.safetensors") for run in (through, half))
    assert a.keys() == b.keys()
    assert [key for key in a if not torch.equal(a[key], b[key])] == []


def test_an_answer_does_not_hang_on_its_company(tmp_path: Path) -> None:
    looker = regard.load(eyes(tmp_path / "look", "look"), bitwise=True)
    prompts = [looker.conversation(asked("What is it?", [png(i)])) for i in range(4)]
    prompts.insert(2, looker.conversation("What is it?" * 3))
    how = Writing.of({"limit": 6}, looker.decode)
    together = [found.text for found, *_ in looker.answers(prompts, how)]
    assert together == [looker.answers([each], how)[0][0].text for each in prompts]
    assert "".join(looker.stream(prompts[0], limit=6)) == together[0]


def language(directory: Path) -> Path:
    """A small language model that talks, with weights by chance."""
    tokens = with_marks(Tokenizer.learn(TokensConfig("byte", size=0), ["x"]), MARKED[CHATML])
    torch.manual_seed(3)
    small = ["layers=2", "d_model=32", "d_ff=48", "heads=2", "kv_heads=1"]
    model = build(configure("llama-tiny", small, vocabulary=len(tokens)))
    storage.save(model, directory, storage.Purpose({"name": "generate"}, {}))
    tokens.save(directory / "tokenizer.json")
    (directory / storage.TEMPLATE).write_text(CHATML)
    return directory


def vision(directory: Path) -> Path:
    """A small ViT with weights by chance, which sees in its own way."""
    torch.manual_seed(4)
    config = configure("vit-tiny", ["size=16", "patch=4", "d_model=24", "d_ff=32", "heads=2", "layers=2"])
    sight = {"size": 16, "mean": [0.3, 0.4, 0.5], "std": [0.2, 0.2, 0.2]}
    purpose = storage.Purpose({"name": "recognise", "labels": ["a", "b"], "sight": sight}, {})
    storage.save(build(config, HeadConfig("classes", 2)), directory, purpose)
    return directory


@pytest.mark.parametrize("sees", ["vit", "clip"])
def test_a_language_model_learns_to_see_by_another_model(place: Path, sees: str) -> None:
    talker, tower = language(place / "talker"), place / sees
    vision(tower) if sees == "vit" else eyes(tower, "match")
    few = ("train.steps=3", "train.validate_every=3", "train.freeze=[sight.*]")
    lora = learn(place, f"{sees}-lora", f"{{from: talker, sees: {sees}}}", *few, "changes=[{lora: {rank: 2}}]")
    whole = learn(place, f"{sees}-whole", f"{{from: talker, sees: {sees}}}", *few)
    theirs, own = load_file(talker / "model.safetensors"), load_file(lora / "model.safetensors")
    assert not theirs.keys() & own.keys()  # what it adds to the language model, and no more
    assert {name.split(".")[0] for name in own} == {"sight", "project", "decoder"}
    assert all("lora" in name for name in own if name.startswith("decoder."))
    first = {name.removeprefix("picture_"): x for name, x in load_file(tower / "model.safetensors").items()}
    for run in (lora, whole):
        model = regard.load(run).model.state_dict()
        seen = {name.removeprefix("sight."): x for name, x in model.items() if name.startswith("sight.")}
        plain = {name: x for name, x in seen.items() if "lora" not in name and not name.startswith("output")}
        assert plain.keys() <= first.keys()
        prefix = "picture_" if sees == "clip" else ""
        held = load_file(tower / "model.safetensors")
        assert [name for name in plain if not torch.equal(plain[name], held[prefix + name])] == []
        assert torch.equal(model["stem.tokens.weight"], theirs["stem.tokens.weight"]) is (run == lora)
    looker, image = regard.load(lora), np.asarray(Image.open(place / "test0.png"))
    assert looker.viewer.sight.mean == ((0.3, 0.4, 0.5) if sees == "vit" else (0.5,))
    assert looker.chat("What is it?", images=[image]) == looker.chat("What is it?", images=[place / "test0.png"])


def test_what_does_not_go_together_is_said(place: Path, tmp_path: Path) -> None:
    language(place / "talker"), vision(place / "vit")
    for model, message in (
        ("{from: vit, sees: talker}", "a language model sees by an encoder of pictures"),
        ("{sees: vit}", "name that one by model.from"),
        ("{from: talker, sees: nowhere}", "nowhere is not a directory"),
        ("{from: talker}", "does not see"),
        (TINY.replace("size: 16", "size: 16, image: 9999999"), "is no token"),
        (TINY.replace("size: 16", "size: 16, before_end: 2"), "at least one is read"),
    ):
        (place / "wrong.yaml").write_text(YAML.replace("MODEL", model))
        with pytest.raises(ValueError, match=message):
            recipes.load(str(place / "wrong.yaml"))
    (place / "wrong.yaml").write_text(YAML.replace("MODEL", "{from: talker, sees: vit}"))
    recipe = recipes.load(str(place / "wrong.yaml"))
    (place / "again.yaml").write_text(recipes.dump(recipe))
    assert recipes.load(str(place / "again.yaml")) == recipe


def test_rows_may_ask_their_own_questions(place: Path) -> None:
    rows = [
        {"image": "test0.png", "question": "Which colour?", "caption": "red"},
        {"image": "test0.png", "question": "Is it blue?", "caption": ["no", "not at all"]},
        {"image": "test1.png", "caption": "green"},
    ]
    (place / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = learn(place, "run", TINY)
    recipe = recipes.load(str(run / "recipe.yaml"), [f"data.train.jsonl={place / 'own.jsonl'}"])
    task, tokens = recipe.purpose(), Tokenizer.load(run / "tokenizer.json")
    found = list(recipe.data.train.read())
    assert [(len(row["captions"]), row.get("question")) for row in found] == [
        (1, "Which colour?"),
        (2, "Is it blue?"),
        (1, None),
    ]
    asks = [tokens.decode([i for i in question if i < len(tokens)]) for _, question, _ in task.examples(found, tokens)]
    assert [ask.split("\n")[2].strip() for ask in asks] == ["Which colour?", "Is it blue?", "What is it?"]
    looker = regard.load(run)
    read = list(looker.conversation(task.messages(found[0])).ids or ())
    assert read.count(-1) == looker.model.config.places  # and all else is what it has learnt from
    (_, question, _), *_ = task.examples(found, tokens)
    assert [i for i in read if i >= 0] == [i for i in question if i < len(tokens)]


def test_templates_that_take_parts_are_given_parts() -> None:
    tokens = with_marks(Tokenizer.learn(TokensConfig("byte", size=0), ["x"]), ["<image>"])
    chat = ChatTemplate(PARTS, tokens)
    text, ids = chat.encode(asked("what is an <image>?", ["a.jpg", "b.jpg"]))
    assert text == "USER: <image>\n<image>\nwhat is an <image>? ASSISTANT:"
    assert ids.count(tokens.rust.token_to_id("<image>")) == 2  # what a person says is text
    plain = ChatTemplate(CHATML, with_marks(tokens, MARKED[CHATML]))
    _, ids = plain.encode(asked("hi \ufdd4", ["a.jpg"]))
    assert ids.count(-1) == 1
