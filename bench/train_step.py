"""Training speed and peak memory beside PyTorch's and Hugging Face's Transformer of the same shape.

    python bench/train_step.py [tiny] [base] [--precisions fp32 bf16] [--dropout paper|everywhere]
        [--recompute feed_forward] [--rounds N]

One step is forward, label-smoothed loss, backward, clipping and Adam (fused), on the same batches of right-padded
sentences, bucketed by length. bf16 is `torch.autocast`; where the processor has instructions for it, each contestant
runs in both precisions, and is compared with the better one of each peer. Each has a process of its own, so that none
inherits the other's heap, and they take turns; printed are medians over the rounds. Where they would not all fit in
memory, the worse precision of a peer has one round only. Peak memory is what model and steps add to the resident set.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import PeakMemory
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.core.positions import sinusoid
from regard.core.recompute import recompute
from regard.models.transformer import FAMILY, Transformer, TransformerConfig
from regard.native.lend import lend
from regard.training.loop import RECOMPUTED
from regard.training.objectives import NextToken
from regard.training.parallel import Shards

VOCABULARY = {"tiny": 10_000, "base": 37_000}
TOKENS = 4096  # target tokens of a batch
SMOOTHING = 0.1
SCARCE = 12 * 2**20  # KiB of memory that the next peer of base may come to need
PAD = 0
Backward = Callable[[Tensor, Tensor, Tensor], None]
Entrant = tuple[str, str]  # a contestant and its precision


def precisions() -> list[str]:
    """What this processor has instructions for; elsewhere PyTorch is very slow in bf16."""
    about = Path("/proc/cpuinfo")
    known = about.read_text("utf-8") if about.exists() else ""
    return ["fp32", "bf16"] if "avx512_bf16" in known or "amx_bf16" in known else ["fp32"]


def cast(precision: str) -> AbstractContextManager[object]:
    """In which a forward pass has a precision: for the thread that it runs in."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()


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


def ours(config: TransformerConfig, precision: str, recomputed: str = "nothing") -> tuple[nn.Module, Backward]:
    """regard as its training loop runs it: a thread for each core, and the loss in blocks."""
    model, shards = Transformer(config), Shards()
    lend(model)
    recompute(RECOMPUTED[recomputed](model))
    objective, parameters = NextToken(model, SMOOTHING), list(model.parameters())

    def backward(source: Tensor, target: Tensor, labels: Tensor) -> None:
        tokens = (labels != PAD).sum()

        def loss(**rows: Tensor) -> Tensor:
            with cast(precision):
                return objective(**rows) / tokens

        shards.backward(loss, parameters, {"source": source, "target": target, "labels": labels})

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


def torch_nn(c: TransformerConfig, precision: str) -> tuple[nn.Module, Backward]:
    model = TorchTransformer(c)

    def backward(source: Tensor, target: Tensor, labels: Tensor) -> None:
        with cast(precision):
            loss = _loss(model(source, target), labels)
        loss.backward()

    return model, backward


def marian(c: TransformerConfig, precision: str) -> tuple[nn.Module, Backward]:
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
        with cast(precision):
            logits = model(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits
            loss = _loss(logits, labels)
        loss.backward()

    return model, backward


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = logits.flatten(0, 1), labels.flatten()
    return F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=SMOOTHING)


CONTESTANTS = {"regard": ours, "torch.nn.Transformer": torch_nn, "Hugging Face Marian": marian}


def stepper(entrant: Entrant, config: TransformerConfig, recomputed: str) -> Callable[[Tensor, Tensor, Tensor], None]:
    torch.manual_seed(0)
    name, precision = entrant
    model, backward = ours(config, precision, recomputed) if name == "regard" else CONTESTANTS[name](config, precision)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step(source: Tensor, target: Tensor, labels: Tensor) -> None:
        backward(source, target, labels)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def work(entrant: Entrant, config: TransformerConfig, recomputed: str) -> None:
    """A contestant in its own process: for each line on standard input a round, answered with labels a second."""
    data = batches(config.vocabulary)
    tokens = sum(int((labels != PAD).sum()) for _, _, labels in data)
    if entrant[0] == "Hugging Face Marian":
        import transformers.models.marian.modeling_marian  # noqa: F401  its imports do not count as memory
    with PeakMemory() as peak:
        step = stepper(entrant, config, recomputed)
        for batch in data[::3]:
            step(*batch)
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for batch in data:
                step(*batch)
            print(tokens / (time.perf_counter() - start), flush=True)
    print(peak.mib, flush=True)


def available() -> int:
    """KiB of memory that processes can still have."""
    return next(int(line.split()[1]) for line in Path("/proc/meminfo").open() if line.startswith("MemAvailable"))


class Worker:
    """A contestant at work in its own process."""

    def __init__(self, entrant: Entrant, arguments: list[str]) -> None:
        command = [sys.executable, __file__, *arguments, "--work-as", *entrant]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"{' '.join(entrant)} did not start")

    def round(self) -> float:
        """Tokens a second."""
        print("go", file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> float:
        """Its peak memory in MiB."""
        return float(self._process.communicate()[0])


def compete(arguments: list[str], among: list[str], rounds: int) -> tuple[dict[Entrant, float], dict[Entrant, float]]:
    """Tokens a second (median over the rounds) and peak MiB of each contestant in each precision."""
    workers: dict[Entrant, Worker] = {}
    speed: dict[Entrant, list[float]] = {}
    memory: dict[Entrant, float] = {}
    for name in CONTESTANTS:
        own = [(name, precision) for precision in among]
        for entrant in own:
            workers[entrant] = Worker(entrant, arguments)
            speed[entrant] = [workers[entrant].round()]
        if name != "regard" and available() < SCARCE:
            for entrant in sorted(own, key=lambda each: speed[each][0])[:-1]:
                memory[entrant] = workers.pop(entrant).end()
    for _ in range(rounds - 1):
        for entrant, worker in workers.items():  # the others wait for their turn
            speed[entrant].append(worker.round())
    memory |= {entrant: worker.end() for entrant, worker in workers.items()}
    return {entrant: statistics.median(values) for entrant, values in speed.items()}, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["tiny", "base"])
    parser.add_argument("--dropout", choices=["paper", "everywhere"], default="paper")
    parser.add_argument("--recompute", choices=RECOMPUTED, default="nothing", help="what regard computes twice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=precisions())
    parser.add_argument("--work-as", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    extra = {"attention_dropout": 0.1, "feed_forward_dropout": 0.1} if args.dropout == "everywhere" else {}
    for shape in args.shapes:
        config = FAMILY.presets[shape](VOCABULARY[shape], dropout=0.1, **extra)
        if args.work_as:
            work(tuple(args.work_as), config, args.recompute)
            continue
        how = [shape, "--dropout", args.dropout, "--recompute", args.recompute]
        speed, memory = compete(how, args.precisions, args.rounds)
        best = {name: max((each for each in speed if each[0] == name), key=speed.__getitem__) for name in CONTESTANTS}
        table = Table(
            title=f"{shape}, vocabulary {config.vocabulary:,}, {TOKENS:,} target tokens, dropout {args.dropout}",
            caption="* the better precision of each; ratios are of regard in its better one",
        )
        for column in ("", " ", "tokens/s", "regard: speed", "peak MiB", "regard: memory"):
            table.add_column(column, justify="right" if column.strip() else "left", no_wrap=True)
        ours = best["regard"]
        for entrant in speed:
            name, precision = entrant
            table.add_row(
                name,
                f"{precision}{' *' if entrant == best[name] else ''}",
                f"{speed[entrant]:,.0f}",
                f"{speed[ours] / speed[entrant]:.2f}x",
                f"{memory[entrant]:,.0f}",
                f"{memory[ours] / memory[entrant]:.2f}x",
            )
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
