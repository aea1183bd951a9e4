"""Under onnxruntime every search gives what it gives on the PyTorch model, and nothing is computed twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.convert import export, import_
from regard.convert.onnx import Onnx, _Decoder
from regard.convert.weights import WEIGHTS
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.vocabulary import EOS
from regard.decoding.module import Module
from regard.decoding.protocol import Request, SearchConfig
from regard.models import storage
from regard.models.encoder import Encoder, bert_tiny
from regard.models.family import build as build_model
from regard.models.family import configure
from regard.models.transformer import Transformer, TransformerConfig
from tests.convert.test_members import foreign, inputs
from tests.convert.test_members import said as said_there
from tests.convert.toys import learn, sentences
from tests.decoding.toys import asking, search
from tests.seers import directory as seer
from tests.test_small_members import MEMBERS

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def check(directory: Path, out: Path) -> None:
    """Greedy and beam search on graphs and on the model: the same tokens, the same scores."""
    export(directory, out, "onnx")
    model, tokenizer = storage.load(directory), Tokenizer.load(out / "tokenizer.json")
    assert isinstance(model, Transformer)
    graphs, module = Onnx(out), Module(model)
    assert (graphs.vocabulary, graphs.room([5, 2])) == (module.vocabulary, module.room([5, 2]))
    requests = [asking([*ids, EOS]) for ids in tokenizer.encode_batch(sentences(9, seed=4))]
    for config in (SearchConfig(beam=1, extra=5), SearchConfig(beam=3, best=2, extra=5)):
        # Six rows are few: sentences take the places of those that are done.
        found, expected = (search(each, requests, config, rows=6) for each in (graphs, module))
        assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


@pytest.mark.slow  # tracing takes its time
def test_a_trained_model_writes_the_same(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check(trained, tmp_path / "out")
    assert capfd.readouterr() == ("", "")  # the exporter's notes are not for our users


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_length": 30, "embedding_norm": True, "output_bias": True, "tie": "none"},
        {
            "positions": "rope",
            "feed_forward": "swiglu",
            "norm_kind": "rms",
            "norm": "pre",
            "kv_heads": 2,
            "bias": False,
        },
        {"positions": "t5", "bias": False, "d_k": 6, "d_v": 5, "feed_forward": "silu"},
        {"positions": "alibi", "scale": 0.3, "norm_eps": 1e-3, "feed_forward": "glu"},
        {"positions": "shaw", "feed_forward": "gelu", "tie": "target"},
    ],
    ids=str,
)
def test_every_kind_of_model_writes_the_same(
    build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    check(build(**changes), tmp_path / "out")


def test_a_convolution_is_refused_and_so_is_another_directory(build: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="our ONNX graph cannot express feed_forward = 'convolution'"):
        export(build(feed_forward="convolution"), tmp_path / "out", "onnx")
    with pytest.raises(ValueError, match=r"not a directory that regard exported to ONNX: it has no encoder.onnx"):
        Onnx(tmp_path / "model")


def test_an_export_leaves_the_model_as_it_was() -> None:
    model = Transformer(TransformerConfig.tiny(20))
    before = [*model.modules()]
    decoder = _Decoder(model)
    assert all(a is b for a, b in zip(before, model.modules(), strict=True))
    assert {id(p) for p in decoder.parameters()} == {id(p) for p in model.parameters()}


# One graph


def opened(directory: Path, name: str = "model.onnx") -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(directory / name, providers=["CPUExecutionProvider"])


def run(session: Any, **given: Any) -> dict[str, NDArray[Any]]:
    """What a graph gives, by name, if what it takes has these names; a past is empty unless given."""
    past = {each.name: each.shape for each in session.get_inputs() if each.name.startswith("past_key_values.")}
    rows = len(given["input_ids"])
    empty = {name: np.zeros((rows, G, 0, d), np.float32) for name, (_, G, _, d) in past.items()}
    given = empty | {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    assert given.keys() == {each.name for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def made(architecture: str, path: Path, **how: Any) -> Any:
    """A model of theirs, imported, and exported again: in theirs, ours and onnx."""
    theirs = foreign(architecture, path / "theirs")
    import_(path / "theirs", path / "ours")
    export(path / "ours", path / "onnx", "onnx", **how)
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "gives"),
    [
        ("BertModel", ["last_hidden_state", "sentence_embedding"]),
        ("BertForPreTraining", ["prediction_logits", "seq_relationship_logits"]),
        ("RobertaForSequenceClassification", ["logits"]),
        ("DistilBertForTokenClassification", ["logits"]),
        ("AlbertForQuestionAnswering", ["start_logits", "end_logits"]),
        ("AlbertForMaskedLM", ["logits"]),
        ("GPT2LMHeadModel", ["logits"]),
        ("LlamaForCausalLM", ["logits"]),
        ("MistralForCausalLM", ["logits"]),
        ("LlamaForSequenceClassification", ["logits"]),
    ],
)
def test_a_graph_says_what_transformers_says_and_comes_back(
    tmp_path: Path, architecture: str, gives: list[str]
) -> None:
    theirs = made(architecture, tmp_path)
    session = opened(tmp_path / "onnx")
    assert b".py" not in (tmp_path / "onnx" / "model.onnx").read_bytes()  # nothing of the machine that wrote it
    given = inputs(storage.load(tmp_path / "ours"), Tokenizer.load(tmp_path / "ours" / "tokenizer.json"))
    tokens, keep = given.pop("tokens"), given.pop("keep")
    for some in (slice(None), slice(1, 2)):  # any number of rows, of any length
        T = int(keep[some].sum(1).max())
        asked = {"input_ids": tokens[some, :T], "attention_mask": keep[some, :T].long()}
        asked |= {name: x[some, :T] for name, x in given.items()}
        found = {name: x for name, x in run(session, **asked).items() if not name.startswith("present.")}
        with torch.inference_mode():
            expected = theirs(**asked)
        assert [*found] == gives
        for name, x in found.items():
            wanted = expected[name] if name != "sentence_embedding" else expected["pooler_output"]
            seen = keep[some, :T] if wanted.shape[:2] == (len(tokens[some]), T) else ...
            assert np.abs(x - wanted.numpy())[seen].max() < 1e-4
    assert import_(tmp_path / "onnx" / "model.onnx", tmp_path / "back") == []
    before, after = (storage.load(tmp_path / name) for name in ("ours", "back"))
    assert (before.config, before.head) == (after.config, after.head)
    states = before.state_dict(), after.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_language_model_goes_on_from_its_past(tmp_path: Path, architecture: str) -> None:
    theirs = made(architecture, tmp_path)
    export(tmp_path / "ours", tmp_path / "whole", "onnx", past=False)
    session, whole = opened(tmp_path / "onnx"), opened(tmp_path / "whole")
    tokens = torch.randint(5, 200, (3, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.ones_like(tokens)
    keep[1, :4] = 0  # what comes before a text is padding
    at = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        expected = theirs(tokens, attention_mask=keep, position_ids=at).logits.numpy()
    seen = keep.numpy() > 0
    assert np.abs(run(whole, input_ids=tokens, attention_mask=keep)["logits"] - expected)[seen].max() < 1e-4
    found = run(session, input_ids=tokens[:, :5], attention_mask=keep[:, :5])
    logits = [found.pop("logits")]
    for t in range(5, 9):  # a token at a time
        past = {name.replace("present", "past_key_values"): x for name, x in found.items()}
        found = run(session, input_ids=tokens[:, t : t + 1], attention_mask=keep[:, : t + 1], **past)
        logits.append(found.pop("logits"))
    assert np.abs(np.concatenate(logits, 1) - expected)[seen].max() < 1e-4


@pytest.mark.slow
def test_eight_bits_are_near_and_a_model_that_nobody_else_has_is_a_graph(tmp_path: Path) -> None:
    made("BertModel", tmp_path, quantization="int8")
    given = inputs(storage.load(tmp_path / "ours"), Tokenizer.load(tmp_path / "ours" / "tokenizer.json"))
    asked = {"input_ids": given["tokens"], "attention_mask": given["keep"].long()}
    asked |= {"token_type_ids": given["token_type_ids"]}
    found = run(opened(tmp_path / "onnx"), **asked)["sentence_embedding"]
    theirs = __import__("transformers").AutoModel.from_pretrained(tmp_path / "theirs").eval()
    (expected,) = said_there(theirs, given["tokens"], given["keep"], token_type_ids=given["token_type_ids"])
    assert 1e-4 < np.abs(found - expected.numpy()).max() < 0.1
    import_(tmp_path / "onnx", tmp_path / "back")
    states = [storage.load(tmp_path / name).state_dict() for name in ("ours", "back")]
    assert all((x - states[1][key]).abs().max() <= x.abs().max() / 100 for key, x in states[0].items())

    tokenizer = learn("wordpiece")
    torch.manual_seed(0)
    model = Encoder(bert_tiny(len(tokenizer), positions="alibi", d_model=16, d_ff=24)).eval()
    storage.save(model, tmp_path / "own")
    tokenizer.save(tmp_path / "own" / "tokenizer.json")
    export(tmp_path / "own", tmp_path / "graph", "onnx")
    asked = {name: x.clamp(max=len(tokenizer) - 1) for name, x in asked.items()}
    with torch.inference_mode():
        wanted = model(asked["input_ids"], asked["token_type_ids"], asked["attention_mask"] > 0).numpy()
    assert np.abs(run(opened(tmp_path / "graph"), **asked)["logits"] - wanted)[given["keep"]].max() < 1e-4
    with pytest.raises(ValueError, match=r"config.json: model_type = None cannot be imported"):
        import_(tmp_path / "graph", tmp_path / "no")


@pytest.mark.slow
def test_real_vectors_are_the_same(tmp_path: Path) -> None:
    if not WEIGHTS["minilm"].here:
        pytest.skip("minilm is not here: regard import fetches it")
    import_("minilm", tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "onnx", "onnx")
    rust = __import__("tokenizers").Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    rust.enable_padding(pad_id=0, pad_token="[PAD]")
    rows = rust.encode_batch(["A man is eating food.", "Someone has a meal.", "unaffable " * 30])
    asked = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    asked |= {"token_type_ids": [row.type_ids for row in rows]}
    tensors = {name: torch.tensor(x) for name, x in asked.items()}
    found = run(opened(tmp_path / "onnx"), **tensors)["sentence_embedding"]
    model: Any = storage.load(tmp_path / "ours")
    with torch.inference_mode():
        wanted = model(tensors["input_ids"], tensors["token_type_ids"], tensors["attention_mask"] > 0).numpy()
    assert np.abs(found - wanted).max() < 1e-5
    assert found[0] @ found[1] > 0.6 > 0.2 > found[0] @ found[2]
    import_(tmp_path / "onnx" / "model.onnx", tmp_path / "back")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "back")]
    assert weights[0] == weights[1]


def test_what_no_graph_can_be_is_one_line(tmp_path: Path) -> None:
    tokenizer = learn("wordpiece")
    storage.save(Encoder(bert_tiny(len(tokenizer), score="additive")), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    with pytest.raises(ValueError, match="our ONNX graph cannot express score = 'additive', only 'dot'"):
        export(tmp_path / "model", tmp_path / "out", "onnx")
    storage.save(Encoder(bert_tiny(len(tokenizer))), tmp_path / "model")
    with pytest.raises(ValueError, match="unknown quantization 'int4': for onnx it is int8"):
        export(tmp_path / "model", tmp_path / "out", "onnx", quantization="int4")
    with pytest.raises(ValueError, match="an Encoder model: only a Transformer can be exported to CTranslate2"):
        export(tmp_path / "model", tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()


# What is seen and heard


def members(*names: str) -> Any:
    return pytest.mark.parametrize("name", names)


def shown(path: Path, name: str) -> tuple[Any, Path]:
    """A member of a family by chance, and where its graphs are."""
    seers = {"vit", "deit", "cct"}
    (seer(path / "own", name) if name in seers else MEMBERS[name](path / "own"))
    model: Any = storage.load(path / "own").eval()
    for x in model.parameters():
        x.data += 0.2 * torch.randn(
            x.shape, generator=torch.Generator().manual_seed(1)
        )  # what is 0 at first says nothing
    purpose = storage.purpose(path / "own")
    storage.save(model, path / "own", purpose)
    export(path / "own", path / "onnx", "onnx")
    return model, path / "onnx"


def near(session: Any, wanted: Any, **given: torch.Tensor) -> list[NDArray[Any]]:
    """What a graph gives, within 1e-4 of what is wanted."""
    found: list[NDArray[Any]] = session.run(None, {name: x.numpy() for name, x in given.items()})
    for x, y in zip(found, wanted, strict=False):
        assert x.shape == tuple(y.shape)
        assert np.abs(x - y.numpy()).max() < 1e-4
    return found


@pytest.mark.slow
@members("vit", "deit", "cct", "video", "audio")
@torch.inference_mode()
def test_a_graph_tells_what_a_model_tells_that_sees_or_hears(tmp_path: Path, name: str) -> None:
    model, out = shown(tmp_path, name)
    session = opened(out)
    (given,) = session.get_inputs()
    assert given.name == ("input_values" if name == "audio" else "pixel_values")
    for rows in (1, 3):
        x = torch.randn(rows, *given.shape[1:], generator=torch.Generator().manual_seed(rows))
        near(session, [model(x)], **{given.name: x})
    assert {each.name for each in session.get_outputs()} == {"logits"}
    assert (out / "config.json").is_file()
    if name == "cct":
        export(tmp_path / "own", tmp_path / "small", "onnx", quantization="int8")
        (found,) = opened(tmp_path / "small").run(None, {given.name: x.numpy()})
        assert 1e-4 < np.abs(found - model(x).numpy()).max() < 0.1 * model(x).abs().max()


@pytest.mark.slow
@torch.inference_mode()
def test_each_tower_is_a_graph(tmp_path: Path) -> None:
    model, out = shown(tmp_path, "pair")
    sees, reads = (opened(out, f"{tower}_model.onnx") for tower in ("vision", "text"))
    x, ids = torch.randn(3, 3, 24, 24), torch.randint(5, 100, (4, 9))
    keep = torch.arange(9) < torch.tensor([9, 4, 6, 1])[:, None]
    near(sees, [model.seen(x)], pixel_values=x)
    near(reads, [model.read(ids, keep)], input_ids=ids, attention_mask=keep.long())
    near(reads, [model.read(ids[:1, :5])], input_ids=ids[:1, :5], attention_mask=torch.ones(1, 5, dtype=torch.int64))


@pytest.mark.slow
@members("captioner", "speech")
@torch.inference_mode()
def test_words_are_written_of_what_is_seen_or_heard(tmp_path: Path, name: str) -> None:
    model, out = shown(tmp_path, name)
    (given,) = opened(out, "encoder.onnx").get_inputs()
    assert given.name == {"captioner": "pixel_values", "speech": "frames"}[name]
    x, target = torch.randn(2, *given.shape[1:]), torch.randint(5, 100, (2, 6))
    graphs, wanted = Onnx(out), model(x, target)
    rows = graphs.rows()
    rows.start([*x])
    for t in range(6):
        assert np.abs(rows.step(target[:, t].numpy()) - wanted[:, t].numpy()).max() < 1e-4
    if name == "captioner":
        config = SearchConfig(beam=3, limit=8)
        requests = [Request(each, 1) for each in x]
        found, expected = (search(each, requests, config) for each in (graphs, Module(model)))
        assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]


@pytest.mark.slow
@torch.inference_mode()
def test_patches_stand_among_the_words_of_a_graph(tmp_path: Path) -> None:
    model, out = shown(tmp_path, "seer")
    x, P = torch.randn(2, 3, 16, 16), model.config.places
    tokens = torch.tensor([[5, *[-1] * P, 6, 7, 8], [*[-1] * P, 9, 5, 4, 6]])
    (features,) = near(opened(out, "vision_model.onnx"), [model.seen(x)], pixel_values=x)
    wanted, session, seen = model(tokens, x), opened(out), {"image_features": features}
    first = run(session, input_ids=tokens[:, :-1], attention_mask=torch.ones(2, P + 3, dtype=torch.int64), **seen)
    assert np.abs(first.pop("logits") - wanted[:, :-1].numpy()).max() < 1e-4
    past = {name.replace("present", "past_key_values"): x for name, x in first.items()}
    every = torch.ones(2, P + 4, dtype=torch.int64)
    last = run(session, input_ids=tokens[:, -1:], attention_mask=every, **past, **seen)
    assert np.abs(last["logits"][:, 0] - wanted[:, -1].numpy()).max() < 1e-4


@pytest.mark.slow
@torch.inference_mode()
def test_a_model_of_graphs_is_a_graph(tmp_path: Path) -> None:
    model, out = shown(tmp_path, "graph")
    c, draw = model.config, torch.Generator().manual_seed(0)
    for B, N in ((3, 7), (1, 2)):
        given = {"nodes": torch.randint(1, c.vocabulary, (B, N, 2), generator=draw)}
        given["distances"] = torch.randint(0, 4, (B, N, N), generator=draw)
        keep = torch.arange(N) < torch.tensor([N, 1, 2][:B])[:, None]
        given["paths"] = torch.randint(0, c.vocabulary, (B, N, N, c.reach), generator=draw)
        near(opened(out), [model(**given, keep=keep)], **given, keep=keep.long())


def test_what_is_gated_has_no_graph(tmp_path: Path) -> None:
    tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"])
    made = ["gated=true", "size=32", "encoder_layers=1", "decoder_layers=1"]
    storage.save(build_model(configure("caption-tiny", made, vocabulary=len(tokens))), tmp_path / "own")
    tokens.save(tmp_path / "own" / "tokenizer.json")
    with pytest.raises(ValueError, match="our ONNX graph cannot express gated = True"):
        export(tmp_path / "own", tmp_path / "out", "onnx")
