"""regard for a person: `load` a model directory, and use it."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.core.quantised import is_quantised, quantise
from regard.data.lexicon import Shortlist
from regard.data.tokenizers import Tokenizer
from regard.models import storage
from regard.recipes import recipe as recipes
from regard.recipes.recipe import DataConfig
from regard.shipped import located
from regard.shipped import shipped as shipped  # regard.api.shipped() is part of this door
from regard.tasks.translate import Translator as Translator

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": None}


def load(
    directory: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "cpu",
    engine: str = "auto",
    workers: int | None = None,
    rows: int = 256,
    bitwise: bool = False,
    precision: str | None = None,
    shortlist: bool = False,
    rescore: str | Path | None = None,
    weight: float = 1.0,
) -> Translator:
    """The model in a directory that `regard train` has written; several directories make an ensemble.

    Without a directory, the model that comes with regard: English to Spanish, which also goes by its name, en-es.
    `engine` is native (compiled C, on the CPU), torch, or the first of them that there is; `workers` are threads.
    `precision` is that of the weights as they are on the disk, or fp32, bf16 (which native reads as fp32), int8.
    `shortlist` restricts the output to tokens that go with the source, as `regard shortlist` has learned it. `rescore`
    is another model, by whose word, of this `weight`, outputs are ranked as well.
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision = {precision!r}: choose one of {', '.join(PRECISIONS)}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {device!r} here ({str(error).splitlines()[0]}): use cpu") from None
    places = [located(directory)] if isinstance(directory, str | Path | None) else list(map(located, directory))
    if not places:
        raise ValueError("an ensemble has at least 1 model, got none")
    models = [storage.load(place, device=device, dtype=PRECISIONS.get(precision or "")) for place in places]
    if precision == "int8":
        models = [model if is_quantised(model) else quantise(model) for model in models]
    tokenizers = [Tokenizer.load(place / "tokenizer.json") for place in places]
    for place, tokenizer in zip(places, tokenizers, strict=True):
        if tokenizer.__reduce__() != tokenizers[0].__reduce__():
            raise ValueError(f"{places[0]} and {place} have different tokens: an ensemble shares one tokenizer")
    for place in places:
        if (known := storage.config(place).vocabulary) < (count := len(tokenizers[0])):
            raise ValueError(f"{place} has {count:,} tokens, and its model {known:,}: they do not belong together")
    all_told = [recipes.load(str(file)) if (file := place / "recipe.yaml").exists() else None for place in places]
    told, orders = all_told[0], [each is not None and each.data.target_order == "backward" for each in all_told]
    if len(set(orders)) > 1:
        raise ValueError("some of these models write from left to right and others not: an ensemble has one order")
    longest = DataConfig.max_length if told is None else told.data.max_length
    listed = Shortlist.load(places[0]) if shortlist else None
    if listed is not None and len(listed.offsets) - 1 != len(tokenizers[0]):
        raise ValueError(
            f"{places[0]} has a shortlist for {len(listed.offsets) - 1:,} tokens, not for its {len(tokenizers[0]):,}: "
            f"make it again with `regard shortlist {places[0]}`"
        )
    translator = Translator(
        models,
        tokenizers[0],
        recipes.imported_decode(places[0]) if told is None else told.decode,
        engine=engine,
        workers=workers,
        rows=rows,
        bitwise=bitwise,
        longest=longest,
        shortlists=listed,
        backward=orders[0],
    )
    if rescore is not None:
        if not 0.0 <= weight < math.inf:
            raise ValueError(f"weight = {weight}: that of a second opinion is at least 0")
        translator.second = load(rescore, device=device, precision=precision), weight
    return translator
