"""Several processes learn what one does: the same losses, the same weights, checkpoints that fit each other."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.core.generation import padded
from regard.core.outputs import HeadConfig
from regard.data.arrays import Table, pairs_of
from regard.data.batching import Batch, collate
from regard.models.encoder import Encoder, bert_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.config import TrainConfig
from regard.training.distributed import world
from regard.training.loop import Learner, Report
from regard.training.objectives import Contrastive, NextToken, Objective
from regard.training.optimisers import OptimiserConfig
from regard.training.run import Trainer, Validation
from regard.training.stream import stream

PROGRAM = f"""
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("t", {__file__!r})
t = importlib.util.module_from_spec(spec)
spec.loader.exec_module(t)
t.work(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))
"""


def alike(rows: Sequence[Any], draw: random.Random) -> Batch:
    """First texts, those that belong to them, and a wrong one for each."""
    texts = [list(map(int, text)) for group in zip(*rows, strict=True) for text in group] + [[3, 4, 5]] * len(rows)
    tokens = padded(texts, 0, 2**31)
    keep = torch.arange(tokens.shape[1]) < torch.tensor([len(text) for text in texts])[:, None]
    group = torch.arange(3).repeat_interleave(len(rows))
    return Batch({"tokens": tokens, "keep": keep, "group": group}, len(rows))


def work(directory: Path, settings: dict[str, Any]) -> None:
    """What each process does: train on pairs of very uneven length, some batches smaller than the world."""
    torch.set_num_threads(1)
    optimiser, interrupt = OptimiserConfig(settings.pop("optimiser")), settings.pop("interrupt", None)
    dtype, contrast = getattr(torch, settings.pop("dtype", "float64")), settings.pop("contrast", False)
    config = TrainConfig(
        **{"steps": 8, "batch_tokens": 40, "shards": 1, "checkpoint_every": 4, **settings, "optimiser": optimiser}
    )
    draw = random.Random(0)
    rows = [[draw.randrange(3, 12) for _ in range(draw.choice([1, 2, 3, 25]))] for _ in range(30)]
    arrays = Table.build(directory / "arrays", ((row, row[::-1]) for row in rows), pairs_of(12))
    torch.manual_seed(0)
    objective: Objective
    if contrast:
        encoder = bert_tiny(12, dropout=0.0, attention_dropout=0.0)
        objective = Contrastive(Encoder(encoder, HeadConfig("vector", pool="mean")).to(dtype))
    else:
        shape = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "dropout": 0.0}
        objective = NextToken(Transformer(TransformerConfig.tiny(12, **shape)).to(dtype), 0.1)
    with world("cpu") as here, Learner(objective, lambda step: 1e-2, config, here) as learner:
        trainer = Trainer(
            learner,
            lambda position: stream(arrays, alike if contrast else collate, config, here, position),
            directory / "trainer",
            total=config.steps,
            validate=lambda model, step: Validation(
                step, sum(float(p.detach().sum()) for p in model.parameters()), {}, []
            ),
        )
        trainer.resume()
        losses = []
        for event in trainer.run():
            if isinstance(event, Report):
                losses.append(event.loss)
                if event.step == interrupt:
                    trainer.interrupt()
        if here.main:
            final = {name: x.double().sum().item() for name, x in trainer.final().items()}
            result = {"losses": losses, "score": trainer.best["score"], "final": final, "size": here.size}
            (directory / "result.json").write_text(json.dumps(result))


def run(directory: Path, processes: int, **settings: object) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    arguments = ["-c", PROGRAM, str(directory), json.dumps({"optimiser": "adam", **settings})]
    if processes > 1:
        program = directory / "program.py"
        program.write_text(PROGRAM)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        arguments = [*torchrun, str(program), *arguments[2:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    assert result["size"] == processes
    return result


def agree(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert b["losses"] == pytest.approx(a["losses"], rel=1e-9)
    assert b["score"] == pytest.approx(a["score"], rel=1e-6)
    assert b["final"] == pytest.approx(a["final"], rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_one_two_and_four_processes_learn_the_same(tmp_path: Path) -> None:
    alone = run(tmp_path / "1", 1)
    assert alone["losses"][-1] < alone["losses"][0]
    for processes, kind, more in (
        (2, "ddp", {"accumulate": 2}),
        (4, "ddp", {}),
        (2, "fsdp", {}),
        (4, "fsdp", {"accumulate": 2}),
    ):
        agree(alone, run(tmp_path / f"{processes}-{kind}", processes, distributed=kind, **more))


@pytest.mark.slow
def test_a_contrast_is_with_the_texts_of_all_processes(tmp_path: Path) -> None:
    alone = run(tmp_path / "1", 1, contrast=True)
    assert alone["losses"][-1] < alone["losses"][0]
    agree(alone, run(tmp_path / "2", 2, contrast=True))


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_one_and_back(tmp_path: Path) -> None:
    """Checkpoints are whole: they do not know how many processes wrote them, nor how."""
    alone = run(tmp_path / "alone", 1)
    first = run(tmp_path / "mixed", 2, distributed="fsdp", interrupt=3)
    second = run(tmp_path / "mixed", 1, interrupt=5)
    third = run(tmp_path / "mixed", 2, distributed="ddp")
    assert [*first["losses"], *second["losses"], *third["losses"]] == pytest.approx(alone["losses"], rel=1e-9)
    assert third["final"] == pytest.approx(alone["final"], rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_a_model_in_shares_goes_on_to_the_very_bits(tmp_path: Path) -> None:
    """Of weights, moments and an average, each process takes its own share from the disk."""
    how = {"distributed": "fsdp", "ema": 0.9, "optimiser": "adamw", "dtype": "float32"}
    whole = run(tmp_path / "whole", 2, **how)
    parts = [run(tmp_path / "parts", 2, **how, interrupt=3), run(tmp_path / "parts", 2, **how)]
    assert [loss for part in parts for loss in part["losses"]] == whole["losses"]
    assert parts[1]["final"] == whole["final"]


@pytest.mark.slow
def test_two_processes_compute_layers_anew_as_they_did_at_first(tmp_path: Path) -> None:
    """In fp32, where the kernels in C are lent."""
    once, twice = (run(tmp_path / kind, 2, dtype="float32", recompute=kind) for kind in ("nothing", "layers"))
    assert twice["losses"] == pytest.approx(once["losses"], rel=1e-5)


@pytest.mark.slow
def test_muon_in_two_processes(tmp_path: Path) -> None:
    agree(run(tmp_path / "1", 1, optimiser="muon"), run(tmp_path / "2", 2, optimiser="muon"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": OptimiserConfig("muon")}, "muon needs whole matrices: use train.distributed=ddp"),
        ({"precision": "fp16"}, "train.precision=fp16 does not work with train.distributed=fsdp"),
    ],
)
def test_what_cannot_be_sharded_is_refused(settings: dict[str, Any], message: str) -> None:
    from regard.training.distributed import World

    config = TrainConfig(steps=1, distributed="fsdp", **settings)
    with pytest.raises(ValueError, match=message):
        Learner(NextToken(torch.nn.Linear(2, 2), 0.1), lambda step: 1e-2, config, World(0, 2))
