// What was added to a model that stays as it is: a switch for each change, and how much it has changed where.

import { addedTo, isBase, modelOf, offOf } from "./state.js";
import { scale, shade } from "./colour.js";
import { h, sync } from "./dom.js";

export const texts = {
  "changes.title": ["What was added", "添加的内容"], "changes.list": ["Changes of the base", "对基座的改动"],
  "changes.off": ["All off", "全部关闭"], "changes.on": ["All on", "全部打开"],
  "changes.base": ["All off: the second output is the base’s.", "全部关闭：第二个输出来自基座。"],
  "changes.some": ["The second output is without {names}.", "第二个输出不含 {names}。"],
  "changes.none": ["All on: switch one off to see what it does.", "全部打开：关闭一项看看它的作用。"],
  "changes.head": ["The head is new, and stays.", "输出头是新的，保持不变。"],
  "changes.switch": ["{says}: on or off", "{says}：开或关"],
  "changes.parameters": ["{n} parameters", "{n} 个参数"],
  "changes.amounts": ["How much was changed, |ΔW| / |W|: up to {top}", "改变了多少，|ΔW| / |W|：至多 {top}"],
  "changes.part": ["{place}, {role}: {amount}", "{place}，{role}：{amount}"],
  "changes.layer": ["{place} {layer}", "{place} {layer}"],
  "block.self_attention": ["self", "自注意力"], "block.cross_attention": ["cross", "交叉"],
  "block.feed_forward": ["FFN", "前馈"],
  "key.base": ["what was added: all off, the base beside, or all on", "添加的内容：全部关闭（与基座对照）或全部打开"],
};

const BLOCKS = ["self_attention", "cross_attention", "feed_forward"]; // in this order, whatever else behind them
const SHORT = { query: "Q", key: "K", value: "V", output: "O", inner: "in", outer: "out" };

/** A share as a person reads it: 12 %, 1.3 %, 0.042 %. */
export const shareOf = (x) => `${Number((100 * x).toPrecision(2))} %`;

/**
 * Parts as a table: {rows: [{place, layer}], columns: [{block, role}], values: rows x columns, top}; null where nothing
 * was changed. Of several in one cell, as the biases of a block, the greatest counts.
 */
export const board = (parts) => {
  const known = parts.filter(({ amount }) => amount !== null);
  const index = (of) => [...new Map(known.map((part) => [JSON.stringify(of(part)), of(part)])).values()];
  const rows = index(({ place, layer }) => ({ place, layer }));
  const order = ({ block }) => (BLOCKS.includes(block) ? BLOCKS.indexOf(block) : BLOCKS.length);
  const columns = index(({ block, role }) => ({ block, role })).sort((a, b) => order(a) - order(b));
  const here = (row, column) => known.filter((part) =>
    part.place === row.place && part.layer === row.layer && part.block === column.block && part.role === column.role);
  const greatest = (some) => some.reduce((most, { amount }) => Math.max(most ?? 0, amount), null);
  const values = rows.map((row) => columns.map((column) => greatest(here(row, column))));
  return { rows, columns, values, top: greatest(known) ?? 0 };
};

export const mount = (element, store, { t, announce }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => element.querySelector(`#${id}`);
  const number = new Intl.NumberFormat("en");

  const blockText = (block) => (t(`block.${block}`).startsWith("block.") ? block : t(`block.${block}`));
  const heads = (columns) => {
    const blocks = columns.reduce((found, { block }) => {
      if (found.at(-1)?.block === block) found.at(-1).span += 1;
      else found.push({ block, span: 1 });
      return found;
    }, []);
    const above = blocks.map(({ block, span }) => h("th", { colspan: span, scope: "colgroup" }, blockText(block)));
    return [
      h("tr", {}, h("td"), ...above),
      h("tr", {}, h("td"), ...columns.map(({ role }) => h("th", { scope: "col", title: role }, SHORT[role] ?? role))),
    ];
  };
  const amounts = (parts) => {
    const { rows, columns, values, top } = board(parts);
    if (!rows.length) return [];
    const colours = scale("linear", top, shade());
    const named = ({ place, layer }) => (layer === null ? place : t("changes.layer", { place, layer }));
    const cell = (row, column, value) => {
      if (value === null) return h("td");
      const role = [blockText(column.block), column.role].filter(Boolean).join(" ");
      const says = t("changes.part", { place: named(row), role, amount: shareOf(value) });
      const made = h("td", { class: "amount", title: says }, h("span", { class: "unseen" }, shareOf(value)));
      made.style.setProperty("--colour", colours.css(value));
      return made;
    };
    const lines = rows.map((row, r) =>
      h("tr", {}, h("th", { scope: "row" }, named(row)), ...columns.map((column, c) => cell(row, column, values[r][c]))));
    const caption = h("caption", {}, t("changes.amounts", { top: shareOf(top) }));
    return [h("table", {}, caption, h("thead", {}, ...heads(columns)), h("tbody", {}, ...lines))];
  };

  const turn = (name, on) => {
    const off = offOf(state).filter((each) => each !== name);
    set({ off: on ? off : [...off, name] });
    announce(`${name}: ${t(on ? "on" : "off")}`);
  };
  const row = () =>
    h("li", {},
      h("label", {}, h("input", { type: "checkbox", role: "switch" }), h("span", { class: "name" }), h("small")),
      h("div", { class: "amounts" }));
  const show = () => {
    const added = addedTo(state);
    const off = offOf(state);
    element.hidden = !added.length;
    if (!added.length) return;
    const all = off.length === added.length;
    $("all-changes").textContent = t(all ? "changes.on" : "changes.off");
    $("all-changes").onclick = () => {
      set({ off: all ? [] : null });
      announce(t(all ? "changes.none" : "changes.base"));
    };
    const says = isBase(state) ? t("changes.base") : off.length ? t("changes.some", { names: off.join(", ") }) : t("changes.none");
    $("changes-hint").textContent = [says, ...(modelOf(state).new_head ? [t("changes.head")] : [])].join(" ");
    sync($("added"), added, row, (item, { name, says: what, parameters }) => {
      const [toggle, label, count] = item.firstElementChild.children;
      toggle.checked = !off.includes(name);
      toggle.setAttribute("aria-label", t("changes.switch", { says: what }));
      toggle.onchange = () => turn(name, toggle.checked);
      label.textContent = label.title = what;
      count.textContent = t("changes.parameters", { n: number.format(parameters) });
    });
  };
  const showAmounts = () =>
    addedTo(state).forEach(({ parts }, i) => $("added").children[i]?.lastElementChild.replaceChildren(...amounts(parts)));

  subscribe(["models", "model", "off", "edits", "language"], show);
  subscribe(["models", "model", "theme", "language"], showAmounts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAmounts);
  show();
};
