"""Out of an ONNX graph come the tensors that went in, by their names, in float32 or out of eight bits."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.convert import graphs

onnx = pytest.importorskip("onnx")
quantization = pytest.importorskip("onnxruntime.quantization")


class Layer(nn.Module):
    """With all that an exporter treats in a way of its own: products with and without a bias, a tie, equal tensors."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.query, self.dense = nn.Linear(d, d, bias=False), nn.Linear(d, 24)
        self.outer, self.norm, self.again = nn.Linear(24, d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.outer(torch.relu(self.dense(self.query(x)))))
        return self.again(x)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.layer = nn.ModuleList([Layer(), Layer()])
        for name, parameter in self.named_parameters():
            if "norm" not in name and "again" not in name:
                nn.init.normal_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layer:
            x = layer(x)
        return x


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Toy())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


def export(model: nn.Module, path: Path) -> Path:
    tokens = torch.randint(0, 40, (2, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (tokens,), str(path), input_names=["tokens"], dynamo=False)
    return path


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy()


@pytest.mark.parametrize("name", ["model.onnx", "encoder.onnx", "decoder_model.onnx"])
def test_tensors_have_the_names_that_they_had(toy: Toy, tmp_path: Path, name: str) -> None:
    found = graphs.read([export(toy, tmp_path / name)])
    before = "encoder." if name.startswith("encoder") else ""
    assert found.keys() == {f"{before}{key}" for key in toy.state_dict()}
    for key, x in toy.state_dict().items():
        assert torch.equal(found[f"{before}{key}"], x), key


def test_what_a_wrapper_puts_before_all_names_goes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Wrapped()
    found = graphs.read([export(model, tmp_path / "model.onnx")])
    assert found.keys() == model.model[0].state_dict().keys()


class Tokens(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.rows = iter([{"tokens": draw.integers(0, 40, (2, 5))} for _ in range(3)])

    def get_next(self) -> Any:
        return next(self.rows, None)


def eight_bits(path: Path, how: str) -> Path:
    out = path.with_name("int8.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how.startswith("dynamic"):
            quantization.quantize_dynamic(path, out, per_channel="each" in how)
        else:
            form = quantization.QuantFormat.QDQ
            quantization.quantize_static(path, out, Tokens(), quant_format=form, per_channel="each" in how)
    return out


@pytest.mark.parametrize("how", ["dynamic", "dynamic, each column", "static", "static, each column"])
def test_eight_bits_are_multiplied_out(toy: Toy, tmp_path: Path, how: str) -> None:
    found = graphs.read([eight_bits(export(toy, tmp_path / "model.onnx"), how)])
    assert found.keys() == toy.state_dict().keys()
    products = 0
    for key, x in toy.state_dict().items():
        each = "each" in how and x.dim() == 2 and "words" not in key
        step = x.abs().amax(1, keepdim=True) if each else x.abs().max()
        assert ((found[key] - x).abs() <= step / 100).all(), key  # 127 steps on each side, or 255 in all
        products += x.dim() == 2 and not torch.equal(found[key], x)
    assert products >= 6


def test_what_is_no_graph_or_has_lost_its_names_is_one_line(toy: Toy, tmp_path: Path) -> None:
    path = export(toy, tmp_path / "model.onnx")
    good = path.read_bytes()
    for content in (b"", b"no graph at all", good[: len(good) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model.onnx (is no ONNX graph|holds no tensor)") as caught:
            graphs.read([path])
        assert "\n" not in str(caught.value)
    path.write_bytes(good)
    graph = onnx.load(str(path))
    for node in graph.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = name.replace(".", "::")
        for i, name in enumerate(node.output):
            node.output[i] = name.replace(".", "::")
    for tensor in graph.graph.initializer:
        tensor.name = tensor.name.replace(".", "::")
    for node in graph.graph.node:
        node.name = ""
    onnx.save(graph, str(path))
    with pytest.raises(ValueError, match=r"model.onnx holds no tensor that has kept its name: export the model again"):
        graphs.read([path])
