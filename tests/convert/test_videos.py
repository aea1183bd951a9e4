"""TimeSformer and ViViT of Hugging Face's: the same logits here, of the same video; and back there the same bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from regard.convert import export, import_
from regard.convert.sights import PROCESSOR
from regard.data.pictures import Sight
from regard.models import storage
from regard.models.family import build, configure

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 24}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "divided": ("TimesformerForVideoClassification", {"num_frames": 4, "patch_size": 8}),
    "joint": (
        "TimesformerForVideoClassification",
        {"num_frames": 3, "patch_size": 8, "attention_type": "joint_space_time"},
    ),
    "body": ("TimesformerModel", {"num_frames": 4, "patch_size": 8}),
    "tubelets": ("VivitForVideoClassification", {"num_frames": 6, "tubelet_size": [2, 8, 8]}),
    "pooled": ("VivitModel", {"num_frames": 6, "tubelet_size": [3, 12, 12]}),
}


def foreign(which: str, directory: Path) -> Any:
    """A random model of theirs, saved; no parameter is at its neutral value."""
    name, changes = CLASSES[which]
    kind = getattr(transformers, name)
    torch.manual_seed(1)
    model = kind(kind.config_class(**SIZES | {"id2label": {0: "run", 1: "jump", 2: "fall"}} | changes)).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model


@torch.inference_mode()
def said(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    out = model(pixel_values=pixels)
    return out.logits if "logits" in out else out.get("pooler_output", out.last_hidden_state[:, 0])


@pytest.mark.parametrize("which", CLASSES)
@torch.inference_mode()
def test_a_class_is_the_same_here_and_back_there(tmp_path: Path, which: str) -> None:
    model = foreign(which, tmp_path / "hf")
    pixels = torch.randn(2, model.config.num_frames, 3, 24, 24)
    assert import_(tmp_path / "hf", tmp_path / "out") == []
    ours, expected = storage.load(tmp_path / "out"), said(model, pixels)
    torch.testing.assert_close(ours(pixels), expected, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == (
        tmp_path / "back" / "model.safetensors"
    ).read_bytes()
    again, report = getattr(transformers, CLASSES[which][0]).from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(report.values())
    torch.testing.assert_close(said(again, pixels), expected, atol=1e-6, rtol=1e-6)
    for key in ("tubelet_size", "patch_size", "num_frames", "attention_type"):
        assert getattr(again.config, key, None) == getattr(model.config, key, None)


@pytest.mark.parametrize("kind", ["VideoMAEImageProcessorPil", "VivitImageProcessor"])
def test_a_video_is_seen_as_theirs_sees_it(tmp_path: Path, kind: str) -> None:
    """The processor's settings come along, and go back; ViViT's numbers have another middle."""
    foreign("divided", tmp_path / "hf")
    processor = getattr(transformers, kind)(size={"shortest_edge": 28}, crop_size={"height": 24, "width": 24})
    processor.save_pretrained(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert (purpose.task["name"], purpose.task["labels"]) == ("recognise", ["run", "jump", "fall"])
    sight = Sight(**purpose.task["sight"])
    video = np.random.default_rng(0).integers(0, 256, (4, 50, 71, 3), np.uint8)
    theirs = processor([Image.fromarray(frame) for frame in video], return_tensors="pt")["pixel_values"]
    ours = sight.tensor(sight.pixels(video)[None])
    assert ours.shape == theirs.shape == (1, 4, 3, 24, 24)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    about = json.loads((tmp_path / "back" / PROCESSOR).read_text())
    again = getattr(transformers, about["image_processor_type"] + "Pil").from_pretrained(tmp_path / "back")
    frames = [Image.fromarray(frame) for frame in video]
    torch.testing.assert_close(again(frames, return_tensors="pt")["pixel_values"], theirs, atol=1e-5, rtol=1e-5)


def test_what_they_cannot_express_is_named(tmp_path: Path) -> None:
    small = {
        "layers": 1,
        "d_model": 24,
        "d_ff": 24,
        "size": 16,
        "channels": 3,
        "convolutions": 0,
        "patch": 8,
        "tubelet": 1,
    }
    model = build(configure("vivit-tiny").but(**small, space_time="factorised"))
    storage.save(model, tmp_path / "own", storage.Purpose({"name": "recognise"}, {}))
    with pytest.raises(ValueError, match="space_time = 'factorised'"):
        export(tmp_path / "own", tmp_path / "out", "hf")


def test_tensors_are_the_same_ones(tmp_path: Path) -> None:
    """Of a tubelet, the colours of all its frames are the channels of one patch."""
    foreign("tubelets", tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    theirs = load_file(tmp_path / "hf" / "model.safetensors")["vivit.embeddings.patch_embeddings.projection.weight"]
    ours = load_file(tmp_path / "out" / "model.safetensors")["stem.project.weight"]
    assert theirs.shape == (24, 3, 2, 8, 8)
    assert torch.equal(ours[:, 3], theirs[:, 1, 1])
