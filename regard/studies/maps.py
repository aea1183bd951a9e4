"""`regard inspect`: what the heads of a model look at while it works on a text or a picture, as one file."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from regard.api import Translator, load
from regard.core.added import added
from regard.core.added import without as switched_off
from regard.data.labelled_graphs import GraphFiles
from regard.files import write_whole
from regard.inspection.figures import to_csv, to_html, to_npz, to_png, to_svg
from regard.inspection.page import AttentionMap
from regard.inspection.taps import attentions
from regard.tasks.caption import Describer
from regard.tasks.grapher import GraphPredictor
from regard.tasks.hear import Hearer
from regard.tasks.look import Looker
from regard.tasks.match import Matcher
from regard.tasks.reader import Reader
from regard.tasks.viewer import Viewed, Viewer

DRAWINGS: dict[str, Callable[..., str | bytes]] = {".html": to_html, ".svg": to_svg, ".png": to_png}
NUMBERS: dict[str, Callable[..., str | bytes]] = {".npz": to_npz, ".csv": to_csv}
DRAWN = "*cross_attention"  # what a figure shows unless it is told: all attentions of a model are too many for one


class Inspected(NamedTuple):
    """What was written about."""

    title: str
    maps: list[AttentionMap]


def inspect(
    model: Path | None,
    text: str,
    output: Path,
    *,
    target: str | None = None,
    pair: str | None = None,
    names: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    view: str = "weights",
    words: bool = False,
    special: bool = True,
    split: bool | None = None,
    log: bool = False,
    without: Sequence[str] | None = None,
) -> Inspected:
    """Write the attention of a model, as it translates a text or reads a given translation of it, into a file.

    The ending of `output` says what it becomes. `names` are patterns of attentions; without them a figure shows those
    to the source, any other file all. Another model reads the text, or a pair, and a figure shows its last attention.
    Of a model that sees, `text` is the path of a picture, of which a figure shows all that looks at it.
    `without` names what was added to the model and is to be off; all is everything.
    """
    kind = output.suffix.lower()
    if kind not in DRAWINGS | NUMBERS:
        raise ValueError(f"{output}: the ending says what to write: choose one of {', '.join(DRAWINGS | NUMBERS)}")
    if log and kind in NUMBERS:
        raise ValueError(f"{output}: --log is about colours, and {kind} has none: leave it out")
    predictor, drawn_alone = load(model), kind in (".svg", ".png")
    read: Any = text
    if isinstance(predictor, GraphPredictor):
        if Path(text).is_file():  # of a file, its first graph
            read = next(Viewed(row["graph"], row["name"]) for row in GraphFiles.at(text).rows())
        if kind == ".html" and names is None and heads is None and view == "weights" and not without:
            write_whole(output, predictor.attention_page(read).encode())
            return Inspected(text, predictor.attention(read))
    if isinstance(predictor, Hearer):
        raise ValueError(f"{model} reads no text: its maps are taken by regard.record, not of a text")
    how: Any = {"heads": heads, "view": view, "special": special}
    off = switched_off(predictor.model, *(() if "all" in without else without)) if without else nullcontext()
    if without and not added(predictor.model):
        raise ValueError(f"--without {without[0]}: nothing was added to {model or 'this model'}: leave it out")
    if isinstance(predictor, Viewer | Matcher | Describer | Looker) and not isinstance(predictor, GraphPredictor):
        own = {"--target": target is not None, "--words": words, "--hide-special": not special}
        asked = {} if isinstance(predictor, Describer) else {"--words": words} if isinstance(predictor, Looker) else own
        two = isinstance(predictor, Matcher | Looker)
        asked |= {"--split": split is not None, "--pair": pair is not None and not two}
        for option, given in asked.items():
            if given:
                raise ValueError(f"{option} is not for {model}, which sees pictures: leave it out")
        with off:
            title, maps = _seen(predictor, text, target, pair, names, drawn_alone, {**how, "words": words})
        return _written(output, maps, title, _note(view, words, special, without or (), pictured=drawn_alone), log)
    if pair is not None and not isinstance(predictor, Reader):
        raise ValueError(
            f"--pair is for a model that reads two texts, and {model or 'this one'} does not: leave it out"
        )
    if isinstance(predictor, Translator):
        how |= {"words": words, "split": split, "keep": False}
        with off:
            maps = predictor.attention(text, target, names=names or (DRAWN if drawn_alone else "*"), **how)
            said = predictor.hypotheses(text, split=split, keep=False)[0].text if target is None else target
        title = " → ".join(predictor.tokenizer.joined(each.strip()) for each in (text, said))
    else:
        for option, given in {"--target": target is not None, "--split": split is not None}.items():
            if given:
                raise ValueError(f"{option} is for translations, and {model} reads one text: leave it out")
        how |= {"words": words} | ({"pair": pair} if isinstance(predictor, Reader) else {})
        last = [*attentions(predictor.model)][-1:] if drawn_alone else "*"
        with off:
            maps = predictor.attention(read, names=names or last, **how)
        title = " ║ ".join(each.strip() for each in (text, pair) if each)
    return _written(output, maps, title, _note(view, words, special, without or ()), log)


def _written(output: Path, maps: list[AttentionMap], title: str, note: str, log: bool) -> Inspected:
    kind = output.suffix.lower()
    if kind in NUMBERS:
        write_whole(output, NUMBERS[kind](maps))
    else:
        write_whole(output, DRAWINGS[kind](maps, title=title, note=note, log=log))
    return Inspected(title, maps)


def _seen(
    predictor: Any,
    picture: str,
    target: str | None,
    text: str | None,
    names: Sequence[str] | None,
    drawn_alone: bool,
    how: dict[str, Any],
) -> tuple[str, list[AttentionMap]]:
    """What is said of a picture, and the maps of what looks at it."""
    place = Path(picture).name
    if isinstance(predictor, Describer):
        shown = names or (DRAWN if drawn_alone and how["view"] != "rollout" else "*")
        said = predictor.caption(picture) if target is None else target
        return f"{place} → {said}", predictor.attention(picture, target, names=shown, **how)
    if isinstance(predictor, Looker):
        shown = names or ("decoder.*" if drawn_alone and how["view"] != "rollout" else "*")
        said = predictor.caption(picture, text) if target is None else target
        how = {**{name: how[name] for name in ("heads", "view", "special")}, "names": shown, "question": text}
        return f"{place} ║ {text or predictor.question} → {said}", predictor.attention(picture, said, **how)
    own = {name: how[name] for name in ("heads", "view")}
    if isinstance(predictor, Matcher):
        shown = names or ("picture_*" if drawn_alone else "*")
        maps = predictor.attention(picture, text, names=shown, **own)
        if text is None:
            return place, maps
        return f"{place} ║ {text}: cosine {predictor.compared(picture, [text]).bars[0][0].value:.3f}", maps
    told = predictor.pictured(Viewed(picture))
    return f"{place}: {told.said}", predictor.attention(picture, names=names or "*", **own)


def _note(view: str, words: bool, special: bool, without: Sequence[str], pictured: bool = False) -> str:
    """What has to be known to read the numbers."""
    notes = {
        "Lengths of the vectors that each key adds to each query, not weights.": view == "norm",
        "Attention through all layers up to each, residual connections included.": view == "rollout",
        "Over each picture, colours run up to its strongest patch, whose number stands above it.": pictured,
        "Sub-words are put together: sums over those of a key, means over those of a query.": words,
        "Start and end symbols are left out, and the rest of a row sums to 1.": not special and view == "weights",
        "Start and end symbols are left out.": not special and view == "norm",
        f"Of what was added to the model, {', '.join(without)} is off.": bool(without),
    }
    return " ".join(text for text, holds in notes.items() if holds)
