"""A cache grows without forgetting, and a reordered one continues the rows that were chosen."""

import pytest
import torch

from regard.core.cache import Cache, KeyValues, Window


@pytest.mark.parametrize("steps", [[1] * 70, [3, 1, 40, 26], [70], [16, 1, 15, 1, 37]])
def test_keys_and_values_grow_without_forgetting(steps: list[int]) -> None:
    k, v, past, end = torch.randn(2, 3, 70, 4), torch.randn(2, 3, 70, 5), KeyValues(), 0
    for k_new, v_new in zip(k.split(steps, 2), v.split(steps, 2), strict=True):
        keys, values = past.extend(k_new, v_new)
        end += k_new.shape[2]
        assert past.length == end
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])


def test_buffers_double_so_that_few_steps_copy() -> None:
    past, buffers = KeyValues(), []  # held, so that no address comes twice
    for _ in range(1000):
        past.extend(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
        if not buffers or past.keys is not buffers[-1]:
            buffers.append(past.keys)
    assert len(buffers) <= 7  # 16, 32, ... 1024
    assert buffers[-1].shape[2] < 2 * 1000 + 16


def test_reordered_rows_go_their_own_ways() -> None:
    past, k, index = KeyValues(), torch.randn(3, 2, 5, 4), torch.tensor([2, 0, 0, 2])
    past.extend(k, -k)
    past.reorder(index)
    new = torch.randn(4, 2, 1, 4)
    keys, values = past.extend(new, -new)
    assert torch.equal(keys, torch.cat([k[index], new], 2))
    assert torch.equal(values, -keys)


def test_a_window_holds_the_last_inputs() -> None:
    window, x = Window(), torch.randn(2, 6, 3)
    assert torch.equal(window.slide(x[:, :1], 4), torch.cat([torch.zeros(2, 3, 3), x[:, :1]], 1))
    assert torch.equal(window.slide(x[:, 1:3], 4), torch.cat([torch.zeros(2, 2, 3), x[:, :3]], 1))
    window.reorder(torch.tensor([1, 1, 0]))
    x = x[[1, 1, 0]]
    assert torch.equal(window.slide(x[:, 3:], 4), x)
    assert torch.equal(window.past, x[:, 3:])


def test_a_stack_reorders_every_part_of_every_layer_and_an_empty_one_is_left_alone() -> None:
    cache, index = Cache.empty(2), torch.tensor([1])
    cache.reorder(index, index)
    assert (len(cache), cache.length) == (2, 0)
    x = torch.randn(2, 1, 3, 4)
    for layer in cache:
        layer.self_attention.extend(x, x)
        layer.cross_attention.extend(x, x)
        layer.feed_forward.slide(x[:, 0], 3)
    cache.reorder(index, None)  # rows of what was decoded
    cache.reorder(None, torch.tensor([1, 0, 1]))  # and of the memory
    assert cache.length == 3
    for layer in cache:
        assert torch.equal(layer.self_attention.keys[:, :, :3], x[1:])
        assert torch.equal(layer.cross_attention.values[:, :, :3], x[[1, 0, 1]])
        assert torch.equal(layer.feed_forward.past, x[1:, 0, 1:])


def test_a_batch_of_another_size_is_refused_and_leaves_the_cache_as_it_was() -> None:
    past = KeyValues()
    past.extend(torch.ones(3, 2, 4, 5), torch.ones(3, 2, 4, 5))
    with pytest.raises(ValueError, match="a batch of 3, not of 1"):
        past.extend(torch.ones(1, 2, 1, 5), torch.ones(1, 2, 1, 5))
    assert past.length == 4
