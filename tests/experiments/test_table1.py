"""Table 1: what is counted on layers is exact, the arithmetic of the report, and the whole experiment."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.experiments import lab, table1
from regard.experiments.layers import LAYERS, flops, kept_bytes, layers_on_the_way, operations_in_a_row, through


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_the_shape(name: str) -> None:
    x = torch.randn(2, 9, 16)
    assert through(LAYERS[name].make(16, 0), x).shape == x.shape


@pytest.mark.parametrize("name", ["written", "window", "linear", "convolution", "dilated"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    with FlopCounterMode(display=False) as counter:
        through(LAYERS[name].make(64, 0), torch.randn(1, 200, 64))
    assert flops(name, 200, 64) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_flops_of_a_cell_are_those_of_its_steps(name: str) -> None:
    cell, x = LAYERS[name].make(16, 0), torch.randn(1, 16)
    state = (torch.zeros(1, 16),) * (2 if name == "lstm" else 1)
    with FlopCounterMode(display=False) as counter:  # which does not see into the kernels that run a whole sequence
        cell(x, state)
    assert flops(name, 1, 16) == counter.get_total_flops()


class Made(nn.Module):
    """A layer of which everything is known."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        for i in range(4):
            y[:, i] = x[:, i].exp()  # side by side, for each writes another part
        z = y.transpose(1, 2).transpose(1, 2)  # views
        for _ in range(3):
            z = z + 1
        z.mul_(2)
        return z


def test_operations_in_a_row() -> None:
    # exp, the copy of it, three sums, the product in place
    assert operations_in_a_row(Made(), torch.randn(1, 4, 2)) == 6


def test_operations_of_layers_grow_as_the_paper_says() -> None:
    def at(name: str, n: int) -> int:
        return operations_in_a_row(LAYERS[name].make(8, 0), torch.randn(1, n, 8))

    for name in ("attention", "written", "convolution", "dilated"):
        assert at(name, 8) == at(name, 64)
    assert at("window", 300) == at("window", 1200)
    for name in ("lstm", "gru"):
        step = at(name, 9) - at(name, 8)
        assert step > 1
        assert at(name, 40) - at(name, 8) == 32 * step
    assert at("linear", 32) - at("linear", 16) == at("linear", 64) - at("linear", 32) > 0  # a logarithm


@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("attention", 40, 1),
        ("lstm", 40, 1),
        ("linear", 40, 1),
        ("window", 33, 1),
        ("window", 34, 2),
        ("window", 100, 4),  # 99 positions in steps of 32
        ("convolution", 20, 19),
        ("dilated", 17, 5),  # 1 + 2 + 4 + 8 < 16
        ("dilated", 16, 4),
    ],
)
def test_layers_on_the_way(name: str, n: int, expected: int) -> None:
    torch.manual_seed(0)
    assert layers_on_the_way(lambda i: LAYERS[name].make(4, i), n, 4) == expected


def test_layers_that_mix_nothing_have_no_way() -> None:
    with pytest.raises(ValueError, match="carry nothing from the first of 5 positions"):
        layers_on_the_way(lambda i: nn.Linear(4, 4), 5, 4)


def test_kept_bytes_are_those_of_the_weights_of_attention() -> None:
    n, d = 64, 8
    kept = {name: kept_bytes(LAYERS[name].make(d, 0), torch.randn(1, n, d)) for name in ("attention", "written")}
    assert kept["attention"] < 4 * n * n <= kept["written"]


def test_a_crossover_is_found_where_it_was_planted() -> None:
    n = [2**i for i in range(3, 11)]
    quadratic, linear = [float(k * k) for k in n], [100.0 * k for k in n]
    assert table1.crossover(n, quadratic, linear) == pytest.approx(100)
    assert table1.crossover(n, linear, [1e9] * len(n)) == math.inf
    assert table1.crossover(n, linear, [1.0] * len(n)) == 0
    assert table1.crossover([1, 2, 4, 8], [2, 1, 2, 2], [1, 2, 1, 1]) == pytest.approx(2 * 2**0.5)  # the last one
    assert table1.exponent(n, quadratic) == pytest.approx(2)


@pytest.mark.parametrize("d", [64, 512])
def test_the_crossover_of_flops_is_where_they_are_equal(d: int) -> None:
    for rival in ("lstm", "gru"):
        n = table1.crossover_of_flops(rival, d)
        assert flops("attention", int(n), d) == flops(rival, int(n), d)


def made_up(growth: float) -> dict[str, lab.Result]:
    """Results in which attention takes n² d, all else n d² · growth."""
    results: dict[str, lab.Result] = {
        "counted": {name: [{"n": n, "operations": 2, "layers": n} for n in (8, 16, 32)] for name in LAYERS}
    }
    for d in (8, 16, 32):
        points = []
        for name in table1.TIMED:
            for n in (8, 16, 32, 64):
                quadratic = LAYERS[name].complexity == "n²·d"
                seconds = 1e-6 * (n * n * d if quadratic else growth * n * d * d)
                points.append({"layer": name, "n": n, "forward": seconds, "both": 3 * seconds, "bytes": n * d})
        results[f"batch-1-width-{d}"] = {"batch": 1, "d": d, "threads": 1, "points": points}
    return results


def test_the_report_says_what_the_results_say() -> None:
    text = table1.report(made_up(2.0), "small").text
    assert "the crossover lay at 2 to 2 times d where it was seen (3 settings)." in text
    assert "self-attention (n^2.00, claimed n^2)" in text
    assert "None is farther from it." in text
    text = table1.report(made_up(100.0), "small").text
    assert "at n = d self-attention was the faster layer in 3 of 3 settings (1e+02 to 1e+02 times as fast" in text
    assert "the crossover lay at no length that was measured." in text


@pytest.mark.slow
def test_the_whole_experiment_and_its_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []
    perform = lab._perform

    def watched(trial: lab.Trial, *rest: Any) -> lab.Result:
        if len(known) == 2:
            raise KeyboardInterrupt
        known.append(trial.name)
        return perform(trial, *rest)

    monkeypatch.setattr(lab, "_perform", watched)
    with pytest.raises(KeyboardInterrupt):
        lab.experiment("table1", scale="smoke", out=tmp_path, console=Console(quiet=True))
    first, known[:] = known[:], ["", "", ""]  # never two again
    lab.experiment("table1", scale="smoke", out=tmp_path, console=Console(quiet=True))
    assert [*first, *known[3:]] == [trial.name for trial in table1.trials("smoke")]
    text = (tmp_path / "table1.md").read_text("utf-8")
    assert all(layer.label in text for layer in LAYERS.values())
    assert "nan" not in text
    assert set(json.loads((tmp_path / "table1.json").read_text("utf-8"))["trials"]) == {*first, *known[3:]}
    for name in ("time", "memory", "operations", "path", "crossover"):
        assert f"(table1-{name}.svg)" in text
        assert ElementTree.parse(tmp_path / f"table1-{name}.svg").getroot().tag.endswith("svg")
