// One key for everything that is often wanted; the list of them is the help.

import { KINDS, addedTo, edited, editsShown, factorOf, modelOf, reads, shown, switched } from "./state.js";
import { h } from "./dom.js";
import { headLabel, sideText } from "./i18n.js";
import { derived, dotsIn, kindsOf, rollsOut } from "./sight.js";

const after = (values, value) => values[(values.indexOf(value) + 1) % values.length];
const typing = (element) => element.matches("textarea, select, input:not([type=radio], [type=checkbox], [type=range])");

export const mount = (dialog, store, { t, announce }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => document.getElementById(id);

  const toggle = () => {
    if (state.head && editsShown(state) && !derived(state)) set({ edits: switched(state.edits, state.head.name, state.head.head) });
  };
  const toggled = () => {
    const { name, head } = state.head ?? {};
    return name && editsShown(state) && !derived(state) && `${headLabel(modelOf(state), name, head)} ×${factorOf(state.edits, name, head)}`;
  };
  const step = (by) => () => {
    const n = shown(state).target.length;
    const at = (state.step === null ? 0 : state.step + 1) + by; // 0 is all steps
    if (n && at >= 0 && at <= n) set({ step: at ? at - 1 : null });
  };
  const look = (kind) => () => kindsOf(state).includes(kind) && set({ kind, tab: "heads" });
  const kinds = KINDS.map((kind, k) => (
    { key: String(k + 1), act: look(kind), say: () => t(`kind.${state.kind}`) }));
  const there = () => ({ norm: !derived(state), rollout: rollsOut(state), neuron: dotsIn(state) });
  const views = () => ["weights", "norm", "rollout", "neuron"].filter((view) => there()[view] ?? true);
  const more = () => [...(state.edited ? ["edited"] : []), ...(state.other ? ["other"] : [])];
  const sides = () => ["original", ...more(), ...(more().length ? ["both"] : [])];
  const cycle = (key, values) => () => set({ [key]: after(values(), state[key]) });
  const leave = () => set({ hover: null, ...(state.locked ? { locked: null } : { step: null }) });
  const flip = (key) => () => set({ [key]: !state[key] });
  const turned = (name, key) => () => `${t(name)}: ${t(state[key] ? "on" : "off")}`;

  const row = () => t(`axis.${state.axis}.title`);

  // What a key does, its line in the help, how it is written there if not as itself, and what is said when it is done.
  const keys = [
    { key: "?", act: () => dialog.showModal(), text: "key.help" },
    { key: "/", act: () => $("text").focus(), text: "key.input" },
    { key: "[", act: step(-1), text: "key.steps", written: "[ ]" }, { key: "]", act: step(1) },
    { key: "ArrowLeft", act: step(-1) }, { key: "ArrowRight", act: step(1) },
    { key: "0", act: () => set({ step: null }), text: "key.all" },
    { text: "key.grid", written: "← ↑ → ↓ Enter" },
    { key: "x", act: toggle, text: "key.toggle", say: toggled },
    { key: "r", act: () => edited(state) && $("reset").click(), text: "key.reset" },
    { key: "b", act: () => addedTo(state).length && $("all-changes").click(), text: "key.base" },
    { ...kinds[0], text: "key.kinds", written: "1 2 3" }, kinds[1], kinds[2],
    { key: "v", act: cycle("view", views), text: "key.view", say: () => t(`view.${state.view}`) },
    { key: "m", act: cycle("side", sides), text: "key.side", say: () => sideText(t, state, state.side) },
    { key: "w", act: flip("words"), text: "key.words", say: turned("focus.words", "words") },
    { key: "s", act: flip("special"), text: "key.special", say: turned("focus.special", "special") },
    { key: "l", act: cycle("colour", () => ["linear", "log"]), text: "key.colour", say: () => t(`colour.${state.colour}`) },
    { key: "p", act: cycle("axis", () => ["predicted", "read"]), text: "key.axis", say: row },
    { key: "a", act: cycle("tab", () => ["heads", "atlas"]), text: "key.tab", say: () => t(`tab.${state.tab}`) },
    { key: "e", act: () => $("export").querySelector("button, summary")?.click(), text: "key.export" },
    { key: "Escape", act: leave, text: "key.escape", written: "Esc" },
  ];
  const none = () => [
    ...(reads(state) ? ["key.steps", "key.all", "key.axis"] : []), ...(addedTo(state).length ? [] : ["key.base"]),
  ];
  const about = ({ text }) => text && !none().includes(text);
  const actions = new Map(keys.filter(({ key }) => key).map((each) => [each.key, each]));

  addEventListener("keydown", (event) => {
    const { key, target, ctrlKey, metaKey, altKey, defaultPrevented } = event;
    if (defaultPrevented || ctrlKey || metaKey || altKey || dialog.open) return;
    if (key === "Escape" && typing(target)) return target.blur(); // out of the text, so that the other keys work
    const wanted = actions.get(key.length === 1 ? key.toLowerCase() : key);
    const elsewhere = key.startsWith("Arrow") && target !== document.body; // tokens, grid and sliders have their own
    if (!wanted || typing(target) || elsewhere) return undefined;
    event.preventDefault();
    wanted.act();
    const said = wanted.say?.();
    return said && announce(said);
  });

  const show = () => {
    const kbds = (written) => written.split(" ").map((each) => h("kbd", {}, each));
    $("keys").replaceChildren(...keys.filter(about).flatMap(({ key, text, written }) => [
      h("dt", {}, ...kbds(written ?? key)), h("dd", {}, t(text)),
    ]));
    $("help-about").textContent = t("help.about");
  };
  $("open-help").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // a click beside it
  subscribe(["language", "models", "model"], show);
  show();
};
