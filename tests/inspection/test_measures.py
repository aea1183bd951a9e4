"""Each measure on maps whose answer a person can work out, in each direction, with padding in the way."""

from math import log

import pytest
import torch
from torch import Tensor

from regard.data.batching import Batch, collate
from regard.inspection.axes import Axes, Axis
from regard.inspection.measures import (
    HeadMeasures,
    Tokens,
    joined,
    measure,
    punctuation,
    tally,
)
from regard.inspection.taps import edit
from regard.models.transformer import Transformer, TransformerConfig
from tests.inspection.toys import encoder_only, language_model

PAD, BOS, EOS = 0, 1, 2
TOKENS = Tokens(PAD, BOS, EOS, frozenset({9}))


SIDES = {
    "encoder": Axes(Axis("source"), Axis("source")),
    "decoder": Axes(Axis("target"), Axis("target", late=True), causal=True),
    "cross": Axes(Axis("target"), Axis("source")),
}


def of(kind: str, weights: Tensor, tokens: Tokens = TOKENS, **ids: list[list[int]]) -> list[HeadMeasures]:
    batch = Batch({name: torch.tensor(rows) for name, rows in ids.items()}, count=0)
    return tally(SIDES[kind], weights, batch, tokens).measures()


def encoder(weights: list[list[float]], source: list[int], tokens: Tokens = TOKENS) -> HeadMeasures:
    (found,) = of("encoder", torch.tensor([[weights]]), tokens, source=[source], target=[[BOS]], labels=[[EOS]])
    return found


def decoder(weights: list[list[float]], read: list[int], tokens: Tokens = TOKENS) -> HeadMeasures:
    labels = [*read[1:], EOS]
    (found,) = of("decoder", torch.tensor([[weights]]), tokens, source=[[EOS]], target=[read], labels=[labels])
    return found


def test_an_encoder_head_by_hand() -> None:
    """Source: 5 9 5 </s>, where 9 is punctuation."""
    found = encoder(
        [
            [0.1, 0.6, 0.2, 0.1],
            [0.2, 0.1, 0.3, 0.4],
            [0.5, 0.0, 0.2, 0.3],
            [0.0, 0.0, 0.0, 1.0],
        ],
        [5, 9, 5, EOS],
    )
    assert found.confidence == pytest.approx((0.6 + 0.3 + 0.5) / 3)  # neither the last row nor the last column
    assert found.next == pytest.approx((0.6 + 0.3 + 0.3) / 3)  # query 0 -> key 1, 1 -> 2, 2 -> 3
    assert found.previous == pytest.approx((0.2 + 0.0 + 0.0) / 3)  # query 1 -> key 0, 2 -> 1, 3 -> 2
    assert found.itself == pytest.approx((0.1 + 0.1 + 0.2 + 1.0) / 4)
    assert found.first == pytest.approx((0.1 + 0.2 + 0.5 + 0.0) / 4)
    assert found.special == pytest.approx((0.1 + 0.4 + 0.3 + 1.0) / 4)
    assert found.punctuation == pytest.approx((0.6 + 0.1 + 0.0 + 0.0) / 4)
    assert found.duplicate == pytest.approx((0.2 + 0.5) / 2)  # query 0 -> key 2, query 2 -> key 0; the others have none
    assert found.induction == pytest.approx((0.1 + 0.0) / 2)  # query 0 -> key 3, after 5; query 2 -> key 1, after 5
    # The greatest weights are at +1, +2, -2, 0: each offset once; +1 has three places, 0 four, ±2 two.
    assert found.positional == (-2, pytest.approx(1 / 2))
    assert found.rare is None


def test_a_decoder_head_by_hand() -> None:
    """Read: <s> 5 7 5. The first row sees itself alone and does not count."""
    found = decoder(
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.7, 0.3, 0.0, 0.0],
            [0.2, 0.5, 0.3, 0.0],
            [0.1, 0.2, 0.6, 0.1],
        ],
        [BOS, 5, 7, 5],
    )
    assert found.previous == pytest.approx((0.7 + 0.5 + 0.6) / 3)
    assert found.next is None
    assert found.itself == pytest.approx((0.3 + 0.3 + 0.1) / 3)
    assert found.first == found.special == pytest.approx((0.7 + 0.2 + 0.1) / 3)
    assert found.positional == (-1, pytest.approx(1.0))
    assert found.duplicate == pytest.approx(0.2)  # only the last row reads what was read before: query 3 -> key 1
    assert found.induction == pytest.approx(0.6)  # and key 2 came after that
    assert found.confidence == pytest.approx((0.7 + 0.5) / 2)  # the last row is of the end, which it predicts


def test_a_cross_head_by_hand() -> None:
    """Source: 5 6 9 </s>; the rows predict 7, 8 and </s>."""
    weights = torch.tensor([[[[0.8, 0.1, 0.1, 0.0], [0.2, 0.5, 0.2, 0.1], [0.0, 0.1, 0.7, 0.2]]]])
    ids = {"source": [[5, 6, 9, EOS]], "target": [[BOS, 7, 8]], "labels": [[7, 8, EOS]]}
    (found,) = of("cross", weights, **ids)
    assert found.positional == (0, pytest.approx(1.0))  # what predicts token i looks at source token i
    assert found.punctuation == pytest.approx((0.1 + 0.2 + 0.7) / 3)
    assert found.special == pytest.approx((0.0 + 0.1 + 0.2) / 3)
    assert found.confidence == pytest.approx((0.8 + 0.5) / 2)
    assert found.first == pytest.approx((0.8 + 0.2 + 0.0) / 3)
    assert found.previous is found.next is found.itself is found.duplicate is found.induction is None


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_a_map_that_looks_at_one_offset_is_positional_there(offset: int) -> None:
    weights = torch.full((12, 12), 0.01)
    for i in range(12):
        weights[i, min(max(i + offset, 0), 11)] += 0.88
    found = encoder(weights.tolist(), [*range(3, 14), EOS])
    assert found.positional == (offset, pytest.approx(1.0))  # the ends, where the offset has no place, do not count


def test_a_rare_offset_proves_nothing() -> None:
    """The last of 12 rows looks five back, as it may; the others look at themselves or the last token, in turn."""
    weights = torch.zeros(12, 12)
    for i in range(12):
        weights[i, i if i % 2 else 11] = 1.0
    weights[11] = 0.0
    weights[11, 6] = 1.0
    found = encoder(weights.tolist(), [*range(3, 14), EOS])
    assert found.positional == (0, pytest.approx(5 / 12))


def test_entropy_is_smoothed_over_the_keys_in_sight() -> None:
    found = encoder([[0.25] * 4] * 4, [5, 6, 7, EOS])
    assert found.entropy == pytest.approx(log(4))
    assert found.evenness == pytest.approx(1.0)
    sure, others = 0.9999 + 0.0001 / 4, 0.0001 / 4
    found = encoder([[1.0, 0.0, 0.0, 0.0]] * 4, [5, 6, 7, EOS])
    assert found.entropy == pytest.approx(-(sure * log(sure) + 3 * others * log(others)), rel=1e-4)
    even = decoder([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3] * 3], [BOS, 5, 6])
    assert even.entropy == pytest.approx((log(2) + log(3)) / 2)
    assert even.evenness == pytest.approx(1.0)


def test_rare_is_the_one_rarest_in_sight() -> None:
    counts = torch.tensor([0, 0, 0, 0, 0, 50, 3, 3, 10])
    tokens = Tokens(PAD, BOS, EOS, counts={"source": counts, "target": counts})
    rows = [[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    assert encoder(rows, [5, 6, 8, EOS], tokens).rare == pytest.approx(1 / 4)  # 6; the end is none
    assert encoder(rows, [5, 6, 7, EOS], tokens).rare is None  # 6 and 7 are as rare
    causal = [[1.0, 0, 0, 0], [0.1, 0.9, 0, 0], [0.0, 0.2, 0.8, 0], [0.0, 0.0, 0.2, 0.8]]
    assert decoder(causal, [BOS, 5, 6, 8], tokens).rare == pytest.approx(1 / 2)  # row 1 sees 5 alone; row 3 misses 6


def test_padding_changes_nothing() -> None:
    """A sentence beside a longer one: the same figures as by itself, whatever stands in the padding."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16)).eval()
    pairs = [([5, 6, 5, 9], [7, 8, 7]), ([5, 6, 7, 8, 9, 3, 4], [8, 9, 8, 7, 9, 8])]
    counts = torch.arange(12)
    tokens = Tokens(PAD, BOS, EOS, frozenset({9}), {"source": counts, "target": counts})
    together = measure(model, [collate(pairs)], tokens)
    apart = measure(model, [collate(pairs[:1]), collate(pairs[1:])], tokens)
    assert list(together) == list(apart)
    assert len(together) == 12
    for place, found in together.items():
        for name, value in found.named().items():
            expected = apart[place].named()[name]
            assert value == (pytest.approx(expected, rel=1e-4) if name != "positional" else expected), (place, name)


def test_what_a_model_is_made_to_look_at_is_what_is_measured() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16)).eval()
    name = "decoder.layers.0.self_attention"

    def previous(weights: Tensor) -> Tensor:
        T = weights.shape[-1]
        forced = torch.zeros_like(weights)
        forced[:, 0, range(1, T), range(T - 1)] = 1.0
        forced[:, 1:] = weights[:, 1:]
        return forced

    with edit(model, {name: previous}):
        found = measure(model, [collate([([5, 6, 7], [7, 8, 7, 9])])], TOKENS)
    assert found[name, 0].previous == pytest.approx(1.0)
    assert found[name, 0].positional == (-1, 1.0)
    assert found[name, 1].previous != pytest.approx(1.0)


def test_sentences_are_kept_apart_and_can_be_joined() -> None:
    ids = {"source": [[5, 6, EOS]], "target": [[BOS]], "labels": [[EOS]]}
    batch = Batch({name: torch.tensor(rows) for name, rows in ids.items()}, count=0)
    forward, backward = torch.eye(3).roll(1, 1)[None, None], torch.eye(3).roll(-1, 1)[None, None]
    both = joined([tally(SIDES["encoder"], weights, batch, TOKENS) for weights in (forward, backward)])
    assert both.of_sentence("next").tolist() == both.of_sentence("positional +1").tolist() == [[1.0], [0.0]]
    assert both.measures()[0].next == pytest.approx(0.5)


def test_measures_by_name_are_those_that_there_are() -> None:
    torch.manual_seed(0)
    ids = {"source": [[5, 6, 9, EOS]], "target": [[BOS, 7, 8]], "labels": [[7, 8, EOS]]}
    read, written = (
        of(kind, torch.rand(1, 2, n, n).tril().softmax(-1), **ids) for kind, n in (("encoder", 4), ("decoder", 3))
    )
    assert read[0].named()["positional"].keys() == {"offset", "share"}
    assert "next" in read[0].named()
    assert "next" not in written[0].named()
    unfinished = of("decoder", torch.ones(1, 1, 1, 1), source=[[5, EOS]], target=[[BOS]], labels=[[7]])
    assert unfinished[0].named() == {}  # one row, of one key: nothing


def test_a_model_of_one_stack_is_measured_by_what_it_has() -> None:
    """Of a language model and of an encoder: what is forced upon the first head is what is found."""
    for model, labelled in ((language_model(), True), (encoder_only(), False)):
        tokens = torch.tensor([[BOS, 5, 6, 5, 6], [BOS, 7, 8, PAD, PAD]])
        labels = torch.tensor([[5, 6, 5, 6, EOS], [7, 8, EOS, PAD, PAD]])
        batch = Batch({"tokens": tokens} | ({"labels": labels} if labelled else {}), count=8)
        name = "stack.layers.0.self_attention"

        def previous(weights: Tensor) -> Tensor:
            T = weights.shape[-1]
            forced = weights.clone()
            forced[:, 0] = 0.0
            forced[:, 0, range(1, T), range(T - 1)] = 1.0
            return forced

        with edit(model, {name: previous}):
            found = measure(model, [batch], TOKENS)
        assert len(found) == 4
        assert found[name, 0].previous == pytest.approx(1.0)
        assert found[name, 0].duplicate == pytest.approx(0.0)
        assert (found[name, 1].next is None) == labelled  # who looks back only has no next


def test_punctuation() -> None:
    assert punctuation(["▁", "--", "a.", ".@@", "##?", "。", "\\xe2", "Ġ!"]) == {1, 3, 4, 5, 7}
