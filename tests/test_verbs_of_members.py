"""Every verb on every member of the text family: it works, or it is one clear line and nothing is written."""

import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard import cli
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.encoder import Encoder, bert_tiny
from regard.models.family import presets
from regard.models.transformer import Transformer
from regard.tasks.task import task
from tests.readers import LONGEST, TEXTS, directory

SMALL: dict[str, Any] = {"d_model": 16, "d_ff": 32, "heads": 2}
READERS = {"classify", "embed", "mask", "tag", "answer"}
PAIRED, WRITE = {"t5", "bart", "denoise"}, {"gpt"}
ALL = READERS | PAIRED | WRITE | {"albert", "reader", "vectors"}


def other(name: str, V: int) -> tuple[nn.Module, Any]:
    """A model that is none of tests/readers.py, and what it is for."""
    if name == "gpt":
        return Decoder(gpt_tiny(V, **SMALL, layers=2, max_length=32)), task("generate")()
    if name == "albert":
        shape = SMALL | {"layers": 3, "max_length": LONGEST, "shared": True, "d_embedding": 8}
        return Encoder(bert_tiny(V, **shape)), task("mask")(block=LONGEST)
    if name == "reader":  # a decoder that reads
        head, purpose = HeadConfig("classes", 3, pool="last"), task("classify")(labels=("a", "b", "c"), longest=LONGEST)
        return Decoder(gpt_tiny(V, **SMALL, layers=2, max_length=LONGEST), head), purpose
    if name == "vectors":  # of words, and no layers
        shape = SMALL | {"layers": 0, "positions": "none", "segments": None, "embedding_norm": False}
        return Encoder(bert_tiny(V, **shape), HeadConfig("vector", pool="mean")), task("embed")(longest=LONGEST)
    shape = SMALL | {"encoder_layers": 1, "decoder_layers": 1, "max_length": 64}
    shape |= {} if name == "bart" else {"d_k": 8, "d_v": 8}
    preset = "bart-base" if name == "bart" else "t5-small"
    return Transformer(presets()[preset](V).but(**shape)), task("denoise" if name == "denoise" else "translate")()


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("members")
    found = {name: directory(folder / name, name) for name in READERS}
    for name in sorted(ALL - READERS):
        wordy = name in ("albert", "reader", "vectors")
        kind, also = (TokensConfig("wordpiece", 80), ("mask",)) if wordy else (TokensConfig("bpe", 280), ())
        tokens = Tokenizer.learn(kind, TEXTS * 3, also)
        torch.manual_seed(0)
        model, purpose = other(name, len(tokens))
        storage.save(model, folder / name, storage.Purpose(purpose.noted(), asdict(purpose.sections.decode())))
        tokens.save(folder / name / "tokenizer.json")
        found[name] = folder / name
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return found


PAIRS = ["--source", "a.txt", "--reference", "a.txt"]
FEW = ["-o", "out", "--no-prune", "--no-ablate", "--limit", "2"]
VERBS: dict[
    str, tuple[Callable[[str], list[str]], set[str] | None]
] = {  # what is said; who can do it, if that is fixed
    "translate": (lambda m: ["translate", m, "a.txt", "--limit", "5"], PAIRED),
    "generate": (lambda m: ["generate", m, "a good", "--limit", "5"], WRITE),
    "classify": (lambda m: ["classify", m, "a good film"], {"classify", "reader"}),
    "embed": (lambda m: ["embed", m, "a good film"], {"embed", "vectors"}),
    "fill": (lambda m: ["fill", m, "a [MASK] film"], {"mask", "albert"}),
    "tag": (lambda m: ["tag", m, "a good film"], {"tag"}),
    "answer": (lambda m: ["answer", m, "who?", "--context", "a man"], {"answer"}),
    "score": (lambda m: ["score", m, "--source", "a.txt", "--target", "a.txt"], PAIRED),
    "inspect": (lambda m: ["inspect", m, "a film", "-o", "out.npz"], ALL - {"vectors"}),
    "heads of a text": (lambda m: ["heads", m, "--text", "a.txt", *FEW], None),
    "heads of pairs": (lambda m: ["heads", m, *PAIRS, *FEW], None),
    "info": (lambda m: ["info", m], ALL),
    "evaluate": (lambda m: ["evaluate", m], set()),
    "evaluate on a text": (lambda m: ["evaluate", m, "--text", "a.txt"], WRITE),
    "evaluate on pairs": (lambda m: ["evaluate", m, *PAIRS, "--beam", "1"], PAIRED),
    "quantize": (lambda m: ["quantize", m, "out"], ALL),
    "shortlist": (lambda m: ["shortlist", m, "--source", "a.txt", "--target", "a.txt"], {"bart"}),
    "distill": (lambda m: ["distill", m, "quickstart", "--out", "out"], set()),
    "prune": (
        lambda m: ["prune", m, "out", "--heads", f"{side(m)}.layers.0.self_attention:1"],
        ALL - {"albert", "vectors"},
    ),
    "prune by a text": (lambda m: ["prune", m, "out", "--keep", "0.5", "--text", "a.txt"], None),
    "prune by pairs": (lambda m: ["prune", m, "out", "--keep", "0.5", *PAIRS], None),
    "ctranslate2": (lambda m: ["export", m, "out", "--to", "ctranslate2"], {"bart"}),
    "hf": (
        lambda m: ["export", m, "out", "--to", "hf"],
        ALL - {"reader", "vectors"},
    ),  # there such classes have no bias
    "gguf": (lambda m: ["export", m, "out.gguf"], set()),
}
WHY = {  # what a refusal says, if not which verb is the model's
    "evaluate": "name rows to judge by|name a --text|name what to translate",
    "inspect": "without attention has no heads",
    "prune": "layers.1.self_attention cannot lose a head: it is the same layer as encoder.layers.0|has no heads",
    "ctranslate2": "only a Transformer can be exported to CTranslate2|cannot express positions = 't5'",
    "hf": "Hugging Face has no model with (head = .*'bias': True|.*embedding_norm = False)",
    "gguf": "only a language model can|GGUF, only Llama, Mistral|no such",
}
SKIPPED = {"distill": PAIRED}  # where it would begin to work for long


def side(member: str) -> str:
    return "decoder" if Path(member).name in ("gpt", "reader") else "encoder"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_works_or_says_in_one_line_why_not(
    members: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    said, can = VERBS[verb]
    for name in sorted(ALL - SKIPPED.get(verb, set())):
        here = tmp_path / name
        here.mkdir()
        (here / "a.txt").write_bytes((members[name].parent / "a.txt").read_bytes())
        monkeypatch.chdir(here)
        monkeypatch.setattr(sys, "argv", ["regard", *said(str(members[name]))])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        error = capsys.readouterr().err
        assert code in ((0, 2) if can is None else (0,) if name in can else (2,)), (name, error)
        if code:
            assert (error.count("\n"), error[:7]) == (1, "error: "), (name, error)
            assert [each.name for each in here.iterdir()] == ["a.txt"], name
            other = "shortlists are for the native engine|--prompt and --labels"
            why = WHY.get(verb, f"{name} cannot .*, so `regard .*` is its verb|{other}")
            assert can is None or re.search(why, error), error
