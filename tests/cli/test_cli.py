"""The command: right figures, one line for a mistake, and no waiting for torch where it is not needed."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.cli import command, telling
from regard.experiments import lab
from regard.models.costs import forward_flops, parameters
from regard.models.family import configure
from regard.models.transformer import TransformerConfig


def start(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`python -m regard ...` in a process of its own."""
    command = [sys.executable, "-m", "regard", *arguments]
    plain = {"TERM": "dumb", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **plain, **environment})


def show(*arguments: str) -> str:
    """The output of a command that must succeed, in this process."""
    result = CliRunner().invoke(cli.app, [*arguments], env={"TERM": "dumb", "COLUMNS": "100"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fail(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that must fail says, in this process."""
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, error = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert error.count("\n") == 1
    return error.strip()


LOADED = """
import atexit, sys
from regard.cli import main

atexit.register(lambda: print([name for name in ("torch", "torch._dynamo") if name in sys.modules]))
main()
"""


def loaded(*arguments: str, code: int = 0) -> str:
    """Which of the heavy modules a command has loaded when it ends."""
    command = [sys.executable, "-c", LOADED, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TERM": "dumb"})
    assert ended.returncode == code, ended.stderr
    return ended.stdout.splitlines()[-1]


def test_help_and_mistakes_in_the_use_of_a_command_do_not_load_torch(tmp_path: Path) -> None:
    assert loaded("--help") == loaded("--version") == loaded("translate", "--help") == "[]"
    assert (
        loaded("translate", "--bema", "3", code=2) == loaded("translat", code=2) == loaded("evaluate", code=2) == "[]"
    )
    assert loaded("translate", str(tmp_path / "none.txt"), code=2) == "[]"


@pytest.mark.parametrize("verb", ["serve", "explore"])
def test_a_port_in_use_is_told_before_torch_is_loaded(verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert loaded(verb, "--port", str(taken.getsockname()[1]), code=2) == "[]"


def test_a_sentence_does_without_the_compiler_of_torch() -> None:
    assert loaded("translate", "Hello, how are you?") == "['torch']"


def test_lazy_names_are_the_real_ones() -> None:
    from regard.inspection import taps

    assert regard.record is taps.record
    assert regard.edit is taps.edit
    with pytest.raises(AttributeError, match="'regard' has no attribute 'recrod'"):
        regard.recrod  # noqa: B018


def test_version_and_help() -> None:
    assert show("--version") == f"regard {regard.__version__}\n"
    assert "info" in show("--help")
    assert "--vocabulary" in show("info", "--help")


def test_info_of_base_shows_its_totals_and_the_papers_runs() -> None:
    shown = start("info", "base")
    assert (shown.returncode, shown.stderr) == (0, "")
    config = TransformerConfig.base(37_000)
    total = rf"total +{parameters(config):,} +{forward_flops(config):,}"
    assert re.search(total, shown.stdout)
    assert re.search(r"encoder self-attention +6,303,744 +10.0% +322,252,800 +10.2%", shown.stdout)
    assert re.search(r"training state +1.009 GB", shown.stdout)
    assert re.search(r"base +100,000 .* 3.3e\+18 +29%", shown.stdout)
    assert re.search(r"big +300,000 .* 2.3e\+19 +42%", shown.stdout)


def test_info_follows_changes_and_options() -> None:
    changes = ["positions=shaw", "heads=8", "d_k=none", "d_v=24", "bias=False", "feed_forward=convolution"]
    shown = show("info", "tiny", *changes, "--vocabulary", "1000", "--source", "7", "--target", "5")
    config = TransformerConfig.tiny(1000, positions="shaw", heads=8, d_v=24, bias=False, feed_forward="convolution")
    assert re.search(rf"total +{parameters(config):,} +{forward_flops(config, 1, 7, 5):,}", shown)
    assert "paper" not in shown


def test_info_of_a_language_model_counts_its_one_text() -> None:
    shown = show("info", "gpt-tiny", "--vocabulary", "1000", "--json")
    assert json.loads(shown)["memory"]["cache_per_target_token"] == 4 * 2 * 128 * 4  # layers, keys and values, d_model


def test_info_fits_a_narrow_terminal() -> None:
    result = CliRunner().invoke(cli.app, ["info", "tiny"], env={"TERM": "dumb", "COLUMNS": "80"})
    assert "…" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_info_as_json() -> None:
    account = json.loads(show("info", "tiny", "norm=pre", "--vocabulary", "1000", "--json"))
    config = TransformerConfig.tiny(1000, norm="pre")
    assert TransformerConfig(**account["config"]) == config
    assert account["parameters"] == parameters(config) == sum(part["parameters"] for part in account["parts"])
    assert account["forward_flops"] == forward_flops(config) == sum(part["flops"] for part in account["parts"])
    assert account["memory"]["weights"]["fp32"] == 4 * parameters(config)
    assert account["paper"] == {}


def test_an_error_is_one_readable_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text("x" * 50_000)
    said = fail("train", str(tmp_path / "r.yaml"), monkeypatch=monkeypatch, capsys=capsys)
    assert said.startswith("error: ")
    assert len(said) < 1100
    said = fail("train", "a\x1b[2J\x07\u202eb.yaml", monkeypatch=monkeypatch, capsys=capsys)
    assert said.startswith("error: there is no file 'a\\x1b[2J\\x07\\u202eb.yaml'")
    for where in ("--model", "--x" + "y" * 5000):
        long = command._readable(f"{where} " + "\0" * 5000 + " the end")
        assert len(long) < 1010
        assert long.startswith(where[:500])
        assert long.endswith(" the end")
    with monkeypatch.context() as patch:
        patch.setattr(
            command, "app", lambda **_: (_ for _ in ()).throw(RuntimeError("Storage size calculation overflowed"))
        )
        assert "not enough memory" in fail(monkeypatch=patch, capsys=capsys)


def test_a_table_that_is_piped_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = CliRunner().invoke(cli.app, ["experiment"], env={"TERM": "dumb"}).stdout.splitlines()
    assert max(map(len, shown)) > 80
    assert all(any(line.startswith(f"  {name} ") for line in shown) for name in lab.NAMES)
    assert len(shown) < len(lab.NAMES) + 8


def test_verbs_come_in_groups_with_examples() -> None:
    shown = show("--help")
    groups = ["Use a model", "See inside it", "Train your own", "Measure it", "Make it smaller", "Exchange it"]
    assert sorted(groups, key=shown.index) == groups
    assert "Commands" not in shown  # all verbs are in a group
    assert 'regard translate "Where is the library?"' in shown
    assert "book.txt" in show("translate", "--help")


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["translate", "--temprature", "1"], "--temperature"),
        (["evaluate", "--refrence", "x"], "--reference"),
        (["serve", "--prot", "1"], "--port"),
        (["heads", "--ablat"], "--ablate"),
        (["train", "--overwite"], "--overwrite"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(arguments: list[str], near: str) -> None:
    result = CliRunner().invoke(cli.app, arguments, env={"TERM": "dumb", "COLUMNS": "100"})
    assert result.exit_code == 2
    assert near in result.stderr


def test_slow_work_says_so_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telling, "EVERY", 0.01)
    with telling.telling("heads"):
        time.sleep(0.1)
    assert "heads (0 s)" in capsys.readouterr().err.splitlines()
    with telling.telling("heads") as show:
        show("looking", 3, 4000)
        time.sleep(0.1)
    assert "heads: looking 3 of 4,000 (0 s)" in capsys.readouterr().err.splitlines()


NAMES = (
    "tiny, shallow, small, base, big, t5-small, flan-t5-small, bart-base, "
    "rnn, gru, lstm, linear-rnn, convs2s, bytenet, "
    "gpt-tiny, gpt2, llama-tiny, stories15m, smollm2-135m, "
    "bert-tiny, bert-mini, bert-base, minilm, roberta-base, distilbert, albert-base, "
    "vit-tiny, vit-small, vit-base, vit-large, deit-tiny, deit-base, cct-2, cct-7, "
    "timesformer-base, vivit-base, vivit-factorised, vivit-tiny, clip-tiny, clip-base, "
    "caption-tiny, vit-gpt2, latex-ocr, whisper-tiny, speech-tiny, seer-tiny, "
    "graphormer-tiny, graphormer-slim, graphormer-base, laplacian-tiny, walk-tiny, ast-base, ast-tiny, hearing-tiny"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bsae"], "error: unknown preset 'bsae': did you mean 'base'?"),
        (["gigantic"], f"error: unknown preset 'gigantic': there are {NAMES}"),
        (["base", "head=16"], "error: a Transformer model has no setting 'head': did you mean 'heads'?"),
        (["base", "heads"], "error: 'heads' is not a change: write key=value, as in heads=16"),
        (["base", "heads=1.5"], "error: heads = '1.5': expected a whole number"),
        (["base", "d_k=wide"], "error: d_k = 'wide': expected a whole number or none"),
        (["base", "heads=none"], "error: heads = 'none': expected a whole number"),
        (["base", "bias=maybe"], "error: bias = 'maybe': expected true or false"),
        (["base", "dropout=nan"], "error: dropout = nan: expected a number"),
        (["base", "scale="], "error: scale = '': expected a number or none"),
        (["base", "encoder_layers=-1"], "error: encoder_layers = -1: it must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail("info", *arguments, monkeypatch=monkeypatch, capsys=capsys) == message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["heads=7"], "7"),
        (["positions=roep"], "'roep'"),
        (["dropout=2"], "2.0"),
        (["positions=learned", "max_length=8", "--source", "25"], "25"),
        (["positions=rope", "d_k=3"], "3"),
        (["source_vocabulary=5"], "5"),
    ],
)
def test_a_setting_that_no_model_can_have_is_one_line(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fail("info", "tiny", *arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert said.startswith("error: ")
    assert named in said


def test_a_mistake_from_the_shell() -> None:
    ended = start("info", "bsae", REGARD_TRACEBACK="")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: unknown preset")
    assert ended.stderr.count("\n") == 1
    traced = start("info", "bsae", REGARD_TRACEBACK="1")
    assert traced.returncode != 0
    assert "Traceback" in traced.stderr


def test_a_missing_file_is_named_without_its_error_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "app", lambda **_: Path("no/such/file").read_text())
    assert fail(monkeypatch=monkeypatch, capsys=capsys) == "error: no/such/file: No such file or directory"


def test_an_error_may_look_like_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = fail("info", "[bold]:smile:" + "x" * 200, monkeypatch=monkeypatch, capsys=capsys)
    assert "'[bold]:smile:" + "x" * 200 in said


def _no_room_on_the_accelerator() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_lack_of_memory_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "error: not enough memory: to train, lower train.batch_tokens or raise train.accumulate"
    for ask in (lambda: torch.empty(2**55), lambda: np.empty(2**55, np.int8), _no_room_on_the_accelerator):
        monkeypatch.setattr(command, "app", lambda ask=ask, **_: ask())
        assert fail(monkeypatch=monkeypatch, capsys=capsys) == remedy
    monkeypatch.setattr(command, "app", lambda **_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):  # a mistake of ours is shown as it is
        cli.main()


def test_interruption_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.models.family.configure", interrupt)
    monkeypatch.setattr(sys, "argv", ["regard", "info", "base"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_values_are_read_by_their_type() -> None:
    config = configure("base", ["d_k=none", "tie=none", "positions=none", "scale=1", "bias=TRUE"], vocabulary=10)
    assert (config.d_k, config.tie, config.positions, config.scale, config.bias) == (None, "none", "none", 1.0, True)
    assert configure("big", ["vocabulary=41_000"], vocabulary=10).vocabulary == 41_000
