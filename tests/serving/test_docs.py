"""docs/serving.md names every route, option and metric there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from regard import cli
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.readers import directory as reader
from tests.serving.servers import directory
from tests.serving.toys import writer

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")


@pytest.fixture
def app(tmp_path: Path) -> Any:
    readers = [reader(tmp_path / "b", "embed"), reader(tmp_path / "c", "classify", labels=("no", "yes"))]
    models = [directory(tmp_path / "a"), writer(tmp_path / "d", "{{ messages }}"), *readers]
    return create_app(Registry(models), ServeConfig(explorer=False))


def test_every_route_is_there(app: Any) -> None:
    routes = {f"{method.upper()} {path}" for path, about in app.openapi()["paths"].items() for method in about}
    assert routes == set(re.findall(r"^\| `((?:GET|POST) /[^`]*)` \|", TEXT, re.MULTILINE))


def test_every_metric_is_there(app: Any) -> None:
    told = re.findall(r"^# HELP (regard_\w+)", app.state.service.metrics.text().decode(), re.MULTILINE)
    assert set(told) == set(re.findall(r"^\| `(regard_\w+)` \|", TEXT, re.MULTILINE))


def test_every_option_is_there_with_its_default() -> None:
    verbs: Any = typer.main.get_command(cli.app)
    options = {each.opts[0]: each.default for each in verbs.commands["serve"].params if each.opts[0].startswith("--")}
    told = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", TEXT, re.MULTILINE))
    told["--explorer"] = told.pop("--no-explorer")
    assert told.keys() == options.keys() - {"--help"}
    own = ServeConfig()
    for name, said in told.items():
        if said.replace(".", "").isdigit() and name != "--host":
            field = {"wait": "wait_ms"}.get(name[2:], name[2:].replace("-", "_"))
            assert float(said) == options[name] == getattr(own, field), name
    assert options["--host"] == told["--host"] == own.host
