"""A graph, drawn, with what its nodes look at: one self-contained HTML page.

Letters: N nodes, E edges.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.inspection.page import SCALE, AttentionMap, filled

STEPS = 200  # of the layout
LIKELIER = 1.75  # times: neighbours of two that are the same


class DrawnGraph(NamedTuple):
    """A graph on paper."""

    places: NDArray[np.float64]  # (N, 2)
    edges: Sequence[tuple[int, int, str]]  # with what each is
    nodes: Sequence[str]  # what each is, in a few letters
    virtual: bool  # whether the first of each map is the graph as a whole


def laid_out(distances: NDArray[np.int64], far: int) -> NDArray[np.float64]:
    """Places (N, 2) that are as far from each other as nodes are along edges, (N, N), if paper allows it.

    Each step moves all nodes to where their springs want them (SMACOF; de Leeuw, 1977); a short spring is stiff.
    """
    n = len(distances)
    reach = distances.astype(float)
    reach[distances >= far] = reach[distances < far].max(initial=1.0) + 1.0  # pieces stand beside each other
    angle = 2 * np.pi * np.arange(n) / max(n, 1)
    x = np.stack([np.cos(angle), np.sin(angle)], 1) * max(1.0, n / 4)
    weight = 1.0 / np.maximum(reach, 1e-9) ** 2 * (1 - np.eye(n))
    pull = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(STEPS):
        apart = np.linalg.norm(x[:, None] - x, axis=-1)
        stretch = -weight * reach / np.maximum(apart, 1e-9) * (1 - np.eye(n))
        x = pull @ ((stretch - np.diag(stretch.sum(1))) @ x)
    return np.asarray(x)


def paired(looks: NDArray[Any], near: NDArray[np.bool_], near_before: NDArray[np.bool_]) -> list[int | None]:
    """Which node was which before a change: by how much they look at each other, (after, before), 0 where they cannot
    be the same, and by who is next to whom, on either side.

    The two that look at each other most come first, then neighbours of what is paired, as long as there are any: two
    neighbours of a pair are the likelier for it (Schwaller et al., 2021).
    """
    left, found = looks.astype(np.float64), list[int | None]([None] * len(looks))
    beside = np.zeros(len(left), bool)
    while left.any():
        rows = np.flatnonzero(beside & left.any(1)) if (beside & left.any(1)).any() else np.arange(len(left))
        i, j = divmod(int(left[rows].argmax()), left.shape[1])
        i = int(rows[i])
        found[i] = j
        left[np.ix_(near[i], near_before[j])] *= LIKELIER
        left[i], left[:, j], beside[near[i]] = 0.0, 0.0, True
    return found


def graph_data(
    drawn: DrawnGraph, maps: Sequence[AttentionMap], said: str, without: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    """What the page draws: a graph, what each head looks at from each node, and what is said without a head."""
    low, high = drawn.places.min(0), drawn.places.max(0)
    places = (drawn.places - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return {
        "scale": SCALE,
        "places": places.round(4).tolist(),
        "edges": list(drawn.edges),
        "nodes": list(drawn.nodes),
        "virtual": drawn.virtual,
        "said": said,
        "maps": [
            {
                "name": each.name,
                "heads": each.numbers,
                "weights": (each.weights.detach().cpu().double() * SCALE).round().int().tolist(),
                "without": [without.get((each.name, head), "") for head in each.numbers],
            }
            for each in maps
        ],
    }


def graph_page(data: dict[str, Any], title: str) -> str:
    """An HTML document that draws it."""
    return filled("graph.html", title, data)
