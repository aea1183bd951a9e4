"""Outputs that are trees, whatever the model is like."""

import math
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from regard.data.treebank import from_linear
from regard.decoding.grammar import TreeRule
from regard.decoding.module import Module
from regard.decoding.protocol import Bare, Request, SamplingConfig, Searchable, SearchConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native
from tests.decoding.toys import EOS, Markov, asking, random_markov, search, stream

NAMES = ["<pad>", "<s>", "</s>", "(S", "(NP", ")S", ")NP", "XX"]
RULE = TreeRule({3: 5, 4: 6}, leaf=7, eos=2)
V = 40  # the other ids are words, which no tree holds
SEARCHES = {
    "greedy": SearchConfig(beam=1, extra=12),
    "bare": Bare(beam=1, extra=12),
    "beam": SearchConfig(beam=5, best=3, extra=12),
    "diverse": SearchConfig(beam=6, best=2, groups=3, extra=12),
    "impatient": SearchConfig(beam=4, patience=1.0, extra=12, repetition=3.0),
    "drawn": SearchConfig(best=4, extra=12, sampling=SamplingConfig(temperature=2.0)),
    "tight": SearchConfig(beam=4, extra=2),
}


def is_tree(tokens: Sequence[int], leaves: int) -> bool:
    """By the reader of trees, which knows nothing of the rule."""
    if not all(2 < token < len(NAMES) for token in tokens):
        return False
    try:
        from_linear([NAMES[token] for token in tokens], [("NN", "word")] * leaves)
    except ValueError:
        return False
    return True


def ways(source: list[int], written: list[int], room: int) -> Iterator[tuple[int, ...]]:
    """Every output that the rule allows."""
    allowed = RULE.allowed(source, written, room)
    assert len(set(allowed)) == len(allowed) > 0
    for token in allowed:
        if token == EOS:
            yield tuple(written)
        else:
            yield from ways(source, [*written, token], room - 1)


@pytest.mark.parametrize(("leaves", "room"), [(1, 8), (2, 8), (3, 8), (4, 7)])
def test_the_rule_allows_every_tree_and_nothing_else(leaves: int, room: int) -> None:
    found = list(ways([9] * leaves + [2], [], room))
    every = (tokens for n in range(room) for tokens in product(range(3, 8), repeat=n))
    assert sorted(found) == sorted(tokens for tokens in every if is_tree(tokens, leaves))


def requests(count: int) -> list[Request]:
    draw = random.Random(7)
    sources = ([*draw.choices(range(8, V), k=draw.randint(1, 9)), 2] for _ in range(count))
    return [asking(source, seed=i, rule=RULE) for i, source in enumerate(sources)]


def check(model: Searchable, config: SearchConfig, asked: list[Request]) -> None:
    for request, outputs in zip(asked, search(model, asked, config, rows=24), strict=True):
        assert outputs
        for output in outputs:
            assert is_tree(output.tokens, len(request.source) - 1)
            assert len(output.tokens) < len(request.source) + config.extra
            assert output.token_scores == [] or len(output.token_scores) == len(output.tokens) + 1  # with eos
            assert math.isnan(output.score) or output.score > -math.inf


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("name", SEARCHES)
def test_any_model_writes_trees(engine: str, name: str) -> None:
    if engine == "native" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    for seed, sharpness in ((0, 1.0), (1, 30.0)):
        torch.manual_seed(seed)
        config = TransformerConfig.tiny(V, d_model=32, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1)
        model = Transformer(config).eval()
        with torch.no_grad():
            model.output.weight.mul_(sharpness)  # sure of things that are no trees
        check(Native(model) if engine == "native" else Module(model), SEARCHES[name], requests(12))


def test_both_engines_write_the_same_trees() -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    torch.manual_seed(4)
    model = Transformer(TransformerConfig.tiny(V, d_model=32, d_ff=32, heads=2)).eval()
    for config in (SEARCHES["greedy"], SEARCHES["beam"]):
        ours, theirs = (search(each, requests(20), config) for each in (Native(model), Module(model)))
        assert [[h.tokens for h in each] for each in ours] == [[h.tokens for h in each] for each in theirs]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_model_that_holds_every_tree_impossible(name: str) -> None:
    tables = np.full((V, V, V), -np.inf, np.float32)
    tables[:, :, 20] = 0.0  # it would only ever write a word
    check(Markov(tables), SEARCHES[name], requests(6))


def test_a_wide_beam_finds_the_best_of_all_trees() -> None:
    for seed in range(5):
        model = random_markov(seed, vocabulary=8)
        source = [1, 1, 1, 2]
        config = SearchConfig(beam=600, alpha=0.0, extra=6)
        best = search(model, [asking(source, rule=RULE)], config)[0][0]
        every = ways(source, [], len(source) + config.extra)
        scores = {tokens: math.fsum(model.log_probabilities(1, [*tokens, 2])) for tokens in every}
        assert tuple(best.tokens) == max(scores, key=scores.__getitem__)
        assert best.log_probability == pytest.approx(scores[tuple(best.tokens)], abs=1e-4)


def test_those_without_a_rule_are_as_they_were() -> None:
    model, config = random_markov(3), SearchConfig(beam=3, extra=6)
    free = [asking([i % 3, 1, 2]) for i in range(6)]
    alone = search(model, free, config)
    mixed = search(model, [*free, asking([1, 1, 2], rule=RULE)], config)
    assert mixed[:-1] == alone
    assert is_tree(mixed[-1][0].tokens, 2)


def test_a_tree_is_streamed_and_continues_a_prefix() -> None:
    model, config = random_markov(5), SearchConfig(beam=3, extra=8)
    request = asking([1, 1, 1, 2], prefix=(4, 3, 7), rule=RULE)
    best = search(model, [request], config)[0][0].tokens
    assert best[:3] == [4, 3, 7]
    assert is_tree(best, 3)
    assert [token for some in stream(model, request, config) for token in some] == best


@pytest.mark.parametrize(
    ("request_", "config", "match"),
    [
        (asking([5, 2], rule=RULE), SearchConfig(extra=1), "needs 4 tokens, and there is room for 3"),
        (asking([2], rule=RULE), SearchConfig(), "sentence 0: a tree has at least 1 leaf"),
        (asking([5, 2], prefix=(3, 5), rule=RULE), SearchConfig(), "sentence 0: token 5 of its prefix breaks"),
        (asking([5, 2], forbidden=((7,),), rule=RULE), SearchConfig(), "leave required and forbidden"),
        (asking([5, 2], required=((7,),), rule=RULE), SearchConfig(), "leave required and forbidden"),
        (asking([5, 2], rule=RULE), SearchConfig(block=2), "`block` out"),
    ],
)
def test_what_cannot_be_is_refused_before_the_search(request_: Request, config: SearchConfig, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        search(random_markov(0), [request_], config)


@dataclass(frozen=True)
class Always:
    """Whatever was written: these ids."""

    ids: list[int]

    def allowed(self, source: Sequence[int], written: Sequence[int], room: int) -> Sequence[int]:
        return self.ids


@pytest.mark.parametrize("ids", [[], [-1], [2, V]])
@pytest.mark.parametrize("config", [SearchConfig(beam=2), SearchConfig(sampling=SamplingConfig())])
def test_a_rule_that_allows_nothing_that_there_is_gives_no_output(ids: list[int], config: SearchConfig) -> None:
    with pytest.raises(ValueError, match=r"a rule allows \[.*\] after \[\]: it must be one id at least"):
        search(random_markov(0, vocabulary=V), [asking([1, 2], rule=Always(ids))], config)
