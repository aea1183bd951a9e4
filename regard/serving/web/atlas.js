// The head atlas: what each head does over many sentences, sortable; which are alike; what pruning costs; examples.

import { curves, likeness, symbol } from "./charts.js";
import { scale, shade } from "./colour.js";
import { h } from "./dom.js";
import { vector } from "./elements.js";
import { heatmap } from "./heatmap.js";
import { headLabel } from "./i18n.js";
import { arrowed } from "./seen.js";
import { body, atlasOf, kindsOf, modelShown, roleText, sentence } from "./sight.js";
import { texts as words } from "./atlas-texts.js";

export const texts = words;
const MEASURES = [
  "confidence", "entropy", "evenness", "positional", "previous", "itself", "next", "first", "special", "punctuation",
  "rare", "duplicate", "induction", "aer",
];
const SHARES = new Set(MEASURES.filter((name) => name !== "entropy")); // between 0 and 1: a bar shows them

const tiny = (kind) =>
  vector("svg", { class: "tiny", viewBox: "0 0 14 14", "aria-hidden": "true" }, symbol(kind, 7, 7, 4.5));

/** A piece without the mark for the space before it, or for none behind it. */
const plainPiece = (text) => text.replace(/^▁(?=.)|(?<=.)@@$/g, "");

/** Heads of /measures in the atlas's shape, so that one table shows both. */
export const fromMeasures = (heads, attentions) =>
  heads.map(({ name, head, importance, ...measures }) => {
    const { kind, layer } = attentions.find((each) => each.name === name);
    return { name, head, kind, layer, role: "", importance, measures };
  });

/** Heads with the redundant one that is nearest to each, if any: `twin` is {name, head, distance}. */
export const withTwins = (heads, pairs) =>
  heads.map((each) => {
    const mine = ([name, head]) => name === each.name && head === each.head;
    const near = pairs.filter(({ a, b }) => mine(a) || mine(b)).sort((p, q) => p.distance - q.distance)[0];
    if (!near) return each;
    const [name, head] = mine(near.a) ? near.b : near.a;
    return { ...each, twin: { name, head, distance: near.distance } };
  });

/** The table's columns, where some head has a value: [key, read(head)]; a value is a number, a text or null. */
export const columnsOf = (heads) => {
  const known = new Set(MEASURES);
  const all = Object.keys(Object.assign({}, ...heads.map(({ measures }) => measures)));
  const more = all.filter((name) => !known.has(name));
  const number = (x) => (Number.isFinite(x) ? x : (x?.share ?? null));
  const columns = [
    ["role", ({ role }) => role || null],
    ["importance", ({ importance }) => number(importance)],
    ["loss", ({ ablation }) => number(ablation?.loss)],
    ["bleu", ({ ablation }) => number(ablation?.bleu)],
    ["twin", ({ twin }) => number(twin?.distance)],
    ...[...MEASURES, ...more].map((name) => [name, ({ measures }) => number(measures[name])]),
  ];
  return columns.filter(([, read]) => heads.some((head) => read(head) !== null));
};

/**
 * The columns for files, with exact values: [key, part, read(head)]. An offset and its share, the head that one is
 * redundant with and its distance, are two columns; `part` names them. `name(head)` and `role(role)` write these.
 */
export const exactColumns = (columns, heads, { name, role }) =>
  columns.flatMap(([key, read]) => {
    if (key === "role") return [[key, null, (head) => (head.role ? role(head.role) : null)]];
    if (key === "twin") return [[key, null, ({ twin }) => (twin ? name(twin) : null)], [key, "distance", read]];
    const placed = heads.some(({ measures }) => measures[key]?.offset !== undefined);
    if (!placed) return [[key, null, read]];
    return [[key, "offset", ({ measures }) => measures[key]?.offset ?? null], [key, "share", read]];
  });

/** Heads by one column; those without a value come last whichever way. */
export const sorted = (heads, read, down) => {
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return heads.toSorted((p, q) => {
    const [a, b] = [read(p), read(q)];
    if (a === null || b === null) return (a === null) - (b === null);
    return down ? order(b, a) : order(a, b);
  });
};

export function mount(root, store, { api, t, fail }) {
  const { state } = store;
  let shown = null; // {key, atlas | null, heads}
  let by = { name: "importance", down: true };
  let looked = null; // the head whose example is shown
  root.classList.add("atlas");

  const label = (head) => headLabel(modelShown(state), head.name, head.head);
  const go = ({ name, head, kind }) => store.set({ tab: "heads", kind, head: { name, head } });
  const title = (key) => {
    const text = t(`atlas.${key}`);
    return text === `atlas.${key}` ? key : text;
  };

  const place = (head, key) => head.measures[key]?.offset;
  const value = (head, key, read) => {
    if (key === "role") return roleText(t, head.role);
    const x = read(head);
    if (x === null) return "–";
    const signed = key === "loss" || key === "bleu" ? (x > 0 ? "+" : "") : "";
    if (key === "twin") return `${label(head.twin)} · ${x.toFixed(2)}`;
    const digits = key === "loss" ? 3 : 2;
    if (Math.abs(x) < 0.5 * 10 ** -digits && place(head, key) === undefined) return (0).toFixed(digits); // no −0.00
    const offset = place(head, key);
    const at = offset === undefined ? "" : `${offset > 0 ? "+" : ""}${offset} · `;
    return (at + signed + x.toFixed(digits)).replace("-", "−");
  };

  /** {columns, heads}: the table's, in the order that was chosen. */
  const inOrder = () => {
    const columns = columnsOf(shown.heads);
    const reads = new Map([["head", null], ...columns]);
    if (!reads.has(by.name)) by = { name: "head", down: false };
    const own = by.down ? shown.heads.toReversed() : shown.heads; // the model's
    return { columns, heads: by.name === "head" ? own : sorted(shown.heads, reads.get(by.name), by.down) };
  };

  const table = ({ columns, heads }) => {
    const most = Math.max(1e-9, ...shown.heads.map(({ importance }) => importance ?? 0));
    const sort = (name) => {
      by = { name, down: by.name === name ? !by.down : !["role", "head", "twin", "aer"].includes(name) };
      draw();
      root.querySelector(`[data-sort="${name}"]`).focus();
    };
    const header = (name) => {
      const order = by.name === name ? (by.down ? "descending" : "ascending") : "none";
      const arrow = by.name === name ? (by.down ? " ↓" : " ↑") : "";
      const hint = t(`atlas.${name}.title`);
      const tip = hint.startsWith("atlas.") ? null : hint;
      const act = { type: "button", class: "sort", "data-sort": name, title: tip, onclick: () => sort(name) };
      const button = h("button", act, title(name) + arrow);
      return h("th", { scope: "col", "aria-sort": order, class: name }, button);
    };
    const line = (head) => {
      const act = { type: "button", class: "quiet", title: t("atlas.open"), onclick: () => go(head) };
      const name = h("th", { scope: "row" }, tiny(head.kind), h("button", act, label(head)));
      const row = h("tr", {}, name, ...columns.map(([key, read]) => {
        const cell = h("td", { class: key }, h("span", {}, value(head, key, read)));
        const part = key === "importance" ? read(head) / most : SHARES.has(key) ? read(head) : null;
        if (part) cell.style.setProperty("--part", Math.min(1, part).toFixed(3));
        return cell;
      }));
      row.addEventListener("pointerenter", () => example(head));
      row.addEventListener("focusin", () => example(head));
      return row;
    };
    return h("div", { class: "atlas-scroll", tabindex: "0", role: "region", "aria-label": t("atlas.table") },
      h("table", { class: "atlas-table" },
        h("thead", {}, h("tr", {}, header("head"), ...columns.map(([name]) => header(name)))),
        h("tbody", {}, ...heads.map(line))));
  };

  const card = (key, blanks, ...children) =>
    h(
      "section", { class: "card" },
      h("h3", {}, t(`atlas.${key}`)), ...children, h("p", { class: "note" }, t(`atlas.${key}.note`, blanks)),
    );

  const exampleTitle = h("h3");
  const exampleBox = h("div", { class: "picture" });
  const picture = heatmap(exampleBox, { point: () => {}, pick: () => {} });
  picture.frame.removeAttribute("tabindex"); // only a picture here
  picture.frame.setAttribute("role", "img");
  const exampleCard = h("section", { class: "card" }, exampleTitle, exampleBox, h("p", { class: "note" }));

  const sentenceAbout = () => arrowed(sentence(state) ?? { source: [], target: [] });
  /** What the table and the charts show, for files: as it is written here, and with exact numbers. */
  const list = ({ columns, heads }, notes, charts) => {
    const model = modelShown(state)?.id ?? "";
    const exact = exactColumns(columns, heads, { name: label, role: (role) => roleText(t, role) });
    const heading = ([key, part]) => (part ? `${title(key)} (${t(`atlas.${part}`)})` : title(key));
    store.set({
      listed: {
        model, charts, notes, example: null,
        title: `${model} · ${t("tab.atlas")}`,
        facts: [[t("export.model"), model]],
        head: [t("atlas.head"), ...columns.map(([key]) => title(key))],
        shown: heads.map((head) => [label(head), ...columns.map(([key, read]) => value(head, key, read))]),
        headExact: [t("atlas.head"), ...exact.map(heading)],
        exact: heads.map((head) => [label(head), ...exact.map(([, , read]) => read(head))]),
      },
    });
  };

  /** A sentence where a head is most itself. */
  const example = (head) => {
    if (!head?.example || head === looked) return;
    looked = head;
    const { row, rows, columns, weights } = head.example;
    const token = (text, i) => ({ text: plainPiece(text), members: [i], special: /^<\/?s>$/.test(text) });
    const figure = { rows: rows.map(token), columns: columns.map(token), weights: Float32Array.from(weights.flat()) };
    exampleTitle.textContent = t("atlas.example", { head: label(head), role: roleText(t, head.role) });
    exampleCard.lastElementChild.textContent = t("atlas.example.note");
    const titles = { rows: t(`axis.${row}`), columns: t("axis.keys") };
    const most = modelShown(state)?.sees ? Math.max(...figure.weights) : 1;
    picture.draw(figure, scale(state.colour, most, shade()), titles);
    picture.frame.setAttribute("aria-label", exampleTitle.textContent);
    store.set({ listed: { ...state.listed, example: { figure, titles, title: exampleTitle.textContent } } });
  };

  const draw = () => {
    if (state.tab !== "atlas" || !shown) return;
    const { atlas, heads } = shown;
    const chosen = heads.find(({ name, head }) => name === state.head?.name && head === state.head?.head);
    const legend = h("p", { class: "kinds" }, ...kindsOf(state).map((kind) =>
      h("span", {}, tiny(kind), t(`grid.${kind}`)),
    ));
    if (!atlas) {
      const none = h("p", { class: "atlas-none" }, t("atlas.none"), " ", h("code", {}, t("atlas.command")));
      const order = inOrder();
      root.replaceChildren(none, legend, table(order));
      list(order, [sentenceAbout()], []);
      return;
    }
    const figures = {
      sentences: atlas.sentences.toLocaleString("en"), tokens: atlas.tokens.toLocaleString("en"),
      bleu: atlas.bleu?.toFixed(1) ?? "–", loss: atlas.loss?.toFixed(3) ?? "–",
    };
    const pruning = atlas.pruning?.importance?.length > 1;
    const gates = atlas.pruning?.gates?.points ?? [];
    const pair = ({ a, b, distance, cka }) => {
      const [one, two] = [a, b].map(([name, head]) => label({ name, head }));
      return t("atlas.pair", { a: one, b: two, distance: distance?.toFixed(2) ?? "–", cka: cka?.toFixed(2) ?? "–" });
    };
    const options = { named: (head) => `${label(head)} · ${roleText(t, head.role)}`, pair, choose: go, chosen };
    const ways = Object.fromEntries(["importance", "random", "gates"].map((way) => [way, t(`atlas.by.${way}`)]));
    const titles = { x: t("atlas.kept"), y: atlas.bleu === undefined ? t("atlas.nats") : "BLEU", ...ways };
    const charts = [
      ["likeness", {}, likeness(heads, atlas.redundant ?? [], options)],
      ...(pruning
        ? [["pruning", { n: atlas.pruning.seeds ?? "–" }, curves({ random: [], ...atlas.pruning, gates }, titles)]]
        : []),
    ];
    const order = inOrder();
    looked = null;
    root.replaceChildren(
      h("div", { class: "titled" }, h("p", { class: "atlas-about" }, t("atlas.about", figures)), legend),
      table(order),
      h("div", { class: "cards" }, ...charts.map(([key, blanks, chart]) => card(key, blanks, chart)), exampleCard),
    );
    const marks = `● ${t("grid.encoder")}   ■ ${t("grid.decoder")}   ▲ ${t("grid.cross")}`;
    const named = charts.map(([key, , chart]) => ({ title: t(`atlas.${key}`), chart }));
    list(order, [t("atlas.about", figures), marks], named);
    example(chosen?.example ? chosen : heads.find((head) => head.example));
    exampleCard.hidden = !heads.some((head) => head.example);
  };

  const load = async () => {
    const model = modelShown(state);
    if (state.tab !== "atlas" || !model) return;
    try {
      const atlas = await atlasOf(api, model);
      const about = sentence(state);
      const key = atlas ? model.id : about?.key;
      if (!key || shown?.key === key) return draw();
      const heads = atlas
        ? withTwins(atlas.heads, atlas.redundant ?? [])
        : fromMeasures((await api.measures(body(about))).heads, model.attentions);
      if (modelShown(state) !== model) return undefined;
      shown = { key, atlas, heads };
      draw();
    } catch (error) {
      fail(error);
    }
    return undefined;
  };
  store.subscribe(["tab", "models", "model", "compare", "side", "done", "edited", "other"], load);
  store.subscribe(["language", "theme", "head", "colour"], draw);
  load();
}
