"""Spans are counted as seqeval counts them, answers compared as SQuAD's script compares them."""

from random import Random

import pytest

from regard.evaluation.spans import answering, bio, plain, spans, tagging


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("I-ORG O I-MISC O O O I-MISC", "B-ORG O B-MISC O O O B-MISC"),  # IOB1, as CoNLL-2003 is distributed
        ("I-PER I-PER B-PER I-PER", "B-PER I-PER B-PER I-PER"),
        ("I-PER I-LOC I-LOC", "B-PER B-LOC I-LOC"),  # another kind is another span
        ("B-PER I-LOC", "B-PER B-LOC"),
        ("S-PER B-LOC I-LOC E-LOC S-LOC E-LOC I-LOC", "B-PER B-LOC I-LOC I-LOC B-LOC B-LOC B-LOC"),  # IOBES
        ("U-PER B-LOC L-LOC L-LOC", "B-PER B-LOC I-LOC B-LOC"),  # BILOU
        ("B I O I", "B-_ I-_ O B-_"),
        ("DT NNP -LRB-", "B-DT B-NNP B--LRB-"),
        ("B-GPE-LOC I-GPE-LOC", "B-GPE-LOC I-GPE-LOC"),
    ],
)
def test_tags_of_every_kind_become_bio(given: str, expected: str) -> None:
    assert bio(given.split()) == expected.split()
    assert bio(expected.split()) == expected.split()


def test_spans_worked_by_hand() -> None:
    given = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    said = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert tagging(given, said) == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 8 / 10}
    # Two of three told are right, of four there are: a span across two sentences would be another.
    given = [["B-A", "O", "B-B", "I-B"], ["B-A", "B-A"]]
    said = [["B-A", "O", "B-B", "O"], ["I-A", "O"]]
    found = tagging(given, said)
    assert found == {"f1": 4 / 7, "precision": 2 / 3, "recall": 2 / 4, "accuracy": 3 / 6}
    assert tagging([["O"]], [["O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1.0}


@pytest.mark.oracle
def test_spans_are_those_of_seqeval() -> None:
    metrics = pytest.importorskip("seqeval.metrics")
    draw = Random(1)
    tags = [*"OOO", "B", "I", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC", "A-B"))]
    for _ in range(500):
        given = [[draw.choice(tags) for _ in range(draw.randint(1, 8))] for _ in range(draw.randint(1, 3))]
        said = [[tag if draw.random() < 0.6 else draw.choice(tags) for tag in row] for row in given]
        for row in given:
            theirs = metrics.sequence_labeling.get_entities(row)
            assert [(kind, first, after - 1) for kind, first, after in spans(row)] == theirs
        wanted = [metrics.f1_score, metrics.precision_score, metrics.recall_score, metrics.accuracy_score]
        assert list(tagging(given, said).values()) == pytest.approx([each(given, said) for each in wanted])


@pytest.mark.parametrize(
    ("given", "said", "exact", "f1"),
    [
        (["Denver Broncos"], "The Denver Broncos!", 1, 1),  # case, articles and signs do not count
        (["Denver Broncos", "Broncos"], "Broncos", 1, 1),  # the nearest counts
        (["Denver Broncos"], "Broncos", 0, 2 / 3),  # precision 1, recall 1/2
        (["a cat and a cat"], "cat cat cat", 0, 2 * 2 / (3 + 3)),  # as often as both have it; articles gone
        (["1990s"], "1990's", 1, 1),
        (["x-ray"], "x ray", 0, 0),  # a sign is taken out, not made a space
        ([], "", 1, 1),
        ([], "Broncos", 0, 0),
        (["Broncos"], "", 0, 0),
        (["the"], "", 1, 1),  # an answer of which nothing counts is none
        (["Élysée"], "élysée ", 1, 1),
    ],
)
def test_answers_worked_by_hand(given: list[str], said: str, exact: float, f1: float) -> None:
    found = answering([given], [said])
    assert found == {"exact": pytest.approx(exact), "f1": pytest.approx(f1)}


@pytest.mark.oracle
def test_answers_are_those_of_squads_script() -> None:
    theirs = pytest.importorskip("torchmetrics.functional.text").squad  # which is a port of it
    draw, words = Random(2), ["The", "a", "cat", "Cat's", "x-ray", "1990s", "Élysée", "(the)", "an", "dog,", "dog", " "]

    def answer() -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(1, 5)))

    for there in (True, False):
        given = [[answer() + " bird" for _ in range(draw.randint(1, 3))] if there else [] for _ in range(300)]
        said = [draw.choice([answer(), answer() + " bird", *own, ""]) for own in given]
        asked = [{"id": str(i), "prediction_text": text} for i, text in enumerate(said)]
        right = [{"id": str(i), "answers": {"text": own or [""], "answer_start": [0]}} for i, own in enumerate(given)]
        expected = theirs(asked, right)
        found = answering(given, said)
        assert found["exact"] == pytest.approx(float(expected["exact_match"]) / 100, abs=1e-6)
        assert found["f1"] == pytest.approx(float(expected["f1"]) / 100, abs=1e-6)


def test_what_counts_of_an_answer() -> None:
    assert plain("An  apple, a\tday: the «thing»!") == "apple day «thing»"  # only signs of ASCII, as the script has it
    assert plain("Theatre another") == "theatre another"


def test_figures_of_questions_with_and_without_an_answer() -> None:
    found = answering([["yes"], ["no"], [], []], ["yes", "", "", "no"])
    assert found == {"exact": 0.5, "f1": 0.5, "f1 answerable": 0.5, "f1 unanswerable": 0.5}
