// Where things stand in the focused view, on the screen and in exported figures alike. Lengths are CSS pixels.

export const TILT = 50; // degrees by which the labels of columns lean: less than upright, so that they can be read
const SIN = Math.sin((TILT * Math.PI) / 180);
const COS = Math.cos((TILT * Math.PI) / 180);
export const PADDING = 4; // of the boxes that the pictures stand in
const FONT = 12;
const LONGEST = 11; // em; longer labels are cut, and whole in the read-out
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f300}-\u{1faff}]/u;

const EDGE = 6;
const LEGIBLE = 9.25; // the least room for a line of letters
const TALLEST = 800; // how tall a picture may become so that there is that room

const clamp = (x, least, most) => Math.min(most, Math.max(least, x));

/** About how many em a text is wide: Chinese, Japanese and Korean letters are square. */
export const ems = (text) => [...text].reduce((sum, letter) => sum + (WIDE.test(letter) ? 1 : 0.56), 0);

/** A text cut to the longest label there may be. */
export const short = (text) => {
  if (ems(text) <= LONGEST) return text;
  const letters = [...text];
  while (ems(letters.join("")) > LONGEST - 0.6) letters.pop();
  return letters.join("") + "…";
};

/** The height of a line among `count`: what fits into `tall`, or more where letters become legible by it. */
const lineOf = (count, tall) => Math.max(tall / count, Math.min(LEGIBLE, TALLEST / count));

const widest = (shown) => Math.max(2, ...shown.map(({ text }) => ems(short(text))));

/** The heat map: cells of one size, labels left and above if there is room for them. */
export const heatLayout = ({ rows, columns }, room, tall = 560) => {
  const left = Math.ceil(Math.max(widest(rows) * FONT, 64)) + 10;
  const top = Math.ceil(widest(columns) * FONT * SIN) + 16;
  const lean = widest(columns) * FONT * COS; // the last label leans out to the right
  const cell = clamp(Math.min((room - left - lean - EDGE) / columns.length, lineOf(rows.length, tall)), 4, 28);
  const size = Math.floor(cell * 4) / 4; // whole quarters of a pixel: edges stay sharp on dense screens
  return {
    left, top, cell: size,
    font: size >= 9 ? Math.min(size * 0.9, FONT) : FONT, // without labels for all, those of what is chosen can be large
    labelled: size >= 9,
    right: left + size * columns.length,
    bottom: top + size * rows.length,
    width: Math.ceil(left + size * columns.length + lean + EDGE),
    height: Math.ceil(top + size * rows.length + EDGE),
  };
};

/** The two columns of tokens and the room for lines between them; the shorter column stands in the middle. */
export const laneLayout = ({ rows, columns }, room, tall = 560) => {
  const most = Math.max(rows.length, columns.length, 1);
  const lane = clamp(lineOf(most, tall), 1.1, 22);
  const [before, after] = [widest(rows) * FONT + 12, widest(columns) * FONT + 12];
  const numbers = 44; // the combined weights stand beside the tokens
  const head = 22;
  const span = clamp(room - before - after - 2 * numbers, 60, 220);
  const start = (shown) => head + ((most - shown.length) * lane) / 2;
  return {
    lane, head, numbers,
    from: numbers + before,
    to: numbers + before + span,
    rowY: (r) => start(rows) + (r + 0.5) * lane,
    columnY: (c) => start(columns) + (c + 0.5) * lane,
    font: lane >= 9 ? clamp(lane * 0.75, 8, FONT) : FONT,
    labelled: lane >= 9,
    width: Math.ceil(2 * numbers + before + span + after),
    height: Math.ceil(head + most * lane + 4),
  };
};

/** Whether the two pictures can stand side by side, each in this room, without becoming small. */
export const fitsBeside = (figure, room) =>
  heatLayout(figure, room).cell >= 14 && laneLayout(figure, room).width <= Math.ceil(room);

/** Whether two heat maps can stand side by side, each in this room, with their labels. */
export const fitTwo = (one, two, room) => [one, two].every((figure) => heatLayout(figure, room).labelled);

/** A line from a row to a column that leaves and arrives level. */
export const curve = ({ from, to, rowY, columnY }, r, c) => {
  const [y, z, bend] = [rowY(r), columnY(c), (to - from) * 0.45];
  const f = (x) => x.toFixed(1);
  return `M${f(from)} ${f(y)}C${f(from + bend)} ${f(y)} ${f(to - bend)} ${f(z)} ${f(to)} ${f(z)}`;
};

/** How strong a line is drawn, `part` being 0..1 along the colours. */
export const stroke = (part, lane) => ({
  "stroke-opacity": (0.08 + 0.92 * part).toFixed(3),
  "stroke-width": (0.5 + part * clamp(lane * 0.4, 0.6, 5)).toFixed(2),
});
