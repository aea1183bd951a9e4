"""`regard shortlist`: the candidates of each source token, learnt from text and kept beside the model."""

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.data.arrays import Table, pairs_of
from regard.data.lexicon import Coverage, coverage, learn_shortlist
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer
from regard.models import storage
from regard.native import Native, UnavailableError, UnsupportedError
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits
from regard.tasks.translate import Pair

ENCODED = 10_000  # pairs at a time
MEASURED = 2_000  # pairs on which the coverage is measured


class Made(NamedTuple):
    """A shortlist that was made."""

    pairs: int  # learnt from
    vocabulary: int
    coverage: Coverage  # of the first pairs it was learnt from


def make_shortlist(
    model_dir: str | Path,
    source: str | Path | None = None,
    target: str | Path | None = None,
    *,
    size: int = 100,
    common: int = 200,
) -> Made:
    """Write a model's shortlist into its directory, learnt from two parallel files, or from what it was trained on."""
    model_dir = Path(model_dir)
    tokenizer, vocabulary = Tokenizer.load(model_dir / "tokenizer.json"), storage.config(model_dir).vocabulary
    if len(tokenizer) != vocabulary:
        raise ValueError(f"{model_dir}: the tokenizer has {len(tokenizer):,} tokens and the model {vocabulary:,}")
    if (source is None) != (target is None):
        raise ValueError("source and target files come together: name both, or none to take the training text")
    try:
        Native(storage.load(model_dir))
    except UnsupportedError as error:
        raise ValueError(
            f"{model_dir}: shortlists are for the native engine, and it cannot run this model ({error})"
        ) from None
    except UnavailableError:
        pass  # no compiler here; the list may be for another machine
    text = _trained_on(model_dir) if source is None else PairFiles(str(source), str(target)).read()
    with tempfile.TemporaryDirectory() as folder:
        pairs = Table.build(Path(folder) / "pairs", _encoded(tokenizer, text), pairs_of(vocabulary))
        shortlist = learn_shortlist(pairs, vocabulary=vocabulary, marks=tokenizer.marks, size=size, common=common)
        shortlist.save(model_dir)
        some = pairs.rows(range(min(len(pairs), MEASURED)))
        return Made(len(pairs), vocabulary, coverage(shortlist, some))


def _trained_on(model_dir: Path) -> Iterator[Pair]:
    path = model_dir / "recipe.yaml"
    if not path.exists():
        raise ValueError(f"{model_dir} has no recipe.yaml that says what it was trained on: name --source and --target")
    recipe = recipes.load(str(path))
    return map(recipe.purpose().texts, islice(find_splits(recipe).rows("train"), recipe.data.limit))  # type: ignore[arg-type]


def _encoded(tokenizer: Tokenizer, text: Iterator[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    while some := list(islice(text, ENCODED)):
        sources, targets = (tokenizer.encode_batch(side) for side in zip(*some, strict=True))
        yield from zip(sources, targets, strict=True)
