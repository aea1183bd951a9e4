"""To CTranslate2: a directory that `ctranslate2.Translator` opens.

It reads pieces, such as `tokenizers.Tokenizer.from_file("tokenizer.json").encode(text).tokens` gives them, without any
special: the end of the source and the start of the target are in its config.json.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checks import need
from regard.convert.foreign import to_theirs
from regard.convert.source import PAPERS, TOKENIZER, Source, refuse, same_heads
from regard.convert.tables.table import pairs
from regard.core.layers import GATES
from regard.core.positions import Learned
from regard.core.stems import Embedding
from regard.models.transformer import Transformer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "glu": "Sigmoid", "swiglu": "SWISH"}
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
TENSORS = """
@.layers.#.self_attention.sublayer.query_key_value.*   @.layer.#.self_attention.linear.0.*
@.layers.#.self_attention.sublayer.output.*            @.layer.#.self_attention.linear.1.*
@.layers.#.self_attention.norm.*                       @.layer.#.self_attention.layer_norm.*
decoder.layers.#.cross_attention.sublayer.query.*      decoder.layer.#.attention.linear.0.*
decoder.layers.#.cross_attention.sublayer.key_value.*  decoder.layer.#.attention.linear.1.*
decoder.layers.#.cross_attention.sublayer.output.*     decoder.layer.#.attention.linear.2.*
decoder.layers.#.cross_attention.norm.*                decoder.layer.#.attention.layer_norm.*
@.layers.#.feed_forward.sublayer.inner.*               @.layer.#.ffn.linear_0.*
@.layers.#.feed_forward.sublayer.outer.*               @.layer.#.ffn.linear_1.*
@.layers.#.feed_forward.norm.*                         @.layer.#.ffn.layer_norm.*
@.norm.*                                               @.layer_norm.*
source_embedding.tokens.weight                         encoder.embeddings.0.weight
target_embedding.tokens.weight                         decoder.embeddings.weight
source_embedding.norm.*                                encoder.layernorm_embedding.*
target_embedding.norm.*                                decoder.layernorm_embedding.*
output.*                                               decoder.projection.*
"""
GATED = TENSORS.replace("linear_0.*", "{linear_0,linear_0_noact}.*")
POSITIONS = 2048  # of a table in place of a formula: CTranslate2 has another formula


def write(source: Source, directory: Path, quantization: str | None = None) -> None:
    """Write model.bin, config.json, the vocabulary and tokenizer.json into an empty directory."""
    c, model = source.config, source.model
    source.is_one("CTranslate2", Transformer)
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"unknown quantization {quantization!r}: choose one of {', '.join(QUANTIZATIONS)}")
    positions: tuple[object, ...] = ("sinusoidal", "learned", "none")
    plain = {"norm_kind": ("layer", "rms"), "qk_norm": (False,), "scale_output": (False,)}
    refuse(c, "CTranslate2", **PAPERS, positions=positions, feed_forward=tuple(ACTIVATIONS), **plain, **same_heads(c))
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
    tensors = source.tensors
    for pair in pairs(GATED if c.feed_forward in GATES else TENSORS, tensors):
        its = to_theirs(pair, tensors[pair.ours], c) if pair.ours in tensors else []
        for name, x in zip(pair.theirs[0], its, strict=False):
            part, (*path, last) = spec, name.split(".")
            for step in path:
                part = part[int(step)] if step.isdigit() else getattr(part, step)
            setattr(part, {"weight": "gamma", "bias": "beta"}[last] if "norm" in path[-1] else last, _numbers(x))
    for stack, embedding in ((spec.encoder, model.source_embedding), (spec.decoder, model.target_embedding)):
        stack.scale_embeddings = embedding.scale
        stack.position_encodings.encodings = _numbers(_table(embedding))
        for layer in stack.layer if c.scale is not None else ():
            for name in {"self_attention", "attention"} & vars(layer).keys():
                getattr(layer, name).queries_scale = np.float32(c.scale)
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


def _table(embedding: Embedding) -> Tensor:
    """Learned positions, or as many as we write down of those that have no end."""
    if isinstance(embedding.positions, Learned):
        return embedding.positions.table
    nothing = torch.zeros(1, POSITIONS, embedding.tokens.embedding_dim)
    return embedding.positions.add(nothing)[0]


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()
