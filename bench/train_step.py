"""Training speed and peak memory beside PyTorch's and Hugging Face's Transformer of the same shape.

    python bench/train_step.py [tiny] [base] [--dropout paper|everywhere] [--recompute feed_forward] [--rounds N]

One step is forward, label-smoothed loss, backward, clipping and Adam (fused), on the same batches of right-padded
sentences, bucketed by length. Each contestant has a process of its own, so that none inherits the other's heap, and
they take turns; printed are medians over the rounds. Peak memory is what model and steps add to the resident set.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import PeakMemory
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.core.positions import sinusoid
from regard.core.recompute import recompute
from regard.models.transformer import PRESETS, Transformer, TransformerConfig
from regard.training.loop import RECOMPUTED
from regard.training.objectives import SequenceLoss
from regard.training.parallel import Shards

VOCABULARY = {"tiny": 10_000, "base": 37_000}
TOKENS = 4096  # target tokens of a batch
SMOOTHING = 0.1
PAD = 0
Backward = Callable[[Tensor, Tensor, Tensor], None]


def batches(vocabulary: int, count: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Batches of one length bucket each: source, target, labels, right-padded, about TOKENS labels."""
    rng, result = random.Random(seed), []
    for length in [12, 20, 28, 44][:count]:
        pairs = TOKENS // length
        sizes = [(max(2, length + rng.randint(-2, 2)), length - rng.randint(0, 1)) for _ in range(pairs)]
        source = nn.utils.rnn.pad_sequence([torch.randint(3, vocabulary, (s,)) for s, _ in sizes], True, PAD)
        target = nn.utils.rnn.pad_sequence([torch.randint(3, vocabulary, (t,)) for _, t in sizes], True, PAD)
        labels = torch.where(target != PAD, target.roll(-1, 1), PAD)
        result.append((source, target, labels))
    return result


def ours(config: TransformerConfig, recomputed: str = "nothing") -> tuple[nn.Module, Backward]:
    """regard as its training loop runs it: a thread for each core, and the loss in blocks."""
    model, shards = Transformer(config), Shards()
    recompute(RECOMPUTED[recomputed](model))
    objective, parameters = SequenceLoss(model, SMOOTHING), list(model.parameters())

    def backward(source: Tensor, target: Tensor, labels: Tensor) -> None:
        tokens = (labels != PAD).sum()

        def loss(*rows: Tensor) -> Tensor:
            return objective(*rows) / tokens

        shards.backward(loss, parameters, (source, target, labels))

    return model, backward


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it leaves to the user: tied embeddings, positions, output."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocabulary, c.d_model)
        nn.init.normal_(self.tokens.weight, std=c.d_model**-0.5)
        self.body = nn.Transformer(
            c.d_model, c.heads, c.encoder_layers, c.decoder_layers, c.d_ff, c.dropout, batch_first=True
        )
        self.body.encoder.norm = self.body.decoder.norm = None  # the paper's post-norm has none
        for layer in [*self.body.encoder.layers, *self.body.decoder.layers]:
            layer.dropout.p = c.feed_forward_dropout
            layer.self_attn.dropout = c.attention_dropout
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = c.attention_dropout
        self.dropout = nn.Dropout(c.dropout)
        self.register_buffer("positions", sinusoid(torch.arange(256), c.d_model).float())

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) * self.tokens.embedding_dim**0.5
        return self.dropout(x + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = torch.zeros(source.shape).masked_fill(source == PAD, -torch.inf)
        hidden = self.body(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return hidden @ self.tokens.weight.T


def torch_nn(c: TransformerConfig) -> tuple[nn.Module, Backward]:
    model = TorchTransformer(c)
    return model, lambda source, target, labels: _backward(model(source, target), labels)


def marian(c: TransformerConfig) -> tuple[nn.Module, Backward]:
    from transformers import MarianConfig, MarianMTModel

    model = MarianMTModel(
        MarianConfig(
            vocab_size=c.vocabulary,
            d_model=c.d_model,
            encoder_layers=c.encoder_layers,
            decoder_layers=c.decoder_layers,
            encoder_ffn_dim=c.d_ff,
            decoder_ffn_dim=c.d_ff,
            encoder_attention_heads=c.heads,
            decoder_attention_heads=c.heads,
            dropout=c.dropout,
            attention_dropout=c.attention_dropout,
            activation_dropout=c.feed_forward_dropout,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            decoder_start_token_id=PAD,
            use_cache=False,
        )
    )

    def backward(source: Tensor, target: Tensor, labels: Tensor) -> None:
        keep = (source != PAD).long()
        _backward(model(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits, labels)

    return model, backward


def _backward(logits: Tensor, labels: Tensor) -> None:
    logits, labels = logits.flatten(0, 1), labels.flatten()
    F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=SMOOTHING).backward()


CONTESTANTS = {"regard": ours, "torch.nn.Transformer": torch_nn, "Hugging Face Marian": marian}


def stepper(name: str, config: TransformerConfig, recomputed: str) -> Callable[[Tensor, Tensor, Tensor], None]:
    torch.manual_seed(0)
    model, backward = ours(config, recomputed) if name == "regard" else CONTESTANTS[name](config)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step(source: Tensor, target: Tensor, labels: Tensor) -> None:
        backward(source, target, labels)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def work(name: str, config: TransformerConfig, recomputed: str) -> None:
    """A contestant in its own process: for each line on standard input a round, answered with labels a second."""
    data = batches(config.vocabulary)
    tokens = sum(int((labels != PAD).sum()) for _, _, labels in data)
    if name == "Hugging Face Marian":
        import transformers.models.marian.modeling_marian  # noqa: F401  its imports do not count as memory
    with PeakMemory() as peak:
        step = stepper(name, config, recomputed)
        for batch in data[::3]:
            step(*batch)
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for batch in data:
                step(*batch)
            print(tokens / (time.perf_counter() - start), flush=True)
    print(peak.mib, flush=True)


def compete(arguments: list[str], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens a second (median over the rounds) and peak MiB of each contestant."""
    workers, speed, memory = {}, {name: [] for name in CONTESTANTS}, {}
    for name in CONTESTANTS:
        command = [sys.executable, __file__, *arguments, "--work-as", name]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if workers[name].stdout.readline() != "ready\n":
            raise SystemExit(f"{name} did not start")
    for _ in range(rounds):
        for name, worker in workers.items():  # the others wait for their turn
            print("go", file=worker.stdin, flush=True)
            speed[name].append(float(worker.stdout.readline()))
    for name, worker in workers.items():
        memory[name] = float(worker.communicate()[0])
    return {name: statistics.median(values) for name, values in speed.items()}, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["tiny", "base"])
    parser.add_argument("--dropout", choices=["paper", "everywhere"], default="paper")
    parser.add_argument("--recompute", choices=RECOMPUTED, default="nothing", help="what regard computes twice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-as", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    extra = {"attention_dropout": 0.1, "feed_forward_dropout": 0.1} if args.dropout == "everywhere" else {}
    for shape in args.shapes:
        config = PRESETS[shape](VOCABULARY[shape], dropout=0.1, **extra)
        if args.work_as:
            work(args.work_as, config, args.recompute)
            continue
        speed, memory = compete([shape, "--dropout", args.dropout, "--recompute", args.recompute], args.rounds)
        table = Table(
            title=f"{shape}, vocabulary {config.vocabulary:,}, {TOKENS:,} target tokens, dropout {args.dropout}"
        )
        for column in ("", "tokens/s", "regard: speed", "peak MiB", "regard: memory"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name in CONTESTANTS:
            table.add_row(
                name,
                f"{speed[name]:,.0f}",
                f"{speed['regard'] / speed[name]:.2f}x",
                f"{memory[name]:,.0f}",
                f"{memory['regard'] / memory[name]:.2f}x",
            )
        Console().print(table)


if __name__ == "__main__":
    main()
