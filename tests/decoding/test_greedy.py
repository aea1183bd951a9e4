"""Greedy search takes the likeliest token of each step, whatever batch a sentence is in."""

import torch
from torch import Tensor

from regard.decoding.greedy import greedy
from regard.models.transformer import Transformer, TransformerConfig

PAD, BOS = 0, 1


def model() -> Transformer:
    torch.manual_seed(4)
    return Transformer(TransformerConfig.tiny(15, encoder_layers=1, decoder_layers=2)).eval()


def by_hand(model: Transformer, source: Tensor, eos: int, maximum: int) -> list[int]:
    """No cache, no batch: read everything again for each token."""
    tokens = [BOS]
    while len(tokens) <= maximum and tokens[-1] != eos:
        tokens.append(int(model(source[None], torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[1:]


def test_equals_decoding_one_sentence_at_a_time_without_a_cache() -> None:
    net = model()
    rows = [torch.randint(3, 15, (n,)) for n in (3, 9, 1, 6, 4, 7)]
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    free = greedy(net, source, bos=BOS, eos=-1, pad=PAD, maximum=12)
    eos = int(free[0, 4])  # an untrained model never says </s>: let what it says fifth be the end
    said = greedy(net, source, bos=BOS, eos=eos, pad=PAD, maximum=12)
    lengths = set()
    for row, sentence in zip(said.tolist(), rows, strict=True):
        expected = by_hand(net, sentence, eos, 12)
        lengths.add(len(expected))
        assert row[: len(expected)] == expected
        assert set(row[len(expected) :]) <= {PAD}
    assert len(lengths) > 1


def test_it_stops_at_the_maximum_and_an_empty_batch_gives_nothing() -> None:
    net = model()
    assert greedy(net, torch.randint(3, 15, (2, 5)), bos=BOS, eos=99, pad=PAD, maximum=4).shape == (2, 4)
    assert greedy(net, torch.empty(0, 3, dtype=torch.long), bos=BOS, eos=2, pad=PAD, maximum=4).shape == (0, 0)
