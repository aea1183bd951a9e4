"""Trees of a treebank: read from Penn brackets, written as a sequence of tokens for a model, and read back from it.

    (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))          in Penn brackets
    (S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S                           in line (Vinyals et al., 2015)

In line, each word is XX and its part of speech is left out: a model writes the brackets, and the sentence gives the
words back. What the treebank says beyond constituents goes: functions (NP-SBJ), references (NP-1, NP=1), and traces
(-NONE-) with every bracket that holds nothing else.
"""

import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.downloads import Progress
from regard.data.text import decoded
from regard.files import write_whole

if TYPE_CHECKING:
    from regard.data.corpora import Corpus

LEAF = "XX"  # a word, in line
TOP = "TOP"  # a bracket around what has none, or several
TRACE = "-NONE-"
DEEPEST = 300  # brackets in each other: more are a bracket that does not close
ATOM = re.compile(r"[()]|[^\s()]+")
FILE = re.compile(r"wsj_(\d{4})\.mrg")


@dataclass(frozen=True)
class Tree:
    """A constituent with its parts, or a part of speech with its word."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str = ""

    def __str__(self) -> str:
        return f"({self.label} {self.word or ' '.join(map(str, self.children))})"


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees of a text in Penn brackets, as they stand there; a mistake is told with `name` and the line.

    >>> str(next(read_trees(["( (S (NP-SBJ (PRP It))", "     (VP (VBZ works))))"], "a.mrg")))
    '( (S (NP-SBJ (PRP It)) (VP (VBZ works))))'
    >>> list(read_trees(["(S (NP (PRP It))"], "a.mrg"))
    Traceback (most recent call last):
    ValueError: a.mrg, line 1: this bracket is never closed
    """
    open_brackets: list[tuple[int, list[str], list[Tree]]] = []  # line, label and word, parts
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        for atom in ATOM.findall(line):
            if atom == "(":
                if open_brackets and len(open_brackets[-1][1]) > 1:
                    raise ValueError(f"{where}: a bracket opens after the word {open_brackets[-1][1][1]!r} in one")
                if len(open_brackets) == DEEPEST:
                    raise ValueError(f"{where}: over {DEEPEST} brackets are open: one before it is not closed")
                open_brackets.append((number, [], []))
            elif not open_brackets:
                raise ValueError(f"{where}: {atom!r} stands outside all brackets")
            elif atom == ")":
                _, names, parts = open_brackets.pop()
                label, word = (*names, "", "")[:2]
                if not (parts or word):
                    raise ValueError(f"{where}: the bracket ({label}) holds neither a word nor a bracket")
                tree = Tree(label, tuple(parts), word)
                if open_brackets:
                    open_brackets[-1][2].append(tree)
                else:
                    yield tree
            else:
                _, names, parts = open_brackets[-1]
                if parts or len(names) > 1:
                    raise ValueError(f"{where}: the word {atom!r} has no bracket of its own")
                names.append(atom)
    if open_brackets:
        raise ValueError(f"{name}, line {open_brackets[0][0]}: this bracket is never closed")


def cleaned(tree: Tree) -> Tree | None:
    """A tree of constituents alone, under one bracket; None if there is no word in it.

    >>> text = "( (S (NP-SBJ-1 (PRP It)) (VP (VBZ seems) (S (NP (-NONE- *-1))) (ADVP|PRT (RB so)))))"
    >>> str(cleaned(next(read_trees([text], ""))))
    '(S (NP (PRP It)) (VP (VBZ seems) (ADVP (RB so))))'
    """
    bare = _bare(tree)
    if bare is None:
        return None
    if bare.label or bare.word:
        return Tree(TOP, (bare,)) if bare.word else bare
    return bare.children[0] if len(bare.children) == 1 and not bare.children[0].word else Tree(TOP, bare.children)


def _bare(tree: Tree) -> Tree | None:
    if tree.word:
        return None if tree.label == TRACE else tree
    parts = tuple(part for part in map(_bare, tree.children) if part is not None)
    return Tree(re.split(r"(?<=.)[-=|]", tree.label)[0], parts) if parts else None


def leaves(tree: Tree) -> list[Tree]:
    """The words with their parts of speech, in order."""
    return [tree] if tree.word else [leaf for part in tree.children for leaf in leaves(part)]


def spans(tree: Tree, start: int = 0) -> list[tuple[str, int, int]]:
    """Each constituent as (label, its first word, the word after it), from the outside in.

    >>> spans(next(read_trees(["(S (NP (PRP It)) (VP (VBZ works)))"], "")))
    [('S', 0, 2), ('NP', 0, 1), ('VP', 1, 2)]
    """
    found, end = [], start
    for part in tree.children:
        found += spans(part, end)
        end += len(leaves(part))
    return [] if tree.word else [(tree.label, start, end), *found]


def linear(tree: Tree) -> list[str]:
    """A tree in line: (S, XX, )S.

    >>> " ".join(linear(next(read_trees(["(S (NP (PRP It)) (VP (VBZ works)))"], ""))))
    '(S (NP XX )NP (VP XX )VP )S'
    """
    if tree.word:
        return [LEAF]
    return [f"({tree.label}", *(token for part in tree.children for token in linear(part)), f"){tree.label}"]


def from_linear(tokens: Sequence[str], words: Sequence[tuple[str, str]]) -> Tree:
    """The tree that tokens in line make of words, each (part of speech, word); a `ValueError` says why there is none.

    >>> str(from_linear("(S (NP XX )NP XX )S".split(), [("PRP", "It"), ("VBZ", "works")]))
    '(S (NP (PRP It)) (VBZ works))'
    >>> from_linear("(S (NP XX )VP".split(), [("PRP", "It")])
    Traceback (most recent call last):
    ValueError: token 4, )VP, closes (NP
    """
    brackets: list[tuple[str, list[Tree]]] = [("", [])]
    rest = iter(words)
    for place, token in enumerate(tokens, 1):
        label, parts = brackets[-1]
        if len(brackets) == 1 and (parts or not token.startswith("(")):
            raise ValueError(f"token {place}, {token}, stands outside the one bracket of a tree")
        if token == LEAF:
            tag, word = next(rest, ("", ""))
            if not word:
                raise ValueError(f"token {place}, {token}: there are only {len(words)} words")
            parts.append(Tree(tag, word=word))
        elif token.startswith("("):
            brackets.append((token[1:], []))
        elif token != f"){label}":
            raise ValueError(f"token {place}, {token}, closes ({label}")
        elif not parts:
            raise ValueError(f"token {place}, {token}, closes a bracket that holds nothing")
        else:
            brackets.pop()
            brackets[-1][1].append(Tree(label, tuple(parts)))
    if len(brackets) > 1 or not brackets[0][1]:
        raise ValueError(f"the tree ends after {len(tokens)} tokens with {len(brackets) - 1} brackets open")
    if left := sum(1 for _ in rest):
        raise ValueError(f"{left} of {len(words)} words are not in the tree")
    return brackets[0][1][0]


def word_class(word: str) -> str:
    """What stands for a word that is too rare to know: what its letters tell of it.

    >>> [word_class(word) for word in ("Vinken", "1989", "restructuring", "30-day", "U.S.")]
    ['<Aa:en>', '<0>', '<a:ing>', '<0-a:ay>', '<A.>']
    """
    shape = ""
    for pattern, sign in (("^[A-Z]", "A"), ("[0-9]", "0"), ("-", "-"), ("[a-z]", "a"), (r"\.$", ".")):
        shape += sign if re.search(pattern, word) else ""
    ending = re.search(r"(ing|ion|ity|ment|[a-z]{2})$", word)
    return f"<{shape}:{ending[0]}>" if ending else f"<{shape}>"


@dataclass(frozen=True)
class Treebank:
    """Files wsj_NNNN.mrg of the Wall Street Journal, as a corpus of sentences and trees in line.

    Beside the six files of pairs it writes `train.mrg` and so on: the whole trees, cleaned, one to a line.
    """

    folder: str  # in REGARD_DATA: it holds the files, however deep, or FOLDER.zip with them
    files: Mapping[str, Sequence[int]]  # of each split, the first and the last NNNN

    def held(self, data: Path, languages: Sequence[str]) -> dict[str, Path]:
        """The archive in a person's folder, or else the files."""
        archive = data / self.folder / f"{self.folder}.zip"
        if archive.is_file():
            return {archive.name: archive}
        found = sorted((data / self.folder).rglob("wsj_*.mrg"))
        return {path.name: path for path in found if path.is_file()}

    def write(self, into: Path, corpus: "Corpus", held: Mapping[str, Path], progress: Progress | None) -> None:
        """Sentences, trees in line, and whole trees, split by file."""
        if not held:
            raise ValueError(
                f"{corpus.name} is yours to get ({corpus.origin}): set REGARD_DATA to a folder with {self.folder}/ "
                f"that holds {self.folder}.zip or its files wsj_NNNN.mrg"
            )
        trees: dict[str, list[Tree]] = {split: [] for split in self.files}
        for number, name, text in _texts(held):
            for split, (first, last) in self.files.items():
                if first <= number <= last:
                    read = map(cleaned, read_trees(text.splitlines(), name))
                    trees[split] += [tree for tree in read if tree is not None]
        for split, found in trees.items():
            if not found:
                first, last = self.files[split]
                place = next(iter(held.values())).parent
                raise ValueError(f"{place} holds no tree for {split}: it needs wsj_{first:04}.mrg to wsj_{last:04}.mrg")
            sentences = (" ".join(leaf.word for leaf in leaves(tree)) for tree in found)
            in_line = (" ".join(linear(tree)) for tree in found)
            endings = (*corpus.languages, "mrg")
            for ending, lines in zip(endings, (sentences, in_line, map(str, found)), strict=True):
                write_whole(into / f"{split}.{ending}", "".join(f"{line}\n" for line in lines))


def _texts(held: Mapping[str, Path]) -> Iterator[tuple[int, str, str]]:
    """Number, name and text of each file, in order."""
    for path in held.values():
        if path.suffix != ".zip":
            if found := FILE.fullmatch(path.name):
                yield int(found[1]), str(path), decoded(path.read_bytes(), f"{path}, line ")
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                members = {member.rpartition("/")[2]: member for member in archive.namelist()}
                for name in sorted(members):
                    if found := FILE.fullmatch(name):
                        where = f"{path}: {members[name]}"
                        yield int(found[1]), where, decoded(archive.read(members[name]), f"{where}, line ")
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: a password
            raise ValueError(f"{path} is broken: {error}; replace it") from None
