// The focused head as lines from each query to what it looks at, linked with the heat map.

import { h } from "./dom.js";
import { light, sized, vector } from "./elements.js";
import { PADDING, curve, laneLayout, short, stroke } from "./geometry.js";
import { combineColumns, combineRows, linesOf } from "./maps.js";

/** Lines in `root`; `point` and `pick` as in the heat map. */
export const lines = (root, { point, pick }) => {
  // a drawing of its own for all lines: those of the chosen rows change above it without drawing it again
  const base = vector("svg", { class: "lines base", "aria-hidden": "true" });
  const svg = vector("svg", { class: "lines", "aria-hidden": "true" });
  const frame = h("div", { class: "lines-frame" }, base, svg);
  let at = null;
  let drawn = null;
  root.append(frame);

  const draw = (figure, colours, titles) => {
    const { rows, columns, weights } = figure;
    at = laneLayout(figure, root.clientWidth - 2 * PADDING);
    sized(at, base, svg);
    const kind = (shown) => (shown.special ? "label special" : "label");
    const label = (shown, x, y, anchor) =>
      vector(
        "text",
        { class: kind(shown), x, y, "font-size": at.font, "text-anchor": anchor, "dominant-baseline": "central" },
        short(shown.text),
      );
    const rowTexts = rows.map((row, r) => label(row, at.from - 8, at.rowY(r), "end"));
    const columnTexts = columns.map((column, c) => label(column, at.to + 8, at.columnY(c), "start"));
    const path = (i) => {
      const [r, c] = [Math.floor(i / columns.length), i % columns.length];
      return vector("path", { d: curve(at, r, c), ...stroke(colours.place(weights[i]), at.lane) });
    };
    base.replaceChildren(...linesOf(figure, [], []).map(path));
    const over = vector("g", { class: "over" });
    const heads = [
      vector("text", { class: "axis", x: at.from - 8, y: 12, "text-anchor": "end" }, titles.rows),
      vector("text", { class: "axis", x: at.to + 8, y: 12 }, titles.columns),
    ];
    svg.replaceChildren(...heads, over, ...(at.labelled ? [...rowTexts, ...columnTexts] : []));
    drawn = { figure, colours, rowTexts, columnTexts, over, path, lit: [] };
  };

  /** Numbers and bars beside the tokens: what the chosen rows look at together, or who looks at the chosen columns. */
  const numbers = (values, side) => {
    const { figure } = drawn;
    const most = Math.max(figure.top, ...values);
    return [...values].flatMap((value, i) => {
      if (value < figure.top / 1000) return [];
      const y = side === "rows" ? at.rowY(i) : at.columnY(i);
      const long = Math.max(1, (value / most) * (at.numbers - 8));
      const x = side === "rows" ? at.numbers - 4 - long : at.width - at.numbers + 4;
      const bar = vector("rect", {
        class: "amount", x, y: y - at.lane * 0.36, width: long, height: Math.max(1, at.lane * 0.72), rx: 2,
      });
      if (!at.labelled) return [bar];
      const end = side === "rows" ? at.numbers - 7 : at.width - at.numbers + 7;
      const anchor = side === "rows" ? "end" : "start";
      const number = { class: "number", x: end, y, "text-anchor": anchor, "dominant-baseline": "central" };
      const written = value < 9.9995 ? value.toFixed(3) : value.toPrecision(4);
      return [bar, vector("text", { ...number, "font-size": Math.min(11, at.font) }, written)];
    });
  };

  /** `rows` and `columns` are what the lines are of; `hover` what is pointed at; `combine` is "mean" or "sum". */
  const mark = ({ rows, columns, hover, combine }) => {
    if (!drawn) return;
    const { figure, over, path } = drawn;
    const chosen = rows.length + columns.length > 0;
    base.classList.toggle("dim", chosen);
    const shapes = chosen ? linesOf(figure, rows, columns).map(path) : [];
    if (rows.length && columns.length) {
      shapes.forEach((shape) => shape.classList.add("beside"));
      for (const r of rows) for (const c of columns) {
        const shape = path(r * figure.columns.length + c);
        shape.classList.add("exact");
        shapes.push(shape);
      }
    }
    if (rows.length) shapes.push(...numbers(combineRows(figure, rows, combine), "columns"));
    else if (columns.length) shapes.push(...numbers(combineColumns(figure, columns, combine), "rows"));
    const now = light(drawn, [hover?.row, ...rows], [hover?.column, ...columns]);
    over.replaceChildren(...shapes, ...(at.labelled ? [] : now));
  };

  const where = (event) => {
    if (!drawn) return { row: null, column: null };
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const near = (shown, place) => {
      const i = Math.round((y - place(0)) / at.lane);
      return i >= 0 && i < shown.length ? i : null;
    };
    const { rows, columns } = drawn.figure;
    if (x < at.from + 12) return { row: near(rows, at.rowY), column: null };
    if (x > at.to - 12) return { row: null, column: near(columns, at.columnY) };
    return { row: null, column: null };
  };
  svg.addEventListener("pointermove", (event) => point(where(event)));
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("click", (event) => pick(where(event), event.shiftKey));
  return { draw, mark };
};
