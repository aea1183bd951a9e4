"""Encoders of pictures: ViT, and DeiT, whose second token learns from a teacher."""

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

TABLES = (VIT, DEIT)
