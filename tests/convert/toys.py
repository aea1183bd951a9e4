"""Sentences, tokenizers, and what a model writes, found by the slow truth."""

from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.vocabulary import BOS, EOS, PAD
from regard.models.transformer import Transformer

WORDS = [
    "the",
    "old",
    "red",
    "blue",
    "cat",
    "dog",
    "bird",
    "house",
    "saw",
    "likes",
    "under",
    "over",
    "a",
    "tree",
    "river",
]
SHAPE: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 48, "heads": 4}


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=draw).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=draw).tolist()) for n in lengths]


def learn(kind: str = "bpe") -> Tokenizer:
    size = {"bpe": 300, "unigram": 284, "wordpiece": 60}.get(kind, 0)
    return Tokenizer.learn(TokensConfig(kind, size), sentences(300))


def padded(rows: list[list[int]], pad: int = PAD, eos: int = EOS) -> Tensor:
    """Sentences with their ends, right-padded."""
    ended = [torch.tensor([*row, eos]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(ended, batch_first=True, padding_value=pad)


def before(row: list[int], end: int) -> list[int]:
    """An output as transformers gives it, without its start and from its end on."""
    return row[1 : row.index(end, 1) if end in row[1:] else None]


@torch.inference_mode()
def search(model: Transformer, source: list[int], width: int, maximum: int, first: int = BOS) -> list[int]:
    """Beam search without length penalty that computes everything anew for each prefix; width 1 is greedy."""
    memory = torch.tensor([[*source, EOS]])
    live: list[tuple[float, list[int]]] = [(0.0, [first])]
    done: list[tuple[float, list[int]]] = []
    for _ in range(maximum):
        found = []
        for log_p, prefix in live:
            gains = model(memory, torch.tensor([prefix]))[0, -1].double().log_softmax(0)
            found += [(log_p + gain, [*prefix, token]) for token, gain in enumerate(gains.tolist())]
        found = sorted(found, key=lambda x: -x[0])[: 2 * width]
        done += [x for x in found[:width] if x[1][-1] == EOS]
        live = [x for x in found if x[1][-1] != EOS][:width]
        if done and (width == 1 or max(done)[0] >= live[0][0]):
            break
    _, tokens = max(done + live)
    return [token for token in tokens[1:] if token != EOS]


def log_probabilities(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """log p of each token of a target and of its end."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))[0]
    return logits.log_softmax(-1)[range(len(target) + 1), [*target, EOS]]
