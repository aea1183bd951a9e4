"""A state comes back bit by bit, and whatever befalls a run, its disk or its files, a good checkpoint is left."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.training.checkpoints import CODES, CheckpointError, Checkpoints, Snapshots, average, read_state, write_state


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal in types, keys, order and bits."""
    if isinstance(a, Tensor):
        x, y = (t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b))
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(x, y)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same([*a.keys()], [*b.keys()]) and same([*a.values()], [*b.values()])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


def noise(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
    """Random bits, which are infinities and not-a-numbers too; of truth values only the last one."""
    x = torch.empty(shape, dtype=dtype)
    g = np.random.default_rng(seed)
    raw = g.integers(0, 2 if dtype == torch.bool else 256, x.numel() * x.element_size(), dtype=np.uint8)
    return x if x.numel() == 0 else torch.from_numpy(raw).view(dtype).reshape(shape)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False) | st.just(float("nan")),
    st.text(st.characters(), max_size=5),  # lone surrogates too
    st.builds(noise, st.sampled_from([*CODES]), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 99)),
)
keys = st.text(max_size=3) | st.sampled_from(["dict", "tensor", "__metadata__", "a/b", "'"]) | st.integers(-3, 3)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    return items | items.map(tuple) | st.dictionaries(keys, inner, max_size=3)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk matters only when the plug is pulled, and hundreds of times it takes long."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.usefixtures("no_sync")
@settings(max_examples=150, deadline=None, database=None)
@given(st.recursive(leaves, nested, max_leaves=12))
@example([{0: torch.zeros(1), "0": torch.ones(1)}, {"a][b": torch.ones(2), "a": {"b": torch.zeros(2)}}])
@example([0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), -float("inf"), 2 / 3, 2**127 + 1])
@example([random.Random(0).getstate(), np.random.default_rng(0).bit_generator.state])
def test_any_state_comes_back(state: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_state(Path(directory) / "state", state)
        assert same(read_state(Path(directory) / "state"), state)
        assert os.listdir(directory) == ["state"]


def test_tensors_of_every_dtype_and_layout_come_back_bit_by_bit(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    state = {
        **{str(dtype): noise(dtype, [3, 5], 0) for dtype in CODES},
        "transposed": x.T,
        "square": x[:, :4],
        "square transposed": x[:, :4].T,
        "strided": x[::2, 1::3],
        "row": x[1:2, ::6],
        "expanded": x[:1].expand(5, 6),
        "scalar": torch.tensor(-0.0),
        "empty": torch.empty(0, 3, dtype=torch.bfloat16),
        "parameter": nn.Parameter(x),
        "large": torch.arange(2**17),
    }
    write_state(tmp_path / "state", state)
    back = read_state(tmp_path / "state")
    assert same(back, state | {"parameter": x})
    back["large"].zero_()  # is no view of the file
    assert same(read_state(tmp_path / "state")["large"], state["large"])
    stored = load_file(tmp_path / "state" / "tensors.safetensors")  # an independent reader
    assert stored.keys() == {f"state[{name!r}]" for name in state}
    assert all(same(x, state[name.removeprefix("state['").removesuffix("']")]) for name, x in stored.items())


def test_an_optimiser_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def steps(model: nn.Module, optimiser: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimiser.step()

    torch.manual_seed(0)
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimisers = [torch.optim.Adam(m.parameters(), lr=0.01, betas=(0.9, 0.98)) for m in models]
    steps(models[0], optimisers[0], 3)
    parts: dict[str, Any] = {"model": models[0].state_dict(), "optimiser": optimisers[0].state_dict()}
    write_state(tmp_path / "state", parts | {"random": torch.get_rng_state()})
    steps(models[0], optimisers[0], 3)
    state = read_state(tmp_path / "state")
    assert state["optimiser"]["param_groups"][0]["betas"] == (0.9, 0.98)
    models[1].load_state_dict(state["model"])
    optimisers[1].load_state_dict(state["optimiser"])
    torch.set_rng_state(state["random"])
    steps(models[1], optimisers[1], 3)
    assert same(models[0].state_dict(), models[1].state_dict())


def test_a_shared_tensor_is_stored_once(tmp_path: Path) -> None:
    x = torch.randn(1000)
    write_state(tmp_path / "state", [x, {"again": x.detach()}, x[:500], x.view(10, 100)])
    stored = load_file(tmp_path / "state" / "tensors.safetensors")
    assert sorted(map(len, stored.values())) == [10, 500, 1000]
    a, b, c, d = read_state(tmp_path / "state")
    assert same([a, b["again"], c, d], [x, x, x[:500], x.view(10, 100)])
    a.zero_()
    assert same(b["again"], x)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [{1, 2}]}, r"state\['a'\]\[0\] is of type set \({1, 2}\)"),
        ({"a": np.int64(3)}, r"state\['a'\] is of type int64"),
        ([{(1, 2): 3}], r"state\[0\] is of type dict"),
        ({3: np.array(["x"])}, r"state\[3\] is of type ndarray"),
        (np.array([None]), "state is of type ndarray"),
        (nn.Linear(1, 1), "state is of type Linear"),
        ((torch.ones(2, dtype=torch.complex128),), r"state\[0\] is torch.complex128"),
        (torch.ones(2).to_sparse(), "torch.sparse_coo: a state holds dense tensors"),
    ],
)
def test_what_is_no_state_is_refused_by_its_place(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_state(tmp_path / "state", state)
    assert os.listdir(tmp_path) == []


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((50,), float(step)), "moments": [torch.arange(step)]}


def run_of(directory: Path, *steps: int, keep: int = 2) -> tuple[Checkpoints, list[str]]:
    """Checkpoints of these steps, and what they warn of."""
    warnings: list[str] = []
    checkpoints = Checkpoints(directory, keep=keep, warn=warnings.append)
    for step in steps:
        checkpoints.save(step, state_of(step))
    return checkpoints, warnings


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= random.randrange(1, 256)
    file.write_bytes(data)


def truncate(file: Path) -> None:
    os.truncate(file, random.randrange(file.stat().st_size))


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b" ")


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("file", ["MANIFEST.json", "state.json", "tensors.safetensors"])
@pytest.mark.parametrize("harm", [flip, truncate, lengthen, Path.unlink])
def test_damage_is_noticed_and_the_previous_used(tmp_path: Path, file: str, harm: Callable[[Path], None]) -> None:
    random.seed(0)
    checkpoints, warnings = run_of(tmp_path, 100)
    for _ in range(60 if harm is flip else 5):
        checkpoints.save(200, state_of(200))
        harm(tmp_path / "step-00000200" / file)
        with pytest.raises(CheckpointError, match=r"step-00000200"):
            read_state(tmp_path / "step-00000200")
        assert same(checkpoints.latest(), (100, state_of(100)))
        assert warnings.pop().startswith("the checkpoint of step 200 is passed over: ")


def test_the_message_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "state"

    def says(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            read_state(path)

    says("state/MANIFEST.json is missing")
    write_state(path, state_of(3))
    size = (path / "state.json").stat().st_size
    lengthen(path / "state.json")
    says(f"state/state.json is torn: it has {size + 1} of {size} bytes")
    write_state(path, state_of(3))
    data = (path / "tensors.safetensors").read_bytes()
    (path / "tensors.safetensors").write_bytes(data[:-1] + b"?")
    says("state/tensors.safetensors is damaged: its SHA-256 is not the one in MANIFEST.json")
    (path / "tensors.safetensors").unlink()
    says("state/tensors.safetensors is missing")
    write_state(path, state_of(3))
    (path / "MANIFEST.json").write_text("[1]")
    says("state/MANIFEST.json is damaged")
    (path / "MANIFEST.json").write_text('{"format": 2, "files": ["all.in.one"]}')
    says("state is of format 2, this regard reads up to 1: upgrade regard")


def test_without_a_checkpoint_there_is_none_and_without_a_good_one_an_error(tmp_path: Path) -> None:
    checkpoints, warnings = run_of(tmp_path / "trainer")
    assert checkpoints.latest() is None
    assert not (tmp_path / "trainer").exists()
    checkpoints, warnings = run_of(tmp_path / "trainer", 1, 2)
    for step in (1, 2):
        (tmp_path / "trainer" / f"step-0000000{step}" / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*trainer can be read: remove it to begin anew"):
        checkpoints.latest()
    assert len(warnings) == 2
    with pytest.raises(ValueError, match="keep = 0: it must be at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_the_newest_stay(tmp_path: Path) -> None:
    (checkpoints, _), left = run_of(tmp_path, keep=2), []
    for step in (1, 2, 3, 10):
        assert checkpoints.save(step, state_of(step)) == tmp_path / f"step-{step:08d}"
        assert same(checkpoints.latest(), (step, state_of(step)))
        left.append(checkpoints.steps())
    assert left == [[1], [1, 2], [2, 3], [3, 10]]


def test_a_step_can_be_saved_again_and_later_ones_wait_until_they_are_passed(tmp_path: Path) -> None:
    checkpoints, _ = run_of(tmp_path, 5, 6, 7, keep=3)
    checkpoints.save(5, {"again": True})
    assert checkpoints.steps() == [5, 6, 7]
    assert read_state(tmp_path / "step-00000005") == {"again": True}
    checkpoints, _ = run_of(tmp_path, 8, keep=1)
    assert checkpoints.steps() == [8]


def test_left_overs_are_swept_by_the_next_save_and_not_by_a_reader(tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.tmp")
    (tmp_path / ".step-00000004.tmp").touch()
    assert run_of(tmp_path)[0].steps() == [1]
    assert len(os.listdir(tmp_path)) == 3
    assert run_of(tmp_path, 3)[0].steps() == [1, 3]
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000003"]


def child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; its process id."""
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("step", [5, 4], ids=["a new step", "the same step again"])
def test_a_process_that_dies_at_any_moment_leaves_a_good_checkpoint(tmp_path: Path, step: int) -> None:
    run_of(tmp_path / "before", 4)

    def save_until(moment: int) -> None:
        passed = iter(range(moment))

        def die_in_time(event: str, arguments: object) -> None:  # before anything is opened, renamed, removed, ...
            if event.startswith(("open", "os.", "shutil.")) and next(passed, None) is None:
                os._exit(9)

        sys.addaudithook(die_in_time)
        Checkpoints(directory, keep=1).save(step, {"new": torch.ones(3)})

    ends = []
    for moment in range(1000):
        directory = tmp_path / str(moment)
        shutil.copytree(tmp_path / "before", directory)
        _, status = os.waitpid(child(lambda moment=moment: save_until(moment)), 0)  # type: ignore[misc]
        found = Checkpoints(directory).latest()
        for whole in Checkpoints(directory).steps():
            read_state(directory / f"step-{whole:08d}")
        ends.append(same(found, (step, {"new": torch.ones(3)})))
        assert ends[-1] or same(found, (4, state_of(4)))
        checkpoints, warnings = run_of(directory, 6, keep=1)
        assert warnings == []
        assert len(checkpoints.steps()) == 1
        assert not [name for name in os.listdir(directory) if name.startswith(".")]
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == 9
    assert ends == sorted(ends)  # once the new one is there, it stays
    assert ends[-1]


def test_killing_a_process_that_saves_all_the_time(tmp_path: Path) -> None:
    random.seed(0)
    reached = 0
    for _ in range(25):
        reader, writer = os.pipe()

        def save_forever(start: int = reached, writer: int = writer) -> None:
            checkpoints = Checkpoints(tmp_path, keep=1)
            for step in range(start + 1, start + 10**6):
                checkpoints.save(step, state_of(step))
                os.write(writer, struct.pack("q", step))

        pid = child(save_forever)
        os.close(writer)
        with open(reader, "rb", buffering=0) as pipe:
            said = pipe.read(8)  # it has begun
            time.sleep(random.uniform(0.0, 0.05))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            said += pipe.read()
        (reached,) = struct.unpack("q", said[-8:])
        found = Checkpoints(tmp_path).latest()
        assert found is not None
        assert found[0] in (reached, reached + 1)  # saved, but killed before it could say so
        assert same(found[1], state_of(found[0]))
        reached = found[0]


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 5])
def test_a_full_disk_leaves_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
    checkpoints, _ = run_of(tmp_path, 1, 2)
    count, fsync = iter(range(1, 100)), os.fsync

    def full(handle: int) -> None:
        if next(count) == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        checkpoints.save(3, state_of(3))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "step-00000003"))
    assert checkpoints.steps()[:2] == [1, 2]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert (found := checkpoints.latest()) is not None
    assert same(found, (found[0], state_of(found[0])))


def refused(work: Callable[[], Any], before: Callable[[], None]) -> tuple[Any, ...]:
    """The errno and the file of the OSError that some work ends with in a process of its own."""
    reader, writer = os.pipe()

    def attempt() -> None:
        before()
        try:
            work()
        except OSError as error:
            os.write(writer, json.dumps([error.errno, error.filename]).encode())

    os.waitpid(child(attempt), 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        return tuple(json.load(pipe))


def test_a_file_that_the_system_refuses_to_grow(tmp_path: Path) -> None:
    checkpoints, _ = run_of(tmp_path, 1)
    snapshots, large = Snapshots(tmp_path / "snapshots"), {"w": torch.zeros(10**5)}
    snapshots.save(1, {"w": torch.ones(3)})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    assert refused(lambda: checkpoints.save(2, large), limit) == (errno.EFBIG, str(tmp_path / "step-00000002"))
    assert sorted(os.listdir(tmp_path)) == ["snapshots", "step-00000001"]
    assert same(checkpoints.latest(), (1, state_of(1)))
    assert refused(lambda: snapshots.save(2, large), limit) == (errno.EFBIG, str(snapshots.directory / "step-00000002"))
    assert [path.name for path in snapshots.paths()] == os.listdir(snapshots.directory)
    assert average(snapshots.paths())["w"].tolist() == [1, 1, 1]


def test_a_folder_that_may_not_be_written() -> None:
    def be_nobody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)

    with tempfile.TemporaryDirectory() as folder:
        checkpoints, _ = run_of(Path(folder), 1)
        os.chmod(folder, 0o555)
        error = refused(lambda: checkpoints.save(2, state_of(2)), be_nobody)
        os.chmod(folder, 0o755)
        assert error == (errno.EACCES, str(Path(folder) / "step-00000002"))
        assert os.listdir(folder) == ["step-00000001"]


def parameters(seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(7, 5, generator=g), "b": torch.randn((), generator=g), "e": torch.empty(0, 2)}


def test_the_average_is_the_plain_mean(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for step in range(1, 8):
        assert snapshots.save(step * 100, parameters(step)) in snapshots.paths()
    for last in (1, 3, 5, 7, 20):
        seeds = range(1, 8)[-last:]
        mean = average(snapshots.paths()[-last:])
        for name in ("w", "b", "e"):
            plain = torch.stack([parameters(seed)[name].double() for seed in seeds]).mean(0).float()
            assert mean[name].dtype == torch.float32
            torch.testing.assert_close(mean[name], plain, rtol=1e-7, atol=0)
    first, _, third = snapshots.paths()[:3]
    torch.testing.assert_close(average([first, third])["w"], (parameters(1)["w"] + parameters(3)["w"]) / 2)
    assert same(average([third]), {name: parameters(3)[name] for name in average([third])})


def test_a_snapshot_is_fp32_whatever_the_model_is(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    path = Snapshots(tmp_path).save(1, {"half": x.bfloat16().T, "double": x.double(), "zero": torch.tensor([-0.0])})
    assert same(load_file(path)["half"], x.bfloat16().float().T)
    assert same(load_file(path)["double"], x)
    assert same(average([path])["zero"], torch.tensor([-0.0]))
    with pytest.raises(ValueError, match=r"'ids' is torch.int64: a snapshot holds parameters"):
        Snapshots(tmp_path).save(2, {"ids": torch.arange(3)})


def test_snapshots_are_pruned_but_for_the_last_and_the_named(tmp_path: Path) -> None:
    snapshots, left = Snapshots(tmp_path), []
    for step in (1, 2, 3, 4, 5):
        snapshots.save(step, parameters(step))
        snapshots.prune(2, besides=[2])
        left.append([int(path.name[5:13]) for path in snapshots.paths()])
    assert left == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5]]
    snapshots.save(4, parameters(40))  # the run went back, and goes another way
    assert [int(path.name[5:13]) for path in snapshots.paths()] == [2, 4]
    assert same(average(snapshots.paths()[1:])["w"], parameters(40)["w"])


def test_a_bad_snapshot_is_named(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    with pytest.raises(ValueError, match="there is no snapshot to average"):
        average(snapshots.paths())
    first = snapshots.save(1, parameters(1))
    second = snapshots.save(2, {"w": torch.ones(5)})
    with pytest.raises(ValueError, match=f"{second.name} and {first.name} are not of the same model"):
        average(snapshots.paths())
    flip(second)
    with pytest.raises(CheckpointError, match=f"{second.name} is damaged"):
        average(snapshots.paths())
    truncate(first)
    with pytest.raises(CheckpointError, match=f"{first.name} is damaged"):
        average([first])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a snapshot"):
        average([tmp_path / "model.safetensors"])
