"""Both kinds equal a plain writing-out with conv1d, and keep the promises of an encoder-decoder."""

import copy
import math
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy
from regard.core.quantised import quantise
from regard.data.batching import collate
from regard.data.generated import sequence_pairs
from regard.data.vocabulary import EOS, Vocabulary
from regard.decoding.module import Module
from regard.decoding.protocol import Bare, SearchConfig
from regard.inspection.taps import attentions, record
from regard.models.convolutional import FAMILY, Convolution, Convolutional, ConvolutionalConfig
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule
from tests.decoding.toys import asking, search

SHAPE: dict[str, Any] = {"vocabulary": 23, "encoder_layers": 3, "decoder_layers": 3, "d_model": 16, "max_length": 40}
BYTENET: dict[str, Any] = {"style": "bytenet", "attention": False, "positions": "none", "dilations": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "convs2s": {},
    "convs2s-wide": {"kernel": 5, "heads": 4, "positions": "sinusoidal", "tie": "none"},
    "convs2s-dilated": {"dilations": 3, "positions": "none", "tie": "target", "source_vocabulary": 30},
    "convs2s-additive": {"score": "additive", "normaliser": "entmax"},
    "convs2s-monotonic": {"normaliser": "monotonic"},
    "convs2s-pointwise": {"kernel": 1},
    "bytenet": BYTENET,
    "bytenet-attention": BYTENET | {"attention": True, "heads": 2},
    "bytenet-long": BYTENET | {"unfold": 2.5, "positions": "learned", "kernel": 5},
}
LENGTHS = [7, 4, 1]  # of the sources in a batch
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(dtype: torch.dtype = torch.float64, **changes: Any) -> Convolutional:
    """A small model in which no parameter is at its first value, ready for use."""
    torch.manual_seed(0)
    model = Convolutional(ConvolutionalConfig(**SHAPE | changes)).to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def tokens(lengths: list[int], seed: int) -> Tensor:
    """Random tokens, right-padded with 0."""
    g = torch.Generator().manual_seed(seed)
    return nn.utils.rnn.pad_sequence([torch.randint(1, 23, (n,), generator=g) for n in lengths], True)


SOURCE, TARGET = tokens(LENGTHS, 0), tokens([18] * 3, 1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


# Written out with PyTorch's own convolutions, for one sentence without padding


def conv1d(layer: Convolution, x: Tensor) -> Tensor:
    """x (T, d_in) -> (T, d_out)."""
    kernel, dilation = layer.kernel, layer.dilation
    weight = layer.product.weight.unflatten(1, (kernel, -1)).transpose(1, 2)  # (d_out, d_in, kernel)
    reach = (kernel - 1) * dilation
    padding = (reach, 0) if layer.causal else (reach // 2, reach // 2)
    return F.conv1d(F.pad(x.T[None], padding), weight, layer.product.bias, dilation=dilation)[0].T


def attended(attention: nn.Module, x: Tensor, memory: Tensor) -> Tensor:
    """softmax(q·k / √d) v of one head or several, from x (T, d) to memory (S, ·)."""
    q, (k, v) = attention.query(x), attention.key_value(memory).chunk(2, -1)
    heads = [
        torch.softmax(a @ b.T / math.sqrt(a.shape[1]), -1) @ c
        for a, b, c in zip(*(each.chunk(attention.heads, -1) for each in (q, k, v)), strict=True)
    ]
    return attention.output(torch.cat(heads, -1))


def gated(model: Convolutional, source: Tensor, target: Tensor) -> Tensor:
    e, g = model.source_embedding(source[None])[0], model.target_embedding(target[None])[0]
    z = e
    for layer in model.encoder.layers:
        a, b = conv1d(layer.convolution, z).chunk(2, -1)
        z = (a * torch.sigmoid(b) + z) * math.sqrt(0.5)
    x = g
    for layer in model.decoder.layers:
        a, b = conv1d(layer.convolution, x).chunk(2, -1)
        h = a * torch.sigmoid(b)
        c = attended(layer.cross_attention, (h + g) * math.sqrt(0.5), torch.cat([z, e], -1))
        h = (h + c * math.sqrt(len(e))) * math.sqrt(0.5)
        x = (h + x) * math.sqrt(0.5)
    return model.output(x)


def block(residual: nn.Module, x: Tensor) -> Tensor:
    inside = residual.sublayer
    y = inside.narrow(residual.norm(x).relu())
    y = conv1d(inside.convolution, inside.narrow_norm(y).relu())
    return x + inside.wide(inside.convolution_norm(y).relu())


def dilated(model: Convolutional, source: Tensor, target: Tensor) -> Tensor:
    e, x = model.source_embedding(source[None])[0], model.target_embedding(target[None])[0]
    columns = round(model.config.unfold * len(e))
    z = torch.cat([e, torch.zeros(columns - len(e), e.shape[1], dtype=e.dtype)])
    for layer in model.encoder.layers:
        z = block(layer.block, z)
    z = model.encoder.norm(z)
    read = torch.zeros_like(x)
    both = min(columns, len(x))
    read[:both] = z[:both]
    x = x + model.decoder.column(read)
    for layer in model.decoder.layers:
        x = block(layer.block, x)
        if (attention := layer.cross_attention) is not None:
            x = x + attended(attention.sublayer, attention.norm(x), z[: len(e)])
    return model.output(model.decoder.norm(x))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "additive" not in v and "monotonic" not in v])
def test_equals_conv1d_sentence_by_sentence_in_value_and_gradient(variant: str) -> None:
    model = build(**VARIANTS[variant])
    plain = gated if model.config.style == "convs2s" else dilated
    expected = torch.stack([plain(model, s[s != 0], t) for s, t in zip(SOURCE, TARGET, strict=True)])
    logits = model(SOURCE, TARGET)
    assert expected.std() > 0.1  # there is something to compare
    close(logits, expected)
    g, parameters = torch.randn_like(logits), list(model.parameters())
    for mine, their in zip(
        torch.autograd.grad(logits, parameters, g), torch.autograd.grad(expected, parameters, g), strict=True
    ):
        torch.testing.assert_close(mine, their, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 4), (5, 2)])
def test_a_convolution_reads_its_neighbours_and_nobody_else(kernel: int, dilation: int, causal: bool) -> None:
    torch.manual_seed(0)
    layer = Convolution(4, 6, kernel=kernel, dilation=dilation, causal=causal).double()
    x = torch.randn(1, 20, 4, dtype=torch.float64, requires_grad=True)
    (seen,) = torch.autograd.grad(layer(x)[0, 10].sum(), x)
    first = 10 - (kernel - 1) * dilation // (1 if causal else 2)
    neighbours = [first + j * dilation for j in range(kernel)]
    assert seen[0].abs().sum(-1).nonzero()[:, 0].tolist() == [t for t in neighbours if 0 <= t < 20]


# Promises of every variant


@every_variant
@pytest.mark.parametrize("steps", [[1] * 18, [5, 1, 1, 9, 2], [17, 1]], ids=["tokens", "chunks", "prefix"])
def test_cached_equals_uncached_at_every_step(variant: str, steps: list[int]) -> None:
    model = build(**VARIANTS[variant])
    memory, cache, end = model.encode(SOURCE), model.new_cache(), 0
    for new in TARGET.split(steps, 1):
        end += new.shape[1]
        close(model.decode(new, memory, cache), model.decode(TARGET[:, :end], memory)[:, -new.shape[1] :])
        assert cache.length == end


@every_variant
def test_a_reordered_cache_continues_the_chosen_rows(variant: str) -> None:
    model, index = build(**VARIANTS[variant]), torch.tensor([2, 0, 0, 1])
    cache, memory = model.new_cache(), model.encode(SOURCE)
    model.decode(TARGET[:, :5], memory, cache)
    cache.reorder(index, index)
    memory = memory.reorder(index)
    for end in (6, 7):
        new = TARGET[index, end - 1 : end]
        close(model.decode(new, memory, cache), model.decode(TARGET[index, :end], memory)[:, -1:])


@every_variant
def test_several_rows_of_the_target_read_one_of_the_memory(variant: str) -> None:
    model, K = build(**VARIANTS[variant]), 2
    each = SOURCE.repeat_interleave(K, 0)
    target = tokens([9] * len(each), 5)
    expected = model(each, target)
    memory, cache = model.encode(SOURCE), model.new_cache()
    close(model.decode(target, memory), expected)
    close(model.decode(target[:, :4], memory, cache), expected[:, :4])
    swap = torch.tensor([1, 0, 2, 2, 5, 4])  # within each sentence: the memory stays
    cache.reorder(swap, None)
    mixed = torch.cat([target[swap, :4], target[:, 4:]], 1)
    close(model.decode(target[:, 4:], memory, cache), model(each, mixed)[:, 4:])


@every_variant
def test_the_future_changes_nothing(variant: str) -> None:
    model, other = build(**VARIANTS[variant]), TARGET.clone()
    other[:, 8:] = TARGET[:, 8:] % 22 + 1  # another token everywhere
    before, after = model(SOURCE, TARGET), model(SOURCE, other)
    close(before[:, :8], after[:, :8])
    assert (before[:, 8:] - after[:, 8:]).abs().amax(-1).min() > 1e-3  # the present does


@every_variant
def test_padding_and_company_change_nothing(variant: str) -> None:
    model = build(**VARIANTS[variant])
    target = tokens([6, 2, 9], 3)
    logits = model(SOURCE, target)
    close(model(F.pad(SOURCE, (0, 4)), F.pad(target, (0, 3)))[:, : target.shape[1]], logits)
    for i, (s, t) in enumerate(zip(LENGTHS, [6, 2, 9], strict=True)):
        close(model(SOURCE[i : i + 1, :s], target[i : i + 1, :t])[0], logits[i, :t])
    assert not torch.allclose(model(SOURCE.masked_fill(SOURCE == 0, 5), target)[1:], logits[1:])  # words do


@every_variant
def test_an_empty_source_is_survived(variant: str) -> None:
    assert build(**VARIANTS[variant])(torch.zeros_like(SOURCE), TARGET).isfinite().all()


@every_variant
def test_every_parameter_learns_from_the_chunked_loss(variant: str) -> None:
    model = build(**VARIANTS[variant]).train()
    loss = linear_cross_entropy(model.features(SOURCE, TARGET), model.output.weight, TARGET.roll(-1, 1), smoothing=0.1)
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.ne(0).any(), name


@every_variant
def test_beam_search_finds_what_it_scores(variant: str) -> None:
    model = build(torch.float32, **VARIANTS[variant])
    requests = [asking([*row[row != 0].tolist()]) for row in SOURCE]
    settings = SearchConfig(beam=3, best=3, extra=4)
    for request, found in zip(requests, search(Module(model), requests, settings), strict=True):
        assert len(found) == 3
        for hypothesis in found:
            written = [*hypothesis.tokens, 2][: len(hypothesis.token_scores)]  # without its end, if it was cut
            logits = model(torch.tensor([request.source]), torch.tensor([[1, *written[:-1]]]))[0]
            score = logits.log_softmax(-1).gather(1, torch.tensor(written)[:, None]).sum()
            assert hypothesis.log_probability == pytest.approx(score.item(), abs=1e-4)


def test_half_precision_and_whole_numbers_are_near() -> None:
    for variant in ("convs2s", "bytenet"):
        exact = build(torch.float32, **VARIANTS[variant])
        logits = exact(SOURCE, TARGET)
        for other in (copy.deepcopy(exact).bfloat16(), quantise(copy.deepcopy(exact))):
            assert (other(SOURCE, TARGET).float() - logits).std() < 0.2 * logits.std()


# What is seen of them


def test_attentions_are_found_by_name_and_give_whole_maps() -> None:
    model = build()
    names = [f"decoder.layers.{i}.cross_attention" for i in range(3)]
    assert list(attentions(model)) == names
    with record(model) as seen:
        model(SOURCE, TARGET)
    for name in names:
        assert seen[name].shape == (3, 1, 18, 7)
        close(seen[name].sum(-1), torch.ones(3, 1, 18, dtype=torch.float64))
        assert not seen[name][1, :, :, 4:].any()  # padding
    assert list(attentions(build(**VARIANTS["bytenet-attention"]))) == ["decoder.layers.1.cross_attention"]
    assert not attentions(build(**BYTENET))


def test_the_attention_can_be_the_one_of_the_paper() -> None:
    """(h + g) · z / √d and a mean of z + e: W_Q = 1, W_K = [1, 0], W_V = [1, 1], W_O = 1."""
    model, d = build(decoder_layers=1), 16
    attention, one, zero = model.decoder.layers[0].cross_attention, torch.eye(16), torch.zeros(16, 16)
    with torch.no_grad():
        for product, weight in (
            (attention.query, one),
            (attention.key_value, torch.cat([torch.cat([one, zero], 1), torch.cat([one, one], 1)])),
            (attention.output, one),
        ):
            product.weight.copy_(weight)
            product.bias.zero_()
    x, z, e = (torch.randn(1, n, d, dtype=torch.float64) for n in (5, 7, 7))
    weights = torch.softmax(x @ z.transpose(1, 2) / math.sqrt(d), -1)
    close(attention(x, torch.cat([z, e], -1)), weights @ (z + e))


# How they are made


@pytest.mark.parametrize(("style", "attention"), [("convs2s", True), ("bytenet", False), ("bytenet", True)])
def test_the_past_of_a_decoder_does_not_grow(style: str, attention: bool) -> None:
    model = build(**(BYTENET if style == "bytenet" else {}) | {"attention": attention})
    memory, cache, sizes = model.encode(SOURCE), model.new_cache(), set()
    for _ in range(3):
        model.decode(TARGET[:, :6], memory, cache)
        sizes.add(tuple(layer.convolution.past.shape[1] for layer in cache))
    assert sizes == {(2, 2, 2) if style == "convs2s" else (2, 4, 2)}  # (kernel - 1) · dilation


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_gated_layer_begins_with_about_the_variance_of_its_input(dropout: float) -> None:
    torch.manual_seed(0)
    model = Convolutional(ConvolutionalConfig.convs2s(1000, d_model=256, dropout=dropout)).train()
    x = torch.randn(20, 50, 256)
    # The gate of a value of variance 4 is σ(b), b of variance 4 as well: 4 E[σ²] = 1.4, and half of 1 + 1.4 is 1.2.
    assert 1.1 < model.encoder.layers[0](x).var() < 1.3


@pytest.mark.parametrize("name", FAMILY.presets)
def test_presets_are_about_as_large_as_the_transformers_tiny(name: str) -> None:
    config = FAMILY.presets[name](8000)
    model = Convolutional(config)
    body = sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters())
    assert 1.2e6 < body < 1.5e6
    assert FAMILY.presets[name](8000, dropout=0.3) == config.but(dropout=0.3) != config


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tying_shares_parameters(tie: str, matrices: int) -> None:
    model = Convolutional(ConvolutionalConfig(**SHAPE | {"tie": tie, "positions": "none"}))
    body = sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters())
    assert sum(p.numel() for p in model.parameters()) == body + matrices * 23 * 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"style": "wavenet"}, "style = 'wavenet': choose convs2s or bytenet"),
        ({"positions": "rope"}, "positions = 'rope': choose none, sinusoidal or learned"),
        ({"tie": "source"}, "tie = 'source'"),
        ({"kernel": 4}, "kernel = 4: .* it must be odd"),
        ({"kernel": 0}, "kernel = 0: it must be at least 1"),
        ({"dilations": 0}, "dilations = 0: it must be at least 1"),
        ({"attention": False}, "reads the source by attention=True: without it, choose style='bytenet'"),
        (BYTENET | {"d_model": 15}, "d_model = 15: bytenet convolves at half this width, so it must be even"),
        (BYTENET | {"unfold": 0.5}, "unfold = 0.5: it is the columns for each source token, from 1 to 100"),
        (BYTENET | {"unfold": 1e9}, "unfold = 1000000000.0"),
        ({"dilations": 40}, r"dilations = 40: gaps double, and the last would be 2\^39 tokens: choose 12 at most"),
        (BYTENET | {"attention": True, "dilations": 5}, "attention=True comes after each turn of dilations = 5 layers"),
        (BYTENET | {"unfold": math.nan}, "unfold = nan"),
        ({"heads": 3}, "d_model = 16 does not divide into 3 heads"),
        ({"score": "cosine"}, "cosine"),
        ({"score": "additive", "scale": 0.5}, "scale = 0.5 is one of the scores dot and general; additive has none"),
        ({"scale": math.inf}, "scale = inf: it must be a finite number"),
        ({"normaliser": "topk:0"}, "topk:0"),
        ({"source_vocabulary": 30}, "they have 30 and 23 entries: use one joint vocabulary, or tie='target'"),
        ({"pad": 23}, r"pad = 23 is no token: the vocabulary has ids 0\.\.22"),
        ({"dropout": 1.5}, r"dropout = 1.5: a probability lies in \[0, 1\]"),
    ],
)
def test_an_impossible_config_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvolutionalConfig(**SHAPE | changes)


@pytest.mark.parametrize("variant", ["convs2s", "bytenet-attention"])
def test_a_scale_multiplies_the_scores(variant: str) -> None:
    usual, half = build(**VARIANTS[variant]), build(**VARIANTS[variant], scale=0.5)
    seen = []
    for model in (usual, half):  # of the same weights
        with record(model, what="scores") as found:
            model(SOURCE, TARGET)
        seen.append(next(iter(found.scores.values())))  # of the first attention, which reads the same in both
    d_k = 16 // usual.config.heads
    torch.testing.assert_close(seen[1], seen[0] * (0.5 * d_k**0.5))


@pytest.mark.parametrize("variant", ["convs2s", "bytenet"])
def test_what_does_not_fit_the_model_is_refused(variant: str) -> None:
    model = build(**VARIANTS[variant])
    with pytest.raises(ValueError, match=r"token ids lie in 0\.\.22, got 1\.\.23"):
        model(torch.tensor([[1, 23]]), TARGET)
    with pytest.raises(ValueError, match="3 rows read 2; give as many, or a multiple"):
        model(SOURCE[:2], TARGET)
    with pytest.raises(ValueError, match="no setting 'layers': did you mean"):
        model.config.but(layers=3)
    if variant == "convs2s":
        with pytest.raises(ValueError, match="41 tokens is longer than the 40 learned positions"):
            model(SOURCE, tokens([41] * 3, 0))


@pytest.mark.slow
@pytest.mark.parametrize(("style", "task"), [("convs2s", "reverse"), ("bytenet", "copy")])
def test_a_small_model_learns(style: str, task: str) -> None:
    """ByteNet copies at once, for column t is what it writes at t; to reverse, all has to move: that takes longer."""
    torch.manual_seed(0)
    vocabulary, steps = Vocabulary(tuple("0123456789")), 200
    layers = {"convs2s": (3, 2), "bytenet": (5, 5)}[style]
    config = FAMILY.presets[style](len(vocabulary), d_model=64, dropout=0.0)
    model = Convolutional(config.but(encoder_layers=layers[0], decoder_layers=layers[1]))
    pairs = sequence_pairs(task, symbols="0123456789", lengths=range(3, 11), seed=0)
    batches = [list(islice(pairs, 64)) for _ in range(steps)]
    for _report in fit(
        model,
        (collate((vocabulary.encode(source), vocabulary.encode(target)) for source, target in b) for b in batches),
        schedule(ScheduleConfig("linear", peak=4e-3, warmup=50), total=steps),
        smoothing=0.0,
        shards=1,
    ):
        pass
    known = {pair.source for pairs in batches for pair in pairs}
    unseen = (
        p for p in sequence_pairs(task, symbols="0123456789", lengths=range(3, 11), seed=1) if p.source not in known
    )
    test = list(islice(unseen, 300))
    requests = [asking([*vocabulary.encode(pair.source), EOS]) for pair in test]
    found = search(Module(model.eval()), requests, Bare(beam=1))
    right = sum(vocabulary.decode(h.tokens) == list(pair.target) for (h,), pair in zip(found, test, strict=True))
    assert right / len(test) >= 0.97
