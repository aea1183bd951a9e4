"""Corpora by name: fetched once, checked, and kept as plain parallel text.

A corpus becomes a folder `corpora/<name>/` of the cache: `train.en`, `train.de`, the same for valid and test, and
LICENCE.txt. The cache is REGARD_CACHE, or XDG_CACHE_HOME/regard, or ~/.cache/regard. A folder REGARD_DATA that holds
the raw files already saves the fetching.
"""

import csv
import hashlib
import io
import json
import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard.checks import choose
from regard.data.digits import SpokenDigits
from regard.data.downloads import BLOCK, Held, Progress, Raw, alone, check_sum, data_folder, download, reading
from regard.data.labelled_pictures import PictureArrays
from regard.data.melodies import Melodies
from regard.data.moving import MovingPictures
from regard.data.scan import Commands
from regard.data.text import PairFiles, open_bytes
from regard.data.treebank import Treebank
from regard.files import cache_folder, common_directory, digest, write_whole

SPLITS = ("train", "valid", "test")
TERMS = ("name", "title", "licence", "credit", "origin")  # of a corpus, written beside it
HELD_OUT = 1_000  # sentences of a corpus that we split ourselves, in valid and in test


@dataclass(frozen=True)
class Texts:
    """Raw files that are parallel and split already, as `train.en` and `train.de`, each plain or `.gz`."""

    folder: str  # in REGARD_DATA and among the downloads
    stems: Sequence[str]  # what its files of train, valid and test are called
    sums: dict[str, str]  # sha256 of each text, unpacked: however it was packed
    url: str | None  # of `{name}`; None: nobody serves it

    def held(self, data: Path, languages: Sequence[str]) -> Held:
        """The files in a person's folder, by name: all of them or none."""
        names = [f"{stem}.{language}" for stem in self.stems for language in languages]
        files = [(name, data / self.folder / (name + packed)) for name in names for packed in ("", ".gz")]
        found = {name: path for name, path in files if path.is_file()}
        return found if len(found) == len(names) else {}

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The six files of the corpus, unpacked and checked."""
        if not held and self.url is None:
            source, target = corpus.languages
            raise ValueError(
                f"{corpus.name} has no public address: set REGARD_DATA to a folder with {self.folder}/ that holds "
                f"{', '.join(f'{stem}.{source}' for stem in self.stems)} and the same in .{target}, each plain or .gz"
            )
        for split, stem in zip(SPLITS, self.stems, strict=True):
            for language in corpus.languages:
                name = f"{stem}.{language}"
                path = held.get(name, cache_folder() / "downloads" / self.folder / f"{name}.gz")
                if self.url is not None and not path.exists():
                    download(self.url.format(name=name), path, progress=progress)
                text = into / f"{split}.{language}"
                with reading(path, ours=not held):
                    with open_bytes(str(path)) as packed, open(text, "wb") as file:
                        shutil.copyfileobj(packed, file, BLOCK)
                    check_sum(digest(text), self.sums[name])


@dataclass(frozen=True)
class TabbedZip(Raw):
    """A raw file of lines `source, target, attribution` between tabs, in a zip archive. We clean and split it."""

    member: str  # of the archive

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The six files of the corpus, and `attribution.tsv`: split, line, who wrote it."""
        with self.reading(held, progress) as read:
            rows = _parse(read(self.member))
            pairs, attributions = list(rows), list(rows.values())
            splits = split_pairs(pairs)
            if not all(splits.values()):
                raise ValueError(f"{len(pairs):,} pairs are too few to split")
        for split, chosen in splits.items():
            for side, language in enumerate(corpus.languages):
                _write(into / f"{split}.{language}", (pairs[i][side] for i in chosen))
        credits = (f"{split}\t{n}\t{attributions[i]}" for split in splits for n, i in enumerate(splits[split], 1))
        _write(into / "attribution.tsv", credits)


@dataclass(frozen=True)
class Text(Raw):
    """A raw text in one language, to model: split already, in members, or by us, after a share of its letters."""

    parts: dict[str, Any]  # split -> member, or [where it begins, where it ends], from 0 to 1

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """`train.txt` and so on."""
        with self.reading(held, progress) as read:
            for split, part in self.parts.items():
                text = read(part if isinstance(part, str) else "").decode()
                if not isinstance(part, str):
                    begin, end = (int(share * len(text)) for share in part)
                    text = text[begin:end]
                write_whole(into / f"{split}.txt", text)


@dataclass(frozen=True)
class LabelledRows(Raw):
    """A raw csv of texts and the numbers of their labels. We name the labels."""

    member: str  # of the archive
    columns: dict[str, str]  # text and label -> what its column is called
    labels: Sequence[str]  # by number
    parts: dict[str, Sequence[int]]  # split -> its first row, and the one after its last

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """`train.jsonl` and so on, an object a line with `text` and `label`."""
        with self.reading(held, progress) as read:
            rows = list(csv.DictReader(io.StringIO(read(self.member).decode(), newline="")))
        text, label = self.columns["text"], self.columns["label"]
        for split, (begin, end) in self.parts.items():
            found = (
                {"text": _clean(row[text].replace("<br />", " ")), "label": self.labels[int(row[label])]}
                for row in rows[begin:end]
            )
            _write(into / f"{split}.jsonl", (json.dumps(each, ensure_ascii=False) for each in found))


@dataclass(frozen=True)
class Dictionary(Raw):
    """Words and their sounds, a line each: `read R EH1 D`, `read(2) R IY1 D`. The numbers tell others, and stress.

    Letters become words of their own, and stress is left out. Each word goes to one split, with all its sounds.
    """

    member: str  # of the archive

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The six files of the corpus."""
        splits: dict[str, dict[tuple[str, str], None]] = {split: {} for split in SPLITS}
        with self.reading(held, progress) as read:
            for line in read(self.member).decode().splitlines():
                word, *sounds = line.partition("#")[0].split()
                spelt = " ".join(re.sub(r"\(\d+\)$", "", word))
                splits[split_of(spelt, 20)][spelt, re.sub(r"\d", "", " ".join(sounds))] = None
        for split, pairs in splits.items():
            for side, language in zip(zip(*pairs, strict=True), corpus.languages, strict=True):
                _write(into / f"{split}.{language}", side)


@dataclass(frozen=True)
class Corpus:
    """Text to train on, known by name."""

    name: str
    title: str
    languages: tuple[str, str]  # source, target; empty of what is one text
    pairs: int  # about, in all splits; of one text, its lines
    licence: str
    credit: str  # who made it
    origin: str  # how it is obtained
    form: Any  # one of FORMS
    splits: tuple[str, ...] = SPLITS


FORMS: dict[str, type[Any]] = {
    "texts": Texts,
    "table": TabbedZip,
    "text": Text,
    "rows": LabelledRows,
    "dictionary": Dictionary,
    "trees": Treebank,
    "commands": Commands,
    "pictures": PictureArrays,
    "moving": MovingPictures,
    "digits": SpokenDigits,
    "melodies": Melodies,
}


def _read_corpora() -> dict[str, Corpus]:
    """What `corpora.json` lists. An entry `like` another has of it what it does not say itself."""
    listed: dict[str, dict[str, Any]] = json.loads((files("regard") / "data" / "corpora.json").read_text("utf-8"))
    found = {}
    for name, own in listed.items():
        entry = listed[name] = listed.get(own.get("like", ""), {}) | own
        form = FORMS[entry["kind"]]
        given = {each.name: entry[each.name] for each in fields(Corpus) if each.name in entry}
        given |= {key: tuple(given[key]) for key in ("languages", "splits") if key in given}
        found[name] = Corpus(name=name, form=form(**{each.name: entry[each.name] for each in fields(form)}), **given)
    return found


CORPORA = _read_corpora()


def fetched(name: str, *, progress: Progress | None = None) -> dict[str, list[Path]]:
    """The files of a corpus by split, of pairs two, of a text or rows one: from the cache, or from REGARD_DATA or the
    network into the cache.

    `progress(what, bytes so far, bytes in all or None)` is called while something is fetched.
    """
    corpus, held, folder = _place(name)
    if not folder.is_dir():
        with alone():
            if not folder.is_dir():  # else another process was first
                with common_directory(folder) as made:
                    corpus.form.write(made, corpus, held, progress)
                    _write(made / "LICENCE.txt", (f"{key}: {getattr(corpus, key)}" for key in TERMS))
    ends: dict[Any, str] = {LabelledRows: "jsonl", SpokenDigits: "jsonl", Melodies: "abc"}
    ends |= dict.fromkeys((PictureArrays, MovingPictures), "npz")
    one = ends.get(type(corpus.form), "txt")
    endings = corpus.languages if any(corpus.languages) else (one,)
    return {split: [folder / f"{split}.{ending}" for ending in endings] for split in corpus.splits}


def obtain(name: str, *, progress: Progress | None = None) -> dict[str, PairFiles]:
    """The same of a corpus of pairs."""
    if name in CORPORA and not any(CORPORA[name].languages):
        raise ValueError(f"{name} is no corpus of pairs: choose one, such as multi30k-en-de")
    found = fetched(name, progress=progress)
    return {split: PairFiles(source=str(source), target=str(target)) for split, (source, target) in found.items()}


def located(name: str) -> Path | None:
    """The folder where a corpus is now: ready in the cache, or raw in REGARD_DATA, or None if it must be fetched."""
    _, held, folder = _place(name)
    if folder.is_dir():
        return folder
    return next((path.parent for path in held.values()), None)


def split_of(source: str, modulus: float, held_out: Sequence[str] = ("valid", "test")) -> str:
    """The split of a sentence and all its translations: one in `modulus` goes to valid, and one to test.

    A hash of its letters puts it into a place in [0, 1), the same on every machine: the first are test, the last
    valid. So a corpus that grows moves no sentence from one to the other. A split not in `held_out` is train.

    >>> [split_of(text, 4) for text in ("Goodbye.", "Hello.", "nine", "NINE!")]
    ['train', 'test', 'valid', 'valid']
    >>> [split_of(text, 4, ["test"]) for text in ("Hello.", "nine")]
    ['test', 'train']
    """
    place = int.from_bytes(hashlib.sha256(letters(source).encode()).digest()[:8], "big") / 2**64
    split = "test" if place < 1 / modulus else "valid" if place >= 1 - 1 / modulus else "train"
    return split if split in held_out else "train"


def split_pairs(pairs: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Which pairs are for train, valid and test, as indices in order: about HELD_OUT, at most a twentieth, for each.

    Valid and test keep the first translation of a sentence. Train drops every pair whose target translates one of
    theirs, so that nothing leaks from either side.
    """
    keys = [(letters(source), letters(target)) for source, target in pairs]
    modulus = max(20, len({source for source, _ in keys}) / HELD_OUT)
    found = [split_of(source, modulus) for source, _ in pairs]
    hidden = {target for (_, target), split in zip(keys, found, strict=True) if split != "train"}
    splits: dict[str, list[int]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for i, ((source, target), split) in enumerate(zip(keys, found, strict=True)):
        if target not in hidden if split == "train" else source not in seen:
            splits[split].append(i)
        seen.add(source)
    return splits


def _place(name: str) -> tuple[Corpus, Held, Path]:
    """A corpus, what a person holds of it, and where it belongs: without a fixed sum, by the raw file that is held."""
    corpus, data = choose("corpus", name, CORPORA), data_folder()
    held = corpus.form.held(data, corpus.languages) if data else {}
    if isinstance(corpus.form, Raw) and corpus.form.sha256 is None:
        name += "".join(f"-{digest(path)[:8]}" for path in held.values())
    return corpus, held, cache_folder() / "corpora" / name


def _parse(content: bytes) -> dict[tuple[str, str], str]:
    """Each pair of a table, cleaned and once, and its attribution. A broken line in a hundred is left out."""
    rows: dict[tuple[str, str], str] = {}
    lines = broken = 0
    for line in io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", errors="replace", newline="\n"):
        lines += 1
        source, target, attribution, *more = (*map(_clean, line.split("\t")), "", "", "")
        if all((source, target, attribution)) and not any((*more, "\0" in line, "\ufffd" in line)):
            rows.setdefault((source, target), attribution)
        else:
            broken += 1
    if not rows or broken > lines / 100:
        raise ValueError(f"{broken:,} of {lines:,} lines are not source, target and attribution between tabs")
    return rows


def _clean(text: str) -> str:
    """In NFC, without zero-width spaces, and each run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).replace("\u200b", "").split())


def letters(text: str) -> str:
    """What makes two sentences the same to us: letters and digits, whatever their case and the signs between.

    >>> letters("Don't  stop!") == letters("DONT stop")
    True
    """
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold())) or text


def _write(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
