"""LoRA at the two ends of a model, by every optimiser, and over whole numbers: what is said to learn, learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.adaptation.change import changed
from regard.convert.merge import merge_directory
from regard.core.added import added, own, without
from regard.core.outputs import HeadConfig
from regard.core.quantised import Int8Linear, is_quantised, quantise
from regard.models import storage
from regard.models.family import build, configure
from regard.training.objectives import Labelled, Masked, NextToken
from regard.training.optimisers import OptimiserConfig, hidden_matrices, set_learning_rate
from regard.training.optimisers import build as optimiser_of
from tests.adaptation.models import FAMILIES, VOCABULARY, model_of, taught, texts

ENDS = ("embedding", "head")


def untied(name: str) -> nn.Module:
    """A model whose words and head have a matrix each."""
    preset, settings = FAMILIES[name]
    torch.manual_seed(1)
    return build(configure(preset, (*settings, "tie=none"), vocabulary=VOCABULARY)).eval()


def steps(model: nn.Module, name: str, optimiser: str, rate: float = 0.02, count: int = 12) -> list[float]:
    """The losses of some steps on one batch."""
    given = dict(zip(("source", "target") if name == "transformer" else ("tokens",), texts(name), strict=True))
    labels = torch.randint(3, VOCABULARY, texts(name)[-1].shape, generator=torch.Generator().manual_seed(3))
    objective = (Masked if name == "encoder" else NextToken)(model)
    step, losses = optimiser_of(model, OptimiserConfig(optimiser)), list[float]()
    set_learning_rate(step, rate)
    for _ in range(count):
        step.zero_grad()
        loss = objective(labels, **given)
        loss.backward()
        step.step()
        losses.append(loss.item() / labels.numel())
    return losses


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("where", [["embedding"], ["head"], ["embedding", "head", "all"]])
@torch.no_grad()
def test_it_begins_as_the_base_and_is_switched_off_and_stored(name: str, where: list[str], tmp_path: Path) -> None:
    storage.save(model_of(name), tmp_path / "base")
    before = storage.load(tmp_path / "base")(*texts(name))
    config = storage.config(tmp_path / "base")
    model = storage.begin(tmp_path / "base", config, None, [{"lora": {"rank": 3, "where": where}}]).eval()
    assert torch.equal(model(*texts(name)), before)
    after = taught(model)(*texts(name))
    assert not torch.allclose(after, before, atol=1e-2)
    storage.save(model, tmp_path / "more")
    again = storage.load(tmp_path / "more")
    assert torch.equal(again(*texts(name)), after)
    with without(again):
        assert torch.equal(again(*texts(name)), before)
    with pytest.raises(ValueError, match=r"cannot be merged: the (head|embedding) shares its matrix with others"):
        merge_directory(tmp_path / "more", tmp_path / "one")


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
@torch.no_grad()
def test_it_is_merged_where_nothing_is_shared(name: str, tmp_path: Path) -> None:
    storage.save(untied(name), tmp_path / "base")
    config = storage.config(tmp_path / "base")
    change = {"lora": {"rank": 3, "where": ["embedding", "head", "value"]}}
    model = taught(storage.begin(tmp_path / "base", config, None, [change])).eval()
    storage.save(model, tmp_path / "more")
    merge_directory(tmp_path / "more", tmp_path / "one")
    one = storage.load(tmp_path / "one")
    assert not added(one)
    torch.testing.assert_close(one(*texts(name)), model(*texts(name)), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["encoder", "gpt2", "transformer"])
def test_the_loss_knows_of_what_was_added_to_the_head(name: str) -> None:
    model = taught(changed(model_of(name), [{"lora": {"rank": 3, "where": [*ENDS]}}]))
    given = dict(zip(("source", "target") if name == "transformer" else ("tokens",), texts(name), strict=True))
    labels = torch.randint(3, VOCABULARY, texts(name)[-1].shape)
    parts = [p for p in model.parameters() if p.requires_grad]
    loss = (Masked if name == "encoder" else NextToken)(model)(labels, **given)
    found = torch.autograd.grad(loss, parts)
    slow = F.cross_entropy(model(*texts(name)).flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss, slow, rtol=1e-5, atol=1e-4)
    for g, wanted in zip(found, torch.autograd.grad(slow, parts), strict=True):
        torch.testing.assert_close(g, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize(("name", "where"), [("gpt2", ["all"]), ("encoder", [*ENDS, "all"]), ("transformer", ["all"])])
def test_it_learns_and_the_base_does_not(name: str, where: list[str], optimiser: str) -> None:
    model = changed(model_of(name), [{"lora": {"rank": 4, "where": where}}])
    kept = {key: p.detach().clone() for key, p in model.named_parameters() if not p.requires_grad}
    losses = steps(model, name, optimiser)
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(p, kept[key]) for key, p in model.named_parameters() if key in kept)


def test_muon_takes_the_matrices_that_were_added_inside_and_leaves_the_rest_to_adam() -> None:
    several: list[dict[str, Any]] = [{"lora": {"where": [*ENDS, "value"]}}, {"adapter": {"width": 4}}, {"prompt": {}}]
    model = changed(model_of("gpt2"), [*several, {"prefix": {"length": 2, "hidden": 3}}, {"ia3": {}}, {"biases": {}}])
    names = {id(p): key for key, p in model.named_parameters()}
    hidden = [names[id(p)] for p in hidden_matrices(model)]
    assert len(hidden) == 2 * 4  # in each layer A and B of the value, and both of the adapter
    assert all(".lora." in key or ".adapter." in key for key in hidden)
    assert all(key.startswith("decoder.layers") for key in hidden)
    muon = optimiser_of(model, OptimiserConfig("muon"))
    learning = sum(p.requires_grad for p in model.parameters())
    assert [group["orthogonal"] for group in muon.param_groups] == [True, False, False]
    assert sum(len(group["params"]) for group in muon.param_groups) == learning
    for change in ("prompt", "biases"):
        with pytest.raises(
            ValueError, match="muon trains the matrices in the layers of a stack, and this model has no"
        ):
            optimiser_of(changed(model_of("gpt2"), [{change: {}}]), OptimiserConfig("muon"))


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["encoder", "gpt2", "transformer"])
def test_over_a_base_in_whole_numbers_it_learns(name: str, optimiser: str, tmp_path: Path) -> None:
    storage.save(quantise(model_of(name)), tmp_path / "int8")
    config = storage.config(tmp_path / "int8")
    model = storage.begin(tmp_path / "int8", config, None, [{"lora": {"rank": 4, "where": ["all", *ENDS]}}])
    assert is_quantised(model)
    kept = {key: p.detach().clone() for key, p in model.named_parameters() if not p.requires_grad}
    losses = steps(model, name, optimiser)
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(p, kept[key]) for key, p in model.named_parameters() if key in kept)
    assert own(model).keys() == {key for key, p in model.named_parameters() if p.requires_grad}
    storage.save(model, tmp_path / "more")
    torch.testing.assert_close(storage.load(tmp_path / "more")(*texts(name)), model.eval()(*texts(name)))


def test_a_new_head_over_whole_numbers_learns(tmp_path: Path) -> None:
    storage.save(quantise(model_of("encoder")), tmp_path / "int8")
    config = storage.config(tmp_path / "int8")
    model = storage.begin(
        tmp_path / "int8", config, HeadConfig("classes", 3), [{"lora": {"rank": 4, "where": ["all"]}}]
    )
    objective, step = Labelled(model), optimiser_of(model, OptimiserConfig("adamw"))
    set_learning_rate(step, 0.02)
    losses = []
    for _ in range(12):
        step.zero_grad()
        loss = objective(torch.tensor([2, 0]), tokens=texts("encoder")[0])
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_a_gradient_passes_whole_numbers_as_if_nothing_had_been_rounded() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(40, 24)
    small = quantise(nn.Sequential(plain))[0]
    assert isinstance(small, Int8Linear)
    x = torch.randn(5, 40, requires_grad=True)
    with torch.no_grad():
        said = small(x)
    assert torch.equal(small(x), said)  # the same bits, learning or not
    g = torch.randn(5, 24)
    (found,) = torch.autograd.grad(small(x), x, g)
    torch.testing.assert_close(found, g @ (small.weight * small.scale[:, None]))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "gpt2",
            {"lora": {"rank": 33, "where": ["head"]}},
            "rank = 33: the head of output is 50 x 32, choose a smaller",
        ),
        ("gpt2", {"lora": {"rank": 33, "where": ["embedding"]}}, "rank = 33: the embedding of stem.tokens is 32 x 50"),
        ("gpt2", {"ia3": {"where": ["head"]}}, "where = 'head': no product is called so"),
        ("gpt2", {"lora": {"where": ["heads"]}}, "where = 'heads': no product is called so; did you mean 'head'"),
    ],
)
def test_what_does_not_fit_is_told(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(model_of(name), [change])


def test_a_model_without_such_an_end_says_so() -> None:
    model = build(configure("bert-tiny", vocabulary=50), HeadConfig("vector"))
    with pytest.raises(ValueError, match="lora finds no head to change: a Encoder model has none of that kind"):
        changed(model, [{"lora": {"where": ["query", "head"]}}])
