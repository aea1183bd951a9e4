"""What a student learns from a teacher is what a few lines of plain PyTorch say, in value and gradient."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.outputs import HeadConfig
from regard.core.recompute import recompute
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.encoder import Encoder, bert_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vision import Vision, deit_tiny, vit_tiny
from regard.training import distillation
from regard.training.distillation import DistilConfig, Distilled
from regard.training.objectives import IGNORE, Contrastive, Labelled, Masked, NextToken, Objective
from regard.training.parallel import Shards

V, B, T = 50, 4, 9
SMALL: dict[str, Any] = {"heads": 2, "d_ff": 32, "dropout": 0.0, "max_length": T}
SEEN: dict[str, Any] = {"heads": 2, "d_ff": 32, "layers": 2, "size": 16, "patch": 8}
HOW = DistilConfig("teacher", share=0.3, temperature=2.5)


def read(seed: int = 1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    keep = torch.arange(T) < torch.tensor([[T], [T - 2], [T], [3]])
    return {"tokens": torch.randint(5, V, (B, T), generator=draw), "keep": keep}


def some(labels: Tensor, every: int) -> Tensor:
    """Labels of which only every so manieth counts."""
    return torch.where(torch.arange(labels.numel()).view(labels.shape) % every == 0, labels, IGNORE)


def encoder(width: int, head: HeadConfig | None = None) -> Encoder:
    return Encoder(bert_tiny(V, d_model=width, layers=2, attention_dropout=0.0, **SMALL), head)


def vision(make: Callable[..., Any], width: int, pool: str = "first") -> Vision:
    return Vision(make(d_model=width, **SEEN), HeadConfig("classes", 3, pool=pool))


Case = tuple[Callable[[int], nn.Module], Callable[[Any], Objective], dict[str, Tensor]]
TOKENS = read()["tokens"]
CASES: dict[str, Case] = {
    "next token": (
        lambda width: Decoder(gpt_tiny(V, d_model=width, layers=2, **SMALL)),
        lambda model: NextToken(model, 0.1, ignore=IGNORE),
        {"tokens": TOKENS, "labels": some(TOKENS.roll(-1, 1), 2)},
    ),
    "masked": (
        lambda width: encoder(width, HeadConfig(hidden="gelu")),
        lambda model: Masked(model, 0.0, ignore=IGNORE),
        {**read(), "labels": some(TOKENS, 3)},
    ),
    "one": (
        lambda width: encoder(width, HeadConfig("classes", 3)),
        lambda model: Labelled(model, "one", 0.1),
        {**read(), "labels": torch.tensor([2, 0, IGNORE, 1])},
    ),
    "several": (
        lambda width: encoder(width, HeadConfig("classes", 3)),
        lambda model: Labelled(model, "several"),
        {**read(), "labels": torch.tensor([[1, 0, 1], [0, IGNORE, 0], [1, 1, 1], [0, 0, 1]])},
    ),
    "tags": (
        lambda width: encoder(width, HeadConfig("tags", 3)),
        lambda model: Labelled(model, "one"),
        {**read(), "labels": some(TOKENS % 3, 2)},
    ),
    "shares": (
        lambda width: vision(vit_tiny, width),
        lambda model: Labelled(model, "one"),
        {
            "pixels": torch.randn(B, 3, 16, 16, generator=torch.Generator().manual_seed(2)),
            "labels": torch.tensor([[0.2, 0.8, 0.0]] * B),
        },
    ),
}


def made(name: str) -> tuple[Any, Any, Objective, dict[str, Tensor]]:
    """A student, a wider teacher, the student's own objective, and a batch."""
    model, objective, batch = CASES[name]
    torch.manual_seed(0)
    student, teacher = model(16), model(24).eval()
    for p in (*student.parameters(), *teacher.parameters()):
        p.data += 0.1 * torch.randn_like(p)
    return student.eval(), teacher, objective(student), batch


def counted(x: Tensor, labels: Tensor) -> Tensor:
    return x[labels != IGNORE] if not labels.is_floating_point() else x


def plainly(student: Any, teacher: Any, own: Objective, batch: dict[str, Tensor], c: DistilConfig) -> Tensor:
    """The same as it stands in the paper."""
    given = {name: x for name, x in batch.items() if name != "labels"}
    z, t = student(**given), teacher(**given).detach()
    z, t = counted(z, batch["labels"]), counted(t, batch["labels"])
    if getattr(own, "kind", "") == "several":
        p, q = torch.sigmoid(t / c.temperature), torch.sigmoid(z / c.temperature)
        kl = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()
    else:
        p, q = (t / c.temperature).softmax(-1), (z / c.temperature).softmax(-1)
        kl = (p * (p / q).log()).sum()
    return (1 - c.share) * own(**batch) + c.share * c.temperature**2 * kl


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return [x for x in torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) if x is not None]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block", [distillation.BLOCK, 2 * V])
def test_the_loss_of_a_batch_is_that_of_the_paper(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "BLOCK", block)
    student, teacher, own, batch = made(name)
    loss, expected = Distilled(own, teacher, HOW)(**batch), plainly(student, teacher, own, batch, HOW)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for x, y in zip(gradients(loss, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    assert abs((loss - own(**batch)).item()) > 1e-3
    alone = DistilConfig("teacher", share=0.0)
    torch.testing.assert_close(Distilled(own, teacher, alone)(**batch), own(**batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_states_of_layers_are_told_through_a_map(name: str) -> None:
    student, teacher, own, batch = made(name)
    c = DistilConfig("teacher", share=0.3, temperature=2.5, layers=((1, 2), (2, 1)), hidden=0.7)
    given = {key: x for key, x in batch.items() if key != "labels"}
    seen: dict[tuple[int, int], Tensor] = {}
    hooks = []
    for side, model in enumerate((student, teacher)):
        for i, layer in enumerate(model.encoder.layers if hasattr(model, "encoder") else model.decoder.layers, 1):
            note = lambda _, __, made, at=(side, i): seen.__setitem__(at, made)  # noqa: E731
            hooks.append(layer.register_forward_hook(note))
        model(**given)
    for hook in hooks:
        hook.remove()
    objective = Distilled(own, teacher, c)
    expected = plainly(student, teacher, own, batch, c)
    labels = batch["labels"]
    said = labels != IGNORE if name in ("next token", "masked", "tags") else None
    for there, (ours, theirs) in zip(student.maps, c.layers, strict=True):
        for row in range(B):
            places = batch["keep"][row] if "keep" in batch else slice(None) if said is None else said[row]
            error = F.mse_loss(there(seen[0, ours][row, places]), seen[1, theirs][row, places])
            expected = expected + c.hidden * error * (1 if said is None else said[row].sum())
    loss = objective(**batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for x, y in zip(gradients(loss, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_the_second_token_of_a_deit_learns_what_the_teacher_finds_likeliest() -> None:
    torch.manual_seed(0)
    student, teacher = vision(deit_tiny, 16, "both"), vision(vit_tiny, 24)
    for p in teacher.parameters():
        p.data += 0.3 * torch.randn_like(p)
    pixels, labels = torch.randn(6, 3, 16, 16), torch.tensor([0, 1, 2, 0, 1, 2])
    said = teacher(pixels).argmax(-1)
    assert (said != labels).any()
    features = student.features(pixels)
    first, second = student.output.outer(features[:, 0]), student.output.other(features[:, 1])
    expected = 0.7 * F.cross_entropy(first, labels, reduction="sum") + 0.3 * F.cross_entropy(
        second, said, reduction="sum"
    )
    loss = Distilled(Labelled(student), teacher, HOW)(labels=labels, pixels=pixels)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("recomputed", [False, True])
def test_threads_that_share_a_batch_and_layers_that_are_computed_twice_change_nothing(recomputed: bool) -> None:
    student, teacher, own, batch = made("next token")
    objective = Distilled(own, teacher, DistilConfig("teacher", layers=((1, 2),)))
    whole = objective(**batch)
    expected = torch.autograd.grad(whole, list(student.parameters()))
    if recomputed:
        recompute(student.decoder.layers)
    student.train()
    with Shards(2, lend=False) as shards:
        loss = shards.backward(objective, list(student.parameters()), batch)
    torch.testing.assert_close(loss, whole.detach(), rtol=1e-5, atol=1e-5)
    for p, x in zip(student.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, x, rtol=1e-4, atol=1e-5)


def test_the_teacher_is_asked_as_it_is_and_is_no_part_of_what_learns() -> None:
    student, teacher, own, batch = made("one")
    teacher.train()
    before = copy.deepcopy(teacher.state_dict())
    objective = Distilled(own, teacher, HOW)
    assert {id(p) for p in objective.parameters()} == {id(p) for p in student.parameters()}
    objective(**batch).backward()
    assert not teacher.training
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(x, before[name]) for name, x in teacher.state_dict().items())
    copy.deepcopy(student)  # though its layers may be watched


def test_a_vocabulary_that_was_rounded_up_is_as_long_as_its_tokens() -> None:
    _, teacher, own, batch = made("next token")
    wide = Decoder(gpt_tiny(V + 6, d_model=24, layers=2, **SMALL)).eval()
    like = wide.state_dict()
    for name, x in teacher.state_dict().items():
        like[name][: len(x)] = x
    wide.load_state_dict(like)
    expected = Distilled(own, teacher, HOW)(**batch)
    torch.testing.assert_close(Distilled(own, wide, HOW, V)(**batch), expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_taught_is_said() -> None:
    student, teacher, own, _ = made("one")
    for objective in (Contrastive(student), Labelled(student, "number")):
        with pytest.raises(ValueError, match="this task learns neither classes nor tokens"):
            Distilled(objective, teacher, HOW)
    with pytest.raises(ValueError, match="the teacher has layers 1 to 2, and no 3"):
        Distilled(own, teacher, DistilConfig("teacher", layers=((1, 3),)))
    two = Transformer(TransformerConfig.tiny(V, encoder_layers=1, decoder_layers=1))
    with pytest.raises(ValueError, match="they are of one stack, and this model has two"):
        Distilled(NextToken(two), two, DistilConfig("teacher", layers=((1, 1),)))
    torch.manual_seed(0)
    seer, finer = vision(vit_tiny, 16), Vision(vit_tiny(d_model=24, **SEEN | {"patch": 4}), HeadConfig("classes", 3))
    uneven = Distilled(Labelled(seer), finer, DistilConfig("teacher", layers=((1, 1),)))
    with pytest.raises(ValueError, match="a row has 5 places in the student, and 17 in the teacher"):
        uneven(labels=torch.tensor([0]), pixels=torch.randn(1, 3, 16, 16))
    for wrong in ({"share": 1.5}, {"temperature": 0.0}, {"hidden": -1.0}):
        with pytest.raises(ValueError, match=f"distil.{next(iter(wrong))} = "):
            DistilConfig("teacher", **wrong)  # type: ignore[arg-type]
