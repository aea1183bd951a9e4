"""A model comes back from its directory as it was, and whatever is wrong with the directory is said in one line."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from regard.core.quantised import is_quantised, quantise
from regard.models import storage
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.transformer import Transformer, TransformerConfig

SOURCE, TARGET = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]]), torch.tensor([[1, 5, 4], [1, 9, 8]])
SHAPE: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "target": {"tie": "target", "source_vocabulary": 31},
    "none": {"tie": "none"},
    "learned": {"positions": "learned", "max_length": 10},
    "shaw": {"positions": "shaw", "norm": "pre"},
    "t5": {"positions": "t5"},
    "llama": {"positions": "rope", "feed_forward": "swiglu", "norm_kind": "rms", "bias": False, "kv_heads": 2},
    "scaled": {"scale": 0.3, "d_k": 6, "d_v": 3, "dropout": 0.0},
}


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(23, **SHAPE | changes))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_model_comes_back_with_its_ties(tmp_path: Path, variant: str, dtype: torch.dtype) -> None:
    model = build(**VARIANTS[variant]).to(dtype)
    storage.save(model, tmp_path / "new" / "model")
    random = torch.get_rng_state()
    loaded = storage.load(tmp_path / "new" / "model")
    assert torch.equal(torch.get_rng_state(), random)
    assert isinstance(loaded, Transformer)
    assert loaded.config == model.config == storage.config(tmp_path / "new" / "model")
    assert not any(module.training for module in loaded.modules())
    ours, theirs = dict(model.named_parameters()), dict(loaded.named_parameters())  # a shared one once
    assert [*ours] == [*theirs]
    for name, parameter in ours.items():
        assert parameter.dtype == theirs[name].dtype == dtype
        assert theirs[name].requires_grad
        assert torch.equal(parameter, theirs[name])
    assert torch.equal(loaded(SOURCE, TARGET), model.eval()(SOURCE, TARGET))
    stored = load_file(tmp_path / "new" / "model" / "model.safetensors")
    assert stored.keys() == ours.keys()
    assert sorted(os.listdir(tmp_path / "new" / "model")) == ["config.json", "model.safetensors"]


def test_a_loaded_model_learns_and_is_saved_again(tmp_path: Path) -> None:
    storage.save(build(), tmp_path)
    model = storage.load(tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    model(SOURCE, TARGET).sum().backward()
    assert model.output.weight.grad is model.source_embedding.tokens.weight.grad is not None  # type: ignore[union-attr]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    again = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(again[name], x) for name, x in before.items())  # its weights are the file's, not the file
    storage.save(model, tmp_path)
    assert torch.equal(storage.load(tmp_path)(SOURCE, TARGET), model(SOURCE, TARGET))


def test_the_same_model_gives_the_same_bytes_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / ".saving").mkdir()  # of a process that was killed
    (tmp_path / ".saving" / "half").touch()
    files = {}
    for turn in range(2):
        storage.save(build(positions="t5"), tmp_path)
        files[turn] = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert files[0] == files[1]
    assert files[0].keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    about = json.loads(files[0]["config.json"])
    assert about.keys() == {"format", "family", "regard", "config", "head"}
    assert (about["format"], about["family"], about["regard"]) == (2, "transformer", version("regard"))
    assert TransformerConfig(**about["config"]) == build(positions="t5").config


def test_who_may_read_the_config_may_read_the_weights(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        storage.save(build(), tmp_path)
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("config.json", "model.safetensors")} == {0o644}


def test_weights_are_converted_on_request(tmp_path: Path) -> None:
    model = build()
    storage.save(model, tmp_path)
    loaded = storage.load(tmp_path, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert loaded.output.weight is loaded.source_embedding.tokens.weight  # type: ignore[union-attr]
    for name, x in loaded.state_dict().items():
        assert torch.equal(x, model.state_dict()[name].bfloat16())
    assert {x.device.type for x in storage.load(tmp_path, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_quantised_model_comes_back_bit_for_bit(tmp_path: Path, variant: str) -> None:
    model = quantise(build(**VARIANTS[variant])).eval()
    storage.save(model, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert json.loads(first["config.json"])["changes"] == [{"int8": {}}]
    random = torch.get_rng_state()
    loaded = storage.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), random)
    assert is_quantised(loaded)
    assert storage.config(tmp_path) == model.config
    assert torch.equal(loaded(SOURCE, TARGET), model(SOURCE, TARGET))
    assert [*dict(loaded.named_parameters())] == [*dict(model.named_parameters())]  # a shared one once
    storage.save(loaded, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    for dtype in (torch.float32, torch.bfloat16):
        plain = storage.load(tmp_path, dtype=dtype)
        assert not is_quantised(plain)
        assert {x.dtype for x in plain.parameters()} == {dtype}
        assert [*dict(plain.named_parameters())] == [*dict(build(**VARIANTS[variant]).named_parameters())]
    torch.testing.assert_close(
        storage.load(tmp_path, dtype=torch.float32)(SOURCE, TARGET), model(SOURCE, TARGET), atol=0.1, rtol=0.1
    )


def test_a_quantised_file_is_a_quarter_as_large(tmp_path: Path) -> None:
    model = build(d_model=128, d_ff=256)
    storage.save(model, tmp_path / "fp32")
    storage.save(quantise(model), tmp_path / "int8")
    sizes = [(tmp_path / kind / "model.safetensors").stat().st_size for kind in ("fp32", "int8")]
    assert sizes[1] < 0.28 * sizes[0]


def edit(directory: Path, **changes: Any) -> None:
    """Change settings in `config.json`."""
    about = json.loads((directory / "config.json").read_text())
    about["config"] |= changes
    (directory / "config.json").write_text(json.dumps(about))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change tensors in `model.safetensors`."""
    tensors = {name: x.clone() for name, x in load_file(directory / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def declare(directory: Path, precision: Any) -> None:
    """Say in `config.json` that the model is of this precision."""
    about = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(about | {"precision": precision}))


def put(name: str, text: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).write_text(text)


NORM, BIAS = "encoder.layers.0.feed_forward.norm.weight", "encoder.layers.0.feed_forward.norm.bias"
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no directory": (shutil.rmtree, r"model is not a directory: name one that holds a model"),
    "no config": (lambda d: (d / "config.json").unlink(), r"model is not a model directory: it has no config.json"),
    "in training": (
        lambda d: ((d / "config.json").unlink(), (d / "trainer").mkdir()),
        r"model has no model yet: its training goes on by `regard train .*model`",
    ),
    "broken": (put("config.json", '{"format": 1,'), r"config.json is not JSON: .* line 1 column"),
    "no text": (lambda d: (d / "config.json").write_bytes(b"\xff\xfe"), r"config.json is not JSON: .*utf-8"),
    "a list": (put("config.json", "[]"), r"config.json is not the config of a model"),
    "no settings": (put("config.json", '{"format": 1}'), r"config.json is not the config of a model"),
    "no format": (
        put("config.json", '{"config": {}}'),
        r"config.json is of unknown format None, this regard reads up to 2",
    ),
    "newer": (put("config.json", '{"format": 3, "config": {}}'), "format 3, this regard reads up to 2: upgrade regard"),
    "family": (
        put("config.json", '{"format": 1, "family": "bert", "config": {}}'),
        r"config.json: unknown family 'bert': there are transformer",
    ),
    "family of a kind": (
        put("config.json", '{"format": 1, "family": ["bert"], "config": {}}'),
        r"config.json: unknown family .\['bert'\]",
    ),
    "required": (
        put("config.json", '{"format": 1, "family": "transformer", "config": {}}'),
        r"config.json: the setting 'vocabulary' is missing",
    ),
    "unknown": (lambda d: edit(d, head=3), r"config.json: unknown setting 'head': did you mean 'heads'\?"),
    "ill-typed": (lambda d: edit(d, heads="4"), r"config.json: heads = '4': expected a whole number"),
    "no number": (lambda d: edit(d, d_k=True), r"config.json: d_k = True: expected a whole number or none"),
    "no word": (lambda d: edit(d, tie=None), r"config.json: tie = None: expected text"),
    "impossible": (lambda d: edit(d, heads=5), r"config.json: .*heads"),
    "no choice": (lambda d: edit(d, positions="here"), r"config.json: positions = 'here': choose none, "),
    "other precision": (
        lambda d: declare(d, "int4"),
        r"config.json: unknown precision 'int4': it is int8, or left out",
    ),
    "precision of a kind": (lambda d: declare(d, ["int8"]), r"config.json: unknown precision \['int8'\]"),
    "not quantised": (
        lambda d: declare(d, "int8"),
        r"does not fit its config: 'source_embedding.tokens.weight' is torch.float32, not torch.int8; ",
    ),
    "no weights": (
        lambda d: (d / "model.safetensors").unlink(),
        r"model is not a whole model directory: it has no model.safetensors",
    ),
    "empty": (put("model.safetensors", ""), r"model.safetensors is damaged \(.*\): copy it again"),
    "no tensors": (put("model.safetensors", "hello " * 20), r"model.safetensors is damaged"),
    "truncated": (lambda d: os.truncate(d / "model.safetensors", 5000), r"model.safetensors is damaged"),
    "lengthened": (lambda d: os.truncate(d / "model.safetensors", 99_999), r"model.safetensors is damaged"),
    "other shape": (
        lambda d: edit(d, vocabulary=24),
        r"model.safetensors does not fit its config: 'source_embedding.tokens.weight' has the shape \(23, 16\), "
        r"not \(24, 16\)$",
    ),
    "lacking": (
        lambda d: rewrite(d, lambda t: t.pop(BIAS)),
        rf"model.safetensors does not fit its config: it has no tensor '{BIAS}'$",
    ),
    "too many": (
        lambda d: rewrite(d, lambda t: t.update(extra=torch.ones(1))),
        r"model.safetensors does not fit its config: it has a tensor 'extra' too many$",
    ),
    "untied": (lambda d: edit(d, tie="target"), r"no tensor 'target_embedding.tokens.weight'$"),
    "deeper": (lambda d: edit(d, encoder_layers=3), r"has no tensor 'encoder.layers.2.*'; 11 more are wrong$"),
    "endless layers": (
        lambda d: edit(d, decoder_layers=2**32),
        r"decoder_layers = 4294967296: it must be at most 4,096",
    ),
    "layers for nothing": (lambda d: edit(d, encoder_layers=4096), r"it has \d+ tensors for 4098 layers$"),
    "endless heads": (
        lambda d: edit(d, heads=2**24, d_k=2),
        r"config.json: heads = 16777216: it must be at most 4,096",
    ),
    "endless width": (
        lambda d: edit(d, d_model=2**62),
        r"config.json: d_model = 4611686018427387904: it must be at most",
    ),
    "a number for a number": (lambda d: edit(d, scale=10**400), r"config.json: scale = 1000"),
    "a very long config": (
        lambda d: (d / "config.json").write_text(" " * 2**21),
        r"config.json is not JSON: .* has 2,097,152 bytes: what it should be has at most 1,048,576",
    ),
    "deep": (put("config.json", "[" * 10**5), r"config.json is not JSON: maximum recursion depth"),
    "of eight bits": (
        lambda d: rewrite(d, lambda t: t.update({NORM: t[NORM].to(torch.float8_e4m3fn)})),
        rf"'{NORM}' is torch.float8_e4m3fn, not torch.float32$",
    ),
    "a pipe for weights": (
        lambda d: ((d / "model.safetensors").unlink(), os.mkfifo(d / "model.safetensors")),
        r"model is not a whole model directory: it has no model.safetensors",
    ),
    "a pipe for a config": (
        lambda d: ((d / "config.json").unlink(), os.mkfifo(d / "config.json")),
        r"model is not a model directory: it has no config.json",
    ),
    "mixed": (
        lambda d: rewrite(d, lambda t: t.update({NORM: t[NORM].half()})),
        rf"'{NORM}' is torch.float16, not torch.float32$",
    ),
    "no numbers": (
        lambda d: rewrite(d, lambda t: t[NORM][3:4].fill_(math.nan)),
        rf"model.safetensors is damaged, or its training diverged: '{NORM}' has values that are no numbers",
    ),
    "infinite": (lambda d: rewrite(d, lambda t: t[NORM][3:4].fill_(-math.inf)), rf"'{NORM}' has values that are no"),
    "whole numbers": (
        lambda d: rewrite(d, lambda t: t.update({NORM: t[NORM].int()})),
        rf"'{NORM}' is torch.int32, not torch.float32$",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, fault: str) -> None:
    harm, message = FAULTS[fault]
    storage.save(build(), tmp_path / "model")
    harm(tmp_path / "model")
    with pytest.raises(ValueError, match=message) as caught:
        storage.load(tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_matrix_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    """2^90 numbers: PyTorch raises a RuntimeError."""
    config = ConvolutionalConfig.convs2s(20, encoder_layers=1, decoder_layers=1)
    storage.save(Convolutional(config), tmp_path)
    edit(tmp_path, d_model=2**30, kernel=2**30 - 1)
    with pytest.raises(ValueError, match="no model can be built from its config: Storage size calculation overflowed"):
        storage.load(tmp_path)


def test_a_setting_that_is_left_out_has_its_default_and_a_whole_number_is_a_number(tmp_path: Path) -> None:
    storage.save(build(dropout=1.0), tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    del about["config"]["norm"]
    about["config"]["dropout"] = 1
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert storage.config(tmp_path) == build(dropout=1.0).config
    storage.load(tmp_path)


def test_a_header_with_a_wrong_byte_never_gives_other_weights(tmp_path: Path) -> None:
    model = build(encoder_layers=1, decoder_layers=1)
    storage.save(model, tmp_path)
    expected, data = model.state_dict(), (tmp_path / "model.safetensors").read_bytes()
    noticed = 0
    for at in range(0, 8 + int.from_bytes(data[:8], "little"), 37):
        (tmp_path / "model.safetensors").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            found = storage.load(tmp_path).state_dict()
        except ValueError:
            noticed += 1
        else:
            assert all(torch.equal(x, expected[name]) for name, x in found.items())
    assert noticed > 50


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a Linear cannot be saved: the families are transformer"):
        storage.save(nn.Linear(2, 2), tmp_path)
    model = build()
    model.output.weight = nn.Parameter(model.output.weight.detach().clone())
    with pytest.raises(
        ValueError, match=r"the model does not fit its config: it has a tensor 'output.weight' too many"
    ):
        storage.save(model, tmp_path)
    model = build()
    model.encoder.layers[0].feed_forward.norm.bfloat16()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"'.*norm.weight' is torch.bfloat16, not torch.float32; 1 more are wrong"):
        storage.save(model, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_failing_disk_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.save(build(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_as_safetensors_says_it(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    for where, name, failure in ((os, "fsync", full), (storage, "save_file", full_as_safetensors_says_it)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, failure)
            with pytest.raises(OSError, match="No space left on device") as caught:
                storage.save(build(heads=2), tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(NotADirectoryError) as refused:
        storage.save(build(), tmp_path / "config.json")
    assert refused.value.filename == str(tmp_path / "config.json")
