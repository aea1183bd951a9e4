"""Every member made smaller, by quantize, prune, distill and export, and used after that; or one line says why not."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from regard import cli
from regard.core.outputs import HeadConfig
from regard.data.sound import RATE, as_wav
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import FAMILIES, build, configure, family
from tests.eyes import eyes, png
from tests.readers import directory as reader
from tests.seers import directory as seer
from tests.serving.test_graphs import GRAPH, graph_reader
from tests.speech import directory as listener
from tests.speech import noise
from tests.videos import video, written

WIDE = ["d_model=32", "d_ff=32", "heads=2"]  # of which groups of four bits are made


def made(place: Path, preset: str, task: dict[str, object], *own: str, head: HeadConfig | None = None) -> Path:
    """A model of a preset by chance; of words, with a tokenizer for them."""
    tokens = Tokenizer.learn(TokensConfig("bpe", 270), ["two men sit on a bench"] * 3)
    torch.manual_seed(0)
    words = {} if head else {"vocabulary": len(tokens)}
    storage.save(build(configure(preset, own, **words), head), place, storage.Purpose(task, {}))
    if words:
        tokens.save(place / "tokenizer.json")
    return place


SIDES, TRANSLATE = ["encoder_layers=1", "decoder_layers=1"], {"name": "translate"}
TWO = HeadConfig("classes", 2)
AUDIO = {"name": "hear", "labels": ["a", "b"], "sight": {"bands": 16, "frames": 24, "even": True}}
VIDEO = {"name": "recognise", "labels": ["a", "b"], "sight": {"size": 16, "frames": 4}}
SEEN = ["size=16", "channels=3", "patch=8", "convolutions=0", "frames=4", "tubelet=1", "layers=1", *WIDE]
MEMBERS: dict[str, Callable[[Path], Path]] = {  # one of each family
    "transformer": lambda at: made(at, "tiny", TRANSLATE, *SIDES, *WIDE),
    "recurrent": lambda at: made(at, "lstm", TRANSLATE, *SIDES, "d_model=32"),
    "convolutional": lambda at: made(at, "convs2s", TRANSLATE, *SIDES, "d_model=32"),
    "decoder": lambda at: made(at, "gpt-tiny", {"name": "generate"}, "layers=1", *WIDE),
    "encoder": lambda at: reader(at, "classify"),
    "vision": lambda at: seer(at, "vit"),
    "video": lambda at: made(at, "vivit-tiny", VIDEO, *SEEN, head=TWO),
    "pair": lambda at: seer(at, "clip"),
    "captioner": lambda at: seer(at, "captions"),
    "speech": lambda at: listener(at),
    "seer": lambda at: eyes(at, "look"),
    "graph": graph_reader,
    "audio": lambda at: made(at, "ast-tiny", AUDIO, "bands=16", "frames=24", "patch=8", "layers=1", *WIDE, head=TWO),
}
USED: dict[str, list[str]] = {  # how one of them is used
    "transformer": ["translate", "a.txt", "--limit", "4"],
    "recurrent": ["translate", "a.txt", "--limit", "4"],
    "convolutional": ["translate", "a.txt", "--limit", "4"],
    "decoder": ["generate", "two men", "--limit", "4"],
    "encoder": ["classify", "a good film"],
    "vision": ["classify", "a.png"],
    "video": ["classify", "a.mp4"],
    "pair": ["embed", "a.png"],
    "captioner": ["caption", "a.png", "--limit", "4"],
    "speech": ["transcribe", "a.wav"],
    "seer": ["caption", "a.png", "--limit", "4"],
    "graph": ["classify", "a.jsonl"],
    "audio": ["classify", "b.wav"],
}
HEADLESS = {"recurrent", "graph"}
TRANSLATES = {"transformer", "recurrent", "convolutional"}
GRAPHLESS = {"recurrent", "convolutional"}
NOT = {
    "prune": r"has no heads to prune|no attention is named",
    "distill": r"cannot translate: it is .*, so `regard \w+` is its verb",
    "export": r"a (Recurrent|Convolutional) model: only Encoder, Decoder, .* can be exported to ONNX",
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("members")
    assert MEMBERS.keys() == FAMILIES.keys()
    for name, make in MEMBERS.items():
        make(folder / name)
        assert type(storage.load(folder / name)) is family(name).model
    return folder


@pytest.fixture
def said(
    members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """What the command says: its exit code, its output, its error."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("two men\n")
    Path("a.png").write_bytes(png(size=24))
    Path("a.jsonl").write_text(json.dumps(GRAPH) + "\n")
    for name, seconds in (("a.wav", 0.5), ("b.wav", 0.2)):
        Path(name).write_bytes(as_wav(noise(seconds), RATE))
    written(video("darker", np.random.default_rng(0)), Path("a.mp4"))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        code: int | str | None = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        out, error = capsys.readouterr()
        return code if isinstance(code, int) else int(bool(code)), out, error

    return run


def refused(code: int, error: str, why: str) -> None:
    assert (code, error.count("\n"), error[:7]) == (2, 1, "error: "), error
    assert re.search(why, error), error


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_quantized_member_is_used_as_before(said, members: Path, name: str, precision: str) -> None:  # type: ignore[no-untyped-def]
    code, _, error = said("quantize", members / name, "small", "--precision", precision)
    assert code == 0, error
    verb, *what = USED[name]
    for engine in ("auto", "torch")[: 1 + (precision == "int4")]:
        code, out, error = said(verb, "small", *what, "--engine", engine)
        assert code == 0, error
        assert out


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_loses_a_head_or_has_none(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    from regard.inspection.taps import attentions

    first = next((path for path in attentions(storage.load(members / name)) if path), "encoder.layers.0.self_attention")
    code, out, error = said("prune", members / name, "small", "--heads", f"{first}:0")
    if name in HEADLESS:
        refused(code, error, NOT["prune"] + "|cannot lose a head")
        return
    assert code == 0, error
    assert "of " in out
    verb, *what = USED[name]
    assert said(verb, "small", *what)[0] == 0


AS_BEFORE = [{"lora": {"rank": 2, "where": ["all"]}}, {"ia3": {}}, {"adapter": {"width": 4}}, {"biases": {}}]
OTHERWISE = [{"prefix": {"length": 2}}, {"prompt": {"length": 2}}]
UNFIT = {  # what a family has no place for
    "recurrent": {"lora", "ia3", "adapter", "prefix", "prompt"},
    "convolutional": {"adapter", "prefix", "prompt"},
    "video": {"prefix", "prompt"},
    **{key: {"prompt"} for key in ("vision", "captioner", "speech", "graph", "audio")},
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_is_added_to_and_used(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    base, (verb, *what) = members / name, USED[name]
    config, head = storage.config(base), getattr(storage.load(base), "head", None)
    for each in (*AS_BEFORE, *OTHERWISE):
        if {*each} & UNFIT.get(name, set()):
            with pytest.raises(ValueError, match="finds nothing to change: a "):
                storage.begin(base, config, head, [each])
    before = said(verb, base, *what, "--engine", "torch")
    for changes in (AS_BEFORE, AS_BEFORE + OTHERWISE):
        fit = [each for each in changes if not {*each} & UNFIT.get(name, set())]
        storage.save(storage.begin(base, config, head, fit), Path("more"), storage.purpose(base))
        for file in base.iterdir():
            if not (Path("more") / file.name).exists():
                shutil.copy(file, "more")
        after = said(verb, "more", *what, "--engine", "torch")
        assert after[0] == 0, after[2]
        assert changes != AS_BEFORE or after == before  # which add nothing at first
        shutil.rmtree("more")


LAYERED = {"encoder": "encoder.layers.0", "vision": "encoder.layers.1", "speech": "decoder.layers.0"}
KEPT = {
    "transformer": "would have no layer left: keep one",
    "recurrent": "would have no layer left",
    "convolutional": "no layer is named|no layers to prune|no layer left",
}


@pytest.mark.parametrize("name", [*LAYERED, *KEPT])
def test_a_member_loses_a_layer_or_says_why_not(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    code, _, error = said("prune", members / name, "small", "--layers", LAYERED.get(name, "encoder.layers.0"))
    if name in KEPT:
        refused(code, error, KEPT[name])
        return
    assert code == 0, error
    before, after = storage.load(members / name), storage.load("small")
    path, _, number = LAYERED[name].rpartition(".layers.")
    stacks = [model.get_submodule(f"{path}.layers") for model in (before, after)]
    assert [len(list(stack)) for stack in stacks] == [2, 1]  # type: ignore[call-overload]
    left = stacks[0].get_submodule(str(1 - int(number))).state_dict()
    assert all(torch.equal(x, left[key]) for key, x in stacks[1].get_submodule("0").state_dict().items())
    verb, *what = USED[name]
    assert said(verb, "small", *what)[0] == 0
    assert said("quantize", "small", "smaller")[0] == 0


@pytest.mark.parametrize("name", sorted(MEMBERS.keys() - TRANSLATES))
def test_who_translates_can_teach_to_translate(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    code, _, error = said("distill", members / name, "quickstart", "--out", "small")
    refused(code, error, NOT["distill"])
    assert not Path("small").exists()


@pytest.mark.parametrize("name", sorted(GRAPHLESS))
def test_who_has_no_graph_says_so(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    code, _, error = said("export", members / name, "small", "--to", "onnx")
    refused(code, error, NOT["export"])
    assert not Path("small").exists()


@pytest.mark.slow  # tracing takes its time
@pytest.mark.parametrize("name", sorted(MEMBERS.keys() - GRAPHLESS))
def test_the_others_are_graphs(said, members: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    runtime = pytest.importorskip("onnxruntime")
    code, _, error = said("export", members / name, "small", "--to", "onnx")
    assert code == 0, error
    graphs = [*Path("small").glob("*.onnx")]
    assert graphs
    for graph in graphs:
        assert runtime.InferenceSession(graph, providers=["CPUExecutionProvider"]).get_outputs()
