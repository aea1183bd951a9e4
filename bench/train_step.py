"""Training speed and peak memory beside PyTorch's and Hugging Face's Transformer of the same shape.

    python bench/train_step.py [tiny] [base] [gpt-tiny] [bert-tiny] [vit-tiny] [--precisions fp32 bf16]
        [--dropout paper|everywhere] [--recompute feed_forward] [--rounds N]

One step is forward, loss, backward, clipping and Adam (fused), on the same batches: for tiny and base a label-smoothed
loss over right-padded sentences, bucketed by length; for gpt-tiny the next token of full blocks; for bert-tiny the 15%
of the tokens of full blocks that are masked; for vit-tiny, without dropout, one of 1,000 classes of pictures of 224 x
224 pixels, which are what is counted. bf16 is `torch.autocast`; where the processor has instructions for it,
each contestant runs in both precisions, and is compared with the better one of each peer. Each has a process of its
own, so that none inherits the other's heap, and they take turns; printed are medians over the rounds. Where they would
not all fit in memory, the worse precision of a peer has one round only. Peak memory is what model and steps add to the
resident set.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import PeakMemory
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.core.outputs import HeadConfig
from regard.core.positions import sinusoid
from regard.core.recompute import recompute
from regard.heap import keep_freed_memory
from regard.models import decoder, encoder, transformer, vision
from regard.models.transformer import Transformer, TransformerConfig
from regard.native.lend import lend
from regard.training.loop import RECOMPUTED
from regard.training.memory import MUCH
from regard.training.objectives import IGNORE, Labelled, Masked, NextToken, Objective
from regard.training.parallel import Shards

VOCABULARY = {"tiny": 10_000, "base": 37_000, "gpt-tiny": 8_000, "bert-tiny": 8_000, "vit-tiny": 1_000}
TOKENS = 4096  # target tokens of a batch
PICTURES = 32  # of a batch
BLOCK, MASKED = 256, 0.15  # of the blocks of a language model: tokens; the share that BERT is asked for
SMOOTHING = 0.1
SCARCE = 12 * 2**20  # KiB of memory that the next peer of base may come to need
PAD = 0
Rows = dict[str, Tensor]
Backward = Callable[[Rows], None]
Entrant = tuple[str, str]  # a contestant and its precision


def precisions() -> list[str]:
    """What this processor has instructions for; elsewhere PyTorch is very slow in bf16."""
    about = Path("/proc/cpuinfo")
    known = about.read_text("utf-8") if about.exists() else ""
    return ["fp32", "bf16"] if "avx512_bf16" in known or "amx_bf16" in known else ["fp32"]


def cast(precision: str) -> AbstractContextManager[object]:
    """In which a forward pass has a precision: for the thread that it runs in."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()


def sentences(vocabulary: int) -> list[Rows]:
    """Batches of one length bucket each: source, target, labels, right-padded, about TOKENS labels."""
    rng, result = random.Random(0), []
    for length in [12, 20, 28, 44]:
        pairs = TOKENS // length
        sizes = [(max(2, length + rng.randint(-2, 2)), length - rng.randint(0, 1)) for _ in range(pairs)]
        source = nn.utils.rnn.pad_sequence([torch.randint(3, vocabulary, (s,)) for s, _ in sizes], True, PAD)
        target = nn.utils.rnn.pad_sequence([torch.randint(3, vocabulary, (t,)) for _, t in sizes], True, PAD)
        labels = torch.where(target != PAD, target.roll(-1, 1), PAD)
        result.append({"source": source, "target": target, "labels": labels})
    return result


def blocks(vocabulary: int, hidden: bool) -> list[Rows]:
    """Batches of full blocks: tokens, and labels of those that follow, or of those that are hidden."""
    result = []
    for _ in range(4):
        tokens = torch.randint(3, vocabulary, (TOKENS // BLOCK, BLOCK + 1))
        labels = tokens[:, 1:]
        if hidden:
            labels = torch.where(torch.rand(labels.shape) < MASKED, tokens[:, :-1], IGNORE)
        result.append({"tokens": tokens[:, :-1], "labels": labels})
    return result


def pictures(classes: int) -> list[Rows]:
    """Batches of pictures, and what each shows."""
    sizes = [(PICTURES, 3, 224, 224)] * 4
    return [{"pixels": torch.randn(size), "labels": torch.randint(1, classes, size[:1])} for size in sizes]


def ours(objective: Objective, precision: str, recomputed: str = "nothing") -> Backward:
    """regard as its training loop runs it: a thread for each core, and the loss in blocks."""
    model, shards = objective.model, Shards()
    keep_freed_memory(MUCH)
    lend(model)
    recompute(RECOMPUTED[recomputed](model))
    parameters = list(model.parameters())

    def backward(rows: Rows) -> None:
        count = _counted(rows)

        def loss(**rows: Tensor) -> Tensor:
            with cast(precision):
                return objective(**rows) / count

        shards.backward(loss, parameters, rows)

    return backward


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


def marian(c: TransformerConfig) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
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


def gpt2(c: decoder.DecoderConfig) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    drops = {"resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout}
    shape = {"n_positions": c.max_length, "n_embd": c.d_model, "n_layer": c.layers, "n_head": c.heads}
    return GPT2LMHeadModel(GPT2Config(vocab_size=c.vocabulary, bos_token_id=0, eos_token_id=0, **shape, **drops))


def bert(c: encoder.EncoderConfig) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=c.vocabulary,
            hidden_size=c.d_model,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            intermediate_size=c.d_ff,
            max_position_embeddings=c.max_length,
            hidden_dropout_prob=c.dropout,
            attention_probs_dropout_prob=c.attention_dropout,
        )
    )


def vit(c: vision.VisionConfig, attention: str = "sdpa") -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=c.d_model,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            intermediate_size=c.d_ff,
            hidden_dropout_prob=c.dropout,
            attention_probs_dropout_prob=c.attention_dropout,
            num_labels=VOCABULARY["vit-tiny"],
            attn_implementation=attention,
        )
    )


def _counted(rows: Rows) -> Tensor:
    return ((rows["labels"] != PAD) & (rows["labels"] != IGNORE)).sum()


def _smoothed(model: nn.Module, rows: Rows, **names: Tensor) -> Tensor:
    said = model(**names) if names else model(rows["source"], rows["target"])
    logits = said.logits if names else said
    return F.cross_entropy(logits.flatten(0, 1), rows["labels"].flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


def _marian_loss(model: nn.Module, rows: Rows) -> Tensor:
    keep = (rows["source"] != PAD).long()
    return _smoothed(model, rows, input_ids=rows["source"], attention_mask=keep, decoder_input_ids=rows["target"])


def _plain_loss(model: nn.Module, rows: Rows) -> Tensor:
    logits = model(input_ids=rows["tokens"]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), rows["labels"].flatten(), ignore_index=IGNORE)


def _class_loss(model: nn.Module, rows: Rows) -> Tensor:
    return F.cross_entropy(model(pixel_values=rows["pixels"]).logits.float(), rows["labels"])


PAIRS = {"torch.nn.Transformer": (TorchTransformer, _smoothed), "Hugging Face Marian": (marian, _marian_loss)}
PEERS: dict[str, dict[str, tuple[Callable[..., nn.Module], Callable[[nn.Module, Rows], Tensor]]]] = {
    "tiny": PAIRS,
    "base": PAIRS,
    "gpt-tiny": {"Hugging Face GPT-2": (gpt2, _plain_loss)},
    "bert-tiny": {"Hugging Face BERT": (bert, _plain_loss)},
    "vit-tiny": {
        "Hugging Face ViT": (vit, _class_loss),
        "Hugging Face ViT, eager": (partial(vit, attention="eager"), _class_loss),
    },
}


def objective_of(shape: str, config: Any) -> Objective:
    if shape == "gpt-tiny":
        return NextToken(decoder.Decoder(config), 0.0, ignore=IGNORE)
    if shape == "bert-tiny":
        return Masked(encoder.Encoder(config), 0.0, ignore=IGNORE)
    if shape == "vit-tiny":
        return Labelled(vision.Vision(config, HeadConfig("classes", VOCABULARY[shape])))
    return NextToken(Transformer(config), SMOOTHING)


def configured(shape: str, **settings: float) -> Any:
    if shape == "vit-tiny":
        return vision.vit_tiny(**settings | {"dropout": 0.0})  # as in recipes/shipped/cifar10.yaml
    family = {"gpt-tiny": decoder, "bert-tiny": encoder}.get(shape, transformer).FAMILY
    return family.presets[shape](VOCABULARY[shape], **settings)


def batches(shape: str) -> list[Rows]:
    if shape == "vit-tiny":
        return pictures(VOCABULARY[shape])
    return sentences(VOCABULARY[shape]) if PEERS[shape] is PAIRS else blocks(VOCABULARY[shape], shape == "bert-tiny")


def stepper(entrant: Entrant, shape: str, config: Any, recomputed: str) -> Backward:
    torch.manual_seed(0)
    name, precision = entrant
    if name == "regard":
        objective = objective_of(shape, config)
        model, backward = objective.model, ours(objective, precision, recomputed)
    else:
        make, loss = PEERS[shape][name]
        model = make(config)

        def backward(rows: Rows) -> None:
            with cast(precision):
                found = loss(model, rows)
            found.backward()

    model.train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step(rows: Rows) -> None:
        backward(rows)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def work(entrant: Entrant, shape: str, config: Any, recomputed: str) -> None:
    """A contestant in its own process: for each line on standard input a round, answered with labels a second."""
    torch.manual_seed(0)
    data = batches(shape)
    tokens = sum(int((rows["labels"] != PAD).sum()) for rows in data)
    if entrant[0].startswith("Hugging Face"):
        PEERS[shape][entrant[0]][0](config)  # its imports do not count as memory
    with PeakMemory() as peak:
        step = stepper(entrant, shape, config, recomputed)
        for rows in data[::3]:
            step(rows)
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for rows in data:
                step(rows)
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


def contestants(shape: str) -> list[str]:
    return ["regard", *PEERS[shape]]


def compete(
    shape: str, arguments: list[str], among: list[str], rounds: int
) -> tuple[dict[Entrant, float], dict[Entrant, float]]:
    """Tokens a second (median over the rounds) and peak MiB of each contestant in each precision."""
    workers: dict[Entrant, Worker] = {}
    speed: dict[Entrant, list[float]] = {}
    memory: dict[Entrant, float] = {}
    for name in contestants(shape):
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
        config = configured(shape, dropout=0.1, **extra)
        if args.work_as:
            work(tuple(args.work_as), shape, config, args.recompute)
            continue
        how = [shape, "--dropout", args.dropout, "--recompute", args.recompute]
        speed, memory = compete(shape, how, args.precisions, args.rounds)
        best = {
            name: max((each for each in speed if each[0] == name), key=speed.__getitem__) for name in contestants(shape)
        }
        table = Table(
            title=f"{shape}, vocabulary {VOCABULARY[shape]:,}, {TOKENS:,} tokens, dropout {args.dropout}"
            if shape != "vit-tiny"
            else f"{shape}, {VOCABULARY[shape]:,} classes, {PICTURES} pictures",
            caption="* the better precision of each; ratios are of regard in its better one",
        )
        for column in ("", " ", "labels/s", "regard: speed", "peak MiB", "regard: memory"):
            table.add_column(column, justify="right" if column.strip() else "left", no_wrap=True)
        ours = best["regard"]
        for entrant in speed:
            name, precision = entrant
            table.add_row(
                name,
                f"{precision}{' *' if entrant == best[name] else ''}",
                f"{speed[entrant]:,.{0 if speed[entrant] > 1000 else 1}f}",
                f"{speed[ours] / speed[entrant]:.2f}x",
                f"{memory[entrant]:,.0f}",
                f"{memory[ours] / memory[entrant]:.2f}x",
            )
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
