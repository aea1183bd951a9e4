"""`regard evaluate`: every figure about a model on one text."""

import math
import os
from pathlib import Path
from typing import Any

from regard import recipe as recipes
from regard.api import load
from regard.data.text import PairFiles, read_pairs
from regard.evaluation.calibration import picture as draw
from regard.evaluation.calibration import reliability
from regard.evaluation.translation import bleu, chrf
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
    pairs = list(read_pairs(PairFiles(str(source), str(reference))))
    if not pairs:
        raise ValueError(f"{source} and {reference} hold no pair of sentences")
    sources, references = [source for source, _ in pairs], [translator.tokenizer.joined(text) for _, text in pairs]
    said = translator.translate(sources, beam=beam, alpha=alpha)
    if output is not None:
        partial = output.with_name(f".{output.name}.tmp")
        partial.write_text("".join(f"{line}\n" for line in said), "utf-8")
        os.replace(partial, output)
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
        "sentences": len(pairs),
        "tokens": len(seen.correct),
        **{key: {"name": s.name, "score": s.value, "signature": s.signature} for key, s in scores.items()},
        "loss": seen.loss,
        "perplexity": math.exp(seen.loss),
        "accuracy": seen.accuracy,
        "ece": trust.ece,
    }
