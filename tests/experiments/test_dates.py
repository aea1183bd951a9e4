"""The demo as a person runs it, but short: it learns something, shows it, and leaves a page."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from regard.cli import app


def test_the_demo_trains_shows_unseen_dates_and_writes_a_page(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--dates", "--steps", "40", "--directory", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert "step 40/40" in result.output
    assert "of 1,000 unseen dates read right" in result.output
    page = (tmp_path / "new" / "attention.html").read_text()
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    assert data is not None
    maps = {m["name"]: m for m in json.loads(data[1])["maps"]}
    assert set(maps) == {
        f"{place}.layers.{i}.{kind}"
        for i in range(2)
        for place, kind in [
            ("encoder", "self_attention"),
            ("decoder", "self_attention"),
            ("decoder", "cross_attention"),
        ]
    }
    cross = maps["decoder.layers.1.cross_attention"]
    assert cross["keys"][-1] == "</s>"
    assert "年" in cross["keys"]
    assert cross["role"] == "predicted"
    assert maps["decoder.layers.0.self_attention"]["keys"][0] == "<s>"


def test_steps_are_at_least_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--dates", "--steps", "0", "--directory", str(tmp_path)])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
