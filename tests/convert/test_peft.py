"""What peft adds to a model of Hugging Face's, it adds to ours, and the other way round: the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.convert import export, import_
from regard.convert.merge import merge_directory
from regard.core.added import without
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from tests.adaptation.models import FAMILIES, taught
from tests.convert.toys import sentences

pytestmark = pytest.mark.oracle
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
CLASSES = {
    "encoder": "AutoModelForSequenceClassification",
    "gpt2": "AutoModelForCausalLM",
    "llama": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
}
TASKS = {"encoder": "SEQ_CLS", "gpt2": "CAUSAL_LM", "llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}
INSIDE = {"encoder": ["output.dense"], "gpt2": ["mlp.c_proj"], "llama": ["down_proj"], "t5": ["wo"]}
SCALED = {
    "encoder": ["key", "value", "output.dense"],
    "gpt2": ["c_attn", "mlp.c_proj"],
    "llama": ["k_proj", "v_proj", "down_proj"],
    "t5": ["k", "v", "wo"],
}
PRODUCTS = {
    "encoder": ["query", "value", "intermediate.dense", "output.dense"],
    "gpt2": ["c_attn", "c_fc"],
    "llama": ["q_proj", "v_proj", "gate_proj", "o_proj"],
    "t5": ["q", "v", "wi"],
}
KINDS = ["LORA", "IA3", "PROMPT_TUNING", "PREFIX_TUNING"]
CASES = [(name, kind) for name in CLASSES for kind in KINDS]


def config_of(name: str, kind: str) -> Any:
    task = TASKS[name]
    if kind == "LORA":
        more = {"r": 3, "lora_alpha": 5, "use_rslora": name == "llama", "fan_in_fan_out": name == "gpt2"}
        return peft.LoraConfig(task_type=task, target_modules=PRODUCTS[name], **more)
    if kind == "IA3":
        more = {"feedforward_modules": INSIDE[name], "fan_in_fan_out": name == "gpt2"}
        return peft.IA3Config(task_type=task, target_modules=SCALED[name], **more)
    if kind == "PROMPT_TUNING":
        return peft.PromptTuningConfig(task_type=task, num_virtual_tokens=4)
    return peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=4, prefix_projection=name == "gpt2")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of each class a model of ours, and the same as theirs."""
    found = {}
    tokens = Tokenizer.learn(TokensConfig("bpe", 280), list(sentences(60)))
    for name in CLASSES:
        place, (preset, settings) = tmp_path_factory.mktemp(name), FAMILIES[name]
        torch.manual_seed(0)
        head = HeadConfig("classes", 3, hidden="tanh") if name == "encoder" else None
        more = ("kv_heads=2",) if name == "llama" else ()
        model = build(configure(preset, (*settings, *more), vocabulary=len(tokens)), head)
        for p in model.parameters():
            p.data += 0.1 * torch.randn_like(p)
        about = {"encoder": {"name": "classify", "labels": ["a", "b", "c"]}}.get(name, {"name": "generate"})
        about = {"name": "translate"} if name == "t5" else about
        storage.save(model, place / "ours", storage.Purpose(about, {}))
        tokens.save(place / "ours" / "tokenizer.json")
        export(place / "ours", place / "theirs", "hf")
        found[name] = place / "ours", place / "theirs"
    return found


def rows(name: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    source, target = (torch.randint(4, 60, shape, generator=generator) for shape in ((2, 8), (2, 5)))
    if name in ("encoder", "t5"):
        source[1, 5:] = 0
    return (source, target) if name == "t5" else (source,)


def ours(model: nn.Module, name: str) -> Tensor:
    with torch.no_grad():
        return model(*rows(name))


def theirs(model: Any, name: str) -> Tensor:
    given = {"input_ids": rows(name)[0], "attention_mask": (rows(name)[0] != 0).long()}
    given |= {"decoder_input_ids": rows(name)[1]} if name == "t5" else {}
    with torch.no_grad():
        said = model.eval()(**given).logits
    return said if name in ("encoder", "t5") else said[:, -rows(name)[0].shape[1] :]


def foreign(name: str, place: Path) -> Any:
    return getattr(transformers, CLASSES[name]).from_pretrained(place, attn_implementation="eager")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_in(name: str, kind: str, bases: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    own, other = bases[name]
    torch.manual_seed(4)
    model = peft.get_peft_model(foreign(name, other), config_of(name, kind))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(tmp_path / "peft")
    import_(tmp_path / "peft", tmp_path / "more", base=own)
    found = storage.load(tmp_path / "more")
    expected = theirs(model, name)
    torch.testing.assert_close(ours(found, name), expected, atol=1e-5, rtol=1e-5)
    with without(found), pytest.raises(AssertionError):
        torch.testing.assert_close(ours(found, name), expected, atol=1e-3, rtol=0)
    if kind in ("LORA", "IA3"):
        merge_directory(tmp_path / "more", tmp_path / "one")
        torch.testing.assert_close(ours(storage.load(tmp_path / "one"), name), expected, atol=1e-5, rtol=1e-5)
    export(tmp_path / "more", tmp_path / "again", "peft")  # and back
    again = peft.PeftModel.from_pretrained(foreign(name, other), tmp_path / "again")
    torch.testing.assert_close(theirs(again, name), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case != ("t5", "PREFIX_TUNING")])
def test_out(name: str, kind: str, bases: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    own, other = bases[name]
    changes = {
        "LORA": {"lora": {"rank": 3, "where": ["query", "key", "outer"]}},
        "IA3": {"ia3": {}},
        "PROMPT_TUNING": {"prompt": {"length": 4}},
        "PREFIX_TUNING": {"prefix": {"length": 4}},
    }
    base = storage.load(own)
    model = taught(storage.begin(own, base.config, getattr(base, "head", None), [changes[kind]])).eval()
    storage.save(model, tmp_path / "more", storage.purpose(own))
    (tmp_path / "more" / "tokenizer.json").write_bytes((own / "tokenizer.json").read_bytes())
    export(tmp_path / "more", tmp_path / "peft", "peft")
    found = peft.PeftModel.from_pretrained(foreign(name, other), tmp_path / "peft")
    torch.testing.assert_close(theirs(found, name), ours(model, name), atol=1e-5, rtol=1e-5)


def test_what_is_not_carried_over_is_told(bases: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    own, other = bases["gpt2"]
    model = peft.get_peft_model(foreign("gpt2", other), peft.LoraConfig(target_modules=["c_attn"], use_dora=True))
    model.save_pretrained(tmp_path / "dora")
    with pytest.raises(ValueError, match="use_dora = True cannot be expressed"):
        import_(tmp_path / "dora", tmp_path / "more", base=own)
    with pytest.raises(ValueError, match="adds to a model: say to which, by --base"):
        import_(tmp_path / "dora", tmp_path / "more")
    with pytest.raises(ValueError, match="is no directory of peft's: leave out base"):
        import_(other, tmp_path / "more", base=own)
    with pytest.raises(ValueError, match="peft has one of lora, ia3, prompt and prefix in a directory: this model has"):
        export(own, tmp_path / "none", "peft")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("name", "modules"), [("gpt2", ["wte", "c_attn", "lm_head"]), ("llama", ["embed_tokens", "o_proj"])]
)
def test_the_two_ends(name: str, modules: list[str], bases: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    own, other = bases[name]
    torch.manual_seed(4)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=modules, r=3, fan_in_fan_out=name == "gpt2")
    model = peft.get_peft_model(foreign(name, other), config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(tmp_path / "peft")
    import_(tmp_path / "peft", tmp_path / "more", base=own)
    expected = theirs(model, name)
    torch.testing.assert_close(ours(storage.load(tmp_path / "more"), name), expected, atol=1e-4, rtol=1e-4)
    export(tmp_path / "more", tmp_path / "again", "peft")
    again = peft.PeftModel.from_pretrained(foreign(name, other), tmp_path / "again")
    torch.testing.assert_close(theirs(again, name), expected, atol=1e-4, rtol=1e-4)


def test_the_ends_of_an_encoder_decoder_are_not_carried_over(
    bases: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    own, _ = bases["t5"]
    change = {"lora": {"rank": 3, "where": ["query", "embedding"]}}
    storage.save(storage.begin(own, storage.config(own), None, [change]), tmp_path / "more", storage.purpose(own))
    (tmp_path / "more" / "tokenizer.json").write_bytes((own / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"what was added to source_embedding.tokens is not carried over"):
        export(tmp_path / "more", tmp_path / "peft", "peft")
