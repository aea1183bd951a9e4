"""Prompts and prefixes are what tokens before the text would be: read at once, step by step, padded, or packed."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from regard.adaptation.change import changed, settled
from regard.core.added import added
from regard.core.outputs import HeadConfig
from tests.adaptation.models import FAMILIES, model_of, taught, texts

WRITERS = ("gpt2", "llama", "transformer", "t5", "bart")
FIRST = torch.tensor([[11, 23, 8]])
PROMPT, PREFIX = {"prompt": {"length": 3}}, {"prefix": {"length": 3}}


@pytest.fixture(autouse=True)
def used() -> Iterator[None]:
    """Models are used here, not taught."""
    with torch.no_grad():
        yield


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_of_words_is_these_words(name: str) -> None:
    model, given = model_of(name), texts(name)
    longer = torch.cat([FIRST.expand(2, -1), given[0]], 1), *given[1:]
    expected = model(*longer)
    changed(model, [PROMPT])
    stem = model.stem if hasattr(model, "stem") else model.source_embedding
    stem.prompt.vectors.copy_(stem.tokens(FIRST[0]))
    close(model(*given), expected if len(given) > 1 else expected[:, 3:])


def test_a_class_is_told_of_the_prompt_as_well() -> None:
    model, (tokens,) = model_of("encoder", HeadConfig("classes", 3, pool="mean")), texts("encoder")
    expected = model(torch.cat([FIRST.expand(2, -1), tokens], 1))
    changed(model, [PROMPT])
    model.stem.prompt.vectors.copy_(model.stem.tokens(FIRST[0]))
    close(model(tokens), expected)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_prefix_of_words_is_their_keys_and_values(name: str) -> None:
    model, (tokens,) = model_of(name), texts(name)
    expected = model(torch.cat([FIRST.expand(2, -1), tokens], 1))[:, 3:]
    cache = model.new_cache()
    model.features(FIRST, cache)
    changed(model, [PREFIX])
    for layer, past in zip(model.decoder.layers, cache, strict=True):
        prefix = layer.self_attention.sublayer.prefix
        prefix.keys.copy_(past.self_attention.keys[0, :, :3])
        prefix.values.copy_(past.self_attention.values[0, :, :3])
    close(model(tokens), expected)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("changes", [[PROMPT], [PREFIX], [PREFIX, PROMPT], [{"lora": {"where": ["all"], "rank": 4}}]])
def test_step_by_step_is_all_at_once(name: str, changes: list[dict[str, object]]) -> None:
    model, given = taught(changed(model_of(name), changes)), texts(name)
    expected, read = model(*given), given[-1]
    state = model.start([[]] * 2, torch.device("cpu")) if len(given) == 1 else None
    if len(given) > 1:
        state = model.start([[9, 8, 7], [6, 5]], torch.device("cpu"))
        memory = model.encode(given[0])
        state.memory = memory
    steps = [model.step(read[:, i], state) for i in range(2)]
    close(torch.stack(steps, 1), expected[:, :2])
    turned = torch.tensor([1, 0])  # as a beam does
    state.reorder(turned, turned)
    model.extend(read[turned, 2:3], state)
    close(model.step(read[turned, 3], state), expected[turned, 3])


@pytest.mark.parametrize("name", ["encoder", "transformer", "t5"])
@pytest.mark.parametrize("change", [PROMPT, PREFIX])
def test_padding_changes_nothing(name: str, change: dict[str, object]) -> None:
    model, given = taught(changed(model_of(name), [change])), texts(name)
    alone = given[0][1:, :4], *(each[1:] for each in given[1:])
    both, one = model(*given)[1:], model(*alone)
    close(both[:, : one.shape[1]], one)


@pytest.mark.parametrize("change", [PROMPT, PREFIX])
def test_every_document_of_a_row_sees_it(change: dict[str, object]) -> None:
    model, (tokens,) = taught(changed(model_of("gpt2"), [change])), texts("gpt2")
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    packed = model(tokens, documents=documents)
    close(packed[:, :3], model(tokens[:, :3]))
    close(packed[:, 3:], model(tokens[:, 3:]))


@pytest.mark.parametrize("name", ["encoder", "bart"])
def test_what_a_prefix_was_made_of_is_left_behind(name: str) -> None:
    model, given = taught(changed(model_of(name), [{"prefix": {"length": 3, "hidden": 5}}])), texts(name)
    expected, many = model(*given), sum(p.numel() for part in added(model) for p in part.parameters())
    settled(model)
    assert torch.equal(model(*given), expected)
    assert model.changes[0].hidden is None
    assert many != sum(p.numel() for part in added(model) for p in part.parameters())


def test_what_is_added_takes_places() -> None:
    model = changed(model_of("gpt2"), [PROMPT, PREFIX])
    assert model.room([5] * 30) == 40 - 6 - 30
    with pytest.raises(ValueError, match="it has 35 tokens, the model has 34 places"):
        model.room([5] * 34)
