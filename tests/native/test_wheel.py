"""A wheel for Linux on x86-64 has the engine in it: no compiler is asked, and each variant says what PyTorch says."""

import copy
import ctypes
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from regard.core.layers import linear
from regard.core.losses import linear_cross_entropy
from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.data.augment import Augment
from regard.models.encoder import Encoder, bert_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native, NativeReader, build, compiler, pictures
from regard.native.lend import lend, lending
from regard.native.training import NativeKernels

ROOT = Path(__file__).parents[2]
USE = """
import sys
from pathlib import Path
import regard
from regard.native import build
assert Path(regard.__file__).is_relative_to(sys.argv[1]), regard.__file__
assert build.library().worth_it() in (0, 1)
print(regard.load(engine="native").translate("Hello."))
"""


@pytest.fixture(scope="module", autouse=True)
def builds() -> None:
    pytest.importorskip("hatchling")
    if sysconfig.get_platform() != "linux-x86_64":
        pytest.skip("wheels with the engine are for Linux on x86-64")


def wheel(folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=os.environ | environment)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel."""
    try:
        compiler.command()
    except build.UnavailableError as error:
        pytest.skip(str(error))
    made = wheel(tmp_path_factory.mktemp("wheel"))
    assert "-py3-none-manylinux_2_" in made.name
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(made) as file:
        file.extractall(folder)
    return folder


def test_without_a_compiler_a_wheel_is_for_all_systems(tmp_path: Path) -> None:
    made = wheel(tmp_path, CC="no-such-compiler")
    assert made.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith(".so") for name in zipfile.ZipFile(made).namelist())


@pytest.mark.slow
def test_no_compiler_is_asked(installed: Path, tmp_path: Path) -> None:
    environment = {"CC": "no-such-compiler", "REGARD_CACHE": str(tmp_path), "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", USE, str(installed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("variant", compiler.VARIANTS)
def test_each_variant_says_what_pytorch_says(installed: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (shipped,) = (installed / "regard" / "native").glob("engine-*.so")
    lib = ctypes.CDLL(str(shipped))
    if variant not in build.variants(lib):
        pytest.skip("not on this processor")
    functions = build.functions(lib, variant)
    assert functions.worth_it() == (variant in ("avx512_", "vnni_", "bf16_"))
    monkeypatch.setattr(build, "library", lambda: functions)
    torch.manual_seed(0)
    for changes in ({"norm": "pre"}, {"d_model": 36, "heads": 3, "d_k": 7, "d_ff": 50, "feed_forward": "swiglu"}):
        model = Transformer(TransformerConfig.tiny(133, encoder_layers=2, decoder_layers=2).but(**changes)).eval()
        for each, tolerance in ((model, 2e-5), (quantise(copy.deepcopy(model)), 0.05)):
            texts, prefix = [[5, 6, 7, 8, 9], [11] * 21, [7]], [1, 20, 30, 40]
            rows = Native(each).rows()
            rows.start(texts)
            for token in prefix:
                logits = rows.step(np.full(3, token))
            with torch.inference_mode():
                truth = [each(torch.tensor([text]), torch.tensor([prefix]))[0, -1] for text in texts]
            np.testing.assert_allclose(logits, np.stack(truth), atol=tolerance)
    reading = Encoder(bert_tiny(133, d_model=48, heads=3, d_ff=100), HeadConfig("classes", 40, hidden="tanh")).eval()
    for model, tolerance in ((reading, 1e-5), (quantise(copy.deepcopy(reading)), 0.05)):
        together = NativeReader(model, threads=2).outputs([[i % 133] * i for i in range(1, 40)])
        for text, said in ((1, together[0]), (13, together[12]), (39, together[38])):
            with torch.inference_mode():
                truth = model(torch.full((1, text), text), keep=torch.ones(1, text, dtype=torch.bool))[0]
            np.testing.assert_allclose(said, truth, atol=tolerance)
            assert np.array_equal(NativeReader(model).outputs([[text] * text])[0], said)
    monkeypatch.setattr(pictures, "_library", lambda: functions)
    images, augment = [*np.random.default_rng(0).integers(0, 256, (50, 9, 11, 3), np.uint8)], Augment(4, operations=2)
    draw = Random(0)
    changed = [augment.picture(image, draw) for image in images]
    assert np.array_equal(pictures.augmented(augment, images, Random(0)), changed)
    kernels, layer, x = NativeKernels(functions), linear(32, 48), torch.randn(50, 32, requires_grad=True)
    lend(layer)
    W, y, results = torch.randn(77, 48), torch.randint(77, (50,)), []
    for lent in (None, kernels):
        with lending(lent):
            loss = linear_cross_entropy(layer(x), W, y)
        results.append([loss, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
