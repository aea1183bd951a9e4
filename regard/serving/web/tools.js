// The switches of the focused view.

import { h } from "./dom.js";
import { choice, tick } from "./elements.js";
import { differ } from "./pairs.js";
import { attentionsOf, derived, dotsIn, rollsOut, viewShown } from "./sight.js";

/** The switches in `root`: which view, how rows are named and combined, words, special tokens, colours. */
export const tools = (root, store, { t }) => {
  const { state } = store;
  let views, words, special, log, difference, axis, combine;

  const make = () => {
    const named = (prefix, values) => values.map((v) => [v, t(`${prefix}.${v}`), t(`${prefix}.${v}.title`)]);
    const kinds = named("view", ["weights", "norm", "rollout", "neuron"]);
    const means = ["mean", "sum"].map((how) => [how, t(`combine.${how}`)]);
    const explained = { explained: true };
    views = choice("view", t("focus.view"), kinds, (view) => store.set({ view }));
    const roles = named("axis", ["predicted", "read"]);
    axis = choice("axis", t("focus.axis"), roles, (value) => store.set({ axis: value }), explained);
    combine = choice("combine", t("focus.combine"), means, (value) => store.set({ combine: value }), explained);
    words = tick(t("focus.words"), t("focus.words.title"), (on) => store.set({ words: on }));
    special = tick(t("focus.special"), t("focus.special.title"), (on) => store.set({ special: on }));
    log = tick(t("focus.log"), t("focus.log.title"), (on) => store.set({ colour: on ? "log" : "linear" }));
    difference = tick(t("focus.difference"), t("focus.difference.title"), (on) => store.set({ difference: on }));
    const nodes = (...parts) => parts.map(({ node }) => node);
    root.replaceChildren(...nodes(views, axis, combine), h("div", { class: "tools" }, ...nodes(words, special, log, difference)));
    show();
  };
  const show = () => {
    views.set(state.view === "neuron" && dotsIn(state) ? "neuron" : viewShown(state));
    views.inputs[1].disabled = derived(state);
    views.inputs[2].disabled = !rollsOut(state);
    views.inputs[3].disabled = !dotsIn(state);
    axis.set(state.axis);
    axis.node.hidden = attentionsOf(state)[0]?.role !== "predicted";
    combine.set(state.combine);
    combine.node.hidden = (state.locked?.rows.length ?? 0) < 2 && (state.locked?.columns.length ?? 0) < 2;
    words.set(state.words);
    words.node.hidden = Boolean(state.figure?.picture?.itself); // patches make no words
    special.set(state.special);
    const grid = state.figure?.picture?.grid;
    special.node.hidden = grid?.tokens === 0 && state.figure.picture.itself;
    log.set(state.colour === "log");
    difference.set(state.difference);
    difference.node.hidden = !differ(state) || Boolean(state.figure?.picture);
  };
  store.subscribe(["language", "models", "model"], make);
  store.subscribe(["models", "model", "head", "kind", "view", "words", "special", "colour", "axis", "combine", "locked", "figure", "beside", "difference"], show);
  make();
};
