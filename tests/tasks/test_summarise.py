"""Summaries: rows and stories, what is cut is counted and said, resuming to the bit, the verb, figures by rows."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.stories import SummaryFiles
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.evaluation.rouge import overlaps
from regard.models import storage
from regard.models.family import build, presets
from regard.recipes import reading
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.studies.judging import judge
from regard.tasks.task import Cut
from regard.tasks.uses import Prompting

QUIET = Console(quiet=True)
THINGS, FILLERS = ["red", "blue", "green", "white", "black"], ["the", "of", "and", "was", "in", "it"]
RECIPE = """
task: {name: summarise}
data: {train: {tsv: train.tsv}, valid: {jsonl: valid.jsonl}, test: {jsonl: valid.jsonl}, max_length: 12}
tokens: {kind: none, size: 0}
model: {preset: tiny, encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64, heads: 2, norm: pre, dropout: 0.0}
train: {steps: 120, batch_tokens: 256, smoothing: 0.0, checkpoint_every: 60, shards: 1, validate_every: 60,
  optimiser: {name: muon}, schedule: {name: constant, peak: 0.01, warmup: 10}}
decode: {beam: 2, limit: 4}
"""


def pairs(draw: Random, count: int, length: int = 8) -> list[tuple[str, str]]:
    """Two things among other words; the summary names them."""
    found = []
    for _ in range(count):
        two = draw.sample(THINGS, 2)
        words = draw.choices(FILLERS, k=length)
        places = sorted(draw.sample(range(5), 2))
        for place, thing in zip(places, two, strict=True):
            words[place] = thing
        found.append((" ".join(words), " and ".join(two)))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a recipe for them, and the run of that."""
    folder, draw = tmp_path_factory.mktemp("summaries"), Random(0)
    rows = pairs(draw, 380) + pairs(draw, 20, length=20)
    (folder / "train.tsv").write_text("text\tsummary\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    held = [{"text": a.split(), "summary": [b, "not this"]} for a, b in pairs(draw, 30)]
    (folder / "valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    (folder / "short.yaml").write_text(RECIPE)
    assert train(reading.load(str(folder / "short.yaml")), folder / "run", name="short", console=QUIET)
    return folder


def run(*arguments: Any, stdin: str = "") -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin)


def show(*arguments: Any, stdin: str = "") -> str:
    """The output of a command that must succeed."""
    found = run(*arguments, stdin=stdin)
    assert found.exception is None, found.exception
    return found.stdout  # type: ignore[no-any-return]


def read(path: Path, text: str, **how: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows of a file, and what is said of them."""
    path.write_text(text)
    skipped = Skipped()
    return list(SummaryFiles(**{path.suffix[1:]: str(path)}, **how).read(skipped)), skipped.report()


def test_rows_of_every_kind(tmp_path: Path) -> None:
    expected = [{"text": "A long text. It goes on.", "summary": ["short"]}]
    assert read(tmp_path / "a.tsv", "A long text. It goes on.\tshort\n") == (expected, "")
    assert read(tmp_path / "a.csv", 'summary,text\nshort,"A long  text.\nIt goes on."\n')[0] == expected
    row = {"source": ["A long text.", "It goes\non."], "target": ["short", " ", "a text"]}
    columns = {"text": "source", "summary": "target"}
    found, said = read(tmp_path / "a.jsonl", json.dumps(row) + "\n", columns=columns)
    assert (found, said) == ([{**expected[0], "summary": ["short", "a text"]}], "")
    found, said = read(tmp_path / "a.tsv", "a\tb\n \tb\na\t \n\nc\td\n")
    assert [row["text"] for row in found] == ["a", "c"]
    assert said == "skipped 3 pairs: 3 with an empty side"


def test_a_folder_of_stories(tmp_path: Path) -> None:
    (tmp_path / "b.story").write_text("Second.\n\n@highlight\n\none thing\n\n@highlight\n\nanother\n")
    (tmp_path / "a.subject").write_bytes(b"First, me@x.org\r\n@subject\r\nHello\r\n@ann0\r\nGreeting\r\n")
    files = SummaryFiles(folder=str(tmp_path))
    first, second = files.read()
    assert first == {"text": "First, me@x.org", "summary": ["Hello", "Greeting"]}
    assert second == {"text": "Second.", "summary": ["one thing another"]}
    chosen = SummaryFiles(folder=str(tmp_path), columns={"summary": "highlight"})
    with pytest.raises(ValueError, match=r"a.subject has no 'summary', only \['text', '@subject', '@ann0'\]: say"):
        list(chosen.read())
    (tmp_path / "a.subject").unlink()
    assert [row["summary"] for row in chosen.read()] == [second["summary"]]
    assert len({files.fingerprint(), chosen.fingerprint()}) == 2
    (tmp_path / "b.story").unlink()
    with pytest.raises(ValueError, match="has no file in it: each is to be a text, a line @summary"):
        list(files.read())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n', r"a.jsonl, line 1 has no 'summary', only \['text'\]: say where it stands"),
        ("a.jsonl", '{"text": "a", "summary": 3}\n', "line 1: 'summary' is a text, or a list of them, got 3"),
        (
            "a.jsonl",
            '{"text": [["a"]], "summary": "b"}\n',
            r"line 1: 'text' is a text, or a list of them, got \[\[\"a\"",
        ),
        ("a.tsv", "a\tb\nc\n", "a.tsv, row 2 has no 'summary', only 1 columns"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, text)


def test_long_texts_are_cut_and_counted_and_long_summaries_skipped(folder: Path) -> None:
    recipe = reading.load(str(folder / "short.yaml"))
    data = prepare(recipe)
    assert data.remarks == ["cut 20 texts to 12 sub-words (data.max_length)"]
    assert len(data.train) == 400
    assert data.train.lengths(list(range(400))).max() == 11  # an end is added
    few = [{"text": "red " * 11, "summary": ["it"]}, {"text": "red " * 12, "summary": ["it"]}]
    few.append({"text": "red", "summary": ["it " * 12]})
    whole, cut, long = recipe.purpose().examples(few, data.tokenizer)
    assert (type(whole), type(cut), long) == (tuple, Cut, None)
    assert whole == cut


def test_it_learns_and_is_judged_by_the_nearest_of_several_summaries(folder: Path) -> None:
    figures = json.loads((folder / "run" / "evaluation.json").read_text())
    assert list(figures) == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "read"]
    assert figures["ROUGE-1"]["score"] > 80
    assert figures["ROUGE-1"]["signature"] == "nrefs:2|stem:porter|equals:rouge-score-0.1.2"
    assert figures["read"] == "up to 12 sub-words of each text"
    noted = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("rougeL" in str(line) for line in noted)


def test_a_run_goes_on_to_the_bit(folder: Path) -> None:
    half = reading.load(str(folder / "short.yaml"), ["train.steps=60"])
    train(half, folder / "again", name="short", console=QUIET)
    train(reading.load(str(folder / "short.yaml")), folder / "again", name="short", resume=True, console=QUIET)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in ("run", "again"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_person_holds_a_summariser(folder: Path) -> None:
    summariser = regard.load(folder / "run", task="summarise")
    text = "the red of blue and was it in"
    assert summariser.summarise(text) == "red and blue"
    assert summariser.summarise([text, f"  {text.replace(' ', chr(10))} \n"]) == ["red and blue"] * 2
    with pytest.warns(UserWarning, match="1 of 2 texts were cut to 12 sub-words"):
        assert summariser.summarise([text, f"{text} {text}"]) == ["red and blue"] * 2
    with pytest.raises(ValueError, match="a sentence of 16 sub-words; the model is used to 12 at most"):
        summariser.summarise(f"{text} {text}", long="refuse")
    assert "".join(summariser.stream(text)) == "red and blue"
    with pytest.raises(ValueError, match="cannot translate: it is a model to summarise, so `regard summarise`"):
        regard.load(folder / "run", task="translate")


def test_the_verb_takes_a_text_files_json_and_pipes(folder: Path, tmp_path: Path) -> None:
    model, draw = folder / "run", Random(5)
    texts = [a for a, _ in pairs(draw, 30)]
    expected = regard.load(model).summarise(texts)
    assert len({*expected}) > 5
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{text}\n" for text in texts))
    assert show("summarise", model, file).splitlines() == expected
    assert show("summarise", model, stdin=file.read_text()).splitlines() == expected
    zipped = tmp_path / "in.txt.gz"
    zipped.write_bytes(gzip.compress(file.read_bytes()))
    assert show("summarise", model, zipped).splitlines() == expected
    assert show("summarise", model, texts[0].replace(" ", "\n")).splitlines() == expected[:1]  # a text is one
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    found = [json.loads(line) for line in show("summarise", model, rows, "--jsonl").splitlines()]
    assert [(row["id"], row["summary"]) for row in found] == [*enumerate(expected)]
    assert "translation" not in found[0]
    out = tmp_path / "out.txt"
    show("summarise", model, file, "-o", out)
    assert out.read_text().splitlines() == expected
    assert "exists: go on with it by --resume" in str(run("summarise", model, file, "-o", out).exception)


def test_what_is_cut_is_said(folder: Path) -> None:
    lines = "red of blue\n" + "red and blue was in it " * 3 + "\n\n"
    found = run("summarise", folder / "run", stdin=lines)
    assert len(found.stdout.splitlines()) == 3
    assert found.stdout.splitlines()[2] == ""  # a blank text has a blank summary
    assert found.stderr == "note: standard input:2 goes on for more than 12 sub-words: the rest was not read\n"


def test_it_is_judged_by_rows_with_intervals_and_beside_another(folder: Path) -> None:
    found = json.loads(show("evaluate", folder / "run", folder / "valid.jsonl", "--json"))
    assert (found["task"], found["rows"], found["counted"]) == ("summarise", 30, "texts")
    told = json.loads((folder / "run" / "evaluation.json").read_text())
    assert found["figures"]["rougeL"]["score"] == pytest.approx(told["ROUGE-L"]["score"])
    assert found["figures"]["rougeL"]["low"] <= found["figures"]["rougeL"]["score"]
    beside = ("evaluate", folder / "run", folder / "valid.jsonl", "--against", folder / "run", "--json")
    assert json.loads(show(*beside))["against"]["rouge1"]["p"] == 1.0
    shown = " ".join(show("evaluate", folder / "run", folder / "valid.jsonl", "--beam", 1).split())
    assert "read up to 12 sub-words of each text" in shown
    assert "--lowercase is for a translator" in str(
        run("evaluate", folder / "run", folder / "valid.jsonl", "--lowercase").exception
    )


def test_a_prompt_stands_before_each_text_in_training_and_in_use(folder: Path) -> None:
    recipe = reading.load(str(folder / "short.yaml"), ['decode.prompt="in it: "'])
    task, tokens = recipe.purpose(), prepare(recipe).tokenizer
    row = {"text": "red was it", "summary": ["red"]}
    ((read, said),) = task.examples([row], tokens)
    assert read == tokens.encode("in it: red was it")
    assert said == tokens.encode("red")
    summariser = regard.load(folder / "run")
    texts = ["it red of blue", "was it green in white"]
    asked = summariser.hypotheses(texts, prompt="it was ")
    plain = summariser.hypotheses([f"it was {text}" for text in texts])
    assert [[each.score for each in row] for row in asked] == [[each.score for each in row] for row in plain]
    assert show("summarise", folder / "run", texts[0], "--prompt", "it was ").rstrip("\n") == plain[0][0].text
    with pytest.raises(ValueError, match="align is for the words of a text, and a prompt stands before them"):
        summariser.hypotheses("red", prompt="it ", align=True)


def test_a_model_of_others_summarises_if_it_is_asked_to(folder: Path, tmp_path: Path) -> None:
    tokens = Tokenizer.load(folder / "run" / "tokenizer.json")
    small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "d_k": 8, "d_v": 8}
    torch.manual_seed(1)
    model = build(presets()["t5-small"](len(tokens), **small))
    storage.save(model, tmp_path / "t5", storage.Purpose({"name": "translate"}, {"beam": 2}))  # as it is imported
    tokens.save(tmp_path / "t5" / "tokenizer.json")
    text = " ".join(["red of blue"] * 200)
    asked = ("summarise", tmp_path / "t5", text, "--prompt", "in it ", "--limit", 5)
    found = run(*asked)
    assert found.exception is None, found.exception
    assert "were cut" not in found.stderr  # it reads any number
    summariser = regard.load(tmp_path / "t5", task="summarise")
    assert summariser.decode.beam == 2
    assert summariser.summarise(text, prompt="in it ", limit=5) == found.stdout.rstrip("\n")
    assert isinstance(regard.load(tmp_path / "t5").translate("red"), str)
    with pytest.raises(ValueError, match="cannot summarise: it is a model to translate"):
        regard.load(task="summarise")


def test_a_model_of_others_is_judged_as_a_summariser(folder: Path, tmp_path: Path) -> None:
    tokens = Tokenizer.load(folder / "run" / "tokenizer.json")
    small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "d_k": 8, "d_v": 8}
    torch.manual_seed(1)
    model = build(presets()["t5-small"](len(tokens), **small))
    storage.save(model, tmp_path / "t5", storage.Purpose({"name": "translate"}, {"beam": 2, "limit": 5}))
    tokens.save(tmp_path / "t5" / "tokenizer.json")
    rows = [{"text": f"{a} of {b}", "summary": a} for a in THINGS for b in THINGS]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = ("evaluate", tmp_path / "t5", tmp_path / "rows.jsonl", "--column", "summary=summary", "--json")
    plain, prompted = (json.loads(show(*asked, *more)) for more in ((), ("--prompt", "in it ")))
    assert plain["task"] == "summarise"
    assert plain["figures"].keys() == {"rouge1", "rouge2", "rougeL"}
    summariser = regard.load(tmp_path / "t5", task="summarise")
    written = summariser.summarise([row["text"] for row in rows], prompt="in it ")
    assert written != summariser.summarise([row["text"] for row in rows])
    assert prompted["figures"]["rouge1"]["score"] == pytest.approx(
        100 * sum(overlaps(text, row["summary"])[0] for row, text in zip(rows, written, strict=True)) / len(rows)
    )
    with pytest.raises(ValueError, match="--prompt is for a language model"):
        judge(tmp_path / "t5", tmp_path / "rows.jsonl", columns=["summary=summary"], asked=Prompting("a", "b"))
