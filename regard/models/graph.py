"""An encoder of graphs: nodes are read as the words of a text are, and what joins them is added to the scores.

Letters: B batch, N nodes, F words of a node, A numbers of a node, R edges of a path, E pairs, H heads, T = N or N + 1,
V vocabulary, d_model width of the model.

Graphormer (Ying et al., 2021) is the left half of Figure 1, pre-norm, with three things that tell it the graph: how
many edges each node has (§3.1.1), how far each is from each (§3.1.2), and what lies on the way (§3.1.3); and a virtual
node that is joined to all, and stands for the graph (§3.2). Without these it is plain attention, which knows a graph
by the positions of its nodes: eigenvectors of the Laplacian, or how likely a random walk returns.

A reaction is several molecules, some before and some after it. Each is read by itself; then further layers read all of
their atoms side by side, and attend from those on one side to those on the other (Nugmanov et al., 2022).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import blocks
from regard.core.dropout import Dropout
from regard.core.masks import padding
from regard.core.outputs import POOLED, HeadConfig, head
from regard.core.quantised import matrix
from regard.core.stems import Stem, bags
from regard.models.family import INITIAL, Config, Family, StackSizes, draw_first

FAR = 255  # the distance of two nodes that no path joins
EDGES = 32  # width of what is known of an edge


class Nodes(Stem):
    """The words of each node, added up, its numbers, and how many edges lead to it and from it (§3.1.1, eq. 5)."""

    def __init__(self, c: "GraphConfig") -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocabulary, c.d_model)
        self.numbers = nn.Linear(c.numbers, c.d_model, bias=False) if c.numbers else None
        self.in_degree = nn.Embedding(c.degrees, c.d_model) if c.degrees else None
        self.out_degree = nn.Embedding(c.degrees, c.d_model) if c.degrees else None
        self.virtual = nn.Parameter(torch.zeros(1, c.d_model)) if c.virtual else None
        self.pad, self.dropout = c.pad, Dropout(c.dropout)

    def forward(self, nodes: Tensor, distances: Tensor, numbers: Tensor | None = None) -> Tensor:
        """nodes (B, N, F), distances (B, N, N), numbers (B, N, A) -> (B, T, d_model), the virtual node first."""
        if nodes.dim() != 3 or distances.shape != (*nodes.shape[:2], nodes.shape[1]):
            raise ValueError(
                f"nodes are ids (batch, nodes, words), and distances (batch, nodes, nodes), got {tuple(nodes.shape)} "
                f"and {tuple(distances.shape)}"
            )
        x = (self.tokens(nodes) * (nodes != self.pad)[..., None]).sum(2)  # (B, N, d_model)
        if self.numbers is not None:
            if numbers is None:
                raise ValueError(f"this model reads {self.numbers.in_features} numbers of each node: give them")
            x = x + self.numbers(numbers.to(x.dtype))
        if self.in_degree is not None and self.out_degree is not None:
            next_to, most = distances == 1, self.in_degree.num_embeddings - 1
            x = x + self.in_degree(next_to.sum(1).clamp(max=most)) + self.out_degree(next_to.sum(2).clamp(max=most))
        if self.virtual is not None:
            x = torch.cat([self.virtual.to(x.dtype).expand(len(x), -1, -1), x], 1)
        return self.dropout(x)


class Between(nn.Module):
    """What is added to the score of each pair of nodes: for their distance (§3.1.2, eq. 6), and for the edges of a
    shortest path from one to the other (§3.1.3, eq. 7)."""

    def __init__(self, c: "GraphConfig") -> None:
        super().__init__()
        self.far = c.distances  # the last but one place is of nodes that no path joins, the last of the virtual node
        self.distance = nn.Embedding(c.distances + 2, c.heads) if c.distances else None
        self.edges = nn.Embedding(c.vocabulary, EDGES) if c.reach else None
        self.along = nn.Parameter(torch.empty(c.reach, EDGES, c.heads)) if c.reach else None
        self.reach, self.virtual, self.pad = c.reach, c.virtual, c.pad
        self.of_heads = bool(c.distances or c.reach)  # what it makes is of all heads, and each layer's
        if self.along is not None:
            nn.init.normal_(self.along, std=EDGES**-0.5)

    def forward(self, distances: Tensor, paths: Tensor | None = None) -> Tensor | None:
        """distances (B, N, N), paths (B, N, N, R) -> (B, H, T, T), or nothing."""
        first = (int(self.virtual), 0)
        tables: list[Tensor] = []
        rows: list[Tensor] = []  # of these tables, which lie in a row: (B, T, T, any)
        before = 0  # rows of those before
        if self.distance is not None:
            near = torch.where(distances == FAR, self.far, distances.clamp(max=self.far - 1))
            tables.append(matrix(self.distance))
            rows.append(F.pad(near, first * 2, value=self.far + 1)[..., None])
            before = self.far + 2
        if self.along is not None:
            if paths is None:
                raise ValueError(f"this model reads {self.reach} edges of the path between two nodes: give paths")
            tables.append(self._means())
            length, place = distances.clamp(1, self.reach), torch.arange(self.reach, device=paths.device)
            place = (length[..., None] - 1) * self.reach + place  # (B, N, N, R)
            each = paths + place * (len(tables[-1]) // self.reach**2)
            rows.append(F.pad(each, (0, 0, *first * 2), value=self.pad) + before)
        if not tables:
            return None
        return bags(torch.cat(rows, -1), torch.cat(tables)).permute(0, 3, 1, 2).contiguous()

    def _means(self) -> Tensor:
        """What an edge adds to c_ij = 1/N Σ_n x_{e_n} w_n of each head: of paths of 1 to R edges, at each place of one,
        each type, (R · R · V, H)."""
        assert self.edges is not None
        assert self.along is not None
        known = matrix(self.edges)
        known = known * (torch.arange(len(known), device=known.device) != self.pad)[:, None]
        N = torch.arange(1, self.reach + 1, device=known.device)[:, None, None, None]
        return (known @ self.along / N).flatten(0, 2)


class GraphTransformer(nn.Module):
    """A graph in, something about it, its nodes or its edges out: what, its head says.

    >>> model = GraphTransformer(graphormer_tiny(vocabulary=9, reach=0), HeadConfig("classes", 2))
    >>> model(torch.ones(1, 3, 1).long(), distances=torch.tensor([[[0, 1, 2], [1, 0, 1], [2, 1, 0]]])).shape
    torch.Size([1, 2])
    """

    reads = "graph"

    def __init__(self, config: "GraphConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig("vector", pool="first" if config.virtual else "mean")
        c = config
        self.stem, self.between = Nodes(c), Between(c)
        self.encoder = blocks.encoder(c, 1 if c.shared else c.layers)
        self.output = head(self.head, c.d_model)
        self.apply(draw_first)
        if self.stem.virtual is not None:
            nn.init.normal_(self.stem.virtual, std=INITIAL)
        if c.shared:
            self.encoder.repeat(c.layers)
        if c.across:
            self.sides = nn.Embedding(3, c.d_model)  # of the reaction itself, and of atoms before it and after it
            self.across = blocks.encoder(replace(c, heads=c.across_heads), 1 if c.shared else c.across)
            for part in (self.sides, self.across):
                part.apply(draw_first)
            if c.shared:
                self.across.repeat(c.across)

    def forward(
        self,
        nodes: Tensor,
        distances: Tensor,
        keep: Tensor | None = None,
        paths: Tensor | None = None,
        numbers: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """nodes (B, N, F), of which those to `keep` (B, N) count, distances (B, N, N), paths (B, N, N, R), numbers
        (B, N, A); pairs (B, E, 2) of nodes, if it is of them that something is told -> what the head makes of them."""
        first, row = int(self.config.virtual), torch.arange(len(nodes), device=nodes.device)[:, None]
        keep = nodes.new_ones(nodes.shape[:2], dtype=torch.bool) if keep is None else keep
        x = self.features(nodes, distances, keep, paths, numbers)
        if self.head.kind in POOLED:  # the graph as a whole
            return self.output(x, keep=F.pad(keep, (first, 0), value=True))
        x = x[:, first:]
        if pairs is not None:  # what two nodes have in common, whichever comes first
            x = x[row, pairs[..., 0]] * x[row, pairs[..., 1]]  # (B, E, d_model)
        return self.output(x)

    def features(
        self,
        nodes: Tensor,
        distances: Tensor,
        keep: Tensor | None = None,
        paths: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, (B, T, d_model), the virtual node first."""
        x, bias = self.stem(nodes, distances, numbers), self.between(distances, paths)
        mask = None
        if keep is not None:
            keep = F.pad(keep, (x.shape[1] - keep.shape[1], 0), value=True)
            mask = padding(keep).dense(1, keep.shape[1], keep.device)
        return self.encoder(x, mask=mask, bias=None if bias is None else bias.to(x.dtype), keep=keep)

    def reaction(self, after: Tensor, nodes: Tensor, distances: Tensor, keep: Tensor, **given: Tensor) -> Tensor:
        """The molecules of one reaction as a batch (B, ...), and which of them come `after` it, (B,) -> (1, 1 + atoms,
        d_model): the reaction itself, and the atoms of all of them one after the other."""
        x = self.features(nodes, distances, keep, **given)[:, int(self.config.virtual) :]
        x = (x + self.sides(1 + after.int())[:, None])[keep]
        return self.across(torch.cat([matrix(self.sides)[:1], x])[None])


@dataclass(frozen=True)
class GraphConfig(blocks.LayerConfig, StackSizes, Config):
    """Everything that makes an encoder of graphs; the defaults have the size of Graphormer-base, and know no edge."""

    d_model: int = 768
    d_ff: int = 768
    heads: int = 32
    positions: str = "none"  # a graph has no order
    norm: str = "pre"
    feed_forward: str = "gelu"  # relu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh
    attention_dropout: float = 0.1
    degrees: int = 0  # numbers of edges that are told apart (centrality); 0: none are
    distances: int = 0  # distances that are told apart, from 0 on; 0: none are
    reach: int = 0  # edges of a shortest path that are read; 0: none are
    virtual: bool = False  # a node that is joined to all
    laplacian: int = 0  # eigenvectors of the Laplacian that say where a node is
    walk: int = 0  # steps of a random walk that say where a node is
    attributes: int = 0  # numbers that the data has of each node
    shared: bool = False  # all layers are one
    across: int = 0  # layers that read all molecules of a reaction side by side; 0: it reads none
    across_heads: int = 4  # of these
    pad: int = 0
    longest = None  # it reads any number of nodes

    def __post_init__(self) -> None:
        self.check()
        self.check_layers()
        if self.positions != "none" or self.score == "location" or self.self_attention != "full":
            raise ValueError("a graph has no order: positions is none, score is not location, self_attention full")
        if self.feed_forward == "convolution":
            raise ValueError("feed_forward = convolution mixes neighbours in a text: a graph has no order")
        if self.distances >= FAR:
            raise ValueError(f"distances = {self.distances}: at most {FAR - 1} are told apart")

    @property
    def numbers(self) -> int:
        """Of each node, positions among them."""
        return self.attributes + self.laplacian + self.walk


def graphormer_base(vocabulary: int = 512, **changes: Any) -> GraphConfig:
    """Graphormer-base: 12 layers of width 768, 43 million parameters."""
    return GraphConfig(vocabulary, degrees=64, distances=20, reach=5, virtual=True).but(**changes)


def graphormer_slim(vocabulary: int = 512, **changes: Any) -> GraphConfig:
    """Graphormer-slim: 12 layers of width 80, 0.5 million parameters."""
    return graphormer_base(vocabulary, d_model=80, d_ff=80, heads=8).but(**changes)


def graphormer_tiny(vocabulary: int = 512, **changes: Any) -> GraphConfig:
    """4 layers of width 64: 0.2 million parameters."""
    return graphormer_base(vocabulary, layers=4, d_model=64, d_ff=128, heads=8, degrees=16).but(**changes)


def laplacian_tiny(vocabulary: int = 512, **changes: Any) -> GraphConfig:
    """Plain attention of the size of graphormer-tiny, that knows a graph by eight eigenvectors."""
    return GraphConfig(vocabulary, layers=4, d_model=64, d_ff=128, heads=8, laplacian=8).but(**changes)


def walk_tiny(vocabulary: int = 512, **changes: Any) -> GraphConfig:
    """The same by a random walk of sixteen steps."""
    return laplacian_tiny(vocabulary, laplacian=0, walk=16).but(**changes)


FAMILY = Family(
    GraphConfig,
    GraphTransformer,
    {
        "graphormer-tiny": graphormer_tiny,
        "graphormer-slim": graphormer_slim,
        "graphormer-base": graphormer_base,
        "laplacian-tiny": laplacian_tiny,
        "walk-tiny": walk_tiny,
    },
    heads=("classes", "tags", "vector"),
)
