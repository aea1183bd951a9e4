// Maps as numbers: whose tokens stand along the axes, words from sub-words, special tokens left out, rows combined.
//
// A map is (T, S), row after row: row i says how query i spreads over the keys. Nothing here touches the page.

const START = { text: "<s>", space: false, word: null, special: true };

/** A decoder READS (<s>, y_0, y_1, ...) and PREDICTS (y_0, y_1, ...): what is read at each position. */
const readBy = (target, start = START) => (target.length ? [start, ...target.slice(0, -1)] : []);

/**
 * The tokens of a sentence along both axes of an attention's maps, which /models tells; `axis` says how rows that are
 * steps of the output are labelled.
 */
export const axes = ({ queries, keys, role }, sentence, axis) => {
  const along = ({ input, late }) => (late ? readBy(sentence[input], sentence.start) : sentence[input]);
  const steps = role === "predicted";
  const predicts = steps && axis === "predicted";
  const rows = along({ ...queries, late: steps && !predicts });
  return { rows, columns: along(keys), role: predicts ? "predicts" : "reads", steps };
};

/**
 * What one axis shows: [{text, members, special}], where `members` are the positions of the tokens it stands for.
 * `words` joins the pieces of a word; without `special` the special tokens go.
 */
export const labels = (tokens, { words, special }) => {
  const shown = [];
  tokens.forEach((token, i) => {
    if (token.special && !special) return;
    const last = shown.at(-1);
    const joins = words && last && token.word != null && last.word === token.word && last.members.at(-1) === i - 1;
    if (joins) {
      last.text += (token.space ? " " : "") + token.text;
      last.members.push(i);
    } else {
      shown.push({ text: token.text, members: [i], word: token.word, special: Boolean(token.special) });
    }
  });
  return shown.map(({ text, members, special: isSpecial }) => ({ text, members, special: isSpecial }));
};

/**
 * The map that the labels ask for: sums over the pieces of a key, means over the pieces of a query, as an R x C array.
 * `normalise`: rows sum to 1 again, where keys were left out; a row of which nothing is left stays 0.
 */
export const reduce = (data, width, rows, columns, normalise, factor = 1) => {
  const out = new Float32Array(rows.length * columns.length);
  const group = new Int32Array(width).fill(-1); // which shown column a key belongs to
  columns.forEach(({ members }, c) => members.forEach((j) => (group[j] = c)));
  rows.forEach(({ members }, r) => {
    const base = r * columns.length;
    for (const i of members) {
      for (let j = 0; j < width; j++) if (group[j] >= 0) out[base + group[j]] += data[i * width + j];
    }
    let total = 0;
    for (let c = 0; c < columns.length; c++) total += out[base + c] *= factor / members.length;
    if (normalise && total > 0) for (let c = 0; c < columns.length; c++) out[base + c] /= total;
  });
  return out;
};

/** A figure: one map as it is seen, with its labels. `raw` is {data, shape: [T, S]} of one head. */
export const figure = (raw, { rows, columns, role, steps }, { words, special, view, picture = null }) => {
  const seen = { words, special };
  const across = labels(columns, seen);
  const down = labels(rows, { words, special: special || picture !== null }); // what stands for a picture looks, too
  const left = columns.some((token) => token.special) && !special;
  const normalised = left && view !== "norm"; // lengths are no shares: they do not sum to anything
  const weights = reduce(raw.data, raw.shape[1], down, across, normalised);
  const most = top(weights, picture ? "picture" : view);
  return { rows: down, columns: across, weights, role, steps, normalised, picture, top: most };
};

/** The value that gets the last colour: 1 for shares, so that heads compare; else, and of patches, the greatest there is. */
export const top = (values, view) => {
  if (view === "weights") return 1;
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
};

/** The value that gets the last colour of what is drawn: two maps side by side have the same colours. */
export const topOf = ({ figure, beside }) => Math.max(figure.top, beside?.top ?? 0);

/** The mean or the sum of some rows of a figure: one value for each column. */
export const combineRows = ({ weights, columns }, rows, how) => {
  const out = new Float32Array(columns.length);
  for (const r of rows) for (let c = 0; c < out.length; c++) out[c] += weights[r * out.length + c];
  return how === "mean" ? out.map((x) => x / Math.max(1, rows.length)) : out;
};

/** The mean or the sum of some columns of a figure: one value for each row. */
export const combineColumns = ({ weights, rows, columns }, chosen, how) => {
  const out = new Float32Array(rows.length);
  const width = columns.length;
  for (const c of chosen) for (let r = 0; r < out.length; r++) out[r] += weights[r * width + c];
  return how === "mean" ? out.map((x) => x / Math.max(1, chosen.length)) : out;
};

/** Which shown labels stand for any of these token positions. */
export const shownAt = (shown, positions) => {
  const wanted = new Set(positions);
  return shown.flatMap(({ members }, i) => (members.some((m) => wanted.has(m)) ? [i] : []));
};

const MOST = 1000; // lines drawn when nothing is chosen: the strongest
const LEAST = 0.02; // of the top; weaker lines are left out

/** The greatest of some cells, at most `count` of at least `least`; weakest first, so that the strong are on top. */
const strongest = (weights, cells, count, least) =>
  [...cells]
    .filter((i) => weights[i] > 0 && weights[i] >= least)
    .sort((a, b) => weights[b] - weights[a])
    .slice(0, count)
    .reverse();

/** Which cells have lines, strongest last: those of the chosen rows, else of the chosen columns, else of all. */
export const linesOf = ({ weights, rows, columns, top }, chosenRows, chosenColumns) => {
  const width = columns.length;
  if (chosenRows.length) {
    const cells = chosenRows.flatMap((r) => columns.map((_, c) => r * width + c));
    return strongest(weights, cells, MOST, (LEAST * top) / 4);
  }
  if (chosenColumns.length) {
    const cells = chosenColumns.flatMap((c) => rows.map((_, r) => r * width + c));
    return strongest(weights, cells, MOST, (LEAST * top) / 4);
  }
  return strongest(weights, weights.keys(), MOST, LEAST * top);
};

/** A map as the bytes of an image of one pixel a cell. */
const pixels = (weights, colours, factor = 1) => {
  const out = new Uint8ClampedArray(weights.length * 4);
  for (let i = 0; i < weights.length; i++) {
    const at = 4 * colours.step(weights[i] * factor);
    out[4 * i] = colours.table[at];
    out[4 * i + 1] = colours.table[at + 1];
    out[4 * i + 2] = colours.table[at + 2];
    out[4 * i + 3] = 255;
  }
  return out;
};

/** Draw a map one pixel a cell; CSS stretches it without blur (image-rendering), at any density of the screen. */
export const paint = (canvas, weights, rows, columns, colours, factor = 1) => {
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  if (!rows || !columns) return;
  canvas.getContext("2d").putImageData(new ImageData(pixels(weights, colours, factor), columns, rows), 0, 0);
};

const greatest = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

/**
 * The number that a person is pointing at, and what it is of: {key, values, value}; null if nothing is chosen.
 * What is pointed at comes first, then what is locked; several rows (or columns) are combined.
 */
export const readout = (figure, { hover, rows, columns, step = [], combine }) => {
  const { weights } = figure;
  const width = figure.columns.length;
  const [row, column] = [(r) => figure.rows[r].text, (c) => figure.columns[c].text];
  const r = hover?.row ?? (rows.length === 1 ? rows[0] : null);
  const c = hover?.column ?? (columns.length === 1 ? columns[0] : null);
  if (rows.length > 1 && (hover == null || c != null)) {
    const values = combineRows(figure, rows, combine);
    const at = c ?? greatest(values);
    return { key: "focus.rows", values: { n: rows.length, column: column(at) }, value: values[at] };
  }
  if (columns.length > 1 && !rows.length && (hover == null || r != null)) {
    const values = combineColumns(figure, columns, combine);
    const at = r ?? greatest(values);
    return { key: "focus.columns", values: { n: columns.length, row: row(at) }, value: values[at] };
  }
  const line = r ?? (c == null ? step[0] : undefined);
  if (line !== undefined && c != null) {
    return { key: "focus.cell", values: { row: row(line), column: column(c) }, value: weights[line * width + c] };
  }
  if (line !== undefined) {
    const values = weights.subarray(line * width, (line + 1) * width);
    const at = greatest(values);
    return { key: "focus.row", values: { row: row(line), column: column(at) }, value: values[at] };
  }
  if (c == null) return null;
  const values = combineColumns(figure, [c], "sum");
  const at = greatest(values);
  return { key: "focus.column", values: { row: row(at), column: column(c) }, value: values[at] };
};

/** A weight with four digits: 0.0421, 0.9987, 1.320e-5. */
export const digits = (value) => {
  if (value === 0) return "0";
  return Math.abs(value) >= 0.001 ? value.toPrecision(4) : value.toExponential(3);
};

/** A number of either sign with three digits after the point, and a true minus. */
export const fixed = (value) => value.toFixed(3).replace("-", "−");
