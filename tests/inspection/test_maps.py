"""Each map of a translation has the texts of its own tokens along its axes, and the weights the model really used."""

import pytest
import torch

from regard.inspection.maps import attention_maps, without_special
from regard.inspection.page import AttentionMap
from regard.inspection.taps import record
from regard.inspection.views import rollout
from regard.inspection.words import Words, merge
from regard.models.transformer import Transformer, TransformerConfig

READ = ["the", "cat", "sat", "</s>"]
WRITTEN = ["el", "gato", "</s>"]
SOURCE, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
INPUTS, TEXTS = {"source": SOURCE, "target": TARGET}, {"source": READ, "target": WRITTEN}


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(12, encoder_layers=2, decoder_layers=3, dropout=0.4))


@pytest.fixture(scope="module")
def maps(model: Transformer) -> dict[str, AttentionMap]:
    return {each.name: each for each in attention_maps(model.train(), INPUTS, TEXTS)}


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
    wider = INPUTS | {"source": torch.cat([SOURCE, torch.tensor([[0]])], dim=1)}
    maps = {each.name: each for each in attention_maps(model, wider, TEXTS | {"source": [*READ, "<pad>"]})}
    assert not maps["decoder.layers.0.cross_attention"].weights[:, :, -1].any()
    with pytest.raises(ValueError, match=r"need \(5, 5\) queries and keys; got \(4, 4\) texts"):
        attention_maps(model, wider, TEXTS)


def test_a_missing_word_is_named_with_its_map(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.self_attention: .* got \(2, 2\) texts"):
        attention_maps(model, INPUTS, TEXTS | {"target": WRITTEN[1:]})


def test_names_and_heads_choose(model: Transformer, maps: dict[str, AttentionMap]) -> None:
    some = attention_maps(model, INPUTS, TEXTS, names="decoder.*.cross_attention", heads=[3, 0])
    assert [each.name for each in some] == [f"decoder.layers.{i}.cross_attention" for i in range(3)]
    for each in some:
        assert each.numbers == [3, 0]
        torch.testing.assert_close(each.weights, maps[each.name].weights[[3, 0]])
    with pytest.raises(ValueError, match=r"self_attention has heads 0\.\.3, not 4"):
        attention_maps(model, INPUTS, TEXTS, heads=[0, 4])
    with pytest.raises(ValueError, match=r"view = 'rolled': choose weights, norm or rollout"):
        attention_maps(model, INPUTS, TEXTS, view="rolled")


def test_a_rollout_goes_through_the_encoder(model: Transformer, maps: dict[str, AttentionMap]) -> None:
    names = [f"encoder.layers.{i}.self_attention" for i in range(2)]
    found = attention_maps(model, INPUTS, TEXTS, view="rollout")
    assert [each.name for each in found] == names
    wanted = rollout([maps[name].weights[None] for name in names])
    for each, reached in zip(found, wanted, strict=True):
        assert (each.queries, each.keys) == (READ, READ)
        torch.testing.assert_close(each.weights, reached)
    with pytest.raises(ValueError, match="goes through an encoder: choose among"):
        attention_maps(model, INPUTS, TEXTS, names="decoder.*", view="rollout")


def test_norms_are_lengths_of_what_leaves_the_head(model: Transformer) -> None:
    name = "decoder.layers.1.cross_attention"
    (found,) = attention_maps(model, INPUTS, TEXTS, names=name, view="norm", heads=[2])
    with record(model, name, what=("weights", "values")) as seen, torch.no_grad():
        model(SOURCE, TARGET)
    weights, values = seen.weights[name][0, 2], seen.values[name][0, 2]
    d_v = values.shape[1]
    W_O = model.get_parameter("decoder.layers.1.cross_attention.sublayer.output.weight")[:, 2 * d_v : 3 * d_v]
    for i in range(len(WRITTEN)):
        for j in range(len(READ)):
            assert found.weights[0, i, j].item() == pytest.approx((weights[i, j] * (W_O @ values[j])).norm().item())
    assert found.view == "norm"
    assert found.largest == found.weights.max()


def test_words_are_sums_over_keys_and_means_over_queries() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 0.0, 1.0, 0.0]])
    found = merge(weights, [0, 1, 1], [0, 1, 1, 2])
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.5, 0.4], [0.25, 0.6, 0.15]]))
    torch.testing.assert_close(merge(weights.expand(2, 5, 3, 4), [0, 1, 1], [0, 1, 1, 2])[1, 4], found)


WORDS = {
    "encoder.layers.0.self_attention": (["the cat", "sat", "</s>"], ["the cat", "sat", "</s>"]),
    "decoder.layers.0.cross_attention": (["el gato", "</s>"], ["the cat", "sat", "</s>"]),
    "decoder.layers.0.self_attention": (["el gato", "</s>"], ["<s>", "el gato"]),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_map_by_words_keeps_specials_by_themselves(
    model: Transformer, maps: dict[str, AttentionMap], name: str
) -> None:
    """As if "the cat" were two tokens of one word, and "el gato" as well."""
    tokens = maps[name]
    words = {
        "source": Words([0, 0, 1, 2], ["the cat", "sat", "</s>"]),
        "target": Words([0, 0, 1], ["el gato", "</s>"]),
    }
    (found,) = attention_maps(model, INPUTS, TEXTS, words=words, names=name)
    queries, keys = WORDS[name]
    assert (found.queries, found.keys) == (queries, keys)
    first = tokens.weights[:, :2].mean(1)  # the first word's two rows
    together = first[:, :2].sum(-1) if "cat" in keys[0] else first[:, 0]
    torch.testing.assert_close(found.weights[:, 0, 0], together)
    torch.testing.assert_close(found.weights[:, -1, -1], tokens.weights[:, -1, (-1 if "cat" in keys[0] else slice(1, 3))
                               ].reshape(4, -1).sum(-1))  # fmt: skip
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(found.weights.shape[:2]))


def test_without_special_tokens_rows_are_shares_again(maps: dict[str, AttentionMap]) -> None:
    for name, whole in maps.items():
        found = without_special(whole)
        kept = (
            whole.weights[:, :-1, 1:] if name.startswith("decoder") and "self" in name else whole.weights[:, :-1, :-1]
        )
        sums = kept.sum(-1, keepdim=True)
        torch.testing.assert_close(found.weights * sums, kept)
        torch.testing.assert_close(found.weights.sum(-1), (sums[..., 0] > 0).float())
        assert not {"<s>", "</s>"} & {*found.queries, *found.keys}
    # At the first word, the decoder has read nothing but the start symbol.
    assert not without_special(maps["decoder.layers.0.self_attention"]).weights[:, 0].any()


def test_lengths_are_no_shares(model: Transformer) -> None:
    for whole in attention_maps(model, INPUTS, TEXTS, names="encoder.*", view="norm"):
        torch.testing.assert_close(without_special(whole).weights, whole.weights[:, :-1, :-1])
