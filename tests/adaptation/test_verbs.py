"""Every verb on a directory that only adds to another one: it works, or it is one clear line and nothing is written."""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from regard import cli
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from tests.adaptation.models import taught
from tests.readers import TEXTS, directory
from tests.test_verbs_of_members import PAIRED, READERS, VERBS, WRITE, other

MEMBERS = ("classify", "gpt", "bart")
MERGE = {"quantize", "prune", "prune by a text", "prune by pairs", "ctranslate2", "hf"}  # what asks for that before
MORE = {"merge": ["merge", "lora", "out"], "peft": ["export", "lora", "out", "--to", "peft"]}


@pytest.fixture(scope="module", params=MEMBERS)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, folder = request.param, tmp_path_factory.mktemp("lora")
    if name in READERS:
        directory(folder / "base", name)
    else:
        tokens = Tokenizer.learn(TokensConfig("bpe", 280), TEXTS * 3)
        torch.manual_seed(0)
        model, task = other(name, len(tokens))
        storage.save(model, folder / "base", storage.Purpose(task.noted(), asdict(task.sections.decode())))
        tokens.save(folder / "base" / "tokenizer.json")
    base = storage.load(folder / "base")
    made = storage.begin(folder / "base", base.config, getattr(base, "head", None), [{"lora": {"rank": 2}}])
    storage.save(taught(made), folder / "lora", storage.purpose(folder / "base"))
    shutil.copy(folder / "base" / "tokenizer.json", folder / "lora")
    return name, folder


@pytest.mark.parametrize("verb", [*VERBS, *MORE])
def test_a_verb_works_on_a_lora_or_says_in_one_line_why_not(
    member: tuple[str, Path],
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, folder = member
    if verb == "distill" and name in PAIRED:
        pytest.skip("it would begin to work for long")
    said, can = VERBS[verb] if verb in VERBS else (lambda m: [m if x == "lora" else x for x in MORE[verb]], {*MEMBERS})
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    monkeypatch.chdir(tmp_path)
    words = said(str(folder / "lora"))
    if verb == "prune":
        words = [word.replace("encoder.", "decoder.") if name in WRITE else word for word in words]
    monkeypatch.setattr(sys, "argv", ["regard", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    error = capsys.readouterr().err
    able = None if can is None else name in can and verb not in MERGE
    assert code in ((0, 2) if able is None else (0,) if able else (2,)), error
    if code:
        assert (error.count("\n"), error[:7]) == (1, "error: "), error
        assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
        assert verb not in MERGE or name not in (can or {name}) or "merge" in error or "--text" in error, error
