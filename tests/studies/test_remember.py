"""Models that remember: kNN-LM and kNN-MT, against plain loops, and by every door."""

import errno
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.adaptation.change import read
from regard.adaptation.recall import Neighbours, recall_of
from regard.core.added import without
from regard.data.documents import TextFiles
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.recipes import reading
from regard.serving import looks
from regard.serving.live import Live
from regard.studies.evaluate import foretell
from regard.studies.remember import recalled, remember
from regard.tasks.asks import DecodeConfig
from regard.tasks.generate import Generate, WriteConfig, sliding
from regard.tasks.translate import Translate

TEXT = "".join(
    f"the {a} {b}s the {c}\n" for a in ("cat", "dog", "man") for b in ("see", "like") for c in ("sun", "sea")
)
PAIRS = [
    (f"a {a} {b}", f"ein {c} {d}")
    for a, c in (("cat", "Kater"), ("dog", "Hund"))
    for b, d in (("eats", "isst"), ("sits", "sitzt"))
]


def kept(model: Any, folder: Path, text: str, task: Any, use: Any) -> Path:
    tokens = Tokenizer.learn(TokensConfig(kind="char", size=0), [text])
    storage.save(model(len(tokens)), folder, storage.Purpose(task.noted(), asdict(use)))
    tokens.save(folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model and a translator that were taught nothing, and what they could remember."""
    folder = tmp_path_factory.mktemp("memory")
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
    kept(lambda n: Decoder(gpt_tiny(n, max_length=32, **sizes)), folder / "lm", TEXT, Generate(block=32), WriteConfig())
    both = "".join(source + target for source, target in PAIRS)
    small = {**sizes, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    del small["layers"]
    kept(
        lambda n: Transformer(TransformerConfig.tiny(n, **small)),
        folder / "mt",
        both,
        Translate(),
        DecodeConfig(beam=2),
    )
    (folder / "text.txt").write_text(TEXT[:200])
    (folder / "held.txt").write_text(TEXT[200:])
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    remember(
        folder / "lm", folder / "memory", [folder / "text.txt"], {"share": 0.4, "neighbours": 5, "temperature": 3.0}
    )
    return folder


def test_it_foretells_as_plain_loops_do(places: Path) -> None:
    memory = regard.load(places / "memory", engine="torch")
    model, tokens, task = memory.model, memory.tokenizer, Generate(block=32)
    part: Any = recall_of(model)
    nats, count = 0.0, 0

    def ids_of(name: str) -> list[int]:
        return [i for (row,) in task.examples(list(TextFiles(str(places / name)).read()), tokens) for i in row]

    with torch.inference_mode():
        keys, values = [], []
        for ids, seen in sliding(ids_of("text.txt"), 32, 16):
            for t, h in enumerate(model.features(torch.tensor([ids[:-1]]))[0]):
                if t >= seen:
                    keys.append(h.double().numpy())
                    values.append(ids[t + 1])
        assert np.allclose(part.memory.states, keys, atol=1e-6)
        assert part.memory.tokens(np.arange(len(keys))).tolist() == values
        for ids, seen in sliding(ids_of("held.txt"), 32, 16):
            for t, h in enumerate(model.features(torch.tensor([ids[:-1]]))[0]):
                if t < seen:
                    continue
                far = sorted((float(((h.double().numpy() - key) ** 2).sum()), i) for i, key in enumerate(keys))[:5]
                total = sum(math.exp(-d / 3.0) for d, _ in far)
                near = sum(math.exp(-d / 3.0) for d, i in far if values[i] == ids[t + 1]) / total
                with without(model):
                    own = float(model.output(h).double().softmax(-1)[ids[t + 1]])
                nats -= math.log(0.6 * own + 0.4 * near)
                count += 1
    assert foretell(places / "memory", places / "held.txt")["loss"] == pytest.approx(nats / count, abs=1e-5)
    assert nats / count < foretell(places / "lm", places / "held.txt")["loss"]


def test_without_a_share_it_is_the_model_to_the_bit(places: Path, tmp_path: Path) -> None:
    remember(places / "lm", tmp_path / "none", [places / "text.txt"], {"share": 0.0})
    plain, memory = regard.load(places / "lm", engine="torch").model, regard.load(tmp_path / "none").model
    tokens = torch.arange(3, 18)[None]
    assert torch.equal(plain(tokens), memory(tokens))
    memory = regard.load(places / "memory").model
    assert not torch.allclose(plain(tokens), memory(tokens))
    with without(memory):
        assert torch.equal(plain(tokens), memory(tokens))
    torch.testing.assert_close(memory(tokens).exp().sum(-1), torch.ones(1, 15))


def test_what_is_written_hangs_on_no_company(places: Path) -> None:
    memory = regard.load(places / "memory", bitwise=True)
    prompts = ["the cat", "the dog sees", "the man likes the"]
    alone = [memory.generate(prompt, limit=12, sampling=None) for prompt in prompts]
    assert memory.generate(prompts, limit=12, sampling=None) == alone
    assert "sees" in regard.load(places / "memory").generate("the cat ", limit=12, sampling=None, beam=1) + alone[0]


def test_a_translator_that_was_taught_nothing_says_what_it_remembers(places: Path, tmp_path: Path) -> None:
    files = PairFiles(tsv=str(places / "pairs.tsv"))
    found = remember(places / "mt", tmp_path / "mt", [files], {"share": 1.0, "neighbours": 1})
    assert found.states == sum(len(target) + 1 for _, target in PAIRS)
    memory = regard.load(tmp_path / "mt")
    assert memory.translate([source for source, _ in PAIRS]) == [target for _, target in PAIRS]
    assert regard.load(places / "mt").translate(PAIRS[0][0]) != PAIRS[0][1]
    seen = recalled(memory, PAIRS[2][0])
    assert [each.near[0].place for each in seen] == [f"{places / 'pairs.tsv'}:3"] * len(seen)
    assert seen[-1].ends
    assert all(each.p == pytest.approx(1.0) and each.near[0].distance < 1e-6 for each in seen)


def test_share_and_temperature_are_those_that_held_out_text_asks_for(places: Path, tmp_path: Path) -> None:
    found = remember(places / "lm", tmp_path / "fit", [places / "text.txt"], {}, places / "held.txt")
    assert found.losses is not None
    assert foretell(places / "lm", places / "held.txt")["loss"] == pytest.approx(found.losses[0], abs=1e-5)
    assert foretell(tmp_path / "fit", places / "held.txt")["loss"] == pytest.approx(found.losses[1], abs=1e-5)
    for other in ({"share": 0.1}, {"temperature": found.change.temperature * 50}):
        settings = {**asdict(found.change), **other}
        assert not remember(places / "lm", tmp_path / "fit", [places / "text.txt"], settings).new
        assert foretell(tmp_path / "fit", places / "held.txt")["loss"] > found.losses[1]
    more = remember(places / "lm", tmp_path / "fit", [places / "text.txt", places / "held.txt"])
    assert (more.new, asdict(more.change)) == (1, settings)  # which stay as they were
    assert (
        foretell(tmp_path / "fit", places / "held.txt")["loss"] < foretell(places / "lm", places / "held.txt")["loss"]
    )


def told(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})


def test_the_command_remembers_and_shows_from_where(places: Path, tmp_path: Path) -> None:
    done = told("remember", places / "lm", tmp_path / "m", places / "text.txt", "--share", "0.5", "--near", "exact")
    assert done.exit_code == 0, done.output
    assert "202 states, 1 new file" in done.stderr  # of 200 characters, a line feed and an end
    shown = told("recall", tmp_path / "m", "the cat see", "--top", "2")
    assert shown.exit_code == 0, shown.output
    assert f"{places / 'text.txt'}:1  ▁the cat see [s]" in shown.stdout.replace("  the", "  ▁the")
    rows = [
        json.loads(line) for line in told("recall", tmp_path / "m", "the cat", "--json", "--every").stdout.splitlines()
    ]
    assert len(rows) == len("the cat") + 1
    assert rows[-1]["near"][0]["place"] == f"{places / 'text.txt'}:1"
    assert sum(like["weight"] for like in rows[-1]["near"]) <= 1.0
    assert "share of 0.5" in told("info", tmp_path / "m").stdout
    assert told("generate", tmp_path / "m", "the cat", "--limit", "5").exit_code == 0


def test_the_explorer_shows_what_is_remembered_of_each_token(places: Path) -> None:
    memory = regard.load(places / "memory", engine="torch")
    live, text = Live(memory), "the cat sees"
    found = looks.recalled(live, live.look({"tokens": memory.ids(text)}, {}))["steps"]
    expected = recalled(memory, text, top=looks.REMINDED)[:-1]  # of what follows the text it shows nothing
    assert [step["p"] for step in found] == pytest.approx([each.p for each in expected])
    assert [step["near"] for step in found] == [[like._asdict() for like in each.near] for each in expected]
    assert found[0]["near"][0]["place"].startswith(str(places / "text.txt"))
    plain = Live(regard.load(places / "lm", engine="torch"))
    with pytest.raises(ValueError, match="this model remembers nothing"):
        looks.recalled(plain, plain.look({"tokens": memory.ids(text)}, {}))


def test_mistakes_are_told_in_a_line(places: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    text = places / "text.txt"
    for arguments, reason in (
        (["remember", places / "lm", tmp_path / "a", text, "--share", "1.5"], "share = 1.5: it lies in [0, 1]"),
        (["remember", places / "lm", tmp_path / "a", text, "--near", "far"], "near = 'far'"),
        (["remember", places / "lm", tmp_path / "a", text, "--temperature", "0"], "temperature = 0.0"),
        (["remember", places / "lm", tmp_path / "a", tmp_path / "empty.txt"], "has nothing in it to remember"),
        (["remember", places / "lm", tmp_path / "b"], "there is nothing to remember"),
        (["remember", places / "lm", tmp_path / "a", places / "pairs.tsv"], "a completion model remembers texts"),
        (["remember", places / "mt", tmp_path / "a", text], "a translation model remembers pairs"),
        (["remember", places / "lm", tmp_path / "full", text], "is no memory, and not empty"),
        (["remember", places / "memory", tmp_path / "a", text], "is a memory already"),
        (["remember", places / "mt", places / "memory", places / "pairs.tsv"], "has the states of another model"),
        (["recall", places / "lm", "the"], "remembers nothing"),
        (["recall", places / "memory", "the", "--target", "das"], "is what a translator writes"),
        (["merge", places / "memory", tmp_path / "c"], "what is remembered lies beside a model"),
    ):
        done = told(*arguments)
        assert isinstance(done.exception, ValueError), (arguments, done.output)
        assert reason in str(done.exception), arguments
    with pytest.raises(ValueError, match="changes = neighbours: in a recipe they add parameters"):
        reading.load("shakespeare", [f"model.from={places / 'lm'}", "changes=[{neighbours: {}}]", "task.block=32"])
    assert read([{"neighbours": {"share": 0.5}}]) == [Neighbours(0.5)]


def test_a_full_disk_is_told_and_gone_on_from(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["remember", places / "lm", tmp_path / "m", places / "text.txt", "--share", "0.4", "--temperature", "3"]

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        said = told(*command)
    assert f"{tmp_path / 'm'}: the disk is full; make room and say the same again" in str(said.exception)
    assert told(*command, "--neighbours", "5").exit_code == 0
    shown, expected = (told("recall", memory, "the cat").stdout for memory in (tmp_path / "m", places / "memory"))
    assert shown == expected


def test_a_memory_of_another_model_is_refused(places: Path, tmp_path: Path) -> None:
    remember(places / "lm", tmp_path / "m", [places / "text.txt"])
    torch.manual_seed(1)
    other = Decoder(gpt_tiny(storage.config(places / "lm").vocabulary, layers=1, d_model=8, d_ff=8, heads=1))
    storage.save(other, tmp_path / "other", storage.purpose(places / "lm"))
    with pytest.raises(ValueError, match="adds to another model than that in"):
        regard.load(tmp_path / "m", base=tmp_path / "other")
    (tmp_path / "m" / "memory" / "memory.json").unlink()
    with pytest.raises(ValueError, match="is not there: build it, with `regard remember`"):
        regard.load(tmp_path / "m")
    with pytest.raises(ValueError, match="has not been opened"):
        storage.load(places / "memory")(torch.arange(4)[None])
