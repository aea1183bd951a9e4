"""Pages keep their word: they name every key with its default, and their commands, recipes and Python work."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from regard import cli
from regard.core.blocks import LayerConfig
from regard.data.corpora import CORPORA
from regard.data.dates import date_pairs
from regard.data.documents import TextFiles
from regard.data.text import PairFiles
from regard.experiments.lab import NAMES, SCALES
from regard.models.graph import GraphConfig
from regard.models.transformer import FAMILY
from regard.recipes import reading as recipes
from regard.recipes.recipe import ModelConfig, Recipe
from regard.recipes.train import train
from regard.tasks.asks import SETTINGS, Settings
from regard.tasks.generate import GenerateConfig, TextConfig
from regard.tasks.transcripts import TranscribeUse
from regard.tasks.translate import DataConfig
from regard.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
TRAINING = (ROOT / "docs" / "training.md").read_text("utf-8")
DECODING = (ROOT / "docs" / "decoding.md").read_text("utf-8")
LANGUAGE = (ROOT / "docs" / "language-models.md").read_text("utf-8")
READING = (ROOT / "docs" / "reading.md").read_text("utf-8")
PAIRS = (ROOT / "docs" / "text-to-text.md").read_text("utf-8")
DECISIONS = [f"docs/decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
# Those that show recipes.
PAGES = (
    *("README.md", "docs/training.md", "docs/language-models.md", "docs/reading.md", "docs/text-to-text.md"),
    *("docs/speech.md", "docs/music.md"),
)
MISUSE = typer.BadParameter.__mro__[1]  # what click raises for a wrong command, whichever click typer has
GIVEN = ("data.train.source", "data.train.target", "data.train.text", "train.steps")  # by us, to have a recipe at all


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language. All are read, for the end of one would else be taken for the start of the next."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def commands(text: str) -> list[str]:
    """What follows `regard` wherever a text shows the command: in a block, or between back-ticks."""
    lines = [line for block in blocks(text, "") for line in block.splitlines()]
    shown = [found[1] for line in lines if (found := re.match(r"(?:torchrun .* -m )?regard (.*)", line))]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return shown + re.findall(r"`regard ([^`]+)`", prose)


def parse(command: str) -> dict[str, Any]:
    """A command as the shell and the verb read it; an error if there is no such verb or option."""
    verb, *rest = takewhile(lambda word: word not in ("<", ">", "|"), shlex.split(command, comments=True))
    verbs: Any = typer.main.get_command(cli.app)
    context = verbs.commands[verb].make_context(verb, rest)
    return {"verb": verb, **context.params}


def keys(given: Recipe) -> dict[str, Any]:
    """Each key of a recipe and its value, the keys of valid and test aside: they are those of train."""

    def flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from flat(value, f"{before}{key}.")
            else:
                yield before + key, None if before + key in GIVEN else value

    return {"data.train": None, **dict(flat(yaml.safe_load(recipes.dump(given))))}


def settings() -> dict[str, Any]:
    """Each key of a recipe to translate, and its default."""
    found = keys(Recipe(data=DataConfig(train=PairFiles("a", "b")), train=TrainConfig(steps=1)))
    shapes = [asdict(preset(100)) for name, preset in FAMILY.presets.items() if "-" not in name]  # the paper's
    return found | {f"model.{key}": "*preset*" for key in shapes[0] if len({str(s[key]) for s in shapes}) > 1}


def documented(text: str) -> dict[str, str]:
    """Each key in the first column of a table, and what the second says of it."""
    rows = re.findall(r"^\| (`[\w.]+`(?:, `[\w.]+`)*) \| (.+?) \| .+ \|$", text, re.MULTILINE)
    found = [(key, default) for keys, default in rows for key in re.findall(r"[\w.]+", keys)]
    assert len(dict(found)) == len(found), "a key stands there twice"
    return dict(found)


def test_every_key_is_there_with_its_default() -> None:
    assert_told(TRAINING, settings())


def assert_told(text: str, defaults: dict[str, Any]) -> None:
    """A table of a page has these keys, each with its default."""
    table = documented(text)
    assert table.keys() == defaults.keys()
    for key, default in defaults.items():
        said = None if table[key] == "–" else table[key] if default == "*preset*" else yaml.safe_load(table[key])
        assert (said, type(said)) == (default, type(default)), key


def test_every_key_of_a_language_model_is_there_with_its_default() -> None:
    data, model = TextConfig(train=TextFiles("a")), ModelConfig("gpt-tiny")
    found = keys(Recipe(task=GenerateConfig(), data=data, model=model, train=TrainConfig(steps=1)))
    own = ("task", "data", "decode", "evaluate")
    assert_told(LANGUAGE, {key: value for key, value in found.items() if key.partition(".")[0] in own})


def test_every_command_about_language_models_parses() -> None:
    found = [parse(command) for command in commands(LANGUAGE)]
    verbs = {"train", "generate", "chat", "data", "serve", "import", "classify", "evaluate"}
    assert {command["verb"] for command in found} == verbs
    for command in found:
        if command["verb"] == "train":
            assert recipes.load(command["recipe"]).task.name == "generate"


@pytest.mark.slow
def test_the_python_about_language_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    use, talk, form, games, ask = blocks(LANGUAGE, "python")
    assert all(compile(each, "docs/language-models.md", "exec") for each in (form, ask))  # for weights of others
    exec(compile(games, "docs/language-models.md", "exec"), {})
    (tmp_path / "games.yaml").write_text(blocks(LANGUAGE, "yaml")[1])
    changes = ["train.steps=3", "data.limit=100", "model.d_model=16"]
    train(recipes.load("games.yaml", changes), Path("runs/shakespeare"), name="games")
    exec(compile(use, "docs/language-models.md", "exec"), {})
    Path("runs/shakespeare").rename("runs/smollm")
    (tmp_path / "runs" / "smollm" / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    exec(compile(talk, "docs/language-models.md", "exec"), {})


def test_every_command_about_reading_parses_and_every_option_is_named() -> None:
    found = [parse(command) for command in commands(READING)]
    readers = {"classify", "embed", "search", "fill", "tag", "answer"}
    assert {command["verb"] for command in found} == readers | {"train", "evaluate", "import", "serve"}
    verbs: Any = typer.main.get_command(cli.app)
    options = [each for verb in readers for each in verbs.commands[verb].params if each.opts[0].startswith("--")]
    named = set(re.findall(r"--[\w-]+", READING)) | {f"--{each}" for each in re.findall(r"`(\w+)`", READING)}
    unnamed = {each.opts[0] for each in options if not named & {*each.opts, *each.secondary_opts}}
    assert unnamed == {"--temperature"}  # which is fitted


def test_every_command_about_retrieval_parses_and_every_option_is_named() -> None:
    page = (ROOT / "docs" / "retrieval.md").read_text("utf-8")
    assert {command["verb"] for command in map(parse, commands(page))} >= {"index", "search", "ask", "serve", "import"}
    verbs: Any = typer.main.get_command(cli.app)
    options = [
        each for verb in ("index", "ask") for each in verbs.commands[verb].params if each.opts[0].startswith("--")
    ]
    named = set(re.findall(r"--[\w-]+", page + READING)) | {f"--{each}" for each in re.findall(r"`(\w+)`", READING)}
    assert {each.opts[0] for each in options if not named & {*each.opts, *each.secondary_opts}} == set()
    assert all(compile(block, "docs/retrieval.md", "exec") for block in blocks(page, "python"))


def test_every_command_about_memory_parses_and_every_option_is_named() -> None:
    page = (ROOT / "docs" / "memory.md").read_text("utf-8")
    assert {command["verb"] for command in map(parse, commands(page))} >= {"remember", "recall", "train", "evaluate"}
    verbs: Any = typer.main.get_command(cli.app)
    options = {each.opts[0] for verb in ("remember", "recall") for each in verbs.commands[verb].params}
    assert {each for each in options if each.startswith("--")} <= set(re.findall(r"--[\w-]+", page))
    assert all(compile(block, "docs/memory.md", "exec") for block in blocks(page, "python"))


def test_every_command_about_text_to_text_parses() -> None:
    found = [parse(command) for command in commands(PAIRS)]
    assert {command["verb"] for command in found} == {"train", "summarise", "translate", "evaluate", "import"}
    named = {command["recipe"] for command in found if command["verb"] == "train"}
    assert named == {"aeslc", "scitldr", "scan", "cogs", "g2p"}
    for command in found:
        if command["verb"] == "train":
            assert recipes.load(command["recipe"], command["overrides"] or ())


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_every_command_parses(page: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(blocks(TRAINING, "yaml")[0], "utf-8")
    found = [parse(command) for command in commands((ROOT / page).read_text("utf-8"))]
    assert {"train", "translate", "evaluate"} <= {command["verb"] for command in found}
    for command in found:
        if command["verb"] == "train":  # one's own file, and a run's recipe.yaml, may say what they like
            own = "/" in command["recipe"] or command["recipe"] == "my.yaml"
            recipes.load(str(tmp_path / "my.yaml") if own else command["recipe"], command["overrides"] or ())
        if command["verb"] == "data":
            assert command["corpus"] in (None, *CORPORA)


@pytest.mark.parametrize(
    "command",
    [
        "trian my.yaml",
        "train my.yaml --again",
        "train",
        "translate runs/my --beam wide",
    ],
)
def test_a_wrong_command_is_caught(command: str) -> None:
    with pytest.raises((KeyError, MISUSE)):
        parse(command)


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, b) for page in PAGES for b in blocks((ROOT / page).read_text("utf-8"), "yaml")],
)
def test_every_recipe_loads(page: str, block: str, tmp_path: Path) -> None:
    missing = {"data": "data: {corpus: tatoeba-en-es}\n", "train": "train: {steps: 1}\n"}
    rest = "".join(text for section, text in missing.items() if not re.search(f"^{section}:", block, re.MULTILINE))
    (tmp_path / "my.yaml").write_text(block + rest, "utf-8")
    assert recipes.load(str(tmp_path / "my.yaml"))


def test_every_setting_of_a_translation_is_there_with_its_default() -> None:
    settings = Settings()
    values = {**asdict(settings.search), **{name: value for name, value in asdict(settings).items() if value != ""}}
    table = documented(DECODING)
    assert list(table) == SETTINGS
    for name, said in table.items():
        if said.startswith("the recipe's"):
            assert said == f"the recipe's `decode.{name}`"
        else:
            assert (not values.get(name)) if said == "–" else (yaml.safe_load(said) == values[name]), name


def test_every_command_about_decoding_parses_and_names_every_option() -> None:
    found = [parse(command) for command in commands(DECODING)]
    assert {command["verb"] for command in found} == {"translate", "score"}
    verbs: Any = typer.main.get_command(cli.app)
    options = [each for verb in ("translate", "score") for each in verbs.commands[verb].params]
    names = {name for each in options for name in each.opts if name.startswith("--")}
    assert names - set(re.findall(r"--[a-z-]+", DECODING)) == {"--output"}  # which is -o


@pytest.mark.parametrize("page", ["docs/small-and-fast.md", "docs/convert.md", "docs/weights.md"])
def test_every_other_command_parses(page: str) -> None:
    found = [parse(command) for command in commands((ROOT / page).read_text("utf-8"))]
    assert {command["verb"] for command in found} & {"quantize", "export"}


def test_the_page_of_graphs_keeps_its_word(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "graphs.md").read_text("utf-8")
    verbs = {command["verb"] for command in map(parse, commands(page))}
    assert verbs == {"train", "classify", "inspect", "evaluate", "import", "embed", "map"}
    (block,) = blocks(page, "yaml")
    (tmp_path / "my.yaml").write_text(block)
    assert recipes.load(str(tmp_path / "my.yaml"))
    told = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", page, re.MULTILINE))
    config = GraphConfig(9)
    assert {name: yaml.safe_load(value) for name, value in told.items()} == {
        name: getattr(config, name) for name in told
    }
    assert told.keys() == GraphConfig.__annotations__.keys() - LayerConfig.__annotations__.keys() - {"pad"}


def test_the_page_of_speech_names_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "speech.md").read_text("utf-8")
    verbs = {"import", "transcribe", "evaluate", "serve", "train", "classify"}
    assert {command["verb"] for command in map(parse, commands(page))} == verbs
    music = (ROOT / "docs" / "music.md").read_text("utf-8")
    assert {command["verb"] for command in map(parse, commands(music))} == {"train", "generate"}
    told = dict(re.findall(r"^\| `--([a-z-]+)` \| (.*?) \|", page, re.MULTILINE))
    assert told.keys() == {"no-times" if name == "times" else name for name in vars(TranscribeUse())}
    for name, value in vars(TranscribeUse()).items():
        if type(value) in (int, float):
            assert float(told[name]) == value


def test_what_is_shown_to_be_added_is_what_the_toys_are() -> None:
    text = (ROOT / "docs" / "extend.md").read_text("utf-8")
    assert {parse(command)["verb"] for command in commands(text) if not command.isalpha()} > {"info", "train", "serve"}
    for diff, toy in zip(blocks(text, "diff"), ("toy_family", "toy_task"), strict=True):
        shown = re.findall(r"^\+(?!\+\+)(.*)$", diff.partition("/dev/null")[2], re.MULTILINE)
        whole = (ROOT / "tests" / f"{toy}.py").read_text("utf-8")
        for part in re.split(r"\n(?=    def |class |@|TASK)", "\n".join(shown)):  # in whole parts, of a task only some
            assert part.strip("\n") in whole, part
    page = (ROOT / "docs" / "extend.md").read_text("utf-8")
    recipe = next(block for block in blocks(page, "") if block.startswith("task:"))
    assert yaml.safe_load(recipe)["model"]["preset"] == "bag"


@pytest.mark.parametrize(
    "page", ["docs/experiments/README.md", "docs/zoo.md", "docs/baselines.md", "docs/preferences.md"]
)
def test_every_command_beside_an_explanation_parses(page: str) -> None:
    verbs: Any = typer.main.get_command(cli.app)
    for command in commands((ROOT / page).read_text("utf-8")):
        if command.isalpha():  # a bare name
            assert command in verbs.commands
        elif (found := parse(command))["verb"] == "experiment":
            assert found["name"] in (None, *NAMES)
            assert found["scale"] in SCALES


def test_every_option_of_an_experiment_is_shown() -> None:
    verbs: Any = typer.main.get_command(cli.app)
    names = {name for each in verbs.commands["experiment"].params for name in each.opts if name.startswith("--")}
    text = (ROOT / "docs" / "experiments" / "README.md").read_text("utf-8")
    assert names <= set(re.findall(r"--[a-z-]+", text))
    assert all(f"| `{name}` |" in text or f"| [`{name}`]" in text for name in NAMES)


@pytest.mark.parametrize(("page", "verb"), [("seeing", "inspect"), ("heads", "heads"), ("pruning", "prune")])
def test_every_command_that_looks_inside_parses_and_names_every_option(page: str, verb: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert verb in {parse(command)["verb"] for command in commands(text) if not command.isalpha()}  # or a bare name
    options: Any = typer.main.get_command(cli.app)
    names = {name for each in options.commands[verb].params for name in each.opts if name.startswith("--")}
    assert names - set(re.findall(r"--[a-z-]+", text)) <= {"--output", "--ablate", "--prune"}  # -o, --no-ablate


LINKED = [
    "training",
    "language-models",
    "decoding",
    "small-and-fast",
    "seeing",
    "heads",
    "pruning",
    "experiments/README",
]


@pytest.mark.parametrize("page", [*(f"docs/{name}.md" for name in LINKED), *DECISIONS])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)", path.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


@pytest.fixture
def dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and us in it, with text and a recipe of which nothing is learned but quickly."""
    pairs = list(islice(date_pairs(seed=1, locales=["en", "fr", "de", "es"]), 400))
    (tmp_path / "train.en").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (tmp_path / "train.de").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    small = "encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64"
    (tmp_path / "my.yaml").write_text(
        "data: {train: {source: train.en, target: train.de}, hold_out: 20}\ntokens: {size: 300}\n"
        f"model: {{preset: tiny, {small}}}\ntrain: {{steps: 2, schedule: {{name: paper}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_the_python_runs(dates: Path) -> None:
    (block,) = blocks(TRAINING, "python")
    exec(compile(block, "docs/training.md", "exec"), {})
    assert "A dog runs." in (dates / "dog.html").read_text("utf-8")


@pytest.mark.slow
def test_the_python_about_decoding_runs(dates: Path) -> None:
    train(recipes.load("my.yaml"), Path("runs/quickstart"), name="quickstart", resume=False)
    names: dict[str, Any] = {}
    first, second = blocks(DECODING, "python")
    exec(compile(first, "docs/decoding.md", "exec"), names)
    exec(compile(second, "docs/decoding.md", "exec"), names)  # it asserts by itself
