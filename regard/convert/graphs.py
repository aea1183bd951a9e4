"""From ONNX: the tensors of a graph, by the names that they had in PyTorch.

An exporter keeps the names of most; the matrix of a product it turns round and numbers, `onnx::MatMul_123`. What a node
is called tells where it stood, `/encoder/layer.0/attention/self/query/MatMul`, and so which weight it was. A tensor in
eight bits stands beside its scale and its zero point: x = (q - zero) · scale. A graph that regard wrote says where each
tensor of ours is.
"""

import json
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
NAMED = "regard.tensors"  # of ours -> in the graph, ^T after one that is turned round
QUANTISED, PARTS = "_quantized", ("scale", "zero_point")


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
        model = onnx.load(str(path))
        stored = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        ours = next((json.loads(each.value) for each in model.metadata_props if each.key == NAMED), None)
        found = _named(model.graph, stored) if ours is None else _placed(model.graph, stored, ours)
    except Exception as error:  # of protobuf's, of a file beside it, or of what is in no place where it belongs
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no ONNX graph that can be read: {reason}") from None
    if not found:
        raise ValueError(f"{path} holds no tensor that has kept its name: export the model again, without renaming")
    found = _unwrapped(found, path) if ours is None else found
    return {name: torch.from_numpy(np.array(x, np.float32)) for name, x in found.items()}


def _all(graph: Any, stored: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The numbers of all that is stored in a graph."""
    codes = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    return {name: _whole(name, stored, codes.get(name)) for name in stored}


def _placed(graph: Any, stored: dict[str, NDArray[Any]], ours: dict[str, str]) -> dict[str, NDArray[Any]]:
    """Our tensors by our names, out of the places that a graph says."""
    whole = {name.removesuffix(QUANTISED): x for name, x in _all(graph, stored).items()}
    return {name: whole[at.removesuffix("^T")].T if at.endswith("^T") else whole[at] for name, at in ours.items()}


def _named(graph: Any, stored: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What is stored in a graph, by the names that it had."""
    whole = _all(graph, stored)
    copies = {node.output[0]: node.input[0] for node in graph.node if node.op_type in ("DequantizeLinear", "Identity")}

    def source(name: str) -> str:
        """The tensor as it is stored, of one that is multiplied out, or that is equal to another."""
        for _ in copies:
            if name in whole or name not in copies:
                break
            name = copies[name]
        return name

    named = {name.removesuffix(QUANTISED): x for name, x in whole.items() if "::" not in name}
    named |= {name: whole[source(name)] for name in copies if source(name) in whole}
    for node in graph.node:
        if node.op_type in ("MatMul", "MatMulInteger") and "::" in (read := source(node.input[1])) and read in whole:
            place = _place(node.name)
            named |= {f"{place}.weight": whole[read].T} if place else {}
    return {name: x for name, x in named.items() if name.endswith((".weight", ".bias")) and "/" not in name}


def _whole(name: str, stored: dict[str, NDArray[Any]], node: Any) -> NDArray[Any]:
    """A tensor as it is stored, or the numbers that its codes stand for, as a node says or the names beside it."""
    x, axis, beside = stored[name], stored[name].ndim - 1, [f"{name.removesuffix(QUANTISED)}_{part}" for part in PARTS]
    if node is not None:
        beside = list(node.input[1:])
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    elif not name.endswith(QUANTISED):
        return x
    scale, zero = [*(stored[each] for each in beside if each in stored), np.zeros((), x.dtype)][:2]
    if scale.ndim:  # one for each slice along an axis
        shape = [-1 if each == axis % x.ndim else 1 for each in range(x.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.ndim else zero
    return (x.astype(np.float32) - zero.astype(np.float32)) * scale


def _place(node: str) -> str:
    """Which module a node stood in; a container that is called says its name twice.

    >>> _place("/model/model.0/layer.1/query/MatMul_quant")
    'model.0.layer.1.query'
    """
    parts = node.strip("/").split("/")[:-1]
    inner = [*parts[1:], ""]
    return ".".join(part for part, after in zip(parts, inner, strict=False) if not after.startswith(f"{part}."))


def _unwrapped(tensors: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """Without what a wrapper put before all names; what is in a graph of the encoder alone says so.

    >>> list(_unwrapped({"m.0.layer.1.weight": np.ones(1), "m.0.norm.bias": np.ones(1)}, Path("encoder.onnx")))
    ['encoder.layer.1.weight', 'encoder.norm.bias']
    """
    names = [name.split(".") for name in tensors]
    common = 0
    while names[0][common] not in ("encoder", "decoder") and all(name[common] == names[0][common] for name in names):
        common += 1
        if any(len(name) - common < 2 for name in names):  # a name has a part and its weight or bias
            break
    side = ["encoder"] if path.stem.startswith("encoder") and names[0][common] != "encoder" else []
    return {".".join([*side, *name[common:]]): x for name, x in zip(names, tensors.values(), strict=True)}
