"""A language model of characters, taught for the same minutes on the same cores: ours beside a loop of Hugging Face's.

    python bench/language.py [--minutes 3] [--planned 2000]

The text is tiny Shakespeare, split as nanoGPT splits it; the model has 4 layers of width 128 and reads 64 characters.
Theirs is `GPT2LMHeadModel` under AdamW with the settings of nanoGPT's recipe for a CPU (batches of 12, rate 1e-3 to
1e-4, 100 steps of warm-up, β₂ = 0.99, no dropout). Ours is `regard train shakespeare`. They train one after the other
for the same time in steps; both are judged by the same windows of the validation text, in nats a character.
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from regard.api import load
from regard.data.corpora import fetched
from regard.recipes import reading
from regard.recipes.train import train

BLOCK, ROWS = 64, 12
PEAK, LEAST, WARMUP = 1e-3, 1e-4, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--planned", type=int, default=2000, help="steps after which their rate is at its least")
    args = parser.parse_args()
    texts = {split: paths[0].read_text("utf-8") for split, paths in fetched("shakespeare").items()}
    symbols = sorted(set(texts["train"] + texts["valid"]))
    ids = {split: torch.tensor([symbols.index(c) for c in text]) for split, text in texts.items()}

    theirs, steps = taught(ids["train"], len(symbols), args.minutes, args.planned)
    print(
        f"theirs: {sum(p.numel() for p in theirs.parameters()):,} parameters, {steps:,} steps of {ROWS * BLOCK} tokens"
    )
    loss = judged(lambda x: theirs(x).logits, ids["valid"])
    print(f"theirs: validation loss {loss:.4f}")

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recipe = reading.load("shakespeare", [f"train.minutes={args.minutes}"])
        train(recipe, run, name="shakespeare", console=Console(quiet=True))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ours = load(run, engine="torch")
        own = {symbol: ours.tokenizer.encode(symbol)[0] for symbol in symbols}
        coded = torch.tensor([own[c] for c in texts["valid"]])
        found = judged(ours.model, coded)
        size = sum(p.numel() for p in ours.model.parameters())
        print(f"ours:   {size:,} parameters, {lines[-1]['step']:,} steps of {recipe.train.batch_tokens} tokens")
        print(f"ours:   validation loss {found:.4f}; theirs less ours {loss - found:+.4f}")


def taught(ids: torch.Tensor, vocabulary: int, minutes: float, planned: int) -> tuple[GPT2LMHeadModel, int]:
    """Their model after so many minutes of steps, and how many these were."""
    torch.manual_seed(1337)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"n_positions": BLOCK, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **shape, **none))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))
    step, spent = 0, 0.0
    while spent < 60 * minutes:
        begin = time.perf_counter()
        step += 1
        done = min(1.0, max(0, step - WARMUP) / (planned - WARMUP))
        rate = PEAK * step / WARMUP if step < WARMUP else LEAST + (PEAK - LEAST) * (1 + math.cos(math.pi * done)) / 2
        for group in adam.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(ids) - BLOCK, (ROWS,))
        rows = torch.stack([ids[start : start + BLOCK + 1] for start in starts])
        logits = model(rows[:, :-1]).logits
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        spent += time.perf_counter() - begin
    return model.eval(), step


@torch.inference_mode()
def judged(logits, ids: torch.Tensor) -> float:  # type: ignore[no-untyped-def]
    """Nats a character over all windows of a text, one after the other."""
    count = (len(ids) - 1) // BLOCK
    read, labels = ids[: count * BLOCK].view(count, BLOCK), ids[1 : count * BLOCK + 1].view(count, BLOCK)
    total = 0.0
    for x, y in zip(read.split(64), labels.split(64), strict=True):
        total += float(F.cross_entropy(logits(x).flatten(0, 1), y.flatten(), reduction="sum"))
    return total / (count * BLOCK)


if __name__ == "__main__":
    main()
