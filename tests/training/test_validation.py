"""The likelihood of each label is that of `F.cross_entropy`, however the pairs are batched, ordered and cut."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import losses
from regard.data.batching import collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.validation import Foretold, foretell

V = 30
Pair = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(V, encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64)).eval()


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    draw = random.Random(0)
    some = [[[draw.randrange(3, V) for _ in range(draw.randrange(12))] for _ in "st"] for _ in range(25)]
    return [(source, target) for source, target in some]


@torch.no_grad()
def by_hand(model: Transformer, pairs: list[Pair]) -> Foretold:
    """One pair at a time, from logits."""
    rows = []
    for pair in pairs:
        batch = collate([pair])
        logits, labels = model(batch["source"], batch["target"])[0], batch["labels"][0]
        top, said = logits.softmax(-1).max(-1)
        rows.append((-F.cross_entropy(logits, labels, reduction="none"), top, said == labels))
    return Foretold(*(torch.cat(column) for column in zip(*rows, strict=True)))


def check(ours: Foretold, reference: Foretold) -> None:
    """The same labels, in whatever order."""
    for name in ("log_likelihood", "confidence"):
        a, b = getattr(ours, name), getattr(reference, name)
        torch.testing.assert_close(a.sort().values, b.sort().values, rtol=1e-4, atol=1e-6)
    assert ours.correct.sum() == reference.correct.sum()
    assert ours.loss == pytest.approx(-reference.log_likelihood.double().mean().item(), rel=1e-5)
    assert ours.accuracy == pytest.approx(reference.correct.double().mean().item())
    # A column does not lose touch with the others: the likeliest label is the right one, or likelier than it.
    p = ours.log_likelihood.exp()
    torch.testing.assert_close(p[ours.correct], ours.confidence[ours.correct])
    assert (p < ours.confidence)[~ours.correct].all()


@pytest.mark.parametrize("rows", [1, 4, 25, 64])
def test_each_label_is_foretold_as_by_hand(model: Transformer, pairs: list[Pair], rows: int) -> None:
    reference = by_hand(model, pairs)
    assert reference.correct.any()  # or else nothing is shown
    check(foretell(model, pairs, rows), reference)
    check(foretell(model, random.Random(rows).sample(pairs, len(pairs)), rows), reference)
    torch.testing.assert_close(foretell(model, pairs, rows).log_likelihood, reference.log_likelihood)  # in their order


@pytest.mark.parametrize("block", [1, 3 * V, 7 * V + 5])
def test_blocks_of_logits_change_nothing(
    model: Transformer, pairs: list[Pair], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, calls = by_hand(model, pairs), []
    watch = model.output.register_forward_hook(lambda module, inputs, logits: calls.append(logits.numel()))
    monkeypatch.setattr(losses, "BLOCK", block)
    seen = foretell(model, pairs)
    watch.remove()
    check(seen, reference)
    assert max(calls) == max(1, block // V) * V
    assert sum(calls) == len(seen.correct) * V


def test_pairs_may_come_from_a_generator(model: Transformer, pairs: list[Pair]) -> None:
    check(foretell(model, (pair for pair in pairs)), by_hand(model, pairs))


class Parrot(nn.Module):
    """Foretells that the target is the source, with so much certainty."""

    def __init__(self, certainty: float) -> None:
        super().__init__()
        self.output, self.certainty = nn.Linear(V, V, bias=False), certainty
        nn.init.eye_(self.output.weight)

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        return F.one_hot(source, V).to(self.output.weight) * self.certainty


def test_the_measures_of_models_that_know_all_or_nothing(pairs: list[Pair]) -> None:
    echoes = [(source, source) for source, _ in pairs]
    sure = foretell(Parrot(100.0), echoes)
    assert sure.loss == pytest.approx(0, abs=1e-6)
    assert sure.accuracy == 1
    assert len(sure.correct) == sum(len(source) + 1 for source, _ in echoes)  # each with its end, and no padding
    assert math.exp(foretell(Parrot(0.0), echoes).loss) == pytest.approx(V)  # the perplexity of a guess
    assert foretell(Parrot(-1.0), echoes).accuracy == 0


def test_likelihoods_are_single_precision_and_carry_no_graph(model: Transformer, pairs: list[Pair]) -> None:
    low = foretell(Parrot(1.0).bfloat16(), [(source, source) for source, _ in pairs])
    assert low.log_likelihood.dtype == torch.float32
    assert low.loss == pytest.approx(math.log(math.e + V - 1) - 1, rel=1e-6)  # bf16 alone is good for 1e-2
    assert not foretell(model, pairs).log_likelihood.requires_grad
