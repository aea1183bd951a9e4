"""Encoders of pictures: ViT, and DeiT, whose second token learns from a teacher; and of videos: ViViT, TimeSformer."""

from dataclasses import replace

from regard.convert.tables.encoder import ACTIVATIONS, OUTER
from regard.convert.tables.table import Foreign, Top

CLASSES = {"kind": "classes"}
POOLED, FIRST = {"kind": "vector", "hidden": "tanh"}, {"kind": "vector"}
VIT = Foreign(
    "vit",
    "vision",
    (
        Top("ViTForImageClassification", CLASSES, OUTER),
        Top("ViTModel", POOLED, "output.inner.*  vit.pooler.dense.*\n"),
        Top("ViTModel", FIRST),
    ),
    f"""
layers             num_hidden_layers
d_model            hidden_size
d_ff               intermediate_size
heads              num_attention_heads
size               image_size=224
patch              patch_size=16
channels           num_channels=3
feed_forward       hidden_act="gelu": {ACTIVATIONS}
norm_eps           layer_norm_eps=1e-12
dropout            hidden_dropout_prob=0.0
attention_dropout  attention_probs_dropout_prob=0.0
""",
    fixed={"tokens": 1},
    base="vit.",
    constant={"qkv_bias": True},
    marks={},
    tensors="""
stem.tokens                                                 vit.embeddings.{cls_token} row
stem.positions.table                                        vit.embeddings.position_embeddings row
stem.project.*                                              vit.embeddings.patch_embeddings.projection.*
encoder.layers.#.self_attention.sublayer.query_key_value.*  vit.encoder.layer.#.attention.attention.{query,key,value}.*
encoder.layers.#.self_attention.sublayer.output.*           vit.encoder.layer.#.attention.output.dense.*
encoder.layers.#.self_attention.norm.*                      vit.encoder.layer.#.layernorm_before.*
encoder.layers.#.feed_forward.sublayer.inner.*              vit.encoder.layer.#.intermediate.dense.*
encoder.layers.#.feed_forward.sublayer.outer.*              vit.encoder.layer.#.output.dense.*
encoder.layers.#.feed_forward.norm.*                        vit.encoder.layer.#.layernorm_after.*
encoder.norm.*                                              vit.layernorm.*
""",
)
DEIT = replace(
    VIT,
    name="deit",
    tops=(
        Top(
            "DeiTForImageClassificationWithTeacher",
            CLASSES | {"pool": "both"},
            "output.outer.*  cls_classifier.*\noutput.other.*  distillation_classifier.*\n",
        ),
        Top("DeiTForImageClassification", CLASSES, OUTER),
        Top("DeiTModel", POOLED, "output.inner.*  deit.pooler.dense.*\n"),
        Top("DeiTModel", FIRST),
    ),
    fixed={"tokens": 2},
    base="deit.",
    tensors=VIT.tensors.replace("vit.", "deit.").replace("{cls_token}", "{cls_token,distillation_token}"),
)
VIVIT = replace(
    VIT,
    name="vivit",
    family="video",
    tops=(
        Top("VivitForVideoClassification", CLASSES, OUTER),
        Top("VivitModel", POOLED, "output.inner.*  vivit.pooler.dense.*\n"),
        Top("VivitModel", FIRST),
    ),
    settings=VIT.settings.replace("patch_size=16", "tubelet_size.1=16 tubelet_size.2=16")
    + f"""
frames             num_frames=32
tubelet            tubelet_size.0=2
feed_forward       hidden_act="gelu_fast": gelu_fast>gelu_tanh {ACTIVATIONS}
norm_eps           layer_norm_eps=1e-6
""",
    fixed={"tokens": 1, "space_time": "joint", "own_positions": True},
    base="vivit.",
    tensors=VIT.tensors.replace("vit.", "vivit.")
    .replace("stem.positions.table", "stem.places.table")
    .replace("stem.project.*", "stem.project.bias")
    .replace(
        "projection.*",
        "projection.bias\nstem.project.weight  vivit.embeddings.patch_embeddings.projection.weight folded:channels",
    ),
)
TIMESFORMER = replace(
    VIT,
    name="timesformer",
    family="video",
    tops=(Top("TimesformerForVideoClassification", CLASSES, OUTER), Top("TimesformerModel", FIRST)),
    settings=VIT.settings
    + """
frames             num_frames=8
space_time         attention_type="divided_space_time": divided_space_time>divided joint_space_time>joint
norm_eps           layer_norm_eps=1e-6
""",
    fixed={"tokens": 1, "tubelet": 1},
    base="timesformer.",
    tensors=VIT.tensors.replace("vit.", "timesformer.").replace("{query,key,value}", "qkv")
    + """
stem.times.table                                   timesformer.embeddings.time_embeddings row
encoder.layers.#.time.sublayer.query_key_value.*   timesformer.encoder.layer.#.temporal_attention.attention.qkv.* ours
encoder.layers.#.time.sublayer.output.*            timesformer.encoder.layer.#.temporal_attention.output.dense.* ours
encoder.layers.#.time.product.*                    timesformer.encoder.layer.#.temporal_dense.* ours
encoder.layers.#.time.norm.*                       timesformer.encoder.layer.#.temporal_layernorm.* ours
""",
)

TABLES = (VIT, DEIT, VIVIT, TIMESFORMER)
