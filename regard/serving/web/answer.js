// What a model that reads says of a text: in words, a text with parts marked, bars, numbers; and how an edit changed it.

import { h, sync } from "./dom.js";
import { percent, signed } from "./i18n.js";

const [MOST, FEW] = [8, 5]; // bars of a chart; of each of several
const NUMBERS = 8; // of a vector
const WIDE = 16; // characters: a longer text stands above its bar
const LEAST = 5e-4; // a change of less is none

export const texts = {
  "answer.none": ["no answer", "没有答案"], "answer.nothing": ["nothing", "无"], "answer.gap": ["Gap {n}", "空格 {n}"],
  "answer.alike": ["Cosine with the first text", "与第一段文字的余弦"], "answer.norm": ["Length", "长度"],
  "answer.dimensions": ["Numbers", "维数"], "answer.value": ["Value", "数值"], "answer.vector": ["Begins with", "开头"],
  "answer.bar": ["{text}: {value}", "{text}：{value}"],
  "answer.bar.changed": ["{text}: {before}, with the edits {value}", "{text}：{before}，改动后 {value}"],
  "answer.gone": ["–", "–"], "answer.same": ["The answer stays the same.", "答案不变。"],
  "answer.other": ["The answer changes.", "答案改变。"], "answer.most": ["Largest change: “{text}” {by}.", "变化最大：“{text}” {by}。"],
  "answer.turned": ["Cosine with the original vector: {cosine}.", "与原向量的余弦：{cosine}。"],
};

/** What a bar is known by again: what it says, and how many say the same before it. */
const keyOf = ({ text, label }, all, i) =>
  JSON.stringify([text, label, all.slice(0, i).filter((bar) => bar.text === text && bar.label === label).length]);

/** The bars of a chart, with what each was before: [{text, label, chosen, value, before}]; null is what is not there. */
export const rowsOf = (bars, before, most = MOST) => {
  const keyed = (all) => new Map(all.map((bar, i) => [keyOf(bar, all, i), bar]));
  const [now, then] = [keyed(bars), keyed(before ?? [])];
  const keys = new Set([...now.keys()].slice(0, most));
  if (before) for (const key of [...then.keys()].slice(0, most)) keys.add(key);
  return [...keys].map((key) => ({
    ...(then.get(key) ?? {}), ...(now.get(key) ?? { chosen: false }),
    value: now.get(key)?.value ?? null, before: then.get(key)?.value ?? null,
  }));
};

/** The bar that changed most: {text, label, by}; null where none did. */
export const mostChanged = (charts, before) => {
  const rows = charts.flatMap((bars, i) => rowsOf(bars, before[i] ?? []));
  const by = ({ value, before: was }) => (value ?? 0) - (was ?? 0);
  const most = rows.reduce((a, b) => (Math.abs(by(b)) > Math.abs(a ? by(a) : 0) ? b : a), null);
  return most && Math.abs(by(most)) >= LEAST ? { ...most, by: by(most) } : null;
};

/** A text in pieces, as spans cut it: [{text, span | null}]; of spans that overlap, the first counts. */
export const pieces = (text, spans) => {
  const all = [...text]; // by characters as Python counts them
  const found = [];
  let at = 0;
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    if (span.start < at) continue;
    if (span.start > at) found.push({ text: all.slice(at, span.start).join(""), span: null });
    found.push({ text: all.slice(span.start, span.end).join(""), span });
    at = span.end;
  }
  if (at < all.length) found.push({ text: all.slice(at).join(""), span: null });
  return found;
};

/** The cosine of two vectors. */
export const cosine = (a, b) => {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b)) || 0;
};

/** What an answer is in a few words; a model may well say that there is none. */
export const saidOf = (t, { said, note, cosines, bars, spans }) => {
  if (note || cosines || spans.some(({ label }) => label)) return note; // cosines and labels stand beside their texts
  const none = bars.flat().some(({ chosen, text }) => chosen && text === "");
  return said || t(none ? "answer.none" : "answer.nothing");
};

/** What changed from one answer to another, in a line. */
export const changed = (t, answer, before) => {
  if (answer.note || before.note) return "";
  const most = mostChanged(answer.bars, before.bars);
  const by = most && { text: most.text || t("answer.none"), by: signed(most.by) };
  return [
    ...(answer.vector.length ? [] : [t(answer.said === before.said ? "answer.same" : "answer.other")]),
    ...(by ? [t("answer.most", by)] : []),
    ...(answer.vector.length ? [t("answer.turned", { cosine: cosine(answer.vector, before.vector).toFixed(4) })] : []),
  ].join(" ");
};

/** A function that draws an answer into `root`, and with `before` what that one was; null empties it. */
export const answerView = (root, t) => {
  const chart = () => h("div", {}, h("h3"), h("ol", { class: "bars" }));
  const bar = () =>
    h("li", {}, h("span", { class: "what", dir: "auto" }), h("small"), h("span", { class: "bar" }), h("span", { class: "p" }));
  const marked = h("p", { class: "marked", dir: "auto" });
  const charts = h("div", { class: "charts" });
  const numbers = h("dl", { class: "facts" });
  root.append(marked, charts, numbers);

  const drawBar = (cosines, two) => (item, row) => {
    const [what, label, line, p] = item.children;
    const write = (x) => (x === null ? t("answer.gone") : cosines ? signed(x) : percent(x));
    what.textContent = what.title = row.text || t("answer.none");
    what.classList.toggle("none", !row.text);
    label.textContent = row.label ?? "";
    label.hidden = !row.label;
    line.className = two ? "pair" : "bar";
    const share = (x) => Math.abs(x ?? 0).toFixed(4);
    const parts = two ? { "--before": share(row.before), "--after": share(row.value) } : { "--p": share(row.value) };
    for (const [name, value] of Object.entries(parts)) line.style.setProperty(name, value);
    line.classList.toggle("below", cosines && row.value < 0);
    const values = { text: what.textContent, value: write(row.value), before: write(row.before) };
    p.textContent = two ? [...new Set([values.before, values.value])].join(" → ") : values.value;
    item.title = t(two ? "answer.bar.changed" : "answer.bar", values);
    item.setAttribute("aria-current", row.chosen ? "true" : "false");
    item.classList.toggle("less", two && (row.value ?? 0) < (row.before ?? 0) - 0.05);
  };

  return (answer, before = null) => {
    root.hidden = !answer || Boolean(answer.note);
    if (root.hidden) return;
    marked.hidden = !answer.text;
    marked.replaceChildren(...pieces(answer.text, answer.spans).map(({ text, span }) =>
      span ? h("mark", { title: percent(span.probability) }, text, ...(span.label ? [h("small", {}, span.label)] : [])) : text));
    const both = answer.bars.length || !before ? answer.bars : before.bars.map(() => []);
    sync(charts, both, chart, (node, bars, i) => {
      const [title, list] = node.children;
      title.textContent = answer.cosines ? t("answer.alike") : t("answer.gap", { n: i + 1 });
      title.hidden = !answer.cosines && both.length < 2;
      const wide = [...bars, ...(before?.bars[i] ?? [])].slice(0, MOST).some(({ text }) => text.length > WIDE);
      const rows = rowsOf(bars, before && (before.bars[i] ?? []), wide || both.length > 1 ? FEW : MOST);
      list.classList.toggle("wide", wide);
      sync(list, rows, bar, drawBar(answer.cosines, before !== null));
    });
    const told = Object.entries(answer.numbers).map(([name, value]) => {
      const write = (x) => (name === "dimensions" ? String(x) : x.toFixed(3).replace("-", "−"));
      const each = before?.numbers[name] === undefined ? [value] : [before.numbers[name], value];
      return [t(`answer.${name}`), [...new Set(each.map(write))].join(" → ")];
    });
    const first = answer.vector.slice(0, NUMBERS).map((x) => x.toFixed(3).replace("-", "−")).join("  ");
    if (first) told.push([t("answer.vector"), answer.vector.length > NUMBERS ? `${first}  …` : first]);
    numbers.hidden = !told.length;
    numbers.replaceChildren(...told.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  };
};
