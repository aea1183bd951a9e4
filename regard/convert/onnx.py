"""To ONNX, and a runtime that every search of regard can use.

Letters: B sentences, S source length, K hypotheses of each sentence, T tokens so far, V vocabulary, G key/value heads,
d width of a head.

encoder.onnx reads sentences once: source (B, S) -> keep (B, S), and for each layer i of the decoder the keys and values
of the memory, memory_keys.i and memory_values.i (B, G, S, d). decoder.onnx appends a token to each hypothesis: token
(B, K), these, and past_keys.i and past_values.i (B, K, G, T, d), which are empty at first -> logits (B, K, V), and
keys.i and values.i, the past of the next step. B, S, K and T are free.
"""

import copy
import json
import logging
import warnings
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import need
from regard.convert.source import TOKENIZER, Source, refuse
from regard.core.attention import MultiHeadAttention, attend
from regard.core.cache import Cache, KeyValues, LayerCache
from regard.core.generation import EncoderDecoder
from regard.core.layers import ACTIVATIONS, GATES
from regard.decoding.module import Module
from regard.files import write_whole
from regard.models.transformer import Memory, Transformer, TransformerConfig

OPSET = 18
CONFIG, ENCODER, DECODER = "config.json", "encoder.onnx", "decoder.onnx"


def write(source: Source, directory: Path) -> None:
    """Write encoder.onnx, decoder.onnx, config.json and tokenizer.json into an empty directory."""
    c, model = source.config, _own(source.transformer("ONNX"))
    refuse(c, "our ONNX graph", feed_forward=(*ACTIVATIONS, *GATES))  # a convolution has a past of its own
    for package in ("onnx", "onnxscript"):
        need(package, "convert")
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):  # in plain operations, which every runtime has
            module.mix.backend = "math"
    n, G = c.decoder_layers, c.kv_heads or c.heads
    d_k, d_v = c.d_k or c.d_model // c.heads, c.d_v or c.d_model // c.heads
    widths = {"keys": d_k, "values": d_v}
    B, S, K, T = 2, 7, 5, 3  # of an example: none is 0 or 1, and no two are equal, so that all are free
    b, s, k, t = map(torch.export.Dim, "BSKT")
    words: Any = torch.ones(B, S, dtype=torch.int64), {0: b, 1: s}
    newest: Any = {"token": (torch.ones(B, K, dtype=torch.int64), {0: b, 1: k}), "keep": (words[0] > 0, words[1])}
    # The exporter knows inputs by their identity: each is a tensor of its own.
    memory = {
        f"memory_{x}": ([torch.zeros(B, G, S, d) for _ in range(n)], [{0: b, 2: s}] * n) for x, d in widths.items()
    }
    past = {
        f"past_{x}": ([torch.zeros(B, K, G, T, d) for _ in range(n)], [{0: b, 1: k, 3: t}] * n)
        for x, d in widths.items()
    }
    _export(_Encoder(model), {"source": words}, ["keep", *_numbered(n, *memory)], directory / ENCODER)
    _export(_Decoder(model), newest | memory | past, ["logits", *_numbered(n, *widths)], directory / DECODER)
    marks = dict(zip(("pad", "bos", "eos"), source.tokenizer.marks.need("pad", "bos", "eos"), strict=True))
    about = {"format": 1, **marks, "key_value": [G, d_k, d_v], "config": asdict(c)}
    write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
    source.tokenizer.save(directory / TOKENIZER)


def _own(model: Transformer) -> Transformer:
    """A model with the same tensors, whose modules may be changed."""
    return copy.deepcopy(model, {id(x): x for x in (*model.parameters(), *model.buffers())})


class _Encoder(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        states, pairs = self.model.encode(source).states, []
        layer: Any
        for layer in self.model.decoder.layers:
            attention = layer.cross_attention.sublayer
            parts = attention.key_value(states).split(attention.widths[1:], -1)
            pairs.append([x.unflatten(-1, (attention.kv_heads, -1)).transpose(1, 2) for x in parts])
        return source != self.model.config.pad, [k for k, _ in pairs], [v for _, v in pairs]


class _Decoder(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = _own(model)
        layer: Any
        for layer in self.model.decoder.layers:
            layer.cross_attention.sublayer = _Read(layer.cross_attention.sublayer)

    def forward(
        self,
        token: Tensor,
        keep: Tensor,
        memory_keys: list[Tensor],
        memory_values: list[Tensor],
        past_keys: list[Tensor],
        past_values: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        B, K = token.shape
        for x in (keep, *memory_keys, *memory_values):  # the exporter would take equal sizes for different ones
            torch._check(x.shape[0] == B and x.shape[x.dim() // 2] == keep.shape[1])
        for x in (*past_keys, *past_values):
            torch._check(x.shape[0] == B and x.shape[1] == K and x.shape[3] == past_keys[0].shape[3])
        pairs = zip(past_keys, past_values, strict=True)
        own: list[Any] = [_Past(k.flatten(0, 1), v.flatten(0, 1), k.shape[3]) for k, v in pairs]
        read = [KeyValues(k, v, k.shape[2]) for k, v in zip(memory_keys, memory_values, strict=True)]
        cache = Cache(LayerCache(*pair) for pair in zip(own, read, strict=True))
        memory = Memory(keep, keep[:, None, None])  # nobody reads its states: their keys and values are in the cache
        logits = self.model.decode(token.flatten()[:, None], memory, cache)[:, -1]
        keys, values = ([getattr(past, part).unflatten(0, (B, K)) for past in own] for part in ("keys", "values"))
        return logits.unflatten(0, (B, K)), keys, values


class _Read(nn.Module):
    """The attention to a memory whose keys and values are at hand; K rows read one sentence."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, memory: Tensor, *, mask: Tensor, cache: KeyValues) -> Tensor:
        attention, k, v = self.attention, cache.keys, cache.values
        assert k is not None
        assert v is not None
        q = attention.query(x).reshape(k.shape[0], -1, attention.heads, attention.d_k).transpose(1, 2)  # (B, H, K, d_k)
        heads = attend(q, k, v, mask=mask, scale=attention.config.scale, backend="math")
        return attention.output(heads.transpose(1, 2).reshape(x.shape[0], 1, -1))


class _Past(KeyValues):
    """Keys and values that grow by concatenation: a graph has no buffers."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        return self.keys, self.values


def _numbered(count: int, *names: str) -> list[str]:
    return [f"{name}.{i}" for name in names for i in range(count)]


def _export(module: nn.Module, inputs: dict[str, tuple[Any, Any]], outputs: list[str], path: Path) -> None:
    """Write a graph; an input is an example, or a list of them, and which of its dimensions are free."""
    names = [_numbered(len(x), name) if isinstance(x, list) else [name] for name, (x, _) in inputs.items()]
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)  # it misses packages that we have no use for
        try:
            torch.onnx.export(
                module.eval(),
                (),
                str(path),
                kwargs={name: x for name, (x, _) in inputs.items()},
                dynamic_shapes={name: dimensions for name, (_, dimensions) in inputs.items()},
                input_names=[*chain(*names)],
                output_names=outputs,
                opset_version=OPSET,
                external_data=False,
                verbose=False,
                dynamo=True,
            )
        finally:
            log.setLevel(level)


class Onnx(Module):
    """The graphs of a directory, run by onnxruntime: every search of regard works on them.

    >>> from regard.decoding.pool import search                                  # doctest: +SKIP
    >>> search(Onnx("model-onnx"), requests, SearchConfig(beam=4), eos)          # doctest: +SKIP
    """

    def __init__(self, directory: str | Path, *, threads: int = 1) -> None:
        super().__init__(_Graphs(Path(directory), threads))


class _Graphs(EncoderDecoder):
    """An encoder-decoder of two graphs."""

    def __init__(self, directory: Path, threads: int) -> None:
        runtime = need("onnxruntime", "convert")
        for name in (CONFIG, ENCODER, DECODER):
            if not (directory / name).is_file():
                raise ValueError(f"{directory} is not a directory that regard exported to ONNX: it has no {name}")
        about = json.loads((directory / CONFIG).read_text("utf-8"))
        about["config"].pop("kept_heads", None)  # which an older regard has written, empty
        self.config = TransformerConfig(**about["config"])
        self.key_value: tuple[int, int, int] = tuple(about["key_value"])
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.encoder, self.decoder = (
            runtime.InferenceSession(directory / name, options, ["CPUExecutionProvider"]) for name in (ENCODER, DECODER)
        )

    def encode(self, source: Tensor) -> "_Memory":
        names = [output.name for output in self.encoder.get_outputs()]
        return _Memory(zip(names, self.encoder.run(None, {"source": source.numpy()}), strict=True))

    def new_cache(self) -> "_Decoded":
        return _Decoded()

    def decode(self, target: Tensor, memory: "_Memory", cache: Any = None) -> Tensor:
        B, R = len(memory["keep"]), len(target)  # R = B · K
        if not cache:
            G, *widths = self.key_value
            for name, d in zip(("past_keys", "past_values"), widths, strict=True):
                empty = np.zeros((R, G, 0, d), np.float32)
                cache.update(dict.fromkeys(_numbered(self.config.decoder_layers, name), empty))
        past = {name: x.reshape(B, R // B, *x.shape[1:]) for name, x in cache.items()}
        logits, *new = self.decoder.run(None, {"token": target.numpy().reshape(B, -1), **memory, **past})
        cache.update((name, x.reshape(R, *x.shape[2:])) for name, x in zip(cache, new, strict=True))
        return torch.from_numpy(logits.reshape(R, 1, -1))


class _Memory(dict[str, Any]):
    """What the encoder found, by name."""

    def reorder(self, index: Tensor) -> "_Memory":
        return _Memory((name, x[index.numpy()]) for name, x in self.items())


class _Decoded(dict[str, Any]):
    """Keys and values of the past, (R, G, T, d) by name; those of the memory are with the memory."""

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        if rows is not None:
            self.update((name, x[rows.numpy()]) for name, x in self.items())
