"""What a model costs: parameters, FLOPs and bytes, counted on the model itself, built without memory (PyTorch's meta).

One rule covers almost everything: a matrix (d_in, d_out) has d_in · d_out weights, and each of them is one
multiplication and one addition, 2 FLOPs, for every token that passes. Only Q Kᵀ and its product with V have no
weights. FLOPs here are those of matrix products; soft-max, norms, activations, scans and dropout are left out, as is
usual. What is computed counts, even if it is hidden afterwards: the triangle above the diagonal of causal attention,
whole blocks of a sparse one. `docs/accounting.md` does the paper's models by hand. A config may be one that is to be
built, or the model itself without memory, such as one that has lost heads (`storage.shape`).
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues, Recent
from regard.core.generation import Begun
from regard.core.scores import Additive
from regard.models.family import blank
from regard.models.transformer import TransformerConfig

BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a number
STACKS = ("encoder", "decoder")
PLAIN = {  # what a part is called, if not by the name of its module
    "run": "cells",
    "onward": "cells",
    "back": "cells",
    "convolution": "convolutions",
    "block": "convolutions",
    "column": "columns",
}


@dataclass(frozen=True)
class Cost:
    """One row of the account."""

    name: str
    parameters: int
    flops: int = 0  # of a forward pass


def part_of(path: str) -> str:
    """The part of a model that a module or parameter belongs to.

    >>> part_of("encoder.layers.0.self_attention.sublayer.query_key_value.weight"), part_of("decoder.norm.bias")
    ('encoder self-attention', 'decoder norms')
    """
    steps = [step for step in path.split(".") if step != "layers" and not step.isdigit()]
    if "positions" in steps:
        return "positions"
    if steps and (steps[0].endswith("embedding") or steps[0] == "stem"):
        return "embeddings"
    stack = [steps.pop(0)] if steps and steps[0] in STACKS else []
    if any(step == "norm" or step.endswith("_norm") for step in steps):
        return " ".join([*stack, "norms"])
    return " ".join([*stack, *(PLAIN.get(step, step.replace("_", "-")) for step in steps[:1])])


class Products(TorchDispatchMode):
    """Counts the FLOPs of matrix products while it is entered, under the name that is on top of `at`."""

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.at = Counter[str](), [""]

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.flops[self.at[-1]] += count(*args, **(kwargs or {}), out_val=out)
        return out


def flops_of(module: nn.Module, *given: Tensor, **how: Any) -> Counter[str]:
    """FLOPs of each part of a module in a forward pass.

    >>> flops_of(nn.Linear(4, 3), torch.ones(5, 4)).total()  # 2 · 5 · 4 · 3
    120
    """

    def leave(inner: nn.Module, read: tuple[Any, ...], _: object) -> None:
        if isinstance(inner, Additive):  # v · tanh(q + k) of each pair, which is not called a product
            q, k = read[:2]
            products.flops[products.at[-1]] += 2 * q.shape[2] * k.numel()
        products.at.pop()

    with torch.no_grad(), ExitStack() as hooks, Products() as products:
        for path, inner in module.named_modules():
            if (name := part_of(path)) in STACKS:  # a layer without a name of its own
                name = part_of(f"{path}.{next(iter(dict(inner.named_parameters())), '')}")
            hooks.enter_context(inner.register_forward_pre_hook(lambda *_, name=name: products.at.append(name)))
            hooks.enter_context(inner.register_forward_hook(leave))
        module(*given, **how)
    return products.flops


def breakdown(config: Any, sentences: int = 1, source: int = 25, target: int = 25) -> list[Cost]:
    """Parameters of each part, tied matrices counted once, and its FLOPs for a batch of sentences of these lengths.

    >>> for part in breakdown(TransformerConfig.base(37_000))[:3]:
    ...     print(f"{part.name:22} {part.parameters:>12,} {part.flops:>14,}")
    embeddings               18,944,000              0
    encoder self-attention    6,303,744    322,252,800
    encoder norms                12,288              0
    """
    return [Cost(part.name, part.parameters, sentences * part.flops) for part in _parts(config, source, target)]


@cache
def _parts(config: Any, source: int, target: int) -> list[Cost]:
    model = _still(config, ("math", "chunked"))
    numbers = Counter[str]()
    for path, parameter in model.named_parameters():
        numbers[part_of(path)] += parameter.numel()
    flops = flops_of(model, *_tokens(model, 1, source, target, device="meta"))
    return [Cost(name, numbers[name], flops[name]) for name in numbers | flops]


def _still(config: Any, others: Iterable[str]) -> nn.Module:
    """The model without memory, and of these backends none: it would look into tensors, or do what it need not."""
    model = config.eval() if isinstance(config, nn.Module) else blank(config).eval()
    for attention in model.modules():
        if isinstance(attention, MultiHeadAttention) and attention.mix.backend in others:
            attention.mix.backend = "auto"
    return model


def _tokens(model: nn.Module, sentences: int, source: int, target: int, device: str) -> list[Tensor]:
    """What a model is called with: a source and a target, or one text as long as the target; without padding. A
    picture, or a video, has its own size."""
    c: Any = model.config
    token = int(getattr(c, "pad", 0) == 0)
    asked = [p.name for p in inspect.signature(model.forward).parameters.values() if p.default is p.empty]
    frames = [c.frames] if hasattr(c, "frames") else []
    given = [
        torch.zeros(sentences, *frames, c.channels, getattr(c, "height", None) or c.size, c.size, device=device)
        if name == "pixels" or (name == "source" and getattr(model, "reads", "tokens") == "pixels")
        else torch.full((sentences, source if name == "source" else target), token, device=device)
        for name in asked
    ]
    if getattr(model, "reads", "tokens") == "graph":  # as many nodes, all next to each other
        all_pairs = torch.ones(sentences, target, target, dtype=torch.int64, device=device)
        keep, paths = all_pairs[:, 0].bool(), all_pairs[..., None].expand(-1, -1, -1, c.reach)
        given = [given[0][..., None], all_pairs, keep, paths, torch.zeros(sentences, target, c.numbers, device=device)]
    if (bands := getattr(c, "bands", None)) is not None:  # of sound, two frames are a position
        given[0] = torch.zeros(sentences, c.frames if asked == ["frames"] else 2 * source, bands, device=device)
    return given


def parameters(config: Any) -> int:
    """How many numbers the model learns.

    >>> parameters(TransformerConfig.base(37_000))
    63082496
    """
    return sum(p.numel() for p in _still(config, ()).parameters())


def forward_flops(config: Any, sentences: int = 1, source: int = 25, target: int = 25) -> int:
    """FLOPs of a forward pass.

    >>> forward_flops(TransformerConfig.base(37_000))
    3172249600
    """
    return sum(part.flops for part in breakdown(config, sentences, source, target))


def training_flops(config: Any, sentences: int = 1, source: int = 25, target: int = 25) -> int:
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


def footprint(config: Any, sentences: int = 1, source: int = 25, target: int = 25) -> Footprint:
    """Memory of the model, of training it on a batch of this shape, and of decoding with it.

    >>> footprint(TransformerConfig.tiny(10_000)).cache_per_target_token  # 4 layers · 4 heads · (32 + 32) · 4 bytes
    4096
    """
    n, fp32 = parameters(config), BYTES["fp32"]
    kept = _cache(config)
    return Footprint(
        weights={kind: n * size for kind, size in BYTES.items()},
        training_state=4 * fp32 * n,
        activations=activations(config, sentences, source, target),
        cache_per_target_token=kept["target"] * fp32,
        cache_per_source_token=kept["source"] * fp32,
        cache_per_sentence=kept["sentence"] * fp32,
    )


def _cache(config: Any) -> Counter[str]:
    """Numbers that a decoder keeps for each target token, each source token and each sentence."""
    model, kept = _still(config, ["chunked"]), Counter[str]()
    source, target = 2, 1  # tokens: by their number one knows what is kept for each of them

    def look(at: Any) -> None:
        if isinstance(at, KeyValues | Recent):
            each = sum(x.shape[1] * x.shape[3] for x in (at.keys, at.values) if x is not None)
            if isinstance(at, Recent):
                kept["sentence"] += each * (at.first + at.last)
            else:
                kept["target" if at.length == target else "source"] += each
        elif isinstance(at, Tensor):
            kept["sentence"] += at.numel()
        elif is_dataclass(at):
            look([getattr(at, field.name) for field in fields(at)])
        elif isinstance(at, list | tuple):
            for each in at:
                look(each)

    if hasattr(model, "new_cache"):
        *read, said = _tokens(model, 1, source, target, device="meta")
        with torch.no_grad():
            sources: list[Any] = [[1] * source] if read else [[]]
            if read and read[0].is_floating_point():  # a picture, or sound, which is heard before a search begins
                sources = [*read[0]] if read[0].dim() == 4 else [Begun(model.encode(read[0]))]  # type: ignore[operator]
            state = model.start(sources, said.device)  # type: ignore[operator]
            model.step(said[:, 0], state)  # type: ignore[operator]
        look(getattr(state, "cache", state))
    return kept


def activations(config: Any, sentences: int = 1, source: int = 25, target: int = 25) -> int:
    """Bytes that autograd keeps between forward and backward pass in fp32 on a CPU, dropout as configured; measured.

    The loss is left out. Each layer of a Transformer keeps the same, so three shallow models tell what one of any depth
    keeps; of one that has been changed, and in other families, nobody but the whole model tells.
    """
    if isinstance(config, nn.Module):
        return _kept(config, sentences, source, target)
    few = {"vocabulary": getattr(config, "pad", 0) + 2, "source_vocabulary": None}  # a word, and the padding
    fewest = config.but(**{name: value for name, value in few.items() if hasattr(config, name)})
    if not isinstance(config, TransformerConfig):
        return _kept(fewest, sentences, source, target)

    def kept(encoder_layers: int, decoder_layers: int) -> int:
        shallow = fewest.but(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
        return _kept(shallow, sentences, source, target)

    one = kept(1, 1)
    deeper_encoder, deeper_decoder = kept(2, 1) - one, kept(1, 2) - one
    return one + (config.encoder_layers - 1) * deeper_encoder + (config.decoder_layers - 1) * deeper_decoder


def _kept(config: Any, sentences: int, source: int, target: int) -> int:
    model = copy.deepcopy(_still(config, ())).train().to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()  # sizes do not depend on the weights, but some normalisers do not work without numbers
    tokens = _tokens(model, sentences, source, target, device="cpu")
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
