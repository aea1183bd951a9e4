"""Whisper comes in from Hugging Face, OpenAI, whisper.cpp, CTranslate2, and goes out: same logits, same texts."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.api import load
from regard.convert import export, import_, whisper
from regard.convert.precision import quantize_directory
from regard.convert.vocabularies import ranked
from regard.convert.weights import WEIGHTS
from regard.data.sound import log_mel, read
from regard.data.tokenizers import Tokenizer
from regard.evaluation.spoken import english
from regard.models import storage
from tests.speech import SIGNS, WORDS, content

transformers = pytest.importorskip("transformers")
SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "librispeech-sample"
END = len(WORDS)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of theirs that has learned nothing, and its directory."""
    torch.manual_seed(5)
    config = transformers.WhisperConfig(
        vocab_size=END + len(SIGNS),
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=100,
        max_target_positions=60,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=END + 1,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases are 0 before anything is learned
            parameter.add_(torch.randn_like(parameter) * 0.1)
    path = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(content()))
    return model, path


def test_a_model_of_hugging_face_says_the_same_and_goes_back(theirs: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = theirs
    assert import_(path, tmp_path / "ours") == []
    ours: Any = storage.load(tmp_path / "ours").eval()
    frames, target = torch.randn(2, 200, 16), torch.randint(0, END, (2, 9))
    with torch.inference_mode():
        said = model(input_features=frames.transpose(1, 2), decoder_input_ids=target).logits
        torch.testing.assert_close(ours(frames, target), said, atol=1e-5, rtol=0)
        cache, memory = ours.new_cache(), ours.encode(frames)
        steps = [ours.decode(target[:, i : i + 1], memory, cache) for i in range(9)]
        torch.testing.assert_close(torch.cat(steps, 1), said, atol=1e-5, rtol=0)
    export(tmp_path / "ours", tmp_path / "back", to="hf")
    before, after = (load_file(each / "model.safetensors") for each in (path, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(again[1].values())


def test_signs_are_no_text_and_have_their_ids(theirs: tuple[Any, Path], tmp_path: Path) -> None:
    import_(theirs[1], tmp_path / "ours")
    tokens = Tokenizer.load(tmp_path / "ours" / "tokenizer.json")
    assert tokens.marks.bos == END + 1
    assert tokens.rust.token_to_id("<|0.00|>") == END + SIGNS.index("<|0.00|>")
    assert END + 1 not in tokens.encode("a <|startoftranscript|> in a text")
    assert tokens.decode([*tokens.encode(" the"), END + SIGNS.index("<|1.00|>"), *tokens.encode(" and")]) == " the and"
    predictor = load(tmp_path / "ours")
    assert predictor.multilingual
    assert predictor.signs.languages["de"] == END + SIGNS.index("<|de|>")


def openai_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of Hugging Face's by OpenAI's names."""
    pairs = [
        ("model.", ""),
        (".layers.", ".blocks."),
        ("encoder_attn", "cross_attn"),
        ("self_attn", "attn"),
        ("_layer_norm", "_ln"),
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
        ("fc1", "mlp.0"),
        ("fc2", "mlp.2"),
        ("final_ln", "mlp_ln"),
        ("encoder.layer_norm", "encoder.ln_post"),
        ("decoder.layer_norm", "decoder.ln"),
        ("embed_positions.weight", "positional_embedding"),
        ("embed_tokens", "token_embedding"),
    ]
    found = {}
    for name, x in state.items():
        for a, b in pairs:
            name = name.replace(a, b)
        found[name] = x
    return found


@pytest.fixture
def files(theirs: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The same model as OpenAI and whisper.cpp have it."""
    model, _ = theirs
    state = {name: x for name, x in model.state_dict().items() if name != "proj_out.weight"}
    named, c = openai_names(state), model.config
    sizes = [c.vocab_size, 100, 32, 4, 2, 60, 32, 4, 3, 16]
    dims = {f"n_{name}": size for name, size in zip(whisper.SIZES, sizes, strict=True)}
    dims["n_audio_layer"], dims["n_text_layer"] = 2, 3
    torch.save({"dims": dims, "model_state_dict": named}, tmp_path / "toy.pt")
    lines = [f"{base64.b64encode(word).decode()} {i}" for i, word in enumerate(WORDS)]
    (tmp_path / "multilingual.tiktoken").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(whisper, "marks", lambda tokens: SIGNS)  # of 51865 tokens
    raw = whisper.GGML + struct.pack("<11i", *sizes, 1) + struct.pack("<2i", 16, 3) + np.zeros(48, "<f4").tobytes()
    raw += struct.pack("<i", len(WORDS)) + b"".join(struct.pack("<i", len(word)) + word for word in WORDS)
    for name, x in named.items():
        x = x[:, None] if name.startswith("encoder.conv") and name.endswith("bias") else x
        raw += struct.pack("<3i", x.dim(), len(name), 0) + struct.pack(f"<{x.dim()}i", *reversed(x.shape))
        raw += name.encode() + x.numpy().astype("<f4").tobytes()
    (tmp_path / "ggml.bin").write_bytes(raw)
    return {"pt": tmp_path / "toy.pt", "bin": tmp_path / "ggml.bin"}


@pytest.mark.parametrize("kind", ["pt", "bin"])
def test_files_of_other_programs_are_the_same_model(
    kind: str, files: dict[str, Path], theirs: tuple[Any, Path], tmp_path: Path
) -> None:
    for place in (theirs[1], files[kind].parent):
        (place / "normalizer.json").write_text('{"colour": "color"}')
    import_(theirs[1], tmp_path / "hf")
    import_(files[kind], tmp_path / "ours")
    quantize_directory(tmp_path / "ours", tmp_path / "int8")
    export(tmp_path / "ours", tmp_path / "back", to="hf")
    for name in ("hf", "ours", "int8", "back"):
        assert (tmp_path / name / "normalizer.json").read_text() == '{"colour": "color"}'
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "ours"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    texts = ["the and", " the", "Ünï ☕ #"]
    tokens = [Tokenizer.load(tmp_path / name / "tokenizer.json") for name in ("hf", "ours")]
    assert tokens[0].encode_batch(texts) == tokens[1].encode_batch(texts)


@pytest.mark.parametrize("quantization", ["float32", "float16", "bfloat16", "int8"])
def test_a_model_of_ctranslate2_is_the_same(quantization: str, theirs: tuple[Any, Path], tmp_path: Path) -> None:
    """As faster-whisper has it: what it rounded is as near as its numbers are."""
    specs = pytest.importorskip("ctranslate2.specs")
    transformers_ = pytest.importorskip("ctranslate2.converters.transformers")
    spec = specs.WhisperSpec(2, 4, 3, 4)
    transformers_.WhisperLoader().set_encoder(spec.encoder, theirs[0].model.encoder)
    transformers_.WhisperLoader().set_decoder(spec.decoder, theirs[0].model.decoder)
    transformers_.WhisperLoader().set_linear(spec.decoder.projection, theirs[0].proj_out)
    spec.register_vocabulary([str(i) for i in range(theirs[0].config.vocab_size)])
    spec.validate()
    spec.optimize(quantization=quantization)
    (tmp_path / "ct2").mkdir()
    spec.save(str(tmp_path / "ct2"))
    (tmp_path / "ct2" / "tokenizer.json").write_text(json.dumps(content()))
    import_(theirs[1], tmp_path / "hf")
    import_(tmp_path / "ct2", tmp_path / "ours")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "ours"))
    assert one.keys() == other.keys()
    near = {"float32": 0.0, "float16": 1e-3, "bfloat16": 8e-3, "int8": 8e-3}[quantization]
    for name in one:
        assert (one[name] - other[name]).abs().max() <= near * one[name].abs().max(), name
    settings = [storage.config(tmp_path / name) for name in ("hf", "ours")]
    assert settings[0] == settings[1]
    whole = (tmp_path / "ct2" / "model.bin").read_bytes()
    (tmp_path / "ct2" / "model.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        import_(tmp_path / "ct2", tmp_path / "none")


@pytest.mark.parametrize("kind", ["pt", "bin"])
def test_a_damaged_file_is_refused_in_a_line(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    whole = files[kind].read_bytes()
    files[kind].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged") as refused:
        import_(files[kind], tmp_path / "ours")
    assert "\n" not in str(refused.value)
    if kind == "pt":
        files[kind].write_bytes(whole)
        (tmp_path / "multilingual.tiktoken").unlink()
        with pytest.raises(ValueError, match=r"multilingual.tiktoken is not there"):
            import_(files[kind], tmp_path / "ours")


def test_merges_are_found_again() -> None:
    pieces, merges = ranked(WORDS)
    assert merges == ["Ġ t", "h e", "Ġt he", "Ġ a", "n d", "Ġa nd", ". .", "â Ļ"]
    assert len(pieces) == len({*pieces}) == END


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples of speech are not here")
def test_real_weights_write_what_the_reference_writes(tmp_path: Path) -> None:
    try:
        import_("whisper-tiny.en", tmp_path / "ours")
    except OSError as error:
        pytest.skip(str(error))
    export(tmp_path / "ours", tmp_path / "hf", to="hf")
    reference = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf")
    frames_of, transcriber = transformers.WhisperFeatureExtractor(), load(tmp_path / "ours")
    generation, signs = reference.generation_config, transcriber.signs
    generation.no_timestamps_token_id, generation.is_multilingual = signs.untimed, False
    generation.suppress_tokens = [i for i in signs.unspoken if i != signs.untimed]
    generation.begin_suppress_tokens = [*transcriber.tokenizer.encode(" "), signs.end]
    generation.max_initial_timestamp_index, generation.max_length = 50, 448
    sounds = sorted(SAMPLES.rglob("*.flac"))
    assert len(sounds) == 5
    for path in sounds:
        frames = frames_of(read(path), sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            ids = reference.generate(frames, return_timestamps=True, num_beams=1, do_sample=False)[0].tolist()
        said = transcriber.transcribe(path)
        assert said.text == transcriber.tokenizer.decode([i for i in ids if i < signs.end]).strip()
    same, eight = load(tmp_path / "ours", engine="torch"), load(tmp_path / "ours", precision="int8")
    by_engine = [each.transcribe(sounds[-1], words=True).segments for each in (transcriber, same)]
    assert [each.tokens for each in by_engine[0]] == [each.tokens for each in by_engine[1]]
    ends = [[word.end for each in segments for word in each.words or ()] for segments in by_engine]
    np.testing.assert_allclose(*ends, atol=0.021)  # a step of a model's clock
    assert english(eight.transcribe(sounds[-1]).text) == english(said.text)  # a sign may go


@pytest.mark.oracle
@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples of speech are not here")
@torch.inference_mode()
def test_real_weights_are_those_of_openai(tmp_path: Path) -> None:
    """The package openai-whisper wants more than it needs: pip install --no-deps openai-whisper numba llvmlite."""
    theirs = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    try:
        WEIGHTS["whisper-tiny.en"].unpack(tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    import_(tmp_path / "tiny.en.pt", tmp_path / "ours")
    reference, transcriber = theirs.load_model(str(tmp_path / "tiny.en.pt"), "cpu"), load(tmp_path / "ours")
    for path in sorted(SAMPLES.rglob("*.flac")):
        samples = read(path)
        mel = theirs.log_mel_spectrogram(theirs.pad_or_trim(torch.from_numpy(samples)))
        frames = log_mel(samples, 80, 3000)
        assert (mel.T - frames).abs().max() <= 1e-5
        ids = [transcriber.signs.first, *transcriber.tokenizer.encode(" and so my fellow")]
        said = reference.logits(torch.tensor([ids]), reference.encoder(mel[None]))
        ours = transcriber.model(frames[None], torch.tensor([ids]))
        assert (said - ours).abs().max() <= 1e-4 * said.abs().max()
        found = theirs.decode(reference, mel, theirs.DecodingOptions(language="en", fp16=False))
        assert found.text == transcriber.transcribe(path).text
