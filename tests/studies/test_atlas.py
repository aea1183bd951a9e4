"""The atlas holds what its parts find, is written whole or not at all, and its page fetches nothing."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from regard import cli
from regard.adaptation.gates import GateConfig
from regard.adaptation.prune import prune
from regard.core.generation import padded
from regard.data.batching import Batch
from regard.data.dates import date_pairs
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.vocabulary import PAD
from regard.inspection.alignment import head_links
from regard.inspection.importance import head_importance
from regard.inspection.measures import measure
from regard.inspection.taps import attentions, edit, record
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.recipes import reading as recipes
from regard.recipes.recipe import Recipe
from regard.studies.atlas import GATES, How, analysed, atlas_page, make_atlas
from regard.studies.study import Study, Translations
from regard.tasks.translate import DataConfig
from regard.training.config import TrainConfig
from tests.inspection.toys import encoder_only, language_model

FIRST = "encoder.layers.0.self_attention"
CROSS = "decoder.layers.0.cross_attention"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text.src, text.tgt of 12 lines, and a model that has learned nothing."""
    folder = tmp_path_factory.mktemp("atlas")
    pairs = list(islice(date_pairs(seed=1, locales=["en", "de"]), 12))
    (folder / "text.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (folder / "text.tgt").write_text("".join(f"{pair.iso} <b>\n" for pair in pairs), "utf-8")
    tokenizer = Tokenizer.learn(TokensConfig(size=300), (text for pair in pairs for text in (pair.text, pair.iso)))
    torch.manual_seed(0)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16, "heads": 2}
    storage.save(Transformer(TransformerConfig.tiny(len(tokenizer), **shape)), folder / "model")
    tokenizer.save(folder / "model" / "tokenizer.json")
    return folder


def made(place: Path, **options: Any) -> dict[str, Any]:
    return make_atlas(place / "model", place / "text.src", place / "text.tgt", **options)


def studied(place: Path, limit: int = 1000) -> Translations:
    return Translations.of(place / "model", place / "text.src", place / "text.tgt", limit)


@pytest.fixture(scope="module")
def atlas(place: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.studies.atlas.GATES", GateConfig(steps=3))
        return made(place, seeds=2, share=0.3, prices=(0.01,))


def test_it_is_written_beside_the_model_and_reads_back(place: Path, atlas: dict[str, Any]) -> None:
    assert json.loads((place / "model" / "heads.json").read_text("utf-8")) == atlas
    assert atlas["format"] == 1
    assert (atlas["model"], atlas["sentences"], atlas["aer"]) == ("model", 12, None)
    study = studied(place)
    names = [(name, head) for name, attention in attentions(study.model).items() for head in range(attention.heads)]
    assert [(each["name"], each["head"]) for each in atlas["heads"]] == names
    assert [each["kind"] for each in atlas["heads"]] == ["encoder"] * 2 + ["decoder"] * 2 + ["cross"] * 2


def test_its_figures_are_those_of_its_parts(place: Path, atlas: dict[str, Any]) -> None:
    study, everything = studied(place), range(12)
    measures = measure(study.model, study.batches(everything), study.tokens())
    importance = head_importance(study.model, study.batches(everything), pad=PAD)
    assert atlas["loss"] == pytest.approx(study.loss(everything))
    for each in atlas["heads"]:
        name, head = each["name"], each["head"]
        found = each["measures"]
        assert found["confidence"] == pytest.approx(measures[name, head].confidence, abs=1e-4)
        assert found["positional"]["offset"] == measures[name, head].named()["positional"]["offset"]
        assert each["importance"] == pytest.approx(float(importance[name][head]), abs=1e-3)
        with edit(study.model, {name: {head: 0.0}}):
            assert each["ablation"]["loss"] == pytest.approx(study.loss(everything) - atlas["loss"], abs=1e-3)
        assert each["role"] == each["roles"][0]
        example = each["example"]
        assert len(example["weights"]) == len(example["rows"])
        assert {len(row) for row in example["weights"]} == {len(example["columns"])}
        assert example["row"] == ("reads" if each["kind"] == "encoder" else "predicts")
        assert example["rows"][-1] == "</s>"
        assert ("</s>" in example["columns"]) == (each["kind"] != "decoder")  # a decoder has read no end
        assert (example["columns"][0] == "<s>") == (each["kind"] == "decoder")
        assert all(sum(row) == pytest.approx(1, abs=0.02) for row in example["weights"])


def test_pruning_ends_with_no_head_and_chance_has_a_spread(atlas: dict[str, Any]) -> None:
    found = atlas["pruning"]
    assert [point["kept"] for point in found["importance"]] == [6, 4, 2, 0]
    assert [point["kept"] for point in found["random"]] == [6, 4, 2, 0]
    assert all(point["low"] <= point["bleu"] <= point["high"] for point in found["random"])
    assert found["importance"][0]["silenced"] == {}
    assert sum(map(len, found["importance"][-1]["silenced"].values())) == 6
    assert (found["chosen_on"], found["measured_on"]) == (6, 6)
    (gated,) = found["gates"]["points"]
    assert gated["kept"] == 6 - sum(map(len, gated["silenced"].values()))


def test_a_head_without_its_rows_of_the_output_matrix_is_silent(place: Path) -> None:
    study, everything = studied(place), range(12)
    before = {name: tensor.clone() for name, tensor in study.model.state_dict().items()}
    whole = study.loss(everything)
    with edit(study.model, {FIRST: {1: 0.0}, CROSS: {0: 0.0, 1: 0.0}}):
        edited, said = study.loss(everything), study.translator.translate("March 5, 1987", beam=1)
    with study.without({FIRST: [1], CROSS: [0, 1]}):
        assert study.loss(everything) == pytest.approx(edited, abs=1e-6)
        assert study.translator.translate("March 5, 1987", beam=1) == said
    assert edited != pytest.approx(whole, abs=1e-4)
    with pytest.raises(KeyError), study.without({FIRST: [0]}):
        raise KeyError
    assert all(torch.equal(tensor, before[name]) for name, tensor in study.model.state_dict().items())


def test_gold_alignments(place: Path, tmp_path: Path) -> None:
    """Where the gold links are those of one head, its error rate is 0."""
    study, lines = studied(place), []
    for sentence in range(12):
        batch = study.batches([sentence])[0]
        with record(study.model, CROSS) as seen, torch.inference_mode():
            study.model(batch["source"], batch["target"])
        links = head_links(seen[CROSS][0], *study.words(sentence), row="reads")[1]
        lines.append(" ".join(f"{i}-{j}" for i, j in links))
    (tmp_path / "gold").write_text("\n".join(lines) + "\n")
    options = {"gold": tmp_path / "gold", "out": tmp_path / "out", "ablate": False, "prune": False}
    found = made(place, **options)
    rates = {each["head"]: each["measures"] for each in found["heads"] if each["name"] == CROSS}
    assert rates[1]["aer_read"] == 0
    assert rates[0]["aer_read"] > 0
    assert found["aer"]["sure"] == found["aer"]["possible"] == sum(len(line.split()) for line in lines)
    assert 0 <= found["aer"]["mean"] <= 1
    assert found["pruning"] is None
    assert {each["ablation"] for each in found["heads"]} == {None}
    assert "Alignment" in (tmp_path / "out" / "heads.html").read_text("utf-8")

    (tmp_path / "gold").write_text("0-0\n0-0 99-0\n" + "\n" * 10)
    with pytest.raises(ValueError, match=r"gold:2: the link 99-0 is outside the sentences: they have \d+ and 2 words"):
        made(place, **options)
    (tmp_path / "gold").write_text("0-0\n0:0\n")
    with pytest.raises(ValueError, match=r"gold:2: '0:0' is no link"):
        made(place, **options)
    (tmp_path / "gold").write_text("0-0\n")
    with pytest.raises(ValueError, match="gold has 1 lines, and the text more"):
        made(place, **options)


def conllu(text: str) -> str:
    """A parse in which each word hangs on the one after, and the last on nothing; commas and the like are words."""
    forms = re.findall(r"\w+|[^\w\s]", text)
    heads = [*range(2, len(forms) + 1), 0]
    rows = [f"{i}\t{form}\t_\t_\t_\t_\t{heads[i - 1]}\tdep:x\t_\t_\n" for i, form in enumerate(forms, 1)]
    return "".join(rows) + "\n"


def test_dependencies(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank line of the text has no sentence; a head that is made to look at the next word follows every arc."""
    texts = [*(place / "text.src").read_text("utf-8").splitlines()]
    texts.insert(3, "")
    targets = (place / "text.tgt").read_text("utf-8").splitlines()
    targets.insert(3, "")
    for name, lines in (("src", texts), ("tgt", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (tmp_path / "p.conllu").write_text("".join(conllu(text) for text in texts if text), "utf-8")
    study = Translations.of(place / "model", tmp_path / "src", tmp_path / "tgt", 1000)
    counts = [len(study.texts[i][0].split()) for i in range(12)]
    assert [len(each) for each in study.arcs(tmp_path / "p.conllu")] == [count - 1 for count in counts]

    monkeypatch.setattr("regard.inspection.syntax.Grammar.relations.__defaults__", (5,))
    monkeypatch.setattr("regard.inspection.syntax.Grammar.of_head.__defaults__", (5,))
    options: dict[str, Any] = {"parse": tmp_path / "p.conllu", "out": tmp_path / "out", "ablate": False, "prune": False}
    found = make_atlas(place / "model", tmp_path / "src", tmp_path / "tgt", **options)
    both = found["syntax"]["relations"]
    assert [(each["relation"], each["towards"], each["offset"]) for each in both] == [
        ("dep", "head", 1),
        ("dep", "dependent", -1),
    ]
    assert {each["instances"] for each in both} == {sum(counts) - 12}
    assert {each["fixed"] for each in both} == {1.0}  # which no head can beat
    assert [each["syntax"] for each in found["heads"]] == [[]] * 6
    assert "Grammar" in (tmp_path / "out" / "heads.html").read_text("utf-8")

    (tmp_path / "p.conllu").write_text(conllu(texts[0]), "utf-8")
    with pytest.raises(ValueError, match=r"p\.conllu has 1 sentences, and the text more"):
        make_atlas(place / "model", tmp_path / "src", tmp_path / "tgt", **options)
    (tmp_path / "p.conllu").write_text(conllu(texts[1]) * 12, "utf-8")
    with pytest.raises(ValueError, match=r"p\.conllu:1: .* does not fit the text, which goes on with"):
        make_atlas(place / "model", tmp_path / "src", tmp_path / "tgt", **options)


def test_a_head_that_follows_a_relation_is_called_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.inspection.roles.BETTER", -1.0)
    monkeypatch.setattr("regard.inspection.syntax.Grammar.of_head.__defaults__", (5,))
    texts = (place / "text.src").read_text("utf-8").splitlines()
    (tmp_path / "p.conllu").write_text("".join(conllu(text) for text in texts), "utf-8")
    found = made(place, parse=tmp_path / "p.conllu", out=tmp_path, ablate=False, prune=False)
    roles = [each["roles"] for each in found["heads"]]
    assert all(any(role.startswith("syntactic dep to ") for role in some) for some in roles[:2])
    assert not any("syntactic" in role for some in roles[2:] for role in some)


def test_an_unknown_token_is_joined_as_any_other(tmp_path: Path) -> None:
    """Text of tokens, of which one that begins a word is unknown."""
    tokenizer = Tokenizer.learn(TokensConfig("none", size=0), ["the li@@ brary ."])
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16, "heads": 2}
    storage.save(Transformer(TransformerConfig.tiny(len(tokenizer), **shape)), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "text").write_text("the Lx@@ brary .\n")
    study = Translations.of(tmp_path / "model", tmp_path / "text", tmp_path / "text", 1)
    assert study.words(0) == ([0, 1, 1, 2], [0, 1, 1, 2])
    (tmp_path / "p.conllu").write_text(conllu("The Lxbrary."))
    assert study.arcs(tmp_path / "p.conllu") == [{(0, 1, "dep"), (1, 2, "dep")}]


def test_a_mistake_or_an_interruption_writes_nothing(place: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("one line\n")
    (tmp_path / "empty").write_text("\n" * 12)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"short has 1 line and .* has 12: line by line they are translations"):
        make_atlas(place / "model", tmp_path / "short", place / "text.tgt", out=out)
    with pytest.raises(ValueError, match="hold no pair of sentences"):
        make_atlas(place / "model", tmp_path / "empty", place / "text.tgt", out=out)
    for wrong in ({"limit": 0}, {"seeds": 0}, {"share": 0.0}, {"prices": [-1.0]}):
        with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("s")):
            made(place, out=out, **wrong)
    with pytest.raises(ValueError, match="short/atlas is no directory that can be written into"):
        made(place, out=tmp_path / "short" / "atlas")

    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("pruning"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(place, out=out, progress=stop)
    assert not out.exists()


def test_one_sentence_is_enough(place: Path, tmp_path: Path) -> None:
    found = made(place, out=tmp_path, limit=1, seeds=1, share=1.0, prices=())
    assert (found["sentences"], found["pruning"]["gates"]) == (1, None)


def test_a_pruned_model_has_an_atlas_of_what_is_left(place: Path, tmp_path: Path) -> None:
    smaller = prune(storage.load(place / "model"), {FIRST: [0], "decoder.layers.0.self_attention": [0, 1]})
    storage.save(smaller, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_bytes((place / "model" / "tokenizer.json").read_bytes())
    found = make_atlas(tmp_path / "model", place / "text.src", place / "text.tgt", seeds=1, share=0.5, prices=())
    assert [(each["name"], each["head"]) for each in found["heads"]] == [(FIRST, 0), (CROSS, 0), (CROSS, 1)]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_a_model_that_does_not_translate_has_an_atlas_without_what_it_cannot_have(kind: str, tmp_path: Path) -> None:
    texts = ["abab", "cdcdcd", "abcabc", "aa"]
    tokenizer = Tokenizer.learn(TokensConfig("char", size=0), texts)
    model = (language_model if kind == "decoder" else encoder_only)(len(tokenizer))
    pad, bos, eos = tokenizer.marks.need("pad", "bos", "eos")

    def batch(examples: list[dict[str, list[int]]]) -> Batch:
        rows = [each["tokens"] for each in examples]
        shift = 0 if kind == "encoder" else 1  # who sees everything says what is there, the other what comes next
        read = [[*[bos] * shift, *row, *[eos] * (1 - shift)] for row in rows]
        sides = {"tokens": read, "labels": [[*row, eos] for row in rows]}
        tensors = {name: padded(some, pad, len(tokenizer)) for name, some in sides.items()}
        return Batch(tensors, sum(map(len, read)))

    study = Study(model, tokenizer, [{"tokens": tokenizer.encode(text)} for text in texts], batch)
    how = How(True, True, 0.5, 1, [replace(GATES, steps=3)], lambda *_: None)
    found = analysed(study, None, None, how)
    assert [each["kind"] for each in found["heads"]] == [kind] * 4
    assert found["tokens"] == sum(len(text) + 1 for text in texts)
    assert "bleu" not in found
    assert found["aer"] is None
    everything = range(len(texts))
    for each in found["heads"]:
        assert not {"aligned", "aer"} & each["measures"].keys()
        assert ("next" in each["measures"]) == (kind == "encoder")
        assert {"entropy", "previous", "induction"} <= each["measures"].keys()
        with edit(model, {each["name"]: {each["head"]: 0.0}}):
            assert each["ablation"] == {"loss": pytest.approx(study.loss(everything) - found["loss"], abs=1e-3)}
        example = each["example"]
        assert example["row"] == ("predicts" if kind == "decoder" else "reads")
        assert (example["columns"][0] == "<s>") == (kind == "decoder")
        assert len(example["rows"]) == len(example["weights"])
    pruning = found["pruning"]
    assert [point["kept"] for point in pruning["importance"]] == [4, 2, 0]
    assert pruning["random"][0].keys() == {"kept", "loss", "low", "high"}
    assert pruning["random"][1]["low"] == pruning["random"][1]["loss"]
    (gates,) = pruning["gates"]["points"]
    assert "bleu" not in gates
    assert "<title>The heads of toy</title>" in atlas_page({"model": "toy", **found})


def test_the_verb_says_what_it_wrote(place: Path, tmp_path: Path) -> None:
    text = ["--source", str(place / "text.src"), "--reference", str(place / "text.tgt")]
    command = ["heads", str(place / "model"), *text, "-o", str(tmp_path), "--no-ablate", "--no-prune", "--limit", "5"]
    result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first == f"{tmp_path}/heads.html: 6 heads on 5 sentences"
    assert sum(int(part.split()[0]) for part in second.split(", ")) == 6
    assert {path.name for path in tmp_path.iterdir()} == {"heads.html", "heads.json"}


def test_heads_of_the_model_that_comes_along_are_written_where_one_is(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.shipped.SHIPPED", tmp_path / "shipped")
    shutil.copytree(place / "model", tmp_path / "shipped" / "en-es", ignore=shutil.ignore_patterns("heads.*"))
    before = {path.name for path in (tmp_path / "shipped" / "en-es").iterdir()}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = ["--source", str(place / "text.src"), "--reference", str(place / "text.tgt")]
    command = ["heads", *text, "--no-ablate", "--no-prune", "--limit", "5"]
    result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "./heads.html")
    assert result.stderr == "note: en-es is not yours to write into: heads.html and heads.json go here\n"
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"heads.html", "heads.json"}
    assert {path.name for path in (tmp_path / "shipped" / "en-es").iterdir()} == before


def test_the_page_runs_its_own_script_and_nothing_else(atlas: dict[str, Any]) -> None:
    page = atlas_page({**atlas, "model": "</script><img src=x>{{data}}"})
    (rules,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', page)
    assert rules.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in rules
    assert "<img" not in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["']|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", page)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    inside = json.loads(data)
    assert inside["heads"] == atlas["heads"]
    assert {each["role"].rstrip("+-0123456789 ") for each in inside["heads"]} <= inside["about"].keys()


def test_without_a_text_it_is_what_the_run_held_out(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    test = {"source": str(place / "text.src"), "target": str(place / "text.tgt")}
    given = DataConfig(train=PairFiles("a", "b"), valid=PairFiles("a", "b"), test=PairFiles(**test))
    text = recipes.dump(Recipe(data=given, train=TrainConfig(steps=1)))
    (tmp_path / "model" / "recipe.yaml").write_text(text, "utf-8")
    assert Translations.of(tmp_path / "model", None, None, 5).texts == studied(place, 5).texts


def test_a_model_without_a_recipe_needs_a_text(place: Path) -> None:
    with pytest.raises(ValueError, match="has no recipe that names a text: give --source and --reference"):
        make_atlas(place / "model")
    with pytest.raises(ValueError, match="go together: give --source and --reference, or neither"):
        make_atlas(place / "model", place / "text.src")
    with pytest.raises(ValueError, match=r"gold\.txt has a line for each one of a text: give --source"):
        make_atlas(place / "model", gold=Path("gold.txt"))
