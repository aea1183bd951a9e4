"""Language models: GPT-2, Llama and its kin."""

from dataclasses import replace

from regard.convert.tables.encoder import OUTER, QUESTIONS, SPANS, TAGS
from regard.convert.tables.table import MARKS, Foreign, Top

LAST = {"kind": "classes", "pool": "last", "bias": False}
SCORE = "output.outer.weight  score.weight\n"
DROPOUT = "dropout  classifier_dropout=0.1\n"
GPT2 = Foreign(
    "gpt2",
    "decoder",
    (
        Top("GPT2LMHeadModel", {}, "output.weight  lm_head.weight|transformer.wte.weight\n"),
        Top("GPT2ForSequenceClassification", LAST, SCORE),
        Top("GPT2ForTokenClassification", TAGS, OUTER, DROPOUT),
        Top("GPT2ForQuestionAnswering", SPANS, QUESTIONS),
        Top("GPT2Model", {"kind": "vector", "pool": "last"}),
    ),
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
    fixed={},
    base="transformer.",
    constant={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    special=dict.fromkeys(("bos", "eos"), "<|endoftext|>"),
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
""",
)


def llamas(name: str, asked: str | None = "transformer.") -> tuple[Top, ...]:
    """What the classes of Llama and its kin have on top; and what stands before names where questions are `asked`."""
    questions = Top(f"{name}ForQuestionAnswering", SPANS, QUESTIONS, base=asked or "")
    return (
        Top(f"{name}ForCausalLM", {}, "output.weight  lm_head.weight|model.embed_tokens.weight\n"),
        Top(f"{name}ForSequenceClassification", LAST, SCORE),
        Top(f"{name}ForTokenClassification", TAGS, "output.outer.*  score.*\n", DROPOUT),
        *([] if asked is None else [questions]),
        Top(f"{name}Model", {"kind": "vector", "pool": "last"}),
    )


LLAMA = Foreign(
    "llama",
    "decoder",
    llamas("Llama"),
    """
vocabulary         vocab_size
layers             num_hidden_layers
d_model            hidden_size
d_ff               intermediate_size
heads              num_attention_heads
kv_heads           num_key_value_heads=1*num_attention_heads
d_k                head_dim=null
d_v                head_dim=null
max_length         max_position_embeddings
rope_base          rope_parameters.rope_theta|rope_theta=10000.0
rope_scaling       rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type="default" \
rope_parameters.factor|rope_scaling.factor=null \
rope_parameters.low_freq_factor|rope_scaling.low_freq_factor=null \
rope_parameters.high_freq_factor|rope_scaling.high_freq_factor=null \
rope_parameters.original_max_position_embeddings|rope_scaling.original_max_position_embeddings=null: \
default,null,null,null,null>null linear,*,null,null,null>linear:* llama3,*,*,*,*>llama3:*,*,*,*
feed_forward       hidden_act: silu>swiglu swish>swiglu
norm_eps           rms_norm_eps
attention_dropout  attention_dropout=0.0
tie                tie_word_embeddings=false: true>all false>none true>target
""",
    fixed={"positions": "rope", "norm_kind": "rms", "bias": False, "dropout": 0.0},
    base="model.",
    constant={"attention_bias": False, "mlp_bias": False},
    tensors="""
stem.tokens.weight                                               model.embed_tokens.weight
decoder.layers.#.self_attention.norm.weight                      model.layers.#.input_layernorm.weight
decoder.layers.#.self_attention.sublayer.query_key_value.weight  model.layers.#.self_attn.{q,k,v}_proj.weight
decoder.layers.#.self_attention.sublayer.output.weight           model.layers.#.self_attn.o_proj.weight
decoder.layers.#.feed_forward.norm.weight                        model.layers.#.post_attention_layernorm.weight
decoder.layers.#.feed_forward.sublayer.inner.weight              model.layers.#.mlp.{gate,up}_proj.weight
decoder.layers.#.feed_forward.sublayer.outer.weight              model.layers.#.mlp.down_proj.weight
decoder.norm.weight                                              model.norm.weight
""",
)
MISTRAL = replace(  # of the window, ours does not count the token itself
    LLAMA,
    name="mistral",
    tops=llamas("Mistral", "model."),
    settings=LLAMA.settings + "self_attention  sliding_window-1=null: null>full *>window:*\n",
    constant={},
)
QWEN2 = replace(
    LLAMA,
    name="qwen2",
    tops=llamas("Qwen2"),
    fixed=LLAMA.fixed | {"qkv_bias": True},
    constant={"use_sliding_window": False},
    marks=MARKS | {"bos": "bos_token_id?"},
    tensors=LLAMA.tensors
    + "decoder.layers.#.self_attention.sublayer.query_key_value.bias  model.layers.#.self_attn.{q,k,v}_proj.bias\n",
)
QWEN3 = replace(
    QWEN2,
    name="qwen3",
    tops=llamas("Qwen3"),
    fixed=LLAMA.fixed | {"qk_norm": True},
    constant=QWEN2.constant | {"attention_bias": False},
    tensors=LLAMA.tensors
    + """
decoder.layers.#.self_attention.sublayer.query_norm.weight  model.layers.#.self_attn.q_norm.weight
decoder.layers.#.self_attention.sublayer.key_norm.weight    model.layers.#.self_attn.k_norm.weight
""",
)
GEMMA = replace(
    LLAMA,
    name="gemma",
    tops=llamas("Gemma", None),
    settings=LLAMA.settings
    + """
feed_forward  hidden_act|hidden_activation: gelu_pytorch_tanh>geglu_tanh gelu>geglu_tanh
tie           tie_word_embeddings=true: true>all false>none true>target
""",
    fixed=LLAMA.fixed | {"norm_kind": "rms_offset", "scale_embedding": True},
    constant={"attention_bias": False, "use_bidirectional_attention": False},
)

TABLES = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA)  # where two fit, the first is written
