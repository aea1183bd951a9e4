"""CLIP of Hugging Face's: the same vectors and logits here; and back there the same bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.convert import export, import_
from regard.data.pictures import Sight
from regard.data.tokenizers import Tokenizer
from regard.models import storage

transformers = pytest.importorskip("transformers")
TEXTS = ["a dog runs in the snow", "two men are playing football", "a child", "A black Dog and a cat"]
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
SEES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SEES |= {"image_size": 32, "patch_size": 8}


def clips_tokens(directory: Path, legacy: bool = False) -> Any:
    """A small tokenizer of CLIP's kind: BPE of lower case whose words end in </w>."""
    rust = Rust(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    rust.normalizer = normalizers.Lowercase()
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ends = ["<|startoftext|>", "<|endoftext|>"]
    rust.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=150, special_tokens=[] if legacy else ends, end_of_word_suffix="</w>")
    )
    rust.add_special_tokens(ends)
    first, last = ((name, int(str(rust.token_to_id(name)))) for name in ends)
    rust.post_processor = processors.RobertaProcessing(last, first, False, False)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token=ends[0], eos_token=ends[1], pad_token=ends[1], unk_token=ends[1]
    )
    theirs.save_pretrained(directory)
    return theirs


def foreign(directory: Path, *, legacy: bool = False, **changes: Any) -> tuple[Any, Any]:
    """A random CLIP of theirs and its tokenizer, saved; no parameter is at its neutral value."""
    tokens = clips_tokens(directory, legacy)
    ids = {"bos_token_id": tokens.bos_token_id, "eos_token_id": 2 if legacy else tokens.eos_token_id}
    torch.manual_seed(1)
    config = transformers.CLIPConfig(
        text_config=TOWER | {"vocab_size": len(tokens), "max_position_embeddings": 20, **ids} | changes,
        vision_config=SEES | changes,
        projection_dim=20,
    )
    model = transformers.CLIPModel(config).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model, tokens


@pytest.mark.parametrize(
    "changes", [{}, {"legacy": True}, {"hidden_act": "gelu", "layer_norm_eps": 1e-3}], ids=["clip", "legacy", "gelu"]
)
@torch.inference_mode()
def test_clip_is_the_same_here_and_back_there(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs, tokens = foreign(tmp_path / "hf", **changes)
    assert import_(tmp_path / "hf", tmp_path / "out") == []
    ours, own = storage.load(tmp_path / "out"), Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    read = tokens(TEXTS, padding=True, return_tensors="pt")
    framed = [own.marks.around(ids)[0] for ids in own.encode_batch(TEXTS)]
    assert framed == tokens(TEXTS)["input_ids"]
    pixels, ids, keep = torch.randn(3, 3, 32, 32), read["input_ids"], read["attention_mask"].bool()
    expected = theirs(pixel_values=pixels, **read)
    torch.testing.assert_close(ours(pixels, ids, keep), expected.logits_per_image, atol=1e-5, rtol=1e-5)
    for mine, its in ((ours.seen(pixels), expected.image_embeds), (ours.read(ids, keep), expected.text_embeds)):
        torch.testing.assert_close(torch.nn.functional.normalize(mine, dim=-1), its, atol=1e-5, rtol=1e-5)
    large = torch.randn(2, 3, 48, 40)  # of another size: positions are stretched
    seen = theirs.get_image_features(pixel_values=large, interpolate_pos_encoding=True)
    seen = getattr(seen, "pooler_output", seen)
    torch.testing.assert_close(ours.seen(large), seen, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() == back.keys()
    assert [key for key in first if not torch.equal(first[key], back[key])] == []
    again, report = transformers.CLIPModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")(TEXTS, padding=True, return_tensors="pt")
    assert torch.equal(words["input_ids"], ids)
    torch.testing.assert_close(
        again(pixel_values=pixels, **words).logits_per_image, expected.logits_per_image, atol=1e-6, rtol=1e-6
    )
    import_(tmp_path / "back", tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again" / "tokenizer.json").marks == own.marks


def test_a_picture_is_seen_as_clip_sees_it(tmp_path: Path) -> None:
    foreign(tmp_path / "hf")
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32)
    processor.save_pretrained(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert purpose.task["name"] == "match"
    sight = Sight(**purpose.task["sight"])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 71, 3), np.uint8))
    theirs = processor(picture, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(sight.tensor(sight.pixels(picture)[None]), theirs, atol=1e-5, rtol=1e-5)


def test_towers_that_differ_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path / "hf")
    about = json.loads((tmp_path / "hf" / "config.json").read_text())
    about["vision_config"]["hidden_act"] = "gelu"
    (tmp_path / "hf" / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="hidden_act"):
        import_(tmp_path / "hf", tmp_path / "out")


def captioner(directory: Path, **changes: Any) -> Any:
    """A random ViT with a random GPT-2 of theirs, saved with a tokenizer."""
    tokens = clips_tokens(directory)
    tokens.backend_tokenizer.post_processor = processors.ByteLevel()
    tokens.save_pretrained(directory)
    ids = {"bos_token_id": 0, "eos_token_id": 1}
    decoder = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 30, "vocab_size": len(tokens), "n_inner": 40}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**TOWER, image_size=32, patch_size=8),
        transformers.GPT2Config(**decoder | ids | changes),
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(1)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_a_captioner_is_the_same_here_and_back_there(tmp_path: Path, tied: bool) -> None:
    theirs = captioner(tmp_path / "hf", tie_word_embeddings=tied)
    (left,) = import_(tmp_path / "hf", tmp_path / "out")  # of the picture as a whole: nothing here asks for it
    assert "encoder.pooler.dense.bias and 1 more" in left
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert purpose.task["name"] == "caption"
    ours = storage.load(tmp_path / "out")
    pixels, target = torch.randn(3, 3, 32, 32), torch.randint(2, 80, (3, 7))
    expected = theirs(pixel_values=pixels, decoder_input_ids=target).logits
    torch.testing.assert_close(ours(pixels, target), expected, atol=1e-5, rtol=1e-5)
    state = ours.start([*pixels], torch.device("cpu"))
    steps = torch.stack([ours.step(token, state) for token in target.T], 1)
    torch.testing.assert_close(steps, expected, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() - back.keys() == {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}
    assert [key for key in back if not torch.equal(first[key], back[key])] == []
    again = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path / "back")
    logits = again(pixel_values=pixels, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)
