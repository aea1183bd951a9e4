"""Attention over pictures: places and patches against plain loops, and what stands for the whole."""

import io
import math

import numpy as np
import pytest
import torch

from regard.core.outputs import HeadConfig
from regard.data.batching import Batch
from regard.inspection.axes import Axes, Axis, Grid, axes, grids
from regard.inspection.figures import to_npz, to_png, to_svg
from regard.inspection.maps import attention_maps
from regard.inspection.measures import NONE, Tokens, tally
from regard.inspection.page import AttentionMap, Picture, attention_page
from regard.inspection.roles import roles
from regard.inspection.taps import record
from regard.inspection.views import standing
from regard.models.family import build, configure
from regard.models.vision import Vision

PIXELS = np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8)
SMALL = ["size=24", "patch=8", "d_model=16", "d_ff=16", "heads=2"]


def vision(preset: str = "vit-tiny", pool: str = "first", *changes: str) -> Vision:
    torch.manual_seed(1)
    own = [*SMALL, "layers=2", *changes]
    model = build(configure(preset, own), HeadConfig("classes", 3, pool=pool)).eval()
    assert isinstance(model, Vision)
    for each in model.parameters():
        each.data += 0.2 * torch.randn_like(each)
    return model


def test_the_places_of_a_picture_stand_along_both_axes() -> None:
    model = vision("deit-tiny", "both")
    assert grids(model) == {"pixels": Grid(2, 3, 3)}
    (first, last) = attention_maps(model, {"pixels": torch.randn(1, 3, 24, 24)}, {}, pixels=PIXELS)
    assert first.queries == first.keys == ["[class]", "[teacher]", *(f"{r},{c}" for r in range(3) for c in range(3))]
    assert (first.query_role, last.name) == ("read", "encoder.layers.1.self_attention")
    assert grids(build(configure("bert-tiny", vocabulary=10))) == {}


def test_of_two_towers_each_has_its_own_axes() -> None:
    own = [*SMALL, "layers=1", "picture_layers=1", "convolutions=0"]
    model = build(configure("clip-tiny", own, vocabulary=20))
    seen, read = Axis("pixels"), Axis("tokens")
    assert axes(model) == {
        "picture_encoder.layers.0.self_attention": Axes(seen, seen),
        "encoder.layers.0.self_attention": Axes(read, read, causal=True),
    }
    with record(model) as flow:
        model(torch.randn(1, 3, 24, 24), torch.tensor([[3, 4, 5]]))
    assert not flow["encoder.layers.0.self_attention"].triu(1).any()


def test_words_look_at_patches_in_a_captioner() -> None:
    model = build(configure("caption-tiny", [*SMALL, "convolutions=0"], vocabulary=20))
    inputs = {"source": torch.randn(1, 3, 24, 24), "target": torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5, 6]])}
    words = [*"abcdefgh", "</s>"]
    maps = attention_maps(model, inputs, {"target": words}, pixels=PIXELS, names="*cross*")
    assert all((each.queries, each.query_role) == (words, "predicted") for each in maps)
    each = maps[0]  # as many words as places: what looks is no picture all the same
    assert torch.allclose(each.over(), each.weights.mean(1).view(2, 3, 3))
    assert torch.equal(each.over(4), each.weights[:, 4].view(2, 3, 3))


@pytest.mark.parametrize(("preset", "pool"), [("vit-tiny", "first"), ("deit-tiny", "both"), ("vit-tiny", "mean")])
def test_what_stands_for_a_picture_looks_over_it(preset: str, pool: str) -> None:
    model, x = vision(preset, pool), torch.randn(1, 3, 24, 24)
    each = attention_maps(model, {"pixels": x}, {}, pixels=PIXELS)[1]
    assert each.picture is not None
    tokens, T = each.picture.grid.tokens, len(each.queries)
    read = {"first": [0], "both": [0, 1], "mean": range(T)}[pool]
    for head in range(2):
        for row in range(3):
            for column in range(3):
                at = tokens + 3 * row + column
                plain = sum(float(each.weights[head, i, at]) for i in read) / len(read)
                assert float(each.over()[head, row, column]) == pytest.approx(plain, abs=1e-6)


def test_the_weights_of_a_pool_are_shares_and_of_the_greatest_their_number() -> None:
    for pool in ("attention", "max"):
        model, x = vision("cct-2", pool, "convolutions=3"), torch.randn(1, 3, 24, 24)
        with standing(model, grids(model)["pixels"]) as noted:
            whole = model(x)
        features, head = model.features(x)[0], model.output
        if pool == "attention":
            vector = noted[-1] @ features
        else:
            counts = [int((features.argmax(0) == i).sum()) for i in range(9)]
            assert noted[-1].tolist() == pytest.approx([n / 16 for n in counts])
            continue
        assert torch.allclose(head.outer(vector), whole[0], atol=1e-5)
        assert not model.output._forward_pre_hooks  # it is left as it was


def test_a_rollout_is_the_product_of_its_layers() -> None:
    model, x = vision(), torch.randn(1, 3, 24, 24)
    plain = attention_maps(model, {"pixels": x}, {}, pixels=PIXELS)
    rolled = attention_maps(model, {"pixels": x}, {}, pixels=PIXELS, view="rollout")
    mixed = [(each.weights.mean(0) + torch.eye(10)) / 2 for each in plain]
    assert torch.allclose(rolled[0].weights[0], mixed[0], atol=1e-6)
    assert torch.allclose(rolled[1].weights[0], mixed[1] @ mixed[0], atol=1e-6)
    (last,) = attention_maps(model, {"pixels": x}, {}, names="*.1.*", view="rollout")
    assert torch.equal(last.weights, rolled[1].weights)
    with pytest.raises(ValueError, match="all heads"):
        attention_maps(model, {"pixels": x}, {}, heads=[0], view="rollout")


def test_distances_are_those_of_a_plain_loop() -> None:
    grid, torch_weights = Grid(1, 3, 4), torch.rand(2, 2, 13, 13).softmax(-1)
    sides, tokens = Axes(Axis("pixels"), Axis("pixels")), Tokens(NONE, NONE, NONE, grids={"pixels": grid})
    batch = Batch({"pixels": torch.zeros(2, 3, 24, 24)}, 2)
    for head, found in enumerate(tally(sides, torch_weights, batch, tokens).measures()):
        far, even, rows = 0.0, 0.0, 0
        for b in range(2):
            for i in range(12):
                row = torch_weights[b, head, 1 + i, 1:]
                apart = [math.dist(divmod(i, 4), divmod(j, 4)) for j in range(12)]
                own = sum(float(row[j]) * apart[j] for j in range(12)) / float(row.sum())
                far, even, rows = far + own, even + own / (sum(apart) / 12), rows + 1
        assert (found.distance, found.reach) == (pytest.approx(far / rows), pytest.approx(even / rows))
        assert found.special == pytest.approx(float(torch_weights[:, head, :, 0].mean()))
        assert found.positional is None
        assert found.previous is None
        assert found.punctuation is None
        itself = torch_weights[:, head].diagonal(dim1=1, dim2=2).mean()
        assert found.itself == pytest.approx(float(itself))


def test_a_head_that_looks_at_its_own_place_is_local() -> None:
    near = torch.eye(16).expand(1, 1, 16, 16)
    sides, tokens = Axes(Axis("pixels"), Axis("pixels")), Tokens(NONE, NONE, NONE, grids={"pixels": Grid(0, 4, 4)})
    (found,) = tally(sides, near, Batch({"pixels": torch.zeros(1, 3, 8, 8)}, 1), tokens).measures()
    assert found.distance == 0.0
    assert roles(found)[0] == "local"
    assert found.special is None  # there is nothing before the patches
    (even,) = tally(sides, torch.full((1, 1, 16, 16), 1 / 16), Batch({"pixels": torch.zeros(1)}, 1), tokens).measures()
    assert even.reach == pytest.approx(1.0)
    assert roles(even) == ["broad"]


def test_files_hold_the_picture() -> None:
    grid, weights = Grid(1, 3, 3), torch.rand(2, 10, 10).softmax(-1)
    picture = Picture(PIXELS, grid, torch.eye(10)[0])
    each = AttentionMap("a.layers.0.self_attention", weights, grid.texts(), grid.texts(), "read", picture=picture)
    arrays = np.load(io.BytesIO(to_npz([each])))
    assert np.array_equal(arrays["picture"], PIXELS)
    assert arrays["grid"].tolist() == [1, 3, 3, 1]
    assert arrays["shares"].tolist() == [1.0] + [0.0] * 9
    page = attention_page([each], title="photo")
    assert '"grid":{"tokens":1,"rows":3,"columns":3,"times":1}' in page
    assert '"pictured":true' in page
    pytest.importorskip("matplotlib")
    assert to_png([each], title="photo").startswith(b"\x89PNG")
    assert to_svg([each]) == to_svg([each])
    grey = Picture(PIXELS[:, :, :1], grid, torch.eye(10)[0])
    one = AttentionMap("a", weights[:1, :4], list("abcd"), grid.texts(), "predicted", picture=grey)
    assert to_svg([one]).count(b"<image") == 4  # one for each word
