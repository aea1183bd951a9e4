"""Labelled brackets, against cases worked by hand."""

import pytest

from regard.data.treebank import Tree, leaves, read_trees, spans
from regard.evaluation.parsing import Brackets, compare


def tree(text: str) -> Tree:
    (found,) = read_trees([text], "a case")
    return found


def score(gold: str, guessed: str) -> Brackets:
    """The words and parts of speech of both are the same."""
    right, said = tree(gold), tree(guessed)
    tags = [leaf.label for leaf in leaves(right)]
    assert [leaf.word for leaf in leaves(right)] == [leaf.word for leaf in leaves(said)]
    return compare(spans(right), spans(said), tags)


GOLD = "(TOP (S (NP (PRP I)) (VP (VBD saw) (NP (DT a) (NN man)) (PP (IN with) (NP (DT a) (NN dog)))) (. .)))"


def test_a_tree_equals_itself() -> None:
    # S(0,7) NP(0,1) VP(1,7) NP(2,4) PP(4,7) NP(5,7); TOP does not count.
    same = score(GOLD, GOLD)
    assert same == Brackets(sentences=1, complete=1, gold=6, guessed=6, matched=6)
    assert (same.f1, same.exact) == (100.0, 100.0)


def test_an_attachment_is_wrong() -> None:
    # The dog is the man's: there is one bracket more, NP(2,7), and the other six stand.
    low = GOLD.replace("(NP (DT a) (NN man)) (PP", "(NP (NP (DT a) (NN man)) (PP").replace("dog)))) (.", "dog))))) (.")
    found = score(GOLD, low)
    assert found == Brackets(sentences=1, complete=0, gold=6, guessed=7, matched=6)
    assert found.recall == 100.0
    assert found.precision == pytest.approx(600 / 7)
    assert found.f1 == pytest.approx(1200 / 13)


def test_a_label_is_wrong() -> None:
    found = score(GOLD, GOLD.replace("(PP", "(ADVP"))
    assert (found.gold, found.guessed, found.matched, found.complete) == (6, 6, 5, 0)


def test_where_punctuation_hangs_does_not_matter() -> None:
    inside = GOLD.replace("(NN dog)))) (. .)", "(NN dog))) (. .))")  # in the VP instead of the S
    assert score(GOLD, inside).complete == 1
    # And a bracket around nothing but punctuation is none.
    assert score(GOLD, GOLD.replace("(. .)", "(NP (. .))")).complete == 1


def test_words_that_look_like_punctuation_count_by_their_tag() -> None:
    # Brackets, signs of money and hashes stay, as in COLLINS.prm; here a $ between the two.
    gold = "(S (NP ($ $) (CD 5)) (VP (VBD fell)))"
    assert score(gold, "(S (NP ($ $)) (VP (CD 5) (VBD fell)))").matched == 1  # only S


def test_particles_are_adverbs() -> None:
    gold = "(VP (VB give) (PRT (RP up)))"
    assert score(gold, gold.replace("PRT", "ADVP")).complete == 1
    assert score(gold, gold.replace("PRT", "PP")).matched == 1


def test_unary_chains_are_a_multiset() -> None:
    # NP over NP over a word: three brackets in gold with S. A guess with one NP matches one of the two,
    twice = "(S (NP (NP (NN rain))) (VP (VBZ falls)))"
    once = "(S (NP (NN rain)) (VP (VBZ falls)))"
    found = score(twice, once)
    assert (found.gold, found.guessed, found.matched) == (4, 3, 3)
    # and a guess with three NP matches two. In which order labels of one span stand does not matter.
    thrice = "(S (NP (NP (NP (NN rain)))) (VP (VBZ falls)))"
    found = score(twice, thrice)
    assert (found.gold, found.guessed, found.matched) == (4, 5, 4)
    assert score("(S (VP (VB go)))", "(VP (S (VB go)))").complete == 1


def test_a_text_is_the_sum_of_its_sentences() -> None:
    # 6 of 6 and 1 of 3 and 3: F1 = 2 · 7 / (9 + 9), not the mean of both sentences.
    bad = score("(S (NP ($ $) (CD 5)) (VP (VBD fell)))", "(S (NP ($ $)) (VP (CD 5) (VBD fell)))")
    both = score(GOLD, GOLD) + bad
    assert both == Brackets(sentences=2, complete=1, gold=9, guessed=9, matched=7)
    assert both.f1 == pytest.approx(100 * 7 / 9)
    assert both.exact == 50.0


def test_nothing_at_all() -> None:
    nothing = Brackets()
    assert (nothing.recall, nothing.precision, nothing.f1, nothing.exact) == (0.0, 0.0, 0.0, 0.0)
    found = compare([("S", 0, 2)], [], ["NN", "VB"])  # no tree was found
    assert (found.gold, found.guessed, found.matched, found.complete) == (1, 0, 0, 0)
