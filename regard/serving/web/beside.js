// The second map of the focused head, beside the first: with the edits, or of the second model.

import { h } from "./dom.js";
import { signed } from "./colour.js";
import { heatmap } from "./heatmap.js";
import { sideText } from "./i18n.js";
import { shownAt, readout } from "./maps.js";
import { besides, besideShown, carried, changes, comparable, linked } from "./pairs.js";
import { titleOf } from "./sight.js";

export const texts = {
  "beside.changes": ["Largest changes", "变化最大"],
  "beside.until": ["Largest changes before the outputs part", "输出分歧之前变化最大"],
  "beside.change": ["“{row}” → “{column}”: {before}, then {after}", "“{row}” → “{column}”：{before}，改后 {after}"],
  "beside.same": ["The two maps are the same to three digits.", "两图在三位小数内相同。"],
  "beside.why": [
    "A factor acts on what a head says, not on where it looks: only later layers see it.",
    "系数作用于头所说的内容，而不是它看向何处：只有后面的层受其影响。",
  ],
  "beside.apart": [
    "The tokens differ, so the maps are not compared cell by cell; axes of the same length are linked.",
    "词元不同，因此不逐格比较；长度相同的轴仍然联动。",
  ],
  "beside.nearest": [
    "The second model has no head of this layer and number: this is its nearest.",
    "第二个模型没有此层此编号的头：这是最接近的一个。",
  ],
  "beside.signs": ["Blue is more, orange less, up to {most}.", "蓝为多，橙为少，至多 {most}。"],
  "beside.none": ["The second model has no heads of this kind.", "第二个模型没有这一类的头。"],
};

/** What a map of the pair is called: the side, and for a second model which one and which head. */
export const nameOf = (t, state, { side, about, name, head, most }) => {
  const own = side === "other"
    ? `${t("side.other")} (${about.model}): ${titleOf(t, { ...state, side }, { name, head })}`
    : sideText(t, state, side);
  if (most === undefined) return own;
  return `${own} − ${sideText(t, state, "original")}`;
};

/**
 * The second picture, `box`, and what is said about the pair, `about`; both are put where there are two to look at.
 * `point` and `pick` hear of it in places of the first map; `tell` writes a read-out, `remark` marks everything anew.
 */
export const beside = (store, t, { point, pick, tell, remark }) => {
  const { state } = store;
  const name = h("h3");
  const says = h("p", { class: "readout" });
  const differs = h("p", { class: "note differs" });
  const about = h("div", { class: "two" }, says, differs);
  const box = h("div", { class: "picture" }, name);
  let own = null; // what is pointed at here, which may not be linked
  let link = { rows: false, columns: false };

  const here = (to) => {
    const place = to && (to.row != null || to.column != null) ? to : null;
    if (place?.row === own?.row && place?.column === own?.column) return;
    own = place;
    point(carried(own, link));
    remark(); // also where nothing of it is in the other
  };
  const choose = (at, adds) => {
    const there = carried(at, link);
    if (there) pick(there, adds);
  };
  const heat = heatmap(box, { point: here, pick: choose });
  heat.frame.addEventListener("blur", () => here(null));

  const change = ({ row, column, before, after }) => {
    const { rows, columns } = state.figure;
    const [from, to] = [rows[row], columns[column]];
    const amount = `${after < before ? "−" : "+"}${Math.abs(after - before).toFixed(3)}`;
    const label = t("beside.change", {
      row: from.text, column: to.text, before: before.toFixed(3), after: after.toFixed(3),
    });
    const lock = () => store.set({ locked: { rows: from.members, columns: to.members } });
    const act = { type: "button", class: "quiet", "aria-label": label, title: label, onclick: lock };
    return h("button", act, h("bdi", {}, from.text), " → ", h("bdi", {}, to.text), ` ${amount}`);
  };

  const draw = (colours, titles) => {
    const { figure, beside: second } = state;
    const drawn = besideShown(state);
    link = linked(figure, second);
    own = null;
    name.textContent = nameOf(t, state, drawn);
    heat.draw(drawn, drawn.most === undefined ? colours : signed([drawn.weights], colours.tint), titles);
    heat.frame.setAttribute(
      "aria-label",
      t("focus.map", { head: name.textContent, rows: second.rows.length, columns: second.columns.length }),
    );
    const signs = drawn.most === undefined ? "" : `${t("beside.signs", { most: drawn.most.toFixed(3) })} `;
    const near = signs + (second.same ? "" : `${t("beside.nearest")} `);
    const rows = comparable(figure, second);
    const whole = rows === figure.rows.length && rows === second.rows.length;
    const found = changes(figure, second, rows);
    if (!whole && !found.length) return differs.replaceChildren(near, t("beside.apart"));
    const why = second.side === "edited" && !second.about.off.length ? ` ${t("beside.why")}` : "";
    if (!found.length) return differs.replaceChildren(near, t("beside.same"), why);
    return differs.replaceChildren(near, t(whole ? "beside.changes" : "beside.until"), ...found.map(change));
  };

  /** `chosen` is what is chosen in the first map; what is said of it here. */
  const mark = (chosen) => {
    const { step } = state;
    const second = besideShown(state);
    const at = step === null || !second.steps ? [] : shownAt(second.rows, [step]);
    const now = besides(chosen, link, at);
    if (own) now.hover = own;
    heat.mark(now);
    const said = readout(second, now);
    tell(says, second, said);
    return said;
  };
  return { box, about, frame: heat.frame, draw, mark, here, choose, hover: () => own ?? carried(state.hover, link) };
};
