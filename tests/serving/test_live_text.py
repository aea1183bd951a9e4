"""A language model that is looked at: what it reads and writes is one text, from its first token on."""

import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import regard
from regard.serving import looks
from regard.serving.app import create_app
from regard.serving.live import Live
from regard.serving.registry import Registry
from tests.serving.toys import writer

LAST = "decoder.layers.1.self_attention"
TEXT = "a dog"


@pytest.fixture(params=["marked", "bare"])
def generator(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """One whose documents begin with a mark, and one where a mark stands between them alone, as in GPT-2."""
    made = regard.load(writer(tmp_path / "writer"), engine="torch")
    if request.param == "bare":
        made.tokenizer.marks = made.tokenizer.marks._replace(bos=made.eos, pad=None)
    return made


def written(live: Live, **asked: Any) -> tuple[list[int], int, dict[str, Any]]:
    """The ids of all that is read and written, how many are given, and the last line."""
    source, *tokens, done = (line for line in live.translate(**asked) if line)
    return [*(token["id"] for token in source["tokens"]), *(token["id"] for token in tokens)], source["given"], done


@pytest.mark.parametrize("beam", [1, 3])
def test_it_goes_on_as_the_generator_does(generator: Any, beam: int) -> None:
    live = Live(generator)
    ids, given, done = written(live, text=TEXT, beam=beam)
    assert ids[: given + 1] == generator.ids(TEXT)
    assert done["text"] == generator.generate(TEXT, beam=beam, limit=50, echo=True)
    look = live.look({"tokens": ids}, {})
    assert math.isclose(live.score(look)["log_probability"], done["log_probability"], abs_tol=1e-4)
    silent = live.look({"tokens": ids}, {LAST: {0: 0.0}})
    assert live.score(silent)["log_probability"] != live.score(look)["log_probability"]


def test_a_beginning_takes_the_place_of_the_text(generator: Any) -> None:
    live = Live(generator)
    ids, given, _ = written(live, text=TEXT)
    other = [*ids[1 : given + 1], ids[1]]
    again, same, _ = written(live, text=TEXT, prefix=other)
    assert (again[: len(other) + 1], same) == ([ids[0], *other], given)
    shorter, _, done = written(live, text=TEXT, prefix=[other[0], live.eos])
    assert (shorter, done["cut"]) == ([ids[0], other[0], live.eos], False)


def test_maps_are_those_of_the_package(generator: Any) -> None:
    live = Live(generator)
    look = live.look({"tokens": [*generator.ids(TEXT), generator.eos]}, {})
    ((_, _, weights),) = looks.maps(live, look, "weights", [(LAST, None)])
    (expected,) = generator.attention(TEXT, names=LAST)
    assert weights.shape[1:] == (len(expected.queries), len(expected.keys))
    assert weights.allclose(expected.weights, atol=1e-6)
    assert len(looks.measures(live, look)["heads"]) == 8
    assert all(text in looks.page(live, look) for text in ("d", "o", "g"))
    assert looks.neuron(live, look, LAST, 0, 1)["weights"] == pytest.approx(weights[0, 1].tolist(), abs=1e-5)


def test_what_it_has_not_is_said(tmp_path: Path) -> None:
    app = create_app(Registry([writer(tmp_path / "writer")]))
    with TestClient(app, base_url="http://localhost") as client:
        (about,) = client.get("/explore/api/models").json()["models"]
        assert (about["task"], about["inputs"], about["source"]) == ("generate", ["tokens"], "")
        assert about["examples"]
        for route, asked, message in (
            ("score", {"source": [2], "target": [2]}, "tokens: it is missing, this model reads tokens"),
            ("score", {"tokens": [1, 5, 6], "target": [2]}, "target: this model reads tokens alone"),
            ("score", {"tokens": [5]}, "tokens has one token, and none is predicted"),
            ("score", {"tokens": []}, "the tokens is empty"),
            ("faithfulness", {"tokens": [1, 5, 6]}, "this model reads none"),
            ("maps", {"tokens": [1, 5], "attentions": [{"name": LAST}], "view": "rollout"}, "a rollout goes through"),
        ):
            answer = client.post(f"/explore/api/{route}", json=asked)
            assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.json()
