"""Two towers: CLIP."""

from regard.convert.tables.encoder import ACTIVATIONS
from regard.convert.tables.table import Foreign, Top

ENDS = {"bos": "<|startoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>", "pad": "<|endoftext|>"}
ONE = [each.partition(">") for each in f"quick_gelu>gelu_quick {ACTIVATIONS}".split()]
BOTH = " ".join(f"{theirs},{theirs}>{ours or theirs}" for theirs, _, ours in ONE)  # of both towers
LAYERS = """
ENCODER.layers.#.self_attention.norm.*                      TOWER.encoder.layers.#.layer_norm1.*
ENCODER.layers.#.self_attention.sublayer.query_key_value.*  TOWER.encoder.layers.#.self_attn.{q,k,v}_proj.*
ENCODER.layers.#.self_attention.sublayer.output.*           TOWER.encoder.layers.#.self_attn.out_proj.*
ENCODER.layers.#.feed_forward.norm.*                        TOWER.encoder.layers.#.layer_norm2.*
ENCODER.layers.#.feed_forward.sublayer.inner.*              TOWER.encoder.layers.#.mlp.fc1.*
ENCODER.layers.#.feed_forward.sublayer.outer.*              TOWER.encoder.layers.#.mlp.fc2.*
"""
CLIP = Foreign(
    "clip",
    "pair",
    (Top("CLIPModel", {"kind": "vector", "pool": "last", "normalise": True}),),
    f"""
vocabulary         text_config.vocab_size=49408
layers             text_config.num_hidden_layers=12
d_model            text_config.hidden_size=512
d_ff               text_config.intermediate_size=2048
heads              text_config.num_attention_heads=8
max_length         text_config.max_position_embeddings=77
size               vision_config.image_size=224
channels           vision_config.num_channels=3
patch              vision_config.patch_size=32
picture_layers     vision_config.num_hidden_layers=12
picture_d_model    vision_config.hidden_size=768
picture_d_ff       vision_config.intermediate_size=3072
picture_heads      vision_config.num_attention_heads=12
d_vector           projection_dim=512
feed_forward       text_config.hidden_act="quick_gelu" vision_config.hidden_act="quick_gelu": {BOTH}
norm_eps           text_config.layer_norm_eps=1e-05 vision_config.layer_norm_eps=1e-05
attention_dropout  text_config.attention_dropout=0.0 vision_config.attention_dropout=0.0
""",
    fixed={"dropout": 0.0},
    constant={},
    marks={"cls": "text_config.bos_token_id?", "sep": "text_config.eos_token_id?"},
    special=ENDS,
    tensors="""
sharpness                     logit_scale                                          flat
stem.tokens.weight            text_model.embeddings.token_embedding.weight
stem.positions.table          text_model.embeddings.position_embedding.weight
encoder.norm.*                text_model.final_layer_norm.*
output.weight                 text_projection.weight
picture_stem.tokens           vision_model.embeddings.class_embedding              flat
picture_stem.project.weight   vision_model.embeddings.patch_embedding.weight
picture_stem.positions.table  vision_model.embeddings.position_embedding.weight
picture_stem.norm.*           vision_model.pre_layrnorm.*
picture_encoder.norm.*        vision_model.post_layernorm.*
picture_output.weight         visual_projection.weight
"""
    + LAYERS.replace("ENCODER", "encoder").replace("TOWER", "text_model")
    + LAYERS.replace("ENCODER", "picture_encoder").replace("TOWER", "vision_model"),
)

TABLES = (CLIP,)
