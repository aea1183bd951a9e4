"""Every score equals its formula, and a Transformer keeps its promises whatever it scores and normalises with."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.adaptation.change import changed, listed
from regard.adaptation.prune import prune
from regard.core import scores
from regard.core.attention import MultiHeadAttention
from regard.core.masks import padding
from regard.core.mixers import AttentionConfig
from regard.core.scores import SCORES, Additive, make_score
from regard.data.batching import collate
from regard.data.generated import sequence_pairs
from regard.data.vocabulary import EOS, Vocabulary
from regard.decoding.module import Module
from regard.decoding.protocol import SearchConfig
from regard.inspection.taps import edit, record
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule
from tests.decoding.toys import asking, search

B, H, T, S, d_q, d_k = 2, 3, 4, 5, 6, 7
CLOSE = {"atol": 1e-11, "rtol": 0}


def random(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=g).requires_grad_(grad)


def by_formula(name: str, score: Any, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The score of one query (d_q,) and one key (d_k,), as published, for the head that `score` is given of."""
    if name == "general":
        return scale * (q @ score["matrix"] @ k)
    if name == "additive":
        return score["vector"][:, 0] @ torch.tanh(score["query"].T @ q + score["key"].T @ k)
    if name == "concat":
        return score["vector"][:, 0] @ torch.tanh(torch.cat([score["query"], score["key"]]).T @ torch.cat([q, k]))
    return scale * (q @ k)


@pytest.mark.parametrize("name", ["dot", "general", "additive", "concat"])
def test_every_pair_has_the_score_of_its_formula(name: str) -> None:
    torch.manual_seed(0)
    width = d_q if name == "dot" else d_k
    score = make_score(name, (H, H), (d_q, width), longest=9).double()
    q, k = random(B, H, T, d_q), random(B, H, S, width, seed=1)
    found = score(q, score.keys(k), 0.3)
    for b, h, t, s in torch.cartesian_prod(*map(torch.arange, (B, H, T, S))).tolist():
        head = {key: p[h] for key, p in score.named_parameters()}
        torch.testing.assert_close(found[b, h, t, s], by_formula(name, head, q[b, h, t], k[b, h, s], 0.3), **CLOSE)


def test_location_looks_at_the_query_alone() -> None:
    score = make_score("location", (H, H), (d_q, d_k), longest=9).double()
    q, k = random(B, H, T, d_q), random(B, H, S, d_k)
    found = score(q, k, 1.0)
    assert torch.equal(found, score(q, torch.zeros_like(k), 1.0))
    table = next(score.parameters())  # (H, d_q, 9)
    torch.testing.assert_close(found[1, 2, 3, 4], table[2, :, 4] @ q[1, 2, 3], **CLOSE)
    with pytest.raises(ValueError, match=r"10 keys are more than the 9 positions .* raise max_length"):
        score(q, random(B, H, 10, d_k), 1.0)


def test_concat_begins_in_a_smaller_range_than_additive() -> None:
    torch.manual_seed(0)
    apart, joint = (make_score(name, (1, 1), (64, 64), longest=9) for name in ("additive", "concat"))
    assert isinstance(apart, Additive)
    assert isinstance(joint, Additive)
    for score, bound in ((apart, (6 / 128) ** 0.5), (joint, (6 / 192) ** 0.5)):  # Xavier: √(6 / (inputs + outputs))
        for p in (score.query, score.key):
            assert 0.98 * bound < p.abs().max() <= bound


def test_an_additive_score_in_pieces_equals_it_at_once_and_holds_little(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random(B, H, T, d_q, grad=True), random(B, H, S, d_q, seed=1, grad=True), random(H, d_q, 1, grad=True)
    whole, g, held = scores.additive(q, k, v), random(B, H, T, S, seed=2), 0

    def count(x: Tensor) -> Tensor:
        nonlocal held
        held = max(held, x.numel())
        return x

    expected = torch.autograd.grad(whole, (q, k, v), g)
    monkeypatch.setattr(scores, "LARGE", 2 * B * H * S * d_q)  # two queries at a time
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        pieces = scores.additive(q, k, v)
    assert held <= k.numel()  # nothing for each pair
    with torch.no_grad():
        assert torch.equal(scores.additive(q, k, v), pieces)
    torch.testing.assert_close(pieces, whole, **CLOSE)
    for found, gradient in zip(torch.autograd.grad(pieces, (q, k, v), g), expected, strict=True):
        torch.testing.assert_close(found, gradient, **CLOSE)
    assert torch.autograd.gradcheck(scores.additive, (q[:1, :1], k[:1, :1], v[:1]))


# Inside an attention


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_attention_is_the_mix_of_the_values_by_the_normalised_scores(name: str, kv_heads: int) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(AttentionConfig(8, 4, kv_heads, score=name), d_memory=10).double()
    x, memory, keep = random(3, T, 8), random(3, S, 10), torch.arange(S) < torch.tensor([[5], [3], [1]])
    found = attention(x, memory, mask=padding(keep))
    q = attention.query(x).unflatten(-1, (4, 2)).transpose(1, 2)
    k, v = (part.unflatten(-1, (kv_heads, 2)).transpose(1, 2) for part in attention.key_value(memory).chunk(2, -1))
    k, v = (part.repeat_interleave(4 // kv_heads, 1) for part in (attention.score.keys(k), v))
    score = attention.score(q, k, 2**-0.5).masked_fill(~keep[:, None, None], -torch.inf)
    expected = attention.output((score.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, expected, **CLOSE)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.score.parameters())


@pytest.mark.parametrize("name", SCORES)
def test_several_rows_read_one_memory(name: str) -> None:
    attention = MultiHeadAttention(AttentionConfig(8, 2, score=name), d_memory=8).double()
    x, memory = random(6, T, 8), random(2, S, 8)
    rule = padding(torch.arange(S) < torch.tensor([[5], [2]]))
    mask = rule.dense(1, S)
    apart = attention(x, memory.repeat_interleave(3, 0), mask=mask.repeat_interleave(3, 0))
    torch.testing.assert_close(attention(x, memory, mask=mask), apart, **CLOSE)
    torch.testing.assert_close(attention(x, memory, mask=rule), apart, **CLOSE)


def test_without_projections_it_is_bahdanaus_attention() -> None:
    config = AttentionConfig(d_q, 1, score="additive", project=False, output=False)
    attention = MultiHeadAttention(config, d_memory=d_k).double()
    state, read = random(B, 1, d_q), random(B, S, d_k)
    W, U, v = (p[0] for p in attention.parameters())  # nothing else is learnt
    energy = torch.tanh(state @ W + read @ U) @ v  # (B, S, 1)
    torch.testing.assert_close(attention(state, read), (energy.softmax(1) * read).sum(1, keepdim=True), **CLOSE)


def test_without_projections_heads_are_slices() -> None:
    attention = MultiHeadAttention(AttentionConfig(8, 2, project=False, output=False, scale=1.0)).double()
    x = random(B, T, 8)
    halves = [(half @ half.mT).softmax(-1) @ half for half in x.chunk(2, -1)]
    torch.testing.assert_close(attention(x), torch.cat(halves, -1), **CLOSE)
    assert not list(attention.parameters())


def test_a_score_that_is_not_named_leaves_no_trace() -> None:
    attention = MultiHeadAttention(AttentionConfig(8, 2))
    assert {name.partition(".")[0] for name in attention.state_dict()} == {"query_key_value", "output"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "cosine"}, "score = 'cosine': choose dot, general, additive, concat or location"),
        ({"score": "dot:3"}, "score = 'dot:3'"),
        ({"score": "additive", "scale": 0.5}, "scale = 0.5 is one of the scores dot and general; additive has none"),
        ({"score": "general", "backend": "fused"}, "backend = 'fused' knows the score dot .* leave it at auto"),
        ({"normaliser": "entmax", "backend": "chunked"}, "backend = 'chunked' knows .* not dot and entmax"),
        ({"project": False, "kv_heads": 1}, "heads are slices: leave out kv_heads, d_k and d_v"),
        ({"project": False, "d_k": 4}, "heads are slices: leave out kv_heads, d_k and d_v"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionConfig(8, 2, **settings)


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a dot product needs queries and keys of one width, got 4 and 5: choose"):
        MultiHeadAttention(AttentionConfig(8, 2, project=False), d_memory=10)
    with pytest.raises(ValueError, match="a memory of width 9 does not divide into 2 heads"):
        MultiHeadAttention(AttentionConfig(8, 2, project=False, score="general"), d_memory=9)


# Inside a Transformer

VARIANTS: dict[str, dict[str, Any]] = {
    "general": {"score": "general", "positions": "rope"},
    "additive": {"score": "additive", "positions": "shaw", "kv_heads": 2},
    "concat": {"score": "concat", "positions": "alibi"},
    "location": {"score": "location", "max_length": 30},
    "topk": {"normaliser": "topk:2", "positions": "t5"},
    "hard": {"normaliser": "hard"},
    "sparsemax": {"normaliser": "sparsemax", "norm": "pre"},
    "entmax": {"normaliser": "entmax", "score": "additive"},
    "monotonic": {"cross_normaliser": "monotonic"},
    "chunkwise": {"cross_normaliser": "chunkwise:3", "cross_score": "additive", "score": "general"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)
LENGTHS = [7, 4, 1]


def build(variant: str, **changes: Any) -> Transformer:
    """A small model in which no parameter is at its first value, ready for use."""
    torch.manual_seed(0)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 4}
    model = Transformer(TransformerConfig(23, **shape | VARIANTS[variant] | changes)).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += 0.1 * torch.randn_like(p) + (1.5 if name.endswith("offset") else 0.0)  # monotonic: go slowly
    return model


def tokens(lengths: list[int], seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return nn.utils.rnn.pad_sequence([torch.randint(1, 23, (n,), generator=g) for n in lengths], True)


SOURCE, TARGET = tokens(LENGTHS, 0), tokens([12] * 3, 1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, **CLOSE)


@every_variant
@pytest.mark.parametrize("steps", [[1] * 12, [5, 1, 6]], ids=["tokens", "chunks"])
def test_cached_equals_uncached(variant: str, steps: list[int]) -> None:
    model = build(variant)
    memory, cache, whole = model.encode(SOURCE), model.new_cache(), model(SOURCE, TARGET)
    parts = [model.decode(new, memory, cache) for new in TARGET.split(steps, 1)]
    close(torch.cat(parts, 1), whole)


@every_variant
def test_hypotheses_that_share_a_memory_go_their_own_ways(variant: str) -> None:
    model, rows = build(variant), torch.tensor([0, 0, 1, 1, 2, 2])
    memory, cache = model.encode(SOURCE), model.new_cache()
    model.decode(TARGET[:, :3], memory, cache)
    cache.reorder(rows, None)  # two hypotheses for each sentence
    target = torch.cat([TARGET[rows, :3], tokens([6] * 6, 2)], 1)
    close(model.decode(target[:, 3:7], memory, cache), model(SOURCE[rows], target[:, :7])[:, 3:])
    chosen = torch.tensor([5, 4, 0, 0])  # sentence 1 has ended; 2 and 0 go on
    cache.reorder(chosen, torch.tensor([2, 0]))
    found = model.decode(target[chosen, 7:], memory.reorder(torch.tensor([2, 0])), cache)
    close(found, model(SOURCE[rows[chosen]], target[chosen])[:, 7:])


@every_variant
def test_the_future_the_padding_and_the_company_change_nothing(variant: str) -> None:
    model, other = build(variant), TARGET.clone()
    logits = model(SOURCE, TARGET)
    other[:, 8:] = TARGET[:, 8:] % 22 + 1
    close(model(SOURCE, other)[:, :8], logits[:, :8])
    close(model(F.pad(SOURCE, (0, 4)), F.pad(TARGET, (0, 3)))[:, :12], logits)
    for i, length in enumerate(LENGTHS):
        close(model(SOURCE[i : i + 1, :length], TARGET[i : i + 1])[0], logits[i])
    assert model(torch.zeros_like(SOURCE), TARGET).isfinite().all()  # nothing to read at all


@every_variant
def test_what_is_watched_is_what_the_values_are_multiplied_with(variant: str) -> None:
    model = build(variant)
    logits = model(SOURCE, TARGET)
    with record(model, what=("weights", "values", "outputs")) as seen:
        close(model(SOURCE, TARGET), logits)
    for name, weights in seen.weights.items():
        close(weights @ seen.values[name], seen.outputs[name])
        assert weights.min() >= 0
    read = seen["decoder.layers.1.cross_attention"]
    assert not read.masked_select(SOURCE[:, None, None].expand_as(read) == 0).any()


@every_variant
def test_a_saved_model_is_the_same(variant: str, tmp_path: Path) -> None:
    model = build(variant).float()
    storage.save(model, tmp_path / "model")
    again = storage.load(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again(SOURCE, TARGET), model(SOURCE, TARGET))


@every_variant
def test_every_parameter_learns_and_half_precision_is_survived(variant: str) -> None:
    model = build(variant, attention_dropout=0.1).train()
    model(SOURCE, TARGET).square().sum().backward()
    # Of one key, the soft-max has no gradient: an encoder that looks at one alone teaches its scores nothing.
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    half = build(variant).bfloat16()
    assert half(SOURCE, TARGET).isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert build(variant).float().train()(SOURCE, TARGET).isfinite().all()


@every_variant
def test_a_pruned_model_is_the_whole_with_silent_heads(variant: str) -> None:
    model = build(variant)
    gone = {"encoder.layers.0.self_attention": (1, 3), "decoder.layers.1.cross_attention": (0,)}
    with edit(model, {name: dict.fromkeys(heads, 0.0) for name, heads in gone.items()}):
        silent = model(SOURCE, TARGET)
    smaller = prune(model, gone)
    close(smaller(SOURCE, TARGET), silent)
    assert not torch.allclose(silent, model(SOURCE, TARGET), atol=1e-3)
    assert {n: p.shape for n, p in changed(Transformer(smaller.config), listed(smaller)).named_parameters()} == {
        n: p.shape for n, p in smaller.named_parameters()
    }


def test_the_memory_may_be_read_otherwise_than_the_rest() -> None:
    model = build("chunkwise")
    own, read = model.decoder.layers[0].self_attention.sublayer, model.decoder.layers[0].cross_attention.sublayer
    assert (own.config.score, own.config.normaliser) == ("general", "softmax")
    assert (read.config.score, read.config.normaliser) == ("additive", "chunkwise:3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cross_score": "cosine"}, "score = 'cosine'"),
        ({"normaliser": "monotonic"}, "'monotonic' walks along a memory, .* give it as cross_normaliser"),
        ({"normaliser": "topk"}, "write topk: and a number from 1 on, as in topk:8"),
        ({"cross_normaliser": "chunkwise:1"}, "write chunkwise: and a number from 2 on"),
    ],
)
def test_a_config_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig.tiny(23, **settings)


VOCABULARY = Vocabulary(tuple("01234567"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_small_model_learns_to_copy(variant: str) -> None:
    torch.manual_seed(0)
    changes = VARIANTS[variant] | {"norm": "pre", "dropout": 0.0, "positions": "sinusoidal", "kv_heads": None}
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "d_ff": 64, "heads": 2}
    model = Transformer(TransformerConfig(len(VOCABULARY), **shape | changes))
    pairs, steps = sequence_pairs("copy", symbols="01234567", lengths=range(3, 6), seed=0), 200
    batches = (
        collate((VOCABULARY.encode(p.source), VOCABULARY.encode(p.target)) for p in islice(pairs, 32))
        for _ in range(steps)
    )
    for _ in fit(model, batches, schedule(ScheduleConfig("linear", peak=5e-3, warmup=20), total=steps), smoothing=0.0):
        pass
    test = list(islice(sequence_pairs("copy", symbols="01234567", lengths=range(3, 6), seed=1), 200))
    requests = [asking([*VOCABULARY.encode(pair.source), EOS]) for pair in test]
    found = search(Module(model.eval()), requests, SearchConfig(beam=2))
    right = sum(VOCABULARY.decode(best.tokens) == list(p.target) for (best, *_), p in zip(found, test, strict=True))
    assert right / len(test) >= 0.6  # by chance: one in a thousand
