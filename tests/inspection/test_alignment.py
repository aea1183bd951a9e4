"""Alignments: the right layer's weights, sub-words put together, ends left out."""

import pytest
import torch
from torch import Tensor

from regard.inspection.alignment import align_words, source_attention
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
