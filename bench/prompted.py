"""A language model that is asked for the sentiment of reviews, after so many examples: accuracy, calibrated or not.

    python bench/prompted.py runs/smollm2 SST2 [--shots 0 1 4 8] [--seeds 5] [--balanced]

The protocol of Zhao et al. (2021), "Calibrate Before Use": the prompt `Review: ...`, `Answer: Positive`, examples drawn
from train.tsv.gz by each seed, 300 reviews of dev.tsv. Accuracy is the mean over seeds ± its deviation, and so is the
share of reviews that are called positive. With --alone, each text is also read by itself, for the time that this takes.
"""

import argparse
import time
from pathlib import Path
from random import Random

import numpy as np

from regard.api import load
from regard.tasks.classify import LabelledFiles
from regard.tasks.prompted import CONTENT_FREE, drawn

PROMPT, LABELS = "Review: {text}\nAnswer: {label}", {"0": "Negative", "1": "Positive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--shots", type=int, nargs="*", default=[0, 1, 4, 8])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--balanced", action="store_true", help="draw as many examples of each label")
    parser.add_argument("--alone", action="store_true", help="also read each text by itself")
    parser.add_argument("--engine", default="auto")
    args = parser.parse_args()
    train, dev = (read(args.data / name) for name in ("train.tsv.gz", "dev.tsv"))
    some = Random(0).sample(dev, args.texts)
    texts, truth = [row["text"] for row in some], np.array([int(row["label"]) for row in some])
    model = load(args.model, engine=args.engine)
    print(f"{args.texts} reviews, {truth.mean():.1%} positive")
    for shots in args.shots:
        found = []
        for seed in range(args.seeds if shots else 1):
            rows = drawn(train, shots, LABELS if args.balanced else (), seed)
            asked, began = model.prompted(PROMPT, LABELS, rows), time.perf_counter()
            p, free = (probabilities(asked, given) for given in (texts, list(CONTENT_FREE)))
            took = time.perf_counter() - began
            plain, calibrated = p.argmax(1), (p / free.mean(0)).argmax(1)
            found.append([x for told in (plain, calibrated) for x in ((told == truth).mean(), told.mean())])
            shown = "".join(row["label"] for row in rows)
            print(
                f"{shots} shots {shown:8} p_cf {free.mean(0)[1]:.3f}", *(f"{x:.3f}" for x in found[-1]), f"{took:.1f} s"
            )
            if args.alone:
                began = time.perf_counter()
                assert np.allclose([probabilities(asked, [text])[0] for text in texts], p, atol=1e-5)
                print(f"  each by itself {time.perf_counter() - began:.1f} s")
        mean, deviation = np.mean(found, 0), np.std(found, 0)
        names = ("plain", "called positive", "calibrated", "called positive")
        each = zip(names, mean, deviation, strict=True)
        print(f"{shots} shots:", ", ".join(f"{name} {100 * m:.1f} ± {100 * d:.1f}" for name, m, d in each), flush=True)


def read(path: Path) -> list[dict[str, str]]:
    rows = LabelledFiles.at(path, ["text=sentence", "label=label"]).read()
    return [{"text": row["text"].strip(), "label": row["label"]} for row in rows]


def probabilities(asked, texts):  # type: ignore[no-untyped-def]
    return np.array([[each.probabilities[label] for label in LABELS] for each in asked.classify(texts)])


if __name__ == "__main__":
    main()
