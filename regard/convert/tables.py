"""Classes of Hugging Face's as members of our families: plain data, which `foreign.py` reads in both directions.

A line of `tensors` is a name of ours, theirs, and words. # is the number of a layer, * weight and bias, {a,b} several
of theirs for one of ours, | another name where theirs may be found: tied tensors are written once, under the first name
that all of them have. Words:

stacked         several of theirs, one below the other, are one of ours
transposed      inputs before outputs
offset:N        N rows come before the first of ours
row             a vector is a matrix of one row
optional        it may be missing, and is then 0
spare           it must be there, though nothing reads it
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Setting = str | tuple[str, list[tuple[Any, Any]]]  # names of theirs, which agree; and which value of theirs is which


@dataclass(frozen=True)
class Foreign:
    """A class of theirs."""

    name: str  # its model_type
    family: str  # of ours
    heads: Mapping[str, str]  # what stands on the features -> their class
    marks: Mapping[str, str]  # ours -> theirs; with ?, there may be none
    settings: Mapping[str, Setting]  # ours -> theirs
    fixed: dict[str, Any]  # of our settings, what theirs always are
    tensors: str
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of theirs, where their file has none
    constant: Mapping[str, Any] = field(default_factory=dict)  # of their settings, what ours always are
    permuted: str = ""  # sinusoid: in their residual stream sines come first, then cosines; ours alternate
    ends: bool = True  # an end stands after every text


ACTIVATIONS = [("relu", "relu"), ("gelu", "gelu"), ("silu", "silu"), ("swish", "silu")]

# Encoder-decoders: Marian and its kin differ in where they normalise, and in how they know positions.
MARKS = {"pad": "pad_token_id", "bos": "decoder_start_token_id", "eos": "eos_token_id"}
TIED: list[tuple[Any, Any]] = [(True, "all"), (False, "none"), (False, "target")]
BOTH = "tie_word_embeddings share_encoder_decoder_embeddings"
APART: list[tuple[Any, Any]] = [
    ((True, True), "all"),
    ((True, False), "target"),
    ((False, False), "none"),
    ((False, True), "none"),
]
SETTINGS: dict[str, Setting] = {
    "vocabulary": "vocab_size",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "d_model": "d_model",
    "d_ff": "encoder_ffn_dim decoder_ffn_dim",
    "heads": "encoder_attention_heads decoder_attention_heads",
    "max_length": "max_position_embeddings",
    "feed_forward": ("activation_function", ACTIVATIONS),
    "scale_embedding": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "feed_forward_dropout": "activation_dropout",
    "tie": ("tie_word_embeddings", TIED),
}
DEFAULTS = {
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "tie_word_embeddings": True,
}
FIXED = {"norm_kind": "layer", "norm_eps": 1e-5, "scale": None}
LAYERS = """
encoder.layers.#.self_attention.sublayer.query_key_value.*  model.encoder.layers.#.self_attn.{q,k,v}_proj.*    stacked
encoder.layers.#.self_attention.sublayer.output.*           model.encoder.layers.#.self_attn.out_proj.*
encoder.layers.#.self_attention.norm.*                      model.encoder.layers.#.self_attn_layer_norm.*
encoder.layers.#.feed_forward.sublayer.inner.*              model.encoder.layers.#.fc1.*
encoder.layers.#.feed_forward.sublayer.outer.*              model.encoder.layers.#.fc2.*
encoder.layers.#.feed_forward.norm.*                        model.encoder.layers.#.final_layer_norm.*
decoder.layers.#.self_attention.sublayer.query_key_value.*  model.decoder.layers.#.self_attn.{q,k,v}_proj.*    stacked
decoder.layers.#.self_attention.sublayer.output.*           model.decoder.layers.#.self_attn.out_proj.*
decoder.layers.#.self_attention.norm.*                      model.decoder.layers.#.self_attn_layer_norm.*
decoder.layers.#.cross_attention.sublayer.query.*           model.decoder.layers.#.encoder_attn.q_proj.*
decoder.layers.#.cross_attention.sublayer.key_value.*       model.decoder.layers.#.encoder_attn.{k,v}_proj.*   stacked
decoder.layers.#.cross_attention.sublayer.output.*          model.decoder.layers.#.encoder_attn.out_proj.*
decoder.layers.#.cross_attention.norm.*                     model.decoder.layers.#.encoder_attn_layer_norm.*
decoder.layers.#.feed_forward.sublayer.inner.*              model.decoder.layers.#.fc1.*
decoder.layers.#.feed_forward.sublayer.outer.*              model.decoder.layers.#.fc2.*
decoder.layers.#.feed_forward.norm.*                        model.decoder.layers.#.final_layer_norm.*
source_embedding.tokens.weight    model.encoder.embed_tokens.weight|model.shared.weight
target_embedding.tokens.weight    model.decoder.embed_tokens.weight|model.shared.weight
output.weight                     lm_head.weight|model.decoder.embed_tokens.weight|model.shared.weight
output.bias                       final_logits_bias                                                      row optional
"""
SHARED = """
source_embedding.tokens.weight    model.shared.weight                                                          spare
"""
PRE = """
encoder.norm.*                    model.encoder.layer_norm.*
decoder.norm.*                    model.decoder.layer_norm.*
"""
LEARNED = """
source_embedding.norm.*           model.encoder.layernorm_embedding.*
target_embedding.norm.*           model.decoder.layernorm_embedding.*
source_embedding.positions.table  model.encoder.embed_positions.weight                                         offset:2
target_embedding.positions.table  model.decoder.embed_positions.weight                                         offset:2
"""


MARIAN = Foreign(
    "marian",
    "transformer",
    {"tokens": "MarianMTModel"},
    MARKS,
    SETTINGS | {"vocabulary": "vocab_size decoder_vocab_size", "tie": (BOTH, APART)},
    fixed=FIXED | {"norm": "post", "positions": "sinusoidal", "embedding_norm": False},
    tensors=LAYERS,
    defaults=DEFAULTS | {"decoder_vocab_size": ("vocab_size", 1), "share_encoder_decoder_embeddings": True},
    constant={"is_encoder_decoder": True},
    permuted="sinusoid",
)
PEGASUS = replace(
    MARIAN,
    name="pegasus",
    heads={"tokens": "PegasusForConditionalGeneration"},
    settings=SETTINGS,
    fixed=MARIAN.fixed | {"norm": "pre"},
    tensors=LAYERS + PRE + SHARED,
)
BART = replace(
    PEGASUS,
    name="bart",
    heads={"tokens": "BartForConditionalGeneration"},
    fixed=FIXED | {"norm": "post", "positions": "learned", "embedding_norm": True},
    tensors=LAYERS + LEARNED + SHARED,
    permuted="",
)
MBART = replace(
    BART,
    name="mbart",
    heads={"tokens": "MBartForConditionalGeneration"},
    fixed=BART.fixed | {"norm": "pre"},
    tensors=LAYERS + PRE + LEARNED + SHARED,
)

# Language models.
GPT2 = Foreign(
    "gpt2",
    "decoder",
    {"tokens": "GPT2LMHeadModel"},
    marks={"pad": "pad_token_id?", "bos": "bos_token_id", "eos": "eos_token_id"},
    settings={
        "vocabulary": "vocab_size",
        "layers": "n_layer",
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "heads": "n_head",
        "max_length": "n_positions",
        "feed_forward": ("activation_function", [("gelu_new", "gelu_tanh"), *ACTIVATIONS]),
        "norm_eps": "layer_norm_epsilon",
        "dropout": "resid_pdrop embd_pdrop",
        "attention_dropout": "attn_pdrop",
        "tie": ("tie_word_embeddings", [(True, "all"), (False, "none"), (True, "target")]),
    },
    defaults={"n_inner": ("n_embd", 4), "tie_word_embeddings": True},
    fixed={"positions": "learned", "norm_kind": "layer", "bias": True},
    constant={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    tensors="""
stem.tokens.weight                                          transformer.wte.weight
stem.positions.table                                        transformer.wpe.weight
decoder.layers.#.self_attention.norm.*                      transformer.h.#.ln_1.*
decoder.layers.#.self_attention.sublayer.query_key_value.*  transformer.h.#.attn.c_attn.*                    transposed
decoder.layers.#.self_attention.sublayer.output.*           transformer.h.#.attn.c_proj.*                    transposed
decoder.layers.#.feed_forward.norm.*                        transformer.h.#.ln_2.*
decoder.layers.#.feed_forward.sublayer.inner.*              transformer.h.#.mlp.c_fc.*                       transposed
decoder.layers.#.feed_forward.sublayer.outer.*              transformer.h.#.mlp.c_proj.*                     transposed
decoder.norm.*                                              transformer.ln_f.*
output.weight                                               lm_head.weight|transformer.wte.weight
""",
    ends=False,
)
LLAMA = Foreign(
    "llama",
    "decoder",
    {"tokens": "LlamaForCausalLM"},
    marks={"pad": "pad_token_id?", "bos": "bos_token_id", "eos": "eos_token_id"},
    settings={
        "vocabulary": "vocab_size",
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "d_k": "head_dim",
        "max_length": "max_position_embeddings",
        "rope_base": "rope_parameters.rope_theta|rope_theta",
        "feed_forward": ("hidden_act", [("silu", "swiglu"), ("swish", "swiglu")]),
        "norm_eps": "rms_norm_eps",
        "attention_dropout": "attention_dropout",
        "tie": ("tie_word_embeddings", [(True, "all"), (False, "none"), (True, "target")]),
    },
    defaults={
        "num_key_value_heads": ("num_attention_heads", 1),
        "head_dim": None,
        "attention_dropout": 0.0,
        "rope_parameters.rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    },
    fixed={"positions": "rope", "norm_kind": "rms", "bias": False, "dropout": 0.0},
    constant={
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters.rope_type": "default",
    },
    tensors="""
stem.tokens.weight                                               model.embed_tokens.weight
decoder.layers.#.self_attention.norm.weight                      model.layers.#.input_layernorm.weight
decoder.layers.#.self_attention.sublayer.query_key_value.weight  model.layers.#.self_attn.{q,k,v}_proj.weight  stacked
decoder.layers.#.self_attention.sublayer.output.weight           model.layers.#.self_attn.o_proj.weight
decoder.layers.#.feed_forward.norm.weight                        model.layers.#.post_attention_layernorm.weight
decoder.layers.#.feed_forward.sublayer.inner.weight              model.layers.#.mlp.{gate,up}_proj.weight      stacked
decoder.layers.#.feed_forward.sublayer.outer.weight              model.layers.#.mlp.down_proj.weight
decoder.norm.weight                                              model.norm.weight
output.weight                                                    lm_head.weight|model.embed_tokens.weight
""",
    ends=False,
)

TABLES = {table.name: table for table in (MARIAN, PEGASUS, BART, MBART, GPT2, LLAMA)}
