// Colour scales for weights: perceptually even, safe for the colour-blind, one for light pages and one for dark ones.
//
// A scale runs through a few stops in OKLab, in steps of equal distance there; its lightness only ever falls (light) or
// rises (dark), so that it also reads in greys and with any kind of colour vision.

const STOPS = {
  light: ["#fbfcfe", "#cfe0f3", "#8bb8e0", "#3f83c4", "#1b4f97", "#0b1f4d"],
  dark: ["#13161c", "#16325c", "#1f5f96", "#3c98b8", "#8fcfb4", "#f6f3c3"],
  over: ["#0b0620", "#4a1166", "#a52c60", "#e8602d", "#fbb61a", "#fcffa4"], // pictures: the same in both
};
const LOG_SPAN = 1000; // the logarithmic scale shows three powers of ten below the top; what is less, as its end

const toLinear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const fromLinear = (c) => (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);

/** "#rrggbb" to [L, a, b] of OKLab. */
export const toOklab = (hex) => {
  const [r, g, b] = [1, 3, 5].map((i) => toLinear(parseInt(hex.slice(i, i + 2), 16) / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
};

/** [L, a, b] of OKLab to [red, green, blue] of 0..255. */
const fromOklab = ([L, a, b]) => {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((c) => Math.round(255 * Math.min(1, Math.max(0, fromLinear(Math.max(0, c))))));
};

const distance = (p, q) => Math.hypot(...p.map((x, i) => x - q[i]));

/** 256 colours as bytes R, G, B, A, evenly spaced along the stops. */
const ramp = (stops) => {
  const points = stops.map(toOklab);
  const along = points.map(() => 0);
  for (let i = 1; i < points.length; i++) along[i] = along[i - 1] + distance(points[i - 1], points[i]);
  const table = new Uint8ClampedArray(256 * 4);
  for (let i = 0, k = 1; i < 256; i++) {
    const at = (i / 255) * along.at(-1);
    while (k < points.length - 1 && at > along[k]) k++;
    const part = (at - along[k - 1]) / (along[k] - along[k - 1]);
    table.set(fromOklab(points[k - 1].map((x, j) => x + part * (points[k][j] - x))), 4 * i);
    table[4 * i + 3] = 255;
  }
  return table;
};

export const RAMPS = { light: ramp(STOPS.light), dark: ramp(STOPS.dark), over: ramp(STOPS.over) };

const hexOf = (table, i) => "#" + [0, 1, 2].map((c) => table[4 * i + c].toString(16).padStart(2, "0")).join("");

/** Colours for numbers of either sign: orange below 0, blue above; the two differ for every kind of colour vision. */
const SIGNED = {
  light: ramp(["#8a3b00", "#e08214", "#fddcae", "#fbfcfe", "#b5d2ec", "#3f83c4", "#0b2f6b"]),
  dark: ramp(["#ffd9a0", "#d9822b", "#5c3413", "#13161c", "#17395f", "#3f8fd0", "#bfe3ff"]),
};

/** How rows of numbers of either sign become colours, the greatest the strongest: `step(x)` of 0..255, its `hex`; `css(x)`. */
export const signed = (rows, tint) => {
  const most = rows.reduce((top, row) => row.reduce((m, x) => Math.max(m, Math.abs(x)), top), 1e-9);
  const table = SIGNED[tint];
  const step = (x) => Math.round(127.5 * (1 + Math.max(-1, Math.min(1, x / most))));
  const hex = (i) => hexOf(table, i);
  return { table, tint, step, hex, css: (x) => hex(step(x)) };
};

/** "light" or "dark": what the page shows now. */
export const shade = () => document.documentElement.dataset.theme ?? "light";

/**
 * How values from 0 to `top` become colours: `place(v)` is 0..1 along the scale, `css(v)` a colour for SVG.
 * `kind` is "linear" or "log"; `floor` is the least value that the logarithmic one tells from 0.
 */
export const scale = (kind, top, tint) => {
  const table = RAMPS[tint];
  const floor = top / LOG_SPAN;
  const clamp = (x) => Math.min(1, Math.max(0, x));
  const place =
    kind === "log"
      ? (v) => (v <= floor ? 0 : clamp(Math.log(v / floor) / Math.log(LOG_SPAN)))
      : (v) => (top > 0 ? clamp(v / top) : 0);
  const step = (v) => Math.round(255 * place(v));
  const hex = (i) => hexOf(table, i);
  return { kind, top, floor, tint, table, place, step, hex, css: (v) => hex(step(v)) };
};

/** The values at which a legend is labelled, from least to greatest. */
export const ticks = ({ kind, top, floor }) =>
  kind === "log" ? [floor, floor * 10, floor * 100, top] : [0, 0.25, 0.5, 0.75, 1].map((x) => x * top);
