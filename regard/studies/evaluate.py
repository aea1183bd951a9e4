"""`regard evaluate`: every figure about a model on one text."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.api import load, told
from regard.data.documents import TextFiles
from regard.data.text import read_parallel
from regard.evaluation.calibration import check_picture, perplexity, reliability
from regard.evaluation.calibration import picture as draw
from regard.evaluation.texts import compare
from regard.files import write_whole
from regard.shipped import located
from regard.studies.judging import beside, within
from regard.tasks.generate import Generate
from regard.tasks.task import Evidence
from regard.tasks.translate import Translate
from regard.training.validation import foretell as foretell_pairs

OF_TOKENS = ("loss", "perplexity", "accuracy", "ece")  # figures that compare models of the same sub-words


def foretell(
    directory: Path, text: Path, stride: int | None = None, block: int | None = None, against: Path | None = None
) -> dict[str, Any]:
    """How well a language model foretells a text: every figure of `Generate.foretell`, and what it was taken of; with
    intervals, and beside the model `against` it. It looks back over a `block`, which is that of its training if left
    out."""
    passages = list(TextFiles(str(text)).read())
    if not passages:
        raise ValueError(f"{text} holds no text: there is nothing to foretell")

    def seen(directory: Path) -> tuple[Evidence, Any, str]:
        model, task = load(directory, task="generate"), told(located(directory)).task
        assert isinstance(task, Generate)
        if block is not None and model.reach is not None and block > model.reach:
            raise ValueError(f"block = {block}: {directory} has {model.reach} places, and looks no further back")
        task = replace(task, block=block or min(task.block, model.reach or task.block))
        step = stride or max(1, task.block // 2)
        return task.evidence(model, passages, step), model, f"{task.block} by {step}"

    ours, model, window = seen(directory)
    size = {"characters": sum(len(passage.text) for passage in passages)}
    found = {"window": window, **size, **ours.figures(np.arange(ours.rows)), **_weighed(ours)}
    if against is not None:
        theirs, other, _ = seen(against)
        found["against"] = _against(ours, theirs, (model, other))
    return found


def _weighed(evidence: Evidence) -> dict[str, Any]:
    """The intervals of what there are several rows of."""
    return {"figures": within(evidence)} if evidence.rows > 1 else {}


def _against(ours: Evidence, theirs: Evidence, readers: Sequence[Any]) -> dict[str, Any]:
    """What another model has of the same text: figures of tokens only where both have the same ones."""
    assert ours.right is not None
    assert theirs.right is not None
    first, second = (reader.tokenizer.rust.get_vocab() for reader in readers)
    figures = theirs.figures
    if first != second or len(ours.right) != len(theirs.right):
        figures = lambda some: {name: x for name, x in theirs.figures(some).items() if name not in OF_TOKENS}  # noqa: E731
    return beside(ours, theirs._replace(figures=figures))


def evaluate(
    directory: Path,
    source: Path,
    reference: Path,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    split: bool | None = None,
    tokenize: str | None = None,
    lowercase: bool | None = None,
    picture: Path | None = None,
    output: Path | None = None,
    against: Path | None = None,
) -> dict[str, Any]:
    """The figures that the recipe has named, as BLEU and chrF, of the model's translations of `source`; how well it
    foretells `reference`, and how surely; all with their intervals, and beside the model `against` it, which is scored
    in the same way.

    A pair with a side that is longer than the model can read is `left_out` of what is foretold, and counted. How the
    lines were read for translation is said by `read`; what is foretold is whole lines.
    """
    task = told(located(directory)).task
    given = task if isinstance(task, Translate) else Translate()  # one that fills gaps is scored as any other
    tokenize = given.tokenize if tokenize is None else tokenize
    lowercase = given.lowercase if lowercase is None else lowercase
    how: Any = {"tokenize": tokenize, "lowercase": lowercase, "stem": given.stem}
    compare(given.by, ["a"], ["a"], **how)  # a wrong name must not cost a translation
    if picture is not None:
        check_picture(picture)
    sources, targets = zip(*read_parallel(source, reference), strict=True)
    whole = [n for n, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))]
    if not whole:
        raise ValueError(f"{source} and {reference} hold no pair of sentences")

    def seen(directory: Path, output: Path | None) -> tuple[Evidence, Any, dict[str, Any]]:
        translator = load(directory, task="translate")
        config: Any = translator.model.config
        encode, longest = translator.tokenizer.encode, config.longest
        order = -1 if translator.backward else 1
        ids = {n: (encode(sources[n]), encode(targets[n])[::order]) for n in whole}
        short = {n: pair for n, pair in ids.items() if longest is None or max(map(len, pair)) < longest}  # beside ends
        if not short:
            raise ValueError(
                f"every pair of {source} and {reference} is longer than the {longest} tokens the model reads"
            )
        references = [translator.tokenizer.joined(text) for text in targets]
        if split is not None:
            translator.decode = replace(translator.decode, split=split)
        said = list(translator.translate_lines(sources, beam=beam, alpha=alpha))
        if output is not None:
            write_whole(output, "".join(f"{line}\n" for line in said))
        foretold = foretell_pairs(translator.model, short.values())
        scores = compare(given.by, said, references, **how)
        of = np.repeat([*short], [len(target) + 1 for _, target in short.values()])  # the line of each token
        confidence, right = foretold.confidence.double().numpy(), foretold.correct.numpy()
        nats = -foretold.log_likelihood.double().numpy()

        made = {name: score.signature for name, score in scores.items()}

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            times = np.bincount(some, minlength=len(sources))[of]
            times = times if times.any() else np.ones_like(times)  # of lines that were left out
            loss, accuracy = (float(x @ times / times.sum()) for x in (nats, right))
            of_tokens = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}
            ece = reliability(np.repeat(confidence, times), np.repeat(right, times)).ece
            return {**{name: score.of(some) for name, score in scores.items()}, **of_tokens, "ece": ece}

        return (
            Evidence(len(sources), figures, confidence, right, made),
            translator,
            {
                "sentences": len(sources),
                "tokens": len(right),
                "left_out": len(ids) - len(short),
                "read": translator.reads,
                **{key: {"name": s.name, "score": s.value, "signature": s.signature} for key, s in scores.items()},
                "loss": foretold.loss,
                "perplexity": perplexity(foretold.loss, 1),
                "accuracy": foretold.accuracy,
            },
        )

    ours, translator, found = seen(directory, output)
    assert ours.confidence is not None
    assert ours.right is not None
    trust = reliability(ours.confidence, ours.right)
    if picture is not None:
        draw(trust, picture)
    found |= {"ece": trust.ece, **_weighed(ours)}
    if against is not None:
        theirs, other, _ = seen(against, None)
        found["against"] = _against(ours, theirs, (translator, other))
    return found
