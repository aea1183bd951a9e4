"""Gold links are read as people write them; error rates by hand; heads and a text that know what goes together."""

import pytest
import torch

from regard.inspection.links import Gold, error_rate, head_links, lexical_links, read_gold


def test_sure_and_possible_links() -> None:
    first, empty, last = read_gold(["0-0 1?2 3p4", "", "0-0 0p0 10-11"], "gold")
    assert first == Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (3, 4)}))
    assert empty == Gold(frozenset(), frozenset())
    assert last == Gold(frozenset({(0, 0), (10, 11)}), frozenset({(0, 0), (10, 11)}))


@pytest.mark.parametrize("word", ["1", "1-", "a-b", "1-2-3", "-1-2", "1:2", "1-²", "1.0-2"])
def test_what_is_no_link_is_named_with_its_line(word: str) -> None:
    with pytest.raises(ValueError, match=rf"^gold\.txt:2: '{word}' is no link: write 3-4 for a sure one"):
        read_gold(["0-0", f"1-1 {word}"], "gold.txt")


def test_error_rate_by_hand() -> None:
    gold = [
        Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 1)})),
        Gold(frozenset(), frozenset({(0, 0)})),
    ]
    assert error_rate([{(0, 0), (1, 1)}, set()], gold) == 0
    assert error_rate([set(), set()], gold) == 1
    # |A| = 3, |S| = 2; of A one is sure, and three are possible.
    assert error_rate([{(0, 0), (2, 1)}, {(0, 0)}], gold) == pytest.approx(1 - (1 + 3) / (3 + 2))
    assert error_rate([{(5, 5)}, {(0, 0)}], gold) == pytest.approx(1 - (0 + 1) / (2 + 2))


def test_a_head_links_words_by_the_row_that_predicts_or_reads() -> None:
    """Source: two words of tokens a, b b; target: words x x, y. Rows: x x y </s>; columns: a b b </s>."""
    one = [[0.6, 0.2, 0.2, 0.0], [0.1, 0.4, 0.4, 0.1], [0.4, 0.3, 0.3, 0.0], [0.0, 0.0, 0.0, 1.0]]
    two = [[0.0, 0.0, 0.0, 1.0], [0.0, 0.9, 0.0, 0.1], [0.8, 0.1, 0.1, 0.0], [0.1, 0.1, 0.1, 0.7]]
    weights, read, written = torch.tensor([one, two]), [0, 1, 1], [0, 0, 1]
    # Head 0: x x has (0.6 + 0.1) on a and (0.4 + 0.8) on b b; y 0.4 and 0.6, though a has the greatest single weight.
    assert head_links(weights, read, written) == [{(1, 0), (1, 1)}, {(1, 0), (0, 1)}]
    assert head_links(weights, read, written, "reads") == [{(1, 0), (0, 1)}, {(1, 0), (1, 1)}]
    assert head_links(weights, [], written) == [set(), set()]


def test_a_text_tells_which_words_go_together() -> None:
    """A word-for-word language, 1 -> 11 and so on, written backwards; 99 comes from nowhere."""
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randperm(8, generator=generator)[:4].tolist() for _ in range(60)]
    pairs = [(source, [*(token + 10 for token in reversed(source)), 99]) for source in sources]
    assert all(links == {(3 - j, j) for j in range(4)} for links in lexical_links(pairs))
    assert lexical_links([]) == []
    assert lexical_links([([], [5]), ([5], [])]) == [set(), set()]
