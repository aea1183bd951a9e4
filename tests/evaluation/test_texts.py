"""ROUGE, whole outputs and error rates: equal to what published figures are made with, and to counts by hand."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.bootstrap import compared, intervals
from regard.evaluation.rouge import FOURTH, SECOND, THIRD, common, overlaps, stem
from regard.evaluation.texts import BY, compare, edits
from regard.evaluation.translation import bleu, chrf

# Of rouge-score 0.1.2, with and without its stemmer: ROUGE-1, -2, -L.
RECORDED = [
    ("the cats sat on the mats", "a cat sat on the mat", (5 / 6, 0.8, 5 / 6), (0.5, 0.4, 0.5)),
    ("Meeting rescheduled to Thursday, 3 pm", "The meeting was moved to Thursday", (0.5, 0.2, 0.5), (0.5, 0.2, 0.5)),
    ("Draft agreement", "RE: Draft Agreements for Enron's review", (4 / 9, 2 / 7, 4 / 9), (2 / 9, 0.0, 2 / 9)),
    ("nothing in common", "something else entirely", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ("a b a b a b", "a b b a", (0.8, 0.5, 0.8), (0.8, 0.5, 0.8)),
    ("", "a b", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
]
# Of NLTK's PorterStemmer: at least one word for each of its rules.
STEMS = """
caresses>caress ponies>poni ties>tie dies>die cats>cat feed>feed agreed>agre plastered>plaster bled>bled sing>sing
motoring>motor conflated>conflat troubled>troubl sized>size hopping>hop tanned>tan falling>fall hissing>hiss
fizzed>fizz failing>fail filing>file happy>happi enjoy>enjoy flying>fli relational>relat conditional>condit
rational>ration used>use valency>valenc digitizer>digit conformably>conform radically>radic differently>differ
vilely>vile analogously>analog vietnamization>vietnam predication>predic operator>oper feudalism>feudal
decisiveness>decis hopefulness>hope being>be callousness>callous formality>formal sensitivity>sensit
sensibility>sensibl geology>geolog pedagogy>pedagogi owing>owe triplicate>triplic formative>form formalize>formal
electricity>electr electrical>electr hopeful>hope goodness>good died>die revival>reviv allowance>allow
inference>infer airliner>airlin gyroscopic>gyroscop adjustable>adjust defensible>defens irritant>irrit
replacement>replac adjustment>adjust dependent>depend adoption>adopt homologous>homolog communism>commun
activate>activ angularity>angular effective>effect bowdlerize>bowdler probate>probat rate>rate cease>ceas skies>sky
controlling>control rolled>roll dying>die news>news innings>inning outing>outing howe>howe proceed>proceed lied>lie
2001>2001 yyyy>yyyi aeon>aeon
"""
ENDINGS = [*SECOND, *THIRD, *FOURTH, *["ion", "ies", "ied", "s", "ed", "ing", "eed", "sses", "ll", "y", "e"]]


def made_up(count: int, draw: Random) -> list[str]:
    """Words with every ending."""
    letters = "abceiolrstyzwx"
    stems = ("".join(draw.choice(letters) for _ in range(draw.randint(1, 5))) for _ in range(count))
    words = (text + draw.choice(ENDINGS) + draw.choice(["", "", "s", "ed", "ing", "ly"]) for text in stems)
    return [word for word in words if len(word) > 3]


@pytest.mark.parametrize("pair", STEMS.split())
def test_a_word_has_its_stem(pair: str) -> None:
    word, _, expected = pair.partition(">")
    assert stem(word) == expected


def test_stems_are_those_of_the_stemmer_that_rouge_score_has() -> None:
    porter = pytest.importorskip("nltk.stem.porter").PorterStemmer()
    words = made_up(20_000, Random(0))
    assert {word: stem(word) for word in words} == {word: porter.stem(word) for word in words}


@pytest.mark.parametrize(("said", "reference", "stemmed", "bare"), RECORDED)
def test_rouge_by_record(said: str, reference: str, stemmed: tuple[float, ...], bare: tuple[float, ...]) -> None:
    assert overlaps(said, reference) == pytest.approx(stemmed, abs=1e-12)
    assert overlaps(said, reference, stemmed=False) == pytest.approx(bare, abs=1e-12)


@pytest.mark.parametrize("stemmed", [True, False])
def test_rouge_equals_rouge_score(stemmed: bool) -> None:
    names = ["rouge1", "rouge2", "rougeL"]
    theirs = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(names, use_stemmer=stemmed)
    draw = Random(1)
    words = [*made_up(40, draw), "the", "of", "Ünlü", "3.5%", "it's", "\n"]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 30))) for _ in range(200)]
    for said, *references in zip(texts, texts[1:], texts[2:], strict=False):
        best = theirs.score_multi(references, said)
        (found,) = [[s.value for s in compare(["rouge"], [said], [references], stem=stemmed).values()]]
        assert found == pytest.approx([100 * best[name].fmeasure for name in names], abs=1e-9)


@given(st.text("abc", max_size=12), st.text("abcd", max_size=12))
def test_the_longest_common_subsequence_and_the_fewest_edits_are_those_of_their_tables(a: str, b: str) -> None:
    longest = np.zeros((len(a) + 1, len(b) + 1), int)
    fewest = np.add.outer(np.arange(len(a) + 1), np.arange(len(b) + 1))
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            longest[i, j] = longest[i - 1, j - 1] + 1 if x == y else max(longest[i - 1, j], longest[i, j - 1])
            fewest[i, j] = min(fewest[i - 1, j - 1] + (x != y), fewest[i - 1, j] + 1, fewest[i, j - 1] + 1)
    assert common(a, b) == longest[-1, -1]
    assert edits(a, b) == fewest[-1, -1]


def test_whole_outputs_and_error_rates_by_hand() -> None:
    said = ["K AE T", "D  AO", "x y"]
    found = compare(["exact", "per", "wer"], said, [["K AE T"], ["D AO G", "D AO"], ["X Y Z"]])
    assert {name: score.value for name, score in found.items()} == pytest.approx(
        {"exact": 200 / 3, "per": 300 / 8, "wer": 300 / 8}
    )
    assert found["per"].name == "PER"
    assert found["per"].signature == "nrefs:var|case:mixed"
    lower = compare(["wer", "exact"], said, [["k ae t"], ["d ao"], ["X Y"]], lowercase=True)
    assert (lower["wer"].value, lower["exact"].value) == (0.0, 100.0)
    assert compare(["wer"], ["a b c d"], ["a"])["wer"].value == 300.0  # more wrong than there is
    with pytest.raises(ValueError, match="2 hypotheses but 1 references"):
        compare(["exact"], ["a", "b"], ["a"])


def test_bleu_and_chrf_are_what_they_were() -> None:
    said, meant = ["The cat sat on the mat.", "No dog!"], ["A cat sat on the mat.", "no dog is here!"]
    found = compare(["bleu", "chrf"], said, meant, lowercase=True)
    assert found == {"bleu": bleu(said, meant, lowercase=True), "chrf": chrf(said, meant, lowercase=True)}


@pytest.mark.parametrize("name", BY)
def test_figures_of_some_rows_are_those_of_these_texts(name: str) -> None:
    draw = Random(2)
    words = ["the", "cats", "sat", "on", "a", "mat", "and", "it", "was", "said"]
    meant = [" ".join(draw.choices(words, k=9)) for _ in range(40)]
    said = [" ".join(word for word in text.split() if draw.random() < 0.8) for text in meant]
    whole = compare([name], said, meant)
    some = np.array([3, 3, 17, 25])
    alone = compare([name], [said[i] for i in some], [meant[i] for i in some])
    assert {key: score.of(some) for key, score in whole.items()} == pytest.approx(
        {key: score.value for key, score in alone.items()}, abs=1e-12
    )
    worse = compare([name], [text.replace("a", "x") for text in said], meant)
    ours, theirs = (
        lambda rows, scores=scores: {key: score.of(rows) for key, score in scores.items()} for scores in (whole, worse)
    )
    for key, difference in compared(ours, theirs, 40, times=200).items():
        assert (difference.score > 0) == (name not in ("wer", "cer", "per")), key
        assert difference.p < 0.05
        interval = intervals(ours, 40, times=200)[key]
        assert interval.low <= whole[key].value <= interval.high
