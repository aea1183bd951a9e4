"""Work on a Ray cluster: the bytes of one machine, whoever dies meanwhile; and one line where it cannot be done."""

import operator
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from typer.testing import CliRunner

from regard import cli
from regard.cli import bulk
from regard.cluster import there
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.transformer import Transformer, TransformerConfig
from tests import readers, speech
from tests.data.test_sound import wav

LINES = [f"{text} {i}" for i in range(12) for text in readers.TEXTS]
PATIENCE = {
    "USAGE_STATS_ENABLED": "0",
    "agent_register_timeout_ms": "600000",
    "worker_register_timeout_seconds": "600",
    "gcs_server_request_timeout_seconds": "300",
    "health_check_timeout_ms": "60000",
    "health_check_period_ms": "1000",
}
SHAPE = {"d_model": 32, "d_ff": 32, "heads": 2}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], catch_exceptions=False)


def mistake(*arguments: object) -> str:
    with pytest.raises(ValueError, match=r"\w") as error:
        run(*arguments)
    return str(error.value)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that have learned nothing, and what they are asked."""
    place = tmp_path_factory.mktemp("cluster")
    (place / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    tokens = Tokenizer.learn(TokensConfig("char", size=0), LINES)
    torch.manual_seed(3)
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    storage.save(Transformer(TransformerConfig.tiny(len(tokens), **layers, **SHAPE)), place / "translate")
    (place / "translate" / "recipe.yaml").write_text(
        "data: {corpus: tatoeba-en-es, max_length: 30}\ntrain: {steps: 1}\ndecode: {extra: 4}\n"
    )
    purpose = storage.Purpose({"name": "generate"}, {"limit": 8})
    storage.save(Decoder(gpt_tiny(len(tokens), layers=1, max_length=48, **SHAPE)), place / "generate", purpose)
    for name in ("translate", "generate"):
        tokens.save(place / name / "tokenizer.json")
    for name in ("classify", "embed"):
        readers.directory(place / name, name)
    speech.directory(place / "transcribe")
    (place / "sounds").mkdir()
    for seed in range(4):
        (place / "sounds" / f"{seed}.wav").write_bytes(wav(speech.noise(1.5, seed)))
    return place


def command(place: Path, verb: str) -> list[object]:
    """What is said to use a model, but for where the output goes."""
    model, text = place / verb, place / "in.txt"
    return {
        "translate": [verb, model, text, "--best", 2],
        "generate": [verb, model, "--file", text, "--json", "--sample", 1, "--seed", 3],
        "embed": [verb, model, text],
        "classify": [verb, model, text, "--json"],
        "transcribe": [verb, model, place / "sounds", "--language", "en", "--step", 0, "--format", "txt,json"],
        "index": [verb, text, "--model", place / "embed", "--unit", "line"],
    }[verb]


def written(out: Path) -> dict[str, bytes]:
    """All that is in a file or a folder."""
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    return {path.name if out.is_dir() else "": path.read_bytes() for path in files}


def do(place: Path, verb: str, out: Path, *options: object) -> Any:
    name, *rest = command(place, verb)
    where = [rest[0], out, *rest[1:]] if verb == "index" else [*rest, "-o", out]
    return run(name, *where, *options)


def ports() -> dict[str, int]:
    """For what a machine of a cluster would otherwise choose itself, and be waited for no longer than 15 seconds."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    with ExitStack() as held:
        free = [held.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in names]
        return {name: each.getsockname()[1] for name, each in zip(names, free, strict=True)}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines with a core each; all that waits for another is patient, for the machine they are on may be busy."""
    pytest.importorskip("ray")
    if not os.environ.get("REGARD_RAY"):
        pytest.skip("two machines of Ray's are started where REGARD_RAY=1 says so: on a busy one they may not come up")
    import ray
    from ray._private import node
    from ray.cluster_utils import Cluster

    for name, value in PATIENCE.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    slow = SimpleNamespace(sleep=time.sleep, time=time.time, monotonic=lambda: time.monotonic() / 20)
    monkeypatch.setattr(node, "time", slow)  # it gives a machine 30 seconds to start, whatever is said
    monkeypatch.setattr("regard.tasks.asks.AHEAD", 5)
    own = {"object_store_memory": 80 * 2**20, "num_cpus": 1}
    own |= {"include_log_monitor": False}
    head = {"node_ip_address": ray.util.get_node_ip_address(), "include_dashboard": False, "no_monitor": True}
    found = Cluster(True, head_node_args={**own, **ports(), **head})
    try:
        found.add_node(**own, **ports(), node_ip_address="127.0.0.2")  # another one: who asks is to ask the head
        yield found
    finally:
        found.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["translate", "classify"])
def test_a_cluster_of_this_machine_writes_the_same_bytes(place: Path, tmp_path: Path, verb: str) -> None:
    pytest.importorskip("ray")
    assert do(place, verb, tmp_path / "here").exit_code == 0
    name, *rest = command(place, verb)
    said = [name, *rest, "-o", tmp_path / "there", "--ray", "local", "--workers", 1]
    done = subprocess.run(
        [sys.executable, "-m", "regard", *map(str, said)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "there") == written(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("verbs", [("translate", "embed"), ("generate", "classify"), ("transcribe", "index")])
def test_the_bytes_are_those_of_one_machine(place: Path, cluster: Any, tmp_path: Path, verbs: tuple[str, ...]) -> None:
    for verb in verbs:
        name = "out.npy" if verb == "embed" else "out"
        for where, options in ((tmp_path / verb / "here", []), (tmp_path / verb / "there", ["--ray", cluster.address])):
            where.mkdir(parents=True)
            found = do(place, verb, where / name, *options)
            assert found.exit_code == 0, found.output
        ours, theirs = (written(tmp_path / verb / where / name) for where in ("here", "there"))
        assert ours == theirs
        assert any(map(len, ours.values()))


AGENTS = "ray::DashboardA", "ray::RuntimeEnv"  # as the system cuts their names: a machine dies with them


def workers(raylet: int) -> list[int]:
    """The processes that do the work of a machine of the cluster."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            named, after = each.read_text().rsplit(")", 1)
        except OSError:  # it has ended
            continue
        if "(ray::" in named and not named.endswith(AGENTS) and int(after.split()[1]) == raylet:
            found.append(int(each.parent.name))
    return found


@pytest.mark.slow
def test_who_dies_in_the_middle_changes_nothing(
    place: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the processes that work on one machine, then the other machine, then whoever reads and writes."""
    assert do(place, "translate", tmp_path / "here").exit_code == 0
    machines = (cluster.head_node, *cluster.worker_nodes)
    kept, lost = (each.all_processes["raylet"][0].process.pid for each in machines)
    killed: list[Any] = []
    write = bulk.Output.write

    def watched(self: bulk.Output, *given: Any) -> None:
        write(self, *given)
        if self.done == 10:
            killed.extend(workers(kept))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        if self.done == 20:
            os.kill(lost, signal.SIGKILL)
        if self.done == 40:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk.Output, "write", watched)
        found = do(place, "translate", tmp_path / "there", "--ray", cluster.address)
    assert found.exit_code == 130
    assert "stopped after 40 lines: the same command with --resume goes on" in found.stderr
    assert killed
    assert do(place, "translate", tmp_path / "there", "--ray", cluster.address, "--resume").exit_code == 0
    assert written(tmp_path / "there") == written(tmp_path / "here")


@pytest.mark.slow
def test_what_cannot_be_done_there_is_told_in_its_turn(
    place: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def items(last: Callable[[], int]) -> Iterator[int]:
        yield from (4, 2, 1)
        yield last()

    with there(cluster.address, partial(int, 8)) as spread:
        assert [*spread(operator.floordiv, items(lambda: 8))] == [2, 4, 8, 1]
        coming = spread(operator.floordiv, items(lambda: 1 // 0))  # what is read breaks off
        assert [next(coming) for _ in range(3)] == [2, 4, 8]
        with pytest.raises(ZeroDivisionError):
            next(coming)
        coming = spread(lambda eight, item: [].index(eight) if item == 1 else item, items(lambda: 8))
        assert [next(coming) for _ in range(2)] == [4, 2]
        with pytest.raises(ValueError, match="8 is not in list"):
            next(coming)
    with (
        pytest.raises(ValueError, match=r"no machine of the Ray cluster at .* has 9 CPUs"),
        there(cluster.address, int, cores=9),
    ):
        pass
    model, gone = tmp_path / "model", tmp_path / "gone"
    shutil.copytree(place / "translate", model)

    def without(*given: Any, **how: Any) -> Any:
        model.rename(gone)  # it is on the machine that asks, and on no other
        return there(*given, **how)

    monkeypatch.setattr(bulk, "there", without)
    said = mistake("translate", model, place / "in.txt", "--ray", cluster.address)
    assert f"a machine of the Ray cluster, cannot begin: there is no model {model}; each machine needs" in said


class Ref:
    """What stands for a value of the stand-in below, which is sent as bytes."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self.make = make

    def hex(self) -> str:
        return str(id(self))


class StandIn:
    """Ray without its machines: whatever is sent is pickled, and done when it is asked for, the last first, twice."""

    def __init__(self) -> None:
        self.waiting: list[Ref] = []
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def init(self, **_: Any) -> None: ...
    def shutdown(self) -> None: ...
    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}] * 2 + [{"Alive": False, "Resources": {"CPU": 8.0}}]

    def put(self, value: Any) -> Ref:
        held = cloudpickle.dumps(value)
        return Ref(lambda: held)

    def remote(self, function: Any) -> Any:
        def send(*given: Any) -> Ref:
            held = [each if isinstance(each, Ref) else self.put(each) for each in given]

            def make() -> bytes:
                for _ in range(2):  # who did it first has died
                    found = cloudpickle.dumps(function(*(self.get(each) for each in held)))
                return found

            self.waiting.append(Ref(make))
            return self.waiting[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=send))

    def wait(self, refs: list[Ref], timeout: float) -> tuple[list[Ref], list[Ref]]:
        while refs[0] in self.waiting:
            last = self.waiting.pop()
            found = last.make()
            last.make = lambda found=found: found  # type: ignore[misc]
        return refs, []

    def get(self, ref: Ref) -> Any:
        return cloudpickle.loads(ref.make())


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = SimpleNamespace(RayError=type("RayError", (Exception,), {}), RayTaskError=type("E", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "ray", StandIn())
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    monkeypatch.setattr("regard.tasks.asks.AHEAD", 5)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("verb", ["translate", "embed", "generate", "classify", "transcribe", "index"])
def test_what_is_sent_and_comes_back_in_any_order_is_written_as_here(place: Path, tmp_path: Path, verb: str) -> None:
    name, found = "out.npy" if verb == "embed" else "out", []
    for where, options in (("here", []), ("there", ["--ray", "auto"])):
        (tmp_path / where).mkdir()
        assert do(place, verb, tmp_path / where / name, *options).exit_code == 0
        found.append(written(tmp_path / where / name))
    assert found[0] == found[1]
    assert any(map(len, found[0].values()))


@pytest.mark.usefixtures("stand_in")
def test_a_run_there_is_gone_on_with_here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert do(place, "generate", tmp_path / "whole").exit_code == 0
    write = bulk.Output.write

    def stopped(self: bulk.Output, *given: Any) -> None:
        write(self, *given)
        if self.done == 20:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk.Output, "write", stopped)
        assert do(place, "generate", tmp_path / "out", "--ray", "auto").exit_code == 130
    assert (tmp_path / "out").read_bytes().count(b"\n") == 20
    assert "exists: go on with it by --resume" in str(do_fails(place, tmp_path / "out"))
    assert do(place, "generate", tmp_path / "out", "--resume").exit_code == 0
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def do_fails(place: Path, out: Path) -> ValueError:
    with pytest.raises(ValueError, match=r"\w") as error:
        do(place, "generate", out)
    return error.value


def test_a_model_that_is_another_one_there_is_refused(place: Path) -> None:
    known = bulk.about_models([place / "embed"])
    assert bulk._same(lambda: 7, [place / "embed"], known) == 7
    with pytest.raises(ValueError, match="classify: another model than here"):
        bulk._same(lambda: 7, [place / "classify"], known)


def test_a_cluster_of_the_loopback_alone_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = StandIn()
    monkeypatch.setattr(found.util, "get_node_ip_address", lambda: "127.0.0.2")  # Ray's reading of 127.0.0.1
    monkeypatch.setitem(sys.modules, "ray", found)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert f"no Ray cluster answers at '{address}'" in mistake(
            "classify", place / "classify", place / "in.txt", "--ray", address
        )


@pytest.mark.usefixtures("stand_in")
def test_mistakes(place: Path) -> None:
    text, ray = place / "in.txt", ["--ray", "127.0.0.1:1"]
    assert "no Ray cluster answers at '127.0.0.1:1'" in mistake("classify", place / "classify", text, *ray)
    assert "--ray is about a file of prompts" in mistake("generate", place / "generate", "a", *ray)
    assert "leave out --json, --jsonl, --align, -o and --ray" in mistake(
        "translate", place / "translate", text, "--stream", *ray
    )
    asked = ["--prompt", "{text} {label}", "--labels", "a,b"]
    assert "--ray is for texts, by a model" in mistake("classify", place / "generate", text, *asked, *ray)
