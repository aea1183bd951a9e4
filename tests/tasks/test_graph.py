"""Graphs from files to answers: prepared once, learnt, resumed to the bit, told, judged; or refused in one line."""

import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.graphs import Graph, GraphError, GraphReading
from regard.data.labelled_graphs import GraphFiles, by_label
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.evaluation.classes import roc_auc
from regard.models.graph import GraphTransformer, graphormer_tiny
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from regard.studies.judging import judge
from regard.tasks.graph import GraphTask
from tests.serving.servers import running

chemistry = pytest.mark.skipif(find_spec("rdkit") is None, reason="SMILES are read by rdkit, the extra `molecules`")
YAML = """
task: {name: graph, LEVEL}
data: {train: {jsonl: train.jsonl}, test: {jsonl: test.jsonl}}
tokens: {kind: none, size: 0}
model: {preset: PRESET, layers: 2, d_model: 32, d_ff: 32, heads: 4, dropout: 0.0, attention_dropout: 0.0}
train:
  steps: 40
  batch_tokens: 200
  shards: 1
  smoothing: 0.0
  optimiser: {name: adamw}
  schedule: {name: linear, peak: 0.01, warmup: 4}
  validate_every: 20
  checkpoint_every: 10
"""


def made(draw: Random, level: str) -> dict[str, Any]:
    """A ring with a tail, or a chain: as a whole; of each node whether it ends something; of each edge, if it is in the
    ring. Some of the parts are not told."""
    n, ring = draw.randint(4, 9), draw.random() < 0.5
    edges = [[i, i + 1] for i in range(n - 1)] + ([[0, n - 2]] if ring else [])
    degree = [sum(i in edge for edge in edges) for i in range(n)]
    told: dict[str, Any] = {
        "graph": "ring" if ring else "chain",
        "node": ["end" if d == 1 else "inner" if draw.random() < 0.9 else None for d in degree],
        "edge": ["in" if ring and n - 1 not in edge else "out" for edge in edges],
    }
    order = draw.sample(range(n), n)
    turned = [[order[u], order[v]] for u, v in edges]
    if level == "node":
        told["node"] = [told["node"][order.index(i)] for i in range(n)]
    return {"nodes": n, "edges": turned, "label": told[level]}


def write(place: Path, level: str = "graph", preset: str = "graphormer-tiny") -> Path:
    place.mkdir(exist_ok=True)
    draw = Random(7)
    for split, count in (("train", 160), ("test", 30)):
        rows = [made(draw, level) for _ in range(count)]
        (place / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (place / "r.yaml").write_text(YAML.replace("LEVEL", f"level: {level}").replace("PRESET", preset))
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("graphs"))


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


def learn(place: Path, out: Path, *overrides: str, **how: Any) -> Path:
    train(recipes.load(str(place / "r.yaml"), overrides), out, name="r", console=Console(quiet=True), **how)
    return out


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        return learn(place, place / "run")


def show(*arguments: object, stdin: str = "") -> str:
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin, env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls a command that must fail, and gives its one line."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        _, error = capsys.readouterr()
        assert end.value.code == 2, error
        return error

    return run


def test_it_learns_what_a_graph_is(run: Path) -> None:
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["accuracy"] == {"score": 1.0, "signature": "graphs:30"}
    about = json.loads((run / "config.json").read_text())["task"]
    assert (about["name"], about["labels"], about["reading"]["reach"]) == ("graph", ["chain", "ring"], 5)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "preset"), [("node", "walk-tiny"), ("edge", "graphormer-tiny")])
def test_it_learns_what_nodes_and_edges_are(tmp_path: Path, level: str, preset: str) -> None:
    out = learn(write(tmp_path / "data", level, preset), tmp_path / "out")
    assert json.loads((out / "evaluation.json").read_text())["accuracy"]["score"] > 0.9
    row = json.loads((tmp_path / "data" / "test.jsonl").read_text().splitlines()[0])
    told = regard.load(out).classify({"nodes": row["nodes"], "edges": row["edges"]})
    assert len(told.parts) == len(row["label"])
    lines = show("classify", out, tmp_path / "data" / "test.jsonl").splitlines()
    assert len(lines) == sum(len(json.loads(x)["label"]) for x in (tmp_path / "data" / "test.jsonl").open())
    assert lines[0].split("\t")[:3] == ["graph 1", "0", told.parts[0].label]
    assert judge(out, tmp_path / "data" / "test.jsonl", calibrate=True)["figures"]["accuracy"]["score"] > 0.9


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """Signs of eigenvectors hang on the seed and the batch, not on when the run was begun."""
    place = write(tmp_path / "data", preset="laplacian-tiny")
    run = learn(place, tmp_path / "run", "train.steps=20", "train.checkpoint_every=5")
    again = tmp_path / "again"
    shutil.copytree(run, again)
    (again / "model.safetensors").unlink()
    for late in sorted(each for each in (again / "trainer").glob("*") if each.is_dir())[1:]:
        shutil.rmtree(late)
    learn(place, again, "train.steps=20", "train.checkpoint_every=5", resume=True)
    first = load_file(run / "model.safetensors")
    assert all(torch.equal(x, first[name]) for name, x in load_file(again / "model.safetensors").items())


def test_a_batch_in_parts_of_like_size_has_the_same_loss() -> None:
    """Graphs of 3 to 90 nodes: the sums of all parts are that of the whole, in value and gradient."""
    torch.manual_seed(0)
    task = GraphTask(("a", "b"), reading=GraphReading(reach=5))
    tokenizer = Tokenizer.learn(TokensConfig("none", 0), ["C -"])
    config = graphormer_tiny(len(tokenizer), layers=1, dropout=0.0, attention_dropout=0.0)
    model = GraphTransformer(config, task.head(GraphTransformer))
    rows = []
    for n in (3, 90, 40, 5, 33, 70):
        edges = np.stack([np.arange(n - 1), np.arange(1, n)], 1)
        graph = Graph(("C",) * n, edges, ("-",) * (n - 1))
        rows += list(task.examples([{"graph": graph, "label": "ab"[n % 2], "name": str(n)}], tokenizer))
    collate, objective = task.collate(tokenizer, 0.0), task.objective(model, 0.0, tokenizer)
    parts = collate.apart(rows)  # type: ignore[attr-defined]
    assert [[len(row[0]) for row in part] for part in parts] == [[3, 5, 33, 40], [70, 90]]
    found = []
    for some in ([rows], parts):
        model.zero_grad()
        loss = sum(objective(**collate(part, Random(0)).tensors) for part in some)
        loss.backward()
        found.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)


def test_company_changes_no_bit_if_asked(place: Path, run: Path) -> None:
    graphs = [row["graph"] for row in GraphFiles.at(place / "test.jsonl").read()]
    alone = regard.load(run, bitwise=True)
    assert [each.logits for each in alone.classify(graphs)] == [alone.classify(graph).logits for graph in graphs]
    together = regard.load(run).classify(graphs)
    for one, other in zip(alone.classify(graphs), together, strict=True):
        assert one.logits == pytest.approx(other.logits, abs=1e-5)


def test_graphs_are_prepared_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.load(str(place / "r.yaml"))
    one = prepare(recipe)
    monkeypatch.setattr("regard.data.graphs.shortest", lambda *_: pytest.fail("paths are found again"))
    assert prepare(recipe).identity == one.identity
    assert prepare(recipes.load(str(place / "r.yaml"), ["model.dropout=0.3"])).identity == one.identity


def test_a_model_is_judged_and_calibrated(place: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    found = judge(copy, place / "test.jsonl", calibrate=True)
    assert (found["task"], found["counted"], found["rows"]) == ("graph", "graphs", 30)
    assert "accuracy" in show("evaluate", copy, place / "test.jsonl")


def tu(folder: Path, rows: list[dict[str, Any]], name: str = "SET") -> Path:
    """The same in TU's form: everything is numbered from 1 on, across all graphs."""
    folder.mkdir()
    lines: dict[str, list[str]] = {
        "A": [],
        "graph_indicator": [],
        "graph_labels": [],
        "edge_labels": [],
        "node_labels": [],
    }
    first = 1
    for i, row in enumerate(rows, start=1):
        for u, v in row["edges"]:
            lines["A"] += [f"{first + u}, {first + v}", f"{first + v}, {first + u}"]
            lines["edge_labels"] += ["3", "3"]
        lines["graph_indicator"] += [str(i)] * row["nodes"]
        lines["node_labels"] += [str(n % 2) for n in range(row["nodes"])]
        lines["graph_labels"].append("1" if row["label"] == "ring" else "-1")
        first += row["nodes"]
    for kind, each in lines.items():
        (folder / f"{name}_{kind}.txt").write_text("".join(f"{line}\n" for line in each))
    return folder


def as_graphml(row: dict[str, Any]) -> str:
    nodes = "".join(f'<node id="n{i}"><data key="d1">{i % 2}</data></node>' for i in range(row["nodes"]))
    edges = "".join(f'<edge source="n{u}" target="n{v}"><data key="d2">3</data></edge>' for u, v in row["edges"])
    keys = '<key id="d0" for="graph" attr.name="label" attr.type="string"/>'
    keys += '<key id="d1" for="node" attr.name="type" attr.type="int"/><key id="d2" for="edge" attr.name="bond"/>'
    own = f'<graph edgedefault="undirected"><data key="d0">{row["label"]}</data>{nodes}{edges}</graph>'
    return f'<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}{own}</graphml>'


def test_every_form_of_file_holds_the_same_graphs(place: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (place / "test.jsonl").open()]
    (tmp_path / "folder" / "ring").mkdir(parents=True)
    (tmp_path / "folder" / "chain").mkdir()
    gin = [str(len(rows))]
    for i, row in enumerate(rows):
        (tmp_path / "folder" / row["label"] / f"{i:02}.graphml").write_text(as_graphml(row))
        gin.append(f"{row['nodes']} {int(row['label'] == 'ring')}")
        for n in range(row["nodes"]):
            near = [str(v if u == n else u) for u, v in row["edges"] if n in (u, v)]
            gin.append(" ".join([str(n % 2), str(len(near)), *near]))
    (tmp_path / "SET.txt").write_text("\n".join(gin))
    forms = {
        "json": list(GraphFiles.at(place / "test.jsonl").read()),
        "tu": list(GraphFiles.at(tu(tmp_path / "tu", rows)).read()),
        "gin": list(GraphFiles.at(tmp_path / "SET.txt").read()),
    }
    shapes = {
        name: [(row["graph"].size, sorted(map(sorted, row["graph"].edges.tolist()))) for row in some]
        for name, some in forms.items()
    }
    assert shapes["json"] == shapes["tu"] == shapes["gin"]
    assert [row["label"] == "1" for row in forms["tu"]] == [row["label"] == "ring" for row in forms["json"]]
    assert forms["tu"][0]["graph"].nodes[:2] == ("0", "1")
    assert forms["tu"][0]["graph"].kinds[0] == "-3"
    drawn = list(GraphFiles.at(tmp_path / "folder").read())
    assert sorted(row["name"].split("/")[1] for row in drawn) == [f"{i:02}.graphml" for i in range(30)]
    own = next(row for row in drawn if row["name"].endswith("/00.graphml"))
    assert (own["graph"].nodes[:2], own["graph"].kinds[0]) == (("type=0", "type=1"), "-bond=3")
    assert own["label"] == rows[0]["label"]


def test_an_edge_list_is_a_graph(tmp_path: Path, run: Path) -> None:
    (tmp_path / "a.edges").write_text("# a triangle with a tail\na b\nb c\nc a\nc d\n")
    assert show("classify", run, tmp_path / "a.edges").startswith("a.edges\tring")


def test_ten_folds_hold_everything_out_once(place: Path) -> None:
    whole = [row["name"] for row in GraphFiles.at(place / "train.jsonl").read()]
    recipe = "task: {name: graph}\ndata: {train: {jsonl: train.jsonl}, fold: FOLD}\ntokens: {kind: none, size: 0}\n"
    recipe += "model: {preset: graphormer-tiny}\ntrain: {steps: 1}\n"
    out = []
    for fold in range(1, 11):
        (place / "fold.yaml").write_text(recipe.replace("FOLD", str(fold)))
        files = recipes.load(str(place / "fold.yaml")).data.files()
        names = {part: [row["name"] for row in files[part].read()] for part in ("train", "valid", "test")}
        assert sorted(names["train"] + names["test"]) == sorted(whole)
        assert names["valid"] == names["test"]
        out += names["test"]
    assert sorted(out) == sorted(whole)
    folds = by_label(["a"] * 20 + ["b"] * 40, [str(i) for i in range(60)])
    assert all(folds[:20].count(i) == 2 and folds[20:].count(i) == 4 for i in range(1, 11))


def test_odd_graphs_are_read_and_said(run: Path) -> None:
    model = regard.load(run)
    bare = Graph.of({"nodes": 3, "edges": []})
    looped = Graph.of({"nodes": 3, "edges": [[0, 0], [0, 1]]})
    assert (looped.loops, looped.edges.tolist()) == (1, [[0, 1]])
    assert len(model.classify([bare, looped])) == 2
    assert model.classify({"nodes": ["Xx", "o"], "edges": [[0, 1]]}).label in ("ring", "chain")
    assert dict(model.unknown) == {"Xx": 1}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"nodes": 100_000, "edges": []}, "100,000 nodes: all pairs of them would take 190.0 GB"),
        ({"nodes": 2, "edges": [[0, 2]]}, "numbered from 0 to 1"),
        ({"nodes": 0, "edges": []}, "without nodes"),
        ({"nodes": 2}, "a graph is written"),
        ({"nodes": 2, "edges": [[0]]}, "cannot be read"),
        ({"nodes": 1, "edges": [], "numbers": [[1.0]]}, "1 numbers a node, the model reads 0"),
        ({"nodes": 1, "edges": [], "numbers": [["x"]]}, "cannot be read"),
    ],
)
def test_graphs_that_cannot_be_read_are_refused(run: Path, held: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        regard.load(run).classify(held)


def test_what_cannot_be_told_is_one_line(place: Path, run: Path, tmp_path: Path, fail: Callable[..., str]) -> None:
    assert "there is no file 'nowhere.smi'" in fail("classify", run, "nowhere.smi")
    assert "are for texts" in fail("classify", run, "CCO", "--pair", "x")
    (tmp_path / "bad.graphml").write_text("<graphml><graph>")
    assert "is no GraphML" in fail("classify", run, tmp_path / "bad.graphml")
    (tmp_path / "bomb.graphml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><graphml/>')
    assert "entities of its own" in fail("classify", run, tmp_path / "bomb.graphml")
    (tmp_path / "gin.txt").write_text("2\n2 0\n0 1 1\n")
    assert "gin.txt, line 4" in fail("classify", run, tmp_path / "gin.txt")
    (tmp_path / "some.jsonl").write_text('{"nodes": 4000, "edges": []}\n{"nodes": 2, "edges": [[0, 1], [1, 1]]}\n')
    result = CliRunner().invoke(cli.app, ["classify", str(run), str(tmp_path / "some.jsonl")])
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert "graph 1 has 4,000 nodes" in result.stderr
    assert "1 of 2 graphs were left out" in result.stderr
    assert "1 graph had edges from a node to itself: these were left out" in result.stderr
    nothing = CliRunner().invoke(cli.app, ["classify", str(run)], input="\n")
    assert str(nothing.exception) == "there are no graphs to read: name some"
    rows = (place / "test.jsonl").read_text().replace('"ring"', '"knot"')
    (tmp_path / "other.jsonl").write_text(rows)
    assert "labels that the model does not know: knot" in fail("evaluate", run, tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tokens.kind=char", "write tokens: {kind: none, size: 0}"),
        ("task.level=atom", "task.level = 'atom': choose graph, node or edge"),
        ("data.split=scaffold", "leave valid and test out"),
        ("data.fold=11", "data.fold = 11: there are 10"),
        ("train.batch_tokens=0", "say how many nodes make a batch"),
        ("model.preset=bert-tiny", "a model like bert-tiny cannot do it|no graphs|has no setting"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(place: Path, override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipes.load(str(place / "r.yaml"), [override])


@pytest.mark.slow
@chemistry
def test_molecules_are_told_over_http(place: Path, tmp_path: Path) -> None:
    out = molecules(tmp_path, kind="one")
    expected = regard.load(out).classify("CCO").probabilities
    with running(Registry([out]), ServeConfig()) as (url, _):
        for route, inputs in (("predict", "CCO"), ("models/run", ["CCO"])):
            answer = httpx.post(f"{url}/{route}", json={"inputs": inputs})
            assert answer.status_code == 200, answer.text
            told = answer.json()[0] if route != "predict" else answer.json()
            assert {each["label"]: each["score"] for each in told} == pytest.approx(expected, abs=1e-5)
        refused = httpx.post(f"{url}/predict", json={"inputs": "C1CC"})
        assert (refused.status_code, "'C1CC' is no SMILES" in refused.json()["error"]) == (422, True)


MOLECULES = ["CCO", "CCN", "c1ccccc1O", "CC(=O)O", "C1CCCCC1", "CCCC", "c1ccncc1", "CC#N", "OCC(O)CO", "C[N+](C)(C)C"]


def molecules(place: Path, kind: str, **changes: str) -> Path:
    """A small model of molecules: what is told of them hangs on their oxygens."""
    rows = [(text * 1, text.upper().count("O")) for text in MOLECULES * 4]
    said = {"one": lambda n: "dry" if n == 0 else "wet", "number": lambda n: f"{n / 2}", "several": lambda n: ""}[kind]
    cells = [f"{text},{said(n)},{n % 2},{'' if n > 1 else int(n == 0)}" for text, n in rows]
    (place / "m.csv").write_text("smiles,label,odd,none\n" + "".join(f"{cell}\n" for cell in cells) + "C1CC,1,1,1\n")
    labels = ", labels: [odd, none]" if kind == "several" else ""
    text = YAML.replace("LEVEL", f"kind: {kind}").replace("PRESET", "graphormer-tiny").replace("steps: 40", "steps: 10")
    files = f"train: {{csv: m.csv{labels}}}"
    text = text.replace(
        "train: {jsonl: train.jsonl}, test: {jsonl: test.jsonl}",
        f"{files}, {files.replace('train', 'valid', 1)}, {files.replace('train', 'test', 1)}",
    )
    (place / "r.yaml").write_text(text)
    return learn(place, place / "run")


@chemistry
def test_a_number_is_told_of_molecules_and_bad_ones_are_counted(tmp_path: Path) -> None:
    out = molecules(tmp_path, "number")
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    assert len(data.train) == 40
    assert any("1 graphs cannot be read ('C1CC' is no SMILES" in remark for remark in data.remarks)
    assert {"rmse", "spearman"} <= json.loads((out / "evaluation.json").read_text()).keys()
    (tmp_path / "some.smi").write_text("OCC alcohol\nC1CC broken\nCCCC\n")
    result = CliRunner().invoke(cli.app, ["classify", str(out), str(tmp_path / "some.smi")])
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["alcohol", "CCCC"]
    assert "1 of 3 graphs were left out" in result.stderr
    model = regard.load(out)
    assert model.classify("OCC").value == pytest.approx(model.classify("CCO").value, abs=1e-5)
    assert float(result.stdout.split("\t")[1].split()[0]) == pytest.approx(model.classify("CCO").value, abs=1e-4)


@pytest.mark.slow
@chemistry
def test_labels_that_are_not_known_do_not_count(tmp_path: Path) -> None:
    out = molecules(tmp_path, "several")
    figures = json.loads((out / "evaluation.json").read_text())
    assert 0.0 <= figures["roc_auc"]["score"] <= 1.0
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    batch = data.task.collate(data.tokenizer, 0.0)(data.train.rows(np.arange(9)), Random(0))
    assert set(batch["labels"].unique().tolist()) == {-100, 0, 1}
    model = regard.load(out).model.train()
    objective = data.task.objective(model, 0.0, data.tokenizer)
    model.eval()
    whole = objective(**batch.tensors)
    said, y = model(**{k: x for k, x in batch.tensors.items() if k != "labels"}), batch["labels"]
    each = torch.nn.functional.binary_cross_entropy_with_logits(said, y.clamp(min=0).float(), reduction="none")
    assert whole.item() == pytest.approx(each[y != -100].sum().item(), rel=1e-5)


@chemistry
def test_skeletons_are_kept_apart(tmp_path: Path) -> None:
    from regard.data.molecules import scaffold

    rings = [f"c1ccccc1{'C' * n}" for n in range(12)] + [f"c1ccncc1{'C' * n}" for n in range(3)]
    (tmp_path / "m.csv").write_text(
        "smiles,label\n" + "".join(f"{x},{i}\n" for i, x in enumerate([*rings, "C1CCCCC1"]))
    )
    parts = {
        part: list(GraphFiles(csv=str(tmp_path / "m.csv"), part=f"scaffold:{part}").read())
        for part in ("train", "valid", "test")
    }
    assert [len(rows) for rows in parts.values()] == [12, 1, 3]
    skeletons = [{scaffold(row["name"]) for row in rows} for rows in parts.values()]
    assert not (skeletons[0] & skeletons[1]) | (skeletons[0] & skeletons[2]) | (skeletons[1] & skeletons[2])


@chemistry
def test_what_is_said_of_atoms_may_be_less() -> None:
    from regard.data.molecules import molecule

    assert molecule("C[O-]", ("element", "charge")).nodes == ("C", "O charge=-1")
    assert molecule("OC=C", ("element", "neighbours")).nodes == ("O neighbours=2", "C neighbours=3", "C neighbours=3")
    assert molecule("C=CC#N").kinds == ("=~", "-~", "#~")
    assert molecule("[Na+].[Cl-]").edges.shape == (0, 2)


def test_a_graph_is_drawn_with_what_it_looks_at(run: Path, tmp_path: Path) -> None:
    """The page has the maps, and what is said without each head; other files are as of any model that reads."""
    (tmp_path / "a.edges").write_text("a b\nb c\nc a\nc d\n")
    show("inspect", run, tmp_path / "a.edges", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    model = regard.load(run)
    graph = next(GraphFiles.at(tmp_path / "a.edges").rows())["graph"]
    maps = model.attention(graph)
    assert [one["name"] for one in data["maps"]] == [each.name for each in maps]
    shown = torch.tensor(data["maps"][0]["weights"]) / data["scale"]
    assert torch.allclose(shown, maps[0].weights, atol=1e-4)
    assert maps[0].queries == ["graph", "o 0", "o 1", "o 2", "o 3"]
    with regard.edit(model.model, {maps[0].name: {2: 0.0}}):
        without = model.classify(graph).probabilities
    label, p = next(iter(without.items()))
    assert data["maps"][0]["without"][2].startswith(f"{label} {p:.1%}")
    places = np.array(data["places"])
    apart = np.linalg.norm(places[:, None] - places, axis=-1)
    assert apart[np.triu_indices(4, 1)].min() > 0.2
    assert apart[0, 3] > apart[2, 3]
    show("inspect", run, tmp_path / "a.edges", "-o", tmp_path / "maps.npz")
    assert model.attention(graph, special=False)[0].weights.shape == (4, 4, 4)


@pytest.mark.slow
@chemistry
def test_a_molecule_is_drawn(tmp_path: Path) -> None:
    out = molecules(tmp_path, "number")
    page = regard.load(out).attention_page("c1ccccc1O")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert (data["nodes"], len(data["edges"])) == (["C"] * 6 + ["O"], 7)


def test_roc_auc_is_that_of_pairs() -> None:
    draw = np.random.default_rng(0)
    truth, told = draw.random(50) < 0.3, draw.integers(0, 8, 50) / 8
    pairs = [(a > b) + (a == b) / 2 for a in told[truth] for b in told[~truth]]
    assert roc_auc(truth, told) == pytest.approx(np.mean(pairs))
    assert np.isnan(roc_auc(np.ones(3, bool), told[:3]))


def test_rows_without_a_label_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"nodes": 2, "edges": [[0, 1], [1, 1]]}\n{"nodes": 1, "edges": [[0, 0]], "label": 1}\n'
    )
    skipped = Skipped()
    assert len(list(GraphFiles.at(tmp_path / "a.jsonl").read(skipped))) == 1
    assert "1 graphs have no label (graph 1)" in skipped.report()
    assert "1 graphs had edges from a node to itself" in skipped.report()


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"nodes": 10**11, "edges": []}, "100,000,000,000 nodes are more than"),
        ({"edges": [[0, 10**11]]}, "100,000,000,001 nodes are more than"),
        ({"nodes": ["C"], "edges": [[0, 10**30]]}, "too large"),
        ({"nodes": ["C", "O"], "edges": [[0, 0.5]]}, "'float'"),
    ],
)
def test_no_graph_is_made_of_numbers_that_name_no_nodes(held: dict[str, Any], why: str) -> None:
    with pytest.raises(GraphError, match=f"mine.*{why}"):
        Graph.of(held, "mine")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "it has no file"),
        ({"A": "1, 9", "graph_indicator": "1\n1"}, "an edge joins the nodes 0 to 8"),
        ({"A": "1, 2", "graph_indicator": "1\n2", "graph_labels": "1"}, "2 graphs, and 1 labels"),
        ({"A": "1, 2", "graph_indicator": "1\n1", "node_labels": "1\n2\n3"}, "2 nodes, and 3 labels"),
    ],
)
def test_what_does_not_fit_in_tus_form_is_named(tmp_path: Path, files: dict[str, str], why: str) -> None:
    for name, text in files.items():
        (tmp_path / f"X_{name}.txt").write_text(text)
    with pytest.raises(ValueError, match=f"{tmp_path} is no data of TU's form: {why}"):
        list(GraphFiles(tu=str(tmp_path)).read())


def test_an_edge_to_nowhere_in_gins_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("1\n2 0\n0 1 7\n0 1 0\n")
    with pytest.raises(ValueError, match=r"x\.txt, graph 0: an edge joins the nodes 0 to 7"):
        list(GraphFiles(gin=str(tmp_path / "x.txt")).read())
