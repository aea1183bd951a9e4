"""The frame of experiments: trials that are kept, a report, and the same results on a cluster."""

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from regard.experiments import lab
from regard.experiments.charts import Bars, Chart, Series
from regard.experiments.lab import Experiment, Report, Results, Trial, experiment, table

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


def report(results: Results, scale: str) -> Report:
    rows = [[name, result["square"]] for name, result in results.items()]
    chart = Chart("Squares", "x", "x²", [Series("ours", range(len(rows)), [row[1] for row in rows])])
    return Report(f"{table(['x', 'x²'], rows)}\n\n![squares](toy-squares.svg)", {"toy-squares": chart})


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
        ("tabel3", "smoke", "no experiment 'tabel3': did you mean 'table3'"),
        ("table3", "tiny", "unknown scale 'tiny': choose one of smoke, small, full"),
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
