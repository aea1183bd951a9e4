"""Two hosts, each a network namespace, with a cable between them: cut, killed, and come back."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.data.dates import date_pairs

STEPS, PATIENCE = 160, 900  # seconds that a run may take
YAML = f"""
data:
  train: {{source: train.src, target: train.tgt}}
  hold_out: 30
tokens: {{kind: char}}
model: {{preset: tiny, encoder_layers: 1, decoder_layers: 1, d_model: 64, d_ff: 128, norm: pre, dropout: 0.1}}
train:
  steps: {STEPS}
  batch_tokens: 4096
  optimiser: {{name: adamw, weight_decay: 0.01}}
  schedule: {{name: linear, peak: 0.003, warmup: 20}}
  validate_every: 80
  validate_sentences: 8
  checkpoint_every: 20
  timeout_minutes: 0.2
decode: {{beam: 1}}
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """Hosts `a` and `b`, who meet at an address of the first; they see one disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[str, subprocess.Popen[bytes]]()
        self.names = {name: f"regard-{os.getpid()}-{name}" for name in "ab"}
        for name in self.names.values():
            ip("netns", "add", name)
        a, b = self.names.values()
        ip("-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b)
        for at, name in enumerate(self.names.values(), 1):
            ip("-n", name, "addr", "add", f"10.77.0.{at}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")

    def start(self, host: str, run: Path, nodes: str = "2") -> None:
        """Have a host take part in a run, again and again until it has ended well."""
        torchrun = f"{sys.executable} -m torch.distributed.run --nnodes={nodes} --nproc-per-node=1 --max-restarts=100"
        how = f"is_host={int(host == 'a')},last_call_timeout=5"
        meet = f"--rdzv-backend=c10d --rdzv-id=run --rdzv-endpoint=10.77.0.1:29500 --rdzv-conf={how}"
        here = f"--local-addr=10.77.0.{'ab'.index(host) + 1}"
        command = f"{torchrun} {meet} {here} -m regard train {self.folder / 'dates.yaml'} --out {run} --resume"
        again = f"until {command}; do sleep 1; done >> {run}-{host}.log 2>&1"
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
        environment["REGARD_CACHE"] = str(self.folder / "cache")
        words = ["ip", "netns", "exec", self.names[host], "bash", "-c", again]
        self.running[host] = subprocess.Popen(words, env=environment, start_new_session=True)

    def kill(self, host: str) -> None:
        """All of it at once, as a cable for electricity does it."""
        process = self.running.pop(host)
        inside = subprocess.run(["ip", "netns", "pids", self.names[host]], check=True, capture_output=True, text=True)
        for each in inside.stdout.split():
            os.kill(int(each), signal.SIGKILL)
        process.wait()

    def cable(self, state: str) -> None:
        ip("-n", self.names["a"], "link", "set", "cable", state)

    def finish(self) -> None:
        for process in self.running.values():
            assert process.wait(PATIENCE) == 0
        self.running.clear()

    def close(self) -> None:
        for host in list(self.running):
            self.kill(host)
        for name in self.names.values():
            ip("netns", "del", name)


def until(run: Path, step: int) -> None:
    """Wait for a run to have made so many steps."""
    journal, end = run / "metrics.jsonl", time.monotonic() + PATIENCE
    while not journal.exists() or max(_steps(journal), default=0) < step:
        assert time.monotonic() < end
        time.sleep(0.05)


def _steps(journal: Path) -> list[int]:
    whole = journal.read_text("utf-8").rpartition("\n")[0]
    return [json.loads(line).get("step", 0) for line in whole.splitlines()]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if not os.environ.get("REGARD_HOSTS"):
        pytest.skip("minutes of waiting for torchrun to notice: REGARD_HOSTS=1 runs it")
    if shutil.which("ip") is None or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("needs network namespaces: Linux, iproute2, and root")
    pairs = list(islice(date_pairs(seed=1, locales=["en", "fr", "de", "es"]), 2000))
    (tmp_path / "train.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (tmp_path / "train.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    (tmp_path / "dates.yaml").write_text(YAML)
    made = Hosts(tmp_path)
    yield made
    made.close()


def cut_for_a_moment(hosts: Hosts, run: Path) -> None:
    """Packets are sent again, and nobody notices."""
    hosts.cable("down")
    time.sleep(3)
    hosts.cable("up")


def cut_for_long(hosts: Hosts, run: Path) -> None:
    """Longer than anybody waits (`train.timeout_minutes`)."""
    hosts.cable("down")
    time.sleep(20)
    hosts.cable("up")


def killed(hosts: Hosts, run: Path) -> None:
    hosts.kill("b")
    time.sleep(3)
    hosts.start("b", run)


def killed_where_they_meet(hosts: Hosts, run: Path) -> None:
    hosts.kill("a")
    time.sleep(3)
    hosts.start("a", run)


DISTURBANCES: list[Callable[[Hosts, Path], None]] = [cut_for_a_moment, cut_for_long, killed, killed_where_they_meet]


@pytest.mark.slow
def test_what_befalls_hosts_leaves_the_weights_of_a_run_that_nothing_befell(hosts: Hosts, tmp_path: Path) -> None:
    def trained(name: str, disturb: Callable[[Hosts, Path], None] | None = None) -> dict[str, torch.Tensor]:
        run = tmp_path / name
        for host in "ab":
            hosts.start(host, run)
        if disturb is not None:
            until(run, 40)
            disturb(hosts, run)
        hosts.finish()
        said = "".join((tmp_path / f"{name}-{host}.log").read_text("utf-8") for host in "ab")
        assert ("another process of this run no longer answers" in said) == (disturb in DISTURBANCES[1:])
        assert "[rank0]: Traceback" not in said
        return load_file(run / "model.safetensors")

    expected = trained("undisturbed")
    for disturb in DISTURBANCES:
        found = trained(disturb.__name__, disturb)
        assert all(torch.equal(found[name], x) for name, x in expected.items()), disturb.__name__

    # One that does not come back: the other goes on by itself, with other dropout masks and other last bits.
    alone = tmp_path / "alone"
    for host in "ab":
        hosts.start(host, alone, nodes="1:2")
    until(alone, 40)
    hosts.kill("b")
    hosts.finish()
    found = load_file(alone / "model.safetensors")
    assert any(not torch.equal(found[name], x) for name, x in expected.items())
    lines = [json.loads(line) for line in (alone / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["kind"] == "finished"
