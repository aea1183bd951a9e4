"""BLEU and chrF are sacreBLEU's to the last digit, and their inputs are checked."""

import importlib.util
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import BLEU, CHRF

from regard.evaluation.translation import CorpusScore, bleu, chrf, sentence_chrf

HYPOTHESES = ["The cat sat on the mat.", "There is no dog, is there?", "Il pleut “à verse” aujourd'hui !"]
REFERENCES = ["A cat sat on the mat.", "Is there no dog here?", "Il pleut à verse, aujourd'hui !"]
OTHERS = ["The cat was sitting on the mat.", "There is no dog, is there?", "Aujourd'hui il pleut beaucoup."]


def test_bleu_by_hand() -> None:
    # 1-grams: a b c d of 5; 2-grams: ab bc cd of 4; 3-grams: abc bcd of 3; 4-grams: abcd of 2; one token too short.
    score = bleu(["a b c d x"], ["a b c d e f"], tokenize="none")
    expected = 100 * math.exp(1 - 6 / 5) * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert score.value == pytest.approx(expected, rel=1e-12)
    assert score.name == "BLEU"


def test_counts_are_clipped_and_summed_over_the_corpus() -> None:
    # Two sentences: of "the" x 7 only two count (Papineni et al.), and the second is right: (2 + 7) / 14 and so on.
    score = bleu(["the " * 7, "a b c d e f g"], ["the cat is on the mat now", "a b c d e f g"], tokenize="none")
    precisions = [(2 + 7) / 14, 6 / 12, 5 / 10, 4 / 8]
    assert score.value == pytest.approx(100 * math.prod(precisions) ** (1 / 4), rel=1e-12)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char", "zh"])
def test_bleu_equals_sacrebleu(tokenize: str, lowercase: bool) -> None:
    metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    expected = metric.corpus_score(HYPOTHESES, [REFERENCES])
    assert bleu(HYPOTHESES, REFERENCES, tokenize=tokenize, lowercase=lowercase) == CorpusScore(
        expected.score, str(metric.get_signature()), "BLEU"
    )


def test_tokenisation_and_case_matter_and_are_in_the_signature() -> None:
    kinds = [{}, {"tokenize": "none"}, {"tokenize": "char"}, {"lowercase": True}]
    scores = [bleu(HYPOTHESES, REFERENCES, **kind) for kind in kinds]
    assert len({round(score.value, 6) for score in scores}) == 4
    assert "|tok:char|" in scores[2].signature
    assert "|case:lc|" in scores[3].signature
    chinese = bleu(["今天下雨了"], ["今天下大雨了"], tokenize="zh")
    assert chinese.value > bleu(["今天下雨了"], ["今天下大雨了"]).value == 0.0


def test_sentence_chrf_equals_sacrebleu() -> None:
    texts = [*HYPOTHESES, *REFERENCES, *OTHERS, "", " ", "a", "ab", "abc", "aaaaaaaaa", "今天下雨了", "a\u00a0b c", "é"]
    metric = CHRF()
    for hypothesis in texts:
        for reference in texts:
            expected = metric.sentence_score(hypothesis, [reference]).score
            assert sentence_chrf(hypothesis, reference) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("lowercase", [False, True])
def test_chrf_equals_sacrebleu(lowercase: bool) -> None:
    metric = CHRF(lowercase=lowercase)
    expected = metric.corpus_score(HYPOTHESES, [REFERENCES, OTHERS])
    both = [list(pair) for pair in zip(REFERENCES, OTHERS, strict=True)]
    score = chrf(HYPOTHESES, both, lowercase=lowercase)
    assert score == CorpusScore(expected.score, str(metric.get_signature()), "chrF2")


def test_several_references_also_of_unequal_number() -> None:
    both = [list(pair) for pair in zip(REFERENCES, OTHERS, strict=True)]
    score, metric = bleu(HYPOTHESES, both), BLEU()
    assert score.value == metric.corpus_score(HYPOTHESES, [REFERENCES, OTHERS]).score
    assert score.signature.startswith("nrefs:2|")
    assert bleu(HYPOTHESES, [[one] for one in REFERENCES]) == bleu(HYPOTHESES, REFERENCES)
    fewer = bleu(HYPOTHESES, [both[0], REFERENCES[1], both[2]])
    assert fewer.value == BLEU().corpus_score(HYPOTHESES, [REFERENCES, [OTHERS[0], None, OTHERS[2]]]).score
    assert fewer.signature.startswith("nrefs:var|")
    assert fewer.value < score.value


def test_the_line_is_that_of_sacrebleus_command(tmp_path: Path) -> None:
    (tmp_path / "hypotheses").write_text("\n".join(HYPOTHESES) + "\n", "utf-8")
    (tmp_path / "references").write_text("\n".join(REFERENCES) + "\n", "utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", "-m", "bleu", "chrf"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for theirs, ours in zip(json.loads(run.stdout), (bleu, chrf), strict=True):
        score = ours(HYPOTHESES, REFERENCES)
        assert str(score) == f"{theirs['name']}|{theirs['signature']} = {theirs['score']}"


def test_only_tokenised_text_that_is_not_said_to_be_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a b c d ."] * 100
    with caplog.at_level(logging.WARNING):
        bleu(texts, texts, tokenize="none")
        assert caplog.messages == []
        bleu(texts, texts)
    assert "tokenized period" in caplog.text


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "2 hypotheses but 1 references"),
        (["a", "b"], [["a", "b"]], "2 hypotheses but 1 references"),  # streams, as sacreBLEU takes them
        ([], [], "nothing to score: 0 hypotheses"),
        (["a", "b"], [["a"], []], "hypothesis 2 has no reference"),
        ("a b", ["a b"], "put it in a list"),
        (["a b"], "a b", "put it in a list"),
    ],
)
def test_what_does_not_pair_is_refused(hypotheses: Any, references: Any, message: str) -> None:
    for metric in (bleu, chrf):
        with pytest.raises(ValueError, match=message):
            metric(hypotheses, references)


def test_an_unknown_tokenisation_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown tokenisation '14a': did you mean '13a'"):
        bleu(["a"], ["a"], tokenize="14a")


@pytest.mark.skipif(importlib.util.find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_tokeniser_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"tokenisation 'ja-mecab': .*pip install sacrebleu\[ja\]"):
        bleu(["a"], ["a"], tokenize="ja-mecab")
