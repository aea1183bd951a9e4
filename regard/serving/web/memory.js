// What a token of the output reminds the model of: states that were remembered, where they stand, what each counts.

import { modelOf, shown } from "./state.js";
import { h, sync } from "./dom.js";
import { leastCertain } from "./generation.js";
import { percent } from "./i18n.js";
import { visible } from "./strip.js";

export const texts = {
  "memory.title": [
    "“{token}” reminds the model of this; {p} with memory, {alone} without",
    "“{token}”让模型想起这些；有记忆时 {p}，无记忆时 {alone}",
  ],
  "memory.place": ["{place}, squared distance {distance}", "{place}，平方距离 {distance}"],
};

export const mount = (element, store, { t }) => {
  const { state, subscribe } = store;
  const title = element.querySelector("h3");
  const list = element.querySelector("ol");
  const row = () =>
    h("li", {},
      h("span", { class: "bar" }), h("span", { class: "p" }), h("small", { class: "place" }),
      h("q", { dir: "auto" }, h("span"), h("mark"), h("span")));
  const show = () => {
    const { target, side } = shown(state);
    const at = state.step === null ? leastCertain(target, state.given) : Math.min(state.step, target.length - 1);
    const found = side === "original" && modelOf(state)?.remembers ? state.recalled?.[at] : null;
    element.hidden = !found || !target[at];
    if (element.hidden) return;
    const { p, alone, near } = found;
    title.textContent = t("memory.title", { token: visible(target[at]), p: percent(p), alone: percent(alone) });
    sync(list, near, row, (item, { token, weight, distance, place, before, after }) => {
      const [bar, share, where, quote] = item.children;
      const [ahead, mark, behind] = quote.children;
      bar.style.setProperty("--p", weight.toFixed(4));
      share.textContent = percent(weight);
      ahead.textContent = before;
      mark.textContent = token.replace(/^[▁Ġ ]/u, " ");
      behind.textContent = after.startsWith(" ") ? after : ` ${after}`;
      where.textContent = t("memory.place", { place, distance: distance.toFixed(1) });
    });
  };
  subscribe(["recalled", "target", "step", "side", "model", "models", "language"], show);
  show();
};
