"""The benchmarks still run; what they print is not judged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.models.transformer import Transformer, TransformerConfig

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_attention_benchmark_prints_a_row_for_each_length() -> None:
    command = [sys.executable, ROOT / "bench" / "attention.py", "--lengths", "32", "128", "--rounds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fused, ms" in result.stdout
    assert "128" in result.stdout
    assert "slope" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_training_benchmarks_print_a_row_for_each_contestant() -> None:
    shapes = ["tiny", "bert-tiny", "gpt-tiny", "vit-tiny"]
    how = ["--rounds", "1", "--recompute", "feed_forward", "--precisions", "fp32"]
    step = [sys.executable, ROOT / "bench" / "train_step.py", *shapes, *how]
    printed = subprocess.run(step, capture_output=True, text=True, check=True).stdout
    peers = (
        "torch.nn.Transformer",
        "Hugging Face Marian",
        "Hugging Face BERT",
        "Hugging Face GPT-2",
        "Hugging Face ViT",
    )
    assert all(f"│ {name} " in printed for name in ("regard", *peers))
    loop = [sys.executable, ROOT / "bench" / "loop.py", "--steps", "2", "--rounds", "1"]
    for more in ([], ["--pictures"]):
        assert "median ratio" in subprocess.run([*loop, *more], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_benchmark_of_seeing_prints_a_row_for_each_contestant() -> None:
    names = ["regard", "Hugging Face", "regard int8"]
    command = [sys.executable, ROOT / "bench" / "see.py", "vit-tiny", "--batch", "2", "--rounds", "1", "--only", *names]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"│ {name} " in printed for name in names)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_zoo_benchmark_prints_a_row_for_each_kind() -> None:
    options = ["--limit", "256", "--rounds", "1", "--kinds", "fused", "window:64", "--steps", "2"]
    command = [sys.executable, ROOT / "bench" / "zoo.py", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "slope" in result.stdout
    assert result.stdout.count("window:64") == 3  # its time, its memory and its quality
    assert "full" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_benchmark_of_small_models_prints_a_row_for_each_form(tmp_path: Path) -> None:
    lines = [f"{a} {b} {c}" for a in "abc" for b in "def" for c in "ghi"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    text = "{" + f"source: {tmp_path}/text, target: {tmp_path}/text" + "}"
    recipe = f"data: {{train: {text}, valid: {text}, test: {text}}}\ntokens: {{kind: none}}\ntrain: {{steps: 1}}\n"
    tokenizer = Tokenizer.learn(TokensConfig("none", size=0), lines)
    for name in ("large", "little"):
        model = Transformer(TransformerConfig.tiny(len(tokenizer), encoder_layers=1, decoder_layers=1))
        storage.save(model, tmp_path / name)
        tokenizer.save(tmp_path / name / "tokenizer.json")
        (tmp_path / name / "recipe.yaml").write_text(recipe, "utf-8")
    program, options = [sys.executable, ROOT / "bench" / "small.py"], ["--limit", "5", "--rounds", "1"]
    command = [*program, tmp_path / "large", tmp_path / "little", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for form, rows in (("teacher", 3), ("student", 3), ("int8", 4), ("shortlist", 2), (" MB ", 6), (" ms ", 6)):
        assert result.stdout.count(form) == rows, form
    assert not (tmp_path / "large" / "shortlist.safetensors").exists()
    wrong = subprocess.run([*program, tmp_path, tmp_path / "little"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_benchmark_of_writing_on_prints_a_row_for_each_contestant() -> None:
    options = ["--batch", "1", "3", "--prompt", "9", "--new", "5", "--rounds", "1"]
    command = [sys.executable, ROOT / "bench" / "generate.py", "gpt-tiny", *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("regard", "regard torch", "Hugging Face", "regard int8"):
        assert printed.count(f"│ {name:<12} │") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [("windows:64", "unknown attention"), ("window:999", "reaches 999 positions"), ("full", "by its backends: math")],
)
def test_the_zoo_benchmark_refuses_before_it_measures(kind: str, message: str) -> None:
    command = [sys.executable, ROOT / "bench" / "zoo.py", "--kinds", "window:64", kind]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="there is no Chromium"
)
def test_the_explorer_benchmark_prints_a_row_for_each_length() -> None:
    command = [sys.executable, ROOT / "bench" / "explore.py", "--tokens", "24", "--moves", "3", "--clicks", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hover, ms" in result.stdout
    assert "│ 24 " in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_benchmark_of_loras_prints_a_row_for_each_model() -> None:
    options = ["--loras", "2", "--keep", "2", "--rounds", "1"]
    result = subprocess.run(
        [sys.executable, ROOT / "bench" / "loras.py", *options], capture_output=True, text=True, check=True
    )
    assert all(f"│ {kind} " in result.stdout for kind in ("encoder", "decoder"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_the_video_benchmark_prints_a_row_for_each_number_of_frames() -> None:
    command = [sys.executable, ROOT / "bench" / "video.py", "--frames", "2", "4", "--rounds", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"{way}, ms" in printed for way in ("joint", "factorised", "divided"))
    assert "slope" in printed


@pytest.mark.slow
def test_the_plan_of_the_papers_own_run_takes_as_long_as_it_did() -> None:
    options = ["--tokens", "7.5e9", "--batch", "25000", "--devices", "8", "--flops", "9.5e12", "--share", "0.42"]
    command = [sys.executable, ROOT / "bench" / "plan.py", "big", *options, "--gbit", "10", "--hosts", "1", "2"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "3.51-3.51" in printed  # days; 3.5 in the paper
    assert "1.285" in printed  # 2 · 15/16 · 4 bytes · 214,245,376 · 8 / 1e10


PAIRS = [{"prompt": f"Say {i} and {i + 7}", "answer": f"It is {i}, and {i + 7}."} for i in range(40)]
TAUGHT = {
    "converse": (
        "task: {name: converse, template: plain}\ndata: {train: {jsonl: rows.jsonl}, max_length: 64, hold_out: 2}",
        PAIRS,
        ("perplexity", "68.2"),
    ),
    "classify": (
        "task: {name: classify}\ndata: {train: {jsonl: rows.jsonl}, max_length: 16, hold_out: 4}",
        [{"text": f"{row['prompt']} {i}", "label": "ab"[i % 2]} for i, row in enumerate(PAIRS)],
        ("accuracy", "94.8", "95.1"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAUGHT)
def test_the_benchmark_of_ways_to_teach_prints_a_row_for_each(name: str, tmp_path: Path) -> None:
    recipe, rows, shown = TAUGHT[name]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tokenizer = Tokenizer.learn(TokensConfig("bpe", 270), [" ".join(row.values()) for row in rows])
    head = HeadConfig("classes", 2) if name == "classify" else None
    preset = "bert-tiny" if name == "classify" else "gpt-tiny"
    model = build(configure(preset, ("layers=1", "max_length=64"), vocabulary=len(tokenizer)), head)
    purpose = {"name": "classify", "labels": ["a", "b"]} if name == "classify" else {"name": "generate"}
    storage.save(model, tmp_path / "base", storage.Purpose(purpose, {}))
    tokenizer.save(tmp_path / "base" / "tokenizer.json")
    train = "model: {from: base}\ntrain: {steps: 1, batch_tokens: 256, optimiser: {name: adamw}}\n"
    (tmp_path / "taught.yaml").write_text(f"{recipe}\n{train}")
    program = [sys.executable, ROOT / "bench" / "methods.py"]
    command = [*program, "taught.yaml", "--only", "everything,lora", "--out", "found"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert all(word in result.stdout for word in ("seconds", "a paper says", "│ lora ", *shown))
    wrong = subprocess.run([*program, "taught.yaml", "--only", "lara"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "--only lara: there are everything, lora," in wrong.stderr) == (2, True)
