"""Spoilt text: what T5 and BART read and write, from the same draw the same, and a run that other tasks begin with."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file

from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.recipes import reading
from regard.recipes.train import train
from regard.tasks.denoise import WAYS, Denoise, DenoiseConfig, Spoiling, corrupted, sentinels_of, spans

QUIET = Console(quiet=True)
TEXT = "the cat sat on the mat. the dog sat on the log! why did it? nobody knows.\n" * 40


@given(st.integers(2, 300), st.floats(0.05, 0.6), st.floats(1, 8), st.integers(0, 99))
def test_spans_lie_apart_and_hold_the_share(length: int, share: float, mean: float, seed: int) -> None:
    found = spans(length, share, mean, np.random.default_rng(seed))
    assert sum(end - begin for begin, end in found) == min(max(1, round(length * share)), length - 1)
    edges = [x for span in found for x in span]
    assert edges == sorted(edges)
    assert all(after - before > 0 for before, after in zip(edges[1::2], edges[2::2], strict=False))


@given(st.integers(2, 200), st.integers(0, 99))
def test_what_is_read_and_what_is_written_are_the_text(length: int, seed: int) -> None:
    text, sentinels = np.arange(1000, 1000 + length), list(range(100))
    read, said = corrupted(text, sentinels, 0.15, 3.0, np.random.default_rng(seed))
    gaps = {int(i): [] for i in said if i < 100}
    for i in said.tolist():
        if i < 100:
            last = i
        else:
            gaps[last].append(i)
    whole = [x for i in read.tolist() for x in (gaps[i] if i < 100 else [i])]
    assert whole == text.tolist()
    assert gaps[last] == []  # the last sentinel ends it


def test_each_way_to_spoil_a_text() -> None:
    text, stops = np.arange(100, 160), np.array([109, 129])
    c = Spoiling(7, stops, 0.3, 3.0)
    each = {name: way(text, np.random.default_rng(3), c) for name, way in WAYS.items()}
    assert len(each["mask"]) == 60
    assert 8 < (each["mask"] == 7).sum() < 30
    assert set(each["delete"]) < set(text)
    assert sorted(each["permute"]) == sorted(each["rotate"]) == text.tolist()
    assert each["permute"].tolist() != text.tolist()
    begin = int(each["rotate"][0])
    assert each["rotate"].tolist() == [*range(begin, 160), *range(100, begin)]
    kept = [i for i in each["infill"].tolist() if i != 7]
    assert kept == sorted(kept)
    assert 0 < 60 - len(kept) <= 18
    assert 7 in each["infill"]


@pytest.mark.parametrize("noise", ["[spans]", "[infill, permute]"])
def test_a_denoiser_is_trained_resumed_and_begun_with(tmp_path: Path, noise: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "t5.yaml").write_text(
        f"""
task: {{name: denoise, block: 24, noise: {noise}}}
data: {{train: {{text: text.txt, documents: line}}, hold_out: 3}}
tokens: {{kind: wordpiece, size: 150}}
model: {{preset: tiny, encoder_layers: 1, decoder_layers: 1, d_model: 16, d_ff: 32, heads: 2}}
train:
  {{steps: 4, batch_tokens: 128, checkpoint_every: 2, shards: 1, schedule: {{name: constant, peak: 0.001, warmup: 1}}}}
"""
    )
    recipe = str(tmp_path / "t5.yaml")
    assert train(reading.load(recipe), tmp_path / "whole", name="t5", console=QUIET)
    train(reading.load(recipe, ["train.steps=2"]), tmp_path / "parts", name="t5", console=QUIET)
    train(reading.load(recipe), tmp_path / "parts", name="t5", console=QUIET, resume=True)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    (tmp_path / "pairs.tsv").write_text("".join(f"the cat {i}\tcat\n" for i in range(50)))
    (tmp_path / "titles.yaml").write_text(
        "data: {train: {tsv: pairs.tsv}, hold_out: 2, max_length: 20}\nmodel: {from: whole}\n"
        "train: {steps: 1, batch_tokens: 128, schedule: {name: constant, peak: 1e-9, warmup: 1}}"
    )
    assert train(reading.load(str(tmp_path / "titles.yaml")), tmp_path / "titles", name="titles", console=QUIET)
    after = load_file(tmp_path / "titles" / "model.safetensors")
    assert all(np.allclose(whole[name], after[name], atol=1e-6) for name in whole)


def test_noise_is_drawn_by_what_it_is_given_and_refused_where_it_contradicts() -> None:
    tokens = Tokenizer.learn(TokensConfig("char", 0), [TEXT], Denoise.marks)
    assert len(sentinels_of(tokens)) == 100
    batch = Denoise(block=30).collate(tokens, 0.0)
    rows = [(np.array(tokens.encode(TEXT[:80])),)] * 3
    one, two, three = (batch(rows, Random(seed)) for seed in (1, 1, 2))
    assert one["source"].tolist() == two["source"].tolist() != three["source"].tolist()
    with pytest.raises(ValueError, match=r"task.noise = 'span': did you mean 'spans'"):
        DenoiseConfig(noise=("span",))
    with pytest.raises(ValueError, match="spans says what stood in the gaps"):
        DenoiseConfig(noise=("spans", "mask"))
    with pytest.raises(ValueError, match="has no sentinels"):
        sentinels_of(Tokenizer.learn(TokensConfig("char", 0), [TEXT]))
