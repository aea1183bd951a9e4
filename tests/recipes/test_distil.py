"""A student learns from a teacher's translations, in the form of its corpus, and goes on wherever it was stopped."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import regard
from regard.api import Translator
from regard.data.dates import date_pairs
from regard.data.text import PairFiles
from regard.data.tokenizers import UNK
from regard.recipes import reading as recipes
from regard.recipes.distil import distil
from regard.recipes.prepare import find_splits
from regard.recipes.shortlist import make_shortlist
from regard.recipes.train import train

QUIET = Console(quiet=True)
YAML = """
data:
  train: {source: train.src, target: train.tgt}
  hold_out: 20
  max_length: 60
  languages: [xx, yy]
tokens: {kind: bpe, size: 320}
model: {preset: shallow, encoder_layers: 1, d_model: 32, d_ff: 64, dropout: 0.0}
train:
  steps: 50
  batch_tokens: 1024
  shards: 1
  schedule: {name: linear, peak: 0.02, warmup: 10}
  validate_every: 50
  validate_sentences: 8
decode: {beam: 2, extra: 5}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of this file shares a cache, and leaves the user's alone."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def cut(text: str) -> str:
    """A text in sub-words of at most two characters."""
    words = [[word[i : i + 2] for i in range(0, len(word), 2)] for word in text.split()]
    return " ".join("@@ ".join(word) for word in words)


def write(folder: Path, *, pieces: bool = False) -> Path:
    """Two parallel files of dates and a recipe for them."""
    folder.mkdir(exist_ok=True)
    pairs = [(pair.text, pair.iso.replace("-", " ")) for pair in islice(date_pairs(seed=1, locales=["en", "de"]), 200)]
    for side, name in enumerate(("train.src", "train.tgt")):
        lines = [cut(pair[side]) if pieces else pair[side] for pair in pairs]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    yaml = YAML.replace("{kind: bpe, size: 320}", "{kind: none, size: 0}") if pieces else YAML
    (folder / "dates.yaml").write_text(yaml)
    return folder


def student(folder: Path, *overrides: str) -> recipes.Recipe:
    return recipes.load(str(folder / "dates.yaml"), ["train.steps=4", *overrides])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with text, recipe and teacher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = write(tmp_path_factory.mktemp("dates"))
        train(recipes.load(str(folder / "dates.yaml")), folder / "teacher", name="teacher", console=QUIET)
        yield folder


def lines(run: Path, split: str = "train") -> list[dict[str, str]]:
    (folder,) = run.glob("distilled-*")
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()]


def test_a_student_learns_what_the_teacher_says_and_is_tested_on_what_people_said(made: Path, tmp_path: Path) -> None:
    recipe = student(made)
    assert distil(made / "teacher", recipe, tmp_path / "run", name="student", beam=3, console=QUIET)
    splits = find_splits(recipe)
    sources = [source for source, _ in splits.rows("train")]
    assert [line["source"] for line in lines(tmp_path / "run")] == sources
    said = [line["target"] for line in lines(tmp_path / "run")]
    assert said == regard.load(made / "teacher").translate(sources, beam=3)
    assert len({*said}) > 20  # the teacher has learnt something
    for split in ("valid", "test"):
        kept = [(line["source"], line["target"]) for line in lines(tmp_path / "run", split)]
        assert kept == list(splits.rows(split))
        assert not {source for source, _ in kept} & {*sources}
    run = recipes.load(str(tmp_path / "run" / "recipe.yaml"))
    assert run.data.languages == ("xx", "yy")
    assert run.data.valid == PairFiles(jsonl=str(next((tmp_path / "run").glob("distilled-*")) / "valid.jsonl"))
    assert isinstance(regard.load(tmp_path / "run").translate("March 5, 1987"), str)
    assert make_shortlist(tmp_path / "run").pairs == len([text for text in said if text.strip()])


def test_an_interrupted_teacher_goes_on_and_a_finished_one_is_not_asked_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, asked, ordinary = student(made), [0], Translator.translate_lines
    distil(made / "teacher", recipe, tmp_path / "through", name="student", beam=2, console=QUIET)

    def stopping(after: int) -> Any:
        def translate_lines(self: Translator, texts: Iterable[str], **settings: Any) -> Iterator[str]:
            for n, said in enumerate(ordinary(self, texts, **settings)):
                if n == after:
                    raise KeyboardInterrupt
                asked[0] += 1
                yield said

        return translate_lines

    run = tmp_path / "halves"
    for after in (60, 30):
        monkeypatch.setattr(Translator, "translate_lines", stopping(after))
        with pytest.raises(KeyboardInterrupt):
            distil(made / "teacher", recipe, run, name="student", beam=2, console=QUIET)
        (partial,) = run.glob("distilled-*/train.partial")
        with partial.open("ab") as file:
            file.write(b'{"source": "half of a li')  # as a kill leaves it
    assert asked == [90]
    monkeypatch.setattr(Translator, "translate_lines", stopping(10**9))
    distil(made / "teacher", recipe, run, name="student", beam=2, console=QUIET)
    assert lines(run) == lines(tmp_path / "through")
    assert not [*run.glob("distilled-*/*.partial")]
    weights = (run / "model.safetensors").read_bytes()
    assert weights == (tmp_path / "through" / "model.safetensors").read_bytes()

    (run / "model.safetensors").unlink()
    monkeypatch.setattr(Translator, "translate_lines", ordinary)
    before = next(run.glob("distilled-*/train.jsonl")).stat().st_mtime_ns
    assert distil(made / "teacher", recipe, run, name="student", beam=2, console=QUIET)
    assert next(run.glob("distilled-*/train.jsonl")).stat().st_mtime_ns == before
    assert (run / "model.safetensors").read_bytes() == weights


def test_mixed_each_sentence_has_both_translations(made: Path, tmp_path: Path) -> None:
    recipe = student(made, "data.limit=40", "tokens.size=270", "train.steps=1")
    assert distil(made / "teacher", recipe, tmp_path, name="student", beam=1, mix=True, console=QUIET)
    people = list(islice(find_splits(recipe).rows("train"), 40))
    said = regard.load(made / "teacher").translate([source for source, _ in people], beam=1)
    found = [(line["source"], line["target"]) for line in lines(tmp_path)]
    assert found[1::2] == people
    assert found[::2] == [(source, text) for (source, _), text in zip(people, said, strict=True)]


def test_text_in_sub_words_stays_in_sub_words(tmp_path: Path) -> None:
    folder = write(tmp_path, pieces=True)
    recipe = recipes.load(str(folder / "dates.yaml"), ["decode.split=false"])
    train(recipe, folder / "teacher", name="teacher", console=QUIET)
    assert distil(folder / "teacher", student(folder), folder / "run", name="student", beam=1, console=QUIET)
    teacher = regard.load(folder / "teacher")
    said = [line["target"] for line in lines(folder / "run")]
    assert sum("@@ " in text for text in said) > len(said) / 2
    assert all(UNK not in teacher.tokenizer.encode(text) for text in said)
    joined = teacher.translate([line["source"] for line in lines(folder / "run")], beam=1)
    assert [teacher.tokenizer.decode(teacher.tokenizer.encode(text)) for text in said] == joined
    learnt = regard.load(folder / "run").tokenizer
    assert {piece for text in said for piece in text.split()} <= {*learnt.pieces(range(len(learnt)))}


def test_what_cannot_be_done_is_said(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"tokens are of kind bpe and the student's of none"):
        distil(made / "teacher", student(made, "tokens.kind=none"), tmp_path / "run", name="s", console=QUIET)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"mine is not empty, and not a run of regard"):
        distil(made / "teacher", student(made), tmp_path / "mine", name="s", console=QUIET)
    with pytest.raises(ValueError, match=r"teacher is a run on other data: choose another place"):
        distil(made / "teacher", student(made), made / "teacher", name="s", console=QUIET)
    with pytest.raises(ValueError, match=r"nobody is not a directory"):
        distil(tmp_path / "nobody", student(made), tmp_path / "run", name="s", console=QUIET)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="begin without torchrun"):
        distil(made / "teacher", student(made), tmp_path / "run", name="s", console=QUIET)


def test_the_shipped_student_reads_what_its_teacher_reads() -> None:
    teacher, recipe = recipes.load("multi30k-en-de"), recipes.load("multi30k-en-de-student")
    assert (recipe.data, recipe.tokens, recipe.evaluate) == (teacher.data, teacher.tokens, teacher.evaluate)
    shape = recipe.model.build(9712)
    assert (shape.encoder_layers, shape.decoder_layers) == (6, 1)


def test_a_directory_where_another_process_is_at_work_is_left_alone(
    made: Path, tmp_path: Path, occupy: Callable[[Path], object]
) -> None:
    occupy(tmp_path / "run")
    with pytest.raises(ValueError, match=r"another process is at work in .*run: wait for its end"):
        distil(made / "teacher", student(made), tmp_path / "run", name="run", console=QUIET)
    assert list((tmp_path / "run").iterdir()) == []
