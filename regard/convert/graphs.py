"""From ONNX: the tensors of a graph, by the names that they had in PyTorch.

An exporter keeps the names of most; the matrix of a product it turns round and numbers, `onnx::MatMul_123`. What a node
is called tells where it stood, `/encoder/layer.0/attention/self/query/MatMul`, and so which weight it was. A tensor in
eight bits stands beside its scale and its zero point: x = (q - zero) · scale.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.checks import need

FILES = [  # where a directory of Hugging Face's has graphs
    ["model.onnx"],
    ["onnx/model.onnx"],
    ["encoder.onnx", "decoder.onnx"],
    ["onnx/encoder_model.onnx", "onnx/decoder_model.onnx"],
]
QUANTISED = "_quantized"


def within(directory: Path) -> list[Path]:
    """The graphs of a directory that has no other weights."""
    if any(directory.glob("*.safetensors*")) or any(directory.glob("pytorch_model*.bin*")):
        return []
    paths = ([directory / name for name in names] for names in FILES)
    return next((found for found in paths if all(path.is_file() for path in found)), [])


def read(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of some files, in float32."""
    return {name: x for path in paths for name, x in _tensors(path).items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    onnx = need("onnx", "convert")
    try:
        graph = onnx.load(str(path)).graph
        stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    except Exception as error:  # of protobuf's, or of a file beside it
        raise ValueError(f"{path} is no ONNX graph that can be read: {str(error).splitlines()[0]}") from None
    whole = {name: _whole(name, stored, graph) for name in stored}
    named = {name.removesuffix(QUANTISED): x for name, x in whole.items() if "::" not in name}
    # What a node reads may be a tensor as it is stored, or what its codes stand for.
    aliases = {node.output[0]: node.input[0] for node in graph.node if node.op_type in ("DequantizeLinear", "Identity")}
    for node in graph.node:
        source = next((aliases.get(name, name) for name in node.input[1:2]), "")
        if node.op_type in ("MatMul", "MatMulInteger") and "::" in source and source in whole:
            *place, _ = node.name.strip("/").split("/")
            named[".".join([*place, "weight"])] = whole[source].T
    named |= {name: named[own] for name, own in aliases.items() if own in named and "/" not in name}
    floats = {name: x for name, x in named.items() if x.dtype.kind == "f" and x.ndim and "/" not in name}
    if not floats:
        raise ValueError(f"{path} holds no tensor that has kept its name: export the model again, without renaming")
    return {name: torch.from_numpy(np.array(x, np.float32)) for name, x in _unwrapped(floats, path).items()}


def _whole(name: str, stored: dict[str, NDArray[Any]], graph: Any) -> NDArray[Any]:
    """A tensor as it is stored, or the numbers that its codes stand for."""
    x, scale = stored[name], stored.get(name.removesuffix(QUANTISED) + "_scale")
    if not name.endswith(QUANTISED) or scale is None:
        return x
    zero = stored.get(name.removesuffix(QUANTISED) + "_zero_point", np.zeros((), x.dtype))
    if scale.ndim:  # one for each slice along an axis
        own = (a.i for node in graph.node if name in node.input[:1] for a in node.attribute if a.name == "axis")
        shape = [1] * x.ndim
        shape[next(own, x.ndim - 1)] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.ndim else zero
    return (x.astype(np.float32) - zero.astype(np.float32)) * scale


def _unwrapped(tensors: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """Without what a wrapper put before all names; what is in a graph of the encoder alone says so.

    >>> list(_unwrapped({"m.0.layer.1.weight": np.ones(1), "m.0.norm.bias": np.ones(1)}, Path("encoder.onnx")))
    ['encoder.layer.1.weight', 'encoder.norm.bias']
    """
    names = [name.split(".") for name in tensors]
    common = 0
    while len({tuple(name[: common + 1]) for name in names}) == 1 and names[0][common] not in ("encoder", "decoder"):
        common += 1
    side = ["encoder"] if path.stem.startswith("encoder") and names[0][common] != "encoder" else []
    return {".".join([*side, *name[common:]]): x for name, x in zip(names, tensors.values(), strict=True)}
