"""`regard evaluate`: every figure about a model on one text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.api import load, told
from regard.data.documents import TextFiles
from regard.data.text import read_parallel
from regard.evaluation.calibration import check_picture, perplexity, reliability
from regard.evaluation.calibration import picture as draw
from regard.evaluation.texts import compare
from regard.files import write_whole
from regard.shipped import located
from regard.tasks.generate import Generate
from regard.tasks.translate import Translate
from regard.training.validation import foretell as foretell_pairs


def foretell(directory: Path, text: Path, stride: int | None = None, block: int | None = None) -> dict[str, Any]:
    """How well a language model foretells a text: every figure of `Generate.foretell`, and what it was taken of. It
    looks back over a `block`, which is that of its training if left out."""
    model, task = load(directory, task="generate"), told(located(directory)).task
    assert isinstance(task, Generate)
    passages = list(TextFiles(str(text)).read())
    if block is not None and model.reach is not None and block > model.reach:
        raise ValueError(f"block = {block}: {directory} has {model.reach} places, and looks no further back")
    task = replace(task, block=block or min(task.block, model.reach or task.block))
    stride = stride or max(1, task.block // 2)
    size = {"characters": sum(len(passage.text) for passage in passages)}
    return {"window": f"{task.block} by {stride}", **size, **task.foretell(model, passages, stride)}


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
) -> dict[str, Any]:
    """The figures that the recipe has named, as BLEU and chrF, of the model's translations of `source`; how well it
    foretells `reference`, and how surely.

    A pair with a side that is longer than the model can read is `left_out` of what is foretold, and counted. How the
    lines were read for translation is said by `read`; what is foretold is whole lines.
    """
    translator = load(directory, task="translate")
    task = told(located(directory)).task
    given = task if isinstance(task, Translate) else Translate()  # one that fills gaps is scored as any other
    tokenize = given.tokenize if tokenize is None else tokenize
    lowercase = given.lowercase if lowercase is None else lowercase
    how: Any = {"tokenize": tokenize, "lowercase": lowercase, "stem": given.stem}
    compare(given.by, ["a"], ["a"], **how)  # a wrong name must not cost a translation
    if picture is not None:
        check_picture(picture)
    sources, targets = zip(*read_parallel(source, reference), strict=True)
    pairs = [pair for pair in zip(sources, targets, strict=True) if all(map(str.strip, pair))]
    if not pairs:
        raise ValueError(f"{source} and {reference} hold no pair of sentences")
    config: Any = translator.model.config
    encode, longest = translator.tokenizer.encode, config.longest
    order = -1 if translator.backward else 1
    ids = [(encode(source), encode(target)[::order]) for source, target in pairs]
    short = [pair for pair in ids if longest is None or max(map(len, pair)) < longest]  # an end is added to each side
    if not short:
        raise ValueError(f"every pair of {source} and {reference} is longer than the {longest} tokens the model reads")
    references = [translator.tokenizer.joined(text) for text in targets]
    if split is not None:
        translator.decode = replace(translator.decode, split=split)
    said = list(translator.translate_lines(sources, beam=beam, alpha=alpha))
    if output is not None:
        write_whole(output, "".join(f"{line}\n" for line in said))
    seen = foretell_pairs(translator.model, short)
    trust = reliability(seen.confidence.numpy(), seen.correct.numpy())
    if picture is not None:
        draw(trust, picture)
    scores = compare(given.by, said, references, **how)
    return {
        "sentences": len(sources),
        "tokens": len(seen.correct),
        "left_out": len(ids) - len(short),
        "read": translator.reads,
        **{key: {"name": s.name, "score": s.value, "signature": s.signature} for key, s in scores.items()},
        "loss": seen.loss,
        "perplexity": perplexity(seen.loss, 1),
        "accuracy": seen.accuracy,
        "ece": trust.ece,
    }
