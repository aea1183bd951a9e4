"""Which models are served, what is known of them, and when they are loaded."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regard.models import storage
from regard.recipes import reading
from regard.serving import registry as room
from regard.serving.errors import RefusalError
from regard.serving.registry import Registry
from regard.tasks.translate import Translate
from tests.serving.servers import directory
from tests.serving.toys import LINES


def test_models_go_by_the_names_of_their_directories_made_unique(tmp_path: Path) -> None:
    paths = [directory(tmp_path / name) for name in ("a", "b/a", "c", "a~2")]
    found = Registry([*paths, paths[0]])
    assert found.ids == ["a", "a~2", "c", "a~2~2", "a~3"]
    assert found.get().id == "a"
    assert found.get("c").path == paths[2]
    assert [served.task.called for served in found] == ["translation"] * 5
    with pytest.raises(RefusalError, match="no model 'd': there are a, a~2, c") as refused:
        found.get("d")
    assert refused.value.status == 404


def test_what_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Registry([])
    with pytest.raises(ValueError, match="is not a directory"):
        Registry([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="precision = 'fp64': choose fp32"):
        Registry([directory(tmp_path / "a")], precision="fp64")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        Registry([tmp_path])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("{corpus: tatoeba-en-es}", ("en", "es")),
        ("{corpus: tatoeba-en-es, languages: [fr, de]}", ("fr", "de")),
        ("{train: {source: a/train.en, target: a/train.de.gz}}", ("en", "de")),
        ("{train: {source: train.en, target: train.de}, languages: [en, gsw]}", ("en", "gsw")),
        ("{train: {source: a.txt, target: b.txt}}", ("source", "target")),
        ("{train: {source: source, target: target}}", ("source", "target")),
        ("{train: {tsv: pairs.tsv}}", ("source", "target")),
    ],
)
def test_languages_are_those_of_the_recipe_the_corpus_or_the_files(
    tmp_path: Path, data: str, expected: tuple[str, str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(f"data: {data}\ntrain: {{steps: 1}}\n")
    assert reading.load(str(tmp_path / "recipe.yaml")).purpose().languages == expected


def test_without_a_recipe_nobody_knows() -> None:
    assert Translate().languages == ("source", "target")


def test_a_model_is_loaded_once_when_it_is_first_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    load = room.api.load

    def counted(path: Path, **how: object) -> object:
        loads.append(path)
        return load(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(room.api, "load", counted)
    served = Registry([directory(tmp_path / "a")], precision="int8").get()
    assert not served.loaded
    assert loads == []
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: served.predictor(), range(16)))
    assert len(set(map(id, found))) == len(loads) == 1
    assert served.loaded


def test_a_model_that_vanishes_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    served = Registry([directory(tmp_path / "a")]).get()
    before = served.predictor().translate(LINES)
    (tmp_path / "a" / storage.WEIGHTS).rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"has no model\.safetensors"):
            served.predictor()
    (tmp_path / "a" / storage.WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged"):
        served.predictor()
    shutil.copy(tmp_path / "away", tmp_path / "a" / storage.WEIGHTS)
    assert served.predictor().translate(LINES) == before
    directory(tmp_path / "a", seed=4)
    assert served.predictor().translate(LINES) != before
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ValueError, match="is not a directory"):
        served.predictor()
