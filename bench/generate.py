"""Writing on after prompts, beside Hugging Face and llama.cpp: the same weights and prompts, greedy search, one run.

    python bench/generate.py [gpt-tiny] [gpt2] [stories15m] [smollm2-135m-instruct] [--batch N ...] [--prompt N]
        [--new N] [--rounds N]

The weights of gpt-tiny and gpt2 are random; the others are fetched as `regard import` does it. An end is put off: all
outputs have `--new` tokens. `prefill` is the time to the first token, in tokens of the prompts a second; `decode` is
what the others take, in new tokens a second. Each contestant has one thread or two, whichever was quicker; they take
turns. Printed are medians over the rounds; a ratio is the median of the rounds' ratios, of regard with weights of as
many bits. Peers in fp32 give the same tokens, which is checked; fewer bits round otherwise. llama.cpp (the package
xllamacpp) is there if it is installed, in a process of its own with a place for each prompt.
"""

import argparse
import copy
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from regard.convert import export, import_
from regard.convert.tables import TABLES
from regard.convert.tables.table import pairs
from regard.core.quantised import quantise
from regard.decoding.module import Module
from regard.decoding.pool import search
from regard.decoding.protocol import Request, Searchable, SearchConfig
from regard.models import storage
from regard.models.decoder import FAMILY, Decoder
from regard.native import Native

CORES = 2
EOS = 0
READY = "all written"
VOCABULARY = {"gpt-tiny": 512, "gpt2": 50_257}
REAL = ("stories15m", "smollm2-135m-instruct")
Ids = list[list[int]]
Write = Callable[[Ids, int], Ids]  # prompts, how many tokens -> what follows
OURS = {
    "llama.cpp F16": "regard bf16",
    "llama.cpp Q8_0": "regard int8",
    "llama.cpp Q4_1": "regard int4",
}  # with whom it is compared; others: regard


def model(shape: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(FAMILY.presets[shape](VOCABULARY[shape])).eval()


def ours(searchable: Searchable, workers: int = 1) -> Write:
    def write(prompts: Ids, count: int) -> Ids:
        requests = [Request(prompt[:-1], prompt[-1], count) for prompt in prompts]
        greedy = SearchConfig(beam=1, shortest=count)
        return [found[0].tokens[:count] for found in search(searchable, requests, greedy, EOS, workers=workers)]

    return write


def native(of: Decoder) -> list[Write]:
    """With one thread; two that share the products; two that share the prompts."""
    engine = Native(of)
    return [ours(engine), ours(engine.with_threads(CORES)), ours(engine, CORES)]


def serve(path: str, places: int, length: int, threads: int) -> None:
    """llama.cpp in its own process: for each line on standard input, prompts and a number of tokens, all is written."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx = path, places, places * (length + 64)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    server, pool = xllamacpp.Server(params), ThreadPoolExecutor(places)
    asked = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
    for line in sys.stdin:
        prompts, count = json.loads(line)

        def one(prompt: list[int], count: int = count) -> None:
            found = server.handle_completions({**asked, "prompt": prompt, "n_predict": count})
            assert found["usage"]["completion_tokens"] == count, found

        list(pool.map(one, prompts))
        print(READY, flush=True)


def llama_cpp(path: Path, places: int, length: int) -> list[Write]:
    def with_threads(threads: int) -> Write:
        command = [sys.executable, __file__, "--serve", path, *map(str, (places, length, threads))]
        quiet = subprocess.DEVNULL
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        assert worker.stdin
        assert worker.stdout

        def write(prompts: Ids, count: int) -> Ids:
            print(json.dumps([prompts, count]), file=worker.stdin, flush=True)
            for line in worker.stdout:  # it says more than it is asked
                if line.strip() == READY:
                    return []
            raise SystemExit("llama.cpp did not answer")

        return write

    return [with_threads(threads) for threads in range(1, CORES + 1)]


def in_torch(write: Write) -> list[Write]:
    def with_threads(threads: int) -> Write:
        def run(prompts: Ids, count: int) -> Ids:
            torch.set_num_threads(threads)
            return write(prompts, count)

        return run

    return [with_threads(threads) for threads in range(1, CORES + 1)]


def random_peer(of: Decoder) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    c, weights = of.config, of.state_dict()
    sizes = {"vocab_size": c.vocabulary, "n_embd": c.d_model, "n_inner": c.d_ff, "n_layer": c.layers, "n_head": c.heads}
    marks = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": EOS}
    peer = GPT2LMHeadModel(GPT2Config(n_positions=c.max_length, **sizes, **marks, attn_implementation="sdpa")).eval()
    theirs: dict[str, Any] = {"lm_head.weight": weights["output.weight"]}
    for pair in pairs(TABLES["gpt2"].tensors, weights):
        if pair.ours in weights:
            x = weights[pair.ours]
            theirs[pair.theirs[0][0]] = x.transpose(0, -1) if "transposed" in pair.words else x
    peer.load_state_dict(theirs)
    return peer


def hugging_face(peer: Any) -> Write:
    from transformers import GenerationConfig

    @torch.inference_mode()
    def write(prompts: Ids, count: int) -> Ids:
        read, marks = torch.tensor(prompts), {"eos_token_id": EOS, "pad_token_id": EOS}
        settings = GenerationConfig(max_new_tokens=count, min_new_tokens=count, do_sample=False, **marks)
        found = peer.generate(read, attention_mask=torch.ones_like(read), generation_config=settings)
        return found[:, read.shape[1] :].tolist()

    return write


def timed(write: Write, prompts: Ids, count: int) -> tuple[Ids, float]:
    start = time.perf_counter()
    found = write(prompts, count)
    return found, time.perf_counter() - start


def compete(contestants: dict[str, list[Write]], prompts: Ids, count: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Of each contestant, tokens a second in each round: `prefill` and `decode`."""
    chosen, said = {}, {}
    for name, settings in contestants.items():
        settings[0](prompts, 2)
        tries = [min(timed(write, prompts, count) for _ in range(2)) for write in settings]
        quickest = min(range(len(settings)), key=lambda i: tries[i][1])
        chosen[name], said[name] = settings[quickest], tries[quickest][0]
    exact = {str(said[name]) for name in said if name in ("regard", "regard torch", "Hugging Face")}
    assert len(exact) == 1, "they say different things"
    figures: dict[str, dict[str, Any]] = {name: {"prefill": [], "decode": []} for name in contestants}
    for _ in range(rounds):
        for name, write in chosen.items():
            first, all_of_them = (timed(write, prompts, n)[1] for n in (1, count))
            figures[name]["prefill"].append(sum(map(len, prompts)) / first)
            figures[name]["decode"].append(len(prompts) * (count - 1) / (all_of_them - first))
    return figures


def table(title: str, figures: dict[str, dict[str, Any]]) -> Table:
    result = Table(title=title)
    for column in ("", "prefill, tokens/s", "regard: prefill", "decode, tokens/s", "regard: decode"):
        result.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, rounds in figures.items():
        cells = []
        for task, own in rounds.items():
            ratios = [a / b for a, b in zip(figures[OURS.get(name, "regard")][task], own, strict=True)]
            cells += [f"{statistics.median(own):,.0f}", f"{statistics.median(ratios):.2f}x"]
        result.add_row(name, *cells)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=[*VOCABULARY], help=f"some of {', '.join((*VOCABULARY, *REAL))}")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8], help="prompts at a time")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=17, help="tokens that follow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0], *map(int, args.serve[1:]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for shape in args.shapes:
            compared(shape, Path(folder), args)


def compared(shape: str, folder: Path, args: argparse.Namespace) -> None:
    """The tables of one shape."""
    files: dict[str, Path] = {}
    if shape in REAL:
        from transformers import AutoModelForCausalLM

        import_(shape, folder / shape)
        of = storage.load(folder / shape)
        export(folder / shape, folder / f"{shape}-hf", "hf")
        peer = AutoModelForCausalLM.from_pretrained(folder / f"{shape}-hf", dtype=torch.float32).eval()
        if importlib.util.find_spec("xllamacpp"):
            for bits in ("f16", "q8_0", "q4_1"):
                files[f"llama.cpp {bits.upper()}"] = folder / f"{shape}-{bits}.gguf"
                export(folder / shape, files[f"llama.cpp {bits.upper()}"], quantization=bits)
    else:
        of = model(shape)
        peer = random_peer(of)
    assert isinstance(of, Decoder)
    contestants = {
        "regard": native(of),
        "regard torch": in_torch(ours(Module(of))),
        "Hugging Face": in_torch(hugging_face(peer)),
        "regard bf16": native(copy.deepcopy(of).bfloat16()),
        "regard int8": native(quantise(copy.deepcopy(of))),  # type: ignore[arg-type]
        "regard int4": native(quantise(copy.deepcopy(of), 4)),  # type: ignore[arg-type]
    }
    for batch in args.batch:
        peers = {name: llama_cpp(path, batch, args.prompt + args.new) for name, path in files.items()}
        prompts = torch.randint(3, of.config.vocabulary, (batch, args.prompt)).tolist()
        figures = compete(contestants | peers, prompts, args.new, args.rounds)
        Console(width=120).print(table(f"{shape}, {batch} x {args.prompt} + {args.new} tokens", figures))


if __name__ == "__main__":
    main()
