"""Graphormer against the paper's equations in plain loops, and what must not change what it says of a graph."""

import math
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.core.outputs import HeadConfig
from regard.data.graphs import FAR, Graph, GraphReading, read, shortest
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models.family import build, configure
from regard.tasks.graph import GraphTask
from regard.tasks.grapher import Example

WORDS = ["C", "N", "O", "ring", "-", "=", "#"]
TOKENS = Tokenizer.learn(TokensConfig("none", 0), [" ".join(WORDS)])


def graph(seed: int, n: int = 7, directed: bool = False) -> Graph:
    """A random graph, not always in one piece."""
    draw = Random(seed)
    edges = [(i, j) for i, j in product(range(n), repeat=2) if i < j and draw.random() < 0.3]
    nodes = tuple(" ".join(draw.sample(WORDS[:4], draw.randint(1, 2))) for _ in range(n))
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return Graph(nodes, pairs, tuple(draw.choice(WORDS[4:]) for _ in edges), directed=directed)


def lopsided() -> Graph:
    """A graph whose Laplacian has no eigenvalue twice: its eigenvectors are known up to their signs."""
    for seed in range(100):
        own = graph(seed, n=8)
        A = np.zeros((8, 8))
        A[tuple(own.both_ways()[0].T)] = 1.0
        scale = A.sum(1).clip(1) ** -0.5
        if np.diff(np.linalg.eigvalsh(np.eye(8) - scale[:, None] * A * scale)).min() > 1e-3:
            return own
    raise AssertionError("there is none")


def model(preset: str = "graphormer-tiny", head: HeadConfig | None = None, **changes: Any) -> Any:
    torch.manual_seed(0)
    made = build(configure(preset, vocabulary=len(TOKENS)).but(layers=2, heads=2, d_model=8, d_ff=12, **changes), head)
    for x in made.parameters():
        x.data += 0.3 * torch.randn_like(x)
    return made.eval().double()


def inputs(graphs: Sequence[Graph], net: Any, level: str = "graph") -> dict[str, Tensor]:
    c = net.config
    how = GraphReading(c.reach, c.laplacian, c.walk)
    examples = [Example(read(each, TOKENS, how), each.edges) for each in graphs]
    return GraphTask(reading=how, level=level).inputs(examples, None)


def walked(g: Graph, start: int) -> list[tuple[int, list[int]] | None]:
    """From one node to each: how far, and the types on the way, by trying all shortest paths one after the other."""
    edges, kinds = g.both_ways()
    types = [TOKENS.encode(kind)[0] for kind in kinds]
    ways: list[list[list[int]]] = [[] for _ in g.nodes]
    ways[start] = [[]]
    last = {start}
    while last:
        found: dict[int, list[list[int]]] = {}
        for (u, v), kind in zip(edges.tolist(), types, strict=True):
            if u in last and not ways[v]:
                found.setdefault(v, []).extend([*way, kind] for way in ways[u])
        for v, some in found.items():
            ways[v] = some
        last = set(found)
    return [(len(some[0]), min(some)) if some else None for some in ways]


def reference(net: Any, g: Graph) -> list[float]:
    """Graphormer of one graph, number by number: eq. 5 to 8, and the readout at the virtual node."""
    c, p = net.config, {name: x.tolist() for name, x in net.state_dict().items()}
    n, d, H = g.size, c.d_model, c.heads
    edges, _ = g.both_ways()
    way = [walked(g, i) for i in range(n)]

    def add(*rows: list[float]) -> list[float]:
        return [sum(each) for each in zip(*rows, strict=True)]

    def linear(x: list[float], name: str) -> list[float]:
        rows = zip(p[f"{name}.weight"], p[f"{name}.bias"], strict=True)
        return [sum(a * b for a, b in zip(row, x, strict=True)) + b for row, b in rows]

    def norm(x: list[float], name: str) -> list[float]:
        mean = sum(x) / d
        spread = math.sqrt(sum((a - mean) ** 2 for a in x) / d + c.norm_eps)
        return [(a - mean) / spread * w + b for a, w, b in zip(x, p[f"{name}.weight"], p[f"{name}.bias"], strict=True)]

    x = [list(p["stem.virtual"][0])]
    for i, words in enumerate(g.nodes):
        own = [p["stem.tokens.weight"][t] for t in TOKENS.encode(words)]
        into, out = (sum(edge[side] == i for edge in edges.tolist()) for side in (1, 0))
        x.append(add(*own, p["stem.in_degree.weight"][into], p["stem.out_degree.weight"][out]))

    def bias(h: int, i: int, j: int) -> float:
        table = p["between.distance.weight"]
        if not (i and j):
            return table[c.distances + 1][h]
        if (found := way[i - 1][j - 1]) is None:
            return table[c.distances][h]
        length, types = found
        total = table[min(length, c.distances - 1)][h]
        some = types[: c.reach]
        for place, kind in enumerate(some):
            vector = p["between.edges.weight"][kind]
            total += sum(e * w[h] for e, w in zip(vector, p["between.along"][place], strict=True)) / len(some)
        return total

    for layer in range(c.layers):
        at = f"encoder.layers.{layer}"
        y = [norm(row, f"{at}.self_attention.norm") for row in x]
        qkv = [linear(row, f"{at}.self_attention.sublayer.query_key_value") for row in y]
        mixed = [[0.0] * d for _ in x]
        width = d // H
        for h, i in product(range(H), range(len(x))):
            q = qkv[i][h * width : (h + 1) * width]
            scores = []
            for j in range(len(x)):
                k = qkv[j][d + h * width : d + (h + 1) * width]
                scores.append(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(width) + bias(h, i, j))
            e = [math.exp(s - max(scores)) for s in scores]
            for j, z in product(range(len(x)), range(width)):
                mixed[i][h * width + z] += e[j] / sum(e) * qkv[j][2 * d + h * width + z]
        x = [add(row, linear(m, f"{at}.self_attention.sublayer.output")) for row, m in zip(x, mixed, strict=True)]
        for i, row in enumerate(x):
            inner = linear(norm(row, f"{at}.feed_forward.norm"), f"{at}.feed_forward.sublayer.inner")
            gelu = [a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in inner]
            x[i] = add(row, linear(gelu, f"{at}.feed_forward.sublayer.outer"))
    return linear(norm(x[0], "encoder.norm"), "output.outer")


@pytest.mark.parametrize("directed", [False, True])
def test_it_is_the_paper_in_loops(directed: bool) -> None:
    net = model(head=HeadConfig("classes", 3), reach=2, distances=3)
    for seed in range(4):
        own = graph(seed, directed=directed)
        said = net(**inputs([own], net))[0]
        assert said.tolist() == pytest.approx(reference(net, own), abs=1e-9)


def test_of_all_shortest_paths_the_first_by_its_edges_is_taken() -> None:
    for seed in range(6):
        own = graph(seed, n=9)
        edges, kinds = own.both_ways()
        types = np.array([TOKENS.encode(kind)[0] for kind in kinds])
        distances, paths = shortest(own.size, edges, types, reach=4)
        for i, j in product(range(own.size), repeat=2):
            found = walked(own, i)[j]
            assert distances[i, j] == (FAR if found is None else found[0])
            told = [] if found is None else found[1][:4]
            assert paths[i, j].tolist() == [*told, *[0] * (4 - len(told))]


@pytest.mark.parametrize("preset", ["graphormer-tiny", "walk-tiny", "laplacian-tiny"])
@pytest.mark.parametrize("kind", ["classes", "tags"])
def test_the_order_of_nodes_and_company_change_nothing(preset: str, kind: str) -> None:
    net = model(preset, HeadConfig(kind, 3, pool="first" if preset.startswith("graphormer") else "mean"))
    own, order = lopsided(), Random(1).sample(range(8), 8)
    alone = net(**inputs([own], net))[0]
    turned = net(**inputs([own.reordered(order)], net))[0]
    expected = alone if kind == "classes" else alone[order]
    torch.testing.assert_close(turned, expected, atol=2e-6, rtol=0)  # positions are kept in fp32
    padded = net(**inputs([graph(2, n=12), own, graph(3, n=3)], net))[1]
    torch.testing.assert_close(padded if kind == "classes" else padded[:8], alone, atol=1e-9, rtol=0)


def test_pairs_are_told_whichever_comes_first() -> None:
    net = model(head=HeadConfig("tags", 2))
    own = graph(0)
    given = inputs([own, graph(1, n=4)], net, "edge")
    said = net(**given)[0, : len(own.edges)]
    there = torch.tensor(own.edges)[None]
    assert torch.allclose(said, net(**{**inputs([own], net), "pairs": there.flip(2)})[0])
    assert not torch.allclose(said[0], said[1])


def test_each_part_is_heard() -> None:
    """A graph without edges is another than one with them, by each of the ways a model knows of edges."""
    own = graph(5)
    bare = Graph(own.nodes, np.zeros((0, 2), np.int64), ())
    none = {"degrees": 0, "distances": 0, "reach": 0, "virtual": False}
    for part in ({"degrees": 8}, {"distances": 4}, {"reach": 2}, {"laplacian": 3}, {"walk": 4}):
        net = model(head=HeadConfig("classes", 2, pool="mean"), **{**none, **part})
        assert not torch.allclose(net(**inputs([own], net)), net(**inputs([bare], net))), part
    deaf = model(head=HeadConfig("classes", 2, pool="mean"), **none)
    assert torch.allclose(deaf(**inputs([own], deaf)), deaf(**inputs([bare], deaf)))


def test_signs_of_eigenvectors_are_drawn_in_training_alone() -> None:
    net = model("laplacian-tiny")
    task = GraphTask(reading=GraphReading(laplacian=8))
    example = [Example(read(graph(5), TOKENS, task.reading), graph(5).edges)]
    plain, drawn, again = (task.inputs(example, draw)["numbers"] for draw in (None, Random("1"), Random("1")))
    assert torch.equal(drawn, again)
    assert not torch.equal(plain, drawn)
    assert torch.equal(plain.abs(), drawn.abs())
    assert net.config.numbers == 8


def test_all_layers_may_be_one() -> None:
    net = model(shared=True)
    first, second = net.encoder.layers
    assert first.feed_forward.sublayer.inner.weight is second.feed_forward.sublayer.inner.weight


def test_settings_that_a_graph_has_not_are_refused() -> None:
    for changes, said in (
        ({"positions": "rope"}, "a graph has no order"),
        ({"feed_forward": "convolution"}, "a graph has no order"),
        ({"distances": 300}, "at most 254 are told apart"),
    ):
        with pytest.raises(ValueError, match=said):
            configure("graphormer-tiny", vocabulary=9).but(**changes)
    net = model()
    with pytest.raises(ValueError, match="reads 5 edges of the path"):
        net(torch.ones(1, 2, 1).long(), torch.zeros(1, 2, 2).long())
