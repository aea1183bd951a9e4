// The page: its parts, the services they share, and the models to begin with.

import { exampleOf, store, modelOf } from "./state.js";
import { api } from "./api.js";
import { add, localise, t } from "./i18n.js";
import { debounced } from "./dom.js";
import * as flow from "./flow.js";
import * as input from "./input.js";
import * as picture from "./picture.js";
import * as generation from "./generation.js";
import * as memory from "./memory.js";
import * as ablation from "./ablation.js";
import * as changes from "./changes.js";
import * as compare from "./compare.js";
import * as grid from "./grid.js";
import * as focus from "./focus.js";
import * as neuron from "./neuron.js";
import * as table from "./table.js";
import * as atlas from "./atlas.js";
import * as exporting from "./export.js";
import * as keys from "./keys.js";

const { state } = store;
const $ = (id) => document.getElementById(id);

let news = "";
const say = debounced(() => {
  $("status").textContent = news;
});
const announce = (text) => {
  news = text;
  say(300); // of several changes in a row only the last is worth hearing
};
const fail = (error) => {
  if (error.name !== "AbortError") store.set({ error: error.key ? t(error.key) : error.message });
};
const services = { api, t, announce, fail };

const showError = () => {
  $("error").hidden = !state.error;
  $("error").firstElementChild.textContent = state.error ?? "";
};

const showTheme = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = state.theme === "auto" ? (dark ? "dark" : "light") : state.theme;
};

const showLanguage = () => {
  document.documentElement.lang = state.language;
  localise();
};

const showTab = () => {
  for (const tab of ["heads", "atlas"]) {
    const on = tab === state.tab;
    $(tab).hidden = !on;
    $(`tab-${tab}`).setAttribute("aria-selected", on);
    $(`tab-${tab}`).tabIndex = on ? 0 : -1;
  }
};

const loadModels = async () => {
  for (;;) {
    try {
      return await api.models();
    } catch (error) {
      fail(error);
      await new Promise((wake) => setTimeout(wake, 2000)); // a server that starts up may need a moment
    }
  }
};

const begin = async () => {
  store.set({ busy: { models: true } });
  const { models, default: first } = await loadModels();
  const usable = (id) => models.some((model) => model.id === id && !model.error);
  const model = [state.model, first, ...models.map(({ id }) => id)].find(usable) ?? "";
  const gone = state.model && model !== state.model ? t("error.gone", { id: state.model, model }) : null;
  const broken = models.find((each) => each.error);
  const taskOf = (id) => models.find((each) => each.id === id)?.task;
  const another = usable(state.compare) && state.compare !== model && taskOf(state.compare) === taskOf(model);
  const compare = another ? state.compare : "";
  store.set({ models, model, compare, busy: { models: false }, error: gone ?? (broken ? t("error.model", broken) : null) });
  if (gone) store.set({ prefix: [], edits: {}, off: null, head: null }); // they were about that other model
  if (!state.text) store.set(exampleOf(modelOf(state)?.examples?.[0]));
};

showTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
store.subscribe(["theme"], showTheme);

flow.start(store, services);
const parts = [
  [input, $("input")], [picture, $("seen")], [generation, $("generation")], [memory, $("memory")], [compare, $("compare")], [changes, $("changes")],
  [ablation, $("ablation")],
  [grid, $("grid")], [focus, $("focus")], [neuron, $("neuron")], [table, $("table")], [atlas, $("atlas")],
  [exporting, $("export")], [keys, $("help")],
];
for (const [part] of parts) add(part.texts);
showLanguage();
for (const [part, element] of parts) part.mount(element, store, services);

store.subscribe(["language", "models", "model"], showLanguage);
store.subscribe(["error"], showError);
store.subscribe(["busy"], () => document.body.classList.toggle("busy", Object.values(state.busy).includes(true)));
store.subscribe(["tab"], showTab);
showTab();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state, not a place
  $(state.tab).focus();
});
$("error").lastElementChild.addEventListener("click", () => store.set({ error: null }));
$("tabs").addEventListener("click", ({ target }) => {
  if (target.role === "tab") store.set({ tab: target.id.replace("tab-", "") });
});
$("tabs").addEventListener("keydown", ({ key, target }) => {
  if (target.role !== "tab" || !key.startsWith("Arrow")) return;
  store.set({ tab: state.tab === "heads" ? "atlas" : "heads" });
  $(`tab-${state.tab}`).focus();
});

begin();
