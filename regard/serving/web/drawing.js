// What is seen as one SVG document, for files: the same layout, colours, labels and choice as on the page.

import { signed } from "./colour.js";
import { TILT, curve, ems, heatLayout, laneLayout, short, stroke } from "./geometry.js";
import { combineColumns, combineRows, digits, fixed, linesOf } from "./maps.js";

const PALETTE = {
  light: { ground: "#ffffff", ink: "#171b21", soft: "#57606c", line: "#d5dae1", accent: "#1d4fb8", edit: "#a84a06" },
  dark: { ground: "#0e1116", ink: "#e6e9ee", soft: "#9aa5b3", line: "#2a313c", accent: "#84adff", edit: "#f2ab5c" },
};
const FONT = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Noto Sans Arabic', sans-serif";
const TITLED = 4096; // cells; up to so many each is a rectangle that says its number, beyond that one path a colour

/** Text made safe for XML; characters that XML forbids become U+FFFD. */
export const escape = (text) =>
  String(text)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const tag = (name, attributes, content = "") => {
  const written = Object.entries(attributes).map(([key, value]) => ` ${key}="${escape(value)}"`).join("");
  return content === "" ? `<${name}${written}/>` : `<${name}${written}>${content}</${name}>`;
};
const text = (content, attributes) => tag("text", attributes, escape(content));
const round = (x) => Number(x.toFixed(2));

/** Cells as one path for each colour: neighbours of the same colour in a row are one rectangle. */
const runs = (rows, columns, step, at, hex) => {
  const paths = new Map();
  for (let r = 0; r < rows; r++) {
    for (let c = 0, end = 0; c < columns; c = end) {
      const colour = step(r, c);
      end = c + 1;
      while (end < columns && step(r, end) === colour) end++;
      const [x, y, long] = [at.left + c * at.wide, at.top + r * at.tall, (end - c) * at.wide];
      const d = `M${round(x)} ${round(y)}h${round(long)}v${at.tall}h${-round(long)}z`;
      paths.set(colour, (paths.get(colour) ?? "") + d);
    }
  }
  return [...paths].map(([colour, d]) => tag("path", { d, fill: hex(colour) })).join("");
};

/** The cells: rectangles with their numbers as titles, or for large maps runs of equal colour. */
const cells = ({ rows, columns, weights }, colours, at) => {
  const width = columns.length;
  if (weights.length <= TITLED) {
    return [...weights].map((value, i) => {
      const [r, c] = [Math.floor(i / width), i % width];
      const title = `${rows[r].text} → ${columns[c].text}: ${digits(value)}`;
      const [x, y] = [round(at.left + c * at.cell), round(at.top + r * at.cell)];
      const place = { x, y, width: at.cell, height: at.cell };
      return tag("rect", { ...place, fill: colours.css(value) }, tag("title", {}, escape(title)));
    }).join("");
  }
  const place = { ...at, wide: at.cell, tall: at.cell };
  return runs(rows.length, width, (r, c) => colours.step(weights[r * width + c]), place, colours.hex);
};

/** How the label of a row or column looks, lit or not. */
const labelled = (size, ink) => (shown, lit) => ({
  "font-size": size, fill: lit ? ink.accent : shown.special ? ink.soft : ink.ink, "font-weight": lit ? 650 : 400,
});

const heat = (figure, colours, choice, titles, ink) => {
  const { rows, columns } = figure;
  const at = heatLayout(figure, 640);
  const [wide, tall] = [at.right - at.left, at.bottom - at.top];
  const label = labelled(at.font, ink);
  const small = { fill: ink.soft, "font-size": 11, "text-anchor": "end", x: at.left - 7 };
  const band = (x, y, width, height, line = { stroke: ink.edit, "stroke-width": 1.6 }) =>
    tag("rect", { x, y, width, height, fill: "none", ...line });
  const dashed = { stroke: ink.accent, "stroke-width": 1.2, "stroke-dasharray": "4 3" };
  const step = choice.step ?? [];
  const lit = [...choice.rows, ...step];
  const drawn = at.labelled ? rows.keys() : new Set(lit);
  const across = at.labelled ? columns.keys() : choice.columns;
  return {
    ...at,
    svg: [
      text(`${titles.rows} ↓`, { ...small, y: at.top - 7 }),
      text(`${titles.columns} →`, { ...small, y: at.top - 22 }),
      cells(figure, colours, at),
      tag("rect", { x: at.left, y: at.top, width: wide, height: tall, fill: "none", stroke: ink.line }),
      ...[...drawn].map((r) => text(short(rows[r].text), {
        ...label(rows[r], lit.includes(r)), "text-anchor": "end",
        x: at.left - 7, y: round(at.top + (r + 0.5) * at.cell + at.font * 0.35),
      })),
      ...[...across].map((c) => {
        const [x, y] = [round(at.left + (c + 0.5) * at.cell + at.font * 0.3), at.top - 6];
        const look = label(columns[c], choice.columns.includes(c));
        return text(short(columns[c].text), { ...look, x, y, transform: `rotate(${-TILT} ${x} ${y})` });
      }),
      ...step.map((r) => band(at.left, round(at.top + r * at.cell), wide, at.cell, dashed)),
      ...choice.rows.map((r) => band(at.left, round(at.top + r * at.cell), wide, at.cell)),
      ...choice.columns.map((c) => band(round(at.left + c * at.cell), at.top, at.cell, tall)),
    ].join(""),
  };
};

const lanes = (figure, colours, choice, titles, ink) => {
  const { rows, columns, weights } = figure;
  const at = laneLayout(figure, 460);
  const label = labelled(at.font, ink);
  const under = at.font * 0.35;
  const line = (i) =>
    tag("path", {
      d: curve(at, Math.floor(i / columns.length), i % columns.length),
      fill: "none", stroke: ink.accent, ...stroke(colours.place(weights[i]), at.lane),
    });
  const small = { fill: ink.soft, "font-size": 11, y: 12 };
  const combined = choice.rows.length
    ? combineRows(figure, choice.rows, choice.combine)
    : combineColumns(figure, choice.columns, choice.combine);
  const number = (value, i) => {
    if (value < figure.top / 1000 || !at.labelled) return "";
    const place = choice.rows.length
      ? { x: at.width - at.numbers + 6, y: at.columnY(i) + under }
      : { x: at.numbers - 6, y: at.rowY(i) + under, "text-anchor": "end" };
    return text(value.toFixed(3), { ...place, fill: ink.ink, "font-size": 11 });
  };
  const drawn = at.labelled ? rows.keys() : choice.rows;
  const across = at.labelled ? columns.keys() : choice.columns;
  return {
    ...at,
    svg: [
      text(titles.rows, { ...small, x: at.from - 8, "text-anchor": "end" }),
      text(titles.columns, { ...small, x: at.to + 8 }),
      ...linesOf(figure, choice.rows, choice.columns).map(line),
      ...[...drawn].map((r) => text(short(rows[r].text), {
        ...label(rows[r], choice.rows.includes(r)), x: at.from - 8, y: round(at.rowY(r) + under), "text-anchor": "end",
      })),
      ...[...across].map((c) => text(short(columns[c].text), {
        ...label(columns[c], choice.columns.includes(c)), x: at.to + 8, y: round(at.columnY(c) + under),
      })),
      ...(choice.rows.length + choice.columns.length ? [...combined].map(number) : []),
    ].join(""),
  };
};

/** A text in lines of at most so many em, broken at spaces, or between letters that are square. */
const wrapped = (content, most) => {
  const lines = [""];
  for (const part of content.split(/(?<=\s)|(?<=[\u2e80-\u9fff\uff00-\uff60])/u)) {
    if (lines.at(-1) && ems(lines.at(-1) + part) > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines;
};

const legend = (colours, x, y, ink) => {
  const small = { fill: ink.soft, "font-size": 11, y: y + 21 };
  const [least, most] = [colours.kind === "log" ? colours.floor : 0, colours.top].map((v) => Number(v.toPrecision(2)));
  const strip = Array.from({ length: 64 }, (_, i) =>
    tag("rect", { x: x + i * 3, y, width: 3.2, height: 8, fill: colours.hex(Math.round((i * 255) / 63)) }),
  );
  const end = most + (colours.kind === "log" ? " (log)" : "");
  return [...strip, text(least, { ...small, x }), text(end, { ...small, x: x + 192, "text-anchor": "end" })].join("");
};

/**
 * Panels side by side as one document, {svg, width, height}: `said` is {title, notes: []}, a panel {svg, width, height},
 * with a title if it needs one; `colours`, if given, have their legend below.
 */
export const sheet = (panels, tint, said, colours = null) => {
  const ink = PALETTE[tint];
  const [edge, gap] = [20, 28];
  const named = panels.some(({ title }) => title);
  const top = named ? 68 : 44;
  const below = top + Math.max(0, ...panels.map((panel) => panel.height)) + 16;
  const width = panels.reduce((sum, panel) => sum + panel.width, 2 * edge + gap * (panels.length - 1));
  const notes = said.notes.flatMap((note) => wrapped(note, (width - 2 * edge) / 11));
  const after = below + (colours ? 42 : 8);
  const height = Math.ceil(after + 18 * notes.length - 8);
  let x = edge;
  const placed = panels.map((panel) => {
    const name = { x: 0, y: -12, fill: ink.ink, "font-size": 12, "font-weight": 600 };
    const here = (panel.title ? text(panel.title, name) : "") + panel.svg;
    const group = tag("g", { transform: `translate(${x} ${top})` }, here);
    x += panel.width + gap;
    return group;
  });
  const svg = tag(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT },
    [
      tag("title", {}, escape(said.title)),
      tag("rect", { width, height, fill: ink.ground }),
      text(said.title, { x: edge, y: 28, fill: ink.ink, "font-size": 15, "font-weight": 600 }),
      ...placed,
      colours ? legend(colours, edge, below, ink) : "",
      ...notes.map((note, i) => text(note.trim(), { x: edge, y: after + 18 * i, fill: ink.soft, "font-size": 11 })),
    ].join(""),
  );
  return { svg, width, height };
};

/** One head: heat map and lines. `choice` is {rows, columns, step, combine}, `said` {title, notes, titles: {rows, columns}}. */
export const drawing = (figure, colours, choice, said) => {
  const ink = PALETTE[colours.tint];
  // as on the page: with nothing locked the lines are those of the step that is looked at
  const free = choice.rows.length + choice.columns.length === 0;
  const links = lanes(figure, colours, free ? { ...choice, rows: choice.step ?? [] } : choice, said.titles, ink);
  return sheet([heat(figure, colours, choice, said.titles, ink), links], colours.tint, said, colours);
};

/** A heat map alone, as a panel. */
export const heatPanel = (figure, colours, choice, titles, title) => ({
  ...heat(figure, colours, choice, titles, PALETTE[colours.tint]), title,
});

/** A picture as a panel: `image` is {href, width, height}. */
export const imagePanel = (image, title) => ({ ...image, svg: tag("image", image), title });

/** Small pictures as a panel, five in a line, each above its word. */
export const wordsPanel = (images, words, tint) => {
  const [side, gap, across] = [108, 12, 5];
  const cells = images.map(({ href }, i) => {
    const [x, y] = [(i % across) * (side + gap), Math.floor(i / across) * (side + 30)];
    const under = { x: x + side / 2, y: y + side + 15, fill: PALETTE[tint].ink, "font-size": 12, "text-anchor": "middle" };
    return tag("image", { href, x, y, width: side, height: side }) + text(short(words[i]), under);
  });
  const lines = Math.ceil(images.length / across);
  return { svg: cells.join(""), width: Math.min(across, images.length) * (side + gap), height: lines * (side + 30) };
};

const ROW = 20; // px, of the neuron view

/**
 * The neuron view as a panel: bars of the query, the keys and their products, scores and weights. `seen` is
 * {query, keys, products, scores, weights, labels}, `titles` a text for each column.
 */
export const neuronPanel = ({ query, keys, products, scores, weights, labels }, tint, titles) => {
  const ink = PALETTE[tint];
  const [before, wide, gap, long] = [132, 232, 12, 96];
  const at = [before, before + wide + gap, before + 2 * wide + gap + 64, before + 2 * wide + 2 * gap + 64];
  const size = wide / query.length;
  const block = (rows, left, top) => {
    const { step, hex } = signed(rows, tint);
    return runs(rows.length, query.length, (r, c) => step(rows[r][c]), { left, top, wide: size, tall: ROW }, hex);
  };
  const head = (content, x, more) => text(content, { x, y: 13, fill: ink.soft, "font-size": 11, ...more });
  const end = { "text-anchor": "end" };
  const line = (label, s) => {
    const [top, y] = [ROW * (s + 2), ROW * (s + 2) + 14];
    const number = { y, fill: ink.ink, "font-size": 11 };
    const part = { x: at[3], y: top + 3, width: round(long * weights[s]), height: ROW - 6, rx: 3 };
    return [
      text(short(label), { x: before - 8, y, fill: ink.ink, "font-size": 12, ...end }),
      text(fixed(scores[s]), { ...number, x: at[2], ...end }),
      tag("rect", { ...part, fill: ink.accent, "fill-opacity": 0.26 }),
      text(fixed(weights[s]), { ...number, x: at[3] + 4 }),
    ].join("");
  };
  return {
    width: at[3] + long,
    height: ROW * (labels.length + 2),
    svg: [
      head(titles.key, before - 8, end), head(titles.keys, at[0]), head(titles.products, at[1]),
      head(titles.score, at[2], end), head(titles.weight, at[3]),
      text(titles.query, { x: before - 8, y: ROW + 14, fill: ink.ink, "font-size": 12, ...end }),
      block([query], at[0], ROW),
      block(keys, at[0], 2 * ROW),
      block(products, at[1], 2 * ROW),
      ...labels.map(line),
    ].join(""),
  };
};
