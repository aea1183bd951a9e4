"""LoRA in the C engine: one base and many who add to it, whose rows are one batch, each with the bits it has alone."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.core.added import without
from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.decoding.pool import search
from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.models import storage
from regard.native import Addressed, Native, NativeReader, UnsupportedError
from tests.adaptation.models import VOCABULARY, model_of, taught

EOS = 2
WHERE: list[Any] = [["query", "value"], ["all"], ["feed_forward"], ["output", "key"], ["attention"]]
WRITERS, READERS = ("gpt2", "llama", "transformer", "bart"), ("encoder", "albert")
SEARCHES = {
    "greedy": SearchConfig(beam=1, extra=4),
    "beam": SearchConfig(beam=3, best=3, extra=4),
    "drawn": SearchConfig(best=2, extra=4, sampling=SamplingConfig()),
}


def beside(base: nn.Module, path: Path, number: int, head: HeadConfig | None = None, **settings: Any) -> nn.Module:
    """One of many that add to a base, with its tensors."""
    settings = {"rank": 1 + number % 4, "where": WHERE[number % len(WHERE)], **settings}
    place = base.directory
    assert isinstance(place, Path)
    model = storage.begin(place, base.config, head or getattr(base, "head", None), [{"lora": settings}])
    storage.save(taught(model, number), path / str(number))
    return storage.beside(path / str(number), base)


def loaded(name: str, path: Path, head: HeadConfig | None = None, precision: str = "") -> nn.Module:
    model = model_of(name, head)
    if name in WRITERS:  # which are sure of themselves, then
        model.output.weight.data *= 3.0
    storage.save(quantise(model) if precision == "int8" else model, path / "base")
    return storage.load(path / "base", dtype=torch.bfloat16 if precision == "bf16" else None)


@pytest.fixture
def sources() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, 9))] for _ in range(18)]


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in WRITERS), ("gpt2", "bf16"), ("transformer", "int8")]
)
def test_what_is_written_has_the_same_bits_alone_and_in_any_company(
    name: str, precision: str, sources: list[list[int]], tmp_path: Path
) -> None:
    base = loaded(name, tmp_path, precision=precision)
    engine = Native(base)
    many = [engine, *(engine.adapted(beside(base, tmp_path, n), base) for n in range(5))]
    who = [many[i % len(many)] for i in range(len(sources))]
    for config in SEARCHES.values():
        requests = [config.request(source, first=1, seed=i) for i, source in enumerate(sources)]
        alone = [search(of, [r], config, EOS)[0] for of, r in zip(who, requests, strict=True)]
        plain = search(Native(base), requests, config, EOS)
        assert [a == b for a, b in zip(alone, plain, strict=True)][:: len(many)] == [True] * 3  # the base is as ever
        assert sum(a == b for a, b in zip(alone, plain, strict=True)) < 9
        for company in ({}, {"rows": 7, "workers": 2}):
            order = random.Random(len(company)).sample(range(len(sources)), len(sources))
            told = [_of(requests[i], who[i]) for i in order]
            found = search(many[3].with_threads(2), told, config, EOS, **company)
            assert found == [alone[i] for i in order]


def _of(request: Any, of: Native) -> Any:
    return replace(request, source=Addressed(request.source, of))


@pytest.mark.parametrize("name", WRITERS)
def test_it_is_what_merged_weights_give_but_for_the_last_digits(
    name: str, sources: list[list[int]], tmp_path: Path
) -> None:
    base = loaded(name, tmp_path)
    engine, model = Native(base), beside(base, tmp_path, 1)
    before = storage.load(tmp_path / "1")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    added, merged = engine.adapted(model, base).rows(), Native(model).rows()
    for rows in (added, merged):
        rows.start(sources[:8])
    for token in (1, 7, 9):
        one, two = (torch.from_numpy(rows.step(torch.full((8,), token).numpy())) for rows in (added, merged))
        torch.testing.assert_close(one, two, atol=1e-5 * two.abs().max().item(), rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_read_has_the_same_bits_alone_and_in_any_company_whatever_the_heads(
    name: str, precision: str, sources: list[list[int]], tmp_path: Path
) -> None:
    base = loaded(name, tmp_path, HeadConfig("classes", 3, pool="mean", hidden="gelu"), precision)
    engine = NativeReader(base)
    heads = [None, HeadConfig("classes", 5, pool="first"), HeadConfig("vector", pool="max", normalise=True), None]
    models = [beside(base, tmp_path, n, head) for n, head in enumerate(heads)]
    many = [engine, *(engine.adapted(model, base) for model in models)]
    assert [each.width for each in many] == [3, 3, 5, 32, 3]
    who = [many[i % len(many)] for i in range(len(sources))]
    alone = [of.outputs([source])[0].tolist() for of, source in zip(who, sources, strict=True)]
    assert alone[::5] == [said.tolist() for said in NativeReader(base).outputs(sources[::5])]
    if precision == "fp32":
        for n, model in enumerate(models):
            merged = NativeReader(model).outputs(sources[n + 1 :: 5])
            for one, two in zip(alone[n + 1 :: 5], merged, strict=True):
                assert one == pytest.approx(two.tolist(), rel=1e-4, abs=1e-5)
    engine.threads = 2
    for number in range(4):
        order = random.Random(number).sample(range(len(sources)), len(sources) if number else 7)
        found = many[number].outputs([sources[i] for i in order], of=[who[i] for i in order])
        assert [said.tolist() for said in found] == [alone[i] for i in order]


def test_tokens_are_told_of_by_many_too(sources: list[list[int]], tmp_path: Path) -> None:
    base = loaded("encoder", tmp_path, HeadConfig("tags", 4))
    engine = NativeReader(base)
    many = [engine, *(engine.adapted(beside(base, tmp_path, n, HeadConfig("tags", 4 + n)), base) for n in range(3))]
    who = [many[i % 4] for i in range(len(sources))]
    alone = [of.outputs([source])[0] for of, source in zip(who, sources, strict=True)]
    assert [said.shape for said in alone] == [(len(s), 4 + max(0, i % 4 - 1)) for i, s in enumerate(sources)]
    for one, two in zip(alone, engine.outputs(sources, of=who), strict=True):
        assert one.tolist() == two.tolist()


def test_what_is_switched_off_adds_nothing_and_the_rest_is_refused(sources: list[list[int]], tmp_path: Path) -> None:
    base = loaded("encoder", tmp_path, HeadConfig("classes", 3))
    engine, model = NativeReader(base), beside(base, tmp_path, 1)
    plain = partial(map, lambda said: said.tolist())
    with without(model):
        assert [*plain(engine.adapted(model, base).outputs(sources))] == [*plain(engine.outputs(sources))]
    assert [*plain(engine.adapted(model, base).outputs(sources))] != [*plain(engine.outputs(sources))]
    with pytest.raises(UnsupportedError, match=r"its stem\..* is not that of its base"):
        engine.adapted(storage.load(tmp_path / "1"), base)
    for change in ({"ia3": {}}, {"biases": {}}, {"adapter": {"width": 4}}):
        more = storage.begin(tmp_path / "base", base.config, None, [{"lora": {"rank": 2}}, change])
        storage.save(taught(more), tmp_path / "more")
        with pytest.raises(UnsupportedError, match=r"more than LoRA was added|added to it beside its products"):
            engine.adapted(storage.beside(tmp_path / "more", base), base)
    writer = loaded("gpt2", tmp_path / "writer")
    other = beside(writer, tmp_path / "writer", 1)
    other.output = nn.Linear(32, VOCABULARY, bias=False)
    with pytest.raises(UnsupportedError, match="an output layer of its own"):
        Native(writer).adapted(other, writer)
