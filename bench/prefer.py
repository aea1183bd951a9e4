"""Peak memory and time of a step of DPO beside trl's DPOTrainer on a Llama of the same shape.

    python bench/prefer.py [stories15m] [smollm2-135m] [--pairs 8] [--length 256] [--rounds 3] [--lora 16]

One step is forward, loss, backward, clipping and Adam (fused), in fp32, on the same pairs: half of each text is its
prompt. trl holds the reference beside the model, or, as regard does, has asked it before (`precompute_ref_log_probs`).
Both are shown with each layer's activations made again on the way back, too (`train.recompute=layers`; trl's default,
`gradient_checkpointing`). With `--lora R` matrices of that rank beside all products learn, in both, and trl's reference
is the model without them. Each contestant has a process of its own, so that none inherits the other's heap. Peak memory
is what model and steps add to the resident set.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import PeakMemory
from rich.console import Console
from rich.table import Table
from torch import nn

from regard.adaptation.lora import Lora
from regard.models.decoder import FAMILY, Decoder
from regard.tasks.prefer import paired
from regard.training.config import TrainConfig
from regard.training.loop import Learner
from regard.training.objectives import Likelier
from regard.training.optimisers import OptimiserConfig

BETA, RATE = 0.1, 1e-6
NAMES = ("regard", "regard, layers twice", "trl", "trl, layers twice", "trl, reference asked before")
Step = Callable[[], None]


def pairs(vocabulary: int, count: int, length: int) -> list[Any]:
    """Random answers to random prompts, with what a reference might have said of them."""
    torch.manual_seed(1)
    rows = []
    for _ in range(count):
        prompt = torch.randint(3, vocabulary, (length // 2,)).tolist()
        both = [[*prompt, *torch.randint(3, vocabulary, (length - length // 2,)).tolist()] for _ in range(2)]
        rows.append((*both, [length // 2] * 2, [-1000.0, -1000.0]))
    return rows


def ours(config: Any, rows: list[Any], name: str, rank: int | None) -> Step:
    """As a run does it: a thread for each core."""
    torch.manual_seed(0)
    model = Decoder(config)
    if rank:
        model.requires_grad_(False)
        Lora(rank=rank, where=("all",)).apply(model)
    optimiser, again = OptimiserConfig("adam"), "layers" if name.endswith("twice") else "nothing"
    learner = Learner(
        Likelier(model, "dpo", BETA), lambda step: RATE, TrainConfig(steps=99, optimiser=optimiser, recompute=again)
    )
    batch = paired(rows)
    return lambda: void(learner.step([batch], batch.count))


def void(_: object) -> None:
    """Nothing."""


def llama(config: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads or config.heads,
            max_position_embeddings=config.max_length,
            tie_word_embeddings=True,
        )
    )


def theirs(config: Any, rows: list[Any], name: str, rank: int | None) -> Step:
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from trl import DPOConfig, DPOTrainer

    rust = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "c": 3}, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, unk_token="<unk>", pad_token="<unk>", eos_token="<unk>", bos_token="<unk>"
    )
    model, before, again = llama(config), name.endswith("before"), name.endswith("twice")
    alone = before or bool(rank)  # no other model is the reference
    with tempfile.TemporaryDirectory() as folder:
        how = {"output_dir": folder, "report_to": "none", "use_cpu": True, "bf16": False, "beta": BETA}
        trainer = DPOTrainer(
            model=model,
            ref_model=None if alone else llama(config),
            args=DPOConfig(**how, precompute_ref_log_probs=before, gradient_checkpointing=False),
            train_dataset=Dataset.from_list([{"prompt": "a ", "chosen": "b", "rejected": "c"}]),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM") if rank else None,
        )
    model = trainer.model
    trainer.ref_model = None if alone else trainer.ref_model
    tokens = torch.tensor([row[side] for side in (0, 1) for row in rows])
    answer = (torch.arange(tokens.shape[1]) >= rows[0][2][0]).long().expand_as(tokens)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "completion_mask": answer}
    if before:
        said = torch.full((len(rows),), -1000.0)
        batch |= {"ref_chosen_logps": said, "ref_rejected_logps": said}
    model.train()
    if again:  # as its `train()` does it, in place of the setting
        model.gradient_checkpointing_enable({"use_reentrant": False})
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learnt, RATE, fused=True)

    def step() -> None:
        trainer.compute_loss(model, dict(batch)).backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def work(name: str, config: Any, args: argparse.Namespace) -> None:
    """A contestant in its own process: the seconds of its quickest step, and its peak memory in MiB."""
    rows = pairs(config.vocabulary, args.pairs, args.length)
    if name.startswith("trl"):
        import trl  # noqa: F401  its imports do not count as memory
        from peft import LoraConfig  # noqa: F401
        from trl import DPOTrainer  # noqa: F401

        llama(config)
    best = float("inf")
    with PeakMemory() as peak:
        make = ours if name.startswith("regard") else theirs
        step = make(config, rows, name, args.lora)
        for _ in range(args.rounds):
            start = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - start)
    print(best, peak.mib, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["stories15m"])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lora", type=int, metavar="R")
    parser.add_argument("--only", help="contestants whose names have this")
    parser.add_argument("--work-as", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for shape in args.shapes:
        config = FAMILY.presets[shape]()
        if args.work_as:
            work(args.work_as, config, args)
            continue
        how = [shape, "--pairs", str(args.pairs), "--length", str(args.length), "--rounds", str(args.rounds)]
        how += ["--lora", str(args.lora)] if args.lora else []
        found = {}
        for name in (name for name in NAMES if (args.only or "") in name):
            done = subprocess.run(
                [sys.executable, __file__, *how, "--work-as", name], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-2000:]}")
            found[name] = [float(x) for x in done.stdout.splitlines()[-1].split()]
        learnt = f"LoRA of rank {args.lora}" if args.lora else "everything learns"
        table = Table(title=f"{shape}: a step of DPO, {args.pairs} pairs of 2 x {args.length} tokens, fp32, {learnt}")
        for column in ("", "seconds", "peak MiB", "of trl's"):
            table.add_column(column, justify="left" if not column else "right", no_wrap=True)
        for name, (seconds, mib) in found.items():
            table.add_row(
                name, f"{seconds:.2f}", f"{mib:,.0f}", f"{mib / found['trl'][1]:.2f}" if "trl" in found else ""
            )
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
