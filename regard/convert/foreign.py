"""Tokenizers of Hugging Face's: ours written for `AutoTokenizer`, and theirs read and renumbered.

regard's ids 0 to 3 are <pad>, <s>, </s> and <unk>. Theirs lie anywhere, and what a decoder starts with is often their
padding (Marian, Pegasus) or their end (BART): it then gets a row of its own, which is never written.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from regard.checks import need
from regard.convert.source import TOKENIZER
from regard.data.tokenizers import MOST, RESERVED, UNK, UNKNOWN, Tokenizer, check_ids, no_panic
from regard.data.vocabulary import BOS, EOS, PAD, SPECIALS
from regard.files import read_whole, write_whole

SETTINGS = "tokenizer_config.json"
MARIAN = ("source.spm", "vocab.json")
CONFIG, GENERATION = "config.json", "generation_config.json"
NEITHER = {"padding": None, "truncation": None}
OPTIONS = {  # how they generate, and how `regard translate` is asked for the same
    "no_repeat_ngram_size": "--block {}",
    "min_length": "--shortest {}",
    "repetition_penalty": "--repetition {}",
    "num_beam_groups": "--groups {}",
    "early_stopping": "--patience 1",
    "do_sample": "--sample 1",
}


def write(tokenizer: Rust, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, such that a text gets its end and specials are known as such."""
    theirs = Rust.from_str(tokenizer.to_str())
    theirs.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in RESERVED])
    theirs.post_processor = processors.TemplateProcessing(f"$A {SPECIALS[EOS]}", special_tokens=[(SPECIALS[EOS], EOS)])
    names = {"pad_token": SPECIALS[PAD], "bos_token": SPECIALS[BOS], "eos_token": SPECIALS[EOS], "unk_token": UNKNOWN}
    about = names | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_whole(directory / TOKENIZER, theirs.to_str(pretty=True) + "\n")
    write_whole(directory / SETTINGS, json.dumps(about, indent=2) + "\n")


def settings(directory: Path, name: str) -> dict[str, Any]:
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


def about_model(directory: Path) -> dict[str, Any]:
    """What a directory says of its model, and of how to generate with it."""
    told = settings(directory, GENERATION)
    return settings(directory, CONFIG) | {key: value for key, value in told.items() if value is not None}


def generation(about: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """What a recipe's section `decode` can hold of how to generate, and in words what it cannot.

    >>> generation({"num_beams": 6, "length_penalty": 0.8, "no_repeat_ngram_size": 3, "min_length": 0})
    ({'beam': 6}, ['length_penalty = 0.8 (--penalty mean --alpha 0.8)', 'no_repeat_ngram_size = 3 (--block 3)'])
    """
    beams = about.get("num_beams", 1)
    if not isinstance(beams, int) or beams < 1:
        raise ValueError(f"num_beams = {beams!r} is not a number of hypotheses: mend it in {GENERATION}")
    left = [] if beams == 1 else [_option("length_penalty", about.get("length_penalty", 1.0))]
    neutral = {"repetition_penalty": 1.0, "num_beam_groups": 1}
    left += [_option(name, about[name]) for name in OPTIONS if about.get(name) not in (None, neutral.get(name, 0))]
    if several := sum(len(words) > 1 for words in about.get("bad_words_ids") or []):
        left.append(f"bad_words_ids of several tokens: {several} (--forbid)")
    return ({} if beams == 1 else {"beam": beams}), left


def _option(name: str, value: object) -> str:
    return f"{name} = {value} ({OPTIONS.get(name, '--penalty mean --alpha {}').format(value)})"


def read(directory: Path) -> dict[str, Any]:
    """The tokenizer of a directory, as what a tokenizer.json holds."""
    if content := settings(directory, TOKENIZER):
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
    ids = settings(directory, MARIAN[1])
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


class Numbering(NamedTuple):
    """Our ids in terms of theirs."""

    rows: list[int]  # ours -> theirs; a row may come twice
    names: list[str]  # the pieces, by our ids
    before: list[int]  # ours, which stand before every text
    never: list[int]  # ours, which are not to be written

    @classmethod
    def of(cls, directory: Path, content: dict[str, Any], about: dict[str, Any]) -> "Numbering":
        """The numbering for a tokenizer and the settings of its model."""
        ids: dict[str, int] = {}
        for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
            value = about.get(key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{directory}: {key} = {value!r} is not a token's id: set it in config.json")
            ids[key] = value
        pad, start, eos = ids.values()
        theirs = _pieces(content)
        unknown = _unknown(directory, content, theirs)
        moved = {pad, start, eos, unknown}
        first = [pad, start, eos, pad if unknown is None else unknown]
        rows = [*first, *(i for i in range(about["vocab_size"]) if i not in moved)]
        if (most := max([*first, *theirs])) >= about["vocab_size"]:
            raise ValueError(f"{directory}: the tokenizer has an id {most}, but vocab_size = {about['vocab_size']}")
        names = list(RESERVED)
        for i in rows[len(RESERVED) :]:
            name = theirs.get(i, f"<no token {i}>")
            names.append(f"<{name}>" if name in RESERVED else name)
        ours = {row: i for i, row in reversed(list(enumerate(rows)))} | {eos: EOS}
        before = [ours[i] for i in _around(directory, content, eos)]
        forced = about.get("forced_bos_token_id")
        if forced is not None and before != [ours.get(forced)]:
            raise ValueError(f"{directory}: forced_bos_token_id = {forced} forces the first token: set it to null")
        never = {ours[row[0]] for row in about.get("bad_words_ids") or [] if len(row) == 1 and row[0] in ours}
        never |= {BOS} if start in (pad, eos, unknown) else set()
        never |= {UNK} if unknown is None else set()
        return cls(rows, names, before, sorted(never))

    def tokenizer(self, content: dict[str, Any], directory: Path) -> Tokenizer:
        """The tokenizer with our numbers."""
        model, path = dict(content["model"]), directory / TOKENIZER
        theirs = _pieces(content)
        if model["type"] == "Unigram":
            scores = {theirs[i]: score for i, (_, score) in enumerate(model["vocab"])}
            lowest = min(scores.values())
            old = [theirs.get(i, "") for i in self.rows]
            model |= {"vocab": [(name, scores.get(was, lowest)) for name, was in zip(self.names, old, strict=True)]}
            model["unk_id"] = UNK
        else:
            model["vocab"] = {name: i for i, name in enumerate(self.names)}
            if model.get("unk_token"):
                model["unk_token"] = UNKNOWN
        kept = [token for token in content["added_tokens"] if not token["special"]]
        ids = {name: i for i, name in enumerate(self.names)}
        about = content | {"model": model, "post_processor": None}
        about["added_tokens"] = [token | {"id": ids[token["content"]]} for token in kept]
        with no_panic(path):
            rust = Rust.from_str(json.dumps(about))
        if not self.before:
            try:
                return Tokenizer(rust.to_str(), path)  # one of regard's own, come back
            except ValueError:
                pass
        if model["type"] != "BPE":  # no text gives a special: where a text has its name, it is cut after the "<"
            cut = pre_tokenizers.Split(Regex(f"<(?=({'|'.join(name[1:] for name in RESERVED)}))"), "isolated")
            rust.pre_tokenizer = pre_tokenizers.Sequence([rust.pre_tokenizer, cut] if rust.pre_tokenizer else [cut])
        first = [(self.names[i], i) for i in self.before]
        rust.post_processor = processors.TemplateProcessing(" ".join([*dict(first), "$A"]), special_tokens=first)
        last = [rust.decoder] if rust.decoder else []
        rust.decoder = decoders.Sequence([*(decoders.Replace(name, "") for name, _ in first), *last])
        return Tokenizer(rust.to_str(), path)


def _pieces(content: dict[str, Any]) -> dict[int, str]:
    """id -> piece."""
    vocabulary = content["model"]["vocab"]
    if content["model"]["type"] == "Unigram":
        pieces = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    else:
        pieces = {i: piece for piece, i in vocabulary.items()}
    return pieces | {token["id"]: token["content"] for token in content["added_tokens"]}


def _unknown(directory: Path, content: dict[str, Any], pieces: dict[int, str]) -> int | None:
    """The id of what is not in the vocabulary, if there is one."""
    if (i := content["model"].get("unk_id")) is not None:
        return int(i)
    named = content["model"].get("unk_token") or settings(directory, SETTINGS).get("unk_token")
    name = named.get("content") if isinstance(named, dict) else named
    return next((i for i, piece in pieces.items() if piece == name), None)


def _around(directory: Path, content: dict[str, Any], eos: int) -> list[int]:
    """What their tokenizer puts before a text; after it comes the end alone, as ours has it."""
    with no_panic(directory / TOKENIZER):
        rust = Rust.from_str(json.dumps(content))
        bare, whole = (rust.encode("a", add_special_tokens=add).ids for add in (False, True))
    at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    if whole[at + len(bare) :] != [eos]:
        raise ValueError(
            f"{directory / TOKENIZER}: after a text it puts the tokens {whole[at + len(bare) :]}, but regard puts the "
            f"end, {eos}, alone"
        )
    return list(whole[:at])
