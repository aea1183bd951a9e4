// What is seen as files: CSV, NPZ (for numpy), a page of its own. Bytes and text only; nothing here touches the page.

import { escape } from "./drawing.js";

/** The shortest decimal that reads back as the same 32-bit number. */
const exact = (value) => {
  for (let n = 1; n < 9; n++) {
    const written = Number(value.toPrecision(n));
    if (Math.fround(written) === value) return String(written);
  }
  return String(Number(value.toPrecision(9)));
};

const field = (text) => (/[",\r\n]/.test(text) || text.trim() !== text ? `"${text.replaceAll('"', '""')}"` : text);

/** Lines of texts and numbers as CSV; null is an empty field. */
export const csvLines = (lines) =>
  lines.map((line) => `${line.map((each) => field(String(each ?? ""))).join(",")}\r\n`).join("");

/** The map with its labels; {text, values} of the chosen rows (or columns) together are one line (or column) more. */
export const csv = ({ rows, columns, weights }, corner, { across, down }) => {
  const width = columns.length;
  const lines = rows.map(({ text }, r) => {
    const values = weights.subarray(r * width, (r + 1) * width);
    return [text, ...[...values].map(exact), ...(down ? [exact(down.values[r])] : [])];
  });
  return csvLines([
    [corner, ...columns.map(({ text }) => text), ...(down ? [down.text] : [])],
    ...lines,
    ...(across ? [[across.text, ...[...across.values].map(exact)]] : []),
  ]);
};

/** What the neuron view shows, a line for each key; the query stands first, above the keys' vectors. */
export const neuronCsv = ({ query, keys, products, scores, bias, weights, labels }, titles) => {
  const each = (title) => query.map((_, d) => `${title} ${d}`);
  const biased = bias.some((x) => x !== 0);
  const plain = [titles.score, ...(biased ? [titles.bias] : []), titles.weight];
  return csvLines([
    [titles.key, ...plain, ...each(titles.keys), ...each(titles.products)],
    [titles.query, ...plain.map(() => null), ...query, ...query.map(() => null)],
    ...labels.map((label, s) =>
      [label, scores[s], ...(biased ? [bias[s]] : []), weights[s], ...keys[s], ...products[s]]),
  ]);
};

// --- numpy

const join = (parts) => {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
};
const ascii = (text) => new TextEncoder().encode(text);
const little = (bytes, value) => Uint8Array.from({ length: bytes }, (_, i) => Math.floor(value / 2 ** (8 * i)) & 255);

const npy = (descr, shape, bytes) => {
  const size = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const said = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${size}), }`;
  const header = said.padEnd(Math.ceil((said.length + 11) / 64) * 64 - 11) + "\n"; // data begins at a multiple of 64
  const magic = [Uint8Array.of(0x93), ascii("NUMPY"), Uint8Array.of(1, 0)];
  return join([...magic, little(2, header.length), ascii(header), bytes]);
};

/** 32-bit numbers as the bytes of a .npy file. */
const npyFloats = (values, shape) => {
  const bytes = new DataView(new ArrayBuffer(4 * values.length));
  values.forEach((value, i) => bytes.setFloat32(4 * i, value, true));
  return npy("<f4", shape, new Uint8Array(bytes.buffer));
};

/** Whole numbers as the bytes of a .npy file. */
const npyWholes = (values) => npy("<i4", [values.length], join(values.map((value) => little(4, value))));

/** Texts as the bytes of a .npy file: numpy keeps 4 bytes for each letter of the longest. */
const npyTexts = (list) => {
  const letters = list.map((text) => [...text].map((letter) => letter.codePointAt(0)));
  const longest = Math.max(1, ...letters.map((each) => each.length));
  const codes = letters.flatMap((each) => [...each, ...Array(longest - each.length).fill(0)]);
  return npy(`<U${longest}`, [list.length], join(codes.map((code) => little(4, code))));
};

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});
const crc32 = (bytes) => ~bytes.reduce((crc, byte) => CRC[(crc ^ byte) & 255] ^ (crc >>> 8), 0xffffffff) >>> 0;

/** A ZIP archive, nothing compressed: {name: bytes}. An .npz file is one of .npy files. */
const zip = (files) => {
  const parts = [];
  const index = [];
  let at = 0;
  for (const [name, bytes] of Object.entries(files)) {
    const path = ascii(name);
    // version 2.0, no flags, stored, 1 January 1980; then checksum, sizes, and the length of the name
    const about = [
      little(2, 20), little(2, 0x0800), little(2, 0), little(2, 0), little(2, 33), little(4, crc32(bytes)),
      little(4, bytes.length), little(4, bytes.length), little(2, path.length), little(2, 0),
    ];
    const local = join([little(4, 0x04034b50), ...about, path, bytes]);
    // no comment, first disk, no attributes
    const rest = [little(2, 0), little(2, 0), little(2, 0), little(4, 0), little(4, at), path];
    index.push(join([little(4, 0x02014b50), little(2, 20), ...about, ...rest]));
    parts.push(local);
    at += local.length;
  }
  const list = join(index);
  const count = little(2, index.length);
  const end = [little(4, 0x06054b50), little(4, 0), count, count, little(4, list.length), little(4, at), little(2, 0)];
  return join([...parts, list, ...end]);
};

const mapArrays = ({ rows, columns, weights }, before = "") => ({
  [`${before}weights.npy`]: npyFloats(weights, [rows.length, columns.length]),
  [`${before}rows.npy`]: npyTexts(rows.map(({ text }) => text)),
  [`${before}columns.npy`]: npyTexts(columns.map(({ text }) => text)),
});

/**
 * Everything as arrays: weights (R, C), labels, which rows are chosen, and what it is, as JSON; a map that stands beside
 * is beside_weights, with labels of its own.
 */
export const npz = (figure, chosen, about, beside = null) =>
  zip({
    ...mapArrays(figure),
    ...(beside && mapArrays(beside, "beside_")),
    "chosen_rows.npy": npyWholes(chosen.rows),
    "chosen_columns.npy": npyWholes(chosen.columns),
    "about.npy": npyTexts([JSON.stringify(about)]),
  });

/** The neuron view as arrays: query (d), keys and products (S, d), scores, bias and weights (S), labels (S). */
export const neuronNpz = ({ query, keys, products, scores, bias, weights, labels }, about) =>
  zip({
    "query.npy": npyFloats(query, [query.length]),
    "keys.npy": npyFloats(keys.flat(), [keys.length, query.length]),
    "products.npy": npyFloats(products.flat(), [keys.length, query.length]),
    "scores.npy": npyFloats(scores, [keys.length]),
    "bias.npy": npyFloats(bias, [keys.length]),
    "weights.npy": npyFloats(weights, [keys.length]),
    "labels.npy": npyTexts(labels),
    "about.npy": npyTexts([JSON.stringify(about)]),
  });

// --- a page

const STYLE =
  "body{margin:2rem auto;max-width:1200px;padding:0 1rem;font:15px/1.6 system-ui,sans-serif;color-scheme:light dark}" +
  "figure{margin:1.5rem 0;overflow:auto}" +
  "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}" +
  "th,td{padding:3px 9px;text-align:right}th{font-weight:600}thead th{border-bottom:1px solid #8888}" +
  "caption{padding:.8em 0 .4em;font-weight:600;text-align:start}div{overflow:auto}h1{font-size:1.4rem}" +
  "dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem}dt{color:#7a828e}dd{margin:0}";

/** A table for a page: `head` and the first of each line are titles, the rest texts. */
export const tableHtml = (head, lines, caption = "") => {
  const cell = (each) => `<td>${escape(each)}</td>`;
  const row = ([name, ...rest]) => `<tr><th scope="row" dir="auto">${escape(name)}</th>${rest.map(cell).join("")}</tr>`;
  const titles = head.map((each) => `<th scope="col" dir="auto">${escape(each)}</th>`).join("");
  return `<div><table>${caption && `<caption>${escape(caption)}</caption>`}<thead><tr>${titles}</tr></thead>
<tbody>${lines.map(row).join("\n")}</tbody></table></div>`;
};

/** The numbers of a map as a table. */
export const mapTable = ({ rows, columns, weights }, corner, caption) => {
  const width = columns.length;
  const line = ({ text }, r) => [text, ...[...weights.subarray(r * width, (r + 1) * width)].map((x) => x.toFixed(4))];
  return tableHtml([corner, ...columns.map(({ text }) => text)], rows.map(line), caption);
};

/** A page that needs nothing but itself: a drawing, tables, and what they are. `said` is {title, notes, facts}. */
export const page = (svg, tables, said, language) => {
  const fact = ([name, value]) => `<dt>${escape(name)}</dt><dd dir="auto">${escape(value)}</dd>`;
  return `<!doctype html>
<html lang="${escape(language)}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escape(said.title)}</title>
<style>${STYLE}</style>
</head>
<body>
<h1>${escape(said.title)}</h1>
<dl>${said.facts.map(fact).join("")}</dl>
${svg && `<figure>${svg}</figure>`}
${said.notes.map((note) => `<p>${escape(note)}</p>`).join("\n")}
${tables.join("\n")}
</body>
</html>
`;
};
