"""The memory of a training process: what its heap keeps, and what lies on the disk instead."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MUCH, LITTLE = 2**28, 2**23  # bytes
LARGE_MODEL = 2**26  # parameters of a model for which a step is so long that it can ask for its pages each time


def heap_for(parameters: int) -> int:
    """How much freed memory a process keeps that trains so many.

    What lies between two pieces that are in use it keeps as well: of a large model, hundreds of megabytes.
    """
    return LITTLE if parameters >= LARGE_MODEL else MUCH


MAKERS = (torch.empty, torch.zeros, torch.ones, Tensor.to, Tensor.float)  # of the numbers of a model
LARGE = 2**16  # bytes of a tensor that is worth a file


class OnDisk(TorchFunctionMode):
    """`with OnDisk(directory):` a model that is built, or read, in the block lies in files there, and is mapped.

    The system writes them out and takes their memory back where it is needed: to a limit on memory they do not count. A
    file has no name from the start, so that the disk has its room back when its tensor goes.

    >>> with OnDisk(tempfile.gettempdir()):
    ...     model = torch.nn.Linear(200, 100)
    >>> model.weight.shape, model.weight.untyped_storage().filename is None
    (torch.Size([100, 200]), False)
    """

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.directory = directory

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function not in MAKERS or type(made) is not Tensor or made.device.type != "cpu" or made.nbytes < LARGE:
            return made
        if any(made is given for given in args):  # as it was
            return made
        handle, name = tempfile.mkstemp(dir=self.directory, prefix=".weights-")
        os.close(handle)
        try:
            mapped = torch.from_file(name, shared=True, size=made.numel(), dtype=made.dtype).view(made.shape)
        finally:
            os.unlink(name)
        return mapped if function is torch.empty else mapped.copy_(made)
