"""Tokenizers of Hugging Face's: ours written for `AutoTokenizer`, and theirs read, which keep their ids.

What a decoder starts with is often their padding (Marian, Pegasus) or their end (BART): that is then our `bos`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from regard.checks import need
from regard.convert.source import TOKENIZER
from regard.data.tokenizers import MOST, RESERVED, UNKNOWN, Tokenizer, check_ids, no_panic, state
from regard.data.vocabulary import EOS, SPECIALS, Marks
from regard.files import read_whole, write_whole

SETTINGS = "tokenizer_config.json"
MARIAN = ("source.spm", "vocab.json")
NEITHER = {"padding": None, "truncation": None}


def write(tokenizer: Tokenizer, directory: Path, *, ends: bool) -> None:
    """Write tokenizer.json and tokenizer_config.json, such that a text gets its end and marks are known as such."""
    theirs, marks = Rust.from_str(tokenizer.rust.to_str()), tokenizer.marks
    named = {name: str(theirs.id_to_token(i)) for name, i in marks._asdict().items() if i is not None}
    if marks.bos in (marks.pad, marks.eos):  # what a decoder starts with, and no mark of its own
        del named["bos"]
    theirs.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in named.values()])
    before = {str(theirs.id_to_token(i)): i for i in theirs.encode("").ids}
    after = {named["eos"]: marks.need("eos")[0]} if ends else {}
    theirs.post_processor = processors.TemplateProcessing(
        " ".join([*before, "$A", *after]), special_tokens=[*(before | after).items()]
    )
    about: dict[str, Any] = {f"{name}_token": token for name, token in named.items()}
    about |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_whole(directory / TOKENIZER, theirs.to_str(pretty=True) + "\n")
    write_whole(directory / SETTINGS, json.dumps(about, indent=2) + "\n")


def told_by(directory: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a directory says; nothing if it is not there."""
    path = directory / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def read(directory: Path) -> dict[str, Any]:
    """The tokenizer of a directory, as what a tokenizer.json holds."""
    if content := told_by(directory, TOKENIZER):
        try:
            check_ids(content, MOST)
            with no_panic():  # what they pad and cut to is not carried over
                return dict(json.loads(Rust.from_str(json.dumps(content | NEITHER)).to_str()))
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"{directory / TOKENIZER} cannot be read: {error}") from None
    if all((directory / name).is_file() for name in MARIAN):
        return _marian(directory)
    raise ValueError(
        f"{directory} has neither {TOKENIZER} nor {' and '.join(MARIAN)}: load its tokenizer with transformers' "
        "AutoTokenizer and call save_pretrained, which writes one"
    )


def _marian(directory: Path) -> dict[str, Any]:
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
    return dict(json.loads(rust.to_str()))


def kept(
    directory: Path, content: dict[str, Any], about: dict[str, Any], names: Mapping[str, str], *, ends: bool
) -> Tokenizer:
    """Their tokenizer with their ids, for a model of which config.json says `about`; `names` are those of its marks.

    No text gives a mark: what is special to them is none of the tokens that a text is searched for, and where a text
    has such a name, it is cut after its first character.
    """
    path, size, pieces = directory / TOKENIZER, about["vocab_size"], _pieces(content)
    marks = _marks(directory, content, about, names, pieces)
    if (most := max([*pieces, *(i for i in marks if i is not None)])) >= size:
        raise ValueError(f"the tokenizer has an id {most}, but vocab_size = {size}")
    before = _before(path, content, marks.eos if ends else None)
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
    with no_panic(path):
        rust = Rust.from_str(json.dumps(content | {"model": model, "added_tokens": plain, "post_processor": None}))
    if all_of_them[: len(RESERVED)] == [*RESERVED] and marks[:4] == (0, 1, 2, 3) and not before:
        try:
            return Tokenizer(rust.to_str(), path)  # one of regard's own, come back
        except ValueError:
            pass
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    special |= {all_of_them[i] for i in marks if i is not None}
    if model["type"] != "BPE":
        cut = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in sorted(special))
        split = pre_tokenizers.Split(Regex(cut), "isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence([rust.pre_tokenizer, split] if rust.pre_tokenizer else [split])
    rust.post_processor = state(marks, [(all_of_them[i], i) for i in before])
    return Tokenizer(rust.to_str(), path)


def _pieces(content: dict[str, Any]) -> dict[int, str]:
    """id -> piece."""
    vocabulary = content["model"]["vocab"]
    if content["model"]["type"] == "Unigram":
        pieces = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    else:
        pieces = {i: piece for piece, i in vocabulary.items()}
    return pieces | {token["id"]: token["content"] for token in content["added_tokens"]}


def _marks(
    directory: Path, content: dict[str, Any], about: dict[str, Any], names: Mapping[str, str], pieces: dict[int, str]
) -> Marks:
    """What config.json says of the marks, and of the others what the tokenizer's own settings say."""
    ids, told = {piece: i for i, piece in pieces.items()}, told_by(directory, SETTINGS)
    found: dict[str, int] = {}
    for name in Marks._fields:
        token = told.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in ids:
            found[name] = ids[token]
    if (unknown := content["model"].get("unk_id")) is not None:
        found["unk"] = unknown
    elif (token := content["model"].get("unk_token")) in ids:
        found["unk"] = ids[token]
    for name, key in names.items():
        value = about.get(key.rstrip("?"))
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            found[name] = value
        elif not key.endswith("?"):
            raise ValueError(f"{key} = {value!r} is not a token's id: set it in config.json")
    return Marks(**found)


def _before(path: Path, content: dict[str, Any], eos: int | None) -> list[int]:
    """What their tokenizer puts before a text; after it comes the end alone, as ours has it, or nothing."""
    with no_panic(path):
        rust = Rust.from_str(json.dumps(content))
        bare, whole = (rust.encode("a", add_special_tokens=add).ids for add in (False, True))
    at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    after, expected = whole[at + len(bare) :], [] if eos is None else [eos]
    if after != expected:
        raise ValueError(f"{path}: after a text it puts the tokens {after}, but regard puts {expected} there")
    return list(whole[:at])
