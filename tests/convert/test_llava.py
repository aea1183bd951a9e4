"""LLaVA of Hugging Face's: the same logits here, with pictures and without; and back there the same bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors

from regard.convert import export, import_
from regard.core.generation import Illustrated
from regard.models import storage
from tests.convert.test_towers import SEES, clips_tokens

transformers = pytest.importorskip("transformers")
LLAMA = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1}
LLAMA |= {"intermediate_size": 40, "head_dim": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
PLACES, IMAGE = 16, 60


def foreign(directory: Path, layer: int, tied: bool) -> Any:
    """A random LLaVA of theirs, saved with a tokenizer; no parameter is at its neutral value."""
    tokens = clips_tokens(directory)
    tokens.backend_tokenizer.post_processor = processors.ByteLevel()
    tokens.save_pretrained(directory)
    ids = {"bos_token_id": tokens.bos_token_id, "eos_token_id": tokens.eos_token_id}
    torch.manual_seed(1)
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**LLAMA, **ids, vocab_size=len(tokens), tie_word_embeddings=tied),
        vision_config=transformers.CLIPVisionConfig(**SEES),
        image_token_index=IMAGE,
        vision_feature_layer=layer,
        image_seq_length=PLACES,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(("layer", "tied"), [(-2, False), (-1, True)])
@torch.inference_mode()
def test_llava_is_the_same_here_and_back_there(tmp_path: Path, layer: int, tied: bool) -> None:
    theirs = foreign(tmp_path / "hf", layer, tied)
    assert import_(tmp_path / "hf", tmp_path / "out") == []
    ours = storage.load(tmp_path / "out")
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert (purpose.task["name"], purpose.task["sight"]["size"]) == ("look", 32)
    tokens = torch.tensor([[5, *[IMAGE] * PLACES, 7, 9, 11], [8, 6, *[IMAGE] * PLACES, 3, 2]])
    pixels = torch.randn(2, 3, 32, 32)
    expected = theirs(input_ids=tokens, pixel_values=pixels).logits
    torch.testing.assert_close(ours(tokens, pixels), expected, atol=1e-5, rtol=1e-5)
    text = torch.randint(0, 50, (2, 9))
    torch.testing.assert_close(ours(text), theirs(input_ids=text).logits, atol=1e-5, rtol=1e-5)
    shown = [Illustrated(row[:-2].tolist(), one[None]) for row, one in zip(tokens, pixels, strict=True)]
    state = ours.start(shown, torch.device("cpu"))
    steps = torch.stack([ours.step(token, state) for token in tokens.T[-2:]], 1)
    torch.testing.assert_close(steps, expected[:, -2:], atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() == back.keys()
    assert [key for key in first if not torch.equal(first[key], back[key])] == []
    again, report = transformers.LlavaForConditionalGeneration.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(report.values())
    logits = again(input_ids=tokens, pixel_values=pixels).logits
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)


def test_names_of_older_files_are_known(tmp_path: Path) -> None:
    foreign(tmp_path / "hf", -2, tied=False)
    file = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(file)
    save_file({name.replace("vision_tower.", "vision_tower.vision_model."): x for name, x in tensors.items()}, file)
    assert import_(tmp_path / "hf", tmp_path / "out") == []


def test_places_and_patches_must_agree(tmp_path: Path) -> None:
    foreign(tmp_path / "hf", -2, tied=False)
    import_(tmp_path / "hf", tmp_path / "out")
    with pytest.raises(ValueError, match="1 pictures have 16 patches, and the text 3 places"):
        storage.load(tmp_path / "out")(torch.tensor([[5, IMAGE, IMAGE, IMAGE]]), torch.randn(1, 3, 32, 32))
