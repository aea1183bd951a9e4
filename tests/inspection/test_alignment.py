"""Alignments: the right layer's weights, sub-words put together, ends left out; gold links as people write them; error
rates by hand; heads and a text that know what goes together.
"""

import pytest
import torch
from torch import Tensor

from regard.inspection.alignment import (
    Gold,
    align_words,
    error_rate,
    head_links,
    lexical_links,
    read_gold,
    source_attention,
)
from regard.inspection.taps import edit, record
from regard.models.transformer import Transformer, TransformerConfig


def model() -> Transformer:
    torch.manual_seed(2)
    return Transformer(TransformerConfig.tiny(20, encoder_layers=1, decoder_layers=3)).eval()


def test_attention_is_the_mean_over_heads_and_layers_or_of_one_layer() -> None:
    transformer, source, target = model(), torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 4))
    inputs = {"source": source, "target": target}
    with record(transformer) as seen, torch.inference_mode():
        transformer(source, target)
    cross = [seen[f"decoder.layers.{i}.cross_attention"].mean(1) for i in range(3)]
    torch.testing.assert_close(source_attention(transformer, inputs), sum(cross, torch.zeros(())) / 3)
    torch.testing.assert_close(source_attention(transformer, inputs, layer=-2), cross[1])
    with pytest.raises(ValueError, match="layer = 3: the decoder has layers 0 to 2"):
        source_attention(transformer, inputs, layer=3)
    with pytest.raises(ValueError, match="no cross_attention"):
        source_attention(torch.nn.Linear(2, 2), inputs)


def test_a_model_that_looks_at_known_places_is_aligned_there() -> None:
    """The weights are forced: token t of the target looks at token 4 - t of the source."""
    transformer, source, target = model(), torch.randint(3, 20, (1, 6)), torch.randint(3, 20, (1, 5))
    inputs = {"source": source, "target": target}

    def backwards(weights: Tensor) -> Tensor:
        forced = torch.zeros_like(weights)
        for t in range(5):
            forced[:, :, t, 4 - t] = 1.0
        return forced

    with edit(transformer, {f"decoder.layers.{i}.cross_attention": backwards for i in range(3)}):
        weights = source_attention(transformer, inputs)[0]
    assert align_words(weights, range(5), range(4)) == [(4, 0), (3, 1), (2, 2), (1, 3)]
    assert align_words(weights, [0, 1, 1, 1, 2], [0, 0, 0, 1]) == [(1, 0), (1, 1)]  # two of three parts in word 1


def test_an_end_never_counts_and_nothing_aligns_with_nothing() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]])
    assert align_words(weights, [0, 1], [0]) == [(1, 0)]
    assert align_words(weights, [], [0]) == []
    assert align_words(weights, [0], []) == []


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
