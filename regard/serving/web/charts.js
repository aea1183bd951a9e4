// Two charts of the atlas: which heads are alike, and what pruning costs.

import { vector } from "./elements.js";

const SHAPES = {
  encoder: (x, y, r) => ["circle", { cx: x, cy: y, r }],
  decoder: (x, y, r) => ["rect", { x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8, rx: 1.5 }],
  cross: (x, y, r) => ["path", { d: `M${x} ${y - r * 1.2}L${x + r * 1.15} ${y + r * 0.9}H${x - r * 1.15}Z` }],
};

/** A mark of its own shape for each kind of attention, so that colour is not needed to tell them apart. */
export const symbol = (kind, x, y, r, attributes = {}) => {
  const [tag, place] = SHAPES[kind](x, y, r);
  return vector(tag, { ...place, ...attributes, class: `mark ${kind} ${attributes.class ?? ""}` });
};

/** What a chart says to those who cannot see it is its `label`; without one it is left out. */
const chart = (width, height, label, ...shapes) => {
  const said = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return vector("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, ...said }, ...shapes);
};

const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight",
];

/** A chart as it looks now, for a drawing: {svg, width, height}, what style sheets say written into each shape. */
export const frozen = (chart) => {
  const copy = chart.cloneNode(true);
  const [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number);
  const shapes = [...copy.querySelectorAll("*")];
  [...chart.querySelectorAll("*")].forEach((shape, i) => {
    const style = getComputedStyle(shape);
    for (const look of LOOKS) if (shape.tagName !== "title") shapes[i].setAttribute(look, style.getPropertyValue(look));
    shapes[i].removeAttribute("class");
  });
  for (const name of ["class", "role", "aria-label", "aria-hidden"]) copy.removeAttribute(name);
  Object.entries({ width, height }).forEach(([name, value]) => copy.setAttribute(name, value));
  return { svg: new XMLSerializer().serializeToString(copy), width, height };
};

/** From values to pixels, with a little room at both ends. */
const along = (values, from, to) => {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = most - least || 1;
  return (value) => from + ((value - least) / span) * (to - from);
};

/** Round values that cover a range: [0.2, 0.4, 0.6]. */
export const rounded = (least, most, about = 4) => {
  const rough = (most - least || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const first = Math.ceil(least / step) * step;
  const count = Math.floor((most - first) / step + 1e-9) + 1;
  return Array.from({ length: count }, (_, i) => Number((first + i * step).toPrecision(6)));
};

/** Heads as points, redundant pairs joined. `named(head)`, `pair(pair)` are tooltips, `choose(head)` hears of a click. */
export const likeness = (heads, pairs, { named, pair, choose, chosen }) => {
  const [width, height, edge] = [340, 262, 18];
  const placed = heads.filter(({ map }) => map);
  const x = along(placed.map(({ map }) => map[0]), edge, width - edge);
  const y = along(placed.map(({ map }) => map[1]), height - edge, edge);
  const spot = new Map(placed.map((head) => [`${head.name} ${head.head}`, [x(head.map[0]), y(head.map[1])]]));
  const links = pairs.flatMap((each) => {
    const [p, q] = [each.a, each.b].map((end) => spot.get(end.join(" ")));
    if (!p || !q) return [];
    const place = { x1: p[0], y1: p[1], x2: q[0], y2: q[1] };
    const grip = vector("line", { class: "grip", ...place }, vector("title", {}, pair(each))); // wide, to point at
    return [vector("line", { class: "link", ...place }), grip];
  });
  const marks = placed.map((head) => {
    const [px, py] = spot.get(`${head.name} ${head.head}`);
    const node = symbol(head.kind, px, py, 5, { class: head === chosen ? "chosen" : "" });
    node.append(vector("title", {}, named(head)));
    node.addEventListener("click", () => choose(head));
    return node;
  });
  return chart(width, height, "", ...links, ...marks); // the table has the nearest of each head
};

/** The score of a point: BLEU, or the loss of a model that does not translate. */
export const scored = ({ bleu, loss }) => bleu ?? loss;

/** Scores over heads kept: by importance, at random with its spread, by gates. `titles` has a text for each, and x, y. */
export const curves = ({ importance, random, gates }, titles) => {
  const [width, height, left, bottom, top, right] = [340, 262, 36, 38, 18, 10];
  const everything = [...importance, ...random];
  const values = everything.flatMap((point) => [scored(point), point.low, point.high]).filter(Number.isFinite);
  const kept = everything.map((point) => point.kept);
  const x = along([0, ...kept], left, width - right);
  const y = along([0, ...values], height - bottom, top);
  const line = (points, value) =>
    points.map((point, i) => `${i ? "L" : "M"}${x(point.kept).toFixed(1)} ${y(value(point)).toFixed(1)}`).join("");
  const spread = random.filter(({ low, high }) => Number.isFinite(low) && Number.isFinite(high));
  const band = line(spread, ({ high }) => high) + line(spread.toReversed(), ({ low }) => low).replace("M", "L") + "Z";
  const axis = (text, attributes) => vector("text", { class: "axis", ...attributes }, text);
  const across = rounded(0, Math.max(...kept), 5).map((value) =>
    axis(String(value), { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }),
  );
  const up = rounded(0, Math.max(...values)).flatMap((value) => [
    vector("line", { class: "rule", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    axis(String(value), { x: left - 8, y: y(value) + 4, "text-anchor": "end" }),
  ]);
  // the better curve is named above and before it, the other below and after
  const named = (points, name, text) => {
    const at = points[Math.floor(points.length / 2)];
    if (!at) return [];
    const place = name === "random" ? { dx: 12, dy: 16 } : { dx: -10, dy: -6, "text-anchor": "end" };
    return [axis(text, { class: `axis name ${name}`, x: x(at.kept), y: y(scored(at)), ...place })];
  };
  const gated = (gates ?? []).map((point) => {
    const node = vector("circle", { class: "gate", cx: x(point.kept), cy: y(scored(point)), r: 4 });
    node.append(vector("title", {}, `${titles.gates}: ${point.kept}, ${scored(point).toFixed(1)}`));
    return node;
  });
  const gateNamed = (gates ?? []).slice(0, 1).map((point) => {
    const beside = { dx: -8, dy: 4, "text-anchor": "end" };
    return axis(titles.gates, { class: "axis name gates", x: x(point.kept), y: y(scored(point)), ...beside });
  });
  const spoken = Object.entries({ importance, random, gates: gates ?? [] })
    .filter(([, points]) => points.length)
    .map(([way, points]) => `${titles[way]}: ${points.map((at) => `${at.kept} → ${scored(at).toFixed(1)}`).join(", ")}`);
  return chart(
    width, height, `${titles.x} → ${titles.y}. ${spoken.join(". ")}.`,
    ...up, ...across,
    axis(titles.x, { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }),
    axis(titles.y, { x: left - 8, y: 11, "text-anchor": "end" }),
    ...(spread.length ? [vector("path", { class: "spread", d: band })] : []),
    vector("path", { class: "curve random", d: line(random, scored) }),
    vector("path", { class: "curve importance", d: line(importance, scored) }),
    ...named(random, "random", titles.random), ...named(importance, "importance", titles.importance), ...gated, ...gateNamed,
  );
};
