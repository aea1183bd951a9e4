"""Captioners: ViT, and GPT-2 with attention to what it has seen."""

from regard.convert.tables.decoder import GPT2
from regard.convert.tables.encoder import ACTIVATIONS
from regard.convert.tables.table import Foreign, Top
from regard.convert.tables.vision import VIT

VIT_GPT2 = Foreign(
    "vision-encoder-decoder",
    "captioner",
    (Top("VisionEncoderDecoderModel"),),
    f"""
vocabulary            decoder.vocab_size
encoder_layers        encoder.num_hidden_layers=12
decoder_layers        decoder.n_layer=12
d_model               encoder.hidden_size=768 decoder.n_embd=768
d_ff                  encoder.intermediate_size=3072 decoder.n_inner=4*decoder.n_embd
heads                 encoder.num_attention_heads=12 decoder.n_head=12
max_length            decoder.n_positions=1024
size                  encoder.image_size=224
patch                 encoder.patch_size=16
channels              encoder.num_channels=3
feed_forward          decoder.activation_function="gelu_new": gelu_new>gelu_tanh relu gelu silu swish>silu
encoder_feed_forward  encoder.hidden_act="gelu": {ACTIVATIONS}
norm_eps              decoder.layer_norm_epsilon=1e-05
encoder_norm_eps      encoder.layer_norm_eps=1e-12
dropout               decoder.resid_pdrop=0.1 decoder.embd_pdrop=0.1
attention_dropout     decoder.attn_pdrop=0.1
tie                   decoder.tie_word_embeddings=true: true>target false>none
""",
    fixed={"norm": "pre", "positions": "learned", "tokens": 1, "scale_embedding": False},
    constant={"is_encoder_decoder": True, "encoder.model_type": "vit", "encoder.qkv_bias": True}
    | {"decoder.model_type": "gpt2", "decoder.is_decoder": True, "decoder.add_cross_attention": True}
    | {"decoder.scale_attn_weights": True, "decoder.scale_attn_by_inverse_layer_idx": False},
    marks={"pad": "pad_token_id?", "bos": "decoder_start_token_id", "eos": "eos_token_id"},
    special=GPT2.special,
    tensors=VIT.tensors.replace("stem.", "source_embedding.").replace("vit.", "encoder.")
    + GPT2.tensors.replace("stem.", "target_embedding.").replace("transformer.", "decoder.transformer.")
    + """
decoder.layers.#.cross_attention.norm.*                H.ln_cross_attn.*
decoder.layers.#.cross_attention.sublayer.query.*      H.crossattention.q_attn.*                          transposed
decoder.layers.#.cross_attention.sublayer.key_value.*  H.crossattention.c_attn.*                          transposed
decoder.layers.#.cross_attention.sublayer.output.*     H.crossattention.c_proj.*                          transposed
output.weight  decoder.lm_head.weight|decoder.transformer.wte.weight
""".replace("H.", "decoder.transformer.h.#."),
)

TABLES = (VIT_GPT2,)
