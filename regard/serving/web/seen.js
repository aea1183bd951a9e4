// What is seen, as the files that it can be saved in: {name, svg, csv, npz, html, ...}, each made when it is asked for.

import { nameOf } from "./beside.js";
import { frozen } from "./charts.js";
import { scale, shade, signed } from "./colour.js";
import { drawing, heatPanel, imagePanel, neuronPanel, sheet, wordsPanel } from "./drawing.js";
import { csv, csvLines, mapTable, neuronCsv, neuronNpz, npz, page, tableHtml } from "./files.js";
import { headLabel } from "./i18n.js";
import { combineColumns, combineRows, fixed, shownAt, topOf } from "./maps.js";
import { frozen as laid, overOf } from "./overlay.js";
import { besides, besideShown, linked } from "./pairs.js";
import { body, modelShown, titleOf } from "./sight.js";

/** "encoder.layers.0.self_attention", 3, "norm" -> "encoder-0-head-3-norm". */
export const fileName = ({ name, kind, head, view }) => {
  const layer = name.match(/\d+/)?.[0] ?? "0";
  return [kind, layer, ...(view === "rollout" ? [] : ["head", head]), view].join("-");
};

/** The text of tokens as it was written. */
export const plain = (tokens) =>
  tokens.filter((token) => !token.special).map(({ text, space }) => (space ? ` ${text}` : text)).join("").trim();

/** What is read, and what is written. */
export const arrowed = ({ source, target }) => [source, target].map(plain).filter(Boolean).join(" → ");

/** What a sentence and its head are: `facts` for a page, `notes` for below a drawing. */
const sentenceSaid = (state, t, { about, name, head, view }) => {
  const edits = Object.entries(about.edits).flatMap(([each, heads]) =>
    Object.entries(heads).map(([number, factor]) => `${headLabel(modelShown(state), each, number)} ×${factor}`),
  ).concat((about.off ?? []).map((change) => t("export.off", { name: change })));
  const edited = edits.length ? [[t("export.edits"), edits.join(", ")]] : [];
  return {
    facts: [
      [t("export.model"), about.model],
      [t("export.source"), plain(about.source)],
      [t("export.target"), plain(about.target)],
      [t("export.head"), `${name} · ${head}`],
      [t("export.view"), t(`view.${view}`)],
      ...edited,
    ].filter(([, value]) => value !== ""), // a language model has no source
    notes: [
      `${about.model}: ${arrowed(about)}`,
      ...edited.map(([title, list]) => `${title}: ${list}`),
    ],
  };
};

/** The focused head: its map and lines, or two maps side by side. */
const mapsSeen = (state, t, api) => {
  const { figure, combine } = state;
  const beside = besideShown(state);
  const colours = scale(state.colour, topOf(state), shade());
  const coloursOf = ({ most, weights }) => (most === undefined ? colours : signed([weights], shade()));
  const rows = shownAt(figure.rows, state.locked?.rows ?? []);
  const columns = shownAt(figure.columns, state.locked?.columns ?? []);
  const stepIn = (each) => (state.step === null || !each.steps ? [] : shownAt(each.rows, [state.step]));
  const choice = { rows, columns, step: stepIn(figure), combine };
  const choices = [choice, ...(beside ? [besides(choice, linked(figure, beside), stepIn(beside))] : [])];
  const maps = beside ? [figure, beside] : [figure];
  const names = maps.map((each) => (beside ? nameOf(t, state, each) : ""));
  const said = maps.map((each) => sentenceSaid(state, t, each));
  const role = t(`axis.${figure.role}`);
  const titles = { rows: role, columns: t("axis.keys") };
  const corner = t("export.corner", { role });
  const named = ([fact, value], i) => [beside ? `${fact} (${names[i]})` : fact, value];
  const all = {
    title: `${titleOf(t, state, figure)} · ${t(`view.${figure.view}`)}`,
    titles,
    facts: said.flatMap(({ facts }, i) => facts.map((fact) => named(fact, i))),
    notes: [
      ...said.flatMap(({ notes }, i) => notes.map((note) => (beside ? `${names[i]} · ${note}` : note))),
      ...(beside && !beside.same ? [t("beside.nearest")] : []),
      ...(beside?.most === undefined ? [] : [t("beside.signs", { most: beside.most.toFixed(3) })]),
      ...(figure.normalised ? [t("focus.normalised")] : []),
      ...(figure.words ? [t("focus.merged")] : []),
      t("focus.faith"),
    ],
  };
  const how = t(`combine.${combine}`);
  const combined = (each, { rows: r, columns: c }) => ({
    across: r.length ? { text: t("export.chosen", { how }), values: combineRows(each, r, combine) } : null,
    down: c.length && !r.length
      ? { text: t("export.chosen.columns", { how }), values: combineColumns(each, c, combine) }
      : null,
  });
  const about = (each) => ({
    ...body(each.about), attention: each.name, head: each.head, kind: each.kind, view: each.view,
    rows: each.role, words: each.words, normalised: each.normalised, combine,
    ...(each.most === undefined ? {} : { difference: true }),
  });
  const over = () => {
    const log = state.colour === "log";
    const lookOf = (each, chosen) => {
      const image = document.querySelector(`.over img[src="${CSS.escape(each.picture.url)}"]`);
      return laid(image, overOf(each, chosen), each.picture.grid, log);
    };
    const most = Math.max(...overOf(figure, choice));
    const words = () => {
      const images = figure.rows.map((_, r) => lookOf(figure, { rows: [r] }));
      return wordsPanel(images, figure.rows.map(({ text }) => text), colours.tint);
    };
    const pictures = maps.map((each, i) => imagePanel(lookOf(each, choices[i]), names[i]));
    if (!beside) pictures.push(figure.picture.itself ? heatPanel(figure, colours, choice, titles, "") : words());
    return sheet(pictures, colours.tint, all, scale(state.colour, most, "over"));
  };
  const svg = () =>
    figure.picture ? over() : beside
      ? sheet(maps.map((each, i) => heatPanel(each, coloursOf(each), choices[i], titles, names[i])), colours.tint, all, colours)
      : drawing(figure, colours, choice, all);
  const block = (each, i) => csv(each, beside ? `${names[i]}: ${corner}` : corner, combined(each, choices[i]));
  return {
    name: `${fileName(figure)}${beside ? "-both" : ""}`,
    svg,
    csv: () => maps.map(block).join("\r\n"),
    npz: () => npz(figure, choice, beside ? { ...about(figure), beside: about(beside) } : about(figure), beside),
    html: () => page(svg().svg, maps.map((each, i) => mapTable(each, corner, names[i])), all, state.language),
    page: () => api.page(body(figure.about)),
  };
};

/** The neuron view: bars, and their numbers. */
const neuronsSeen = (state, t) => {
  const { neurons } = state;
  const { about, name, head, kind, position, token, scale: factor } = neurons;
  const titles = Object.fromEntries(
    ["key", "keys", "products", "score", "weight", "query"].map((each) => [each, t(`neuron.${each}`)]),
  );
  titles.bias = t("export.bias");
  const { facts, notes } = sentenceSaid(state, t, { about, name, head, view: "neuron" });
  const heading = `${headLabel(modelShown(state), name, head)} · ${t("neuron.title", { query: token })}`;
  const said = { title: heading, facts, notes: [...notes, t("neuron.hint"), t("focus.faith")] };
  const svg = () => sheet([neuronPanel(neurons, shade(), titles)], shade(), said);
  const line = (label, s) =>
    [label, neurons.scores[s], neurons.weights[s], ...neurons.keys[s], ...neurons.products[s]];
  const written = ([label, ...numbers]) => [label, ...numbers.map((x) => (x === "" ? x : fixed(x)))];
  const none = neurons.query.map(() => "");
  const table = () =>
    tableHtml(
      [titles.key, titles.score, titles.weight, ...none.map((_, d) => `k ${d}`), ...none.map((_, d) => `q × k ${d}`)],
      [[titles.query, "", "", ...neurons.query, ...none], ...neurons.labels.map(line)].map(written),
    );
  return {
    name: `${fileName({ name, kind, head, view: "neurons" })}-query-${position}`,
    svg,
    csv: () => neuronCsv(neurons, { ...titles, query: `${titles.query}: ${token}`, keys: "k", products: "q × k" }),
    npz: () =>
      neuronNpz(neurons, { ...body(about), attention: name, head, kind, query: position, token, scale: factor }),
    html: () => page(svg().svg, [table()], said, state.language),
  };
};

/** The atlas: its table in the order it has now, and its charts. */
const atlasSeen = (state, t, api) => {
  const { listed } = state;
  const said = { title: listed.title, facts: listed.facts, notes: [...listed.notes, t("focus.faith")] };
  const tint = shade();
  const svg = () => {
    const { example } = listed;
    const shown = example && heatPanel(
      example.figure, scale(state.colour, 1, tint), { rows: [], columns: [] }, example.titles, example.title,
    );
    const panels = listed.charts.map(({ title, chart }) => ({ title, ...frozen(chart) }));
    return sheet([...panels, ...(shown ? [shown] : [])], tint, said);
  };
  const table = () => tableHtml(listed.head, listed.shown);
  const all = {
    name: `heads-${listed.model}`,
    csv: () => csvLines([listed.headExact, ...listed.exact]),
    html: () => page(listed.charts.length ? svg().svg : "", [table()], said, state.language),
  };
  return listed.charts.length ? { ...all, svg, json: () => api.atlasFile(listed.model) } : all;
};

/** What is seen now, or null if that is nothing. */
export const seen = (state, t, api) => {
  if (state.tab === "atlas") return state.listed && atlasSeen(state, t, api);
  if (!state.figure) return null;
  return state.view === "neuron" && state.neurons ? neuronsSeen(state, t) : mapsSeen(state, t, api);
};
