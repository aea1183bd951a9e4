// Two maps side by side: which head answers to which, what pointing at one means in the other, and where they differ.

/**
 * The head among `attentions` that answers to head number `head` of an attention: {name, head, same}. `same` says that
 * kind, layer and number agree; else it is the nearest there is. Null if there is none of that kind.
 */
export const counterpart = (attentions, { kind, layer }, head) => {
  const alike = attentions.filter((each) => each.kind === kind);
  if (!alike.length) return null;
  const near = alike.reduce((a, b) => (Math.abs(b.layer - layer) < Math.abs(a.layer - layer) ? b : a));
  const number = Math.min(head, near.heads - 1);
  return { name: near.name, head: number, same: near.layer === layer && number === head };
};

/** Along which axes two figures have as many labels, so that the same place is in both. */
export const linked = (one, two) => ({
  rows: one.rows.length === two.rows.length,
  columns: one.columns.length === two.columns.length,
});

/** A place of one figure in the other: what is not linked is left out; null if nothing is left. */
export const carried = (place, link) => {
  const row = link.rows ? (place?.row ?? null) : null;
  const column = link.columns ? (place?.column ?? null) : null;
  return row === null && column === null ? null : { row, column };
};

/** What is chosen in the first of two figures, in the second; `step` are the rows there of the step that is looked at. */
export const besides = (choice, link, step) => ({
  ...choice,
  rows: link.rows ? choice.rows : [],
  columns: link.columns ? choice.columns : [],
  hover: carried(choice.hover, link),
  step,
});

/** How many rows from the first on can be compared cell by cell: those before the tokens part; none if keys differ. */
export const comparable = (one, two) => {
  const same = (i, which) => one[which][i]?.text === two[which][i]?.text;
  if (!linked(one, two).columns || !one.columns.every((_, c) => same(c, "columns"))) return 0;
  const part = one.rows.findIndex((_, r) => !same(r, "rows"));
  return part < 0 ? one.rows.length : part;
};

/** The second map less the first, where they can be compared, 0 elsewhere; `most` is how far they are apart at most. */
const minus = (one, two, rows) => {
  const end = rows * one.columns.length;
  const weights = two.weights.map((value, i) => (i < end ? value - one.weights[i] : 0));
  return { ...two, weights, most: weights.reduce((most, x) => Math.max(most, Math.abs(x)), 0) };
};

/** Whether there is a difference of the two maps to be shown. */
export const differ = ({ figure, beside }) => Boolean(figure && beside && comparable(figure, beside));

/** What stands beside the first map: the second, or where that is wanted and can be made, the difference. */
export const besideShown = (state) => {
  const { figure, beside, difference } = state;
  return difference && differ(state) ? minus(figure, beside, comparable(figure, beside)) : beside;
};

/** The cells of the first rows that differ most: [{row, column, before, after}]; less than `least` is no difference. */
export const changes = (one, two, rows, count = 3, least = 5e-4) => {
  const width = one.columns.length;
  const apart = one.weights.subarray(0, rows * width).map((value, i) => Math.abs(two.weights[i] - value));
  return [...apart.keys()]
    .filter((i) => apart[i] >= least)
    .sort((i, j) => apart[j] - apart[i])
    .slice(0, count)
    .map((i) => ({ row: Math.floor(i / width), column: i % width, before: one.weights[i], after: two.weights[i] }));
};
