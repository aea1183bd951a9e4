"""A parse is read, or refused with its line; arcs find their words; heads that follow them beat a fixed offset."""

import pytest
import torch

from regard.inspection.measures import HeadMeasures
from regard.inspection.roles import roles
from regard.inspection.syntax import Grammar, Parse, Relation, Syntactic, arcs, read_conllu

NAME = "layer"
PLAIN = HeadMeasures(0.4, 1.5, 0.6, None, 0.1, 0.1, 0.1)


def conllu(*rows: str) -> list[str]:
    """Lines of CoNLL-U, of ID FORM HEAD DEPREL each."""
    lines = []
    for row in rows:
        id, form, head, relation = row.split(" ") if row else ("", "", "", "")
        lines.append("\t".join([id, form, "_", "_", "_", "_", head, relation, "_", "_"]) if row else "")
    return lines


def parsed(*rows: str) -> Parse:
    (found,) = read_conllu(conllu(*rows), "p")
    return found


def test_words_are_found_by_their_characters() -> None:
    rows = ("1 Where 4 advmod", "2 's 4 cop", "3 the 4 det", "4 Library 0 root", "5 ? 4 punct")
    # The arc of "?" lies within "library?"; "Where" and "'s" are one word, and both hang on the same one.
    assert arcs(parsed(*rows), ["Where's", "the", "library?"], "p") == {(0, 2, "advmod"), (0, 2, "cop"), (1, 2, "det")}
    assert arcs(parsed("1 1 2 nummod", "2 000 0 root"), ["1000"], "p") == set()
    spaced = parsed("1 1000 2 nummod", "2 cats 0 root")
    assert arcs(spaced, ["1", "000", "cats"], "p") == {(0, 2, "nummod")}  # at the first of its words


def test_several_words_of_one_form_comments_and_empty_nodes() -> None:
    rows = ("1 sale 0 root", "2-3 del _ _", "2 de 4 case", "3 el 4 det", "3.1 understood _ _", "4 bar 1 obl:from")
    found = read_conllu(["# text = sale del bar", *conllu(*rows), "", "", *conllu("1 ¡Sí! 0 root")], "p")
    assert [len(each.at) for each in found] == [4, 1]
    assert arcs(found[0], ["sale", "del", "bar"], "p") == {(1, 2, "case"), (1, 2, "det"), (2, 0, "obl")}
    assert read_conllu([], "p") == read_conllu(["", "# nothing"], "p") == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1 a 0"], r"p:1: a line of CoNLL-U has 10 columns with tabs between them, this one 1"),
        (conllu("1 a 0 root", "3 b 1 det"), r"p:2: the id is '3', where 2 was to come"),
        (conllu("x a 0 root"), r"p:1: the id is 'x', where 1 was to come"),
        (conllu("1 a _ root"), r"p:1: the head of 'a' is '_', not the number of a word"),
        (conllu("1 a 0 root", "2 b 3 det"), r"p:2: the head is 3, of words 1 to 2: it must be another one, or 0"),
        (conllu("1 a 1 det"), r"p:1: the head is 1, of words 1 to 1"),
        (conllu("1- a _ _"), r"p:1: '1-' is no range of words"),
        (conllu("1-3 a _ _", "1 b 0 root", ""), r"p:1: the range goes on to word 3, the sentence to 1"),
        (conllu("1  0 root"), r"p:1: the word has no form"),
        (conllu("1-2 ab _ _"), r"p:1: the range goes on to word 2, the sentence to 0"),
    ],
)
def test_what_is_no_parse_is_refused_with_its_line(rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read_conllu(rows, "p")


def test_a_parse_of_another_text_is_refused_with_its_line() -> None:
    parse = parsed("1 A 2 det", "2 cat 0 root")
    with pytest.raises(ValueError, match=r"^p:2: 'cat' does not fit the text, which goes on with 'dog'"):
        arcs(parse, ["a", "dog"], "p")
    with pytest.raises(ValueError, match=r"^p:2: 'cat' does not fit the text, which is at its end"):
        arcs(parse, ["a"], "p")
    with pytest.raises(ValueError, match=r"^p:2: the sentence ends here, and the text goes on with 'sat'"):
        arcs(parse, ["a", "cat", "sat"], "p")


def test_a_head_by_hand() -> None:
    """Words a, bb (two tokens), c and the end; the arcs are a -> c and c -> bb. The rows of bb look at a and at c."""
    one = [
        [0.0, 0.3, 0.2, 0.4, 0.1],  # a: bb has 0.5 in sum, c 0.4
        [0.7, 0.1, 0.1, 0.1, 0.0],  # bb: the mean has 0.4 on a, 0.45 on c
        [0.1, 0.0, 0.0, 0.8, 0.1],
        [0.0, 0.3, 0.0, 0.1, 0.6],  # c: the end does not count, so bb
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
    grammar = Grammar()
    grammar.add({NAME: torch.tensor([one])}, [0, 1, 1, 2], {(0, 2, "nsubj"), (2, 1, "obj")})
    shares = {(each.relation.relation, each.relation.towards): each.share for each in grammar.of_head(NAME, 0, 1)}
    assert shares == {
        ("nsubj", "head"): 0.0,  # from a to c
        ("nsubj", "dependent"): 0.0,  # from c to a
        ("obj", "head"): 1.0,  # from c to bb
        ("obj", "dependent"): 1.0,  # from bb to c
    }
    assert {(each.relation, each.towards): each.offset for each in grammar.relations(1)} == {
        ("nsubj", "head"): 2,
        ("nsubj", "dependent"): -2,
        ("obj", "head"): -1,
        ("obj", "dependent"): 1,
    }
    assert not grammar.relations()  # one of each is not enough
    assert not grammar.of_head(NAME, 0)


def test_what_place_alone_can_tell_is_no_merit() -> None:
    """Heads: 0 looks at the partner wherever it is, 1 at the next word. The partner is next in 3 sentences of 5."""
    grammar = Grammar()
    for partner in (1, 1, 1, 2, 3):
        weights = torch.zeros(2, 5, 5)
        weights[0, :, partner] = 1.0
        weights[1, range(4), range(1, 5)] = 1.0
        grammar.add({NAME: weights}, range(4), {(0, partner, "nsubj")})
    relation, back = grammar.relations(5)
    assert (relation, back.towards) == (Relation("nsubj", "head", 5, 1, 3 / 5), "dependent")
    looks, steps = (grammar.of_head(NAME, head, 5)[0] for head in (0, 1))
    assert (looks.share, looks.relation.towards) == (1.0, "head")
    assert looks.over == pytest.approx(2 / 5)
    assert roles(PLAIN, None, looks) == ["syntactic nsubj to head"]
    assert roles(PLAIN, None, steps) == ["mixed"]
    assert roles(PLAIN, None, Syntactic(relation, 0.69)) == ["mixed"]


def test_of_offsets_as_frequent_the_nearest_is_the_baseline_and_a_word_without_tokens_counts_nowhere() -> None:
    grammar = Grammar()
    grammar.add({NAME: torch.eye(5)[None]}, [0, 1, 1, 3], {(0, 3, "obj"), (1, 0, "obj"), (0, 2, "det")})
    assert [(each.relation, each.towards, each.offset) for each in grammar.relations(1)] == [
        ("obj", "head", -1),
        ("obj", "dependent", 1),
    ]
    grammar.add({NAME: torch.eye(1)[None]}, [], set())
