"""Each map of a translation has the texts of its own tokens along its axes, and the weights the model really used."""

import pytest
import torch

from regard.inspection.maps import translation_maps
from regard.inspection.page import AttentionMap
from regard.inspection.taps import record
from regard.models.transformer import Transformer, TransformerConfig

READ = ["the", "cat", "sat", "</s>"]
WRITTEN = ["el", "gato", "</s>"]
SOURCE, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(12, encoder_layers=2, decoder_layers=3, dropout=0.4))


@pytest.fixture(scope="module")
def maps(model: Transformer) -> dict[str, AttentionMap]:
    return {each.name: each for each in translation_maps(model.train(), SOURCE, TARGET, READ, WRITTEN)}


def test_cross_attention_comes_first_then_the_decoder_then_the_encoder_each_by_layer(
    maps: dict[str, AttentionMap],
) -> None:
    assert list(maps) == [
        *(f"decoder.layers.{i}.cross_attention" for i in range(3)),
        *(f"decoder.layers.{i}.self_attention" for i in range(3)),
        *(f"encoder.layers.{i}.self_attention" for i in range(2)),
    ]


@pytest.mark.parametrize(
    ("kind", "queries", "keys", "role"),
    [
        ("encoder.layers.1.self_attention", READ, READ, "read"),
        ("decoder.layers.1.cross_attention", WRITTEN, READ, "predicted"),
        ("decoder.layers.1.self_attention", WRITTEN, ["<s>", "el", "gato"], "predicted"),
    ],
)
def test_each_axis_has_its_texts_and_queries_their_role(
    maps: dict[str, AttentionMap], kind: str, queries: list[str], keys: list[str], role: str
) -> None:
    found = maps[kind]
    assert (list(found.queries), list(found.keys), found.query_role) == (queries, keys, role)
    assert found.weights.shape == (4, len(queries), len(keys))


def test_weights_are_those_of_the_model_without_dropout(model: Transformer, maps: dict[str, AttentionMap]) -> None:
    with record(model.eval()) as seen, torch.no_grad():
        model(SOURCE, TARGET)
    assert seen.weights.keys() == maps.keys()
    for name, weights in seen.weights.items():
        torch.testing.assert_close(maps[name].weights, weights[0])
        torch.testing.assert_close(maps[name].weights.sum(-1), torch.ones(weights.shape[1:3]))


def test_a_word_is_predicted_from_the_words_before_it(maps: dict[str, AttentionMap]) -> None:
    for i in range(3):
        weights = maps[f"decoder.layers.{i}.self_attention"].weights
        assert not weights.triu(1).any()  # at "gato" the model has read <s> and "el"
        assert (weights[:, :, 0] > 0).all()


def test_a_source_that_is_padded_needs_a_text_for_its_padding_too(model: Transformer) -> None:
    wider = torch.cat([SOURCE, torch.tensor([[0]])], dim=1)
    maps = {each.name: each for each in translation_maps(model, wider, TARGET, [*READ, "<pad>"], WRITTEN)}
    assert not maps["decoder.layers.0.cross_attention"].weights[:, :, -1].any()
    with pytest.raises(ValueError, match=r"need \(5, 5\) queries and keys; got \(4, 4\) texts"):
        translation_maps(model, wider, TARGET, READ, WRITTEN)


def test_a_missing_word_is_named_with_its_map(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.self_attention: .* got \(2, 2\) texts"):
        translation_maps(model, SOURCE, TARGET, READ, WRITTEN[1:])
