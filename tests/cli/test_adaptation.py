"""What is wrong with what is to be added to a model: one line each, exit 2, and nothing is lost by it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from regard import cli
from regard.models import storage
from tests.chats import CHATML, talker
from tests.serving.toys import adapted, directory, model, writer

LORA = {"lora": {"rank": 2}}
RECIPE = """
data:
  train: {source: train.src, target: train.tgt}
  hold_out: 4
model: {from: BASE}
train: {steps: 1, batch_tokens: 64, shards: 1, optimiser: {name: adamw}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, what adds to it, a run of it, and a recipe to add something else."""
    folder = tmp_path_factory.mktemp("wrong")
    base = directory(folder / "base")
    adapted(folder / "lora", base, LORA)
    adapted(folder / "run", base, LORA)
    (folder / "add.yaml").write_text(RECIPE.replace("BASE", str(base)))
    for name in ("train.src", "train.tgt"):
        (folder / name).write_text("a dog runs\n" * 20)
    return folder


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The one line that a command line ends with."""

    def asked(*arguments: object) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, errors = capsys.readouterr()
        assert (end.value.code, out, errors.count("\n")) == (2, "", 1), errors
        return errors

    return asked


def held(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            "[{lora: {rank: 33}}]",
            "rank = 33: the query of encoder.layers.0.self_attention.sublayer.query_key_value is 32 x",
        ),
        (
            "[{lora: {}}, {lora: {rank: 2}}]",
            "there is something called 'lora' already: give each change a name of its own",
        ),
        ("[{lora: {name: a}}, {adapter: {name: a}}]", "there is something called 'a' already: give each change a name"),
        ("[{lora: {name: prompt}}]", "name = 'prompt': its tensors are called by it, so it is a word, but not prompt"),
        ("[{prompt: {}}, {prompt: {}}]", "there is something called 'prompt' already"),
        ("[{lora: {rnak: 2}}]", "the change lora has no setting 'rnak': did you mean 'rank'?"),
        ("[{lroa: {}}]", "unknown change 'lroa': did you mean 'lora'?"),
        ("[{lora: {where: [gate]}}]", "lora finds nothing to change: a Transformer model has no product gate"),
        ("[{ia3: {where: [gate]}}]", "ia3 finds nothing to change"),
        ("[{lora: {alpha: 0}}]", "alpha = 0: it must be above 0"),
        ("[{lora: {dropout: 1.5}}]", "dropout"),
        ("[lora]", "changes"),
        ("[{}]", "they are a list of objects with one name each"),
        ("[{lora: {}, ia3: {}}]", "they are a list of objects with one name each"),
        ("[{int8: {}}]", "changes = int8: in a recipe they add parameters; make the others by a verb"),
    ],
)
def test_what_cannot_be_added(folder: Path, wrong: Any, changes: str, message: str) -> None:
    before = held(folder / "run")
    said = wrong("train", folder / "add.yaml", f"changes={changes}", "--out", folder / "run", "--overwrite")
    assert message in said
    assert held(folder / "run") == before  # what was there is there still


def test_a_run_of_one_name_upon_another_of_that_name(folder: Path, wrong: Any) -> None:
    asked = (f"model.from={folder / 'lora'}", "changes=[{lora: {rank: 2}}]", "--out", folder / "second")
    assert "there is something called 'lora' already" in wrong("train", folder / "add.yaml", *asked)
    assert not (folder / "second").exists()


@pytest.mark.parametrize("verb", [("translate", "{}", "a dog"), ("info", "{}"), ("merge", "{}", "{}-merged")])
def test_a_lora_of_another_base(tmp_path: Path, wrong: Any, verb: tuple[str, ...]) -> None:
    base = directory(tmp_path / "base")
    adapted(tmp_path / "lora", base, LORA)
    storage.save(model(seed=9), base)
    before = held(tmp_path / "lora")
    said = wrong(*(part.replace("{}", str(tmp_path / "lora")) for part in verb))
    assert "adds to another model than that in" in said
    assert "say where the right one is, by base" in said
    assert held(tmp_path / "lora") == before
    assert not (tmp_path / "lora-merged").exists()


def test_what_is_not_there_to_be_left_off(folder: Path, wrong: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    said = wrong("inspect", folder / "lora", "a dog", "-o", out, "--without", "loro")
    assert "nothing that was added to this model is called 'loro': did you mean 'lora'?" in said
    said = wrong("inspect", folder / "base", "a dog", "-o", out, "--without", "lora")
    assert "nothing was added to" in said
    assert not out.exists()


def conversations(tmp_path: Path, task: str, rows: list[dict[str, Any]]) -> Path:
    base = writer(tmp_path / "base")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "talk.yaml"
    path.write_text(
        f"task: {task}\ndata: {{train: {{jsonl: {tmp_path / 'rows.jsonl'}}}, hold_out: 2, max_length: 96}}\n"
        f"model: {{from: {base}}}\nchanges: [{{lora: {{rank: 2}}}}]\n"
        "train: {steps: 1, batch_tokens: 256, smoothing: 0.0, optimiser: {name: adamw}}\n"
    )
    return path


def test_a_template_without_an_answer(tmp_path: Path, wrong: Any) -> None:
    template = tmp_path / "mute.jinja"
    template.write_text("{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}")
    rows = [{"prompt": f"Is it {i}?", "response": "Yes."} for i in range(60)]
    path = conversations(tmp_path, f"{{name: converse, template: {template}}}", rows)
    said = wrong("train", path, "--out", tmp_path / "out")
    assert "the chat template writes 0 of 1 answers: there is nothing to learn" in said


@pytest.mark.parametrize(("chosen", "why"), [("No.", "twice the same one"), ("", "have an empty answer")])
def test_pairs_that_prefer_nothing(tmp_path: Path, wrong: Any, chosen: str, why: str) -> None:
    rows = [{"prompt": f"Is it {i}?", "chosen": chosen, "rejected": "No."} for i in range(9)]
    said = wrong("train", conversations(tmp_path, "{name: prefer, template: plain}", rows), "--out", tmp_path / "out")
    assert f"9 of 9 pairs have an empty answer, {why}" in said or why in said
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "integer", "minimum": 3, "maximum": 2}',
        '{"enum": []}',
        '{"allOf": [{"type": "string"}, {"type": "null"}]}',
    ],
)
def test_a_schema_that_nothing_satisfies(tmp_path: Path, wrong: Any, schema: str) -> None:
    pytest.importorskip("llguidance")
    _, place = talker(tmp_path, "bytes", CHATML)
    assert "the schema" in (said := wrong("generate", place, "a", "--schema", schema))
    assert "nothing" in said


def test_the_base_is_pictured_without_a_server_and_each_change_named(folder: Path, tmp_path: Path) -> None:
    def told(*arguments: object) -> str:
        found = CliRunner().invoke(cli.app, [*map(str, arguments)], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    several = adapted(folder / "several", folder / "base", {"lora": {"rank": 2}}, {"ia3": {}})
    for name, which, off in (("base", "base", []), ("all", "several", ["all"]), ("each", "several", ["lora", "ia3"])):
        out = tmp_path / f"{name}.npz"
        told("inspect", folder / which, "a dog", "-o", out, *(x for each in off for x in ("--without", each)))
    told("inspect", several, "a dog", "-o", tmp_path / "on.npz")
    found = {path.stem: np.load(path) for path in tmp_path.glob("*.npz")}
    for name in found["base"]:
        assert np.array_equal(found["base"][name], found["all"][name])
        assert np.array_equal(found["base"][name], found["each"][name])
    assert any(not np.array_equal(found["base"][name], found["on"][name]) for name in found["base"])
    told("inspect", several, "a dog", "-o", tmp_path / "a.html", "--without", "ia3")
    assert "Of what was added to the model, ia3 is off." in (tmp_path / "a.html").read_text("utf-8")
    text = told("info", several)
    assert "  lora r=2 on 12 matrices: 1,536 parameters\n" in text
    assert "  ia3 on 16 matrices: 512 parameters\n" in text
    about = json.loads(told("info", several, "--json"))
    assert [each["name"] for each in about["changes"]] == ["lora", "ia3"]
    assert sum(each["parameters"] for each in about["changes"]) == about["base"]["taught"]
    assert json.loads(told("info", folder / "base", "--json"))["changes"] == []
