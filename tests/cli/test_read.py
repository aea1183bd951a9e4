"""The verbs of models that read: text, files and pipes in, lines, JSON and arrays out; mistakes are one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.files import lock
from regard.inspection.words import words_of_spans
from regard.tasks.reader import Given, Reader
from tests.readers import LONGEST, TASKS, TEXTS, directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: directory(root / name, name) for name in TASKS}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{each}\n" for each in TEXTS))
    return path


def run(*arguments: Any, stdin: str = "") -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin)


def show(*arguments: Any, stdin: str = "") -> str:
    """The output of a command that must succeed."""
    found = run(*arguments, stdin=stdin)
    assert found.exception is None, found.exception
    return found.stdout  # type: ignore[no-any-return]


def mistake(*arguments: Any) -> str:
    """The one line of a command that must fail."""
    found = run(*arguments)
    assert isinstance(found.exception, ValueError | OSError), found.output
    return str(found.exception)


def test_a_text_a_file_several_and_a_pipe_are_classified_alike(models: dict[str, Path], text: Path) -> None:
    model = models["classify"]
    expected = [f"{each.label}\t{each.probability:.4f}" for each in regard.load(model).classify(TEXTS)]
    assert len(set(expected)) > 1
    assert show("classify", model, text).splitlines() == expected
    assert show("classify", model, stdin=text.read_text()).splitlines() == expected
    assert show("classify", model, text, text).splitlines() == 2 * expected
    assert show("classify", model, TEXTS[0]).splitlines() == expected[:1]
    zipped = text.with_suffix(".gz")
    zipped.write_bytes(gzip.compress(text.read_bytes()))
    assert show("classify", model, zipped).splitlines() == expected
    three = show("classify", model, TEXTS[0], "--top", 3).rstrip("\n").split("\t")
    assert sorted(three[::2]) == ["down", "even", "up"]
    assert sum(map(float, three[1::2])) == pytest.approx(1, abs=2e-4)
    sure = float(show("classify", model, TEXTS[0], "--temperature", 0.01).split("\t")[1])
    assert sure > float(expected[0].split("\t")[1])


def test_lines_of_json_may_have_a_pair_and_an_id_and_come_back_with_them(models: dict[str, Path]) -> None:
    model = models["classify"]
    rows = [{"pair": TEXTS[1], "id": 7, "text": TEXTS[0]}, {"text": TEXTS[0]}]
    given = "".join(json.dumps(row) + "\n" for row in rows)
    found = [json.loads(line) for line in show("classify", model, "--jsonl", "--bitwise", stdin=given).splitlines()]
    both, alone = regard.load(model, bitwise=True).classify([(TEXTS[0], TEXTS[1]), TEXTS[0]])
    assert found[0] == {
        **rows[0],
        "label": both.label,
        "probability": both.probability,
        "probabilities": both.probabilities,
    }
    assert found[1]["probability"] == alone.probability != both.probability
    one = json.loads(show("classify", model, TEXTS[0], "--pair", TEXTS[1], "--json", "--bitwise"))
    assert one == {key: value for key, value in found[0].items() if key != "id"}
    assert "unknown key 'pair'" in mistake("classify", model, _file(model, given), "--jsonl", "--pair", "x")


def test_a_pair_is_refused_by_who_learnt_from_single_texts(models: dict[str, Path], tmp_path: Path) -> None:
    model, out = directory(tmp_path / "single", "classify", pairs=False), tmp_path / "out.txt"
    assert mistake("classify", model, TEXTS[0], "--pair", "x", "-o", out) == (
        f"{model} learnt from single texts: leave --pair out"
    )
    assert not out.exists()
    given = _file(model, '{"text": "a"}\n{"text": "b", "pair": "c"}\n')
    said = f"{given}:2 has a second text: this model reads one, so leave the other out"
    assert mistake("classify", model, given, "--jsonl") == said
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tpair\tlabel\na\tb\tup\nc\td\tdown\n")
    assert "'a' has a second text" in mistake("evaluate", model, rows)


def test_two_processes_do_not_write_into_one_output(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    model, out = models["classify"], tmp_path / "out.txt"
    show("classify", model, text, "-o", out)
    whole = out.read_text()
    with open(out) as file:
        assert lock(file.fileno())  # as the other process has it
        for how in ([], ["--overwrite"], ["--resume"]):
            said = mistake("classify", model, TEXTS[0], "-o", out, *how)
            assert said == f"another process is writing {out}: wait for its end, or write to another file"
    assert [path.name for path in tmp_path.iterdir() if path != text] == ["out.txt"]
    assert out.read_text() == whole
    show("classify", model, TEXTS[0], "-o", out, "--overwrite")
    assert out.read_text() == whole.splitlines(keepends=True)[0]


def _file(model: Path, content: str) -> Path:
    path = model.parent / "given.jsonl"
    path.write_text(content)
    return path


def test_vectors_are_json_or_an_array(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    model = models["embed"]
    expected = regard.load(model).embed(TEXTS)
    lines = show("embed", model, text).splitlines()
    assert np.array_equal(np.array([json.loads(line) for line in lines], np.float32), expected)
    assert json.loads(show("embed", model, TEXTS[0], "--json"))["vector"] == json.loads(lines[0])
    assert len(json.loads(show("embed", model, TEXTS[0], "--dimensions", 5))) == 5
    show("embed", model, text, "-o", tmp_path / "out" / "vectors.npy")
    assert np.array_equal(np.load(tmp_path / "out" / "vectors.npy"), expected)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["vectors.npy"]
    (tmp_path / "empty").write_text("")
    show("embed", model, tmp_path / "empty", "-o", tmp_path / "none.npy", "--dimensions", 3)
    assert np.load(tmp_path / "none.npy").shape == (0, 3)


@pytest.mark.parametrize(("verb", "name"), [("classify", "out.txt"), ("embed", "out.npy"), ("embed", "out.jsonl")])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    model, text, out = models[verb], tmp_path / "in.txt", tmp_path / name
    text.write_text("".join(f"{each} {i}\n" for i in range(8) for each in TEXTS))
    monkeypatch.setattr("regard.tasks.asks.AHEAD", 3)
    show(verb, model, text, "-o", out, "--bitwise")
    whole = out.read_bytes()
    out.unlink()
    outputs, times = Reader.outputs, iter(range(5))

    def stopped(self: Any, read: Any) -> Any:
        if next(times, None) is None:
            raise KeyboardInterrupt
        return outputs(self, read)

    monkeypatch.setattr(Reader, "outputs", stopped)
    found = run(verb, model, text, "-o", out, "--bitwise")
    assert "stopped after 15 lines: the same command with --resume goes on" in found.stderr
    assert out.with_name(f"{name}.progress").exists()
    with out.open("ab") as file:
        file.write(b"half a line")  # of a process that was killed
    monkeypatch.setattr(Reader, "outputs", outputs)
    assert "exists: go on with it by --resume" in mistake(verb, model, text, "-o", out, "--bitwise")
    changed = ("--temperature", 2.0) if verb == "classify" else ("--dimensions", 2)
    assert f"was begun with {changed[0][2:]}" in mistake(verb, model, text, "-o", out, "--resume", *changed)
    show(verb, model, text, "-o", out, "--bitwise", "--resume")
    assert out.read_bytes() == whole
    assert not out.with_name(f"{name}.progress").exists()
    if name.endswith(".npy"):
        assert np.load(out).shape == (40, 16)


def test_gaps_are_filled_a_line_each(models: dict[str, Path]) -> None:
    model = models["mask"]
    filler = regard.load(model)
    gapped = "a [MASK] film is <mask>"
    first, second = filler.fill(gapped, top=3)
    lines = show("fill", model, gapped, "--top", 3).splitlines()
    assert [line.split("\t")[::2] for line in lines] == [first.tokens, second.tokens]
    assert float(lines[0].split("\t")[1]) == pytest.approx(first.probabilities[0], abs=1e-4)
    found = json.loads(show("fill", model, gapped, "--json", "--top", 3))
    assert found["gaps"][1]["texts"] == second.texts
    assert "text:1 has no gap: write <mask>" in mistake("fill", model, "no gap here")


def test_spans_are_found_with_their_kind(models: dict[str, Path], text: Path) -> None:
    model = models["tag"]
    expected = regard.load(model).tag(TEXTS)
    lines = [line.split("\t") for line in show("tag", model, text).split("\n")[:-1]]
    told = [[cell for s in each.spans for cell in (s.text, s.label, f"{s.probability:.4f}")] for each in expected]
    assert lines == [each or [""] for each in told]
    assert any(each.spans for each in expected)
    found = json.loads(show("tag", model, TEXTS[1], "--json", "--no-constrained"))
    (free,) = regard.load(model).tag([TEXTS[1]], constrained=False)
    assert (found["words"], found["tags"]) == (free.words, free.tags)
    assert show("tag", model, TEXTS[0], "--threshold", 1) == "\n"


def test_questions_are_answered_in_a_context_of_theirs_or_of_all(models: dict[str, Path], tmp_path: Path) -> None:
    model, context = models["answer"], "two men sit on a bench in the park"
    answerer = regard.load(model, bitwise=True)
    expected = answerer.answer("a good film", context)
    line = f"{expected.text}\t{expected.probability:.4f}\n"
    ask = ("answer", model, "--bitwise", "--question", "a good film")
    assert expected.text in context
    assert show(*ask, "--context", context) == show(*ask, stdin=f"{context}\n") == line
    (tmp_path / "context.txt").write_text(context)
    assert show(*ask, "--context", tmp_path / "context.txt") == line
    (tmp_path / "questions.txt").write_text("a good film\nfine\n")
    both = show("answer", model, "--bitwise", tmp_path / "questions.txt", "--context", context)
    assert both.splitlines(keepends=True)[0] == line
    assert len(both.splitlines()) == 2
    rows = [{"id": 1, "context": context, "question": "a good film"}, {"question": "fine", "context": "a dog"}]
    given = "".join(json.dumps(row) + "\n" for row in rows)
    found = [json.loads(x) for x in show("answer", model, "--jsonl", "--bitwise", "--top", 2, stdin=given).splitlines()]
    assert found[0]["answer"] == expected.text == context[found[0]["start"] : found[0]["end"]]
    assert (found[0]["id"], found[0]["question"], len(found[0]["best"])) == (1, "a good film", 2)
    assert "context" not in found[0]
    assert "say where answers stand by --context" in mistake("answer", model, tmp_path / "questions.txt")
    assert "leave one of them out" in mistake(*ask, tmp_path / "questions.txt", "--context", context)
    assert "has its question and context" in mistake(*ask, "--jsonl")


@pytest.mark.parametrize("task", ["classify", "embed", "tag"])
def test_what_was_attended_to_is_told_on_request_by_words_with_their_places(models: dict[str, Path], task: str) -> None:
    """Of the map of the last layer: from the first place for a classifier, from all for the others."""
    text = TEXTS[0]
    reader = regard.load(models[task])
    found = reader.attended(text)
    assert [each.text for each in found] == text.split()
    assert all(text[each.start : each.end] == each.text for each in found)
    last = reader.attention(text)[-1]
    weights = last.weights.mean(0)[:1] if reader.model.head.pool == "first" else last.weights.mean(0)
    inside = weights.mean(0)[1:-1]
    words = words_of_spans(text, reader.tokenizer.spans(text))
    expected = [float(sum(w for w, own in zip(inside, words, strict=True) if own == n)) for n in range(len(found))]
    assert [each.probability for each in found] == pytest.approx([w / sum(expected) for w in expected], rel=1e-5)
    row = json.loads(show(task, models[task], text, "--json", "--attended", 2))
    first, second = sorted(found, key=lambda each: -each.probability)[:2]
    assert [each["text"] for each in row["attended"]] == [first.text, second.text]
    assert row["attended"][0]["share"] == first.probability
    assert mistake(task, models[task], text, "--attended", 2) == "--attended is told in JSON: say --json as well"


@pytest.mark.parametrize("task", ["classify", "embed", "tag", "answer"])
def test_of_a_long_text_all_windows_are_attended_to(models: dict[str, Path], task: str) -> None:
    """A word that stands in two has the mean of both; what is not read is not told."""
    words, model = ["fine", "film", "a", "dog", "the", "is"] * 6, models[task]
    reader, asked = regard.load(model), "a film" if task == "answer" else None
    fixed = 0 if asked is None else len(asked.split()) + 1
    room, step = LONGEST - 2 - fixed, (LONGEST - 2 - fixed) // 2
    starts = [start for start in range(0, len(words), step) if start < len(words) - room + step]
    sums, counts = np.zeros(len(words)), np.zeros(len(words))
    for start in starts:
        part = words[start : start + room]
        own = reader.attention(*([" ".join(part)] if asked is None else [asked, " ".join(part)]))[-1].weights.mean(0)
        seen = (own[:1] if reader.model.head.pool == "first" else own).mean(0)[1 + fixed :]
        sums[start : start + room] += seen[: len(part)].numpy()
        counts[start : start + room] += 1
    assert {1, 2} <= {*counts}
    text = " ".join(words)
    found = reader.attended(*([text] if asked is None else [asked, text]))[max(0, fixed - 1) :]
    assert [each.text for each in found] == words
    shares = np.array([each.probability for each in found])
    assert shares / shares.sum() == pytest.approx(sums / counts / (sums / counts).sum(), rel=1e-4)
    given = json.dumps({"text": text} if asked is None else {"question": asked, "context": text})
    row = json.loads(show(task, model, "--jsonl", "--attended", 99, stdin=f"{given}\n"))
    assert (row["windows"], len(row["attended"])) == (len(starts), len(words) + max(0, fixed - 1))
    if task in ("classify", "embed"):
        row = json.loads(show(task, model, "--jsonl", "--attended", 99, "--long", "cut", stdin=f"{given}\n"))
        assert ("windows" in row, len(row["attended"])) == (False, room)


def test_gaps_tell_what_they_attend_to(models: dict[str, Path]) -> None:
    model, text = models["mask"], "a [MASK] film is <mask>"
    filler = regard.load(model)
    found = filler.attended(text)
    assert [text[each.start : each.end] for each in found] == [each.text for each in found] == text.split()
    weights = filler.attention(text)[-1].weights.mean(0)
    ids = filler.framed([Given(text)])[0][0].ids
    seen = weights[[n for n, i in enumerate(ids) if i == filler.tokenizer.marks.mask]].mean(0)[1:-1]
    assert found[0].probability == pytest.approx(float(seen[0] / seen.sum()), rel=1e-4)
    row = json.loads(show("fill", model, text, "--json", "--attended", 2))
    assert row["attended"][0]["share"] == max(each.probability for each in found)
    assert len(filler.attended(" ".join(["film"] * 30 + [text]))) == LONGEST - 2  # around the gaps


def test_a_tagger_tells_what_it_attends_to_by_the_words_that_it_reads(models: dict[str, Path]) -> None:
    """Which it cuts out of a text itself: no space stands before the first, but it is read as if."""
    text, reader = "O'Brien sits—in AT&T...", regard.load(models["tag"])
    found = reader.attended(text)
    assert [each.text for each in found] == text.split()
    assert sum(each.probability for each in found) == pytest.approx(1)


def test_of_a_pair_both_texts_are_attended_to(models: dict[str, Path]) -> None:
    found = regard.load(models["classify"]).attended(TEXTS[0], TEXTS[1])
    assert [(each.text, each.label) for each in found] == [
        *((word, "") for word in TEXTS[0].split()),
        *((word, "pair") for word in TEXTS[1].split()),
    ]
    assert sum(each.probability for each in found) == pytest.approx(1)


def test_what_is_read_in_windows_is_said(models: dict[str, Path]) -> None:
    long = " ".join([TEXTS[0]] * 30)
    for verb in ("classify", "embed"):
        found = run(verb, models[verb], stdin=f"{TEXTS[0]}\n{long}\n")
        assert found.stderr == f"note: standard input:2 goes on for more than {LONGEST} sub-words: read in parts\n"
        assert len(found.stdout.splitlines()) == 2


def test_a_gap_of_a_long_text_is_filled_by_what_stands_around_it(models: dict[str, Path]) -> None:
    model, room = models["mask"], LONGEST - 2
    filler, words = regard.load(model), ["fine", "film", "a", "dog", "the"] * 8  # each of one token
    assert len(filler.tokenizer.encode(" ".join(words))) == len(words)
    words[0], words[25] = "[MASK]", "<mask>"
    text = " ".join(words)
    gaps = filler.fill(text, top=3)
    parts = [words[:room], words[25 - room // 2 : 25 + room // 2]]
    alone = [filler.fill(" ".join(part), top=3) for part in parts]
    for gap, around, part in zip(gaps, (alone[0][0], alone[1][0]), parts, strict=True):
        assert (gap.tokens, gap.probabilities) == (around.tokens, pytest.approx(around.probabilities, rel=1e-4))
        assert gap.around is not None
        assert text[slice(*gap.around)] == " ".join(part)
        assert len(gap.texts[0].split()) >= len(words) - 2  # all but the other gap; a sub-word may go on with a word
        assert around.around is None
    found = run("fill", model, text, "--json")
    assert json.loads(found.stdout)["gaps"][1]["around"] == list(gaps[1].around or ())
    long = f"text:1 goes on for more than {LONGEST} sub-words"
    assert found.stderr == f"note: {long}: read around each gap, and the rest was not read\n"
    assert "around" not in json.loads(show("fill", model, "a [MASK] film", "--json"))["gaps"][0]
    assert "has no gap" in mistake("fill", model, " ".join(words[1:25] * 2))


def test_a_model_of_another_task_is_one_line_that_names_its_verb(models: dict[str, Path], text: Path) -> None:
    assert f"{models['mask']} cannot classify: it is a model to fill, so `regard fill` is its verb" == mistake(
        "classify", models["mask"], text
    )
    assert "cannot fill: it is a model to embed, so `regard embed`" in mistake("fill", models["embed"], text)
    assert "cannot embed: it is a model to translate, so `regard translate`" in mistake("embed", "en-es", text)
    assert "cannot translate: it is a model to classify" in mistake("translate", models["classify"], text)


@pytest.mark.parametrize(("name", "said"), [("a.png", "a picture, {}sees"), ("a.wav", "a sound, {}hears")])
def test_what_is_to_be_seen_or_heard_is_no_text_to_any_verb(
    models: dict[str, Path], tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / name).write_bytes(b"\x89 no text")
    said = f"{tmp_path / name} is {said.format('and texts are read here: ask a model that ')}"
    for task, verb in {**{task: task for task in TASKS}, "mask": "fill"}.items():
        more = ("--context", "a dog") if task == "answer" else ()
        assert mistake(verb, models[task], tmp_path / name, *more) == said
    assert mistake("answer", models["answer"], "--question", "a dog", "--context", tmp_path / name) == said
    assert mistake("search", models["embed"], _file(models["embed"], '{"text": "a"}\n'), tmp_path / name) == said
    for verb in ("translate", "summarise", "generate"):
        assert mistake(verb, "en-es", tmp_path / name) == said
    assert show("classify", models["classify"], f"what is in {name}?")  # a text that names one


def test_mistakes_are_one_line(models: dict[str, Path], text: Path, tmp_path: Path) -> None:
    model = models["classify"]
    assert "nowhere.txt is no file that is there" in mistake("classify", model, "nowhere.txt")
    assert "nowhere is not a directory" in mistake("classify", "nowhere", text)
    assert "is for vectors alone" in mistake("classify", model, text, "-o", tmp_path / "out.npy")
    assert "leave --json out" in mistake("embed", models["embed"], text, "--json", "-o", tmp_path / "out.npy")
    assert "name it by -o" in mistake("classify", model, text, "--resume")
    assert "choose refuse or replace" in mistake("classify", model, text, "--invalid", "x")
    assert "threshold = 2.0: it lies in [0, 1]" in mistake("classify", model, text, "--threshold", 2)
    assert "dimensions = 17: the model's vectors have 16" in mistake("embed", models["embed"], text, "--dimensions", 17)
    assert f"{text} is what is to be read" in mistake("classify", model, text, "-o", text, "--overwrite")
    packed = tmp_path / "out.tsv.gz"
    assert f"{packed}: what is written here is not compressed" in mistake("classify", model, text, "-o", packed)
    assert not packed.exists()
    assert "note: there is no file fine: read as text" in run("classify", model, "fine").stderr
    text.write_bytes(b"a\xff\n")
    assert "UTF-8" in mistake("classify", model, text)
    assert show("classify", model, text, "--invalid", "replace").count("\n") == 1
