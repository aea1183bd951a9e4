// The focused view as one SVG document, for files: the same layout, colours, labels and choice as on the page.

import { TILT, curve, heatLayout, laneLayout, short, stroke } from "./geometry.js";
import { combineColumns, combineRows, digits, linesOf } from "./maps.js";

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
  const runs = new Map(); // colour -> path
  for (let r = 0; r < rows.length; r++) {
    for (let c = 0, end = 0; c < width; c = end) {
      const step = colours.step(weights[r * width + c]);
      end = c + 1;
      while (end < width && colours.step(weights[r * width + end]) === step) end++;
      const [x, y, long] = [at.left + c * at.cell, at.top + r * at.cell, (end - c) * at.cell];
      runs.set(step, `${runs.get(step) ?? ""}M${round(x)} ${round(y)}h${round(long)}v${at.cell}h${-round(long)}z`);
    }
  }
  return [...runs].map(([step, d]) => tag("path", { d, fill: colours.hex(step) })).join("");
};

const heat = (figure, colours, choice, titles, ink) => {
  const { rows, columns } = figure;
  const at = heatLayout(figure, 640);
  const [wide, tall] = [at.right - at.left, at.bottom - at.top];
  const label = (shown, lit) => ({
    "font-size": at.font, fill: lit ? ink.accent : shown.special ? ink.soft : ink.ink, "font-weight": lit ? 650 : 400,
  });
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
  const label = (shown, lit) => ({
    "font-size": at.font, fill: lit ? ink.accent : shown.special ? ink.soft : ink.ink, "font-weight": lit ? 650 : 400,
  });
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

/** {svg, width, height}; `choice` is {rows, columns, combine}, `said` {title, notes: [], titles: {rows, columns}}. */
export const drawing = (figure, colours, choice, said) => {
  const ink = PALETTE[colours.tint];
  const map = heat(figure, colours, choice, said.titles, ink);
  // as on the page: with nothing locked the lines are those of the step that is looked at
  const free = choice.rows.length + choice.columns.length === 0;
  const links = lanes(figure, colours, free ? { ...choice, rows: choice.step ?? [] } : choice, said.titles, ink);
  const edge = 20;
  const top = 44;
  const below = top + Math.max(map.height, links.height) + 16;
  const width = edge + map.width + 28 + links.width + edge;
  const height = Math.ceil(below + 34 + 18 * said.notes.length);
  const strip = Array.from({ length: 64 }, (_, i) =>
    tag("rect", { x: edge + i * 3, y: below, width: 3.2, height: 8, fill: colours.hex(Math.round((i * 255) / 63)) }),
  ).join("");
  const small = { fill: ink.soft, "font-size": 11 };
  const right = { "text-anchor": "end" };
  const [least, most] = [colours.kind === "log" ? colours.floor : 0, colours.top].map((x) => Number(x.toPrecision(2)));
  const svg = tag(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT },
    [
      tag("title", {}, escape(said.title)),
      tag("rect", { width, height, fill: ink.ground }),
      text(said.title, { x: edge, y: 28, fill: ink.ink, "font-size": 15, "font-weight": 600 }),
      tag("g", { transform: `translate(${edge} ${top})` }, map.svg),
      tag("g", { transform: `translate(${edge + map.width + 28} ${top})` }, links.svg),
      strip,
      text(least, { ...small, x: edge, y: below + 21 }),
      text(most + (colours.kind === "log" ? " (log)" : ""), { ...small, ...right, x: edge + 192, y: below + 21 }),
      ...said.notes.map((note, i) => text(note, { ...small, x: edge, y: below + 42 + 18 * i })),
    ].join(""),
  );
  return { svg, width, height };
};
