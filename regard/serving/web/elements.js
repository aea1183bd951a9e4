// Pieces that several views share: SVG elements, and choices that look like those of the page's header.

import { h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element: vector("rect", {x: 1, class: "band"}, child). */
export const vector = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

/** Make drawings as large as a layout says. */
export const sized = ({ width, height }, ...drawings) => {
  const as = { viewBox: `0 0 ${width} ${height}`, width, height };
  for (const each of drawings) for (const [name, value] of Object.entries(as)) each.setAttribute(name, value);
};

/** Light the labels of some rows and columns of what is drawn, {rowTexts, columnTexts, lit}, and no others: these. */
export const light = (drawn, rows, columns) => {
  const now = [...rows.map((r) => drawn.rowTexts[r]), ...columns.map((c) => drawn.columnTexts[c])].filter(Boolean);
  for (const label of drawn.lit) label.classList.remove("lit");
  for (const label of now) label.classList.add("lit");
  drawn.lit = now;
  return now;
};

/**
 * One of several: `options` are [value, text, tooltip]; `set(value)` shows which, `choose(value)` hears of a change.
 * The legend is for screen readers alone, unless the options need it to be understood.
 */
export const choice = (name, legend, options, choose, { explained = false } = {}) => {
  const inputs = options.map(([value]) =>
    h("input", { type: "radio", name, value, onchange: () => choose(value) }),
  );
  const set = (value) => inputs.forEach((input, i) => (input.checked = options[i][0] === value));
  const node = h(
    "fieldset",
    { class: "segments" },
    h("legend", { class: explained ? "" : "unseen" }, legend),
    ...options.map(([, text, title], i) => h("label", { title }, inputs[i], h("span", {}, text))),
  );
  return { node, set, inputs };
};

/** A tick box with its text; `set(on)` shows it, `change(on)` hears of it. */
export const tick = (text, title, change) => {
  const input = h("input", { type: "checkbox", onchange: () => change(input.checked) });
  const node = h("label", { class: "tick", title }, input, h("span", {}, text));
  return { node, set: (on) => (input.checked = on) };
};
