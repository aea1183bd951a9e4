"""To CTranslate2: a directory that `ctranslate2.Translator` opens.

It reads pieces, such as `tokenizers.Tokenizer.from_file("tokenizer.json").encode(text).tokens` gives them, without any
special: the end of the source and the start of the target are in its config.json.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import need
from regard.convert.source import TOKENIZER, Source, refuse, same_heads
from regard.core.blocks import Stack
from regard.core.layers import GATES, Residual
from regard.core.positions import Learned
from regard.core.stems import Embedding

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "glu": "Sigmoid", "swiglu": "SWISH"}
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
POSITIONS = 2048  # of a table in place of a formula: CTranslate2 has another formula


def write(source: Source, directory: Path, quantization: str | None = None) -> None:
    """Write model.bin, config.json, the vocabulary and tokenizer.json into an empty directory."""
    c, model = source.config, source.transformer("CTranslate2")
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"unknown quantization {quantization!r}: choose one of {', '.join(QUANTIZATIONS)}")
    positions: tuple[object, ...] = ("sinusoidal", "learned", "none")
    refuse(c, "CTranslate2", positions=positions, feed_forward=tuple(ACTIVATIONS), **same_heads(c))
    specs = need("ctranslate2.specs", "convert")
    spec = specs.TransformerSpec.from_config(
        (c.encoder_layers, c.decoder_layers),
        c.heads,
        pre_norm=c.norm == "pre",
        activation=specs.Activation[ACTIVATIONS[c.feed_forward]],
        layernorm_embedding=c.embedding_norm,
        ffn_glu=c.feed_forward in GATES,
        rms_norm=c.norm_kind == "rms",
    )
    _stack(spec.encoder, spec.encoder.embeddings[0], model.source_embedding, model.encoder)
    _stack(spec.decoder, spec.decoder.embeddings, model.target_embedding, model.decoder)
    _linear(spec.decoder.projection, model.output)
    bos, eos = source.tokenizer.marks.need("bos", "eos")
    spec.config.bos_token, spec.config.eos_token = source.pieces[bos], source.pieces[eos]
    spec.config.decoder_start_token = source.pieces[bos]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = c.norm_eps
    spec.register_source_vocabulary(source.pieces)
    spec.register_target_vocabulary(source.pieces)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(directory))
    source.tokenizer.save(directory / TOKENIZER)


def _stack(spec: Any, words: Any, embedding: Embedding, stack: Stack) -> None:
    words.weight = _numbers(embedding.tokens.weight)
    spec.scale_embeddings = embedding.scale
    spec.position_encodings.encodings = _numbers(_table(embedding))
    if embedding.norm is not None:
        _norm(spec.layernorm_embedding, embedding.norm)
    layer: Any
    for part, layer in zip(spec.layer, stack.layers, strict=True):
        _attention(part.self_attention, layer.self_attention)
        if hasattr(layer, "cross_attention"):
            _attention(part.attention, layer.cross_attention)
        _feed_forward(part.ffn, layer.feed_forward)
    if stack.norm is not None:
        _norm(spec.layer_norm, stack.norm)


def _table(embedding: Embedding) -> Tensor:
    """Learned positions, or as many as we write down of those that have no end."""
    if isinstance(embedding.positions, Learned):
        return embedding.positions.table
    nothing = torch.zeros(1, POSITIONS, embedding.tokens.embedding_dim)
    return embedding.positions.add(nothing)[0]


def _attention(spec: Any, residual: Residual) -> None:
    attention: Any = residual.sublayer
    products = [attention.query, attention.key_value] if attention.cross else [attention.query_key_value]
    for part, product in zip(spec.linear, [*products, attention.output], strict=True):
        _linear(part, product)
    if attention.config.scale is not None:
        spec.queries_scale = np.float32(attention.config.scale)
    _norm(spec.layer_norm, residual.norm)


def _feed_forward(spec: Any, residual: Residual) -> None:
    network: Any = residual.sublayer
    if hasattr(network, "gate"):
        gate, value = network.inner.weight.chunk(2)
        spec.linear_0.weight, spec.linear_0_noact.weight = _numbers(gate), _numbers(value)
        if network.inner.bias is not None:
            gate, value = network.inner.bias.chunk(2)
            spec.linear_0.bias, spec.linear_0_noact.bias = _numbers(gate), _numbers(value)
    else:
        _linear(spec.linear_0, network.inner)
    _linear(spec.linear_1, network.outer)
    _norm(spec.layer_norm, residual.norm)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _numbers(linear.weight)
    if linear.bias is not None:
        spec.bias = _numbers(linear.bias)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _numbers(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _numbers(norm.bias)


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()
