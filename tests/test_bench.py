"""The benchmarks still run; what they print is not judged."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_attention_benchmark_prints_a_row_for_each_length() -> None:
    command = [sys.executable, ROOT / "bench" / "attention.py", "--lengths", "32", "128", "--rounds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fused, ms" in result.stdout
    assert "128" in result.stdout
    assert "slope" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_zoo_benchmark_prints_a_row_for_each_kind() -> None:
    options = ["--limit", "256", "--rounds", "1", "--kinds", "fused", "window:64", "--steps", "2"]
    command = [sys.executable, ROOT / "bench" / "zoo.py", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "slope" in result.stdout
    assert result.stdout.count("window:64") == 3  # its time, its memory and its quality
    assert "full" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [("windows:64", "unknown attention"), ("window:999", "reaches 999 positions"), ("full", "by its backends: math")],
)
def test_the_zoo_benchmark_refuses_before_it_measures(kind: str, message: str) -> None:
    command = [sys.executable, ROOT / "bench" / "zoo.py", "--kinds", "window:64", kind]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="there is no Chromium"
)
def test_the_explorer_benchmark_prints_a_row_for_each_length() -> None:
    command = [sys.executable, ROOT / "bench" / "explore.py", "--tokens", "24", "--moves", "3", "--clicks", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hover, ms" in result.stdout
    assert "│ 24 " in result.stdout
