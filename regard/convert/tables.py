"""Classes of Hugging Face's as members of our families: plain text, which `foreign.py` reads in both directions.

A line of `settings` is one of ours, the names of theirs that say it, which must agree, and after a colon which values
of theirs are which of ours, if they are not the same: `swish>silu`. Of several lines for one setting the last counts.
A dot leads into an object, | is followed by an older name, = by what stands for a name that is missing: a value as in
JSON, or another name, times a number.

A line of `tensors` is a name of ours, theirs, and words. @ is encoder and decoder, # the number of a layer, * weight
and bias; {a,b} are several of theirs that are one of ours, one below the other; | another name where theirs may be
found: tied tensors are written once, under the first name that all of them have. Words:

transposed      inputs before outputs
offset:N        N rows come before the first of ours
row             a vector is a matrix of one row
optional        it may be missing, and is then 0
spare           it must be there, though nothing reads it
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MARKS = {"pad": "pad_token_id?", "bos": "bos_token_id", "eos": "eos_token_id"}  # ours -> theirs; with ?, maybe none


@dataclass(frozen=True)
class Foreign:
    """A class of theirs."""

    name: str  # its model_type
    family: str  # of ours
    heads: Mapping[str, str]  # what stands on the features -> their class
    settings: str
    fixed: dict[str, Any]  # of our settings, what theirs always are
    tensors: str
    constant: Mapping[str, Any] = field(default_factory=dict)  # of their settings, what ours always are
    marks: Mapping[str, str] = field(default_factory=lambda: MARKS)
    ends: bool = False  # an end stands after every text
    permuted: bool = False  # in their residual stream sines come first, then cosines; ours alternate


# Encoder-decoders: Marian and its kin differ in where they normalise, and in how they know positions.
SETTINGS = """
vocabulary            vocab_size
encoder_layers        encoder_layers
decoder_layers        decoder_layers
d_model               d_model
d_ff                  encoder_ffn_dim decoder_ffn_dim
heads                 encoder_attention_heads decoder_attention_heads
max_length            max_position_embeddings
feed_forward          activation_function: relu gelu silu swish>silu
scale_embedding       scale_embedding=false
dropout               dropout=0.1
attention_dropout     attention_dropout=0.0
feed_forward_dropout  activation_dropout=0.0
tie                   tie_word_embeddings=true: true>all false>none false>target
"""
MARIANS = """
vocabulary            vocab_size decoder_vocab_size=1*vocab_size
tie                   tie_word_embeddings=true share_encoder_decoder_embeddings=true: true,true>all true,false>target \
false,false>none false,true>none
"""
FIXED = {"norm_kind": "layer", "norm_eps": 1e-5, "scale": None}
LAYERS = """
@.layers.#.self_attention.sublayer.query_key_value.*   model.@.layers.#.self_attn.{q,k,v}_proj.*
@.layers.#.self_attention.sublayer.output.*            model.@.layers.#.self_attn.out_proj.*
@.layers.#.self_attention.norm.*                       model.@.layers.#.self_attn_layer_norm.*
decoder.layers.#.cross_attention.sublayer.query.*      model.decoder.layers.#.encoder_attn.q_proj.*
decoder.layers.#.cross_attention.sublayer.key_value.*  model.decoder.layers.#.encoder_attn.{k,v}_proj.*
decoder.layers.#.cross_attention.sublayer.output.*     model.decoder.layers.#.encoder_attn.out_proj.*
decoder.layers.#.cross_attention.norm.*                model.decoder.layers.#.encoder_attn_layer_norm.*
@.layers.#.feed_forward.sublayer.inner.*               model.@.layers.#.fc1.*
@.layers.#.feed_forward.sublayer.outer.*               model.@.layers.#.fc2.*
@.layers.#.feed_forward.norm.*                         model.@.layers.#.final_layer_norm.*
source_embedding.tokens.weight    model.encoder.embed_tokens.weight|model.shared.weight
target_embedding.tokens.weight    model.decoder.embed_tokens.weight|model.shared.weight
output.weight                     lm_head.weight|model.decoder.embed_tokens.weight|model.shared.weight
output.bias                       final_logits_bias                                                      row optional
"""
SHARED = "source_embedding.tokens.weight    model.shared.weight                                          spare\n"
PRE = "@.norm.*                           model.@.layer_norm.*\n"
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
    SETTINGS + MARIANS,
    fixed=FIXED | {"norm": "post", "positions": "sinusoidal", "embedding_norm": False},
    tensors=LAYERS,
    constant={"is_encoder_decoder": True},
    marks=MARKS | {"pad": "pad_token_id", "bos": "decoder_start_token_id"},
    ends=True,
    permuted=True,
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
    permuted=False,
)
MBART = replace(
    BART,
    name="mbart",
    heads={"tokens": "MBartForConditionalGeneration"},
    fixed=BART.fixed | {"norm": "pre"},
    tensors=LAYERS + PRE + LEARNED + SHARED,
)

# Language models.
ALONE: dict[str, Any] = {"norm": "pre", "scale": None}
GPT2 = Foreign(
    "gpt2",
    "decoder",
    {"tokens": "GPT2LMHeadModel"},
    """
vocabulary         vocab_size
layers             n_layer
d_model            n_embd
d_ff               n_inner=4*n_embd
heads              n_head
max_length         n_positions
feed_forward       activation_function: gelu_new>gelu_tanh relu gelu silu swish>silu
norm_eps           layer_norm_epsilon
dropout            resid_pdrop embd_pdrop
attention_dropout  attn_pdrop
tie                tie_word_embeddings=true: true>all false>none true>target
""",
    fixed=ALONE | {"positions": "learned", "norm_kind": "layer", "bias": True},
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
)
LLAMA = Foreign(
    "llama",
    "decoder",
    {"tokens": "LlamaForCausalLM"},
    """
vocabulary         vocab_size
layers             num_hidden_layers
d_model            hidden_size
d_ff               intermediate_size
heads              num_attention_heads
kv_heads           num_key_value_heads=1*num_attention_heads
d_k                head_dim=null
max_length         max_position_embeddings
rope_base          rope_parameters.rope_theta|rope_theta=10000.0
feed_forward       hidden_act: silu>swiglu swish>swiglu
norm_eps           rms_norm_eps
attention_dropout  attention_dropout=0.0
tie                tie_word_embeddings=false: true>all false>none true>target
""",
    fixed=ALONE | {"positions": "rope", "rope_scaling": None, "norm_kind": "rms", "bias": False, "dropout": 0.0},
    constant={"attention_bias": False, "mlp_bias": False, "rope_parameters.rope_type": "default"},
    tensors="""
stem.tokens.weight                                               model.embed_tokens.weight
decoder.layers.#.self_attention.norm.weight                      model.layers.#.input_layernorm.weight
decoder.layers.#.self_attention.sublayer.query_key_value.weight  model.layers.#.self_attn.{q,k,v}_proj.weight
decoder.layers.#.self_attention.sublayer.output.weight           model.layers.#.self_attn.o_proj.weight
decoder.layers.#.feed_forward.norm.weight                        model.layers.#.post_attention_layernorm.weight
decoder.layers.#.feed_forward.sublayer.inner.weight              model.layers.#.mlp.{gate,up}_proj.weight
decoder.layers.#.feed_forward.sublayer.outer.weight              model.layers.#.mlp.down_proj.weight
decoder.norm.weight                                              model.norm.weight
output.weight                                                    lm_head.weight|model.embed_tokens.weight
""",
)

TABLES = {table.name: table for table in (MARIAN, PEGASUS, BART, MBART, GPT2, LLAMA)}
