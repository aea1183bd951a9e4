"""An encoder with every head: what padding holds does not matter, what is shared is one, what is saved comes back."""

from pathlib import Path

import pytest
import torch

from regard.adaptation.prune import prune
from regard.core.outputs import HEADS, HeadConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.encoder import Encoder, bert_tiny
from regard.models.family import build

SMALL = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 2, "max_length": 12}
KINDS = {
    "tokens": HeadConfig(hidden="gelu", relation=2),
    "classes": HeadConfig("classes", 3, hidden="tanh", dropout=0.1),
    "tags": HeadConfig("tags", 5),
    "spans": HeadConfig("spans"),
    "vector": HeadConfig("vector", pool="mean", normalise=True),
}
SHAPES = {"tokens": (2, 6, 20), "classes": (2, 3), "tags": (2, 6, 5), "spans": (2, 6, 2), "vector": (2, 16)}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_on_an_encoder_is_blind_to_padding_and_comes_back_from_the_disk(kind: str, tmp_path: Path) -> None:
    model = build(bert_tiny(20, **SMALL), KINDS[kind]).eval()
    tokens = torch.randint(1, 20, (2, 6))
    tokens[1, 4:] = 0
    said = model(tokens)
    assert said.shape == SHAPES[kind]
    alone = model(tokens[1:, :4])
    torch.testing.assert_close(said[1:, :4] if said.dim() == 3 else said[1:], alone)
    storage.save(model, tmp_path)
    again = storage.load(tmp_path)
    assert again.head == KINDS[kind]
    assert torch.equal(again(tokens), said)


def test_segments_tell_sentences_apart_and_all_is_the_first_unless_said() -> None:
    model = Encoder(bert_tiny(20, **SMALL), KINDS["vector"]).eval()
    tokens = torch.randint(1, 20, (1, 6))
    first, second = torch.zeros_like(tokens), torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert torch.equal(model(tokens), model(tokens, segments=first))
    assert not torch.allclose(model(tokens), model(tokens, segments=second))


def test_shared_layers_are_one_and_written_once(tmp_path: Path) -> None:
    model = Encoder(bert_tiny(20, **SMALL | {"layers": 5}, shared=True, d_embedding=8), KINDS["tokens"]).eval()
    assert len(model.encoder.layers) == 5
    assert len({tuple(layer.parameters()) for layer in model.encoder.layers}) == 1
    with pytest.raises(
        ValueError, match=r"layers.1.self_attention cannot lose a head: it is the same layer as encoder"
    ):
        prune(model, {"encoder.layers.1.self_attention": [0]})
    once = Encoder(bert_tiny(20, **SMALL | {"layers": 1}, shared=True, d_embedding=8), KINDS["tokens"])
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in once.parameters())
    storage.save(model, tmp_path)
    tokens = torch.randint(1, 20, (2, 6))
    assert torch.equal(storage.load(tmp_path)(tokens), model(tokens))


def test_a_decoder_reads_a_class_off_its_last_token() -> None:
    model = Decoder(gpt_tiny(20, **SMALL), HeadConfig("classes", 3, pool="last", bias=False)).eval()
    tokens, keep = torch.randint(1, 20, (2, 6)), torch.ones(2, 6, dtype=torch.bool)
    keep[1, 4:] = False
    torch.testing.assert_close(model(tokens, keep=keep)[1:], model(tokens[1:, :4]))


def test_a_head_that_a_family_has_not_is_refused() -> None:
    from regard.models.transformer import TransformerConfig

    with pytest.raises(ValueError, match=r"head.kind of a model of the family transformer = 'classes'"):
        build(TransformerConfig.tiny(20), KINDS["classes"])
    with pytest.raises(ValueError, match=r"head.pool = 'middle': choose first, last, mean, max, attention or both"):
        HeadConfig("vector", pool="middle")
    with pytest.raises(ValueError, match=r"head.size"):
        HeadConfig("classes")
