"""BLEU and chrF by sacreBLEU, each figure with the signature without which it compares with nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checks import choose

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "spm", "flores101", "flores200", "none")


@dataclass(frozen=True)
class CorpusScore:
    """A figure, and how it came about."""

    value: float  # 0 to 100, or above for an error rate
    signature: str  # as sacreBLEU has it: how many references, case, tokenisation, smoothing, version
    name: str  # as it is spelled: BLEU, chrF2, ROUGE-L
    counts: NDArray[Any] | None = field(default=None, repr=False, compare=False)  # of each text, (N, K),
    figure: Callable[[list[Any]], float] | None = field(default=None, repr=False, compare=False)  # and of their K sums

    def __str__(self) -> str:
        """The line that sacreBLEU's own command prints, to quote in a paper."""
        return f"{self.name}|{self.signature} = {self.value:.1f}"

    def of(self, rows: NDArray[np.int64]) -> float:
        """The figure of some of the texts, by number."""
        assert self.counts is not None
        assert self.figure is not None
        return self.figure(self.counts[rows].sum(0).tolist())


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> CorpusScore:
    """BLEU of a corpus (Papineni et al., 2002), whole sentences in, tokenised here.

    `references` holds for each hypothesis its reference, or a list of several. `tokenize`: "13a" for text with spaces
    between words, "zh" for Chinese, "char" for single characters; "none" only for text that is tokenised already,
    and then comparable with nothing that is tokenised otherwise.

    >>> str(bleu(["the cat sat on the mat."], ["the cat sat on a mat."]))  # doctest: +ELLIPSIS
    'BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:... = 48.9'
    """
    from sacrebleu.metrics.bleu import BLEU

    choose("tokenisation", tokenize, dict.fromkeys(BLEU.TOKENIZERS))
    try:
        metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (ImportError, RuntimeError) as error:  # some tokenisers are packages of their own
        raise ValueError(f"tokenisation {tokenize!r}: {' '.join(str(error).split())}") from error
    return _score(metric, hypotheses, references)


def chrf(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], *, lowercase: bool = False
) -> CorpusScore:
    """chrF2 of a corpus (Popović, 2015): n-grams of characters, so that no tokenisation enters.

    `references` as for `bleu`.

    >>> round(chrf(["the cat sat"], [["the cat sat", "a cat sat"]]).value)
    100
    """
    from sacrebleu.metrics.chrf import CHRF

    return _score(CHRF(lowercase=lowercase), hypotheses, references)


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF2 of one sentence, 0 to 100: sacreBLEU's, but quick where the same few texts are compared again and again.

    >>> round(sentence_chrf("the cat sat", "the cat sits"), 1)
    61.0
    """
    (said, h), (meant, r) = _ngrams(hypothesis), _ngrams(reference)
    orders = range(1, min(said, meant, ORDER) + 1)
    matches = [0] * (ORDER + 1)
    for ngram in h.keys() & r.keys():
        matches[len(ngram)] += min(h[ngram], r[ngram])
    precision = sum(matches[n] / (said - n + 1) for n in orders)
    recall = sum(matches[n] / (meant - n + 1) for n in orders)
    return 100 * 5 * precision * recall / (4 * precision + recall) / len(orders) if precision else 0.0


ORDER = 6  # of n-grams of characters


@lru_cache(maxsize=512)
def _ngrams(text: str) -> tuple[int, Counter[str]]:
    """How many characters there are, spaces aside, and how often each n-gram of up to ORDER of them."""
    text = "".join(text.split())
    return len(text), Counter(text[i : i + n] for n in range(1, ORDER + 1) for i in range(len(text) - n + 1))


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> CorpusScore:
    each = checked(hypotheses, references)
    # sacreBLEU reads streams, one reference of every sentence in each, with None where a sentence has fewer.
    counts = metric._extract_corpus_statistics(hypotheses, list(zip_longest(*each)))  # as its own tests of significance
    result = metric._aggregate_and_compute(counts)
    signature = str(metric.get_signature())
    return CorpusScore(
        result.score,
        signature,
        result.name,
        np.array(counts),
        lambda sums: metric._compute_score_from_stats(sums).score,
    )


def checked(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """The references of each hypothesis, of which there is at least one."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("hypotheses and references are lists of sentences, not one string: put it in a list")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses but {len(references)} references: give each hypothesis its reference, "
            "or a list of several, in the same order"
        )
    if not hypotheses:
        raise ValueError("there is nothing to score: 0 hypotheses")
    each = [[one] if isinstance(one, str) else list(one) for one in references]
    if [] in each:
        raise ValueError(f"hypothesis {each.index([]) + 1} has no reference: give it one or leave it out")
    return each
