"""A language model from plain text to answers: blocks without waste, documents apart, figures that add up."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data.arrays import Column, Table
from regard.data.documents import Passage, TextFiles
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.vocabulary import Marks
from regard.decoding.beam import Beam
from regard.decoding.sampling import Sampling
from regard.models import storage
from regard.models.family import build, configure
from regard.recipes import reading
from regard.recipes import train as module
from regard.recipes.train import train
from regard.studies.evaluate import foretell
from regard.tasks.generate import Generate, blocks, sliding
from regard.tasks.generator import Generator
from regard.tasks.texts import Blocks, TextConfig
from regard.training.objectives import IGNORE

MARKS = Marks(0, 1, 2, 3)
TEXT = "the cat sat on the mat. the dog sat on the log.\n" * 30
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def generator() -> Generator:
    torch.manual_seed(0)
    tokens = Tokenizer.learn(TokensConfig("char", size=0), [TEXT])
    model = build(configure("llama-tiny", ["layers=2", "d_model=32", "heads=4", "kv_heads=2"], vocabulary=len(tokens)))
    task = Generate(block=16)
    return task.open([model], tokens, task.sections.decode(limit=20, sampling=None, beam=1), engine="torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a recipe for it, and the run of that."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(8000)))
    (folder / "lm.yaml").write_text(
        """
task: {name: generate, block: 32}
data: {train: {text: text.txt}, hold_out: 2}
tokens: {kind: char, size: 0}
model: {preset: gpt-tiny, layers: 2, d_model: 32, d_ff: 64, heads: 2, max_length: 64}
train: {steps: 12, batch_tokens: 256, smoothing: 0.0, checkpoint_every: 4, shards: 1, validate_every: 6}
decode: {limit: 30}
"""
    )
    assert train(reading.load(str(folder / "lm.yaml")), folder / "run", name="lm", console=QUIET)
    return folder


def naive(generator: Generator, prompt: str, limit: int) -> str:
    """Greedy, by reading everything anew for each token."""
    ids = generator.ids(prompt)
    start = len(ids)
    for _ in range(limit):
        logits = generator.model(torch.tensor([ids]))[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == generator.eos:
            break
    return generator.tokenizer.decode(ids[start:])


def test_what_is_written_is_what_the_slow_truth_writes_in_any_company(generator: Generator) -> None:
    prompts = ["the c", "", "the dog sat", "log", "the cat sat on the mat. t"]
    alone = [naive(generator, prompt, 20) for prompt in prompts]
    assert generator.generate(prompts) == alone
    assert [generator.generate(prompt) for prompt in prompts] == alone
    assert ["".join(generator.stream(prompt)) for prompt in prompts] == alone


def test_chance_hangs_on_the_seed_and_the_prompt(generator: Generator) -> None:
    drawn = generator.completions(["the c", "the d"], temperature=1.0, best=3, seed=5)
    again = generator.completions("the c", temperature=1.0, best=3, seed=5)
    assert [each.text for each in drawn[0]] == [each.text for each in again]
    assert len({each.text for row in drawn for each in row}) > 3
    assert generator.generate("the c", temperature=1.0, seed=6) != again[0].text


def test_scores_are_the_models_own(generator: Generator) -> None:
    (found,) = generator.completions("the c", beam=3, limit=7)
    ids = generator.tokenizer.encode(found.text)
    whole = [*generator.ids("the c"), *ids]
    log_p = generator.model(torch.tensor([whole]))[0].log_softmax(-1)
    own = [float(log_p[len(whole) - len(ids) - 1 + i, id]) for i, id in enumerate(ids)]
    assert found.token_scores[: len(ids)] == pytest.approx(own, abs=1e-4)
    (score,) = generator.score(["the cat"])
    ids = [*generator.ids("the cat"), generator.eos]
    log_p = generator.model(torch.tensor([ids]))[0].log_softmax(-1)
    assert score.token_scores == pytest.approx([float(log_p[i, id]) for i, id in enumerate(ids[1:])], abs=1e-5)
    assert score.tokens[-1] == "</s>"
    both = generator.score(["the cat", "a"])
    assert both[0].token_scores == pytest.approx(score.token_scores, abs=1e-5)


def test_a_stop_text_ends_it_and_is_left_out(generator: Generator) -> None:
    said = naive(generator, "the c", 20)
    stop = said[7:9]
    expected = said[: said.index(stop)]
    (found,) = generator.completions("the c", stop=[stop, "@@"])
    assert (found.text, found.why) == (expected, "stop")
    assert "".join(generator.stream("the c", stop=stop)) == expected
    assert generator.generate("the c", stop=stop, echo=True) == "the c" + expected
    assert generator.completions("the c", limit=3)[0].why == "length"


def test_bad_questions_are_told(generator: Generator) -> None:
    with pytest.raises(ValueError, match="there is no setting 'temprature': did you mean 'temperature'"):
        generator.generate("a", temprature=1.0)
    with pytest.raises(ValueError, match="a stop text is empty"):
        generator.generate("a", stop=[""])
    with pytest.raises(ValueError, match="best = 2: one output can be streamed"):
        list(generator.stream("a", best=2, beam=2))
    tokens = generator.tokenizer
    short = build(configure("gpt-tiny", ["layers=1", "d_model=16", "heads=2", "max_length=8"], vocabulary=len(tokens)))
    bounded = Generate().open([short], tokens, Generate.sections.decode(limit=None), engine="torch")
    with pytest.raises(ValueError, match="'the cat sat on' has 15 sub-words, the model has 8 places: shorten it"):
        bounded.generate("the cat sat on")
    assert len(tokens.encode(bounded.generate("the c", sampling=None, beam=1))) <= 3
    with pytest.raises(ValueError, match="writes without end: say how much by `limit`"):
        Generate().open([generator.model], tokens, Generate.sections.decode(limit=None), engine="torch").generate("a")


@pytest.mark.parametrize("kind", ["bpe", "byte", "char"])
def test_the_tokens_of_passages_are_those_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text = "".join(f"line {i} of a text, with words between\n\n" for i in range(40))
    (tmp_path / "a.txt").write_text(text)
    tokens = Tokenizer.learn(TokensConfig(kind, size=280), [text])
    monkeypatch.setattr("regard.data.documents.PASSAGE", 50)
    passages = list(TextFiles(str(tmp_path / "a.txt")).read())
    assert len(passages) > 10
    ids = [id for (row,) in Generate().examples(passages, tokens) for id in row]
    assert ids == [1, *tokens.encode(text), 2]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_label_is_foretold_once(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(4, 9), min_size=2, max_size=60))
    block = data.draw(st.integers(1, 12))
    stride = data.draw(st.integers(1, 12))
    seen = [label for window, skip in sliding(ids, block, stride) for label in window[1 + skip :]]
    assert seen == ids[1:]
    assert all(len(window) <= block + 1 for window, _ in sliding(ids, block, stride))


def test_documents_in_a_block_do_not_see_each_other(generator: Generator) -> None:
    first, second = [1, 5, 6, 7, 2], [1, 8, 9, 10, 11, 2]
    batch = blocks([[*first, *second]], MARKS, apart=True)
    assert batch["labels"][0].tolist() == [5, 6, 7, 2, IGNORE, 8, 9, 10, 11, 2]
    assert batch.count == 9
    for preset in ("llama-tiny", "gpt-tiny"):
        torch.manual_seed(0)
        model: Any = build(configure(preset, ["layers=2", "d_model=32", "heads=4"], vocabulary=20)).eval()
        apart = model(**batch.inputs)[0]
        torch.testing.assert_close(apart[:4], model(torch.tensor([first[:-1]]))[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(apart[5:], model(torch.tensor([second[:-1]]))[0], atol=1e-5, rtol=0)
    model = build(configure("llama-tiny", ["d_model=32", "heads=4", "self_attention=segments:4:4"], vocabulary=20))
    with pytest.raises(
        ValueError, match=r"self_attention = segments:4:4 keeps no documents .*: set task.apart to false"
    ):
        model(**batch.inputs)
    assert "documents" not in blocks([[*first, *second]], MARKS, apart=False).tensors
    same = blocks([[5, 6, 2, 7, 8]], Marks(0, 2, 2), apart=True)  # one mark between documents
    assert same["labels"][0].tolist() == [6, 2, 7, 8]
    assert same["documents"][0].tolist() == [0, 0, 0, 1]


def test_blocks_go_through_the_text_without_waste(tmp_path: Path) -> None:
    rows = [([i, i + 1, i + 2],) for i in range(0, 90, 3)]
    table = Table.build(tmp_path / "t", rows, {"tokens": Column.ids(100)})
    corpus = Blocks(table, 8)
    assert corpus.tokens == 90
    assert len(corpus) == 11
    windows = [ids.tolist() for (ids,) in corpus.rows(np.arange(11))]
    assert windows[3] == list(range(24, 40))
    assert windows[-1] == list(range(80, 90))
    collate = Generate(block=8).collate(Tokenizer.learn(TokensConfig("char", size=0), ["a"]), 0.0)
    batch = collate(corpus.rows(np.arange(11)), Random(1))
    assert batch["tokens"].shape == (11, 8)
    assert (batch["labels"][batch["labels"] != IGNORE] - batch["tokens"][batch["labels"] != IGNORE] == 1).all()
    again = collate(corpus.rows(np.arange(11)), Random(1))
    assert torch.equal(batch["tokens"], again["tokens"])
    assert not torch.equal(batch["tokens"], collate(corpus.rows(np.arange(11)), Random(2))["tokens"])


def test_bits_a_byte_compare_models_of_other_tokens(generator: Generator) -> None:
    held_out = [Passage("the cat sat", True, False), Passage(" on the mat.", False, True)]
    task = Generate(block=100)
    found = task.foretell(generator, held_out, 100)
    (whole,) = generator.score(["the cat sat on the mat."])
    nats = -whole.log_probability
    assert found["loss"] == pytest.approx(nats / 24, rel=1e-5)
    assert found["bits a byte"] == pytest.approx(nats / math.log(2) / 23, rel=1e-5)
    assert found["perplexity a word"] == pytest.approx(math.exp(nats / 6), rel=1e-4)


@pytest.mark.parametrize("kind", ["char", "unigram"])
def test_stretches_of_a_text_have_its_tokens_bytes_and_words(generator: Generator, kind: str) -> None:
    """Whatever the sub-words are: so two models are drawn the same ones."""
    tokens = Tokenizer.learn(TokensConfig(kind, 0 if kind == "char" else 275), [TEXT])
    torch.manual_seed(1)
    model = build(configure("gpt-tiny", ["layers=1", "d_model=16", "heads=2"], vocabulary=len(tokens)))
    task = Generate(block=64)
    own = task.open([model], tokens, task.sections.decode(), engine="torch")
    text = "the cät sat on the mat. " * 40
    held_out = [Passage(text[:407], True, False), Passage(text[407:], False, True)]
    found = task.evidence(own, held_out, 32)
    assert found.rows == 20
    whole = found.figures(np.arange(20))
    assert whole.keys() == task.foretell(generator, [Passage("the cat", True, True)], 8).keys()
    nats = [found.figures(np.array([i]))["bits a byte"] * len(text[i * 48 : i * 48 + 48].encode()) for i in range(20)]
    assert sum(nats) == pytest.approx(whole["bits a byte"] * len(text.encode()))
    words = [len(text[i * 48 : i * 48 + 48].split()) for i in range(20)]
    assert set(words) == {12}
    assert found.figures(np.array([3]))["perplexity a word"] == pytest.approx(2 ** (nats[3] / 12))
    assert np.std(nats[1:-1]) < 0.2 * np.mean(nats)  # each has its own tokens, and not those of another


def test_two_language_models_are_compared_on_the_same_stretches(folder: Path, tmp_path: Path) -> None:
    held = tmp_path / "held.txt"
    held.write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(9000, 9100)))
    other = tmp_path / "other"
    shutil.copytree(folder / "run", other)
    model = storage.load(other)
    with torch.no_grad():
        for each in model.parameters():
            each += 0.5 * torch.randn_like(each)
    storage.save(model, other, storage.purpose(other))
    ours, theirs = foretell(folder / "run", held, against=other), foretell(other, held)
    names = ["loss", "perplexity", "bits a byte", "perplexity a word", "accuracy"]
    assert list(ours["figures"]) == list(ours["against"]) == names
    for name in names:
        figure = ours["figures"][name]
        assert figure["low"] <= figure["score"] == ours[name] <= figure["high"]
        assert ours["against"][name]["score"] == pytest.approx(ours[name] - theirs[name])
    assert ours["against"]["loss"]["p"] < 0.01
    assert foretell(folder / "run", held, against=folder / "run")["against"]["loss"]["p"] == 1.0
    said = CliRunner().invoke(app, ["evaluate", str(folder / "run"), "--text", str(held), "--against", str(other)])
    assert "ours less its" in said.stdout
    assert f"{ours['figures']['loss']['low']:.4f} to" in said.stdout
    strange = Tokenizer.learn(TokensConfig("unigram", 300), [held.read_text()])
    strange.save(other / "tokenizer.json")
    storage.save(build(replace(storage.config(other), vocabulary=len(strange))), other, storage.purpose(other))
    alike = foretell(folder / "run", held, against=other)["against"]
    assert list(alike) == ["bits a byte", "perplexity a word"]
    held.write_text(" \n")
    with pytest.raises(ValueError, match="holds no text"):
        foretell(folder / "run", held)


def test_from_a_recipe_to_a_model_directory(folder: Path) -> None:
    about = json.loads((folder / "run" / "config.json").read_text())
    assert about["format"] == 2
    assert about["task"] == {"name": "generate", "block": 32, "apart": True}
    assert about["use"]["limit"] == 30
    figures = json.loads((folder / "run" / "evaluation.json").read_text())
    assert figures["perplexity"]["score"] == pytest.approx(math.exp(figures["loss"]["score"]), rel=1e-6)
    assert figures["loss"]["signature"] == "block:32|stride:16|apart:true"
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [6, 12]
    (folder / "run" / "recipe.yaml").rename(folder / "elsewhere.yaml")  # which use has no need of
    model = regard.load(folder / "run", task="generate")
    (folder / "elsewhere.yaml").rename(folder / "run" / "recipe.yaml")
    assert model.generate("12 and", limit=5, seed=1) == model.generate(["12 and"], limit=5, seed=1)[0]
    with pytest.raises(ValueError, match="cannot translate: it is a model to generate"):
        regard.load(folder / "run", task="translate")


def test_a_run_that_is_resumed_ends_with_the_same_bits(folder: Path) -> None:
    whole = (folder / "run" / "model.safetensors").read_bytes()
    recipe, half = reading.load(str(folder / "lm.yaml")), folder / "half"

    class StopError(Exception):
        pass

    step = module.Learner.step

    def stop(self: Any, *rest: Any) -> Any:
        if self.steps == 7:
            raise StopError
        return step(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Learner, "step", stop)
        with pytest.raises(StopError):
            train(recipe, half, name="lm", console=QUIET)
    assert train(reading.load(str(half / "recipe.yaml")), half, name="lm", resume=True, console=QUIET)
    assert (half / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.preset=tiny", "task.name = generate: a model like tiny cannot do it; it can translate"),
        ("task.block=1", "task.block = 1: it must be at least 2"),
        ("task.name=generat", "unknown task 'generat': did you mean 'generate'?"),
        ("data.languages=[en, de]", "data.languages is for the task translate, and this recipe's is generate"),
        ("model.max_length=16", "model.max_length = 16: it must hold the 32 tokens of task.block"),
        ("data.train.documents=page", "documents = 'page': choose file, paragraph or line"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line(folder: Path, change: str, message: str) -> None:
    with pytest.raises(ValueError, match=r": ") as error:
        reading.load(str(folder / "lm.yaml"), [change])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corpus_of_pairs_is_no_text() -> None:
    with pytest.raises(ValueError, match="multi30k-en-de is a corpus of pairs"):
        Generate.sections.data(corpus="multi30k-en-de").files()


@pytest.fixture(autouse=True)
def _no_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.texts.fetched", lambda name, **_: {"train": [Path("a"), Path("b")]})


def test_a_text_goes_on_past_the_places_of_its_model() -> None:
    """Half of the places are kept for its end; stream and batch say the same, and what is asked for is written."""
    torch.manual_seed(0)
    tokens = Tokenizer.learn(TokensConfig("char", size=0), [TEXT])
    model = build(configure("gpt-tiny", ["layers=1", "d_model=16", "heads=2", "max_length=16"], vocabulary=len(tokens)))
    generator = Generator(model, tokens, Generate.sections.decode())
    for how in ({"seed": 3}, {"beam": 1}, {"beam": 3}):
        (found,) = generator.completions("the", limit=100, **how)[:1]
        assert (len(found.ids), found.why) == (100, "length") or found.why == "stop"
        assert "".join(generator.stream("the", limit=100, **how)) == found.text
        assert len(found.token_scores) >= len(found.ids)
    alone, others = generator.generate("the", limit=60, seed=1), generator.generate(["at", "the"], limit=60, seed=1)
    assert alone == others[1]
    long = generator.completions("the", limit=100, seed=3)[0]
    greedy = [int(each) for each in long.ids[:13]]
    assert greedy == generator.completions("the", limit=13, seed=3)[0].ids  # before the places end, nothing differs


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize(
    "how", [{"beam": 1}, {"beam": 3}, {"temperature": 1.0, "best": 3}, {"beam": 1, "block": 2}, {"beam": 3, "best": 2}]
)
def test_a_stop_text_ends_the_search_and_changes_no_text(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, engine: str, how: dict[str, Any]
) -> None:
    steps = []
    for fleet in (Beam, Sampling):
        step = fleet.step
        monkeypatch.setattr(fleet, "step", lambda *given, step=step: steps.append(1) or step(*given))
    made = Generator(generator.model, generator.tokenizer, generator.decode, engine=engine)
    prompts = ["the c", "the dog sat", "", "log"]
    whole = made.completions(prompts, limit=60, **how)
    stop = whole[0][0].text[5:7]
    found = made.completions(prompts, limit=60, stop=stop, **how)
    for prompt, row, full in zip(prompts, found, whole, strict=True):
        assert [each.text for each in row] == [each.text.partition(stop)[0] for each in full]
        alone = made.completions(prompt, limit=60, stop=stop, **how)
        assert [(each.text, each.ids) for each in alone] == [(each.text, each.ids) for each in row]
        for each, other in zip(row, full, strict=True):
            assert each.ids == other.ids[: len(each.ids)]
            assert each.token_scores == pytest.approx(other.token_scores[: len(each.token_scores)], abs=1e-5)
            assert each.why == ("stop" if stop in other.text else other.why)
        if how.get("best", 1) == 1:
            assert "".join(made.stream(prompt, limit=60, stop=stop, **how)) == row[0].text
    steps.clear()
    made.completions(prompts[0], limit=60, stop=stop, **how)
    if "best" not in how:
        assert len(steps) < 30
    elif "beam" in how:  # several outputs are compared as wholes
        assert len(steps) == 60
    else:
        assert len(steps) == max(len(each.ids) + (len(each.token_scores) > len(each.ids)) for each in found[0])
        done = [each.ids for each, other in zip(found[0], whole[0], strict=True) if stop in other.text]
        assert all(made.tokenizer.decode(ids).endswith(stop) for ids in done)


def test_of_a_corpus_of_rows_each_text_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"text": "One film.", "label": "good"}\n{"text": "Another.", "label": "bad"}\n')
    monkeypatch.setattr("regard.tasks.texts.fetched", lambda name, progress: {"train": [rows]})
    found = list(TextConfig(corpus="imdb").files()["train"].read())
    assert found == [Passage("One film.", True, True), Passage("Another.", True, True)]


def test_a_prompt_from_a_pipe_is_text_as_in_a_file(folder: Path, tmp_path: Path) -> None:
    def said(*arguments: Any, stdin: bytes = b"") -> Any:
        return CliRunner().invoke(app, ["generate", str(folder / "run"), *map(str, arguments)], input=stdin)

    assert said(stdin=b"\xef\xbb\xbf1 and").stdout == said("1 and").stdout
    assert "'prompt' holds a NUL" in str(said(stdin=b"1\0 and").exception)
    assert "standard input, line 2: this is not UTF-8 text" in str(said(stdin=b"1\n\xff").exception)
    (tmp_path / "prompts.txt").write_text("1 and\n")
    noted = said(tmp_path / "prompts.txt").stderr
    assert "is gone on with as a text: for the lines of that file, name it by --file" in noted
    assert said("--file", tmp_path / "prompts.txt").stderr == said("1 and").stderr == ""
