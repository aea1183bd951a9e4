"""Tokenizers of Hugging Face's: ours written for `AutoTokenizer`, and theirs read, which keep their ids.

What a decoder starts with is often their padding (Marian, Pegasus) or their end (BART): that is then our `bos`.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from regard.checks import need
from regard.convert.hub import told_by
from regard.convert.source import TOKENIZER
from regard.convert.tables import Foreign
from regard.convert.tables.table import at, settings, told
from regard.convert.whisper import timed
from regard.data.tokenizers import MOST, RESERVED, UNKNOWN, Tokenizer, check_ids, no_panic, state
from regard.data.vocabulary import EOS, SPECIALS, Marks
from regard.files import read_whole, regular_size, write_whole
from regard.models.storage import TEMPLATE

SETTINGS = "tokenizer_config.json"
MARIAN = ("source.spm", "vocab.json")
NEITHER = {"padding": None, "truncation": None}


def write(tokenizer: Tokenizer, directory: Path, around: str, *, segments: bool = False) -> None:
    """Write tokenizer.json and tokenizer_config.json, such that a text has around it what belongs there, and marks are
    known as such. `segments` are told apart where a model does so."""
    theirs, marks = Rust.from_str(tokenizer.rust.to_str()), tokenizer.marks
    named = {name: str(theirs.id_to_token(i)) for name, i in marks._asdict().items() if i is not None}
    if around == "end" and marks.bos in (marks.pad, marks.eos):  # what a decoder starts with: no mark of its own
        del named["bos"]
    special = [*named.values(), *(str(theirs.id_to_token(i)) for i in sorted(tokenizer.silent - {*marks}))]
    theirs.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    if around == "frame":
        theirs.post_processor = _framed(marks, theirs, segments=segments)
    else:
        before = {str(theirs.id_to_token(i)): i for i in theirs.encode("").ids}
        after = {named["eos"]: marks.need("eos")[0]} if around == "end" else {}
        theirs.post_processor = processors.TemplateProcessing(
            " ".join([*before, "$A", *after]), special_tokens=[*(before | after).items()]
        )
    about: dict[str, Any] = {f"{name}_token": token for name, token in named.items()}
    about |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    about["model_input_names"] = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    write_whole(directory / TOKENIZER, theirs.to_str(pretty=True) + "\n")
    write_whole(directory / SETTINGS, json.dumps(about, indent=2) + "\n")


def template(directory: Path) -> str | None:
    """How a chat is written out, in Jinja, if a directory says so: the first that is the default, or the only one."""
    path = directory / TEMPLATE
    found = read_whole(path).decode() if path.is_file() else told_by(directory, SETTINGS).get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _double(marks: Marks) -> bool:
    """Whether two marks stand between two texts, as in RoBERTa."""
    return len(marks.around([], [])[0]) == 4


def _framed(marks: Marks, rust: Rust, *, segments: bool) -> processors.PostProcessor:
    """What puts marks around a text, and around two of them, as ours stand there."""
    named = {i: str(rust.id_to_token(i)) for i in marks.around([])[0]}
    single, pair = (
        " ".join(
            f"{({-1: '$A', -2: '$B'} | named)[i]}:{int(segments) * segment}" for i, segment in zip(*framed, strict=True)
        )
        for framed in (marks.around([-1]), marks.around([-1], [-2]))
    )
    return processors.TemplateProcessing(single, pair, [(name, i) for i, name in named.items()])


def read(directory: Path, table: Foreign) -> Rust:
    """The tokenizer of a directory, as it is."""
    readers: dict[tuple[str, ...], Callable[[Path, Foreign], Rust]] = {(TOKENIZER,): _whole, MARIAN: _marian}
    readers |= {("vocab.txt",): _wordpiece, ("vocab.json", "merges.txt"): _merged} if table.special else {}
    for files, reader in readers.items():
        if all((directory / name).is_file() for name in files):
            return reader(directory, table)
    raise ValueError(
        f"{directory} has neither {' nor '.join(map(' and '.join, readers))}: load its tokenizer with transformers' "
        "AutoTokenizer and call save_pretrained, which writes one"
    )


def _whole(directory: Path, table: Foreign) -> Rust:
    try:
        check_ids(content := told_by(directory, TOKENIZER), MOST)
        with no_panic():  # what they pad and cut to is not carried over
            return Rust.from_str(json.dumps(content | NEITHER))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{directory / TOKENIZER} cannot be read: {error}") from None


def _marian(directory: Path, table: Foreign) -> Rust:
    """Marian cuts a text by source.spm, a unigram model, and numbers the pieces by vocab.json."""
    spm = need("sentencepiece.sentencepiece_model_pb2", "convert").ModelProto()
    path = directory / MARIAN[0]
    try:
        spm.ParseFromString(read_whole(path))
    except Exception as error:
        raise ValueError(f"{path} is no model of SentencePiece: {error}") from None
    if spm.trainer_spec.model_type != spm.trainer_spec.UNIGRAM:
        raise ValueError(f"{path} is not a unigram model of SentencePiece: it cannot be imported")
    ids = told_by(directory, MARIAN[1])
    scores = {piece.piece: piece.score for piece in spm.pieces if piece.type == piece.NORMAL}
    if not scores:
        raise ValueError(f"{path} is damaged, it has no pieces: copy it again")
    if not all(isinstance(ids.get(name), int) for name in (UNKNOWN, SPECIALS[EOS], *ids)):
        raise ValueError(
            f"{directory / MARIAN[1]} is damaged: it needs an id for each piece, and for {UNKNOWN} and {SPECIALS[EOS]}"
        )
    # A piece of the target's only is chosen where SentencePiece finds nothing known: at its price for the unknown.
    unknown = min(scores.values()) - 10
    vocabulary = [(piece, scores.get(piece, unknown * len(piece))) for piece in sorted(ids, key=ids.__getitem__)]
    rust = Rust(models.Unigram(vocabulary, unk_id=ids[UNKNOWN]))
    clean: list[normalizers.Normalizer] = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spm.normalizer_spec.precompiled_charsmap:
        clean.insert(0, normalizers.Precompiled(spm.normalizer_spec.precompiled_charsmap))
    rust.normalizer = normalizers.Sequence(clean)
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rust.add_tokens(
        [AddedToken(piece, normalized=False) for piece in ids if re.fullmatch(">>.+<<", piece)]
    )  # languages
    end = SPECIALS[EOS]
    rust.post_processor = processors.TemplateProcessing(f"$A {end}", special_tokens=[(end, ids[end])])
    return rust


def _wordpiece(directory: Path, table: Foreign) -> Rust:
    """A vocab.txt, cut and cleaned as BERT does."""
    about, named, path = told_by(directory, SETTINGS), _named(directory, table), directory / "vocab.txt"
    regular_size(path)
    with no_panic(path):
        rust = Rust(models.WordPiece.from_file(str(path), unk_token=named["unk"]))
    rust.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=about.get("tokenize_chinese_chars", True),
        strip_accents=about.get("strip_accents"),
        lowercase=about.get("do_lower_case", True),
    )
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece("##")
    return _finished(rust, named, path)


def _merged(directory: Path, table: Foreign) -> Rust:
    """A vocab.json and a merges.txt: byte-level BPE, as GPT-2 has it."""
    about, paths = told_by(directory, SETTINGS), [directory / name for name in ("vocab.json", "merges.txt")]
    for path in paths:
        regular_size(path)
    with no_panic(path):
        rust = Rust(models.BPE.from_file(*map(str, paths)))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=about.get("add_prefix_space", False))
    rust.decoder = decoders.ByteLevel()
    return _finished(rust, _named(directory, table), paths[0])


def _finished(rust: Rust, named: Mapping[str, str], path: Path) -> Rust:
    """With what these tokenizers put around a text."""
    if told_by(path.parent, "added_tokens.json"):
        raise ValueError(f"{path.parent} has added_tokens.json but no {TOKENIZER}: write one with transformers")
    if "cls" in named:
        cls, sep = (rust.token_to_id(named[name]) for name in ("cls", "sep"))
        if cls is None or sep is None:
            raise ValueError(f"{path} has no {named['cls']} or no {named['sep']}: name them in {SETTINGS}")
        double = named["cls"] == named.get("bos")
        marks = Marks(bos=cls if double else None, cls=cls, sep=sep)
        rust.post_processor = _framed(marks, rust, segments=not double)
    return rust


def kept(directory: Path, theirs: Rust, about: dict[str, Any], table: Foreign, around: str) -> Tokenizer:
    """Their tokenizer with their ids, for a model of which config.json says `about`; `around` a text stands its end, or
    a frame: that of an encoder, or of a decoder that reads, whatever theirs puts there.

    No text gives a mark: what is special to them is none of the tokens that a text is searched for, and where a text
    has such a name, it is cut after its first character.
    """
    content = json.loads(theirs.to_str())
    size = told({"vocabulary": settings(table.settings)["vocabulary"]}, about)["vocabulary"]
    content = timed(content, size) if around == "free" else content
    path, pieces = directory / TOKENIZER, _pieces(content)
    marks = _marks(directory, content, about, table, pieces, strict=around != "frame")
    if (most := max([*pieces, *(i for i in marks if i is not None)])) >= size:
        raise ValueError(f"the tokenizer has an id {most}, but vocab_size = {size}")
    with no_panic(path):
        before, after, double = ([], [], False) if around == "free" else _around(theirs)
    if around == "frame" and not table.around and len(before) < 2 and len(after) < 2:
        first, last = next(iter(before), None), next(iter(after), None)
        marks = marks._replace(bos=first, eos=last, cls=None, sep=None)
        if "sep" in table.marks:  # which an output neither begins nor ends with
            marks = marks._replace(bos=None, eos=None, cls=first, sep=last)
    if around == "frame":
        if [*before, *after] != (frame := marks.around([])[0]):
            raise ValueError(f"{path}: around a text it puts the tokens {before} and {after}, but regard puts {frame}")
        before = []  # a frame is for whoever reads a text as a whole: it hangs on what is read with it
        if double != _double(marks) and table.around:
            marks = marks._replace(bos=marks.cls if double else None, eos=marks.sep if double else None)
    elif after != (expected := [marks.eos] if around == "end" else []):
        raise ValueError(f"{path}: after a text it puts the tokens {after}, but regard puts {expected} there")
    forced = about.get("forced_bos_token_id")
    if forced is not None and before != [forced]:
        raise ValueError(f"forced_bos_token_id = {forced} forces the first token: set it to null")
    all_of_them, model = [pieces.get(i, f"<no token {i}>") for i in range(size)], dict(content["model"])
    if model["type"] == "Unigram":
        lowest = min(score for _, score in model["vocab"])
        scores = [*(score for _, score in model["vocab"]), *[lowest] * size]
        model["vocab"] = [*zip(all_of_them, scores, strict=False)]
    else:
        model["vocab"] = {name: i for i, name in enumerate(all_of_them)}
    plain = [token for token in content["added_tokens"] if not token["special"]]
    others = {token["content"]: token["id"] for token in content["added_tokens"] if token["special"]}
    with no_panic(path):
        rust = Rust.from_str(json.dumps(content | {"model": model, "added_tokens": plain, "post_processor": None}))
    if all_of_them[: len(RESERVED)] == [*RESERVED] and marks[:4] == (0, 1, 2, 3) and not before:
        more = {name[1:-1]: i for name, i in others.items() if i not in marks}
        if more or any(i is not None for i in marks[4:]):
            rust.post_processor = state(marks, [], more)
        try:
            return Tokenizer(rust.to_str(), path)  # one of regard's own, come back
        except ValueError:
            pass
    if model["type"] != "BPE":
        special = {*others, *(all_of_them[i] for i in marks if i is not None)}
        cut = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in sorted(special))
        split = pre_tokenizers.Split(Regex(cut), "isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence([rust.pre_tokenizer, split] if rust.pre_tokenizer else [split])
    others = {name: i for name, i in others.items() if i not in (*marks, *before) and name not in Marks._fields}
    rust.post_processor = state(marks, [(all_of_them[i], i) for i in before], others)
    return Tokenizer(rust.to_str(), path)


def _pieces(content: dict[str, Any]) -> dict[int, str]:
    """id -> piece."""
    vocabulary = content["model"]["vocab"]
    if content["model"]["type"] == "Unigram":
        pieces = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    else:
        pieces = {i: piece for piece, i in vocabulary.items()}
    return pieces | {token["id"]: token["content"] for token in content["added_tokens"]}


def _named(directory: Path, table: Foreign) -> dict[str, str]:
    """The marks by name, as the tokenizer's own settings say; if they say nothing, as all of this kind have them."""
    told = told_by(directory, "special_tokens_map.json") | told_by(directory, SETTINGS)
    found = {name: told.get(f"{name}_token") for name in Marks._fields}
    found = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: token for name, token in found.items() if isinstance(token, str)} or dict(table.special)


def _marks(
    directory: Path,
    content: dict[str, Any],
    about: dict[str, Any],
    table: Foreign,
    pieces: dict[int, str],
    *,
    strict: bool,
) -> Marks:
    """What config.json says of the marks, which a model that writes must have, and of the others what the tokenizer's
    own settings say."""
    ids = {piece: i for i, piece in pieces.items()}
    found = {name: ids[token] for name, token in _named(directory, table).items() if token in ids}
    if (unknown := content["model"].get("unk_id")) is not None:
        found["unk"] = unknown
    elif (token := content["model"].get("unk_token")) in ids:
        found["unk"] = ids[token]
    for name, key in table.marks.items():
        value = at(about, key.rstrip("?"))
        if isinstance(value, list) and value:  # of several ends, the tokenizer's
            value = found[name] if found.get(name) in value else value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            found[name] = value
        elif strict and not key.endswith("?"):
            raise ValueError(f"{key} = {value!r} is not a token's id: set it in config.json")
    return Marks(**found)


def _around(theirs: Rust) -> tuple[list[int], list[int], bool]:
    """What their tokenizer puts before a text, and after it; and whether what is after it stands twice between two."""
    bare, whole = (theirs.encode("a", add_special_tokens=add).ids for add in (False, True))
    both = theirs.encode("a", "a").ids
    at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    after = whole[at + len(bare) :]
    return list(whole[:at]), after, len(both) == len(whole) + len(bare) + 2 * len(after)
