"""Models that read: classes, vectors and gaps, from files through training to answers, and what is refused."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import normalizers

import regard
from regard.data.rows import RowFiles
from regard.data.tokenizers import Tokenizer, TokensConfig, state
from regard.models import storage
from regard.models.encoder import Encoder
from regard.models.family import build, configure
from regard.recipes import reading
from regard.recipes.train import train
from regard.studies import maps
from regard.tasks.classify import Classify, LabelledFiles, shortened
from regard.tasks.embed import Embed, PairedFiles
from regard.tasks.mask import Masking, hidden, related, words_begin
from regard.tasks.reader import Given, asked
from regard.training.objectives import IGNORE

QUIET = Console(quiet=True)
MODEL = "model: {preset: bert-tiny, layers: 1, d_model: 16, d_ff: 32, heads: 2, max_length: 64}"
TRAIN = (
    "train: {steps: 6, batch_tokens: 256, smoothing: 0.0, checkpoint_every: 3, shards: 1, validate_every: 3, "
    "schedule: {name: constant, peak: 0.002, warmup: 2}}"
)
TOKENS = "tokens: {kind: wordpiece, size: 80}"
GOOD, BAD = ["good", "fine", "great"], ["bad", "poor", "awful"]


def recipe(folder: Path, *lines: str, name: str = "my") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text("\n".join([TOKENS, MODEL, TRAIN, *lines]))
    return path


def run(path: Path, *changes: str) -> Path:
    found = reading.load(str(path), changes)
    place = path.parent / "runs" / path.stem
    assert train(found, place, name=path.stem, console=QUIET, overwrite=True)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reading")
    draw = Random(0)
    rows = [(f"the {draw.choice(GOOD + BAD)} film number {i}", i) for i in range(120)]
    lines = [f"{text}\t{'up' if any(word in text for word in GOOD) else 'down'}\n" for text, _ in rows]
    (folder / "two.tsv").write_text("".join(lines))
    pairs = [f'"{a}","{a} again",{i % 6}.0\n' for a, i in rows]
    (folder / "pairs.csv").write_text("".join(pairs))
    (folder / "text.txt").write_text("".join(f"{text} is what they say of it.\n" for text, _ in rows) * 4)
    return folder


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Path:
    return run(
        recipe(
            folder, "task: {name: classify}", "data: {train: {tsv: two.tsv}, hold_out: 6, max_length: 64}", name="two"
        )
    )


def test_labels_are_found_kept_and_told_with_their_probabilities(classifier: Path) -> None:
    about = json.loads((classifier / "config.json").read_text())
    assert about["task"]["labels"] == ["down", "up"]
    assert about["task"]["pairs"] is False
    assert about["head"] == {"kind": "classes", "size": 2, "hidden": "tanh", "dropout": 0.1}
    model = regard.load(classifier)
    found = model.classify("the good film")
    assert found.label in ("down", "up")
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.probability == max(found.probabilities.values())
    assert list(model.classify(["a", "b c"], top=1)[1].probabilities) == [model.classify("b c").label]
    cold = model.classify("the good film", temperature=0.01)
    assert cold.probability > found.probability


def test_who_learnt_from_single_texts_is_given_no_pairs(classifier: Path) -> None:
    model = regard.load(classifier)
    for ask in (model.classify, model.attended, model.attention):
        with pytest.raises(ValueError, match="'good' has a second text: this model reads one, so leave the other out"):
            ask("good", "bad")
    with pytest.raises(ValueError, match="'fine' has a second text"):
        model.classify(["good", ("fine", "bad")])


def test_a_long_text_is_read_in_windows_and_nothing_of_it_is_lost(classifier: Path) -> None:
    model = regard.load(classifier)
    text = " ".join(["good film"] * 200)
    assert model.classify(text).windows > 5
    (windows,) = model.framed(asked([text]))
    ids = model.tokenizer.encode(text)
    seen = set[int]()
    for each in windows:
        assert each.ids[each.begins : each.begins + each.tokens] == ids[each.first : each.first + each.tokens]
        seen |= set(range(each.first, each.first + each.tokens))
        assert len(each.ids) <= 64
    assert seen == set(range(len(ids)))


def test_a_resumed_run_is_the_same_model_bit_for_bit(folder: Path) -> None:
    path = recipe(
        folder, "task: {name: classify}", "data: {train: {tsv: two.tsv}, hold_out: 6, max_length: 64}", name="whole"
    )
    whole, parts = run(path), folder / "runs" / "parts"
    train(reading.load(str(path), ["train.steps=3"]), parts, name="again", console=QUIET)
    train(reading.load(str(path)), parts, name="again", console=QUIET, resume=True)
    ours, theirs = load_file(parts / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_no_training_row_has_is_refused_before_the_first_step(folder: Path) -> None:
    (folder / "test.tsv").write_text("a fine film\tup\na strange one\tsideways\n")
    (folder / "names.conll").write_text("".join(f"Bob{i} B-PER\nsaw O\n\n" for i in range(40)))
    (folder / "test.conll").write_text("Bob B-PER\nRome B-LOC\n\n")
    for task, wrong in (
        ("classify", "the label 'sideways' is none of training"),
        ("tag", "tags that the model does not know: B-LOC"),
    ):
        own, held = (
            ("tsv: two.tsv", "tsv: test.tsv") if task == "classify" else ("conll: names.conll", "conll: test.conll")
        )
        data = f"data: {{train: {{{own}}}, test: {{{held}}}, hold_out: 6, max_length: 64}}"
        path = recipe(folder, f"task: {{name: {task}}}", data, name=f"never-{task}")
        with pytest.raises(ValueError, match=wrong):
            run(path, f"tokens.size={80 if task == 'classify' else 36}")
        assert not (folder / "runs" / path.stem / "model.safetensors").exists()


def test_several_labels_and_numbers(folder: Path) -> None:
    (folder / "some.jsonl").write_text(
        "".join(json.dumps({"text": f"word {i}", "label": [["a"], ["a", "b"], []][i % 3]}) + "\n" for i in range(60))
    )
    place = run(
        recipe(
            folder,
            "task: {name: classify, kind: several}",
            "data: {train: {jsonl: some.jsonl}, hold_out: 3, max_length: 64}",
            name="some",
        ),
        "tokens.size=31",
    )
    model = regard.load(place)
    assert model.labels == ("a", "b")
    assert set(model.classify("word 1", threshold=0.0).label.split("|")) == {"a", "b"}
    assert model.classify("word 1", threshold=1.0).label == ""
    numbers = "data: {train: {csv: pairs.csv, columns: {text: 0, pair: 1, label: 2}}, hold_out: 6, max_length: 64}"
    place = run(recipe(folder, "task: {name: classify, kind: number}", numbers, name="numbers"))
    found = regard.load(place).classify("the good film", "the good film again")
    assert isinstance(found.value, float)
    assert found.probability is None
    assert json.loads((place / "config.json").read_text())["task"]["pairs"] is True
    assert json.loads((place / "evaluation.json").read_text()).keys() == {"spearman", "pearson", "rmse"}


@pytest.mark.parametrize("learns", ["contrast", "score"])
def test_vectors_have_length_one_and_do_not_hang_on_their_company(folder: Path, learns: str) -> None:
    data = "data: {train: {csv: pairs.csv, columns: {text: 0, pair: 1, score: 2}}, hold_out: 6, max_length: 64}"
    place = run(recipe(folder, f"task: {{name: embed, learns: {learns}}}", data, name=learns))
    model = regard.load(place, bitwise=True)
    texts = ["the good film", "a", "the awful film number 9 and more of it", " ".join(["film"] * 300)]
    together = model.embed(texts)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(model.embed(text), vector)
    short = model.embed(texts, dimensions=4)
    assert short.shape == (4, 4)
    assert np.allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="dimensions = 17: the model's vectors have 16 numbers"):
        model.embed("a", dimensions=17)


def test_a_hard_negative_is_read_and_is_one_more_that_is_wrong(folder: Path) -> None:
    rows = [
        {"text": f"film {a}", "pair": f"the {a} film", "negative": f"the {b} film"}
        for a, b in zip(GOOD, BAD, strict=True)
    ]
    del rows[1]["negative"]  # which a row need not have
    (folder / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["\t".join(row.values()) + "\n" for row in (rows[0], rows[2])]
    (folder / "hard.tsv").write_text("".join(["text\tpair\tnegative\n", *lines]))
    assert list(PairedFiles.at(folder / "hard.jsonl").read()) == rows
    assert list(PairedFiles.at(folder / "hard.tsv").read()) == [rows[0], rows[2]]

    task = Embed()
    tokens = Tokenizer.learn(TokensConfig("wordpiece", 40), [text for row in rows for text in row.values()] * 3)
    torch.manual_seed(0)
    shape = ["layers=1", "d_model=16", "heads=2", "dropout=0.0"]
    model = build(configure("bert-tiny", shape, vocabulary=len(tokens)), task.head(Encoder)).eval()
    examples = [[np.array(x) for x in row] for row in task.examples(rows, tokens)]
    batch = task.collate(tokens, 0.0)(examples, Random(0))
    assert batch["group"].tolist() == [0] * 3 + [1] * 3 + [2] * 2
    embedder = task.open([model], tokens, task.sections.decode(), engine="torch")
    first, second = (embedder.embed([row[part] for row in rows]) for part in ("text", "pair"))
    wrong = embedder.embed([row["negative"] for row in rows if "negative" in row])
    alike = torch.from_numpy(20.0 * first @ np.concatenate([second, wrong]).T)  # (3, 5): the pairs, and the two
    expected = -alike.log_softmax(1)[range(3), range(3)].sum()
    loss = task.objective(model, 0.0, tokens)(**batch.inputs).detach()
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)
    alone = task.collate(tokens, 0.0)([[*row[:2], row[2][:0], row[3]] for row in examples], Random(0))
    assert float(task.objective(model, 0.0, tokens)(**alone.inputs).detach()) < float(loss)

    data = "data: {train: {jsonl: many.jsonl}, hold_out: 3, max_length: 64}"
    (folder / "many.jsonl").write_text(
        "".join(json.dumps({**row, "text": f"{row['text']} {i}"}) + "\n" for i in range(20) for row in rows)
    )
    place = run(recipe(folder, "task: {name: embed}", data, name="hard"))
    assert regard.load(place).embed("film good").shape == (16,)


def test_a_masked_model_fills_gaps_and_a_classifier_begins_with_it(folder: Path) -> None:
    task = "task: {name: mask, block: 32, unit: word, relation: next}"
    base = run(recipe(folder, task, "data: {train: {text: text.txt, documents: line}, hold_out: 3}", name="bert"))
    model = regard.load(base)
    (gap,) = model.fill("the [MASK] film", top=3)
    assert len(gap.tokens) == 3
    assert gap.probabilities == sorted(gap.probabilities, reverse=True)
    with pytest.raises(ValueError, match="has no gap: write <mask> where"):
        model.fill("no gap at all")
    path = folder / "begun.yaml"
    path.write_text(
        "task: {name: classify}\ndata: {train: {tsv: two.tsv}, hold_out: 6, max_length: 32}\n"
        f"model: {{from: runs/bert}}\n{TRAIN}"
    )
    begun = run(path, "train.steps=1", "train.schedule.name=linear", "train.schedule.peak=1e-9")
    ours, theirs = load_file(begun / "model.safetensors"), load_file(base / "model.safetensors")
    same = [name for name in theirs if name in ours and not name.startswith("output.")]
    assert len(same) > 10
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in same)
    assert (begun / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    path.write_text(path.read_text().replace("runs/bert", "runs/none"))
    with pytest.raises(ValueError, match="runs/none is not a directory"):
        reading.load(str(path))


def test_pairs_are_classified_by_a_language_model_whose_tokenizer_begins_each_text(folder: Path) -> None:
    """As Llama's does: a text that is read as a whole has one beginning, and not that of the tokenizer as well."""
    own = Tokenizer.learn(TokensConfig("char", 0), [" ".join(GOOD + BAD), "the film number 0123456789 again"])
    own.rust.normalizer, own.rust.post_processor = normalizers.NFC(), state(own.marks, [("<s>", 1)])
    tokens = Tokenizer(own.rust.to_str())
    assert (tokens.imported, tokens.encode("good")[0]) == (True, 1)
    model = build(configure("llama-tiny", ["layers=1", "d_model=16", "heads=2"], vocabulary=len(tokens)))
    storage.save(model, folder / "lm", storage.Purpose({"name": "generate", "block": 32}, {}))
    tokens.save(folder / "lm" / "tokenizer.json")
    path = folder / "pairs.yaml"
    path.write_text(
        "task: {name: classify, kind: number}\nmodel: {from: lm}\n"
        f"data: {{train: {{csv: pairs.csv, columns: {{text: 0, pair: 1, label: 2}}}}, hold_out: 6}}\n{TRAIN}"
    )
    reader = regard.load(run(path))
    ((one,), (two,)) = reader.framed([Given("good"), Given("good", "bad")])
    good, bad = (tokens.encode(text)[1:] for text in ("good", "bad"))
    assert one.ids == [1, *good, 2]
    assert (two.ids, two.segments) == ([1, *good, 2, *bad, 2], [0] * 6 + [1] * 4)
    assert isinstance(reader.classify("good", "bad").value, float)
    prepared = Classify(kind="number").examples([{"text": "good", "pair": "bad", "label": 1}], reader.tokenizer)
    assert next(prepared)[0] == two.ids


def test_what_is_hidden_is_a_share_of_whole_units() -> None:
    tokens = Tokenizer.learn(TokensConfig("wordpiece", 30), ["abcd efgh abefcdgh"] * 9, ("mask",))
    starts, random = words_begin(tokens), np.random.default_rng(0)
    ids = np.array(tokens.encode("abefcdgh efgh abcdabcd " * 40))
    text, counts = np.ones(len(ids), bool), []
    for unit in ("token", "word", "span"):
        for _ in range(20):
            chosen = hidden(ids, text, starts, 0.15, unit, random)
            counts.append(chosen.sum() / len(ids))
            if unit != "token":  # what goes on with a word is hidden as its beginning is
                inner = ~starts[ids]
                assert (chosen[inner] == chosen[np.flatnonzero(inner) - 1]).all()
    assert 0.14 < np.mean(counts) < 0.2


def test_stretches_that_follow_each_other_and_those_that_do_not() -> None:
    texts = [np.arange(10 * i, 10 * i + 10) for i in range(1, 40)]
    pairs, labels = related(texts, "next", np.random.default_rng(1))
    assert labels is not None
    assert 0 < labels.sum() < 39
    for (a, b), wrong, text in zip(pairs, labels, texts, strict=True):
        assert b is not None
        assert len(a) + len(b) <= 10
        assert (np.concatenate([a, b]).tolist() == text.tolist()) == (not wrong)
    swapped, labels = related(texts, "order", np.random.default_rng(1))
    assert labels is not None
    assert all(sorted(np.concatenate(p).tolist()) == t.tolist() for p, t in zip(swapped, texts, strict=True))  # type: ignore[arg-type]


def test_most_hidden_tokens_are_masked_some_are_others_and_the_same_draw_hides_the_same() -> None:
    tokens = Tokenizer.learn(TokensConfig("char", 0), ["abcdefgh"], ("mask",))
    task = Masking(block=52, share=0.5)
    rows: list[Any] = [(np.array(tokens.encode("abcdefgh" * 12)),)] * 60
    batch = task.collate(tokens, 0.0)(rows, Random(3))
    chosen = batch["labels"] != IGNORE
    assert batch.count == int(chosen.sum())
    masked = (batch["tokens"][chosen] == tokens.marks.mask).float().mean()
    stayed = (batch["tokens"][chosen] == batch["labels"][chosen]).float().mean()
    assert 0.77 < masked < 0.83
    assert 0.09 < stayed < 0.15  # a tenth, and those that another happens to be
    again = task.collate(tokens, 0.0)(rows, Random(3))
    assert all(torch.equal(batch[name], again[name]) for name in batch.tensors)
    assert not torch.equal(batch["tokens"], task.collate(tokens, 0.0)(rows, Random(4))["tokens"])


def test_rows_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("sentence\tlabel\nfine\t1\n\t0\n")
    named = LabelledFiles(tsv=str(path), columns={"text": "sentence", "label": "label"})
    assert list(named.read()) == [{"text": "fine", "label": "1"}]
    with pytest.raises(ValueError, match="row 1 has no column 'sentense': did you mean 'sentence'"):
        list(LabelledFiles(tsv=str(path), columns={"text": "sentense", "label": 1}).read())
    for heading, missing in (("sentence\tlabel", "text"), ("Text\tLabel", "text"), ("text\tsentiment", "label")):
        path.write_text(f"{heading}\nfine\t1\n")  # which would be a text, of a class of its own
        with pytest.raises(ValueError, match=rf"row 1 has .*: .* has the {missing} by `columns`; if not, give numbers"):
            list(LabelledFiles(tsv=str(path)).read())
    assert len(list(LabelledFiles(tsv=str(path), columns={"text": 0, "label": 1}).read())) == 2
    path.write_text("one\ttwo\nthree\n")
    with pytest.raises(ValueError, match="has no 'label', only 1 columns"):
        list(LabelledFiles(tsv=str(path)).read())
    with pytest.raises(ValueError, match="columns has 'txet': did you mean 'text'"):
        LabelledFiles(tsv=str(path), columns={"txet": 0})
    with pytest.raises(ValueError, match="name one, got none"):
        RowFiles()
    (tmp_path / "a.jsonl").write_text('{"q": {"text": "x"}, "label": 3}\n')
    assert list(LabelledFiles(jsonl=str(tmp_path / "a.jsonl"), columns={"text": "q.text"}).read()) == [
        {"text": "x", "label": 3}
    ]
    same = LabelledFiles(tsv=str(path))
    assert same.fingerprint() == LabelledFiles(tsv=str(path)).fingerprint() != named.fingerprint()


def test_a_model_to_begin_with_takes_the_place_of_the_one_a_recipe_describes(folder: Path, classifier: Path) -> None:
    """What the file says of its own model is dropped; what is said beside it holds."""
    data = "data: {train: {tsv: two.tsv}, max_length: 64}"
    own = str(recipe(folder, "task: {name: classify}", data, name="other"))
    begun = reading.load(own, [f"model.from={classifier}", "model.dropout=0.3"])
    assert (begun.model.base, begun.model.changes) == (str(classifier), {"dropout": 0.3})
    (folder / "begun.yaml").write_text(
        f"{TRAIN}\ntask: {{name: classify}}\n{data}\nmodel: {{from: {classifier}, dropout: 0.3}}\n"
    )
    anew = reading.load(str(folder / "begun.yaml"), ["model.preset=bert-mini"])
    assert (anew.model.base, anew.model.preset, anew.model.changes) == (None, "bert-mini", {})
    with pytest.raises(ValueError, match=r"model.from and model.preset each say what a model is"):
        reading.load(own, [f"model.from={classifier}", "model.preset=bert-mini"])


def test_what_cannot_be_learnt_is_refused_in_one_line(folder: Path, classifier: Path) -> None:
    with pytest.raises(ValueError, match=r"have 1 label \(up\): two are needed"):
        Classify().fitted([{"text": "a", "label": "up"}])
    with pytest.raises(ValueError, match="the label 'side' is none of training: there are down, up"):
        list(
            Classify(labels=("down", "up")).examples(
                [{"text": "a", "label": "side"}], regard.load(classifier).tokenizer
            )
        )
    with pytest.raises(ValueError, match="a model like tiny cannot do it; it can translate"):
        reading.load(
            str(recipe(folder, "task: {name: classify}", "data: {train: {tsv: two.tsv}}", name="no")),
            ["model.preset=tiny"],
        )
    for task, columns in (("classify", "label: 2"), ("embed", "score: 2")):
        data = f"data: {{train: {{csv: pairs.csv, columns: {{text: 0, pair: 1, {columns}}}}}, max_length: 65}}"
        with pytest.raises(ValueError, match=r"max_length = 64: it must hold the 65 tokens of data\.max_length"):
            reading.load(str(recipe(folder, f"task: {{name: {task}}}", data, name="long")))
    with pytest.raises(ValueError, match="cannot generate: it is a model to classify"):
        regard.load(classifier, task="generate")
    assert shortened([1, 2, 3], [4, 5, 6], 3) == ([1], [4, 5])


def test_what_a_reader_looks_at_sums_to_one_by_tokens_by_words_and_without_marks(
    classifier: Path, tmp_path: Path
) -> None:
    model = regard.load(classifier)
    (whole,) = model.attention("the good film")
    assert whole.queries == whole.keys
    assert (whole.queries[0], whole.queries[-1]) == ("<s>", "</s>")
    assert torch.allclose(whole.weights.sum(-1), torch.ones(()), atol=1e-6)
    (words,) = model.attention("the good film", words=True)
    assert words.queries == ["<s>", "the", "good", "film", "</s>"]
    assert torch.allclose(words.weights.sum(-1), torch.ones(()), atol=1e-6)
    (bare,) = model.attention("the good film", words=True, special=False)
    assert bare.keys == ["the", "good", "film"]
    assert "the good film" in model.attention_page("the good film")
    seen = maps.inspect(classifier, "the good film", tmp_path / "a.csv", words=True)
    assert len(seen.maps) == 1
    assert (tmp_path / "a.csv").stat().st_size > 100


def test_a_long_text_may_be_cut_or_refused_if_that_is_said(classifier: Path) -> None:
    model = regard.load(classifier)
    text = " ".join(["good film"] * 200)
    assert model.classify(text, long="cut").windows == 1
    with pytest.raises(ValueError, match="the model reads 64 at once: shorten it, or have it read in windows or cut"):
        model.classify(text, long="refuse")
    assert model.classify("good film", long="refuse").windows == 1
    with pytest.raises(ValueError, match="long = 'cot': choose windows, cut or refuse"):
        model.classify(text, long="cot")
