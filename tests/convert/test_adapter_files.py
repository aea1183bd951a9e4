"""Directories of peft's are read strictly, and what they cannot hold is not written: without peft itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.convert import export, import_
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from tests.adaptation.models import FAMILIES, taught
from tests.convert.toys import sentences

CHANGES: dict[str, Any] = {
    "lora": {"rank": 3, "where": ["query", "outer"]},
    "ends": {"rank": 3, "where": ["query", "embedding"], "name": "lora"},
    "ia3": {},
    "prompt": {"length": 4},
    "prefix": {"length": 4},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tokens, found = Tokenizer.learn(TokensConfig("bpe", 280), list(sentences(60))), {}
    purposes = {"encoder": {"name": "classify", "labels": ["a", "b", "c"]}, "t5": {"name": "translate"}}
    for name in ("encoder", "llama", "t5"):
        place, (preset, settings) = tmp_path_factory.mktemp(name), FAMILIES[name]
        torch.manual_seed(0)
        head = HeadConfig("classes", 3, hidden="tanh") if name == "encoder" else None
        model = build(configure(preset, settings, vocabulary=len(tokens)), head)
        storage.save(model, place, storage.Purpose(purposes.get(name, {"name": "generate"}), {}))
        tokens.save(place / "tokenizer.json")
        found[name] = place
    return found


def written(base: Path, kind: str, place: Path, **settings: Any) -> Path:
    """What a change of ours has learnt, as a directory of peft's."""
    change = {"lora" if kind == "ends" else kind: CHANGES[kind] | settings}
    model = storage.begin(base, storage.config(base), getattr(storage.load(base), "head", None), [change], anew=True)
    storage.save(taught(model), place / "ours", storage.purpose(base))
    (place / "ours" / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    export(place / "ours", place / "peft", "peft")
    return place / "peft"


def edited(place: Path, tensors: Callable[[dict[str, Tensor]], Any] = dict, **settings: Any) -> Path:
    about = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps(about | settings))
    held = load_file(place / "adapter_model.safetensors")
    tensors(held)
    save_file(held, place / "adapter_model.safetensors")
    return place


def without(*ends: str) -> Callable[[dict[str, Tensor]], None]:
    def drop(held: dict[str, Tensor]) -> None:
        gone = [name for name in held if any(end in name for end in ends)]
        assert gone
        for name in gone:
            del held[name]

    return drop


LAYER = "layers.1.self_attn.q_proj"
GONE = {
    "A and B of a layer": (
        "llama",
        "lora",
        (LAYER,),
        f"has no tensor 'model.{LAYER}.lora_A.weight', though target_mod",
    ),
    "B alone": ("llama", "lora", (f"{LAYER}.lora_B",), rf"has no tensor 'model\.{LAYER}\.lora_B\.weight'"),
    "a whole kind": (
        "llama",
        "lora",
        ("down_proj",),
        r"has no tensor 'model\.layers\.0\.mlp\.down_proj\.lora_A\.weight",
    ),
    "the words": ("llama", "ends", ("embed_tokens",), r"has no tensor 'model\.embed_tokens\.lora_embedding_A'"),
    "scales": ("t5", "ia3", ("decoder.block.1.layer.1.EncDecAttention.v",), r"'decoder\.block\.1.*\.v\.ia3_l', though"),
    "of a head": (
        "encoder",
        "lora",
        ("classifier.bias",),
        r"no tensor 'classifier\.bias', though modules_to_save says",
    ),
    "vectors": ("llama", "prompt", ("prompt_embeddings",), r"no tensor 'prompt_embeddings', though peft_type says"),
}


@pytest.mark.parametrize("what", GONE)
def test_a_tensor_that_is_missing_is_named(what: str, bases: dict[str, Path], tmp_path: Path) -> None:
    name, kind, ends, message = GONE[what]
    place = edited(written(bases[name], kind, tmp_path), without(*ends))
    with pytest.raises(ValueError, match=message):
        import_(place, tmp_path / "back", base=bases[name])
    assert not (tmp_path / "back").exists()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "layers left out": ({"layers_to_transform": [0], "target_modules": ["q_proj", "down_proj"]}, "do not name"),
    "one left out": (
        {"exclude_modules": ["layers.1.mlp.down_proj"]},
        r"'model\.layers\.1\.mlp\.down_proj', which targ",
    ),
    "one too many": (
        {"target_modules": ["q_proj", "v_proj", "down_proj"]},
        r"no tensor '.*0\.self_attn\.v_proj\.lora_A",
    ),
    "all": ({"target_modules": "all-linear"}, r"no tensor 'model\.layers\.0\.self_attn\.k_proj\.lora_A"),
    "none": ({"target_modules": None}, "it has no target_modules"),
    "no pattern": ({"target_modules": "(q_proj"}, "adapter_config.json: missing \\)"),
    "a number": ({"target_modules": 3}, "adapter_config.json: "),
    "another rank": ({"r": 2}, r"is of another model than .*: .*lora\.a\.query is \(3, 32\) there"),
}


@pytest.mark.parametrize("what", WRONG)
def test_settings_that_say_something_else_are_refused(what: str, bases: dict[str, Path], tmp_path: Path) -> None:
    settings, message = WRONG[what]
    place = edited(written(bases["llama"], "lora", tmp_path), **settings)
    with pytest.raises(ValueError, match=message):
        import_(place, tmp_path / "back", base=bases["llama"])


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"target_modules": r".*\.(q_proj|down_proj)"},
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 1], "layers_pattern": "layers"},
        {"target_modules": ["q_proj", "v_proj", "down_proj"], "exclude_modules": ["v_proj"], "layers_to_transform": []},
    ],
)
def test_settings_may_say_it_in_other_words(settings: Any, bases: dict[str, Path], tmp_path: Path) -> None:
    place = edited(written(bases["llama"], "lora", tmp_path), **settings)
    import_(place, tmp_path / "back", base=bases["llama"])
    ours, back = (storage.load(tmp_path / name).state_dict() for name in ("ours", "back"))
    assert all(torch.equal(x, back[name]) for name, x in ours.items())


def test_layers_that_are_not_named_stay_as_they_are(bases: dict[str, Path], tmp_path: Path) -> None:
    own = {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": 1}
    place = edited(written(bases["llama"], "lora", tmp_path), without("layers.0."), **own)
    import_(place, tmp_path / "back", base=bases["llama"])
    ours, back = (storage.load(tmp_path / name).state_dict() for name in ("ours", "back"))
    for name in filter(lambda name: ".lora." in name, ours):
        assert torch.equal(back[name], ours[name] if ".layers.1." in name else torch.zeros_like(ours[name])), name


def test_a_base_of_another_size_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    for kind in ("lora", "ia3", "prompt", "prefix"):
        (tmp_path / kind).mkdir()
        place = edited(
            written(bases["llama"], kind, tmp_path / kind),
            lambda held: held.update({name: x.repeat(*[1] * (x.dim() - 1), 2) for name, x in held.items()}),
        )
        with pytest.raises(ValueError, match=r"is of another model than|would be|numbers in the base|scales what"):
            import_(place, tmp_path / "back", base=bases["llama"])


def test_a_prefix_of_t5_is_not_carried_over(bases: dict[str, Path], tmp_path: Path) -> None:
    """peft deals vectors out by four to each layer of T5's decoder, so that half of the layers share theirs."""
    for where, message in (
        (["encoder", "decoder", "cross"], "in the decoder's attention to itself alone: this one is elsewhere, too"),
        (["decoder"], r"one prefix for decoder\.layers\.1\.\S* and an earlier layer of so many: train it there"),
    ):
        (tmp_path / where[0]).mkdir()
        with pytest.raises(ValueError, match=message):
            written(bases["t5"], "prefix", tmp_path / where[0], where=where)
        assert not (tmp_path / where[0] / "peft").exists()


def test_a_chat_template_goes_along(bases: dict[str, Path], tmp_path: Path) -> None:
    written(bases["llama"], "lora", tmp_path / "plain")
    (tmp_path / "plain" / "ours" / storage.TEMPLATE).write_text("{{ messages[0].content }}")
    export(tmp_path / "plain" / "ours", tmp_path / "peft", "peft")
    import_(tmp_path / "peft", tmp_path / "again", base=bases["llama"])
    assert (tmp_path / "again" / storage.TEMPLATE).read_text() == "{{ messages[0].content }}"
