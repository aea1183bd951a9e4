"""A learner learns: the same seed gives the same run, and a batch is a batch however it is cut up."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard.data.batching import Batch, collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.checkpoints import read_state, write_state
from regard.training.config import TrainConfig
from regard.training.loop import DivergedError, Learner, Report, fit, parameters_of
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig

PAIRS = [([3, 4, 5], [5, 4, 3]), ([6], [6]), ([7, 8], [8, 7]), ([9, 3], [3, 9])]
BATCH = collate(PAIRS)


def transformer(dropout: float = 0.1) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, dropout=dropout))


def learner(dropout: float = 0.1, **changes: object) -> Learner:
    settings: dict[str, object] = {"steps": 10, "shards": 2, "optimiser": OptimiserConfig("muon")}
    return Learner(NextToken(transformer(dropout), 0.1), lambda step: 1e-2, TrainConfig(**(settings | changes)))  # type: ignore[arg-type]


def steps(learner: Learner, count: int) -> list[Report]:
    return [learner.step([BATCH], BATCH.count) for _ in range(count)]


def same(a: Learner, b: Learner) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters, b.parameters, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor", "muon"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name: str) -> None:
    with learner(optimiser=OptimiserConfig(name)) as a, learner(optimiser=OptimiserConfig(name)) as b:
        assert [r.loss for r in steps(a, 4)] == [r.loss for r in steps(b, 4)]
        assert same(a, b)
    with learner(seed=2, optimiser=OptimiserConfig(name)) as c:
        steps(c, 4)
        assert not same(a, c)


def test_the_first_loss_is_label_smoothed_cross_entropy_per_label_and_it_falls() -> None:
    model = transformer(dropout=0.0)
    logits, labels = model(BATCH["source"], BATCH["target"]).flatten(0, 1), BATCH["labels"].flatten()
    expected = F.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.1).item()
    reports = list(fit(model, [BATCH] * 6, lambda step: 1e-3, shards=2))
    assert reports[0].loss == pytest.approx(expected, rel=1e-5)
    assert [r.step for r in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1].loss < reports[0].loss


def test_four_quarters_are_one_batch() -> None:
    """In fp64: Adam makes large steps even of the rounding errors that are the gradient of a key's bias.

    The rows differ in length, so a mean of means would differ.
    """
    runs = []
    for parts in ([BATCH], [collate([pair]) for pair in PAIRS]):
        config = TrainConfig(steps=3, shards=2, optimiser=OptimiserConfig("adam"))
        with Learner(NextToken(transformer(dropout=0.0).double(), 0.1), lambda step: 1e-2, config) as one:
            runs.append((one, [one.step(parts, BATCH.count) for _ in range(3)]))
    (whole, a), (quarters, b) = runs
    assert [r.loss for r in a] == pytest.approx([r.loss for r in b], rel=1e-12)
    assert [r.gradient_norm for r in a] == pytest.approx([r.gradient_norm for r in b], rel=1e-12)
    for p, q in zip(whole.parameters, quarters.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_a_part_without_labels_adds_nothing() -> None:
    nothing = Batch(BATCH.tensors, 0)
    with learner(dropout=0.0) as a, learner(dropout=0.0) as b:
        a.step([BATCH], BATCH.count)
        b.step([BATCH, nothing], BATCH.count)
        assert same(a, b)


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}, {"precision": "fp16"}, {"optimiser": OptimiserConfig("adam")}])
def test_state_on_disk_continues_to_the_last_bit(tmp_path: Path, changes: dict[str, object]) -> None:
    with learner(**changes) as through, learner(**changes) as first, learner(**changes) as second:
        steps(through, 5)
        steps(first, 2)
        write_state(tmp_path / "state", first.state())
        second.load(read_state(tmp_path / "state"))
        steps(second, 3)
        assert same(through, second)
        with through.evaluated() as a, second.evaluated() as b:
            assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_an_average_is_judged_and_the_model_goes_on_as_it_was() -> None:
    with learner(ema=0.9) as one:
        steps(one, 3)
        before = {name: p.clone() for name, p in parameters_of(one.model).items()}
        with one.evaluated() as model:
            assert not model.training
            assert not torch.equal(model.output.weight, before["source_embedding.tokens.weight"])  # type: ignore[union-attr]
        assert all(torch.equal(before[name], p) for name, p in parameters_of(one.model).items())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_nearly_the_same(precision: str) -> None:
    with learner(dropout=0.0) as full, learner(dropout=0.0, precision=precision) as half:
        exact, rough = steps(full, 8), steps(half, 8)
    assert rough[0].loss == pytest.approx(exact[0].loss, rel=0.02)
    assert rough[-1].loss < 0.9 * rough[0].loss
    assert all(p.dtype == torch.float32 for p in half.parameters)


@pytest.mark.parametrize("recompute", ["feed_forward", "layers"])
def test_recomputing_gives_the_same_bits(recompute: str) -> None:
    with learner() as plain, learner(recompute=recompute) as thrifty:
        steps(plain, 3)
        steps(thrifty, 3)
        assert same(plain, thrifty)


def test_what_is_no_number_is_noticed_before_it_reaches_the_weights() -> None:
    with learner() as one:
        steps(one, 1)
        with torch.no_grad():
            one.model.output.weight[5] = float("inf")  # type: ignore[union-attr]
        before = [p.clone() for p in one.parameters]
        with pytest.raises(DivergedError, match=r"step 2: the loss is \S+ and its gradient"):
            one.step([BATCH], BATCH.count)
        assert one.steps == 1
        assert all(torch.equal(p, q) for p, q in zip(before, one.parameters, strict=True))


def test_in_fp16_a_loss_that_is_no_number_is_noticed_too() -> None:
    with learner(precision="fp16") as one:
        steps(one, 1)
        with torch.no_grad():
            one.model.output.weight[5] = float("nan")  # type: ignore[union-attr]
        with pytest.raises(DivergedError):
            one.step([BATCH], BATCH.count)


def test_clipping_bounds_the_gradient() -> None:
    with learner(optimiser=OptimiserConfig("adam"), clip=1e-3) as clipped:
        clipped.optimiser.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        report = clipped.step([BATCH], BATCH.count)
    norm = torch.stack([p.grad.norm() for p in clipped.parameters if p.grad is not None]).norm()
    assert report.gradient_norm > 1e-2
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)
