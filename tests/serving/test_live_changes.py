"""What a model adds to another, in the explorer: switched off it is the base, for who asked and nobody else."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import regard
from regard.adaptation.change import additions, amounts
from regard.core.added import merged
from regard.inspection.views import norm_maps
from regard.serving import looks
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.live import Live
from regard.serving.readers import LiveReader
from regard.serving.registry import Registry
from tests.readers import directory as reader
from tests.serving.toys import CROSS, LINES, adapted, directory, writer

LORA: dict[str, Any] = {"lora": {"rank": 2, "where": ["all"]}}
SEVERAL: list[dict[str, Any]] = [
    LORA,
    {"lora": {"rank": 1, "name": "more"}},
    {"adapter": {"width": 4}},
    {"prompt": {"length": 3}},
    {"prefix": {"length": 2}},
    {"ia3": {}},
    {"biases": {}},
]
NAMES = ["lora", "more", "adapter", "prompt", "prefix", "ia3", "shift"]
KINDS = ("translate", "generate", "classify", "tag", "mask")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Of each kind a base, one that adds LoRA to it, and one that adds everything."""
    place, found = tmp_path_factory.mktemp("models"), {}
    for kind in KINDS:
        path = place / kind
        base = {"translate": directory, "generate": writer}.get(kind, lambda path: reader(path, path.name))(path)
        several = (
            [{"lora": LORA["lora"]}, {"prompt": {"length": 3}}] if kind in ("classify", "tag", "mask") else SEVERAL
        )
        lora = adapted(place / f"{kind}-lora", base, LORA)
        found[kind] = {"base": base, "lora": lora, "several": adapted(place / f"{kind}-several", base, *several)}
    return found


def live(path: Path) -> Live:
    predictor: Any = regard.load(path, engine="torch")
    return LiveReader(predictor) if hasattr(predictor, "framed") else Live(predictor)


def said(model: Live, **how: Any) -> list[Any]:
    """All lines of what a model says, but how long it took."""
    lines = [line for line in model.translate("a dog [MASK] runs", **how) if line is not None]
    return [{key: value for key, value in line.items() if key != "milliseconds"} for line in lines]


def seen(model: Live, off: list[str]) -> Any:
    """A look at what it said as it is."""
    first, *tokens, _ = said(model)
    ids = [[token["id"] for token in each] for each in (first["tokens"], tokens)]
    names = model.inputs
    given = dict(zip(names, ids, strict=False)) if len(names) > 1 else {names[0]: [*ids[0], *ids[1]]}
    return model.look(given, {}, off)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["lora", "several"])
def test_all_off_is_the_base_bit_for_bit(paths: dict[str, dict[str, Path]], kind: str, which: str) -> None:
    base, model = live(paths[kind]["base"]), live(paths[kind][which])
    names = [each.name for each in model.additions]
    assert names == [name for name in NAMES if name in names]
    assert said(model, off=names) == said(base)
    assert said(model) != said(base)
    looked = seen(model, names)
    plain = base.look(dict(zip(base.inputs, looked.ids, strict=True)), {})
    for (name, one), (_, other) in zip(
        model.recorded(looked, model.attentions), base.recorded(plain, base.attentions), strict=True
    ):
        assert torch.equal(one.weights, other.weights), name
        assert looks.neuron(model, looked, name, 1, 0) == looks.neuron(base, plain, name, 1, 0)
    if kind in ("translate", "generate"):
        assert model.score(looked) == base.score(plain)
    assert model.model.training is False
    assert all(part.on for part in model.model.modules() if hasattr(part, "on"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_switched_by_itself_and_maps_are_of_tokens(paths: dict[str, dict[str, Path]], kind: str) -> None:
    model = live(paths[kind]["several"])
    whole = {json.dumps(said(model)), json.dumps(said(model, off=[each.name for each in model.additions]))}
    for each in model.additions:
        whole.add(json.dumps(said(model, off=[each.name])))
    assert len(whole) == 2 + len(model.additions)
    looked = seen(model, [])
    for name, recorded in model.recorded(looked, model.attentions):
        assert recorded.weights.shape[1:] == model.lengths(looked, name)  # virtual tokens are none
        assert recorded.weights.sum(-1).max() < 1 + 1e-5
    assert {part["name"] for part in looks.measures(model, looked)["heads"]} == {*model.attentions}
    assert "Changed:" not in looks.page(model, looked)
    assert "Changed: lora off" in looks.page(model, seen(model, ["lora"]))


def test_those_who_ask_at_once_do_not_disturb_each_other(paths: dict[str, dict[str, Path]]) -> None:
    model = live(paths["translate"]["several"])
    ways: list[dict[str, Any]] = [{}, {"off": NAMES}, {"off": ["lora"]}, {"off": ["prefix", "ia3"]}]
    ways += [{"off": ["more"], "edits": {CROSS: {0: 0.0}}, "beam": 3}]
    alone = [said(model, **how) for how in ways]
    with ThreadPoolExecutor(5) as threads:
        for _ in range(3):
            assert list(threads.map(lambda how: said(model, **how), ways)) == alone


def test_over_http(paths: dict[str, dict[str, Path]]) -> None:
    served = [paths["translate"]["base"], paths["translate"]["lora"]]
    app = create_app(Registry(served, engine="torch"), ServeConfig(host_names=("testserver",)))
    with TestClient(app) as client:

        def ask(route: str, **asked: Any) -> Any:
            answer = client.post(f"/explore/api/{route}", json=asked)
            assert answer.status_code == 200, answer.text
            return answer

        base, lora = client.get("/explore/api/models").json()["models"]
        assert (base["changes"], base["new_head"]) == ([], False)
        (change,) = lora["changes"]
        assert (change["name"], change["says"]) == ("lora", "lora r=2 on 32 matrices")  # 6 attentions, 4 networks
        kept = regard.load(served[1]).model
        assert change["parameters"] == sum(p.numel() for name, p in kept.named_parameters() if ".lora." in name)
        first = {"place": "encoder", "layer": 0, "block": "self_attention", "role": "query"}
        assert {key: value for key, value in change["parts"][0].items() if key != "amount"} == first
        assert all(part["amount"] > 0 for part in change["parts"])
        lines = [
            ask("translate", model=model, text=LINES[0], off=off)
            for model, off in (("translate", []), ("translate-lora", ["lora"]), ("translate-lora", []))
        ]
        texts = [[json.loads(line) for line in each.text.splitlines()] for each in lines]
        assert texts[0][:-1] == texts[1][:-1]
        assert texts[0][1]["log_p"] != texts[2][1]["log_p"]
        source, target = ([token["id"] for token in some] for some in (texts[0][0]["tokens"], texts[0][1:-1]))
        look: dict[str, Any] = {"source": source, "target": target}
        maps = {"attentions": [{"name": CROSS}], "dtype": "f32"}
        for route, more in (("score", {}), ("maps", maps), ("maps", {**maps, "view": "norm"}), ("measures", {})):
            here, there, on = (
                ask(route, **look, **more, model=model, off=off).content
                for model, off in (("translate", []), ("translate-lora", ["lora"]), ("translate-lora", []))
            )
            assert here == there != on
        refused = client.post("/explore/api/translate", json={"text": "a", "off": ["lora"]})
        assert refused.status_code == 400
        message = "nothing that was added to this model is called 'lora': it adds to no other"
        assert refused.json()["error"] == message
        refused = client.post("/explore/api/score", json={**look, "model": "translate-lora", "off": ["loro"]})
        assert refused.json()["error"].endswith("is called 'loro': it has lora")


@pytest.mark.parametrize("kind", ["translate", "generate"])
def test_how_much_was_changed_is_what_merging_changes(paths: dict[str, dict[str, Path]], kind: str) -> None:
    base = regard.load(paths[kind]["base"]).model
    for change in ({"lora": {"rank": 3, "where": ["all"], "alpha": 5}}, {"ia3": {"where": ["all"]}}, {"biases": {}}):
        path = adapted(paths[kind]["base"].parent / f"{kind}-{min(change)}", paths[kind]["base"], change)
        model = regard.load(path).model
        whole = merged(model)
        (each,) = additions(model)
        for place, role, amount in amounts(model, each.name):
            module, after = base.get_submodule(place), whole.get_submodule(place)
            before, after = (m.bias if role == "bias" else m.weight for m in (module, after))
            at = slice(None) if role == "bias" else getattr(model.get_submodule(place), each.name).rows[role]
            was = float(before[at].detach().norm())
            share = float((after - before)[at].detach().norm()) / was if was else None  # of nothing, there is none
            assert amount == (None if share is None else pytest.approx(share, rel=1e-4, abs=1e-6))


def test_a_norm_map_counts_what_was_added_to_the_output(paths: dict[str, dict[str, Path]]) -> None:
    model = live(paths["translate"]["lora"])
    looked = seen(model, [])
    ((_, _, found),) = looks.maps(model, looked, "norm", [(CROSS, None)])
    ((_, recorded),) = model.recorded(looked, [CROSS])
    one = Live(model.predictor)
    one.model = merged(one.model)
    output = one.model.get_submodule("decoder.layers.1.cross_attention.sublayer")
    wanted = norm_maps(output, recorded.weights[None], recorded.values[None])[0]  # type: ignore[arg-type]
    np.testing.assert_allclose(found.detach(), wanted.detach(), atol=1e-5)
