"""Questions: SQuAD and flat files, windows that know where an answer lies, answers that say where they stand or that
there is none."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models.family import build, configure
from regard.recipes import reading
from regard.recipes.train import train
from regard.tasks.answer import Answering, AnswerUse, QuestionFiles, best_of, located
from regard.tasks.reader import Given, windows

QUIET = Console(quiet=True)
COLOURS, ANIMALS = ["red", "dark blue", "green"], ["cat", "old dog", "bird"]
RECIPE = """
task: {name: answer}
data: {train: {jsonl: train.jsonl}, valid: {jsonl: valid.jsonl}, test: {jsonl: valid.jsonl}, max_length: 24}
tokens: {kind: wordpiece, size: 89}
model: {preset: bert-tiny, layers: 1, d_model: 32, d_ff: 64, heads: 2, max_length: 24, dropout: 0.0,
  attention_dropout: 0.0}
train: {steps: 160, batch_tokens: 512, checkpoint_every: 80, shards: 1, validate_every: 80,
  optimiser: {name: muon}, schedule: {name: constant, peak: 0.02, warmup: 10}}
"""


def questions(draw: Random, count: int, unanswerable: bool = True) -> str:
    """Which colour, or which animal, is in a text; sometimes none."""
    rows = []
    for _ in range(count):
        filler = [draw.choice(["it is", "we saw", "there", "now and then"]) for _ in range(draw.randint(1, 4))]
        named = {"colour": draw.choice(COLOURS), "animal": draw.choice(ANIMALS)}
        asked = draw.choice(sorted(named))
        if unanswerable and draw.random() < 0.3:
            del named[asked]
        words = [*filler, *named.values()]
        draw.shuffle(words)
        context, answer = f"{' '.join(words)}.", named.get(asked)
        rows.append({"question": f"Which {asked}?", "context": context, "answer": answer})
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions, a recipe for them, and the run of that."""
    folder, draw = tmp_path_factory.mktemp("answering"), Random(0)
    (folder / "train.jsonl").write_text(questions(draw, 400))
    (folder / "valid.jsonl").write_text(questions(draw, 40))
    (folder / "answer.yaml").write_text(RECIPE)
    assert train(reading.load(str(folder / "answer.yaml")), folder / "run", name="answer", console=QUIET)
    return folder


CONTEXT = "The Normans gave their name to Normandy, a region in France."
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "1",
                            "question": "Where is Normandy?",
                            "is_impossible": False,
                            "answers": [
                                {"text": "France", "answer_start": 53},
                                {"text": "in France", "answer_start": 50},
                            ],
                        },
                        {
                            "id": "2",
                            "question": "Who left?",
                            "is_impossible": True,
                            "answers": [],
                            "plausible_answers": [{"text": "The Normans", "answer_start": 0}],
                        },
                    ],
                }
            ],
        }
    ],
}


def read(path: Path, held: Any, **how: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows of a file, and what is said of them."""
    path.write_text(held if isinstance(held, str) else json.dumps(held) + "\n")
    skipped = Skipped()
    way = {"json": "squad"}.get(path.suffix[1:], path.suffix[1:])
    return list(QuestionFiles(**{way: str(path)}, **how).read(skipped)), skipped.report()


def test_squad_as_it_is_distributed(tmp_path: Path) -> None:
    first, second = read(tmp_path / "a.json", SQUAD)[0]
    assert first == {
        "question": "Where is Normandy?",
        "context": CONTEXT,
        "answers": ["France", "in France"],
        "places": [(53, 59), (50, 59)],
    }
    assert (second["question"], second["answers"], second["places"]) == ("Who left?", [], [])
    del SQUAD["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"]  # type: ignore[index]
    assert read(tmp_path / "a.json", SQUAD)[0] == [first, second]  # 1.1 has no such key
    with pytest.raises(ValueError, match=r"a.json is not as SQuAD is \(KeyError\('paragraphs'\)\)"):
        read(tmp_path / "a.json", {"data": [{}]})


@pytest.mark.parametrize(
    "told",
    [
        {"answers": {"text": ["France"], "answer_start": [53]}},
        {"answers": [{"text": "France", "answer_start": 53}]},
        {"answers": [{"text": "France", "start": 53}]},
        {"answers": ["France"]},
        {"answer": "France", "start": 53},
        {"answer": "France"},
        {"answer": "France", "start": -1},
        {"answer": {"text": "France", "start": 53}},
    ],
)
def test_flat_rows_of_every_form(tmp_path: Path, told: dict[str, Any]) -> None:
    ((row,), said) = read(tmp_path / "a.jsonl", {"question": "Where?", "context": CONTEXT, **told})
    assert (row["answers"], row["places"], said) == (["France"], [(53, 59)], "")


def test_a_table_with_a_word_for_no_answer(tmp_path: Path) -> None:
    columns = {"question": "q", "context": "review", "answer": "span", "start": "indices"}
    table = (
        'id,q,review,span,indices\n1,What?,"It was $11,\nor so. NONE",$ 11,"(7, 10)"\n2,Who?,It. NONE,NONE,"(4, 8)"\n'
    )
    (one, none), said = read(tmp_path / "a.csv", table, columns=columns, absent="NONE")
    assert (one["places"], one["context"][7:10], said) == ([(7, 10)], "$11", "")
    assert "\n" in one["context"]
    assert (none["answers"], none["places"]) == ([], [])


def test_an_answer_that_is_not_in_its_context_is_named_and_not_learnt_from(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}?", "context": "a b c", "answer": "d", "start": 0} for i in range(2)]
    rows += [
        {"question": "q?", "context": "a b c", "answer": "b", "start": 4},
        {"question": "q?", "context": "a b c", "answer": "b"},
    ]
    held, said = read(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert said == "3 answers are not in their contexts, and not learnt from (the first: 'd' to 'q0?')"
    tokens = Tokenizer.learn(TokensConfig("char", 0), ["abcq?1"])
    assert len(list(Answering().examples(held, tokens))) == 1
    assert [row["answers"] for row in held] == [["d"], ["d"], ["b"], ["b"]]  # they are still what is right
    with pytest.raises(ValueError, match="question 1: text as question and context, and answers as texts"):
        read(tmp_path / "a.jsonl", {"question": "q", "context": "c", "answers": [3]})
    with pytest.raises(ValueError, match="line 1: 'answers' holds a NUL or half a surrogate pair"):
        read(tmp_path / "a.jsonl", {"question": "q", "context": "c", "answers": ["\ud800"]})
    with pytest.raises(ValueError, match="no training question has an answer: say by `columns` where they stand"):
        Answering().fitted([{"answers": []}])


def test_where_an_answer_stands() -> None:
    assert located("a b a b", "a  b", 4) == (4, 7)
    assert located("a b a b", "b", 3) is None  # where it is told to be, it is not
    assert located("x (y)", "( y )", None) == (2, 5)
    assert located("a", "a", 10**30) is None


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte", "unigram"])
def test_a_window_says_where_the_answer_lies_in_it(kind: str) -> None:
    draw, size = Random(1), {"wordpiece": 41, "bpe": 275, "byte": 0, "unigram": 275}[kind]
    words = ["naïve", "tree", "of", "life", "☕", "in", "time"]
    tokens = Tokenizer.learn(TokensConfig(kind, size), [" ".join(words)] * 9)
    marks, whole, none = tokens.marks, 0, 0
    for _ in range(30):
        text = [draw.choice(words) for _ in range(30)]
        at = draw.randrange(27)
        context, answer, start = "  ".join(text), "  ".join(text[at : at + 3]), len("  ".join([*text[:at], ""]))
        assert context.startswith(answer, start)
        row = {"question": "tree?", "context": context, "answers": [answer], "places": [(start, start + len(answer))]}
        found = list(Answering(longest=60).examples([row], tokens))
        assert all(len(ids) <= 60 and len(ids) == len(segments) for ids, segments, _ in found)
        for ids, segments, (first, last) in found:
            if first:
                assert tokens.decode(ids[first : last + 1]).split() == answer.split()
                assert {segments[i] for i in range(first, last + 1)} == {1}
                whole += 1
            else:
                assert last == 0
                none += 1
        framed = list(windows(marks, tokens.encode("tree?"), tokens.encode(context), 60))
        assert [each.ids for each in framed] == [ids for ids, *_ in found]
        assert any(first for *_, (first, _) in found)
    assert whole
    assert none or len(found) == 1


def test_scores_are_those_of_the_best_window() -> None:
    tokens = Tokenizer.learn(TokensConfig("char", 0), ["abcdefgh?"])
    random, context = np.random.default_rng(0), tokens.encode("abcdefghgfedcba")
    framed = list(windows(tokens.marks, tokens.encode("a?"), context, 12))
    said = [random.normal(size=(len(each.ids), 2)) for each in framed]
    assert len(framed) > 2
    found = best_of(framed, said, len(context), 4)
    for first in range(len(context)):
        for more in range(4):
            inside = [
                logits[each.begins + first - each.first, 0] + logits[each.begins + first + more - each.first, 1]
                for each, logits in zip(framed, said, strict=True)
                if each.first <= first and first + more < each.first + each.tokens
            ]
            assert found[first, more] == max(inside, default=-np.inf)


def test_an_answerer_learns_and_says_where_answers_stand(folder: Path) -> None:
    about = json.loads((folder / "run" / "config.json").read_text())
    assert about["task"] == {"name": "answer", "unanswerable": True, "longest": 24, "dropout": 0.0}
    assert about["head"] == {"kind": "spans"}
    figures = json.loads((folder / "run" / "evaluation.json").read_text())
    assert list(figures) == ["exact", "f1", "f1 answerable", "f1 unanswerable"]
    assert figures["exact"]["score"] > 0.9
    answerer = regard.load(folder / "run", bitwise=True)
    context = "we saw  old dog\n it is  dark blue."
    found = answerer.answer("Which colour?", context)
    assert (found.text, context[found.start : found.end]) == ("dark blue", "dark blue")
    assert answerer.answer("Which animal?", context).text == "old dog"
    nothing = answerer.answer("Which animal?", "now and then dark blue.")
    assert (nothing.text, nothing.start, nothing.end) == ("", None, None)
    assert nothing.probability == nothing.none > 0.5
    both = answerer.answer([("Which colour?", context), Given("Which animal?", "")])
    assert both[0] == found
    assert (both[1].text, both[1].none, both[1].best) == ("", 1.0, [])


def test_probabilities_are_of_all_parts_and_none(folder: Path) -> None:
    answerer = regard.load(folder / "run")
    found = answerer.answer("Which colour?", "it is green now and then.", top=10**6)
    assert sum(span.probability for span in found.best) + found.none == pytest.approx(1)
    chances = [span.probability for span in found.best]
    assert chances == sorted(chances, reverse=True)
    assert (found.best[0].text, found.best[0].probability) == (found.text, found.probability)
    pieces = len(answerer.tokenizer.encode("it is green now and then."))
    assert len(found.best) == pieces * (pieces + 1) // 2  # each part once
    short = answerer.answer("Which colour?", "it is green now and then.", top=10**6, longest=1)
    assert len(short.best) == pieces
    assert len(answerer.answer("Which colour?", "it is green now and then.", top=2).best) == 2


def test_how_readily_none_is_said(folder: Path) -> None:
    answerer = regard.load(folder / "run")
    texts = ("Which colour?", "it is green.")
    assert answerer.answer(*texts).text == "green"
    assert answerer.answer(*texts, null=-1e6).text == ""
    nothing = ("Which colour?", "it is.")
    assert answerer.answer(*nothing).text == ""
    assert answerer.answer(*nothing, null=1e6).text != ""
    task = Answering(unanswerable=False)
    never = task.open(answerer.models, answerer.tokenizer, AnswerUse())
    found = never.answer(*nothing, top=10**6)
    assert found.text != ""
    assert (found.none, sum(span.probability for span in found.best)) == (0.0, pytest.approx(1))
    assert never.answer(*nothing, null=0.0).text == ""


def test_a_long_context_is_read_in_windows_and_a_long_question_is_refused(folder: Path) -> None:
    answerer = regard.load(folder / "run")
    before, after = "now and then it is. " * 30, " we saw there. " * 30
    found = answerer.answer("Which colour?", f"{before}dark blue{after}", null=1e6)
    assert found.windows > 10
    assert (found.text, found.start) == ("dark blue", len(before))
    with pytest.raises(ValueError, match="has 42 tokens, the model reads 24 at most: shorten it"):
        answerer.answer("colour? " * 21, "green")
    with pytest.raises(ValueError, match=r"'Which colour.' has no context to find an answer in: give one"):
        answerer.answer(["Which colour?"])


def test_a_resumed_run_is_the_same_model_bit_for_bit(folder: Path) -> None:
    path = str(folder / "answer.yaml")
    train(reading.load(path, ["train.steps=80"]), folder / "parts", name="answer", console=QUIET)
    train(reading.load(path), folder / "parts", name="answer", console=QUIET, resume=True)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in ("parts", "run"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_models_that_tell_no_texts_apart_and_the_largest_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.batch_size.LARGEST", 512)
    (folder / "all.jsonl").write_text(questions(Random(2), 40, unanswerable=False))
    data = ["data.train.jsonl=" + str(folder / "all.jsonl"), "train.steps=2", "train.batch_tokens=0"]
    for segments in ("1", "null"):
        recipe = reading.load(str(folder / "answer.yaml"), [*data, f"model.segments={segments}"])
        place = folder / f"segments-{segments}"
        assert train(recipe, place, name="answer", console=QUIET)
        model = regard.load(place)
        assert not model.unanswerable
        assert model.answer("Which colour?", "it is green.").text
        assert model.answer("Which colour?", "").text == ""


def test_one_vector_for_all_sentences_tells_none_apart() -> None:
    model = build(configure("roberta-base", ["layers=1", "d_model=16", "heads=2", "d_ff=16"], vocabulary=9)).eval()
    tokens, segments = torch.tensor([[4, 5, 6]]), torch.tensor([[0, 1, 1]])
    assert torch.equal(model(tokens, segments=segments), model(tokens))


def test_a_model_that_reads_one_way_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"task.name = answer: a model like gpt-tiny cannot do it; it can generate"):
        reading.load(str(folder / "answer.yaml"), ["model.preset=gpt-tiny"])
    with pytest.raises(ValueError, match=r"model.max_length = 24: it must hold the 384 tokens of data.max_length"):
        reading.load(str(folder / "answer.yaml"), ["data.max_length=384"])
