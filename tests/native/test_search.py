"""Searches on the C engine: the same tokens and the same bits in any batch, order and number of workers."""

import copy
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.core.quantised import quantise
from regard.decoding.module import Module
from regard.decoding.protocol import Bare, Request, SamplingConfig, SearchConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native
from tests.decoding.toys import asking, search, stream

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

V = 211
GREEDY, BEAM = SearchConfig(beam=1, extra=8), SearchConfig(beam=4, best=2, extra=8)
DRAWN = SearchConfig(best=3, extra=8, sampling=SamplingConfig(top_k=20))


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    model = Transformer(TransformerConfig.tiny(V, encoder_layers=2, decoder_layers=2, norm="pre")).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)  # surer of itself than chance makes it
    return model


def requests(count: int) -> list[Request]:
    draw = random.Random(5)
    return [asking([*draw.choices(range(4, V), k=draw.randint(1, 24)), 2], seed=i) for i in range(count)]


@pytest.mark.parametrize("config", [GREEDY, BEAM, DRAWN], ids=["greedy", "beam", "drawn"])
@pytest.mark.parametrize("int8", [False, True])
def test_company_changes_no_bit(model: Transformer, config: SearchConfig, int8: bool) -> None:
    engine, asked = Native(quantise(copy.deepcopy(model)) if int8 else model), requests(150)
    expected = [search(engine, [request], config)[0] for request in asked]
    for rows in (7, 64):
        for workers in (1, 3):
            assert search(engine, asked, config, rows=rows, workers=workers) == expected
    order = random.Random(1).sample(range(len(asked)), len(asked))
    shuffled = search(engine.with_threads(2), [asked[i] for i in order], config)
    assert shuffled == [expected[i] for i in order]


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_pytorch_finds_the_same(model: Transformer, config: SearchConfig) -> None:
    ours = search(Native(model), requests(60), config)
    theirs = search(Module(model), requests(60), config)
    for a, b in zip(ours, theirs, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        np.testing.assert_allclose([h.score for h in a], [h.score for h in b], atol=1e-4)


def test_a_stream_says_what_the_search_says(model: Transformer) -> None:
    engine = Native(model)
    for config in (GREEDY, BEAM):
        for request in requests(10):
            said = [token for tokens in stream(engine, request, config) for token in tokens]
            assert said == search(engine, [request], config)[0][0].tokens


class Everything:
    """A shortlist that leaves nothing out."""

    def of(self, source: object) -> NDArray[np.int64]:
        return np.arange(V)


def test_a_shortlist_of_everything_changes_nothing(model: Transformer) -> None:
    config = replace(BEAM, best=1)
    plain, listed = (search(Native(model, shortlists=s), requests(40), config) for s in (None, Everything()))
    assert [h[0].tokens for h in plain] == [h[0].tokens for h in listed]
    np.testing.assert_allclose([h[0].score for h in plain], [h[0].score for h in listed], atol=1e-5)


def test_greedy_without_scores_says_the_same(model: Transformer) -> None:
    engine = Native(model)
    plain, bare = (search(engine, requests(40), config) for config in (GREEDY, Bare(**vars(GREEDY))))
    assert [h[0].tokens for h in plain] == [h[0].tokens for h in bare]
