"""A language model that is asked for classes: every figure is the slow truth's, in any company and by any engine."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.decoding.ensemble import Ensemble
from regard.models import storage
from regard.models.family import build, configure
from regard.studies.judging import judge
from regard.tasks.asks import ReachError
from regard.tasks.generate import Generate
from regard.tasks.generator import Generator
from regard.tasks.prompted import CONTENT_FREE, Prompted, drawn
from regard.tasks.reader import Given
from regard.tasks.uses import Prompting

PROMPT = "Review: {text}\nAnswer: {label}"
LINES = ["the cat sat on the mat. Review: the dog\nAnswer: Positive", "Answer: Negative N/A [MASK]"]
WORDS = ["Negative", "Positive", "Positive or worse"]
SHOWN = [("the cat sat", "Positive"), ("the log", "Negative")]
TEXTS = ["the dog sat", "log", "", "the cat sat on the mat and on the log", "the"]
PLACES = 96


def model(seed: int, vocabulary: int) -> Any:
    torch.manual_seed(seed)
    shape = ["layers=2", "d_model=32", "d_ff=64", "heads=4", f"max_length={PLACES}"]
    made = build(configure("gpt-tiny", shape, vocabulary=vocabulary))
    for matrix in made.parameters():
        matrix.data += 0.2 * torch.randn_like(matrix)
    return made.eval()


def opened(engine: str = "auto", models: int = 1, **how: Any) -> Generator:
    tokens = Tokenizer.learn(TokensConfig("bpe", size=300), LINES * 30)
    task = Generate(block=16)
    return task.open(
        [model(seed, len(tokens)) for seed in range(models)], tokens, task.sections.decode(), engine=engine, **how
    )


@pytest.fixture(scope="module")
def generator() -> Generator:
    return opened()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, generator: Generator) -> Path:
    path, task = tmp_path_factory.mktemp("lm") / "lm", Generate(block=16)
    storage.save(generator.model, path, storage.Purpose(task.noted(), asdict(task.sections.decode())))
    generator.tokenizer.save(path / "tokenizer.json")
    return path


def truth(generator: Generator, prompt: str, word: str) -> float:
    """log p of a whole text less that of what stands before the word, each token from the beginning anew."""
    whole, before = (generator.ids(prompt.removesuffix(end)) for end in ("", f" {word}"))
    assert whole[: len(before)] == before  # a word begins with its space in these sub-words
    total = 0.0
    for k in range(len(before), len(whole)):
        p = torch.stack([m(torch.tensor([whole[:k]]))[0, -1].double().softmax(-1) for m in generator.models]).mean(0)
        total += p[whole[k]].log().item()
    return total


@torch.inference_mode()
def expected(generator: Generator, text: str, shown: bool = True) -> list[float]:
    before = "".join(f"Review: {t}\nAnswer: {label}\n\n" for t, label in SHOWN) if shown else ""
    found = [truth(generator, f"{before}Review: {text}\nAnswer: {word}", word) for word in WORDS]
    return [x - max(found) for x in found]


def told(found: Any) -> list[float]:
    return [x - max(found.logits) for x in found.logits]


@pytest.mark.parametrize(("engine", "models"), [("native", 1), ("torch", 1), ("native", 2)])
def test_a_label_is_as_likely_as_its_tokens_after_all_before_them(engine: str, models: int) -> None:
    generator = opened(engine, models)
    assert isinstance(generator.searchable, Ensemble) == (models > 1)
    asked = generator.prompted(PROMPT, WORDS, SHOWN)
    assert len({len(ids) for ids in asked._read(Given("the")).labels}) > 1  # labels of several lengths
    for text, found in zip(TEXTS, asked.classify(TEXTS), strict=True):
        assert told(found) == pytest.approx(expected(generator, text), abs=1e-5)
        p = np.exp(expected(generator, text))
        assert list(found.probabilities) == [WORDS[i] for i in np.argsort(-p)]
        assert found.probabilities[found.label] == pytest.approx(p.max() / p.sum(), abs=1e-5)


@pytest.mark.parametrize("how", [{"engine": "native"}, {"engine": "torch", "bitwise": True}])
def test_what_is_said_of_a_text_hangs_on_no_other(how: dict[str, Any]) -> None:
    asked = opened(**how).prompted(PROMPT, WORDS, SHOWN, calibrated=True)
    together = asked.classify(TEXTS)
    assert [asked.classify(text) for text in TEXTS] == together
    assert asked.classify(TEXTS[::-1])[::-1] == together


def test_calibration_is_the_papers(generator: Generator) -> None:
    p_free = np.mean([softmax(expected(generator, text)) for text in CONTENT_FREE], axis=0)
    assert CONTENT_FREE == ("N/A", "", "[MASK]")
    W = np.linalg.inv(np.diag(p_free))
    for text in TEXTS:
        q = softmax(W @ softmax(expected(generator, text)))
        found = generator.classify(text, prompt=PROMPT, labels=WORDS, examples=SHOWN, calibrated=True)
        assert [found.probabilities[word] for word in WORDS] == pytest.approx(q, abs=1e-5)
        assert found.label == WORDS[int(q.argmax())]
    plain = generator.classify(TEXTS, prompt=PROMPT, labels=WORDS, examples=SHOWN)
    assert [x.label for x in plain] != [
        x.label for x in generator.prompted(PROMPT, WORDS, SHOWN, calibrated=True).classify(TEXTS)
    ]


def softmax(x: Any) -> Any:
    e = np.exp(np.asarray(x) - np.max(x))
    return e / e.sum()


def test_by_length_divides_by_the_tokens_of_a_label(generator: Generator) -> None:
    words = ["Positive", "Positive or worse"]  # which begin alike: that counts, too
    whole, mean = (generator.prompted(PROMPT, words, by_length=flag).classify("the").logits for flag in (False, True))
    counts = [len(generator.ids(f"Answer: {word}")) - len(generator.ids("Answer:")) for word in words]
    assert whole[0] == pytest.approx(truth(generator, "Review: the\nAnswer: Positive", "Positive"), abs=1e-5)
    assert np.array(mean) * counts == pytest.approx(whole)


def test_a_text_is_read_once_for_all_labels_and_what_all_texts_share_once(generator: Generator) -> None:
    read: list[int] = []
    asked = opened("native").prompted(PROMPT, WORDS, SHOWN)
    rows = type(asked.generator.searchable.rows())
    append = rows._append
    rows._append = lambda self, tokens, to, features: read.append(len(tokens)) or append(self, tokens, to, features)
    try:
        asked.classify(TEXTS)
    finally:
        rows._append = append
    contexts = [asked._read(Given(text)) for text in TEXTS]
    shared = len("".join(asked.examples)) // 8  # tokens, at least
    once = sum(len(each.ids) + sum(len(ids) - 1 for ids in each.labels) for each in contexts)
    assert sum(read) <= once - (len(TEXTS) - 1) * shared


def test_a_word_may_stand_for_a_label_and_a_pair_beside_a_text(generator: Generator) -> None:
    prompt, labels = "{text} ? {pair} ! {label}", {"0": "Negative", "1": "Positive"}
    asked = generator.prompted(prompt, labels, [{"text": "a", "pair": "b", "label": 1}])
    assert asked.examples == ["a ? b ! Positive\n\n"]
    assert asked.classify("the cat", "the dog").label in labels
    assert asked.classify([("the cat", "{label}")])[0].probabilities.keys() == labels.keys()
    with pytest.raises(ValueError, match="'the cat' has no pair, and the prompt has a place"):
        asked.classify("the cat")
    with pytest.raises(ValueError, match="'the cat' has a pair, and the prompt has no place"):
        generator.prompted(PROMPT, labels).classify("the cat", "x")


def test_examples_that_leave_no_room_are_left_out_and_named(generator: Generator) -> None:
    shown = [(f"the cat sat {i}", "Positive") for i in range(8)]
    asked = generator.prompted(PROMPT, WORDS, shown, calibrated=True)
    short, long = asked.classify(["a", "the cat sat on the mat " * 3])
    first = asked._read(Given("a")).first
    assert 0 < first < 8
    assert asked.left_out["Review: the cat sat 0\nAnswer: Positive\n\n"] == 2
    assert "left out for want of room, before 2 texts at most: 'Review: the cat sat 0" in asked.report()
    fewer = generator.prompted(PROMPT, WORDS, shown[first:], calibrated=True)
    assert fewer.classify("a") == short
    assert fewer.classify("the cat sat on the mat " * 3) == long
    with pytest.raises(ReachError, match=r"line 3 has .* sub-words, the model has 96 places: shorten it"):
        asked.answers([Given("the cat " * 90, place="line 3")], asked.use)


def test_examples_are_drawn_by_a_seed() -> None:
    rows = [{"text": str(i), "label": "no" if i % 4 else "yes"} for i in range(40)]
    assert drawn(rows, None, (), 3) == rows
    assert drawn(rows, 5, (), 3) == drawn(rows, 5, (), 3) != drawn(rows, 5, (), 4)
    even = drawn(rows, 6, ("yes", "no"), 3)
    assert sorted(row["label"] for row in even) == ["no"] * 3 + ["yes"] * 3
    assert len({row["text"] for row in even}) == 6
    with pytest.raises(ValueError, match="shots = 41: there are 40 examples"):
        drawn(rows, 41, (), 0)
    with pytest.raises(ValueError, match="shots = 24: there are too few examples of yes"):
        drawn(rows, 24, ("yes", "no"), 0)


@pytest.mark.parametrize(
    ("prompt", "labels", "examples", "said"),
    [
        ("{text} is", ["a", "b"], [], "must have {text} in it, and once {label} after it"),
        ("it is {label}", ["a", "b"], [], "must have {text} in it, and once {label} after it"),
        ("{label}: {text}", ["a", "b"], [], "must have {text} in it, and once {label} after it"),
        (PROMPT, ["a"], [], "labels = a: there must be two at least"),
        (PROMPT, ["a", ""], [], "the tokenizer cannot write the label ''"),
        (PROMPT, {"0": "a", "1": "a"}, [], "two of the labels a, a are the same tokens"),
        (PROMPT, ["a", "b"], [("x", "c")], "the example 'x' has the label 'c': there are a, b"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    generator: Generator, prompt: str, labels: Any, examples: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        generator.prompted(prompt, labels, examples)


def test_a_label_without_sub_words_is_refused() -> None:
    tokens = Tokenizer.learn(TokensConfig("char", size=0), ["abc {}: "])
    task = Generate(block=16)
    generator = task.open([model(0, len(tokens))], tokens, task.sections.decode())
    with pytest.raises(ValueError, match="the tokenizer cannot write the label '好': say another word, 好=WORD"):
        generator.prompted("{text}: {label}", ["a", "好"])


def show(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


def test_the_command_asks_and_judges_as_python_does(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "shown.tsv").write_text("".join(f"{text}\t{label[0]}\n" for text, label in SHOWN))
    (tmp_path / "dev.tsv").write_text("".join(f"{text}\t{'PN'[i % 2]}\n" for i, text in enumerate(TEXTS) if text))
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    asked = ["--prompt", PROMPT.replace("\n", "\\n"), "--labels", "P=Positive, N=Negative"]
    asked += ["--examples", tmp_path / "shown.tsv", "--calibrated"]
    labels = {"P": "Positive", "N": "Negative"}
    model = regard.load(directory).prompted(PROMPT, labels, [(t, w[0]) for t, w in SHOWN], calibrated=True)
    found = show("classify", directory, tmp_path / "in.txt", *asked)
    assert found.stdout.splitlines() == [f"{x.label}\t{x.probability:.4f}" for x in model.classify(TEXTS)]
    judged = judge(directory, tmp_path / "dev.tsv", asked=Prompting(asked[1], asked[3], asked[5], calibrated=True))
    right = [x.label == "PN"[i % 2] for i, x in enumerate(model.classify(TEXTS)) if TEXTS[i]]
    assert judged["figures"]["accuracy"]["score"] == np.mean(right)
    assert judged["figures"].keys() >= {"accuracy", "f1", "mcc", "ece"}
    assert show("evaluate", directory, tmp_path / "dev.tsv", *asked, "--against", directory).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "is a language model: say what it is to read by --prompt and --labels"),
        (["--labels", "a,b"], "--labels is for a language model that is asked: say how by --prompt"),
        (["--prompt", PROMPT], "say which there are by --labels negative,positive"),
        (["--prompt", PROMPT, "--labels", "a,b", "--shots", "2"], "name it by --examples"),
        (["--prompt", PROMPT, "--labels", "a,b", "--long", "cut"], "--long is of models that read windows"),
        (["--prompt", "{text}", "--labels", "a,b"], "must have {text} in it, and once {label} after it"),
    ],
)
def test_mistakes_of_the_command_are_one_line(directory: Path, arguments: list[str], said: str) -> None:
    assert said in str(show("classify", directory, "the cat", *arguments).exception)


def test_prompted_is_a_classifier_that_is_not_kept(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("the cat\ta\nthe dog\tb\n")
    assert isinstance(regard.load(directory).prompted(PROMPT, ["a", "b"]), Prompted)
    with pytest.raises(ValueError, match="leave out --calibrate"):
        judge(directory, tmp_path / "dev.tsv", asked=Prompting(PROMPT, "a,b"), calibrate=True)
