"""Language models that see: LLaVA, which is CLIP's encoder of pictures and a Llama."""

import re

from regard.convert.tables.decoder import LLAMA
from regard.convert.tables.encoder import ACTIVATIONS
from regard.convert.tables.pair import LAYERS
from regard.convert.tables.table import Foreign, Top

L = "language_model"
TEXT = "\n".join(  # each name of theirs stands in an object
    "".join(re.sub(r"(?<=[\s|*])(?=[a-z])", "text_config.", part) if i == 0 else part for i, part in enumerate(some))
    for some in (line.partition(": ") for line in LLAMA.settings.split("\n"))
)
LLAVA = Foreign(
    "llava",
    "seer",
    (Top("LlavaForConditionalGeneration", {}, f"output.weight  {L}.lm_head.weight|{L}.model.embed_tokens.weight\n"),),
    f"""{TEXT}
layers                text_config.num_hidden_layers=32
d_model               text_config.hidden_size=4096
d_ff                  text_config.intermediate_size=11008
heads                 text_config.num_attention_heads=32
max_length            text_config.max_position_embeddings=2048
feed_forward          text_config.hidden_act="silu": silu>swiglu swish>swiglu
norm_eps              text_config.rms_norm_eps=1e-06
tie                   text_config.tie_word_embeddings=false tie_word_embeddings=false: \
true,true>all false,false>none true,true>target true,false>all
image                 image_token_index|image_token_id=32000
before_end            vision_feature_layer=-2: -1>1 -2>2 -3>3
size                  vision_config.image_size=336
channels              vision_config.num_channels=3
patch                 vision_config.patch_size=14
picture_layers        vision_config.num_hidden_layers=24
picture_d_model       vision_config.hidden_size=1024
picture_d_ff          vision_config.intermediate_size=4096
picture_heads         vision_config.num_attention_heads=16
picture_feed_forward  vision_config.hidden_act="quick_gelu": quick_gelu>gelu_quick {ACTIVATIONS}
picture_norm_eps      vision_config.layer_norm_eps=1e-05
""",
    fixed=LLAMA.fixed | {"picture_tokens": 1, "first_norm": True},
    constant={f"text_config.{key}": value for key, value in LLAMA.constant.items()}
    | {"text_config.model_type": "llama", "vision_config.model_type": "clip_vision_model"}
    | {"vision_feature_select_strategy": "default", "projector_hidden_act": "gelu", "multimodal_projector_bias": True},
    marks={name: f"text_config.{name}_token_id{'?' * (name == 'pad')}" for name in ("pad", "bos", "eos")},
    tensors=LLAMA.tensors.replace("model.", f"{L}.model.")
    + re.sub(  # older files have one name more
        r"  (vision_tower)(\S+)",
        r"  \1\2|\1.vision_model\2",
        """
sight.stem.tokens           vision_tower.embeddings.class_embedding              flat
sight.stem.project.weight   vision_tower.embeddings.patch_embedding.weight
sight.stem.positions.table  vision_tower.embeddings.position_embedding.weight
sight.stem.norm.*           vision_tower.pre_layrnorm.*
sight.encoder.norm.*        vision_tower.post_layernorm.*
project.0.*                 multi_modal_projector.linear_1.*
project.2.*                 multi_modal_projector.linear_2.*
"""
        + LAYERS.replace("ENCODER", "sight.encoder")
        .replace("TOWER", "vision_tower")
        .replace("v}_proj.*", "v}_proj.* even"),
    ),
)

TABLES = (LLAVA,)
