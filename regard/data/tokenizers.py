"""Text to ids and back, over the `tokenizers` package, whose `tokenizer.json` is the shared format.

kind       a token is                                            unknown to it            decode(encode(text))
bpe        merged bytes: byte-level byte pair encoding           nothing                  text
byte       a byte of UTF-8                                       nothing                  text
unigram    a likely piece of a word, or a byte                   nothing                  text, ▁ become a space
char       a character                                           unseen characters        text without the unknown
wordpiece  a piece of a word, ##piece inside one, punctuation    words of unseen letters  words, spaced as in English
none       what stands between spaces, @@ joins it to the next   unseen tokens            words, one space between
other      what it was in the program that it was imported from

Ids 0 to 3 are <pad>, <s>, </s> and <unk>; an imported one keeps its own, which `marks` names. No text gives a mark but
<unk>: "<s>" in a text is three characters, and <unk> if the kind is none.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Rust

from regard.checks import choose, share
from regard.data.merges import Merges
from regard.data.vocabulary import MARKS, SPECIALS, Marks
from regard.files import read_whole, write_whole

KINDS = ("bpe", "unigram", "wordpiece", "byte", "char", "none")
UNK, UNKNOWN = len(SPECIALS), "<unk>"
RESERVED = (*SPECIALS, UNKNOWN)
MOST = 2**24  # entries: a learner makes room for all of them before it begins

# A forked process has no threads of Rust's: it must encode with its own. Older `tokenizers` warn of that, except where
# the variable is set.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))

# The character by which a byte-level vocabulary writes each byte: itself if it prints, else the next from U+0100 on.
_spare = map(chr, count(256))
BYTES = [chr(b) if chr(b).isprintable() and not chr(b).isspace() else next(_spare) for b in range(256)]
_VALUES = {character: byte for byte, character in enumerate(BYTES)}
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # how a unigram vocabulary writes a byte


@dataclass(frozen=True)
class TokensConfig:
    """How text becomes tokens."""

    kind: str = "bpe"  # one of KINDS
    size: int = 8000  # entries, the four specials among them; char, none: at most, 0 = all; byte: always 260
    lowercase: bool = False
    dropout: float = 0.0  # of BPE merges while training (Provilkov et al., 2020)

    def __post_init__(self) -> None:
        choose("tokens.kind", self.kind, dict.fromkeys(KINDS))
        fewest = {"bpe": 260, "unigram": 261, "byte": 0}.get(self.kind, 5)  # specials, bytes, a token
        if self.size < fewest and not (self.size == 0 and self.kind in ("char", "none")):
            raise ValueError(f"tokens.size = {self.size} is too small: {self.kind} needs at least {fewest}")
        if self.size > MOST:
            raise ValueError(f"tokens.size = {self.size} is too large: it is at most {MOST:,}")
        share(whole=False, **{"tokens.dropout": self.dropout})
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"tokens.dropout leaves out merges of bpe: set it to 0 for {self.kind}")


class Tokenizer:
    """Text to ids and back: `Tokenizer.learn(config, lines)`, or `Tokenizer.load(path)`.

    >>> tokens = Tokenizer.learn(TokensConfig(size=267), ["low lower lowest"] * 9)
    >>> tokens.pieces(tokens.encode("lowest slow ☕"))
    ['▁lowest', '▁', 's', 'lo', 'w', '▁', '\\\\xe2', '\\\\x98', '\\\\x95']
    >>> tokens.decode(tokens.encode("lowest slow ☕"))
    'lowest slow ☕'
    >>> tokens.pieces(tokens.sample("lowest", dropout=0.5, random=Random(1)))
    ['▁', 'lo', 'w', 'e', 'st']
    """

    kind: str
    marks: Marks
    rust: Rust  # what it is over
    imported: bool  # it puts what it wants before a text
    silent: frozenset[int]  # ids that are no text: the marks, and what stands before every text

    def __init__(self, content: str, name: str | Path = "this text") -> None:
        """The tokenizer that `content`, a tokenizer.json, describes; `name` is for errors."""
        try:
            about = json.loads(content)
            check_ids(about)
            if about.get("padding") or about.get("truncation"):  # to any length, by an id of its own
                raise ValueError("it pads or cuts texts: set padding and truncation to null")
            with no_panic():
                self.rust = Rust.from_str(content)
                parts = _parts(self.rust)
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"{name} is no tokenizer.json that this version can read: {error}") from None
        kinds = [kind for kind in KINDS for lowercase in (False, True) if _parts(_blank(kind, lowercase)) == parts]
        own = [self.rust.id_to_token(i) for i in range(len(RESERVED))] == list(RESERVED)
        self.imported = self.rust.post_processor is not None and not (kinds and own)
        if self.rust.post_processor is None and not (kinds and own):
            raise ValueError(
                f"{name} is a tokenizer of another program, or of a newer regard: learn one with this regard"
            )
        self.kind = kinds[0] if kinds and own else "other"
        self.marks, others = _stated(about)
        if own and self.marks == Marks():
            self.marks = MARKS._replace(unk=UNK)
        self.silent = frozenset(i for i in (*self.marks, *others) if i is not None)
        try:  # its token for the unknown, and what it puts around a text, come from its file
            self._before = self.encode("")
            self.decode(self.encode("a \U0010fffd"))
        except ValueError as error:
            raise ValueError(f"{name} cannot read a text: {error}") from None

    @classmethod
    def learn(cls, config: TokensConfig, lines: Iterable[str], also: Sequence[str] = ()) -> "Tokenizer":
        """A tokenizer learnt from lines of text, which are read once; `also` names marks that it has beside its own.

        The same lines give the same tokenizer.json. (Of unigram, in one learning of thousands, a score may be rounded
        the other way: `_unigram` says why.)
        """
        lines = filter(str.strip, lines)
        first = next(lines, None)
        if first is None:
            raise ValueError("no text to learn tokens from: every line is empty")
        rust = _blank(config.kind, config.lowercase)
        scratch = _blank(config.kind, config.lowercase)  # a trainer makes the specials findable in text: not in ours
        size = config.size - len(also) if config.kind in ("bpe", "unigram", "wordpiece") else config.size
        rust.model = _LEARNERS[config.kind](scratch, size, chain([first], lines))
        found = rust.get_vocab_size()
        if config.kind in ("bpe", "unigram", "wordpiece") and found < size:
            raise ValueError(
                f"tokens.size = {config.size} is too large: this text has {found} {config.kind} tokens. "
                f"Set tokens.size to at most {found + len(also)}"
            )
        return cls(_with(rust, config.kind, also).to_str() if also else rust.to_str())

    @classmethod
    def none(cls) -> "Tokenizer":
        """What stands for one where nothing is read but pictures: it has marks, and no words."""
        return cls.learn(TokensConfig("none", 0), ["-"])

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer in a tokenizer.json that `save` wrote."""
        try:
            return cls(read_whole(path).decode(), path)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no tokenizer.json: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json."""
        write_whole(path, self.rust.to_str(pretty=True) + "\n")

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:  # for a worker process that is not forked
        return Tokenizer, (self.rust.to_str(),)

    def __len__(self) -> int:
        return self.rust.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special is added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, on all cores."""
        try:
            with no_panic():
                return [row.ids for row in self.rust.encode_batch_fast(texts)]
        except TypeError:
            for text in texts:
                if any("\ud800" <= character <= "\udfff" for character in text):
                    raise ValueError(f"{text!r} is not Unicode text: it holds half of a surrogate pair") from None
            raise

    @cached_property
    def spaced(self) -> bool:
        """Whether it reads a text as if a space stood before it.

        >>> [Tokenizer.learn(TokensConfig(kind, 260), ["a a"]).spaced for kind in ("bpe", "byte")]
        [True, False]
        """
        ids = self.encode("a a")
        half = len(ids) // 2
        return ids[:half] == ids[half:]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where in a text each token of `encode(text)` stands, from one character to before another.

        >>> Tokenizer.learn(TokensConfig("char", size=0), ["abc"]).spans("a?c")
        [(0, 1), (1, 2), (2, 3)]
        """
        return self.rust.encode(text).offsets

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids up to the first end, without the marks; bytes that are no UTF-8 become �."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """The text of each row of ids."""
        with no_panic():
            return self.rust.decode_batch([self._ordinary(ids) for ids in rows], skip_special_tokens=False)

    def certain(self, ids: Sequence[int]) -> str:
        """The text with which `decode` begins for these ids and any others after them.

        >>> tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"])
        >>> [tokens.certain(tokens.encode("a☕")[:n]) for n in range(5)]
        ['', 'a', 'a', 'a', 'a☕']
        """
        if self.kind == "unigram":  # a byte makes a character, or none, together with all the bytes around it
            whole = [n for n, i in enumerate(ids, start=1) if i >= len(RESERVED) + len(BYTES)]
            return self.decode(ids[: max(whole, default=0)])
        text = self.decode(ids)
        if self.kind == "wordpiece":  # the decoder makes "don't" of "do n't" and of "do not"
            return " ".join(text.split(" ")[:-2])
        return text.rstrip("\ufffd")

    def joined(self, text: str) -> str:
        """A text as `decode` writes it: sub-words of a text in `@@` form put together, any other text as it is."""
        return text.replace("@@ ", "") if self.kind == "none" else text

    def _ordinary(self, ids: Sequence[int]) -> list[int]:
        self._check(ids)
        first = len(self._before) if [*ids[: len(self._before)]] == self._before else 0  # which may be the end's token
        end = ids.index(self.marks.eos, first) if self.marks.eos in ids[first:] else len(ids)
        return [i for i in ids[:end] if i not in self.silent]

    def _check(self, ids: Sequence[int]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(
                f"ids lie in 0..{len(self) - 1}, got {min(ids)}..{max(ids)}: are they another tokenizer's?"
            )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id as a person reads it: ▁ is a space, \\xe2 a byte that is no character by itself."""
        self._check(ids)
        return [self._shown(i) for i in ids]

    def spelled(self, i: int) -> bytes:
        """What a token adds to a text: its characters in UTF-8, or bytes that are only a part of one.

        >>> tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"])
        >>> [tokens.spelled(i) for i in tokens.encode("a☕")]
        [b'a', b'\\xe2', b'\\x98', b'\\x95']
        """
        piece = str(self.rust.id_to_token(i))
        if i in self.silent:
            return b""
        if self._bytes == "ByteLevel":
            if all(character in _VALUES for character in piece):
                return bytes(_VALUES[character] for character in piece)
        elif self._bytes == "ByteFallback" and (byte := _FALLBACK.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        if self.kind == "other":
            return self.decode([i]).encode()
        if self.kind == "wordpiece":
            piece = piece.removeprefix("##")
        elif self.kind == "none":
            piece = piece.removesuffix("@@")
        return piece.replace("▁", " ").encode()

    @cached_property
    def _bytes(self) -> str | None:
        """How its decoder makes characters of bytes, if it does."""
        part = json.loads(self.rust.to_str())["decoder"] or {}
        kinds = [each.get("type") for each in (part, *part.get("decoders", ()))]
        return next((kind for kind in ("ByteLevel", "ByteFallback") if kind in kinds), None)

    def _shown(self, i: int) -> str:
        piece = str(self.rust.id_to_token(i))
        if i not in self.silent and self._bytes is not None and self.kind != "other":
            piece = self.spelled(i).decode("utf-8", "backslashreplace")
        return piece.replace(" ", "▁")

    def sample(self, text: str, dropout: float, random: Random) -> list[int]:
        """One random segmentation of a text: BPE-dropout (Provilkov et al., 2020).

        At each step the merges that fit a word are tried, best first, and each is left out with probability
        `dropout`; the first that is not is done. 0 gives `encode(text)`, 1 single bytes.
        """
        if self.kind != "bpe":
            raise ValueError(f"only bpe has merges to leave out: tokens.dropout = 0 for {self.kind}")
        share(dropout=dropout)
        words = self.rust.pre_tokenizer.pre_tokenize_str(self.rust.normalizer.normalize_str(text))
        return self._merges.sample([word for word, _ in words], dropout, random)

    @cached_property
    def _merges(self) -> Merges:
        model = json.loads(self.rust.to_str())["model"]
        return Merges(model["vocab"], model["merges"])


def _blank(kind: str, lowercase: bool) -> Rust:
    """A tokenizer of a kind that knows no token yet."""
    model: models.Model
    split: pre_tokenizers.PreTokenizer
    join: decoders.Decoder
    before: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    if kind in ("bpe", "unigram"):
        # The first word is as any other, after a space. It is always added, so that decode can always take it away.
        before.append(normalizers.Prepend(" "))
    if kind == "bpe":
        model = models.BPE()
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        join = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    elif kind == "unigram":
        model = models.Unigram()
        # No piece but ">" has a ">", so none reads as "<s>" or as "<0x41>", the byte.
        marked, alone = pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Split(">", "isolated")
        split = pre_tokenizers.Sequence([marked, alone])
        plain = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]
        join = decoders.Sequence(plain)
    elif kind == "wordpiece":
        model = models.WordPiece({}, unk_token=UNKNOWN)
        split = pre_tokenizers.BertPreTokenizer()
        join = decoders.WordPiece("##")
    elif kind == "byte":
        model = models.BPE()
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        join = decoders.ByteLevel()
    elif kind == "char":
        model = models.WordLevel({}, unk_token=UNKNOWN)
        split = pre_tokenizers.Split("", "isolated")
        join = decoders.Fuse()
    else:
        model = models.WordLevel({}, unk_token=UNKNOWN)
        before.append(normalizers.Replace(Regex(rf"(?<!\S)({'|'.join(SPECIALS)})(?!\S)"), UNKNOWN))
        split = pre_tokenizers.WhitespaceSplit()
        spaced = decoders.WordPiece(" ", cleanup=False)  # a space before each token that does not begin with one
        join = decoders.Sequence([spaced, decoders.Fuse(), decoders.Replace(Regex("@@( |$)"), "")])
    rust = Rust(model)
    rust.normalizer, rust.pre_tokenizer, rust.decoder = normalizers.Sequence(before), split, join
    return rust


def state(
    marks: Marks, before: Sequence[tuple[str, int]], others: Mapping[str, int] | None = None
) -> processors.PostProcessor:
    """What puts these tokens before a text, and states the marks and what else is no text, by name."""
    stated = [*((name, i) for name, i in marks._asdict().items() if i is not None), *(others or {}).items()]
    return processors.TemplateProcessing(" ".join([*dict(before), "$A"]), special_tokens=[*before, *stated])


def _stated(content: dict[str, Any]) -> tuple[Marks, list[int]]:
    """The marks that a tokenizer states, and all else that it has beside text: what it puts before one, say."""
    about = content.get("post_processor") or {}
    ids = {name: token["ids"] for name, token in about.get("special_tokens", {}).items()}
    return Marks(**{name: ids[name][0] for name in Marks._fields if name in ids}), [
        i for each in ids.values() for i in each
    ]


def _with(rust: Rust, kind: str, also: Sequence[str]) -> Rust:
    """The same with more marks after all tokens, <mask> for mask; no text gives them."""
    if kind == "none":
        raise ValueError("tokens.kind = none reads <mask> as it stands in a text: choose bpe, unigram or wordpiece")
    content = json.loads(rust.to_str())
    vocabulary, first = content["model"]["vocab"], rust.get_vocab_size()
    for i, name in enumerate(also, start=first):
        if isinstance(vocabulary, dict):
            vocabulary[f"<{name}>"] = i
        else:
            vocabulary.append([f"<{name}>", vocabulary[-1][1]])
    result = Rust.from_str(json.dumps(content))
    ids = {name: i for i, name in enumerate(also, start=first)}
    marks = MARKS._replace(unk=UNK, **{name: i for name, i in ids.items() if name in Marks._fields})
    result.post_processor = state(marks, [], {name: i for name, i in ids.items() if name not in Marks._fields})
    return result


def check_ids(content: dict[str, Any], most: int | None = None) -> None:
    """Refuse ids beyond the number of tokens of a tokenizer.json, or `most`: the package goes through all below."""
    added, vocabulary = content.get("added_tokens") or [], content["model"]["vocab"]
    names, ids = {token["content"] for token in added}, [token["id"] for token in added]
    if isinstance(vocabulary, dict):
        ids += vocabulary.values()
        most = most or len(names | vocabulary.keys())
    else:
        most = most or len(vocabulary) + len(added)
    if ids and not 0 <= min(ids) <= max(ids) < most:
        raise ValueError(f"its ids are {min(ids)} to {max(ids)}, and not 0 to {most - 1}")


@contextmanager
def no_panic(name: str | Path = "the tokenizer") -> Iterator[None]:
    """What the package raises, a bare Exception, or a panic, which is not even one, as a mistake in a file."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{name} is damaged ({error})") from None


def _parts(rust: Rust) -> list[Any]:
    """What a kind fixes of a tokenizer; the vocabulary is what it learns."""
    content = json.loads(rust.to_str())
    return [content["model"]["type"], *(content[part] for part in ("normalizer", "pre_tokenizer", "decoder"))]


def _bpe(scratch: Rust, size: int, lines: Iterator[str]) -> models.Model:
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,  # a pair seen once is no regularity
        special_tokens=list(RESERVED),
        initial_alphabet=BYTES,
        show_progress=False,
    )
    scratch.train_from_iterator(lines, trainer)
    return scratch.model


def _unigram(scratch: Rust, size: int, lines: Iterator[str]) -> models.Model:
    seen = {" "}

    def watched() -> Iterator[str]:
        for line in lines:
            seen.update(line)
            yield line

    fixed = len(RESERVED) + len(BYTES)
    trainer = trainers.UnigramTrainer(
        vocab_size=size - fixed + 1, special_tokens=[UNKNOWN], unk_token=UNKNOWN, show_progress=False
    )
    try:
        scratch.train_from_iterator(watched(), trainer)
    except Exception as error:
        if "not large enough" not in str(error):
            raise
        raise ValueError(
            f"tokens.size = {size} is too small: {fixed} specials and bytes and {len(seen)} different characters. "
            f"Set tokens.size to at least {fixed + len(seen)}, or tokens.kind to bpe"
        ) from None
    pieces: list[tuple[str, float]] = json.loads(scratch.to_str())["model"]["vocab"][1:]
    # The trainer adds in the order of a hash table, so digits of a score from the tenth on are chance; and characters
    # that it keeps for completeness only are scored from the lowest upwards in that order, 1e-4 apart.
    lowest = min(score for _, score in pieces)
    spread = 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    level = {p: round(lowest if len(p) == 1 and score < lowest + spread else score, 3) for p, score in pieces}
    learnt = sorted(level.items(), key=lambda item: (-item[1], item[0]))
    given = [(special, 0.0) for special in RESERVED] + [(f"<0x{byte:02X}>", learnt[-1][1]) for byte in range(256)]
    return models.Unigram((given + learnt)[:size], unk_id=UNK, byte_fallback=True)


def _wordpiece(scratch: Rust, size: int, lines: Iterator[str]) -> models.Model:
    normalise, split = scratch.normalizer.normalize_str, scratch.pre_tokenizer.pre_tokenize_str
    counts = Counter(word for line in lines for word, _ in split(normalise(line)))
    # The trainer numbers ##a, ##b, ... as it meets them in a hash table, and numbers decide between merges that are
    # as frequent: number them first.
    inner = sorted({f"##{character}" for word in counts for character in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*RESERVED, *inner], show_progress=False
    )
    again = (f"{word} " * min(n - i, 10_000) for word, n in counts.items() for i in range(0, n, 10_000))
    scratch.train_from_iterator(again, trainer)
    found = scratch.get_vocab_size()
    if found > size:
        raise ValueError(
            f"tokens.size = {size} is too small: the characters of this text alone are {found} tokens. "
            f"Set tokens.size to at least {found}, or tokens.kind to bpe"
        )
    return models.WordPiece(scratch.get_vocab(), unk_token=UNKNOWN)


def _byte(scratch: Rust, size: int, lines: Iterator[str]) -> models.Model:
    return models.BPE(_numbered(BYTES), [])


def _whole(scratch: Rust, size: int, lines: Iterator[str]) -> models.Model:
    """Each character or token that was seen: the most frequent first, then in alphabetical order."""
    scratch.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=2**31, show_progress=False))
    ids = scratch.get_vocab()
    tokens = sorted(ids.keys() - RESERVED, key=ids.__getitem__)
    return models.WordLevel(_numbered(tokens[: size - len(RESERVED)] if size else tokens), unk_token=UNKNOWN)


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(chain(RESERVED, tokens))}


_LEARNERS: dict[str, Callable[[Rust, int, Iterator[str]], models.Model]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "byte": _byte,
    "char": _whole,
    "none": _whole,
}
