"""A model that reads is read by the quickest engine that there is for it, which is the model as it is now."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.core.quantised import quantise
from regard.tasks.reader import asked
from tests.readers import TASKS, TEXTS, directory

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
MORE = [f"{a} {b}" for a in TEXTS for b in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def said(reader: Any, texts: list[str] = MORE) -> list[torch.Tensor]:
    """What the head says of each."""
    return reader.outputs([each for windows in reader.framed(asked(texts)) for each in windows])


@pytest.mark.parametrize("name", TASKS)
def test_engines_say_the_same(name: str, folder: Path) -> None:
    place = directory(folder / name, name)
    native, module = (regard.load(place, engine=engine) for engine in ("native", "torch"))
    for ours, theirs in zip(said(native), said(module), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_text_and_its_pair_are_told_apart(folder: Path) -> None:
    place = directory(folder / "pairs", "classify")
    native, module = (regard.load(place, engine=engine) for engine in ("native", "torch"))
    pairs = [("a good film", "fine"), ("fine", "a good film")]
    for ours, theirs in zip(native.classify(pairs), module.classify(pairs), strict=True):
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_company_changes_no_bit(workers: int, folder: Path) -> None:
    reader = regard.load(directory(folder / f"bits-{workers}", "embed"), engine="native", workers=workers)
    together = said(reader)
    for text, one in zip(MORE, together, strict=True):
        assert torch.equal(said(reader, [text])[0], one)


def test_several_models_say_their_mean(folder: Path) -> None:
    places = [directory(folder / f"seed-{seed}", "classify", seed=seed) for seed in (1, 2)]
    both, first, second = (said(regard.load(each, engine="native")) for each in (places, *places))
    for mean, a, b in zip(both, first, second, strict=True):
        torch.testing.assert_close(mean, (a + b) / 2)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_model_may_be_loaded_where_nothing_is_to_be_learnt(engine: str, folder: Path) -> None:
    place = directory(folder / f"inference-{engine}", "classify")
    outside = said(regard.load(place, engine=engine))
    with torch.inference_mode():
        inside = said(regard.load(place, engine=engine))
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


def test_what_is_watched_or_changed_is_what_reads(folder: Path) -> None:
    reader = regard.load(directory(folder / "changed", "classify"), engine="auto")
    before, engines = said(reader), reader.engines
    assert reader.engines is engines
    with regard.record(reader.model) as seen:
        for ours, watched in zip(before, said(reader), strict=True):
            torch.testing.assert_close(ours, watched, atol=1e-5, rtol=0)
    assert seen["encoder.layers.1.self_attention"].shape[1] == 2
    with regard.edit(reader.model, {"encoder.layers.0.self_attention": {0: 0.0, 1: 0.0}}):
        assert not torch.allclose(said(reader)[0], before[0])
    assert torch.equal(said(reader)[0], before[0])
    with torch.no_grad():
        reader.model.get_parameter("output.outer.weight").neg_()
    assert not torch.allclose(said(reader)[0], before[0])
    before = said(reader)
    quantise(reader.model)  # other modules in the places of those that were
    assert 0 < (said(reader)[0] - before[0]).abs().max() < 0.5


def test_what_the_engine_cannot_read_is_read_by_pytorch(folder: Path) -> None:
    reader = regard.load(directory(folder / "other", "classify"))
    assert reader.without_native is None
    reader.model.encoder.layers[0].feed_forward.norm = torch.nn.Identity()
    assert len(said(reader)) == len(MORE)
    assert reader.without_native is None  # no machine could
    reader.engine = "native"
    reader.model.encoder.layers[1].feed_forward.norm = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"no native engine for this model \(a Identity\): use torch"):
        said(reader)
