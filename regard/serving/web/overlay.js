// Attention over a picture: what a place looks at is laid over the patches that it looks at.

import { h } from "./dom.js";
import { vector } from "./elements.js";
import { RAMPS } from "./colour.js";

const [LARGEST, SMALLEST] = [460, 220]; // px: of the picture in focus
const [FAINT, DENSE] = [0.1, 0.72]; // how much is laid over a patch, from the weakest to the strongest

/** The places of a picture as tokens: those before its patches are special. */
export const patches = ({ tokens, rows, columns, times = 1 }) => {
  const before = Array.from({ length: tokens }, (_, i) => ["[class]", "[teacher]"][i] ?? `[${i}]`);
  const high = rows / times;
  const time = (row) => (times > 1 ? `${Math.floor(row / high)}:` : "");
  const named = (row, column) => `${time(row)}${row % high},${column}`;
  const all = Array.from({ length: rows * columns }, (_, i) => named(Math.floor(i / columns), i % columns));
  return [...before, ...all].map((text, id) => ({ id, text, space: true, word: null, special: id < tokens }));
};

/** Where a picture is, as a model sees it. */
export const urlOf = (picture, model) => `api/pictures/${picture}?model=${encodeURIComponent(model)}`;

/** What some rows of (R, C) look at together, by shares of each: one number for each column. */
const mixed = (weights, width, shares) => {
  const out = new Float32Array(width);
  shares.forEach((share, r) => {
    if (share) for (let c = 0; c < width; c++) out[c] += share * weights[r * width + c];
  });
  return out;
};

/**
 * What is laid over the patches, one number for each: of the rows that are chosen, or of a column who looks at it; of
 * none what stands for the picture looks at, or of a text the mean of its tokens. `choice` is {rows, columns, step, hover}.
 */
export const overOf = (figure, { rows = [], columns = [], step = [], hover = null } = {}) => {
  const { weights, rows: down, columns: across, picture: { grid, shares, itself } } = figure;
  const width = across.length;
  const even = (some) => {
    const found = new Float32Array(down.length);
    for (const r of some) found[r] = 1 / some.length;
    return found;
  };
  const chosen = hover?.row != null ? [hover.row] : rows.length ? rows : step;
  const column = hover?.row != null || !itself ? null : hover?.column ?? (rows.length ? null : columns[0]) ?? null;
  const standing = () =>
    itself && shares?.length ? down.map(({ members }) => shares[members[0]] ?? 0) : even([...down.keys()]);
  const stands = () => {
    const found = mixed(weights, width, standing());
    return found.some(Boolean) ? found : mixed(weights, width, even([...down.keys()])); // where a token takes no part
  };
  const [values, places] = column === null
    ? [chosen.length ? mixed(weights, width, even(chosen)) : stands(), across]
    : [down.map((_, r) => weights[r * width + column]), down];
  const over = new Float32Array(grid.rows * grid.columns);
  places.forEach(({ members }, i) => members.forEach((m) => m >= grid.tokens && (over[m - grid.tokens] = values[i])));
  return over;
};

/** Numbers over patches as an image of one pixel a patch, the greatest in the strongest colour. */
const pixels = (over, place) => {
  const out = new Uint8ClampedArray(over.length * 4);
  over.forEach((value, i) => {
    const part = place(value);
    out.set(RAMPS.over.subarray(4 * Math.round(255 * part), 4 * Math.round(255 * part) + 3), 4 * i);
    out[4 * i + 3] = Math.round(255 * (FAINT + (DENSE - FAINT) * part));
  });
  return out;
};

/** How numbers become places along the colours, 0 to 1: linear, or the logarithm over three powers of ten. */
export const placing = (over, log) => {
  const most = over.reduce((a, b) => Math.max(a, b), 0) || 1;
  return (value) => Math.min(1, Math.max(0, log ? 1 + Math.log10(Math.max(value / most, 1e-9)) / 3 : value / most));
};

/** Lay numbers over the patches of a picture that stands below a canvas; CSS stretches it without blur. */
export const lay = (canvas, over, { rows, columns }, log) => {
  [canvas.width, canvas.height] = [columns, rows];
  canvas.getContext("2d").putImageData(new ImageData(pixels(over, placing(over, log)), columns, rows), 0, 0);
};

/** A picture and what lies over it, for a file: {href, width, height} of an image of its own. */
export const frozen = (image, over, grid, log, side = 480) => {
  const canvas = h("canvas");
  const small = h("canvas");
  [canvas.width, canvas.height] = [side, Math.round((side * image.naturalHeight) / image.naturalWidth)];
  const pen = canvas.getContext("2d");
  pen.filter = "saturate(0.35) brightness(0.8)";
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  pen.filter = "none";
  lay(small, over, grid, log);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  return { href: canvas.toDataURL("image/png"), width: canvas.width, height: canvas.height };
};

/**
 * A picture in `root` with attention over it. `point` and `pick` hear of the row of the patch that is pointed at, or of
 * its column, where rows are no patches; so do arrow keys and Enter. `step(cell)` hears of keys.
 */
export const overlay = (root, { point, pick, told }) => {
  const image = h("img", { alt: "", draggable: "false" });
  const canvas = h("canvas", { "aria-hidden": "true" });
  const marks = vector("svg", { class: "over-marks", "aria-hidden": "true", preserveAspectRatio: "none" });
  const frame = h("div", { class: "over", tabindex: "0", role: "application" }, image, canvas, marks);
  const tokens = h("div", { class: "over-tokens" });
  root.append(frame, tokens);
  let figure = null;

  /** The row or column of the figure that a place of the picture is. */
  const cell = (place) => {
    const { itself } = figure.picture;
    const shown = itself ? figure.rows : figure.columns;
    const i = shown.findIndex(({ members }) => members.includes(place));
    if (i < 0) return { row: null, column: null };
    return itself ? { row: i, column: null } : { row: null, column: i };
  };
  const under = ({ clientX, clientY }) => {
    const { grid: { rows, columns, tokens: before } } = figure.picture;
    const box = frame.getBoundingClientRect();
    const at = (x, size, n) => Math.min(n - 1, Math.max(0, Math.floor((x / size) * n)));
    return cell(before + at(clientY - box.top, box.height, rows) * columns + at(clientX - box.left, box.width, columns));
  };
  frame.addEventListener("pointermove", (event) => figure && point(under(event)));
  frame.addEventListener("pointerleave", () => point(null));
  frame.addEventListener("click", (event) => figure && pick(under(event), event.shiftKey));

  let at = null; // the patch that the keyboard is at
  frame.addEventListener("keydown", (event) => {
    if (!figure) return;
    const { grid: { rows, columns, tokens: before } } = figure.picture;
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) {
      const [r, c] = at === null ? [0, 0] : [Math.floor(at / columns) + by[0], (at % columns) + by[1]];
      at = Math.min(rows - 1, Math.max(0, r)) * columns + Math.min(columns - 1, Math.max(0, c));
      point(cell(before + at));
      told();
    } else if (event.key === "Enter" && at !== null) pick(cell(before + at), event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  /** Draw a figure with a picture. */
  const draw = (next, room, log) => {
    figure = next;
    const { picture: { url, grid, itself } } = figure;
    if (image.getAttribute("src") !== url) image.src = url;
    const side = Math.max(SMALLEST, Math.min(LARGEST, room));
    const wide = side * Math.min(1, (2 * grid.columns) / grid.rows); // a video is high: its frames lie one below the other
    Object.assign(frame.style, { width: `${wide}px`, height: `${(wide * grid.rows) / grid.columns}px` });
    frame.dataset.log = log ? "log" : "";
    marks.setAttribute("viewBox", `0 0 ${grid.columns} ${grid.rows}`);
    // What stands before the patches has no place in the picture: a button each.
    const own = itself ? figure.rows.filter(({ special }) => special) : [];
    tokens.replaceChildren(...own.map((row) => {
      const r = figure.rows.indexOf(row);
      const on = { onclick: () => pick({ row: r, column: null }), onpointerenter: () => point({ row: r, column: null }) };
      return h("button", { type: "button", class: "example", onpointerleave: () => point(null), ...on }, row.text);
    }));
  };

  /** Lay over it what is chosen, as in `overOf`: {text, value} of the patch that is looked at most. */
  const mark = (choice) => {
    if (!figure) return null;
    const { grid, itself } = figure.picture;
    const over = overOf(figure, choice);
    lay(canvas, over, grid, frame.dataset.log === "log");
    const { rows, columns, hover } = choice;
    const box = (shown, i, kind) =>
      (shown[i]?.members ?? []).filter((m) => m >= grid.tokens && m < grid.tokens + grid.rows * grid.columns).map((m) => vector("rect", {
        class: kind, x: (m - grid.tokens) % grid.columns, y: Math.floor((m - grid.tokens) / grid.columns), width: 1, height: 1,
      }));
    const from = itself ? [...rows, ...(hover?.row != null ? [hover.row] : [])] : [];
    const to = [...columns, ...(hover?.column != null ? [hover.column] : [])];
    marks.replaceChildren(
      ...from.flatMap((r) => box(figure.rows, r, "from")), ...to.flatMap((c) => box(figure.columns, c, "to")),
    );
    [...tokens.children].forEach((button, i) => button.setAttribute("aria-pressed", rows.includes(i)));
    const most = over.reduce((best, value, i) => (value > over[best] ? i : best), 0);
    const { text } = figure.columns.find(({ members }) => members.includes(grid.tokens + most));
    return { text, value: over[most] };
  };
  return { draw, mark, frame, image };
};

/** A small picture for each row of a figure whose rows are words: what each looks at. `look(row)` hears of a click. */
export const gallery = (root, look) => {
  const list = h("ol", { class: "gallery" });
  root.append(list);
  const draw = (figure, log) => {
    const { picture: { url, grid } } = figure;
    list.replaceChildren(...figure.rows.map((row, r) => {
      const canvas = h("canvas", { "aria-hidden": "true" });
      lay(canvas, overOf(figure, { rows: [r] }), grid, log);
      const stack = h("span", { class: "over small" }, h("img", { src: url, alt: "" }), canvas);
      return h("li", {}, h("button", { type: "button", dir: "auto", onclick: () => look(r) }, stack, h("span", {}, row.text)));
    }));
  };
  const mark = (rows) =>
    [...list.children].forEach((item, r) => item.firstElementChild.setAttribute("aria-pressed", rows.includes(r)));
  return { draw, mark, node: list };
};
