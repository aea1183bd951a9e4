// The focused head as a heat map: a canvas of one pixel a cell, and SVG for the labels around it and the marks over it.

import { h } from "./dom.js";
import { light, sized, vector } from "./elements.js";
import { PADDING, TILT, heatLayout, short } from "./geometry.js";
import { paint } from "./maps.js";

/** A heat map in `root`. `point(row, column)` hears what is pointed at (either may be null), `pick` what is clicked. */
export const heatmap = (root, { point, pick }) => {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const svg = vector("svg", { class: "heat-over", "aria-hidden": "true" });
  const frame = h("div", { class: "heat", tabindex: "0", role: "application" }, canvas, svg);
  let at = null; // the layout
  let drawn = null; // {figure, rowTexts, columnTexts, marks}
  root.append(frame);

  const text = (shown, attributes) => vector("text", attributes, short(shown.text));

  const draw = (figure, colours, titles) => {
    const { rows, columns } = figure;
    at = heatLayout(figure, root.clientWidth - 2 * PADDING);
    paint(canvas, figure.weights, rows.length, columns.length, colours);
    Object.assign(canvas.style, {
      left: `${at.left}px`, top: `${at.top}px`,
      width: `${at.right - at.left}px`, height: `${at.bottom - at.top}px`,
    });
    Object.assign(frame.style, { width: `${at.width}px`, height: `${at.height}px` });
    sized(at, svg);
    const middle = (i) => (i + 0.5) * at.cell;
    const kind = (shown) => (shown.special ? "label special" : "label");
    const rowTexts = rows.map((row, r) =>
      text(row, {
        class: kind(row), "data-row": r, x: at.left - 7, y: at.top + middle(r), "font-size": at.font,
        "text-anchor": "end", "dominant-baseline": "central",
      }),
    );
    const columnTexts = columns.map((column, c) => {
      const [x, y] = [at.left + middle(c) + at.font * 0.3, at.top - 6];
      const turn = `rotate(${-TILT} ${x} ${y})`;
      return text(column, { class: kind(column), "data-column": c, x, y, "font-size": at.font, transform: turn });
    });
    const marks = vector("g", { class: "marks" });
    const edge = vector("rect", {
      class: "edge", x: at.left - 0.5, y: at.top - 0.5, width: at.right - at.left + 1, height: at.bottom - at.top + 1,
    });
    const corner = [
      vector("text", { class: "axis", x: at.left - 7, y: at.top - 7, "text-anchor": "end" }, `${titles.rows} ↓`),
      vector("text", { class: "axis", x: at.left - 7, y: at.top - 22, "text-anchor": "end" }, `${titles.columns} →`),
    ];
    svg.replaceChildren(
      edge, ...corner, ...(at.labelled ? [...rowTexts, ...columnTexts] : []), marks,
    );
    drawn = { rowTexts, columnTexts, marks, lit: [] };
  };

  /** What is pointed at, locked, or looked at by the scrubber; only these few marks change while the mouse moves. */
  const mark = ({ hover, rows, columns, step }) => {
    if (!drawn) return;
    const wide = at.right - at.left;
    const tall = at.bottom - at.top;
    const row = (r, name) =>
      vector("rect", { class: name, x: at.left, y: at.top + r * at.cell, width: wide, height: at.cell });
    const column = (c, name) =>
      vector("rect", { class: name, x: at.left + c * at.cell, y: at.top, width: at.cell, height: tall });
    const shapes = [
      ...step.map((r) => row(r, "band step")),
      ...rows.map((r) => row(r, "band locked")),
      ...columns.map((c) => column(c, "band locked")),
    ];
    if (hover?.row != null) shapes.push(row(hover.row, "band hover"));
    if (hover?.column != null) shapes.push(column(hover.column, "band hover"));
    if (hover?.row != null && hover.column != null) {
      const [x, y] = [at.left + hover.column * at.cell, at.top + hover.row * at.cell];
      shapes.push(vector("rect", { class: "cell", x, y, width: at.cell, height: at.cell }));
    }
    const now = light(drawn, [hover?.row, ...rows, ...step], [hover?.column, ...columns]);
    drawn.marks.replaceChildren(...shapes, ...(at.labelled ? [] : now)); // too small for all labels: these at least
  };

  const inside = (x, from, count) => {
    const i = Math.floor((x - from) / at.cell);
    return i >= 0 && i < count ? i : null;
  };
  const where = (event) => {
    if (!drawn) return { row: null, column: null };
    const { row, column } = event.target.dataset ?? {};
    if (row !== undefined) return { row: Number(row), column: null };
    if (column !== undefined) return { row: null, column: Number(column) };
    const box = frame.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const found = {
      row: inside(y, at.top, drawn.rowTexts.length),
      column: inside(x, at.left, drawn.columnTexts.length),
    };
    return x < at.left ? { ...found, column: null } : y < at.top ? { row: null, column: null } : found;
  };
  frame.addEventListener("pointermove", (event) => point(where(event)));
  frame.addEventListener("pointerleave", () => point(null));
  frame.addEventListener("click", (event) => pick(where(event), event.shiftKey));
  return { draw, mark, frame };
};
