"""ViT and DeiT of Hugging Face's: the same logits here, of the same picture; and back there the same bytes."""

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

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 32}
SIZES |= {"patch_size": 8}
CLASSES = ("ViTForImageClassification", "ViTModel", "DeiTForImageClassification", "DeiTModel")
CLASSES += ("DeiTForImageClassificationWithTeacher",)
NAMES = {0: "cat", 1: "dog", 2: "bird"}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": {"height": 32, "width": 32}},
    "DeiT": {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}},
    "ViT by its shorter side": {"size": {"shortest_edge": 36}, "crop_size": 32, "do_center_crop": True, "resample": 1},
}


def foreign(name: str, directory: Path, **changes: Any) -> Any:
    """A random model of theirs, saved; no parameter is at its neutral value."""
    kind = getattr(transformers, name)
    torch.manual_seed(1)
    model = kind(kind.config_class(**SIZES | {"id2label": NAMES} | changes)).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model


@torch.inference_mode()
def said(model: Any, pixels: torch.Tensor, **how: Any) -> torch.Tensor:
    out = model(pixel_values=pixels, **how)
    return out.logits if "logits" in out else out.pooler_output


@pytest.mark.parametrize("name", CLASSES)
@torch.inference_mode()
def test_a_class_is_the_same_here_and_back_there(tmp_path: Path, name: str) -> None:
    model, pixels = foreign(name, tmp_path / "hf"), torch.randn(3, 3, 32, 32)
    assert import_(tmp_path / "hf", tmp_path / "out") == []
    ours, expected = storage.load(tmp_path / "out"), said(model, pixels)
    torch.testing.assert_close(ours(pixels), expected, atol=1e-5, rtol=1e-5)
    large = torch.randn(2, 3, 48, 40)  # of another size: positions are stretched
    torch.testing.assert_close(ours(large), said(model, large, interpolate_pos_encoding=True), atol=1e-5, rtol=1e-5)
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() == back.keys()
    assert [key for key in first if not torch.equal(first[key], back[key])] == []
    about = json.loads((tmp_path / "back" / "config.json").read_text())
    assert about["architectures"] == [name]
    again, report = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(said(again, pixels), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_picture_is_seen_as_theirs_sees_it(tmp_path: Path, name: str) -> None:
    """The processor's settings come along, and go back."""
    kind = name.split()[0]
    foreign(f"{kind}ForImageClassification", tmp_path / "hf")
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**PROCESSORS[name], image_mean=[0.4, 0.5, 0.6])
    processor.save_pretrained(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert (purpose.task["name"], purpose.task["labels"]) == ("recognise", [*NAMES.values()])
    sight = Sight(**purpose.task["sight"])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 71, 3), np.uint8))
    theirs = processor(picture, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(sight.tensor(sight.pixels(picture)[None]), theirs, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    about = json.loads((tmp_path / "back" / PROCESSOR).read_text())
    again = getattr(transformers, about["image_processor_type"] + "Pil").from_pretrained(tmp_path / "back")
    torch.testing.assert_close(again(picture, return_tensors="pt")["pixel_values"], theirs, atol=1e-6, rtol=1e-6)
    import_(tmp_path / "back", tmp_path / "again")
    assert storage.purpose(tmp_path / "again") == purpose


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"size": {"height": 32, "width": 16}}, "is no square"),
        ({"size": {"height": 64, "width": 64}}, "64 x 64 pixels are not those of the model, 32 x 32"),
        ({"size": {"shortest_edge": 32}}, "pictures are not of one size"),
        ({"rescale_factor": 1.0}, "rescale_factor = 1.0 cannot be expressed"),
    ],
)
def test_a_processor_that_cannot_be_expressed_is_named(tmp_path: Path, about: dict[str, Any], message: str) -> None:
    foreign("ViTForImageClassification", tmp_path / "hf")
    (tmp_path / "hf" / PROCESSOR).write_text(json.dumps(about))
    with pytest.raises(ValueError, match=message):
        import_(tmp_path / "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
