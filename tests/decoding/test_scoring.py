"""Force-decoding says of each token what the model says of it, however pairs are batched."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.module import Module
from regard.decoding.protocol import SearchConfig
from regard.decoding.scoring import batches, log_probabilities
from regard.models.transformer import Transformer, TransformerConfig
from tests.decoding.toys import asking, search

BOS, EOS = 1, 2
V = 30


def model(**changes: object) -> Transformer:
    torch.manual_seed(1)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
    return Transformer(TransformerConfig.tiny(V, **{**shape, **changes})).eval()


def some_pairs(n: int) -> list[tuple[list[int], list[int]]]:
    draw = random.Random(3)

    def side(low: int) -> list[int]:
        return [draw.randrange(3, V) for _ in range(draw.randint(low, 12))]

    return [([*side(1), EOS], side(0)) for _ in range(n)]


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "t5"])
@pytest.mark.parametrize("tokens", [1, 7, 4096])
def test_each_token_has_its_cross_entropy(positions: str, tokens: int) -> None:
    """Against the model's own forward pass, a pair at a time and in fp64."""
    transformer, pairs = model(positions=positions).double(), some_pairs(9)
    found = log_probabilities(transformer, pairs, first=BOS, eos=EOS, tokens=tokens)
    assert [len(row) for row in found] == [len(target) + 1 for _, target in pairs]
    for (source, target), row in zip(pairs, found, strict=True):
        with torch.inference_mode():
            logits = transformer(torch.tensor([source]), torch.tensor([[BOS, *target]]))[0]
        expected = -F.cross_entropy(logits, torch.tensor([*target, EOS]), reduction="none")
        torch.testing.assert_close(torch.tensor(row).double(), expected, atol=1e-5, rtol=0)


def test_it_agrees_with_what_a_search_says_of_its_outputs() -> None:
    transformer = model()
    requests = [asking(source) for source, _ in some_pairs(6)]
    config = SearchConfig(beam=3, best=3, extra=4)
    outputs = search(Module(transformer), requests, config)
    each = [(request, hypothesis) for request, row in zip(requests, outputs, strict=True) for hypothesis in row]
    found = log_probabilities(transformer, [(r.source, h.tokens) for r, h in each], first=BOS, eos=EOS)
    for (_, hypothesis), row in zip(each, found, strict=True):
        scores = row[: len(hypothesis.token_scores)]  # an output that was cut has no end
        assert hypothesis.token_scores == pytest.approx(scores, abs=1e-4)
        assert hypothesis.log_probability == pytest.approx(math.fsum(scores), abs=1e-4)


def test_no_more_logits_are_held_than_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer = model()
    decode, held = transformer.decode, []

    def watched(*arguments: object) -> Tensor:
        logits = decode(*arguments)  # type: ignore[arg-type]
        held.append(logits.shape[0] * logits.shape[1])
        return logits

    monkeypatch.setattr(transformer, "decode", watched)
    log_probabilities(transformer, some_pairs(20), first=BOS, eos=EOS, tokens=8)
    assert max(held) <= 8


def test_batches_hold_each_pair_once_and_little() -> None:
    pairs = some_pairs(40)
    found = list(batches(pairs, 32))
    assert sorted(i for batch in found for i in batch) == list(range(40))
    assert all(len(batch) * max(max(len(pairs[i][0]), len(pairs[i][1]) + 1) for i in batch) <= 32 for batch in found)
    assert list(batches([], 32)) == []
    assert log_probabilities(model(), [], first=BOS, eos=EOS) == []


def test_damaged_weights_are_refused() -> None:
    transformer = model()
    transformer.output.weight.data[5] = math.nan
    with pytest.raises(ValueError, match="not numbers"):
        log_probabilities(transformer, some_pairs(1), first=BOS, eos=EOS)
