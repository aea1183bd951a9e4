"""Masks combine like sets, say what they fit, and a block of one is a slice of the whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.core.masks import Mask, causal, padding

KEEP = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()


def full(mask: Mask) -> torch.Tensor:
    return mask.dense(5, 5).expand(3, 1, 5, 5)


def test_and_or_are_those_of_the_tables() -> None:
    a, b = causal(), padding(KEEP)
    assert torch.equal(full(a & b), full(a) & full(b))
    assert torch.equal(full(a | b), full(a) | full(b))
    assert (a & b).shape == (a | b).shape == (3, 1, 1, 5)


def test_only_the_plain_causal_mask_is_a_triangle() -> None:
    assert causal().triangle
    assert not any(m.triangle for m in (causal(1), causal() & padding(KEEP), causal() | causal(), padding(KEEP)))


@pytest.mark.parametrize("offset", [0, 3])
def test_causal_hides_what_is_later(offset: int) -> None:
    expected = torch.tensor([[j <= i + offset for j in range(6)] for i in range(4)])
    assert torch.equal(causal(offset).dense(4, 6)[0, 0], expected)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_block_is_a_slice_of_the_whole(data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, 4))
    mask = data.draw(st.sampled_from([causal(offset), padding(KEEP), causal(offset) & padding(KEEP)]))
    rows = slice(*sorted(data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))))
    columns = slice(*sorted(data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))))
    block = mask.block(torch.arange(5)[rows], torch.arange(5)[columns])
    assert block.dim() == 4
    part = full(mask)[:, :, rows, columns]
    assert torch.equal(block.expand_as(part), part)


def test_masks_that_do_not_go_together_are_refused() -> None:
    wide = padding(torch.ones(3, 7, dtype=torch.bool))
    for combine in (Mask.__and__, Mask.__or__):
        with pytest.raises(ValueError, match=r"\(3, 1, 1, 5\) and \(3, 1, 1, 7\) do not go together"):
            combine(padding(KEEP), wide)


@pytest.mark.parametrize(
    ("keep", "message"),
    [(torch.ones(2, 3), r"float32 of shape \(2, 3\).*tokens != pad"), (KEEP[0], r"torch.bool of shape \(5,\)")],
)
def test_padding_takes_bools_of_batch_and_keys(keep: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        padding(keep)


def test_a_rule_and_a_tensor_do_not_mix() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        causal() & torch.ones(1, 1, 2, 2, dtype=torch.bool)
