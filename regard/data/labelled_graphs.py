"""Where graphs and their labels are: SMILES in tables, TU's folders, GIN's text, GraphML, edge lists, JSON.

A row has a `graph`, a `label` if there is one, of the graph or in a list of its nodes or edges, and a `name`.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from regard.checks import hint
from regard.data.graphs import EDGE, NODE, Graph, GraphError, word
from regard.data.molecules import molecule, scaffold
from regard.data.rows import Row, RowFiles
from regard.data.text import Skipped, from_json, read_lines
from regard.files import digest, read_whole, regular_size

SMILES = ("smiles", "smi", "graph")  # what a column of molecules is called
LARGEST = 2**30  # bytes of a GraphML file
PARTS = ("train", "valid", "test")
SHARES = (0.8, 0.1)  # of molecules that are learnt from, and by which a model is chosen, where skeletons are kept apart
FOLDS = 10


@dataclass(frozen=True)
class GraphFiles(RowFiles):
    """Graphs with labels: a csv or tsv with a column of SMILES, a .smi; TU's folder; GIN's text; a .graphml; a jsonl of
    nodes and edges; or a folder with one folder for each class, of .graphml and .edges.

    `columns` says where `graph`, SMILES, and `label` stand in a table; `labels` names columns of 0 and 1, of which some
    may be blank: several may apply.
    """

    ways = ("csv", "tsv", "smi", "jsonl", "tu", "gin", "graphml", "edges", "folder")
    parts = ("graph",)
    optional = ("label",)

    smi: str | None = None  # SMILES, a line each, with a name after it if you like
    tu: str | None = None  # a folder of TU's: NAME_A.txt, NAME_graph_indicator.txt, ...
    gin: str | None = None  # one text with all graphs, as GIN's authors have them; folds lie beside it
    graphml: str | None = None  # one file, with one graph or several
    edges: str | None = None  # one graph: two nodes a line, and what joins them
    folder: str | None = None  # with one folder for each class
    labels: tuple[str, ...] = ()  # columns that say of what is called so whether it applies: 1, 0, or nothing
    part: str = ""  # of all rows, some: scaffold:train, fold:3:test; a split sets it

    @classmethod
    def at(cls, path: str | PathLike[str], columns: Iterable[str] = ()) -> Self:
        """What a file or folder holds, by its name; labels as label=NAME, or NAME+NAME."""
        if Path(path).is_dir() and any(Path(path).glob("*_graph_indicator.txt")):
            return cls(tu=str(path))
        if Path(path).suffix == ".txt":
            return cls(gin=str(path))
        several = [each for each in columns if each.startswith("label=") and "+" in each]
        found = super().at(path, [each for each in columns if each not in several])
        labels = tuple(several[0].removeprefix("label=").split("+")) if several else ()
        return cls(**{way: getattr(found, way) for way in cls.ways}, columns=found.columns, labels=labels)

    def fingerprint(self) -> str:
        """The same for the same graphs, wherever they lie."""
        if not (self.tu or self.folder):
            beside = sorted(self._folds().glob("*")) if self.gin and self.part else []
            return hashlib.sha256(json.dumps([super().fingerprint(), *map(digest, beside)]).encode()).hexdigest()
        files = sorted(each for each in Path(self.path).rglob("*") if each.is_file())
        said = [[str(each.relative_to(self.path)), digest(each)] for each in files]
        return hashlib.sha256(json.dumps([said, self.part]).encode()).hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; what cannot be read, or has no label, is left out, and counted in `skipped`."""
        rows = self.all(skipped)
        if self.part:
            every = list(rows)
            rows = (every[i] for i in self._some(every))
        for row in rows:
            if skipped is not None and row["graph"].loops:
                skipped.notes["graphs had edges from a node to itself, which were left out"] += 1
            yield row

    def all(self, skipped: Skipped | None = None, told: bool = True) -> Iterator[Row]:
        """All rows; unless they need not be `told`, those that have labels."""
        for row in self.rows():
            bad = row["graph"] if isinstance(row["graph"], GraphError) else None
            if bad is None and (not told or "label" in row):
                yield row
            elif skipped is not None:
                # One note for all, so that they are counted together: the first is named.
                notes, end = skipped.notes, "cannot be read" if bad else "have no label"
                known = next((note for note in notes if note.startswith(f"graphs {end}")), None)
                notes[known or f"graphs {end} ({bad or row['name']})"] += 1

    def rows(self) -> Iterator[Row]:
        """All rows; in the place of a graph that cannot be read, why."""
        if self.csv or self.tsv:
            return self._table()
        if self.jsonl:
            return self._listed()
        if self.smi:
            return self._lines_of_smiles()
        if self.tu:
            return read_tu(Path(self.tu))
        if self.gin:
            return read_gin(Path(self.gin))
        if self.folder:
            return self._folder(Path(self.folder))
        path = Path(self.path)
        return iter([{"graph": read_edges(path), "name": path.name}]) if self.edges else read_graphml(path)

    def _table(self) -> Iterator[Row]:
        for row in super().rows():
            text = str(row["graph"]).strip()
            if not text:
                continue
            own: Row = {"graph": _tried(text), "name": text}
            if self.labels:
                told = {name: row[name].strip() for name in self.labels if row.get(name, "").strip()}
                if wrong := set(told.values()) - {"0", "1", "0.0", "1.0"}:
                    raise ValueError(
                        f"{self.path}, {text[:40]}: a label of several is 0, 1 or nothing, got {wrong.pop()!r}"
                    )
                if told:
                    own["label"] = {name: float(x) > 0 for name, x in told.items()}
            elif str(row.get("label", "")).strip():
                own["label"] = row["label"]
            yield own

    def _places(self, first: list[str], where: str) -> tuple[dict[str, int], bool]:
        """Where each part stands, and whether the first line says so: SMILES stand under that name, or come first."""
        low = [name.lower() for name in first]
        found = next((low.index(name) for name in SMILES if name in low), None)
        if self.columns:
            places, header = super()._places(first, where)
            places = {"graph": found or 0} | places
        elif found is not None:
            places, header = {"graph": found} | ({"label": low.index("label")} if "label" in low else {}), True
        else:
            places, header = {"graph": 0, "label": 1}, False
        for name in self.labels:
            if name not in first:
                raise ValueError(f"{where} has no column {name!r}: {hint(name, first)}")
            places[name] = first.index(name)
        return places, header or bool(self.labels)

    def _listed(self) -> Iterator[Row]:
        regular_size(self.path)
        for number, line in enumerate(read_lines(self.path, cut=False, max_characters=2**26), start=1):
            if not line.strip():
                continue
            where = f"{self.path}, line {number}"
            held = from_json(line, where, "; each line holds one object")
            if not isinstance(held, dict):
                raise ValueError(f"{where} holds no object")
            text = next((held[name] for name in SMILES if isinstance(held.get(name), str)), None)
            label = held.get(str(self.columns.get("label", "label")))
            name = str(held.get("name", text or f"graph {number}"))
            graph = _tried(text) if text is not None else _tried(held, partial(Graph.of, place=where))
            yield {"graph": graph, "name": name} | ({} if label is None else {"label": label})

    def _lines_of_smiles(self) -> Iterator[Row]:
        for line in read_lines(self.path):
            if line.strip():
                text, *name = line.split(None, 1)
                yield {"graph": _tried(text), "name": name[0].strip() if name else text}

    def _folder(self, folder: Path) -> Iterator[Row]:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: name one that has a folder for each class")
        for path in sorted(each for each in folder.glob("*/*") if each.suffix in (".graphml", ".edges")):
            own = read_graphml(path) if path.suffix == ".graphml" else iter([{"graph": read_edges(path)}])
            for row in own:
                yield {**row, "label": path.parent.name, "name": path.relative_to(folder).as_posix()}

    def _folds(self) -> Path:
        return Path(str(self.gin)).parent / f"{FOLDS}fold_idx"

    def _some(self, rows: Sequence[Row]) -> list[int]:
        """Which of all rows belong to this part."""
        kind, *which = self.part.split(":")
        if kind == "scaffold":
            return by_scaffold([row["graph"].source for row in rows])[which[0]]
        fold, part = int(which[0]), which[1]
        if self.gin and self._folds().is_dir():
            said = self._folds() / f"{'train' if part == 'train' else 'test'}_idx-{fold}.txt"
            return [int(line) for line in read_lines(said) if line.strip()]
        held = by_label([str(row["label"]) for row in rows], [row["name"] for row in rows])
        return [i for i, own in enumerate(held) if (own == fold) == (part != "train")]


def _tried(held: Any, make: Callable[[Any], Graph] = molecule) -> Graph | GraphError:
    try:
        return make(held)
    except GraphError as error:
        return error


def by_scaffold(smiles: Sequence[str]) -> dict[str, list[int]]:
    """Rows of each part, no skeleton in two of them: the largest groups are learnt from (Wu et al., 2018)."""
    groups = defaultdict[str, list[int]](list)
    for i, each in enumerate(smiles):
        if not each:
            raise ValueError("data.split = scaffold is for molecules: graphs without SMILES have no scaffold")
        groups[scaffold(each)].append(i)
    limits = np.cumsum([share * len(smiles) for share in SHARES])
    found: dict[str, list[int]] = {part: [] for part in PARTS}
    for group in sorted(groups.values(), key=lambda group: (-len(group), group[0])):
        train, valid = len(found["train"]) + len(group), len(found["train"]) + len(found["valid"]) + len(group)
        found["train" if train <= limits[0] else "valid" if valid <= limits[1] else "test"] += group
    return {part: sorted(rows) for part, rows in found.items()}


def by_label(labels: Sequence[str], names: Sequence[str]) -> list[int]:
    """The fold of each row, from 1 on: each has its share of every label."""
    found, seen = [0] * len(labels), defaultdict[str, int](int)
    drawn = sorted(range(len(labels)), key=lambda i: hashlib.sha256(f"{names[i]} {i}".encode()).digest())
    for i in drawn:
        found[i] = seen[labels[i]] % FOLDS + 1
        seen[labels[i]] += 1
    return found


def read_edges(path: Path) -> Graph:
    """One graph: two names of nodes a line, between spaces, and a word for what joins them; # begins a remark."""
    names, edges, kinds = dict[str, int](), list[tuple[int, int]](), list[str]()
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.partition("#")[0].replace(",", " ").split()
        if not cells:
            continue
        if len(cells) == 1:  # a node by itself
            names.setdefault(cells[0], len(names))
            continue
        if len(cells) > 3:
            raise ValueError(f"{path}, line {number}: two nodes and what joins them, got {len(cells)} words")
        edges.append((names.setdefault(cells[0], len(names)), names.setdefault(cells[1], len(names))))
        kinds.append(cells[2] if cells[2:] else EDGE)
    return Graph((NODE,) * len(names), np.array(edges, np.int64).reshape(-1, 2), tuple(kinds))


def read_gin(path: Path) -> Iterator[Row]:
    """GIN's text: how many graphs; of each its nodes and its label; of each node its tag, its degree and neighbours."""
    regular_size(path)
    lines = iter(read_lines(path))
    number = 0

    def numbers() -> list[int]:
        nonlocal number
        number += 1
        try:
            return [int(cell) for cell in next(lines).split()]
        except (StopIteration, ValueError):
            raise ValueError(f"{path}, line {number}: it ends, or is no line of whole numbers as GIN has it") from None

    (count,) = numbers()
    for index in range(count):
        size, label = numbers()
        nodes, edges = list[str](), list[tuple[int, int]]()
        for node in range(size):
            tag, degree, *others = numbers()
            nodes.append(str(tag))
            edges += [(node, other) for other in others[:degree] if node <= other]
        try:
            graph = Graph(tuple(nodes), np.array(edges, np.int64).reshape(-1, 2), (EDGE,) * len(edges))
        except GraphError as error:
            raise GraphError(f"{path}, graph {index}: {error}") from None
        yield {"graph": graph, "label": str(label), "name": f"{path.stem} {index}"}


def read_tu(folder: Path) -> Iterator[Row]:
    """TU's form: pairs of nodes, the graph of each node, and, if they are there, labels of graphs, nodes and edges."""
    try:
        yield from _of_tu(folder)
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(f"{folder} is no data of TU's form: {error}") from None


def _of_tu(folder: Path) -> Iterator[Row]:
    if (about := next(folder.glob("*_graph_indicator.txt"), None)) is None:
        raise ValueError("it has no file ..._graph_indicator.txt")
    stem = about.name.removesuffix("_graph_indicator.txt")

    def rows(kind: str) -> list[list[str]] | None:
        path = folder / f"{stem}_{kind}.txt"
        if not path.is_file():
            return None
        return [line.replace(",", " ").split() for line in read_lines(path) if line.strip()]

    graph_of = np.array([int(row[0]) - 1 for row in rows("graph_indicator") or []])
    edges = np.array(rows("A"), np.int64).reshape(-1, 2) - 1
    labels, types, kinds, numbers = map(rows, ("graph_labels", "node_labels", "edge_labels", "node_attributes"))
    own = None if numbers is None else np.array(numbers, np.float32)
    needed = {"graph": (labels, graph_of.max() + 1), "node": (types, len(graph_of)), "edge": (kinds, len(edges))}
    for name, (told, count) in needed.items():
        if told is not None and len(told) != count:
            raise ValueError(f"{count} {name}s, and {len(told)} labels of them")
    first = np.searchsorted(graph_of, np.arange(graph_of.max() + 2))
    at = graph_of[edges[:, 0]]
    by = np.argsort(at, kind="stable")
    cuts = np.searchsorted(at[by], np.arange(graph_of.max() + 2))
    for i in range(len(first) - 1):
        begin, end = first[i], first[i + 1]
        some = [e for e in by[cuts[i] : cuts[i + 1]] if edges[e, 0] <= edges[e, 1]]  # each is there both ways
        pairs = edges[some] - begin
        said = tuple(EDGE if kinds is None else EDGE + "_".join(kinds[e]) for e in some)
        nodes = tuple(NODE if types is None else " ".join(types[n]) for n in range(begin, end))
        graph = Graph(nodes, pairs.reshape(-1, 2), said, None if own is None else own[begin:end])
        row: Row = {"graph": graph, "name": f"{stem} {i}"}
        yield row if labels is None else row | {"label": labels[i][0]}


def read_graphml(path: Path) -> Iterator[Row]:
    """The graphs of a GraphML file. The attribute `label`, of graph, nodes or edges, is what is to be told; of others,
    those of nodes and edges, numbers that are no whole ones are numbers, and the rest are words."""
    content = read_whole(path, LARGEST)
    if b"<!" in re.sub(rb"<!--.*?-->", b"", content, flags=re.DOTALL):
        raise ValueError(f"{path} has a document type or entities of its own: regard reads GraphML without them")
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is no GraphML: {error}") from None
    keys = {key.get("id"): key for key in _inside(root, "key")}
    found = _inside(root, "graph")
    if not found:
        raise ValueError(f"{path} has no graph in it")
    for i, each in enumerate(found, start=1):
        name = str(each.get("id") or f"graph {i}")
        yield _of_graphml(each, keys, f"{path}, {name}") | {"name": name if len(found) > 1 else path.name}


def _inside(element: Any, tag: str) -> list[Any]:
    return [each for each in element if each.tag.rpartition("}")[2] == tag]


def _of_graphml(element: Any, keys: dict[Any, Any], where: str) -> Row:
    def said(each: Any) -> tuple[list[str], list[float], str | None]:
        words, numbers, label = [], [], None
        for data in _inside(each, "data"):
            key, text = keys.get(data.get("key")), (data.text or "").strip()
            name = str(data.get("key") if key is None else key.get("attr.name"))
            if name == "label":
                label = text
            elif key is not None and key.get("attr.type") in ("float", "double"):
                numbers.append(float(text))
            else:
                words.append(word(f"{name}={text}"))
        return words, numbers, label

    try:
        of_nodes = {node.get("id"): said(node) for node in _inside(element, "node")}
        places = {name: i for i, name in enumerate(of_nodes)}
        edges = [(places[e.get("source")], places[e.get("target")], *said(e)) for e in _inside(element, "edge")]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{where}: an edge or an attribute is of no node or no number ({error})") from None
    numbers = [own for _, own, _ in of_nodes.values()]
    if len(widths := {len(own) for own in numbers}) > 1:
        raise ValueError(f"{where}: some nodes have {min(widths)} numbers, some {max(widths)}")
    kinds = tuple(word(EDGE + "_".join(words)) for _, _, words, _, _ in edges)
    pairs = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2)
    levels: dict[str, Any] = {
        "graph": said(element)[2],
        "nodes": [label for *_, label in of_nodes.values()],
        "edges": [label for *_, label in edges],
    }
    told = {name: x for name, x in levels.items() if x and (name == "graph" or any(x))}
    if len(told) > 1:
        raise ValueError(f"{where}: {' and '.join(told)} have the attribute label: leave it on what is to be told")
    own: NDArray[np.float32] | None = np.array(numbers, np.float32) if max(widths, default=0) else None
    directed = element.get("edgedefault") == "directed"
    nodes = tuple(" ".join(words) or NODE for words, _, _ in of_nodes.values())
    graph = _tried(None, lambda _: Graph(nodes, pairs, kinds, own, directed))
    return {"graph": graph} | ({"label": next(iter(told.values()))} if told else {})
