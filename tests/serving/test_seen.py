"""What the page shows side by side, and the files that it saves of what is seen; run by node."""

import base64
import csv
import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.serving.node import FIGURE, WEIGHTS, needs_node, run

pytestmark = needs_node


def test_both_are_the_original_and_the_edited_model_else_the_second_one() -> None:
    out = run("""
      const state = (patch) => ({ ...initial(), ...patch });
      const both = state({ side: "both", edited: {}, other: {} });
      out = {
        partner: [both, state({ side: "both", other: {} }), state({ side: "both" }), state({ edited: {} })]
          .map(partner),
        looking: ["original", "edited", "other"].map((side) => looking(both, side)),
        towards: ["original", "edited", "other"].map((side) => towards(both, side)),
        alone: towards(state({ edited: {} }), "edited"),
        address: [encode(both), decode("#side=both").side, decode("#side=neither").side],
      };
    """)
    assert out["partner"] == ["edited", "other", None, None]
    assert out["looking"] == [True, True, False]
    assert out["towards"] == ["both", "both", "other"]
    assert out["alone"] == "edited"
    assert out["address"] == ["side=both", "both", "original"]


def test_the_head_beside_is_the_same_of_the_other_model_or_its_nearest() -> None:
    out = run("""
      const attention = (kind, layer, heads) => ({ name: `${kind}.${layer}`, kind, layer, heads });
      const small = [attention("cross", 0, 2), attention("cross", 1, 2), attention("encoder", 0, 4)];
      const at = (kind, layer, head) => counterpart(small, { kind, layer }, head);
      const models = [{ id: "a", attentions: [attention("cross", 3, 8)] }, { id: "b", attentions: small }];
      const tokens = [{ id: 2, text: "x" }];
      const state = { ...initial(), models, model: "a", compare: "b", kind: "cross", source: tokens, target: tokens,
                      done: {}, other: { source: tokens, target: tokens, done: {} } };
      const { about, ...beside } = besideOf({ ...state, side: "both" }, models[0].attentions[0], 7);
      const streaming = besideOf({ ...state, side: "both", other: { ...state.other, done: null } }, small[0], 0);
      out = [at("cross", 1, 1), at("cross", 5, 3), at("decoder", 0, 0), beside, about.model, streaming.about,
             besideOf({ ...state, side: "other" }, small[0], 0)];
    """)
    assert out[0] == {"name": "cross.1", "head": 1, "same": True}
    assert out[1] == {"name": "cross.1", "head": 1, "same": False}
    assert out[2] is None
    assert out[3] == {"side": "other", "name": "cross.1", "head": 1, "same": False}
    assert out[4:] == ["b", None, None]


def test_two_maps_are_linked_where_they_are_as_long_and_name_the_cells_that_differ_most() -> None:
    out = run("""
      const label = (text, i) => ({ text, members: [i], special: false });
      const map = (rows, columns, weights) =>
        ({ rows: [...rows].map(label), columns: [...columns].map(label), weights: Float32Array.from(weights) });
      const one = map("ab", "xyz", [0.5, 0.25, 0.25, 0, 0.75, 0.25]);
      const two = map("ab", "xyz", [0.5, 0, 0.5, 0.125, 0.75, 0.125001]);
      const longer = map("abc", "xyz", Array(9).fill(0));
      const choice = { rows: [1], columns: [2], hover: { row: 0, column: 1 }, combine: "mean", step: [0] };
      out = {
        link: [linked(one, two), linked(one, longer)],
        carried: [{ row: 1, column: 2 }, { row: 1, column: null }, null].map((at) => carried(at, linked(one, longer))),
        choice: besides(choice, linked(one, longer), [2]),
        comparable: [[one, two], [one, longer], [longer, one], [one, map("ac", "xyz", one.weights)],
                     [one, map("ab", "xyw", one.weights)]].map(([p, q]) => comparable(p, q)),
        changes: changes(one, two, 2), none: changes(one, one, 2), all: changes(one, two, 2, 9).length,
        above: changes(one, two, 1, 9).length,
      };
    """)
    assert out["link"] == [{"rows": True, "columns": True}, {"rows": False, "columns": True}]
    assert out["carried"] == [{"row": None, "column": 2}, None, None]
    assert out["choice"] == {
        "rows": [], "columns": [2], "hover": {"row": None, "column": 1}, "combine": "mean", "step": [2],
    }  # fmt: skip
    assert out["comparable"] == [2, 2, 2, 1, 0]
    assert [(each["row"], each["column"]) for each in out["changes"]] == [(0, 1), (0, 2), (1, 0)]
    assert (out["changes"][0]["before"], out["changes"][0]["after"]) == (0.25, 0)
    assert (out["none"], out["all"], out["above"]) == ([], 4, 2)


def test_two_maps_in_one_drawing_and_in_one_npz() -> None:
    out = run(
        FIGURE
        + """
      const other = { ...seen, columns: ["u", "v"].map(label), weights: weights.map((x) => 1 - x) };
      const panels = [[seen, "Original"], [other, "Edited"]].map(([each, name]) =>
        heatPanel(each, colours, choice, said.titles, name));
      out = [sheet(panels, "dark", said, colours).svg,
             Buffer.from(npz(seen, choice, {}, other)).toString("base64")];
    """
    )
    root = ElementTree.fromstring(out[0])
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Original", "Edited", "a,b", "u", "v", "note & more"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) == 1 + 2 * WEIGHTS.size
    with np.load(io.BytesIO(base64.b64decode(out[1])), allow_pickle=False) as arrays:
        assert (arrays["weights"] == WEIGHTS).all()
        np.testing.assert_allclose(arrays["beside_weights"], 1 - WEIGHTS, atol=1e-6)
        assert arrays["beside_columns"].tolist() == ["u", "v"]


NEURONS = """
  const neurons = { query: [1, -2], keys: [[0.5, 0.25], [-1, 0], [2, 2]], products: [[0.5, -0.5], [-1, 0], [2, -4]],
                    scores: [0, -1, -2], bias: [0, 0, 0], weights: [0.665, 0.245, 0.09], labels: ["a,b", "<c>", "猫"] };
  const titles = { key: "key", keys: "k", products: "q × k", score: "score", weight: "weight", query: "q: x",
                   bias: "b" };
"""


def test_neurons_as_numbers_hold_query_keys_products_scores_and_weights() -> None:
    out = run(
        NEURONS
        + """
      out = [neuronCsv(neurons, titles), neuronCsv({ ...neurons, bias: [0, 0.5, 0] }, titles),
             Buffer.from(neuronNpz(neurons, { head: 3 })).toString("base64")];
    """
    )
    head, query, *keys = csv.reader(io.StringIO(out[0], newline=""))
    assert head == ["key", "score", "weight", "k 0", "k 1", "q × k 0", "q × k 1"]
    assert query == ["q: x", "", "", "1", "-2", "", ""]
    assert [row[0] for row in keys] == ["a,b", "<c>", "猫"]
    assert [float(x) for x in keys[2][1:]] == [-2, 0.09, 2, 2, 2, -4]
    assert next(csv.reader(io.StringIO(out[1], newline="")))[1:4] == ["score", "b", "weight"]
    with np.load(io.BytesIO(base64.b64decode(out[2])), allow_pickle=False) as arrays:
        assert arrays["query"].tolist() == [1, -2]
        assert arrays["keys"].tolist() == [[0.5, 0.25], [-1, 0], [2, 2]]
        assert arrays["products"].shape == (3, 2)
        assert arrays["labels"].tolist() == ["a,b", "<c>", "猫"]
        np.testing.assert_allclose(arrays["weights"], [0.665, 0.245, 0.09], rtol=1e-6)
        assert json.loads(arrays["about"].item()) == {"head": 3}


def test_neurons_as_a_drawing_have_bars_as_long_as_the_weights() -> None:
    svg = run(NEURONS + 'out = sheet([neuronPanel(neurons, "light", titles)], "light", { title: "t", notes: [] }).svg;')
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert {"<c>", "猫", "−2.000", "0.665"} <= {each.text for each in root.iter(f"{space}text")}
    bars = [float(each.attrib["width"]) for each in root.iter(f"{space}rect") if each.get("fill-opacity")]
    assert np.array(bars) / bars[0] == pytest.approx(np.array([0.665, 0.245, 0.09]) / 0.665, abs=1e-3)
    covered = [part for each in root.iter(f"{space}path") for part in (each.get("d") or "").split("h")[1::2]]
    assert sum(float(part.split("v")[0]) for part in covered) == pytest.approx(7 * 232)  # query, 3 keys, 3 products


def test_long_notes_of_a_drawing_are_broken_into_lines() -> None:
    svg = run("""
      const panel = { svg: "", width: 300, height: 20 };
      out = sheet([panel], "light", { title: "t", notes: ["word ".repeat(40), "猫".repeat(60)] }).svg;
    """)
    texts = [each.text or "" for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "".join(texts).count("word") == 40
    assert "".join(texts).count("猫") == 60
    assert max(map(len, texts)) < 60


def test_the_atlas_as_csv_has_exact_values_in_the_order_of_the_table() -> None:
    out = run("""
      const heads = [
        { name: "x", head: 0, role: "positional -1", importance: 0.123456789,
          twin: { name: "x", head: 1, distance: 0.2 },
          measures: { positional: { offset: -1, share: 0.9 }, next: null } },
        { name: "x", head: 1, role: "", importance: 0.5, measures: { positional: null, next: 0.25 } },
      ];
      const name = ({ head }) => `head ${head}`;
      const columns = exactColumns(columnsOf(heads), heads, { name, role: (role) => role.toUpperCase() });
      const order = sorted(heads, (head) => head.importance, true);
      out = csvLines([columns.map(([key, part]) => `${key} ${part ?? ""}`.trim()),
                      ...order.map((head) => columns.map(([, , read]) => read(head)))]);
    """)
    head, first, second = csv.reader(io.StringIO(out, newline=""))
    assert head == ["role", "importance", "twin", "twin distance", "positional offset", "positional share", "next"]
    assert first == ["", "0.5", "", "", "", "", "0.25"]
    assert second == ["POSITIONAL -1", "0.123456789", "head 1", "0.2", "-1", "0.9", ""]


def test_what_is_exported_is_what_is_seen() -> None:
    out = run("""
      globalThis.document = { documentElement: { dataset: {} } };
      const t = (key) => key;
      const about = { model: "m", ids: [[1], [1]], edits: {}, source: [], target: [] };
      const map = { rows: [], columns: [], weights: new Float32Array(), top: 1, role: "reads", about, side: "original",
                    name: "decoder.layers.1.cross_attention", head: 0, kind: "cross", view: "weights" };
      const listed = { model: "m", charts: [], notes: [] };
      const look = (patch) => {
        const found = files({ ...initial(), ...patch }, t, {});
        return found && [found.name, Object.keys(found).filter((key) => key !== "name").sort().join()];
      };
      const neurons = { ...map, position: 4, query: [], labels: [] };
      out = [look({}), look({ figure: map }), look({ figure: map, beside: { ...map, side: "edited", same: true } }),
             look({ figure: map, view: "neuron", neurons }), look({ tab: "atlas", figure: map }),
             look({ tab: "atlas", listed }), look({ tab: "atlas", listed: { ...listed, charts: [{}] } })];
    """)
    assert out == [
        None,
        ["cross-1-head-0-weights", "csv,html,npz,page,svg"],
        ["cross-1-head-0-weights-both", "csv,html,npz,page,svg"],
        ["cross-1-head-0-neurons-query-4", "csv,html,npz,svg"],
        None,
        ["heads-m", "csv,html"],
        ["heads-m", "csv,html,json,svg"],
    ]
