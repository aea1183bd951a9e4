"""Translating beside CTranslate2 and Hugging Face: the same weights, the same sentences, one run.

    python bench/decode.py runs/multi30k [tiny] [base] [--only NAME ...] [--limit N] [--rounds N]

The model is a trained one of a tiny pre-norm shape on Multi30k's sub-words; `base` is the same function in the
paper's base shape (grow.py). Each contestant has a process of its own, and they take turns. `batched` is the whole
test set at once, in target tokens a second; `single` is a hundred sentences one at a time, in milliseconds (median
and 95th percentile), with one thread or two, whichever was quicker for its first sentences. Greedy search, and a beam
of 4 whose hypotheses are ranked by mean log-probability and whose search ends with the fourth that is finished, as
CTranslate2 has it and Hugging Face's `early_stopping`. Printed are medians over the rounds; a ratio is the median of
the rounds' ratios. Peak memory is what the model and a batched beam search add to the resident set of a process.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grow
import torch
from measure import PeakMemory, in_fresh_process
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from regard.convert import export
from regard.core.quantised import quantise
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding.module import Module
from regard.decoding.pool import search
from regard.decoding.protocol import Bare, Searchable
from regard.evaluation.translation import bleu
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native

DATA = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")) / "multi30k" / "bpe"
CORES = 2
EXTRA = 50  # tokens that an output may have more than its input
BATCH = 64  # sentences, where a contestant has to be told
SINGLE = 100  # sentences that are translated one at a time
MODES = ("batched", "single")
BEAMS = (1, 4)
Ids = list[list[int]]
Figures = dict[str, dict[str, list[Any]]]  # contestant -> mode and beam -> rounds
Translate = Callable[[Ids, int], Ids]  # sentences without their ends, width of the beam -> outputs


def ours(directory: Path, engine: str) -> tuple[Translate, Callable[[int], Translate]]:
    """regard: all sentences at once, and one at a time with so many threads."""
    model: Any = storage.load(directory)
    if engine == "native int8":
        model = quantise(model)

    def searching(searchable: Searchable, workers: int) -> Translate:
        def translate(rows: Ids, beam: int) -> Ids:
            config = Bare(beam=beam, alpha=1.0, penalty="mean", patience=1.0, extra=EXTRA, shortest=1)
            requests = [config.request([*row, EOS], BOS) for row in rows]
            found = search(searchable, requests, config, EOS, workers=workers)
            return [hypotheses[0].tokens for hypotheses in found]

        return translate

    if engine == "torch":
        module = Module(model)
        return searching(module, CORES), lambda threads: with_threads(threads, searching(module, 1))
    native = Native(model)
    return searching(native, CORES), lambda threads: searching(native.with_threads(threads), 1)


def with_threads(threads: int, translate: Translate) -> Translate:
    def run(rows: Ids, beam: int) -> Ids:
        torch.set_num_threads(threads)
        return translate(rows, beam)

    return run


def ctranslate2(directory: Path, _: str) -> tuple[Translate, Callable[[int], Translate]]:
    import ctranslate2

    names = Tokenizer.load(directory / "tokenizer.json").rust
    pieces = [names.id_to_token(i) for i in range(names.get_vocab_size())]

    def translator(inter: int, intra: int) -> Translate:
        engine = ctranslate2.Translator(str(directory), inter_threads=inter, intra_threads=intra)

        def translate(rows: Ids, beam: int) -> Ids:
            found = engine.translate_batch(
                [[pieces[i] for i in row] for row in rows],
                beam_size=beam,
                length_penalty=1.0,
                min_decoding_length=1,
                max_decoding_length=max(map(len, rows)) + EXTRA,
                max_batch_size=BATCH,
                return_scores=False,
            )
            return [[names.token_to_id(piece) for piece in result.hypotheses[0]] for result in found]

        return translate

    return translator(CORES, 1), lambda threads: translator(1, threads)


def hugging_face(directory: Path, _: str) -> tuple[Translate, Callable[[int], Translate]]:
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    model.generation_config.max_length = None

    @torch.inference_mode()
    def translate(rows: Ids, beam: int) -> Ids:
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        outputs: Ids = [[] for _ in rows]
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            tokens = [torch.tensor([*rows[i], EOS]) for i in batch]
            source = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=PAD)
            settings = GenerationConfig(
                num_beams=beam,
                length_penalty=1.0,
                early_stopping=beam > 1,
                min_new_tokens=1,
                max_new_tokens=source.shape[1] + EXTRA,
                do_sample=False,
                decoder_start_token_id=BOS,
                eos_token_id=EOS,
                pad_token_id=PAD,
            )
            found = model.generate(source, attention_mask=(source != PAD).long(), generation_config=settings)
            for i, row in zip(batch, found.tolist(), strict=True):
                outputs[i] = row[1 : row.index(EOS) if EOS in row else None]
        return outputs

    return with_threads(CORES, translate), lambda threads: with_threads(threads, translate)


# Name, what builds it, from which of the directories, and what that needs to know.
CONTESTANTS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "regard": (ours, "model", "native fp32"),
    "regard int8": (ours, "model", "native int8"),
    "regard torch": (ours, "model", "torch"),
    "CTranslate2": (ctranslate2, "ctranslate2", ""),
    "CTranslate2 int8": (ctranslate2, "ctranslate2-int8", ""),
    "Hugging Face": (hugging_face, "hf", ""),
}
PEER = {"CTranslate2 int8": "regard int8"}  # whom a ratio compares with; the others: regard


def timed(translate: Translate, rows: Ids, beam: int) -> tuple[Ids, float]:
    start = time.perf_counter()
    outputs = translate(rows, beam)
    return outputs, time.perf_counter() - start


def work(name: str, directory: Path, limit: int | None, memory: bool) -> None:
    """A contestant in its own process: for each line `mode beam` on standard input a round, answered with figures.

    With `memory` it prints the peak of one batched search instead.
    """
    build, kind, engine = CONTESTANTS[name]
    tokenizer = Tokenizer.load(directory / "model" / "tokenizer.json")
    texts = {side: (DATA / f"test.2016.{side}").read_text("utf-8").splitlines()[:limit] for side in ("en", "de")}
    rows = tokenizer.encode_batch(texts["en"])
    references = [tokenizer.joined(text) for text in texts["de"]]
    if kind == "hf":
        import transformers.models.pegasus.modeling_pegasus  # noqa: F401  its imports do not count as memory
    torch.set_num_threads(1)
    if memory:
        with PeakMemory() as peak:
            build(directory / kind, engine)[0](rows, max(BEAMS))
        print(peak.mib)
        return
    batched, single = build(directory / kind, engine)
    batched(rows[:8], max(BEAMS))
    choices = [single(threads) for threads in range(1, CORES + 1)]
    alone: dict[int, Translate] = {}
    for beam in BEAMS:
        times = [[timed(translate, [row], beam)[1] for row in rows[:20] * 2] for translate in choices]
        alone[beam] = choices[int(statistics.median(times[1]) < statistics.median(times[0]))]
    print("ready", flush=True)
    for line in sys.stdin:
        mode, width = line.split()
        beam, outputs, taken = int(width), [], []
        if mode == "batched":
            torch.set_num_threads(1)
            outputs, seconds = timed(batched, rows, beam)
            taken = [seconds]
        else:
            for row in rows[:SINGLE]:
                output, seconds = timed(alone[beam], [row], beam)
                outputs += output
                taken.append(seconds)
        tokens = sum(len(row) + 1 for row in outputs)
        figures = {"tokens_a_second": tokens / sum(taken), "milliseconds": [1000 * t for t in taken]}
        if mode == "batched":
            figures["bleu"] = bleu(tokenizer.decode_batch(outputs), references, tokenize="none").value
        print(json.dumps(figures), flush=True)


def prepare(model: Path, shape: str, directory: Path) -> None:
    """The same weights for each contestant."""
    home = directory / "model"
    if shape == "tiny":
        home.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.copy(model / name, home)
    else:
        small: Any = storage.load(model)
        storage.save(grow.grow(small, getattr(TransformerConfig, shape)(small.config.vocabulary)), home)
        shutil.copy(model / "tokenizer.json", home)
    export(home, directory / "ctranslate2", "ctranslate2")
    export(home, directory / "ctranslate2-int8", "ctranslate2", quantization="int8")
    large: Any = storage.load(home)
    if large.config.positions == "sinusoidal":
        export(home, directory / "hf", "hf")
        return
    # Pegasus has a table for its sinusoids: a grown model's positions fit into it.
    twin = Transformer(large.config.but(positions="sinusoidal"))
    twin.load_state_dict({name: x for name, x in large.state_dict().items() if "positions" not in name})
    storage.save(twin, directory / "twin")
    shutil.copy(home / "tokenizer.json", directory / "twin")
    export(directory / "twin", directory / "hf", "hf")
    tensors = load_file(directory / "hf" / "model.safetensors")
    for stack, embedding in (("encoder", large.source_embedding), ("decoder", large.target_embedding)):
        table = embedding.positions.table.detach()
        halves = torch.cat([table[:, 0::2], table[:, 1::2]], 1)  # their order of the residual stream
        tensors[f"model.{stack}.embed_positions.weight"][: len(halves)] = halves
    save_file(tensors, directory / "hf" / "model.safetensors", {"format": "pt"})


def compete(directory: Path, names: list[str], limit: list[str], rounds: int) -> tuple[Figures, dict[str, float]]:
    """For each contestant the figures of each round by `mode beam`, and its peak in MiB."""
    workers, memory = {}, {}
    found: Figures = {name: {} for name in names}
    for name in names:
        command = [sys.executable, __file__, str(directory), "--work-as", name, *limit]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if workers[name].stdout.readline() != "ready\n":
            raise SystemExit(f"{name} did not start")
    for _ in range(rounds):
        for task in (f"{mode} {beam}" for mode in MODES for beam in BEAMS):
            for name, worker in workers.items():  # the others wait for their turn
                print(task, file=worker.stdin, flush=True)
                found[name].setdefault(task, []).append(json.loads(worker.stdout.readline()))
    for name, worker in workers.items():
        worker.communicate()
        memory[name] = in_fresh_process(str(directory), "--work-as", name, "--memory", *limit)
    return found, memory


def table(shape: str, beam: int, found: Figures, memory: dict[str, float]) -> Table:
    result = Table(title=f"{shape}, test.2016 of Multi30k, {'greedy' if beam == 1 else f'beam {beam}'}")
    for column in ("", "tokens/s", "regard: speed", "ms p50", "ms p95", "regard: single", "peak MiB", "BLEU"):
        result.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, figures in found.items():
        batched, single = figures[f"batched {beam}"], figures[f"single {beam}"]
        peer = found.get(PEER.get(name, "regard"), figures)
        ratios = {
            mode: statistics.median(
                ours["tokens_a_second"] / theirs["tokens_a_second"]
                for ours, theirs in zip(peer[f"{mode} {beam}"], rounds, strict=True)
            )
            for mode, rounds in (("batched", batched), ("single", single))
        }
        shares = [statistics.quantiles(each["milliseconds"], n=20) for each in single]  # 5 %, 10 %, ...
        result.add_row(
            name,
            f"{statistics.median(each['tokens_a_second'] for each in batched):,.0f}",
            f"{ratios['batched']:.2f}x",
            f"{statistics.median(share[9] for share in shares):.1f}",
            f"{statistics.median(share[18] for share in shares):.1f}",
            f"{ratios['single']:.2f}x",
            f"{memory[name]:,.0f}",
            f"{batched[0]['bleu']:.2f}",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a trained model directory")
    parser.add_argument("shapes", nargs="*", default=["tiny", "base"])
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS], help="these contestants")
    parser.add_argument("--limit", type=int, help="sentences")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-as", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work_as:
        work(args.work_as, args.model, args.limit, args.memory)
        return
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as directory:
            prepare(args.model, shape, Path(directory))
            limit = ["--limit", str(args.limit)] if args.limit else []
            found, memory = compete(Path(directory), args.only, limit, args.rounds)
            for beam in BEAMS:
                Console(width=120).print(table(shape, beam, found, memory))


if __name__ == "__main__":
    main()
