"""What a model costs: parameters, FLOPs and bytes, from its config by arithmetic that fits on a page.

Letters: S and T tokens of source and target, N and M layers of encoder and decoder, h heads, g key/value heads,
V vocabulary, and the paper's d_model, d_ff, d_k, d_v.

One rule covers almost everything: a matrix (d_in, d_out) has d_in · d_out weights, and each of them is one
multiplication and one addition, 2 FLOPs, for every token that passes. Only Q Kᵀ and its product with V have no
weights. FLOPs here are those of matrix products; soft-max, norms, activations and dropout are left out, as is
usual. `docs/accounting.md` does the paper's models by hand. The Transformer's account is here, those of its rivals are
in `regard.models.costs`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from regard.core.heads import kept_keys
from regard.core.layers import GATES, KERNEL
from regard.core.positions import BUCKETS, CLIP
from regard.models import costs
from regard.models.convolutional import ConvolutionalConfig
from regard.models.costs import Part
from regard.models.family import build
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

Config = TransformerConfig | RecurrentConfig | ConvolutionalConfig
BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a number


def breakdown(config: Config, sentences: int = 1, source: int = 25, target: int = 25) -> list[Part]:
    """Parameters of each part, tied matrices counted once, and its FLOPs for a batch of sentences of these lengths.

    Causal attention counts whole: the triangle above the diagonal is computed, then hidden.

    >>> for part in breakdown(TransformerConfig.base(37_000))[:3]:
    ...     print(f"{part.name:22} {part.parameters:>12,} {part.flops:>14,}")
    embeddings               18,944,000              0
    positions                         0              0
    encoder self-attention    6,303,744    322,252,800
    """
    if isinstance(config, ConvolutionalConfig):
        return costs.convolutional(config, sentences, source, target)
    if isinstance(config, RecurrentConfig):
        return costs.recurrent(config, sentences, source, target)
    return _transformer(config, sentences, source, target)


def _transformer(c: TransformerConfig, sentences: int, source: int, target: int) -> list[Part]:
    N, M, S, T = c.encoder_layers, c.decoder_layers, sentences * source, sentences * target

    # §3.4: a vector for each word. Looking one up is no product; the output layer is one, with V · d_model weights.
    source_words = 0 if c.tie == "all" else (c.source_vocabulary or c.vocabulary) * c.d_model
    words = c.vocabulary * c.d_model

    # §3.2.2: every attention that has a head; one without is a bias.
    def attention(names: str, queries: int, keys: int) -> tuple[int, int]:
        own, numbers, flops = names.startswith("decoder") and "self" in names, 0, 0
        shape = c.cross_attention if "cross" in names else c.decoder_attention if own else c.attention
        for name, kept in c.kept.items():
            if fnmatchcase(name, names):
                one = c.bias * c.d_model, 0
                if kept:
                    one = costs.attention(shape.keep(kept), c.d_model, sentences, queries, keys, is_causal=own)
                numbers, flops = numbers + one[0], flops + one[1]
        return numbers, flops

    # §3.3: d_model -> d_ff -> d_model. A gate doubles the first product; a convolution adds a kernel for each channel.
    inner = 2 if c.feed_forward in GATES else 1
    kernels = c.feed_forward == "convolution"
    W = (inner + 1) * c.d_model * c.d_ff + kernels * KERNEL * c.d_ff
    feed_forward = W + c.bias * ((inner + kernels) * c.d_ff + c.d_model)
    norm = c.d_model * (2 if c.norm_kind == "layer" else 1)  # gain and bias; gain
    last = c.norm == "pre"  # a pre-norm stack ends with a norm
    return [
        Part("embeddings", source_words + words + 2 * c.embedding_norm * norm),
        Part("positions", *_positions(c, S, T)),
        Part("encoder self-attention", *attention("encoder.*.self_attention", source, source)),
        Part("encoder feed-forward", N * feed_forward, N * 2 * S * W),
        Part("encoder norms", (2 * N + last) * norm),
        Part("decoder self-attention", *attention("decoder.*.self_attention", target, target)),
        Part("decoder cross-attention", *attention("decoder.*.cross_attention", target, source)),
        Part("decoder feed-forward", M * feed_forward, M * 2 * T * W),
        Part("decoder norms", (3 * M + last) * norm),
        Part("output", (words if c.tie == "none" else 0) + c.output_bias * c.vocabulary, 2 * T * words),
    ]


def _shapes(c: TransformerConfig, names: str) -> list[tuple[int, int, int, int]]:
    """h, g, d_k and d_v of the attentions whose names match a pattern; without a head, h and g are 0."""
    width, shapes = c.d_model // c.heads, []
    for name, kept in c.kept.items():
        if fnmatchcase(name, names):
            g = len(kept_keys(c.heads, c.kv_heads or c.heads, kept))
            shapes.append((len(kept), g, c.d_k or width, c.d_v or width))
    return shapes


def _positions(c: TransformerConfig, S: int, T: int) -> tuple[int, int]:
    """Parameters and FLOPs of the positions."""
    if c.positions == "learned":  # a table at each embedding
        return 2 * c.max_length * c.d_model, 0
    encoder, decoder = _shapes(c, "encoder.*"), _shapes(c, "decoder.*.self_attention")
    if c.positions == "shaw":  # a table in each self-attention, a product with every query
        N, M = (sum(h * (2 * CLIP + 1) * d_k for h, _, d_k, _ in shapes) for shapes in (encoder, decoder))
        return N + M, 2 * (N * S + M * T)
    if c.positions == "t5":  # one table for all layers of a stack that have a head
        return sum(any(h for h, *_ in shapes) * BUCKETS * c.heads for shapes in (encoder, decoder)), 0
    return 0, 0


def parameters(config: Config) -> int:
    """How many numbers the model learns.

    >>> parameters(TransformerConfig.base(37_000))
    63082496
    """
    return sum(part.parameters for part in breakdown(config))


def forward_flops(config: Config, sentences: int = 1, source: int = 25, target: int = 25) -> int:
    """FLOPs of a forward pass.

    >>> forward_flops(TransformerConfig.base(37_000))
    3172249600
    """
    return sum(part.flops for part in breakdown(config, sentences, source, target))


def training_flops(config: Config, sentences: int = 1, source: int = 25, target: int = 25) -> int:
    """FLOPs of a forward and a backward pass: for each product the backward pass makes two, one for each factor."""
    return 3 * forward_flops(config, sentences, source, target)


@dataclass(frozen=True)
class Footprint:
    """Bytes. Weights by number format; all else in fp32 (half as much in bf16)."""

    weights: dict[str, int]  # int8 without its scales: a few numbers for each matrix row
    training_state: int  # weight, gradient and Adam's two moments: 4 numbers, 16 bytes a parameter
    activations: int  # kept for the backward pass of one batch
    cache_per_target_token: int  # keys and values of full self-attention, all layers
    cache_per_source_token: int  # keys and values of cross-attention, all layers
    cache_per_sentence: int  # the last inputs of convolutions, states, the past of an efficient attention: at most


def footprint(config: Config, sentences: int = 1, source: int = 25, target: int = 25) -> Footprint:
    """Memory of the model, of training it on a batch of this shape, and of decoding with it.

    >>> footprint(TransformerConfig.tiny(10_000)).cache_per_target_token  # 4 layers · 4 heads · (32 + 32) · 4 bytes
    4096
    """
    n, fp32 = parameters(config), BYTES["fp32"]
    own, read, window = _cache(config)
    return Footprint(
        weights={kind: n * size for kind, size in BYTES.items()},
        training_state=4 * fp32 * n,
        activations=activations(config, sentences, source, target),
        cache_per_target_token=own * fp32,
        cache_per_source_token=read * fp32,
        cache_per_sentence=window * fp32,
    )


def _cache(c: Config) -> tuple[int, int, int]:
    """Numbers that a decoder keeps for each target token, each source token and each sentence."""
    if isinstance(c, ConvolutionalConfig):
        return costs.convolutional_cache(c)
    if isinstance(c, RecurrentConfig):
        return costs.recurrent_cache(c)
    own, read, state = 0, 0, c.decoder_layers * (KERNEL - 1) * c.d_ff if c.feed_forward == "convolution" else 0
    for name, kept in c.kept.items():
        if kept and fnmatchcase(name, "decoder.*.self_attention"):
            token, sentence = costs.attention_cache(c.decoder_attention.keep(kept))
            own, state = own + token, state + sentence
        elif kept and fnmatchcase(name, "decoder.*.cross_attention"):
            read += costs.attention_cache(c.cross_attention.keep(kept))[0]
    return own, read, state


def activations(config: Config, sentences: int = 1, source: int = 25, target: int = 25) -> int:
    """Bytes that autograd keeps between forward and backward pass in fp32 on a CPU, dropout as configured; measured.

    The loss is left out. Each layer of a Transformer keeps the same, so three shallow models tell what one of any depth
    keeps; but if some have lost heads, and in other families, nobody but the whole model tells.
    """
    fewest = config.but(vocabulary=config.pad + 2, source_vocabulary=None)  # a word, and the padding
    if not isinstance(config, TransformerConfig) or config.kept_heads:
        return _kept(fewest, sentences, source, target)

    def kept(encoder_layers: int, decoder_layers: int) -> int:
        shallow = fewest.but(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
        return _kept(shallow, sentences, source, target)

    one = kept(1, 1)
    deeper_encoder, deeper_decoder = kept(2, 1) - one, kept(1, 2) - one
    return one + (config.encoder_layers - 1) * deeper_encoder + (config.decoder_layers - 1) * deeper_decoder


def _kept(config: Config, sentences: int, source: int, target: int) -> int:
    with torch.device("meta"):
        model = build(config)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()  # sizes do not depend on the weights, but some normalisers do not work without numbers
    tokens = [torch.full((sentences, length), int(config.pad == 0)) for length in (source, target)]  # none is padding
    with torch.random.fork_rng(devices=[]):
        return kept_bytes(lambda: model.features(*tokens), model.parameters())  # type: ignore[operator]


def kept_bytes(run: Callable[[], object], known: Iterable[Tensor]) -> int:
    """What autograd keeps of one run for its backward pass, besides what is known to be there anyway.

    >>> x, w = torch.ones(5, 4), torch.ones(4, 3, requires_grad=True)
    >>> kept_bytes(lambda: (x @ w).exp(), [w])  # x, and the 15 numbers of the result, of 4 bytes each
    140
    """
    found: dict[int, Tensor] = {}  # by storage: several views of one tensor are kept once

    def pack(x: Tensor) -> Tensor:
        found[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    for tensor in known:
        found.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(x.untyped_storage().nbytes() for x in found.values())


PAPER_VOCABULARY = 37_000  # §5.1


@dataclass(frozen=True)
class PaperRun:
    """A training run of the paper (§5.2), and the cost that Table 2 states for it."""

    config: TransformerConfig
    steps: int
    hours: float
    stated: float  # Table 2

    def model_flops(self, length: int = 25) -> int:
        """FLOPs of the model in all steps, of 25,000 source and target tokens each (§5.1), in sentences this long."""
        return self.steps * training_flops(self.config, 25_000 // length, length, length)

    @property
    def gpu_flops(self) -> float:
        """What 8 GPUs do in that time at 9.5e12 FLOP/s each (note to §6.1): the origin of the stated cost."""
        return self.hours * 3600 * 8 * 9.5e12

    def utilisation(self, length: int = 25) -> float:
        """The share of that which went into the model.

        >>> f"{PAPER_RUNS['base'].utilisation():.0%} {PAPER_RUNS['big'].utilisation():.0%}"
        '29% 42%'
        """
        return self.model_flops(length) / self.gpu_flops


PAPER_RUNS = {
    "base": PaperRun(TransformerConfig.base(PAPER_VOCABULARY), steps=100_000, hours=12, stated=3.3e18),
    "big": PaperRun(TransformerConfig.big(PAPER_VOCABULARY), steps=300_000, hours=3.5 * 24, stated=2.3e19),
}
