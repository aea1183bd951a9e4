"""Other ways to look at an attention than by its weights: what they move, where it comes from, how they came about.

Letters: B batch, H heads, T queries, S keys, L layers, d_k and d_v widths of a head. Rows are queries, columns keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.outputs import HeadConfig, VectorHead
from regard.core.quantised import whole_matrix
from regard.inspection.axes import Grid
from regard.inspection.times import shared

APPROXIMATE = ("linformer", "performer", "linear")  # kinds of attention whose weights come of no such scores


def norm_maps(attention: MultiHeadAttention, weights: Tensor, values: Tensor) -> Tensor:
    """How long a vector each key adds to each query: the length of α_ij · (x_j W_V + b) W_O^h (Kobayashi et al., 2020).

    weights (B, H, T, S) and values (B, H, S, d_v) as recorded -> (B, H, T, S). A large weight on a short vector moves
    nothing, as where a head rests on the end of a sentence.
    """
    _, H, _, d_v = values.shape
    made = values  # without W_O the head's result is what leaves
    if not isinstance(attention.output, nn.Identity):
        W_O = whole_matrix(attention.output).detach().unflatten(1, (H, d_v)).permute(1, 2, 0)  # (H, d_v, d_model)
        made = values @ W_O.to(values.dtype)  # (B, H, S, d_model)
    return weights.abs() * made.norm(dim=-1)[:, :, None]


def rollout(maps: Sequence[Tensor]) -> list[Tensor]:
    """How much of each token reaches each position of an encoder's layers (attention rollout, Abnar & Zuidema, 2020).

    maps: the weights (B, H, T, T) of each layer's self-attention, the first layer first -> R_1 ... R_L (B, T, T), where
    R_l = Â_l R_(l-1), and Â is the mean over heads, plus one for the residual connection, each row over its sum.

    >>> rollout([torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])])[0].tolist()
    [[[0.5, 0.5], [0.0, 1.0]]]
    """
    reached: list[Tensor] = []
    for weights in maps:
        mixed = weights.mean(1) + torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        reached.append(mixed @ reached[-1] if reached else mixed)
    return reached


@contextmanager
def standing(model: nn.Module, grid: Grid) -> Iterator[list[Tensor]]:
    """Inside the block, note which share each place of a picture has in what stands for it, (places,), each time that
    a model sees one. Where it has no such head, it is that of its first token, or, if it writes, that of all alike."""
    noted = list[Tensor]()

    def note(head: Any, given: tuple[Tensor, ...]) -> None:
        noted.append(shared(model, shares_of(head, given[0][0])).float().cpu())

    heads = [each for each in model.modules() if isinstance(each, VectorHead)]  # which may not be asked
    writes = getattr(model, "head", HeadConfig()).kind == "tokens"
    shares = torch.eye(grid.places)
    if grid.places:
        noted.append(shares.mean(0) if writes or not grid.tokens else shares[0])
    hooks = [each.register_forward_pre_hook(note) for each in heads]
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()


def shares_of(head: VectorHead, features: Tensor) -> Tensor:
    """Which share each place has in the vector that stands for all of them: features (T, d_model) -> (T,).

    It is that of the token that is read, half of each of two, the weights of an attention; of the greatest numbers, how
    many of them come from a place.

    >>> shares_of(VectorHead(HeadConfig("vector", pool="max"), 2), torch.tensor([[1.0, 5.0], [2.0, 4.0]])).tolist()
    [0.5, 0.5]
    """
    T, d = features.shape
    if head.weigh is not None:
        return head.weigh(features)[:, 0].softmax(0)
    if head.pool == "max":
        return torch.bincount(features.argmax(0), minlength=T) / d
    read = {"first": [0], "both": [0, 1], "last": [T - 1]}.get(head.pool, [*range(T)])
    return torch.eye(T, device=features.device)[read].mean(0)


def dots(attention: MultiHeadAttention) -> bool:
    """Whether its scores are products of queries and keys as they are recorded, of every key by itself."""
    return attention.config.score == "dot" and attention.config.kind.partition(":")[0] not in APPROXIMATE


def query_key_products(attention: MultiHeadAttention, queries: Tensor, keys: Tensor, head: int, query: int) -> Tensor:
    """What each dimension of one head adds to the score of one query with each key, in the first row of a batch.

    queries (B, H, T, d_k) and keys (B, H, S, d_k) as recorded -> (S, d_k): its sums over d_k are the scores before any
    bias of the positions.
    """
    if not dots(attention):
        c = attention.config
        raise ValueError(f"{c.kind} attention by {c.score} score has no products of queries and keys to show")
    scale = attention.d_k**-0.5 if attention.config.scale is None else attention.config.scale
    return queries[0, head, query] * keys[0, head] * scale
