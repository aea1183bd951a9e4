"""Recurrence over segments and memory beyond them, against plain loops, full attention and caches."""

import pytest
import torch
from torch import Tensor

from regard.core.attention import MultiHeadAttention
from regard.core.memorizing import Memorizing
from regard.core.sparse import Segments, sparse_attend
from regard.inspection.taps import record
from regard.models.decoder import Decoder, llama_tiny

SCALE = 0.4


def drawn(n: int = 23) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def looped(q: Tensor, k: Tensor, v: Tensor, L: int, M: int, K: int = 0, gate: Tensor | None = None) -> Tensor:
    """Segment after segment, query after query; keys and values of segments before are constants."""
    B, H, n, _ = q.shape
    rows = []
    for i in range(n):
        start = i // L * L
        near, far = range(max(0, start - M), i + 1), range(max(0, start - M))
        heads = []
        for b in range(B):
            for h in range(H):

                def mean(keys: list[int], b: int = b, h: int = h, i: int = i, start: int = start) -> Tensor:
                    own = [
                        (k[b, h, j], v[b, h, j]) if j >= start else (k[b, h, j].detach(), v[b, h, j].detach())
                        for j in keys
                    ]
                    scores = torch.stack([SCALE * (q[b, h, i] * key).sum() for key, _ in own])
                    return sum(
                        (w * value for w, (_, value) in zip(scores.softmax(0), own, strict=True)), torch.zeros(())
                    )

                said = mean([*near])
                if K and len(far):
                    best = sorted(far, key=lambda j: -(q[b, h, i] * k[b, h, j]).sum().item())[:K]
                    assert gate is not None
                    g = gate[h].sigmoid()
                    said = g * mean(best) + (1 - g) * said
                heads.append(said)
        rows.append(torch.stack(heads).view(B, H, -1))
    return torch.stack(rows, 2)


def agree(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected)
    above = torch.randn_like(found)
    for ours, theirs in zip(*(torch.autograd.grad(x, inputs, above) for x in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("L", "M"), [(4, 4), (4, 9), (5, 2), (1, 3), (30, 1)])
def test_segments_are_those_of_plain_loops_and_learn_nothing_from_before(L: int, M: int) -> None:
    q, k, v = drawn()
    agree(sparse_attend(q, k, v, Segments(L, M), is_causal=True, scale=SCALE), looped(q, k, v, L, M), [q, k, v])


@pytest.mark.parametrize(("L", "M", "K"), [(4, 4, 3), (5, 2, 100), (3, 1, 1)])
def test_a_memory_is_that_of_plain_loops_and_learns_nothing_from_before(L: int, M: int, K: int) -> None:
    (q, k, v), inner = drawn(), Memorizing(L, M, K, heads=3).double()
    with torch.no_grad():
        inner.gate.copy_(torch.tensor([-1.0, 0.0, 2.0]))
    found = inner(q, k, v, is_causal=True, keep=None, scale=SCALE, dropout=0.0)
    agree(found, looped(q, k, v, L, M, K, inner.gate), [q, k, v, inner.gate])
    weights = inner.weights(q, k, None, SCALE, lambda scores: scores)
    torch.testing.assert_close(weights @ v, found)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 23, dtype=torch.float64))
    far = weights[:, :, -1, : 22 // L * L - M]  # of the last query
    assert ((far > 0).sum(-1) == min(K, far.shape[-1])).all()


def model(kind: str, **changes: object) -> Decoder:
    torch.manual_seed(0)
    sizes = {"layers": 3, "d_model": 16, "d_ff": 32, "heads": 2, "max_length": 64}
    made = Decoder(llama_tiny(40, **{**sizes, "self_attention": kind, **changes})).eval()
    for p in made.parameters():  # nothing is told apart by weights that are all small
        torch.nn.init.normal_(p, std=0.4)
    return made


KINDS = ["segments:4:4", "segments:5:3", "segments:4:4 memorizing:4:4:3", "memorizing:4:2:5", "window:3 full"]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_by_segments_with_a_cache_it_is_the_whole_text(kind: str) -> None:
    tokens, made = torch.randint(0, 40, (2, 31)), model(kind)
    whole = made.features(tokens)
    for size in (4, 1, 7):
        cache = made.new_cache()
        parts = [made.features(some, cache) for some in tokens.split(size, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)
    with record(made) as seen:  # by weights, which somebody looks at
        torch.testing.assert_close(made.features(tokens), whole, atol=1e-5, rtol=1e-5)
    assert len(seen) == 3


@torch.inference_mode()
def test_with_a_memory_as_long_as_the_text_it_is_full_attention() -> None:
    tokens = torch.randint(0, 40, (2, 31))
    whole = model("full").features(tokens)
    torch.testing.assert_close(model("segments:4:31").features(tokens), whole, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model("segments:4:4").features(tokens), whole, atol=1e-2)


@torch.inference_mode()
def test_positions_are_relative_and_a_layer_reaches_one_memory_back() -> None:
    made, tokens = model("segments:4:4"), torch.randint(0, 40, (1, 24))
    other = torch.cat([torch.randint(0, 40, (1, 8)), tokens], 1)  # the same text, two segments later
    # Three layers of four positions each: what begins at 12 sees nothing before 0.
    torch.testing.assert_close(made.features(other)[:, 8 + 12 :], made.features(tokens)[:, 12:], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(made.features(other)[:, 8:12], made.features(tokens)[:, :4], atol=1e-2)


@torch.inference_mode()
def test_a_memory_finds_what_was_said_long_ago() -> None:
    made = model("segments:4:4 memorizing:4:4:2 segments:4:4")
    tokens = torch.randint(0, 40, (1, 40))
    with record(made) as seen:
        made.features(tokens)
    far = seen["decoder.layers.1.self_attention"][0, :, 39, :32]  # (H, S), beyond what is near
    assert ((far > 0).sum(-1) == 2).all()
    torch.testing.assert_close(far.sum(-1), made.decoder.layers[1].self_attention.sublayer.efficient.gate.sigmoid())
    found = int(far[0].argmax())
    other = tokens.clone()
    other[0, found] = (other[0, found] + 1) % 40
    assert not torch.allclose(made.features(tokens)[:, 39], made.features(other)[:, 39], atol=1e-4)
    if found < 24:  # which no layer of segments alone can see
        near = model("segments:4:4")
        assert torch.equal(near.features(tokens)[:, 39], near.features(other)[:, 39])


def test_what_does_not_go_together_is_refused() -> None:
    for kind, changes, reason in (
        ("segments:4", {}, "write it as in segments:64:64"),
        ("segments:4:0", {}, "with whole numbers from 1 on"),
        ("memorizing:4:4", {}, "write it as in memorizing:64:64:32"),
        ("segments:4:4", {"positions": "alibi"}, "add to the scores of full attention"),
        ("segments:4:4", {"backend": "math"}, "would learn across the segments"),
        ("segments:4:400", {}, "reaches 400 positions, more than max_length = 64"),
        ("memorizing:4:4:2", {"attention_dropout": 0.1}, "set it to 0"),
        ("full wide", {}, "unknown attention 'wide'"),
        (" ", {}, "name a kind"),
    ):
        with pytest.raises(ValueError, match=reason):
            model(kind, **changes)
    attention = MultiHeadAttention(model("memorizing:4:4:2").config.attention)
    with pytest.raises(ValueError, match="looks back"):
        attention(torch.randn(1, 9, 16))
