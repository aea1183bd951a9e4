"""Encoder-decoders. Marian and its kin differ in where they normalise, and in how they know positions."""

from dataclasses import replace

from regard.convert.tables.table import ANGLES, MARKS, Foreign, Top

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
tie                   tie_word_embeddings=true: true>all false>none false>target false>inputs
"""
MARIANS = """
vocabulary            vocab_size decoder_vocab_size=1*vocab_size
tie                   tie_word_embeddings=true share_encoder_decoder_embeddings=true: true,true>all true,false>target \
false,false>none false,true>none false,false>inputs
"""
FIXED = {"norm_kind": "layer", "norm_eps": 1e-5, "scale": None}
PARTS = """
@.layers.#.self_attention.sublayer.output.*            model.@.layers.#.self_attn.out_proj.*
@.layers.#.self_attention.norm.*                       model.@.layers.#.self_attn_layer_norm.*
decoder.layers.#.cross_attention.sublayer.query.*      model.decoder.layers.#.encoder_attn.q_proj.*
decoder.layers.#.cross_attention.sublayer.output.*     model.decoder.layers.#.encoder_attn.out_proj.*
decoder.layers.#.cross_attention.norm.*                model.decoder.layers.#.encoder_attn_layer_norm.*
@.layers.#.feed_forward.sublayer.inner.*               model.@.layers.#.fc1.*
@.layers.#.feed_forward.sublayer.outer.*               model.@.layers.#.fc2.*
@.layers.#.feed_forward.norm.*                         model.@.layers.#.final_layer_norm.*
"""
LAYERS = f"""{PARTS}
@.layers.#.self_attention.sublayer.query_key_value.*   model.@.layers.#.self_attn.{{q,k,v}}_proj.*
decoder.layers.#.cross_attention.sublayer.key_value.*  model.decoder.layers.#.encoder_attn.{{k,v}}_proj.*
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
    (Top("MarianMTModel"),),
    SETTINGS + MARIANS,
    fixed=FIXED | {"norm": "post", "positions": "sinusoidal", "embedding_norm": False},
    tensors=LAYERS,
    base="model.",
    constant={"is_encoder_decoder": True},
    marks=MARKS | {"pad": "pad_token_id", "bos": "decoder_start_token_id"},
    around="end",
    permuted=True,
)
PEGASUS = replace(
    MARIAN,
    name="pegasus",
    tops=(Top("PegasusForConditionalGeneration"),),
    settings=SETTINGS,
    fixed=MARIAN.fixed | {"norm": "pre"},
    tensors=LAYERS + PRE + SHARED,
)
BART = replace(
    PEGASUS,
    name="bart",
    tops=(Top("BartForConditionalGeneration"),),
    fixed=FIXED | {"norm": "post", "positions": "learned", "embedding_norm": True},
    tensors=LAYERS + LEARNED + SHARED,
    special=ANGLES,
    permuted=False,
)
MBART = replace(
    BART,
    name="mbart",
    tops=(Top("MBartForConditionalGeneration"),),
    fixed=BART.fixed | {"norm": "pre"},
    tensors=LAYERS + PRE + LEARNED + SHARED,
)
T5 = replace(
    MARIAN,
    name="t5",
    tops=(Top("T5ForConditionalGeneration"),),
    settings="""
vocabulary            vocab_size
encoder_layers        num_layers
decoder_layers        num_decoder_layers=1*num_layers
d_model               d_model
d_ff                  d_ff
heads                 num_heads
d_k                   d_kv
d_v                   d_kv
feed_forward    feed_forward_proj="relu": relu gelu silu gelu_new>gelu_tanh gated-gelu>geglu_tanh gated-silu>swiglu
norm_eps              layer_norm_epsilon=1e-06
feed_forward_dropout  dropout_rate=0.1
attention_dropout     dropout_rate=0.1
dropout               dropout_rate=0.1
scale_output          scale_decoder_outputs|tie_word_embeddings=true
tie                   tie_word_embeddings=true: true>all false>inputs
""",
    fixed={"norm": "pre", "norm_kind": "rms", "bias": False, "scale": 1.0, "positions": "t5", "scale_embedding": False}
    | {"output_bias": False},
    tensors="""
source_embedding.tokens.weight                     shared.weight|encoder.embed_tokens.weight
target_embedding.tokens.weight                     shared.weight|decoder.embed_tokens.weight
output.weight                                      lm_head.weight|shared.weight
@.layers.#.self_attention.sublayer.positions.table @.block.0.layer.0.SelfAttention.relative_attention_bias.weight
@.layers.#.self_attention.norm.weight              @.block.#.layer.0.layer_norm.weight
@.layers.#.self_attention.sublayer.query_key_value.weight       @.block.#.layer.0.SelfAttention.{q,k,v}.weight
@.layers.#.self_attention.sublayer.output.weight                @.block.#.layer.0.SelfAttention.o.weight
decoder.layers.#.cross_attention.norm.weight                    decoder.block.#.layer.1.layer_norm.weight
decoder.layers.#.cross_attention.sublayer.query.weight          decoder.block.#.layer.1.EncDecAttention.q.weight
decoder.layers.#.cross_attention.sublayer.key_value.weight      decoder.block.#.layer.1.EncDecAttention.{k,v}.weight
decoder.layers.#.cross_attention.sublayer.output.weight         decoder.block.#.layer.1.EncDecAttention.o.weight
encoder.layers.#.feed_forward.norm.weight                       encoder.block.#.layer.1.layer_norm.weight
encoder.layers.#.feed_forward.sublayer.inner.weight    encoder.block.#.layer.1.DenseReluDense.wi.weight           plain
encoder.layers.#.feed_forward.sublayer.inner.weight    encoder.block.#.layer.1.DenseReluDense.wi_{0,1}.weight     gated
encoder.layers.#.feed_forward.sublayer.outer.weight    encoder.block.#.layer.1.DenseReluDense.wo.weight
decoder.layers.#.feed_forward.norm.weight              decoder.block.#.layer.2.layer_norm.weight
decoder.layers.#.feed_forward.sublayer.inner.weight    decoder.block.#.layer.2.DenseReluDense.wi.weight           plain
decoder.layers.#.feed_forward.sublayer.inner.weight    decoder.block.#.layer.2.DenseReluDense.wi_{0,1}.weight     gated
decoder.layers.#.feed_forward.sublayer.outer.weight    decoder.block.#.layer.2.DenseReluDense.wo.weight
@.norm.weight                                          @.final_layer_norm.weight
""",
    base="",
    constant={
        "is_encoder_decoder": True,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
    permuted=False,
)
SOUND = """
@.layers.#.self_attention.sublayer.query_key_value.weight   model.@.layers.#.self_attn.{q,k,v}_proj.weight
@.layers.#.self_attention.sublayer.query_key_value.bias     model.@.layers.#.self_attn.{q,,v}_proj.bias
decoder.layers.#.cross_attention.sublayer.key_value.weight  model.decoder.layers.#.encoder_attn.{k,v}_proj.weight
decoder.layers.#.cross_attention.sublayer.key_value.bias    model.decoder.layers.#.encoder_attn.{,v}_proj.bias
source_embedding.first.*                                    model.encoder.conv1.*
source_embedding.second.*                                   model.encoder.conv2.*
source_embedding.positions.table                            model.encoder.embed_positions.weight
target_embedding.positions.table                            model.decoder.embed_positions.weight
target_embedding.tokens.weight                              model.decoder.embed_tokens.weight
output.weight                                               proj_out.weight|model.decoder.embed_tokens.weight
"""
WHISPER = replace(
    PEGASUS,
    name="whisper",
    tops=(Top("WhisperForConditionalGeneration"),),
    settings=SETTINGS.replace("max_length            max_position_embeddings", "max_length  max_target_positions")
    + """bands                 num_mel_bins
places                max_source_positions
tie                   tie_word_embeddings=true: true>target false>none
""",
    fixed=FIXED | {"norm": "pre", "positions": "learned", "embedding_norm": False, "output_bias": False},
    tensors=PARTS + PRE + SOUND,
    around="free",
    permuted=False,
    task="transcribe",
)

TABLES = (MARIAN, PEGASUS, BART, MBART, T5, WHISPER)  # where two fit, the first is written
