"""`regard evaluate`: every figure about a model on one text."""

import math
from pathlib import Path
from typing import Any

from regard import recipe as recipes
from regard.api import load
from regard.data.text import read_lines
from regard.evaluation.calibration import picture as draw
from regard.evaluation.calibration import reliability
from regard.evaluation.translation import bleu, chrf
from regard.files import write_whole
from regard.recipe import EvaluateConfig
from regard.training.validation import foretell


def evaluate(
    directory: Path,
    source: Path,
    reference: Path,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    tokenize: str | None = None,
    lowercase: bool | None = None,
    picture: Path | None = None,
    output: Path | None = None,
) -> dict[str, Any]:
    """BLEU and chrF of the model's translations of `source`; how well it foretells `reference`, and how surely."""
    translator = load(directory)
    recipe = directory / "recipe.yaml"
    given = recipes.load(str(recipe)).evaluate if recipe.exists() else EvaluateConfig()
    tokenize = given.tokenize if tokenize is None else tokenize
    lowercase = given.lowercase if lowercase is None else lowercase
    bleu(["a"], ["a"], tokenize=tokenize)  # an unknown name must not cost a translation
    sources, targets = list(read_lines(source)), list(read_lines(reference))
    if len(sources) != len(targets):
        raise ValueError(
            f"{source} has {len(sources):,} lines and {reference} has {len(targets):,}: they must be as many"
        )
    pairs = [pair for pair in zip(sources, targets, strict=True) if all(map(str.strip, pair))]
    if not pairs:
        raise ValueError(f"{source} and {reference} hold no pair of sentences")
    references = [translator.tokenizer.joined(text) for text in targets]
    said = translator.translate(sources, beam=beam, alpha=alpha)
    if output is not None:
        write_whole(output, "".join(f"{line}\n" for line in said))
    encode = translator.tokenizer.encode
    seen = foretell(translator.model, [(encode(source), encode(target)) for source, target in pairs])
    trust = reliability(seen.confidence.numpy(), seen.correct.numpy())
    if picture is not None:
        draw(trust, picture)
    scores = {
        "bleu": bleu(said, references, tokenize=tokenize, lowercase=lowercase),
        "chrf": chrf(said, references, lowercase=lowercase),
    }
    return {
        "sentences": len(sources),
        "tokens": len(seen.correct),
        **{key: {"name": s.name, "score": s.value, "signature": s.signature} for key, s in scores.items()},
        "loss": seen.loss,
        "perplexity": math.exp(seen.loss),
        "accuracy": seen.accuracy,
        "ece": trust.ece,
    }
