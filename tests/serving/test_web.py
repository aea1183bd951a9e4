"""The page's own arithmetic, run by node: maps, colours, and the files that it writes."""

import base64
import csv
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.serving.node import FIGURE, WEB, WEIGHTS, needs_node, run

pytestmark = needs_node


def test_words_sum_over_key_pieces_and_average_over_query_pieces() -> None:
    weights = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.2, 0.1], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 0.0, 1.0]]
    out = run(f"""
      const raw = {{ data: Float32Array.from({json.dumps(weights)}.flat()), shape: [4, 4] }};
      const ends = axes(encoder, {{ source, target }}, "predicted");
      const seen = figure(raw, ends, {{ words: true, special: true, view: "weights" }});
      out = {{ rows: seen.rows.map((row) => row.text), weights: [...seen.weights], normalised: seen.normalised }};
    """)
    assert out["rows"] == ["undo", "it", "</s>"]
    expected = np.array([[0.5, 0.25, 0.25], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(np.reshape(out["weights"], (3, 3)), expected, atol=1e-6)
    assert not out["normalised"]


def test_hidden_special_tokens_leave_rows_that_sum_to_one_but_lengths_as_they_are() -> None:
    weights = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.2, 0.1], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 0.0, 1.0]]
    out = run(f"""
      const raw = {{ data: Float32Array.from({json.dumps(weights)}.flat()), shape: [4, 4] }};
      const ends = axes(encoder, {{ source, target }}, "predicted");
      out = ["weights", "norm"].map((view) => {{
        const seen = figure(raw, ends, {{ words: false, special: false, view }});
        return [[...seen.weights], seen.normalised, seen.top];
      }});
    """)
    kept = np.array(weights)[:3, :3]
    np.testing.assert_allclose(np.reshape(out[0][0], (3, 3)), kept / kept.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(np.reshape(out[1][0], (3, 3)), kept, atol=1e-6)
    assert [out[0][1], out[1][1]] == [True, False]
    assert out[0][2] == 1
    assert out[1][2] == pytest.approx(0.5)


def test_a_decoder_row_is_labelled_by_what_it_predicts_or_by_what_it_reads_and_its_keys_are_what_was_read() -> None:
    out = run("""
      const text = (tokens) => tokens.map((token) => token.text);
      out = ["predicted", "read"].map((axis) => {
        const { rows, columns, role } = axes(decoder, { source, target }, axis);
        return [text(rows), text(columns), role];
      }).concat([text(axes(cross, { source, target }, "predicted").columns)]);
    """)
    assert out[0] == [["hazlo", "</s>"], ["<s>", "hazlo"], "predicts"]
    assert out[1] == [["<s>", "hazlo"], ["<s>", "hazlo"], "reads"]
    assert out[2] == ["un", "do", "it", "</s>"]


def test_chosen_rows_combine_and_the_readout_names_the_cell_that_is_pointed_at() -> None:
    out = run("""
      const label = (text, i) => ({ text, members: [i] });
      const seen = { rows: ["a", "b"].map(label), columns: ["x", "y", "z"].map(label), top: 1,
                     weights: Float32Array.of(0.5, 0.25, 0.25, 0, 0.75, 0.25) };
      const nothing = { hover: null, rows: [], columns: [], combine: "mean" };
      out = {
        mean: [...combineRows(seen, [0, 1], "mean")], sum: [...combineRows(seen, [0, 1], "sum")],
        into: [...combineColumns(seen, [0, 2], "sum")],
        none: readout(seen, nothing),
        cell: readout(seen, { ...nothing, hover: { row: 1, column: 1 } }),
        rows: readout(seen, { ...nothing, rows: [0, 1] }),
        step: readout(seen, { ...nothing, step: [0] }),
        lines: linesOf(seen, [], []), row: linesOf(seen, [1], []), column: linesOf(seen, [], [0]),
      };
    """)
    assert out["mean"] == [0.25, 0.5, 0.25]
    assert out["sum"] == [0.5, 1.0, 0.5]
    assert out["into"] == [0.75, 0.25]
    assert out["none"] is None
    assert (out["cell"]["values"], out["cell"]["value"]) == ({"row": "b", "column": "y"}, 0.75)
    assert (out["rows"]["values"], out["rows"]["value"]) == ({"n": 2, "column": "y"}, 0.5)
    assert (out["step"]["values"], out["step"]["value"]) == ({"row": "a", "column": "x"}, 0.5)
    assert out["lines"][-2:] == [0, 4]
    assert 3 not in out["lines"]
    assert out["row"][-1] == 4
    assert out["column"] == [0]


def test_scales_are_even_and_only_grow_darker_or_lighter() -> None:
    out = run("""
      const hex = (table, i) => "#" + [0, 1, 2].map((c) => table[4 * i + c].toString(16).padStart(2, "0")).join("");
      out = Object.fromEntries(Object.entries(RAMPS).map(([name, table]) =>
        [name, Array.from({ length: 256 }, (_, i) => toOklab(hex(table, i)))]));
      const log = scale("log", 1, "light");
      out.log = [0, 0.001, Math.sqrt(0.001), 1].map(log.place);
    """)
    for name, sign in (("light", -1), ("dark", 1)):
        points = np.array(out[name])
        far = points[8::8]  # eight steps apart: one step is about as small as a byte can tell
        steps = np.linalg.norm(far[1:] - far[:-1], axis=1)
        assert (sign * (far[1:, 0] - far[:-1, 0]) > 0).all()
        assert steps.max() / steps.min() < 1.6
    np.testing.assert_allclose(out["log"], [0, 0, 0.5, 1], atol=1e-9)


def test_csv_reads_back_the_same_numbers() -> None:
    text = run(
        FIGURE + 'out = csv(seen, "c", { across: { text: "mean", values: combineRows(seen, [0, 2], "mean") } });'
    )
    table = list(csv.reader(io.StringIO(text, newline="")))
    assert table[0] == ["c", "a,b", "שלום"]
    assert [row[0] for row in table[1:]] == ['x"y', "<b>&", "猫", "mean"]
    read = np.array([[float(cell) for cell in row[1:]] for row in table[1:4]], np.float32)
    assert (read == WEIGHTS).all()
    np.testing.assert_allclose([float(cell) for cell in table[4][1:]], WEIGHTS[[0, 2]].mean(0), rtol=1e-6)


def test_npz_is_read_by_numpy_without_pickle() -> None:
    packed = run(FIGURE + 'out = Buffer.from(npz(seen, choice, { head: 3, text: "猫" })).toString("base64");')
    with np.load(io.BytesIO(base64.b64decode(packed)), allow_pickle=False) as arrays:
        assert (arrays["weights"] == WEIGHTS).all()
        assert arrays["weights"].dtype == np.float32
        assert arrays["rows"].tolist() == ['x"y', "<b>&", "猫"]
        assert arrays["columns"].tolist() == ["a,b", "שלום"]
        assert arrays["chosen_rows"].tolist() == [0, 2]
        assert arrays["chosen_columns"].tolist() == []
        assert json.loads(arrays["about"].item()) == {"head": 3, "text": "猫"}


def test_the_drawing_is_well_formed_and_has_a_rectangle_with_its_number_for_each_cell() -> None:
    svg = run(FIGURE + "out = drawing(seen, colours, choice, said).svg;")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    titles = [each.text for each in root.iter(f"{space}title")]
    assert titles[0] == "t <1>"
    assert "<b>& → שלום: 0.7000" in titles
    assert len(titles) == 1 + WEIGHTS.size
    assert {"猫", "note & more"} <= {each.text for each in root.iter(f"{space}text")}
    assert len(list(root.iter(f"{space}path"))) == 3  # lines of the two chosen rows, but not for 0


def test_the_drawing_marks_the_step_that_is_looked_at_and_has_its_lines_alone() -> None:
    svg = run(FIGURE + "out = drawing(seen, colours, { ...choice, rows: [], step: [1] }, said).svg;")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert len([each for each in root.iter(f"{space}rect") if each.get("stroke-dasharray")]) == 1
    assert len(list(root.iter(f"{space}path"))) == 1  # of 0.7; 1e-9 is no line
    assert "0.700" in {each.text for each in root.iter(f"{space}text")}


def test_pictures_stand_side_by_side_while_that_leaves_them_large_and_seventy_tokens_have_labels() -> None:
    out = run("""
      const tokens = (n) => Array.from({ length: n }, () => ({ text: "token" }));
      const square = (n) => ({ rows: tokens(n), columns: tokens(n) });
      out = [fitsBeside(square(9), 320), fitsBeside(square(40), 320), fitsBeside(square(9), 200),
             heatLayout(square(9), 320).width <= 320, heatLayout(square(72), 900).labelled,
             laneLayout(square(72), 900).labelled, heatLayout(square(300), 900).height < 1300];
    """)
    assert out == [True, False, False, True, True, True, True]


def test_a_large_drawing_is_a_path_for_each_colour_that_covers_every_cell() -> None:
    out = run("""
      const label = (_, i) => ({ text: `t${i}`, members: [i], special: false });
      const rows = Array.from({ length: 100 }, label);
      const weights = Float32Array.from({ length: 10000 }, (_, i) => (i % 7) / 7);
      const seen = { rows, columns: rows, weights, top: 1, role: "reads" };
      const said = { title: "t", notes: [], titles: { rows: "r", columns: "c" } };
      out = [drawing(seen, colours, { rows: [], columns: [], combine: "mean" }, said).svg, heatLayout(seen, 640).cell];
    """)
    root = ElementTree.fromstring(out[0])
    filled = [each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("fill") != "none"]
    runs = [part for each in filled for part in (each.get("d") or "").split("h")[1::2]]
    assert len(filled) == 7
    assert sum(float(part.split("v")[0]) for part in runs) == pytest.approx(10_000 * out[1])


def test_the_page_has_no_script_and_escapes_what_it_shows() -> None:
    html = run(FIGURE + 'out = page(drawing(seen, colours, choice, said).svg, [mapTable(seen, "c")], said, "en");')
    assert "<script" not in html
    assert "<b>" not in html
    assert "<m>" not in html
    assert "default-src 'none'" in html
    assert "<td>0.3333</td>" in html


def test_labels_are_cut_by_their_width_and_square_letters_are_wide() -> None:
    out = run('out = [short("a".repeat(40)), short("猫".repeat(40)), short("cat"), ems("猫") > ems("c")];')
    assert len(out[0]) > len(out[1])
    assert out[0].endswith("…")
    assert out[2:] == ["cat", True]


def test_the_atlas_sorts_by_any_column_and_leaves_what_has_no_value_to_the_end() -> None:
    out = run("""
      const name = "encoder.layers.0.self_attention";
      const attentions = [{ name, kind: "encoder", layer: 0, heads: 3 }];
      const heads = fromMeasures([
        { name, head: 0, importance: 0.1, entropy: 1, positional: { offset: -1, share: 0.9 }, next: null, odd: 2 },
        { name, head: 1, importance: 0.3, entropy: null, positional: { offset: 1, share: 0.2 }, next: null },
        { name, head: 2, importance: 0.2, entropy: 2, positional: null, next: null },
      ], attentions);
      const columns = new Map(columnsOf(heads));
      const order = (key, down) => sorted(heads, columns.get(key), down).map(({ head }) => head);
      out = { names: [...columns.keys()], entropy: order("entropy", true), up: order("entropy", false),
              positional: order("positional", true), importance: order("importance", true), layer: heads[0].layer };
    """)
    assert out["names"] == ["importance", "entropy", "positional", "odd"]  # no role, no ablation, and no `next` at all
    assert out["entropy"] == [2, 0, 1]
    assert out["up"] == [0, 2, 1]
    assert out["positional"] == [0, 1, 2]
    assert out["importance"] == [1, 2, 0]
    assert out["layer"] == 0


def test_heads_name_the_redundant_one_that_is_nearest() -> None:
    out = run("""
      const heads = [0, 1, 2, 3].map((head) => ({ name: "x", head, measures: {} }));
      const pairs = [{ a: ["x", 0], b: ["x", 1], distance: 0.2 }, { a: ["x", 2], b: ["x", 0], distance: 0.1 }];
      const twins = withTwins(heads, pairs);
      const names = (heads) => columnsOf(heads).map(([key]) => key);
      out = [twins.map(({ twin }) => twin?.head ?? null), names(twins), names(heads)];
    """)
    assert out == [[2, 0, 0, None], ["twin"], []]


def test_the_sentence_looked_at_is_that_of_the_chosen_side_with_its_edits() -> None:
    out = run("""
      const ids = (...numbers) => numbers.map((id) => ({ id, text: String(id) }));
      const models = ["a", "b"].map((id) => ({ id, attentions: [] }));
      const edits = { x: { 1: 0 } };
      const state = { models, model: "a", compare: "b", edits, side: "original",
                      source: ids(1, 2), target: ids(3, 2), done: {},
                      edited: { target: ids(4, 2), done: {} }, other: { source: ids(7), target: ids(8), done: {} } };
      const look = (patch) => { const s = sentence({ ...state, ...patch }); return s && [s.model, s.ids, s.edits]; };
      out = [look({}), look({ side: "edited" }), look({ side: "other" }), look({ done: null }), look({ models: [] }),
             viewShown({ view: "rollout", kind: "cross" }), viewShown({ view: "rollout", kind: "encoder" })];
    """)
    assert out[0] == ["a", [[1, 2], [3, 2]], {}]
    assert out[1] == ["a", [[1, 2], [4, 2]], {"x": {"1": 0}}]
    assert out[2] == ["b", [[7], [8]], {}]
    assert out[3:5] == [None, None]
    assert out[5:] == ["weights", "rollout"]


def test_names_of_files_and_ticks_of_charts() -> None:
    out = run("""
      out = [fileName({ name: "decoder.layers.3.cross_attention", kind: "cross", head: 2, view: "norm" }),
             fileName({ name: "encoder.layers.1.self_attention", kind: "encoder", head: 0, view: "rollout" }),
             plain(source), rounded(0, 41), rounded(0, 0.9)];
    """)
    assert out[:3] == ["cross-3-head-2-norm", "encoder-1-rollout", "undo it"]
    assert out[3:] == [[0, 20, 40], [0, 0.5]]


def test_every_text_is_there_in_both_languages_with_the_same_blanks() -> None:
    scripts = {path.name: path.read_text("utf-8") for path in WEB.glob("*.js")}
    parts = [name for name, text in scripts.items() if re.search(r"^export (const texts|\{ texts)", text, re.M)]
    urls = [(WEB / name).as_uri() for name in parts]
    used = sorted({key for text in scripts.values() for key in re.findall(r"""\bt\(\s*"([^"]+)\"""", text)})
    out = run(f"""
      const {{ add, t }} = await import("{(WEB / "i18n.js").as_uri()}");
      const parts = await Promise.all({json.dumps(urls)}.map((url) => import(url)));
      for (const {{ texts }} of parts) add(texts);
      const blanks = (text) => (text.match(/\\{{\\w+\\}}/g) ?? []).sort().join();
      const differ = parts.flatMap(({{ texts }}) => Object.entries(texts))
        .filter(([, [en, zh, ...more]]) => !en || !zh || more.length || blanks(en) !== blanks(zh));
      out = {{ differ, missing: {json.dumps(used)}.filter((key) => t(key) === key) }};
    """)
    assert "focus.js" in parts
    assert len(used) > 50
    assert out == {"differ": [], "missing": []}


def test_the_table_follows_the_map_though_the_browser_never_finds_an_idle_moment() -> None:
    out = run("""
      class Node {
        constructor() { this.children = []; this.dataset = {}; }
        append(...more) { this.children.push(...more); }
        replaceChildren(...these) { this.children = these; }
        get text() { return this.children.map((each) => each.text ?? each).join(" "); }
        setAttribute() {} removeAttribute() {} addEventListener() {}
        querySelectorAll() { return []; }
      }
      globalThis.document = { hidden: true, createElement: () => new Node() };
      globalThis.window = { requestIdleCallback: (callback, how) => how?.timeout && setTimeout(callback, how.timeout) };
      const [root, store] = [new Node(), createStore(initial())];
      const label = (text, i) => ({ text, members: [i] });
      const shows = (value) => store.set({ figure: {
        rows: [label("row", 0)], columns: [label("column", 0)], weights: Float32Array.of(value), role: "reads",
      } });
      const seen = () => root.children[1].text.match(/0[.][0-9]+/)?.[0];
      table(root, store, { t: (key) => key });
      out = [];
      for (const value of [0.25, 0.75]) {
        shows(value);
        await new Promise((wake) => setTimeout(wake, 1500));
        out.push(seen());
      }
    """)
    assert out == ["0.2500", "0.7500"]


def test_a_text_is_cut_by_its_spans_as_python_counts_characters() -> None:
    text = "🐈 EU and U.S."
    spans = [{"start": text.index("U.S."), "end": len(text), "label": "LOC"}, {"start": 2, "end": 4, "label": "ORG"}]
    spans.append({"start": 3, "end": 9, "label": "MISC"})  # overlaps
    out = run(
        f"out = [pieces({json.dumps(text)}, {json.dumps(spans)}), pieces('ab', [])]"
        ".map((some) => some.map(({ text, span }) => [text, span?.label ?? null]));"
    )
    assert out[0] == [["🐈 ", None], ["EU", "ORG"], [" and ", None], ["U.S.", "LOC"]]
    assert out[1] == [["ab", None]]


def test_bars_are_found_again_in_another_order_and_what_is_not_there_is_none() -> None:
    out = run("""
      const bar = (text, value, label = "") => ({ text, value, label, chosen: value > 0.5 });
      const before = [bar("a", 0.7), bar("b", 0.2), bar("a", 0.1), ...Array.from("cdefghijk", (x) => bar(x, 0.01))];
      const now = [bar("b", 0.6), bar("a", 0.3), bar("z", 0.1), bar("k", 0)];
      out = { alone: rowsOf(before, null).length, both: rowsOf(now, before), most: mostChanged([now], [before]),
              same: mostChanged([before], [before]), gone: rowsOf([], [bar("x", 0.9, "PER")]) };
    """)
    assert out["alone"] == 8
    both = {(row["text"], row["before"]): row["value"] for row in out["both"]}
    assert both[("b", 0.2)] == 0.6
    assert both[("a", 0.7)] == 0.3
    assert both[("a", 0.1)] is None  # a second one of the same text
    assert both[("z", None)] == 0.1
    assert both[("k", 0.01)] == 0  # beyond the eight that are drawn of the first
    assert [row["text"] for row in out["both"]][:4] == ["b", "a", "z", "k"]
    assert (out["most"]["text"], round(out["most"]["by"], 6)) == ("b", 0.4)
    assert out["same"] is None
    assert out["gone"] == [{"text": "x", "value": None, "label": "PER", "chosen": False, "before": 0.9}]


def test_what_an_edit_does_to_an_answer_is_said_in_a_line() -> None:
    out = run("""
      const t = (key, values = {}) => `${key} ${Object.values(values).join(" ")}`.trim();
      const answer = (said, bars, vector = []) => (
        { said, bars: [bars], vector, note: "", spans: [], cosines: vector.length > 0 });
      const bar = (text, value, chosen = false) => ({ text, value, label: "", chosen });
      const [up, down] = [answer("up", [bar("up", 0.9, true)]), answer("down", [bar("up", 0.25)])];
      const none = answer("", [bar("", 0.75, true)]);
      out = [changed(t, down, up), changed(t, up, up), changed(t, answer("", [], [0, 2]), answer("", [], [1, 1])),
             saidOf(t, up), saidOf(t, none), saidOf(t, answer("", [])), saidOf(t, { ...up, note: "why" }),
             changed(t, none, answer("x", [bar("", 0.25)])), cosine([0, 0], [1, 0])];
    """)
    assert out[0] == "answer.other answer.most up −0.65"
    assert out[1] == "answer.same"
    assert out[2] == "answer.turned 0.7071"
    assert out[3:7] == ["up", "answer.none", "answer.nothing", "why"]
    assert out[7] == "answer.other answer.most answer.none +0.50"
    assert out[8] == 0


def test_a_model_that_reads_is_asked_by_its_tokens_and_the_texts_that_they_are_in() -> None:
    out = run("""
      const tokens = [{ id: 1, segment: 0 }, { id: 5, segment: 1 }];
      const model = { id: "m", reads: true, inputs: ["tokens"], attentions: [] };
      const state = { ...initial(), models: [model], model: "m", source: tokens, done: {} };
      const { names, ids, tokens: along } = sentence(state);
      out = { inputs: inputsOf(model, tokens, []), names, ids, along: along.length,
              none: sentence({ ...state, done: null }),
              examples: [exampleOf("a"), exampleOf(["a", "b"]), exampleOf()],
              pair: decode(encode({ ...initial(), pair: "x\\ny" })).pair };
    """)
    assert out["inputs"] == {"tokens": [1, 5], "segments": [0, 1]}
    assert (out["names"], out["ids"], out["along"], out["none"]) == (["tokens", "segments"], [[1, 5], [0, 1]], 2, None)
    assert out["examples"] == [{"text": "a", "pair": ""}, {"text": "a", "pair": "b"}, {"text": "", "pair": ""}]
    assert out["pair"] == "x\ny"


def test_what_was_added_is_off_beside_unless_somebody_chose() -> None:
    out = run("""
      const models = [{ id: "m", changes: [{ name: "lora" }, { name: "more" }] }, { id: "plain" }];
      const state = { ...initial(), models, model: "m", edited: { target: [] } };
      const said = (more) => {
        const now = { ...state, ...more };
        return [offOf(now), isBase(now), edited(now), shown({ ...now, side: "edited" }).off, encode(now)];
      };
      out = [{}, { off: [] }, { off: ["more", "gone"] }, { edits: { a: { 0: 0 } } }, { model: "plain" }].map(said);
      out.push(decode("#off=").off, decode("#off=lora,more").off, decode("#off=<b>").off, decode("").off);
    """)
    both = ["lora", "more"]
    assert out[0] == [both, True, True, both, "model=m"]
    assert out[1] == [[], False, False, [], "model=m&off="]
    assert out[2][:4] == [["more"], False, True, ["more"]]
    assert out[3][:4] == [both, False, True, both]
    assert out[4] == [[], False, False, [], "model=plain"]
    assert out[5:] == [[], both, None, None]


def test_how_much_was_changed_is_a_table_of_layers_and_roles() -> None:
    out = run("""
      const part = (layer, block, role, amount) => ({ place: "decoder", layer, block, role, amount });
      const parts = [part(0, "feed_forward", "inner", 0.02), part(0, "self_attention", "query", 0.1),
        part(1, "self_attention", "query", 0.3), part(1, "self_attention", "query", 0.2), part(1, "x", "", null)];
      out = [board(parts), board([part(0, "", "", null)]), [0.061, 1.3, 0.00042, 0].map(shareOf)];
    """)
    assert [row["layer"] for row in out[0]["rows"]] == [0, 1]
    assert [column["role"] for column in out[0]["columns"]] == ["query", "inner"]
    assert (out[0]["values"], out[0]["top"]) == ([[0.1, 0.02], [0.3, None]], 0.3)
    assert (out[1]["rows"], out[1]["top"]) == ([], 0)
    assert out[2] == ["6.1 %", "130 %", "0.042 %", "0 %"]


def test_the_difference_of_two_maps_ends_where_their_rows_part() -> None:
    out = run("""
      const axis = (texts) => [...texts].map((text, i) => ({ text, members: [i] }));
      const map = (rows, columns, weights) =>
        ({ rows: axis(rows), columns: axis(columns), weights: Float32Array.from(weights), side: "edited" });
      const one = map("abc", "xy", [1, 0, 0.5, 0.5, 0, 1]);
      const at = (beside, difference = true) => besideShown({ figure: one, beside, difference });
      const same = map("abc", "xy", [0.75, 0.25, 0.5, 0.5, 0.5, 0.5]);
      const parts = map("abd", "xy", [0.75, 0.25, 0.5, 0.5, 0.5, 0.5]);
      const other = map("abc", "xz", [0.75, 0.25, 0.5, 0.5, 0.5, 0.5]);
      out = [at(same), at(parts), at(other), at(same, false)].map(({ weights, most }) => [[...weights], most ?? null]);
    """)
    assert out[0] == [[-0.25, 0.25, 0, 0, 0.5, -0.5], 0.5]
    assert out[1] == [[-0.25, 0.25, 0, 0, 0, 0], 0.25]
    assert out[2][1] is None
    assert out[3][1] is None
