// The neuron view: how one query meets each key, dimension by dimension, until a weight comes of it.

import { shade, signed } from "./colour.js";
import { h } from "./dom.js";
import { axes, digits, fixed } from "./maps.js";
import { attentionsOf, body, dotsIn, sentence } from "./sight.js";

export const texts = {
  "neuron.title": ["How “{query}” meets each key", "“{query}”如何与每个键相遇"],
  "neuron.lock": ["Lock a row of the map to see another query.", "锁定图中的一行可查看另一个查询。"], "neuron.key": ["key", "键"],
  "neuron.keys": ["key vector k", "键向量 k"], "neuron.products": ["q × k × scale", "q × k × 缩放"],
  "neuron.score": ["score", "分数"], "neuron.weight": ["weight", "权重"], "neuron.query": ["query vector q", "查询向量 q"],
  "neuron.hint": [
    "A score is the sum of a row of products; the soft-max of all scores gives the weights. Orange is negative, blue positive.",
    "分数是一行乘积之和；对所有分数做 soft-max 得到权重。橙色为负，蓝色为正。",
  ],
  "neuron.says.query": ["dimension {d}: q = {q}", "第 {d} 维：q = {q}"],
  "neuron.says.key": ["dimension {d}, “{key}”: k = {k}", "第 {d} 维，“{key}”：k = {k}"],
  "neuron.says.product": [
    "dimension {d}, “{key}”: q {q} × k {k} × {scale} = {product}",
    "第 {d} 维，“{key}”：q {q} × k {k} × {scale} = {product}",
  ],
  "neuron.bias": ["position bias {bias}", "位置偏置 {bias}"],
};

/** Rows of numbers of either sign as an image of one pixel a number, the greatest in the strongest colour. */
const signedPixels = (rows) => {
  const { table, step } = signed(rows, shade());
  const out = new Uint8ClampedArray(rows.length * rows[0].length * 4);
  rows.flat().forEach((x, i) => out.set(table.subarray(4 * step(x), 4 * step(x) + 4), 4 * i));
  return out;
};

export function mount(root, store, { api, t, fail }) {
  const { state } = store;
  let controller = new AbortController();
  const title = h("h2", { class: "focus-title" });
  const says = h("p", { class: "readout" });
  const board = h("div", { class: "neuron-board" });
  root.classList.add("neuron");
  root.append(title, h("div", { class: "neuron-scroll" }, board), says);
  root.hidden = true;

  const strip = (rows, explain) => {
    const canvas = h("canvas", { "aria-hidden": "true" });
    canvas.width = rows[0].length;
    canvas.height = rows.length;
    canvas.getContext("2d").putImageData(new ImageData(signedPixels(rows), canvas.width, canvas.height), 0, 0);
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const d = Math.min(canvas.width - 1, Math.floor((offsetX / canvas.clientWidth) * canvas.width));
      const s = Math.min(canvas.height - 1, Math.floor((offsetY / canvas.clientHeight) * canvas.height));
      says.textContent = explain(d, s);
    });
    canvas.addEventListener("pointerleave", () => (says.textContent = t("neuron.hint")));
    return canvas;
  };

  const draw = () => {
    root.hidden = state.view !== "neuron" || !dotsIn(state) || !state.neurons || !state.figure;
    if (root.hidden) return;
    const { query: q, keys: k, products, scores, weights, bias, scale, labels, token } = state.neurons;
    const head = (text) => h("div", { class: "neuron-head" }, text);
    const tall = (canvas) => {
      const cell = h("div", { class: "neuron-strip" }, canvas);
      cell.style.gridRow = `3 / span ${labels.length}`;
      return cell;
    };
    const at = (cell, row, column) => {
      cell.style.gridRow = row;
      cell.style.gridColumn = column;
      return cell;
    };
    title.textContent = t("neuron.title", { query: token });
    if (!state.locked?.rows.length) title.dataset.note = t("neuron.lock");
    else delete title.dataset.note;
    const ask = (key, d, s) =>
      t(`neuron.says.${key}`, {
        d, key: labels[s], q: fixed(q[d]), k: fixed(k[s]?.[d] ?? 0), product: fixed(products[s]?.[d] ?? 0),
        scale: digits(scale),
      });
    board.replaceChildren(
      ...["key", "keys", "products", "score", "weight"].map((name, i) => at(head(t(`neuron.${name}`)), 1, i + 1)),
      at(h("div", { class: "neuron-key" }, t("neuron.query")), 2, 1),
      at(h("div", { class: "neuron-query" }, strip([q], (d) => ask("query", d, 0))), 2, 2),
      at(tall(strip(k, (d, s) => ask("key", d, s))), `3 / span ${labels.length}`, 2),
      at(tall(strip(products, (d, s) => ask("product", d, s))), `3 / span ${labels.length}`, 3),
      ...labels.flatMap((label, s) => {
        const weight = h("div", { class: "neuron-weight" }, h("span", {}, fixed(weights[s])));
        weight.style.setProperty("--part", weights[s]);
        const hint = bias[s] ? t("neuron.bias", { bias: fixed(bias[s]) }) : null;
        return [
          at(h("div", { class: "neuron-key", dir: "auto", title: label }, label), s + 3, 1),
          at(h("div", { class: "neuron-number", title: hint }, fixed(scores[s])), s + 3, 4),
          at(weight, s + 3, 5),
        ];
      }),
    );
    says.textContent = t("neuron.hint");
  };

  const load = async () => {
    const about = sentence(state);
    if (state.view !== "neuron" || !dotsIn(state) || !state.figure) return draw();
    const attention = attentionsOf(state).find(({ name }) => name === state.head?.name);
    if (!about || !attention || state.figure.name !== attention.name) return undefined;
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    const { kind, head: { name, head } } = state;
    const { rows, columns, steps } = axes(attention, about, state.axis);
    const step = steps ? state.step : null;
    const query = Math.min(state.locked?.rows[0] ?? step ?? 0, rows.length - 1);
    const asked = { ...body(about), attention: name, head, query };
    try {
      const found = await api.neuron(asked, signal);
      if (signal.aborted) return undefined;
      // what comes after is not seen where heads look back only: those keys take no part
      const count = attention.causal ? query + 1 : columns.length;
      const parts = ["keys", "products", "scores", "bias", "weights"].map((part) => [part, found[part].slice(0, count)]);
      const labels = columns.slice(0, count).map(({ text }) => text);
      const whose = { about, name, head, kind, position: query, token: rows[query].text, labels };
      store.set({ neurons: { ...found, ...Object.fromEntries(parts), ...whose } });
    } catch (error) {
      fail(error);
    }
    return undefined;
  };

  store.subscribe(["view", "figure", "locked", "step"], load);
  store.subscribe(["neurons", "language", "theme"], draw);
}
