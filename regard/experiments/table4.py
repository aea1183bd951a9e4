"""Table 4 (§6.3): English constituency parsing, where a sequence model writes the tree of a sentence in line.

The models read words and write brackets (Vinyals et al., 2015). A rule holds a search to trees: without it, some
outputs are none. What a tree is worth, evalb's measure says.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard.api import load
from regard.data.corpora import obtain
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.treebank import LEAF, Tree, from_linear, leaves, linear, read_trees, spans, word_class
from regard.decoding.grammar import TreeRule
from regard.decoding.pool import search
from regard.decoding.protocol import SearchConfig
from regard.evaluation.parsing import Brackets, Span, compare
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, page, table
from regard.experiments.runs import trained
from regard.files import write_whole
from regard.recipes.recipe import ModelConfig, Recipe
from regard.tasks.asks import DecodeConfig
from regard.tasks.translate import DataConfig, EvaluateConfig
from regard.training.config import TrainConfig
from regard.training.optimisers import OptimiserConfig
from regard.training.schedules import ScheduleConfig

LENGTHS = (10, 20, 30, 40, 1000)  # words; sentences up to each, and above the one before
# F1 on section 23 as Table 4 gives it, of the parsers there that write trees in line: trained on the Wall Street
# Journal only, and with millions of sentences that other parsers had parsed.
PAPER = {"Transformer (4 layers)": (91.3, 92.7), "LSTM with attention (Vinyals et al., 2015)": (88.3, 92.1)}
NAMES = {"transformer": "Transformer", "lstm": "LSTM with attention", "right": "right-branching", "flat": "one bracket"}

Trees = dict[str, list[Tree]]  # by split


def trials(scale: str) -> list[Trial]:
    """Two baselines that learn nothing, and two models."""
    # The sample has a twelfth of the sentences: small models, much dropout, many epochs.
    data: dict[str, Any] = {"corpus": "treebank-en-trees", "rare": 3}
    models: dict[str, dict[str, Any]] = {
        "transformer": {"preset": "tiny", "norm": "pre", "dropout": 0.3},
        "lstm": {"preset": "lstm", "dropout": 0.3},
    }
    train: dict[str, Any] = {"epochs": 15, "batch_tokens": 2048, "average": 5, "snapshot_every": 50}
    train |= {"optimiser": {"name": "muon"}, "schedule": {"peak": 0.008, "warmup": 200}, "validate_sentences": 100}
    decode = {"beams": [1, 4], "alpha": 0.6, "extra": 200}
    if scale == "smoke":
        data |= {"longest": 12, "first": 60}
        models["transformer"] |= {"d_model": 32, "d_ff": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
        models["lstm"] |= {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
        train |= {"epochs": 6, "batch_tokens": 512, "average": 0, "validate_every": 100, "validate_sentences": 10}
        decode |= {"beams": [1, 2], "extra": 30}
    if scale == "full":  # §6.3: 4 layers, d_model 1024, beam 21, α = 0.3, outputs 300 longer. Vinyals: 3 layers of 256
        data = {"corpus": "wsj-en-trees", "rare": 2}
        models["transformer"] = {"preset": "big", "dropout": 0.3, "encoder_layers": 4, "decoder_layers": 4}
        models["lstm"] |= {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256}
        train |= {"optimiser": {"name": "adam"}, "schedule": {"name": "paper", "warmup": 4000}}
        train |= {"epochs": 100, "batch_tokens": 16_384, "snapshot_every": 500, "validate_sentences": 500}
        decode |= {"beams": [1, 21], "alpha": 0.3, "extra": 300}
    return [
        Trial("baselines", baselines, {key: value for key, value in data.items() if key != "rare"}),
        *(Trial(name, parser, {**data, "model": model, "train": train, **decode}) for name, model in models.items()),
    ]


def baselines(folder: Path, console: Console, *, corpus: str, longest: int = 1000, first: int = 0) -> Result:
    """The right-branching tree with the commonest label, and one bracket around all words."""
    trees = _trees(corpus, longest, first)
    ends: Counter[str] = Counter()  # labels of what reaches the last word but one, where a full stop follows it
    for tree in trees["train"]:
        n = len(leaves(tree))
        ends.update(label for label, start, end in spans(tree)[1:] if end == n - 1 > start + 1)
    inner, outer = (each.most_common(1)[0][0] for each in (ends, Counter(tree.label for tree in trees["train"])))
    right, flat = [], []
    for tree in trees["test"]:
        n = len(leaves(tree))
        flat.append([f"({outer}", *[LEAF] * n, f"){outer}"])
        deep = max(n - 3, 0)  # (S XX (VP XX (VP XX XX )VP )VP XX )S: the last one stands outside, as a full stop does
        begin, end = [f"({outer}", LEAF, *[f"({inner}", LEAF] * deep], [f"){inner}"] * deep
        right.append([*begin, *[LEAF] * (n - 2 - deep), *end, *[LEAF] * min(n - 1, 1), f"){outer}"])
    return {
        "right": judged(trees["test"], right),
        "flat": judged(trees["test"], flat),
        "sentences": {split: len(some) for split, some in trees.items()},
        "labels": [outer, inner],
    }


def parser(
    folder: Path,
    console: Console,
    *,
    corpus: str,
    rare: int,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    beams: Sequence[int],
    alpha: float,
    extra: int,
    longest: int = 1000,
    first: int = 0,
) -> Result:
    """Train a model to write trees, and judge those that it writes, held to the rule of trees and free."""
    trees = _trees(corpus, longest, first)
    files = _texts(trees, rare, folder.absolute() / "text")  # as a recipe holds them
    result = trained(recipe(files, model, train, extra), folder / "model", console, name=f"table4 {model['preset']}")
    translator = load(folder / "model")
    engine, encode = translator.searchable, translator.tokenizer.encode_batch
    rule = _rule(translator.tokenizer, trees["train"])
    sources = Path(files["test"].source or "").read_text("utf-8").splitlines()
    for held in (True, False):
        for beam in beams:
            how = SearchConfig(beam=beam, alpha=alpha, extra=extra)
            requests = [
                how.request([*ids, translator.eos], translator.bos, rule=rule if held else None)
                for ids in encode(sources)
            ]
            workers = torch.get_num_threads() if engine.ragged else 1
            found = search(engine, requests, how, translator.eos, workers=workers)
            written = [translator.tokenizer.pieces(best.tokens) for best, *_ in found]
            result[f"{'held' if held else 'free'} {beam}"] = judged(trees["test"], written)
    return result


def recipe(files: dict[str, PairFiles], model: Mapping[str, Any], train: Mapping[str, Any], extra: int) -> Recipe:
    """A run on words and trees in line, as any translation."""
    rates = {"optimiser": OptimiserConfig(**train["optimiser"]), "schedule": ScheduleConfig(**train["schedule"])}
    return Recipe(
        description="trees in line, of words; a rare word is its class",
        data=DataConfig(languages=("en", "trees"), max_length=400, **files),  # type: ignore[arg-type]
        tokens=TokensConfig(kind="none", size=0),
        model=ModelConfig(model["preset"], {key: value for key, value in model.items() if key != "preset"}),
        train=TrainConfig(**{**train, **rates}),
        decode=DecodeConfig(beam=1, extra=extra),
        evaluate=EvaluateConfig(tokenize="none"),
    )


def judged(trees: Sequence[Tree], written: Sequence[Sequence[str]]) -> Result:
    """What trees in line are worth beside those of the treebank; what is none has no bracket at all."""
    sums, well_formed = dict.fromkeys(LENGTHS, Brackets()), 0
    for tree, tokens in zip(trees, written, strict=True):
        words, guess = [(leaf.label, leaf.word) for leaf in leaves(tree)], list[Span]()
        try:
            guess = spans(from_linear(tokens, words))
            well_formed += 1
        except ValueError:
            pass
        group = next(length for length in LENGTHS if len(words) <= length)
        sums[group] += compare(spans(tree), guess, [tag for tag, _ in words])
    total = sum(sums.values(), Brackets())
    return {
        **{name: getattr(total, name) for name in ("f1", "precision", "recall", "exact")},
        "well formed": 100 * well_formed / len(trees),
        "by length": {str(length): [counts.sentences, counts.f1] for length, counts in sums.items()},
    }


def _trees(corpus: str, longest: int, first: int) -> Trees:
    """The cleaned trees of each split: those of at most `longest` words, the `first` of them if it is not 0."""
    found = {}
    for split, files in obtain(corpus).items():
        path = Path(files.target or "").with_suffix(".mrg")
        trees = read_trees(path.read_text("utf-8").splitlines(), str(path))
        chosen = [tree for tree in trees if len(leaves(tree)) <= longest]
        found[split] = chosen[:first] if first else chosen
    return found


def _texts(trees: Trees, rare: int, folder: Path) -> dict[str, PairFiles]:
    """Words and trees in line, as files.

    A word is in small letters; one with a digit in it, or that the training trees hold less than `rare` times, is its
    class.
    """
    seen = Counter(leaf.word.lower() for tree in trees["train"] for leaf in leaves(tree))
    known = {word for word, count in seen.items() if count >= rare and not any(map(str.isdigit, word))}
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, some in trees.items():
        read = [[leaf.word for leaf in leaves(tree)] for tree in some]
        source = [" ".join(word.lower() if word.lower() in known else word_class(word) for word in row) for row in read]
        target = [" ".join(linear(tree)) for tree in some]
        files[split] = PairFiles(source=str(folder / f"{split}.en"), target=str(folder / f"{split}.trees"))
        for path, lines in ((files[split].source, source), (files[split].target, target)):
            write_whole(str(path), "".join(f"{line}\n" for line in lines))
    return files


def _rule(tokenizer: Tokenizer, trees: Sequence[Tree]) -> TreeRule:
    """The rule of trees with the labels of these ones, over a tokenizer's ids."""
    labels = sorted({label for tree in trees for label, _, _ in spans(tree)})
    opening, closing = (tokenizer.encode(" ".join(mark + label for label in labels)) for mark in "()")
    (leaf,) = tokenizer.encode(LEAF)
    return TreeRule(dict(zip(opening, closing, strict=True)), leaf, *tokenizer.marks.need("eos"))


def report(results: Results, scale: str) -> Findings:
    """Our figures, the paper's, what the rule does, and how it goes with length."""
    base, models = results["baselines"], {NAMES[name]: each for name, each in results.items() if name != "baselines"}
    beams = [int(key.split()[1]) for key in models["Transformer"] if key.startswith("held ")]
    found = {name: each[f"held {beams[-1]}"] for name, each in models.items()}
    found |= {NAMES[name]: base[name] for name in ("right", "flat")}
    ahead, theirs = found["Transformer"]["f1"] - found["LSTM with attention"]["f1"], [f1 for f1, _ in PAPER.values()]
    counts = {high: found["Transformer"]["by length"][str(high)][0] for high in LENGTHS}
    f1 = {high: [each["by length"][str(high)][1] for each in found.values()] for high in LENGTHS if counts[high]}
    spans = {high: f"{low + 1} to {high} words" for low, high in pairwise((0, *LENGTHS))}
    spans[LENGTHS[-1]] = f"{LENGTHS[-2] + 1} or more words"

    def rows(some: Mapping[str, Result], *keys: str) -> list[list[object]]:
        return [[name, *(round(each[key], 1) for key in keys)] for name, each in some.items()]

    searched: list[list[object]] = []
    for (name, each), way, beam in product(models.items(), ("free", "held"), beams):
        ((_, *figures),) = rows({name: each[f"{way} {beam}"]}, "f1", "exact", "well formed")
        searched.append([f"{name}, {'held to trees' if way == 'held' else 'free'}", beam, *figures])
    cost = [
        [name, each["parameters"], round(each["epochs"], 1), each["flops"], each["perplexity"]]
        for name, each in models.items()
    ]
    text = page(
        "table4",
        beam=beams[-1],
        labels=base["labels"],
        sentences=base["sentences"],
        ahead=f"{abs(ahead):.1f} points of F1 {'ahead of' if ahead > 0 else 'behind'}",
        theirs=theirs[0] - theirs[1],
        sample="" if scale == "full" else f" {page('table4-sample')}",
        parsers=table(
            ["parser", "F1", "precision", "recall", "all brackets right (%)"],
            rows(found, "f1", "precision", "recall", "exact"),
        ),
        paper=table(["parser", "F1, WSJ only", "F1, semi-supervised"], [[name, *pair] for name, pair in PAPER.items()]),
        searched=table(["search", "beam", "F1", "all right (%)", "well-formed (%)"], searched),
        lengths=table(
            ["sentences of", "sentences", *found],
            [[spans[high], counts[high], *(round(x, 1) for x in each)] for high, each in f1.items()],
        ),
        cost=table(["model", "parameters", "epochs", "training FLOPs", "validation perplexity"], cost),
    )
    x, lines = [min(high, 50) for high in f1], zip(found, zip(*f1.values(), strict=True), strict=True)
    title = "Labelled brackets, by length of the sentence"
    return Findings(text, {"table4": Chart(title, "words, up to", "F1 (%)", [Series(n, x, y) for n, y in lines])})


EXPERIMENT = Experiment("table4", "Table 4: constituency parsing", trials, report)
