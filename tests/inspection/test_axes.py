"""What stands along the axes of a map is told by the model's own modules, whatever they are called."""

import pytest
import torch
from torch import Tensor, nn

from regard.inspection.axes import Axes, Axis, axes, layer_of
from regard.inspection.maps import attention_maps, without_special
from regard.inspection.taps import attentions
from regard.models.convolutional import ConvolutionalConfig
from regard.models.family import build
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from tests.inspection.toys import encoder_only, language_model


def test_an_encoder_decoder_reads_one_text_and_writes_another() -> None:
    found = axes(Transformer(TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1)))
    read, written = Axis("source"), Axis("target")
    assert found == {
        "encoder.layers.0.self_attention": Axes(read, read),
        "decoder.layers.0.self_attention": Axes(written, Axis("target", late=True), causal=True),
        "decoder.layers.0.cross_attention": Axes(written, read),
    }
    assert [each.role for each in found.values()] == ["read", "predicted", "predicted"]


@pytest.mark.parametrize("config", [RecurrentConfig.gru(12), ConvolutionalConfig.convs2s(12)])
def test_where_only_a_memory_is_attended_to_all_is_cross(config: object) -> None:
    model = build(config)  # type: ignore[arg-type]
    found = axes(model)
    assert found.keys() == attentions(model).keys()
    assert {(each.kind, each.queries.input, each.keys.input) for each in found.values()} == {
        ("cross", "target", "source")
    }


def test_a_language_model_writes_what_it_reads() -> None:
    model = language_model()
    assert set(axes(model).values()) == {Axes(Axis("tokens"), Axis("tokens", late=True), causal=True)}
    maps = attention_maps(model, {"tokens": torch.tensor([[1, 5, 6]])}, {"tokens": ["a", "b", "</s>"]})
    assert [each.name for each in maps] == [f"stack.layers.{i}.self_attention" for i in range(2)]
    for each in maps:
        assert (each.queries, each.keys, each.query_role) == (["a", "b", "</s>"], ["<s>", "a", "b"], "predicted")
        assert not each.weights.triu(1).any()
        bare = without_special(each)
        assert (bare.queries, bare.keys) == (["a", "b"], ["a", "b"])


def test_an_encoder_reads() -> None:
    model = encoder_only()
    assert set(axes(model).values()) == {Axes(Axis("tokens"), Axis("tokens"))}
    (first, _) = attention_maps(model, {"tokens": torch.tensor([[5, 6, 2]])}, {"tokens": ["a", "b", "</s>"]})
    assert (first.queries, first.keys, first.query_role) == (["a", "b", "</s>"], ["a", "b", "</s>"], "read")


def test_names_tell_nothing() -> None:
    """The stacks of a model that calls its decoder an encoder."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder, self.encoder = encoder_only().stack, language_model().stack

        def forward(self, read: Tensor, written: Tensor, hint: Tensor | None = None) -> Tensor:
            raise NotImplementedError

    found = axes(Turned())
    assert found["decoder.layers.1.self_attention"] == Axes(Axis("read"), Axis("read"))
    assert found["encoder.layers.1.self_attention"].kind == "decoder"
    assert found["encoder.layers.1.self_attention"].queries.input == "written"


def test_layers_are_counted_where_they_have_numbers() -> None:
    assert layer_of("decoder.layers.2.cross_attention") == 2
    assert layer_of("decoder.cross_attention") == 0
