"""A model of another program, in the words of Hugging Face: all readers of files give the same."""

from typing import Any, NamedTuple

from torch import Tensor


class Theirs(NamedTuple):
    """What a directory of Hugging Face's would hold."""

    files: dict[str, Any]  # name -> what it says: text, or an object of JSON
    tensors: dict[str, Tensor]


def halved(x: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys for rotation by halves, as Hugging Face has them: others turn neighbours together.

    >>> import torch
    >>> halved(torch.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def neighbouring(x: Tensor, heads: int) -> Tensor:
    """And back.

    >>> import torch
    >>> neighbouring(halved(torch.arange(8), heads=2), heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
