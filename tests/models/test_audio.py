"""An encoder that hears: AST as Hugging Face has it, and what its settings must be."""

import pytest
import torch

from regard.core.outputs import HeadConfig
from regard.models.audio import Audio, ast_base, ast_tiny, hearing_tiny
from regard.models.family import build


def test_it_is_the_ast_of_hugging_face() -> None:
    """Of random weights, each under its own name there, the states after the last layer are equal within 1e-5."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "hidden_size": 32}
    theirs = transformers.ASTModel(transformers.ASTConfig(**sizes, max_length=64, num_mel_bins=40)).eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.2)
    ours = Audio(ast_base(layers=2, heads=2, d_ff=48, d_model=32, frames=64, bands=40)).eval()
    held = {name: x.detach() for name, x in theirs.named_parameters()}
    used = set[str]()

    def take(*names: str) -> torch.Tensor:
        """One parameter, or several one below the other; by whichever of two names this version has."""
        found = [next(n for n in (name, name.replace("layers.", "encoder.layer.")) if n in held) for name in names]
        used.update(found)
        return torch.cat([held[name] for name in found])

    own = dict(ours.named_parameters())
    e = "embeddings"
    own["stem.tokens"].data = take(f"{e}.cls_token", f"{e}.distillation_token")[:, 0]
    own["stem.positions.table"].data = take(f"{e}.position_embeddings")[0]
    for kind in ("weight", "bias"):
        own[f"stem.project.{kind}"].data = take(f"{e}.patch_embeddings.projection.{kind}")
        own[f"encoder.norm.{kind}"].data = take(f"layernorm.{kind}")
        for i in range(2):
            a, f, t = f"encoder.layers.{i}.self_attention", f"encoder.layers.{i}.feed_forward", f"layers.{i}"
            qkv = (f"{t}.attention.{x}_proj.{kind}" for x in "qkv")
            own[f"{a}.sublayer.query_key_value.{kind}"].data = take(*qkv)
            own[f"{a}.sublayer.output.{kind}"].data = take(f"{t}.attention.o_proj.{kind}")
            own[f"{a}.norm.{kind}"].data = take(f"{t}.layernorm_before.{kind}")
            own[f"{f}.norm.{kind}"].data = take(f"{t}.layernorm_after.{kind}")
            own[f"{f}.sublayer.inner.{kind}"].data = take(f"{t}.mlp.fc1.{kind}")
            own[f"{f}.sublayer.outer.{kind}"].data = take(f"{t}.mlp.fc2.{kind}")
    assert used == held.keys()
    frames = torch.randn(3, 64, 40)
    with torch.no_grad():
        assert torch.allclose(ours.features(frames), theirs(frames).last_hidden_state, atol=1e-5)


def test_a_head_says_what_is_made_of_the_states() -> None:
    x = torch.randn(2, 128, 40)
    assert build(ast_tiny(), HeadConfig("classes", 7, pool="mean"))(x).shape == (2, 7)
    assert build(ast_tiny(), HeadConfig("vector", pool="mean"))(x).shape == (2, 96)
    assert build(hearing_tiny(vocabulary=14), HeadConfig())(torch.randn(2, 300, 40)).shape == (2, 150, 14)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"patch": 64}, "a window has 40 bands"),
        ({"patch": 0, "tokens": 2}, "tokens = 2: they stand before patches"),
        ({"lookahead": 2}, "patches do not follow each other in time"),
        ({"frames": 51}, "must be even"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ast_tiny(**changes)


def test_words_need_positions_that_follow_the_sound() -> None:
    for config in (ast_tiny(vocabulary=9), hearing_tiny()):
        with pytest.raises(ValueError, match="set patch to 0, and have a vocabulary"):
            build(config, HeadConfig())
