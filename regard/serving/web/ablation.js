// Heads switched off or scaled, by hand or by a preset, and what that does to the output there was.

import { factorOf, inputsOf, isBase, modelOf, sliding, withFactor } from "./state.js";
import { h, sync } from "./dom.js";
import { headLabel, logarithm, percent, signed } from "./i18n.js";
import { atlasOf } from "./sight.js";
import { visible } from "./strip.js";

const SURE = 0.9; // the largest weight sits at one offset for this share of positions: a positional head
const MASS = 0.5; // or so much of the attention goes to the neighbour

export const positional = ({ roles, role, measures, ...rest }) => {
  const { positional: at, previous, next } = measures ?? rest;
  const named = [...(roles ?? []), role ?? ""].some((each) => each.startsWith("positional"));
  return named || at?.share >= SURE || previous > MASS || next > MASS;
};

/** Edits that silence these heads, [{name, head}]. */
export const silence = (heads) => heads.reduce((edits, { name, head }) => withFactor(edits, name, head, 0), {});

/** All heads but the `k` of greatest importance. */
export const allBut = (heads, k) => [...heads].sort((a, b) => b.importance - a.importance).slice(k);

export const mount = (element, store, { api, t, announce, fail }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => element.querySelector(`#${id}`);

  // --- presets
  let preset = {}; // the last one: what it says is true as long as the edits are its own
  const showPresets = () => {
    const model = modelOf(state);
    if (!model?.attentions) return;
    const [select, chosen] = [$("preset"), $("preset").value];
    const option = (value, text) => h("option", { value }, text);
    const own = model.attentions.filter((each) => !each.derived);
    const layers = own.map(({ name }) => option(name, headLabel(model, name)));
    select.replaceChildren(
      h("optgroup", { label: t("preset.layers") }, ...layers),
      h("optgroup", { label: t("preset.kinds") }, option("positional", t("preset.positional"))),
      h("optgroup", { label: t("preset.importance") }, option("keep", t("preset.keep"))),
    );
    if ([...select.options].some(({ value }) => value === chosen)) select.value = chosen;
    const heads = own.reduce((sum, attention) => sum + attention.heads, 0);
    $("k").max = heads;
    $("k").value ||= Math.round(heads / 2);
    showK();
  };
  const showK = () => ($("preset-k").hidden = $("preset").value !== "keep");

  // The atlas has seen a corpus; without one this sentence must do.
  const measured = async () => {
    const atlas = await atlasOf(api, modelOf(state));
    if (atlas) return { heads: atlas.heads, by: t("by.atlas") };
    const { model, source, target, picture } = state;
    const { heads } = await api.measures({ model, ...inputsOf(modelOf(state), source, target, picture) });
    return { heads, by: t("by.measures") };
  };
  const apply = async (which) => {
    const attention = modelOf(state).attentions.find(({ name }) => name === which);
    if (attention) {
      const heads = Array.from({ length: attention.heads }, (_, head) => ({ name: which, head }));
      return { heads, by: headLabel(modelOf(state), which) };
    }
    const { heads, by } = await measured();
    if (which === "keep") return { heads: allBut(heads, Number($("k").value)), by };
    // A cross-attention at a fixed offset follows the word order: that is an alignment, not a position.
    const cross = modelOf(state).attentions.filter(({ kind }) => kind === "cross").map(({ name }) => name);
    return { heads: heads.filter((head) => positional(head) && !cross.includes(head.name)), by };
  };
  $("preset").addEventListener("change", showK);
  $("presets").addEventListener("submit", async (event) => {
    event.preventDefault();
    const { model } = state;
    try {
      const { heads, by } = await apply($("preset").value);
      if (state.model !== model) return; // the person went on to another
      if (heads.length) set({ edits: silence(heads) });
      preset = { edits: state.edits, says: t(heads.length ? "preset.said" : "preset.none", { n: heads.length, by }) };
      showEdits();
      announce(preset.says);
    } catch (error) {
      fail(error);
    }
  });
  $("reset").addEventListener("click", () => {
    set({ edits: {} });
    announce(t("ablation.restored"));
  });

  // --- the edited heads
  const factor = (name, head, value) => set({ edits: withFactor(state.edits, name, head, value) });
  const row = () =>
    h("li", {},
      h("input", { type: "checkbox", role: "switch" }), h("span", { class: "name" }),
      h("input", { type: "range", min: 0, max: 2, step: 0.05 }), h("output"),
      h("button", { type: "button", class: "round" }, "×"));
  const list = () => {
    const order = modelOf(state)?.attentions?.map(({ name }) => name) ?? []; // of the model, not of the clicks
    return Object.entries(state.edits)
      .sort(([a], [b]) => order.indexOf(a) - order.indexOf(b))
      .flatMap(([name, heads]) => Object.keys(heads).map((head) => ({ name, head: Number(head) })));
  };
  const showEdits = () => {
    const model = modelOf(state);
    sync($("edits"), list(), row, (item, { name, head }) => {
      const [toggle, label, slider, value, remove] = item.children;
      const [at, says] = [factorOf(state.edits, name, head), headLabel(model, name, head)];
      label.textContent = says;
      label.title = `${name} ${head}`;
      toggle.checked = at !== 0;
      toggle.setAttribute("aria-label", t("ablation.switch", { head: says }));
      toggle.onchange = () => factor(name, head, toggle.checked ? 1 : 0);
      slider.value = at;
      slider.setAttribute("aria-label", t("ablation.scale", { head: says }));
      // A slider that passes 1 keeps its row; only one that is left there is as it was.
      slider.oninput = () => set({ edits: sliding(state.edits, name, head, slider.valueAsNumber) });
      slider.onblur = () => slider.valueAsNumber === 1 && factor(name, head, 1);
      value.textContent = `×${at.toFixed(2)}`;
      remove.setAttribute("aria-label", t("ablation.remove", { head: says }));
      remove.onclick = () => factor(name, head, 1);
    });
    const any = Object.keys(state.edits).length > 0;
    $("reset").disabled = !any;
    const says = state.edits === preset.edits ? preset.says : any ? "" : t("ablation.hint");
    $("ablation-hint").textContent = says;
    $("ablation-hint").hidden = !says;
    $("ablation-title").dataset.note = any ? t("ablation.count", { n: list().length }) : "";
  };

  // --- the original output under the edits: each token's probability before and after
  const token = () =>
    h("li", {}, h("span", { class: "what", dir: "auto" }), h("span", { class: "pair" }), h("span", { class: "p" }));
  const showRescored = () => {
    const { rescored, target, done } = state;
    $("rescoring").hidden = !rescored;
    $("rescoring").firstElementChild.textContent = t(isBase(state) ? "rescored.base" : "rescored.title");
    if (!rescored || !done || !rescored.every(({ id }, k) => id === target[k]?.id)) return; // of another output
    sync($("rescored"), rescored, token, (item, now, k) => {
      const [what, pair, p] = item.children;
      const [before, after] = [target[k].log_p, now.log_p].map(Math.exp);
      what.textContent = visible(now);
      pair.style.setProperty("--before", before.toFixed(4));
      pair.style.setProperty("--after", after.toFixed(4));
      p.textContent = [...new Set([before, after].map(percent))].join(" → ");
      item.classList.toggle("less", after < before - 0.05);
      item.title = t("rescored.token", { text: visible(now), before: percent(before), after: percent(after) });
    });
    const sum = (tokens) => tokens.reduce((total, { log_p }) => total + log_p, 0);
    const [before, after] = [sum(target), sum(rescored)];
    $("rescored-figures").textContent = t("rescored.figures",
      { before: logarithm(before), after: logarithm(after), difference: signed(after - before) });
  };

  subscribe(["models", "model", "language"], showPresets);
  subscribe(["edits", "models", "model", "language"], showEdits);
  subscribe(["rescored", "done", "edits", "off", "language"], showRescored);
  showEdits();
};
