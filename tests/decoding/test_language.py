"""A language model goes on with its prompt: every search writes what a loop writes that reads everything again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regard.decoding.edits import log_soft_max
from regard.decoding.module import Module
from regard.decoding.pool import search, stream
from regard.decoding.protocol import Floats, Hypothesis, Request, SamplingConfig, SearchConfig
from regard.decoding.sampling import chances, distribution
from tests.decoding.test_beam import Scores, definition, same
from tests.decoding.toys import EOS, Language

LENGTHS = (4, 1, 4, 9, 2, 1, 4, 7)  # of prompts: a prompt of 1 is read in the first step alone


def prompts(room: int = 9) -> list[Request]:
    random = np.random.default_rng(3)
    drawn = [random.integers(3, 13, n).tolist() for n in LENGTHS]
    return [Request(prompt[:-1], prompt[-1], room, seed=i) for i, prompt in enumerate(drawn)]


def reading(model: Language, request: Request) -> Scores:
    """The model's scores after a prompt and what is written, read from the beginning for each token."""

    @torch.inference_mode()
    def scores(y: Sequence[int]) -> Floats:
        tokens = torch.tensor([[*request.source, request.first, *y]])
        return model.output(model.features(tokens))[0, -1].float().numpy()

    return scores


def drawn(scores: Scores, request: Request, draw: int, config: SamplingConfig) -> list[int]:
    """A draw in a loop."""
    y: list[int] = []
    for chance in chances(request.seed, draw, request.room):
        p = distribution(log_soft_max(scores(y)[None]), config)[0].cumsum(dtype=np.float64)
        token = int((p <= chance * p[-1]).sum())
        if token == EOS:
            break
        y.append(token)
    return y


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 4, "best": 4}, {"beam": 4, "groups": 2, "block": 2}])
def test_a_search_equals_its_definition(changes: dict[str, Any]) -> None:
    model, config, ended = Language(1), SearchConfig(**changes), set[bool]()
    for request, found in zip(prompts(), search(Module(model), prompts(), config, EOS), strict=True):
        same(found, definition(reading(model, request), request, config, EOS))
        ended |= {len(h.token_scores) > len(h.tokens) for h in found}
    assert ended == {True, False}  # some end, others are cut


def test_draws_are_those_of_a_loop() -> None:
    model, config = Language(2), SamplingConfig(temperature=0.8, top_p=0.9)
    found = search(Module(model), prompts(), SearchConfig(best=3, sampling=config), EOS)
    for request, outputs in zip(prompts(), found, strict=True):
        assert [h.tokens for h in outputs] == [drawn(reading(model, request), request, j, config) for j in range(3)]


@pytest.mark.parametrize(
    "config", [SearchConfig(beam=1), SearchConfig(beam=4), SearchConfig(sampling=SamplingConfig())]
)
def test_a_stream_says_the_same_and_company_changes_nothing(config: SearchConfig) -> None:
    module, asked = Module(Language(1)), prompts()

    def said(found: list[list[Hypothesis]]) -> list[list[int]]:
        return [outputs[0].tokens for outputs in found]

    together = said(search(module, asked, config, EOS))
    for limits in ({"rows": 1}, {"rows": 9, "tokens": 11}, {"workers": 3}):
        assert said(search(module, asked, config, EOS, **limits)) == together
    assert said(search(Module(Language(1), bitwise=True), asked[::-1], config, EOS)) == together[::-1]
    for request, tokens in zip(asked, together, strict=True):
        assert [token for piece in stream(module, request, config, EOS) for token in piece] == tokens


def test_equal_prompts_are_read_together_and_no_token_twice() -> None:
    model = Language(1)
    search(Module(model), prompts(room=1), SearchConfig(beam=1), EOS)
    starts, steps = model.read[: -len(set(LENGTHS))], model.read[-len(set(LENGTHS)) :]
    assert starts == [(1, 8), (1, 6), (3, 3), (1, 1)]  # the longest first; those of one token need no start
    assert steps == [(1, 1), (1, 1), (3, 1), (1, 1), (2, 1)]


def test_a_prompt_and_its_output_share_the_places_there_are() -> None:
    module, config = Module(Language(1, longest=12)), SearchConfig(beam=1)
    for n in (1, 5, 12):
        assert module.room([3] * (n - 1)) == 13 - n
        ((one,),) = search(module, [Request([3] * (n - 1), 3)], config, eos=-1)
        assert len(one.tokens) == 13 - n
    with pytest.raises(ValueError, match="sentence 1: it has 13 tokens, the model has 12 places: shorten it"):
        search(module, [Request([3], 3), Request([3] * 12, 3)], config, EOS)
    with pytest.raises(ValueError, match=r"sentence 0: token 13 \(first\) is none of the model's"):
        search(module, [Request([], 13)], config, EOS)
    with pytest.raises(ValueError, match="a sentence has the ids 3 to 13, the model reads 0 to 12"):
        search(module, [Request([13, 3], 3)], config, EOS)


def test_what_nothing_ends_is_refused() -> None:
    model = Language(1)
    model.config.longest = None
    with pytest.raises(ValueError, match="sentence 0: nothing ends its output: set `limit`"):
        search(Module(model), [Request([3], 4)], SearchConfig(), EOS)
    ((one,),) = search(Module(model), [Request([3], 4)], SearchConfig(beam=1, limit=5), eos=-1)
    assert len(one.tokens) == 5
    request = replace(prompts()[0], room=3)
    ((one,),) = search(Module(model), [request], SearchConfig(beam=1, limit=5), eos=-1)
    assert len(one.tokens) == 3
