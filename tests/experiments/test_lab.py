"""The frame of experiments: trials that are kept, a report, and the same results on a cluster."""

import json
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from regard.experiments import lab
from regard.experiments.charts import Bars, Chart, Series
from regard.experiments.lab import Experiment, Findings, Results, Trial, experiment, table

SQUARES = """
def square(folder, console, x):
    with (folder / "runs").open("a") as file:
        file.write("one\\n")
    return {"square": x * x}
"""


@pytest.fixture
def squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of its own, so that another process can import it too."""
    place = tmp_path / "modules"
    place.mkdir()
    (place / "squares_of_the_lab.py").write_text(SQUARES)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    yield __import__("squares_of_the_lab").square
    sys.modules.pop("squares_of_the_lab")


def report(results: Results, scale: str) -> Findings:
    rows = [[name, result["square"]] for name, result in results.items()]
    chart = Chart("Squares", "x", "x²", [Series("ours", range(len(rows)), [row[1] for row in rows])])
    return Findings(f"{table(['x', 'x²'], rows)}\n\n![squares](toy-squares.svg)", {"toy-squares": chart})


def toy(monkeypatch: pytest.MonkeyPatch, run: Any, numbers: list[int]) -> None:
    trials = [Trial(f"x-{x}", run, {"x": x}) for x in numbers]
    monkeypatch.setattr(lab, "find", lambda name: Experiment("toy", "Squares", lambda scale: trials, report))


def go(out: Path, **options: Any) -> dict[str, Any]:
    experiment("toy", scale="smoke", out=out, console=Console(quiet=True), **options)
    found: dict[str, Any] = json.loads((out / "toy.json").read_text("utf-8"))
    return {name: record["result"]["square"] for name, record in found["trials"].items()}


def runs(out: Path, name: str) -> int:
    return len((out / "trials" / name / "runs").read_text().splitlines())


def test_an_experiment_leaves_markdown_json_and_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any
) -> None:
    toy(monkeypatch, squares, [2, 3])
    assert go(tmp_path / "out") == {"x-2": 4, "x-3": 9}
    text = (tmp_path / "out" / "toy.md").read_text("utf-8")
    assert text.startswith("# Squares\n\n`regard experiment toy --scale smoke` with regard ")
    assert lab.machine() in text
    assert "| x-3 | 9 |" in text
    assert ElementTree.parse(tmp_path / "out" / "toy-squares.svg").getroot().tag.endswith("svg")


def test_what_is_known_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    out = tmp_path / "out"
    toy(monkeypatch, squares, [2, 3])
    go(out)
    toy(monkeypatch, squares, [2, 3, 5])
    assert go(out) == {"x-2": 4, "x-3": 9, "x-5": 25}
    assert runs(out, "x-2") == 1
    (out / "trials" / "x-2" / "half").touch()
    with monkeypatch.context() as offline:
        offline.setattr(lab, "_fetch", lambda *_: pytest.fail("fetched"))  # for there is nothing left to measure
        go(out)
    assert (out / "trials" / "x-2" / "half").exists()
    go(out, again=True)
    assert runs(out, "x-2") == 1
    assert not (out / "trials" / "x-2" / "half").exists()


def test_other_settings_are_another_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    toy(monkeypatch, squares, [2])
    go(tmp_path)
    changed = [Trial("x-2", squares, {"x": 7})]
    monkeypatch.setattr(lab, "find", lambda name: Experiment("toy", "Squares", lambda scale: changed, report))
    assert go(tmp_path) == {"x-2": 49}
    assert runs(tmp_path, "x-2") == 1  # in a folder of its own, not in that of the other settings


def test_what_was_begun_is_gone_on_with_only_under_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def interrupted(folder: Path, console: Console, **settings: Any) -> lab.Result:
        seen.append((folder / "half").exists())
        (folder / "half").touch()
        raise KeyboardInterrupt

    for x in (2, 2, 7):
        trial = Trial("x-2", interrupted, {"x": x})
        monkeypatch.setattr(lab, "find", lambda name, t=trial: Experiment("toy", "Squares", lambda scale: [t], report))
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path)
    assert seen == [False, True, False]


def test_the_report_names_the_versions_of_its_trials_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any
) -> None:
    def made(version: str, *numbers: int) -> str:
        monkeypatch.setattr(lab, "version", lambda name: version)
        toy(monkeypatch, squares, [*numbers])
        go(tmp_path)
        return (tmp_path / "toy.md").read_text("utf-8").splitlines()[2]

    assert "with regard 1.0: " in made("1.0", 2)
    assert "with regard 2.0 (trials with 1.0): " in made("2.0", 2)
    assert "with regard 2.0 (trials with 1.0, 2.0): " in made("2.0", 2, 3)
    record = json.loads((tmp_path / "trials" / "x-2.json").read_text())
    (tmp_path / "trials" / "x-2.json").write_text(json.dumps({k: v for k, v in record.items() if k != "regard"}))
    assert "with regard 2.0: " in made("2.0", 2, 3)  # of an old record nothing is known


def test_a_damaged_record_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    toy(monkeypatch, squares, [2])
    go(tmp_path)
    record = json.loads((tmp_path / "trials" / "x-2.json").read_text())
    without = json.dumps({key: record[key] for key in ("run", "settings")})
    for damage in ("{", "[]", "null", '{"run": 1}', without):
        (tmp_path / "trials" / "x-2.json").write_text(damage)
        assert go(tmp_path) == {"x-2": 4}


def test_an_interrupted_experiment_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    def interrupted(folder: Path, console: Console, **settings: Any) -> lab.Result:
        raise KeyboardInterrupt

    trials = [Trial("x-2", squares, {"x": 2}), Trial("x-3", interrupted, {"x": 3})]
    monkeypatch.setattr(lab, "find", lambda name: Experiment("toy", "Squares", lambda scale: trials, report))
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    assert not (tmp_path / "toy.md").exists()
    toy(monkeypatch, squares, [2, 3])
    assert go(tmp_path) == {"x-2": 4, "x-3": 9}
    assert runs(tmp_path, "x-2") == 1


def test_a_mistake_in_one_trial_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    trials = [Trial("x-2", squares, {"x": 2}), Trial("wrong", squares, {"y": 3})]
    monkeypatch.setattr(lab, "find", lambda name: Experiment("toy", "Squares", lambda scale: trials, report))
    with pytest.raises(TypeError):
        go(tmp_path)
    assert json.loads((tmp_path / "trials" / "x-2.json").read_text())["result"] == {"square": 4}


def test_an_unwritable_folder_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any
) -> None:
    toy(monkeypatch, squares, [2])
    monkeypatch.setattr(lab, "_fetch", lambda *_: pytest.fail("fetched"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        go(tmp_path / "file")


def test_who_has_no_network_is_told_of_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, **_: Any) -> None:
        raise OSError("could not download it")

    monkeypatch.setattr("regard.data.corpora.obtain", unreachable)
    with pytest.raises(
        OSError, match=r"could not download it; or set REGARD_DATA to a folder that holds multi30k-en-de"
    ):
        lab._fetch(["multi30k-en-de"], Console(quiet=True))


WMT = [f"{text}.{language}" for text in ("train", "newstest2013", "newstest2014") for language in ("en", "de", "fr")]


@pytest.mark.parametrize(
    ("name", "scale", "corpora"),
    [
        ("table1", "full", []),
        ("table2", "small", ["multi30k-en-de", "multi30k-en-fr"]),
        ("table2", "full", []),
        ("table3", "smoke", ["multi30k-en-de"]),
        ("table3", "full", []),
        ("table4", "small", ["treebank-en-trees"]),
        ("table4", "full", ["wsj-en-trees"]),
        ("extrapolation", "small", ["scan-in-out-length", "scan-in-out-simple", "multi30k-en-de"]),
        ("extrapolation", "full", ["scan-in-out-length", "scan-in-out-simple"]),
        ("scaling", "small", ["tatoeba-en-es"]),
        ("scaling", "full", []),
    ],
)
def test_what_a_scale_does_not_need_is_not_fetched(
    name: str, scale: str, corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("wmt14", "wmt14-fr"):
        Path(folder).mkdir()
        for text in WMT:
            Path(folder, text).touch()
    fetched: list[str] = []
    monkeypatch.setattr(lab, "_fetch", lambda wanted, console: fetched.extend(wanted))
    monkeypatch.setattr(lab, "_here", lambda *_: 1 / 0)  # the first trial
    with pytest.raises(ZeroDivisionError):
        experiment(name, scale=scale, console=Console(quiet=True))
    assert fetched == corpora


@pytest.mark.parametrize("name", ["table2", "table3", "extrapolation", "scaling"])
def test_missing_files_of_a_recipe_are_told_before_the_first_trial(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab, "_fetch", lambda *_: pytest.fail("fetched"))
    says = r"there is no .*/wmt14/train.en \(nor train.de, .*\), which the recipe wmt14-en-de-base reads: put the text"
    with pytest.raises(ValueError, match=says):
        experiment(name, scale="full", console=Console(quiet=True))


def test_results_outlive_an_attempt_to_measure_anew_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any
) -> None:
    toy(monkeypatch, squares, [2])
    go(tmp_path)
    with monkeypatch.context() as offline:
        offline.setattr(lab, "_fetch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go(tmp_path, again=True)
    assert go(tmp_path) == {"x-2": 4}
    assert runs(tmp_path, "x-2") == 1


def test_every_machine_of_a_cluster_has_one_trial_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any
) -> None:
    ray = pytest.importorskip("ray")
    sizes = {"a" * 56: {"CPU": 8.0, "GPU": 1.0}, "b" * 56: {"CPU": 4.0}, "c" * 56: {"memory": 1.0}}
    handles = count()
    at_work: dict[int, tuple[Any, ...]] = {}
    most: dict[str, int] = {}

    def remote(function: Any) -> Any:
        def options(num_cpus: float, num_gpus: float, scheduling_strategy: Any) -> Any:
            node = scheduling_strategy.node_id
            assert {"CPU": num_cpus, "GPU": num_gpus} == {"GPU": 0, **sizes[node]}  # all of it

            def start(*arguments: Any) -> int:
                at_work[handle := next(handles)] = (node, function, arguments)
                most[node] = max(most.get(node, 0), sum(other == node for other, *_ in at_work.values()))
                return handle

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get(handle: int) -> Any:
        _, function, arguments = at_work.pop(handle)
        return function(*arguments)

    nodes = [{"NodeID": node, "Alive": True, "Resources": has} for node, has in sizes.items()]
    for verb, stand_in in {
        "init": lambda **_: None,
        "shutdown": lambda: None,
        "nodes": lambda: nodes,
        "remote": remote,
        "wait": lambda handles, num_returns: (handles[-1:], handles[:-1]),
        "get": get,
    }.items():
        monkeypatch.setattr(ray, verb, stand_in)
    toy(monkeypatch, squares, [2, 3, 5, 7, 11])
    assert go(tmp_path, ray="auto") == {f"x-{x}": x * x for x in (2, 3, 5, 7, 11)}
    assert most == {"a" * 56: 1, "b" * 56: 1}


@pytest.mark.slow
def test_a_cluster_gives_the_same_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    pytest.importorskip("ray")
    toy(monkeypatch, squares, [2, 3, 5])
    assert go(tmp_path / "cluster", ray="local") == go(tmp_path / "here") == {"x-2": 4, "x-3": 9, "x-5": 25}


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squares: Any) -> None:
    pytest.importorskip("ray")
    toy(monkeypatch, squares, [2])
    with pytest.raises(ValueError, match=r"no Ray cluster answers at '127.0.0.1:1'"):
        go(tmp_path, ray="127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "scale", "says"),
    [
        ("tabel3", "smoke", "unknown experiment 'tabel3': did you mean 'table3'"),
        ("table3", "tiny", "unknown scale 'tiny': there are smoke, small, full"),
    ],
)
def test_what_does_not_exist_is_named(tmp_path: Path, name: str, scale: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        experiment(name, scale=scale, out=tmp_path)


@pytest.mark.parametrize("name", lab.NAMES)
def test_every_experiment_is_there_at_every_scale(name: str) -> None:
    found = lab.find(name)
    assert found.name == name
    for scale in lab.SCALES:
        trials = found.trials(scale)
        assert len({trial.name for trial in trials}) == len(trials) > 0
        for trial in trials:
            json.dumps(dict(trial.settings))
            assert Path(trial.name).name == trial.name
            assert getattr(sys.modules[trial.run.__module__], trial.run.__qualname__) is trial.run


def test_equal_charts_are_equal_bytes() -> None:
    series = [Series("a", [1, 2], [3, 4], low=[2, 3], high=[4, 5]), Series("fit", [1, 2], [3, 4], style="dashes")]
    chart = Chart("T", "x", "y", series, log_x=True, log_y=True, lines={"here": 1.5})
    assert chart.svg() == chart.svg()
    bars = Bars("T", "y", ["one", "two"], {"ours": [1, 2], "theirs": [2, 1]})
    texts = {each.text for each in ElementTree.fromstring(bars.svg()).iter() if each.tag.endswith("text")}
    assert {"one", "two", "ours", "theirs"} <= texts


def test_a_logarithmic_axis_has_numbers_that_a_person_reads() -> None:
    def texts(*places: float) -> set[str | None]:
        svg = Chart("T", "heads", "y", [Series("a", places, places)], log_x=True).svg()
        return {each.text for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")}

    assert {"1", "4", "16", "32"} <= texts(1, 4, 16, 32)
    assert {"1", "10"} <= texts(1, 1.1, 20)  # too close to one another for each to have its own
    assert not {"1e+19", "2e+19"} & texts(1e19, 2e19)
