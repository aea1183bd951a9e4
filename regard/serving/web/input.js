// What goes in: the sentence and its examples, the model, the beam; and how the page looks and speaks.

import { exampleOf, modelOf, unsaid } from "./state.js";
import { h, sync } from "./dom.js";
import { sideText } from "./i18n.js";

const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
// What was said about one output means nothing for the next.
const anew = { sentence: 0, prefix: [], step: null, locked: null, hover: null };

export const mount = (_, store, { t, announce }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => document.getElementById(id);

  // --- the sentence, and what may stand beside it
  const field = (key) => {
    const area = $(key);
    const grow = () => {
      area.style.height = "auto";
      area.style.height = `${Math.min(area.scrollHeight + 2, 200)}px`;
    };
    area.addEventListener("input", () => {
      grow();
      set({ [key]: area.value, ...anew });
    });
    addEventListener("resize", grow);
    return () => {
      if (area.value !== state[key]) area.value = state[key];
      area.lang = modelOf(state)?.source ?? "";
      grow();
    };
  };
  const [showFirst, showSecond] = ["text", "pair"].map(field);
  const showText = () => {
    const second = modelOf(state)?.second ?? "";
    $("text").placeholder = t("input.hint");
    $("beside").hidden = !second;
    $("pair-title").textContent = second && t(`pair.${second}`);
    showFirst();
    showSecond();
  };
  subscribe(["models", "text", "pair", "model", "language"], showText);

  // --- examples
  /** A button for each of some sentences; `chosen(sentence, index)` says which is pressed. */
  const choices = (root, sentences, onclick, chosen) =>
    sync(
      root, sentences,
      () => h("button", { type: "button", class: "example", dir: "auto", onclick }),
      (button, sentence, index) => {
        button.textContent = sentence;
        button.lang = modelOf(state)?.source ?? "";
        button.setAttribute("aria-pressed", chosen(sentence, index));
      },
    );
  const examples = () => (modelOf(state)?.examples ?? []).map(exampleOf);
  const take = ({ target }) => set({ ...examples()[[...$("examples").children].indexOf(target)], ...anew });
  const showExamples = () => {
    $("examples").hidden = Boolean(modelOf(state)) && !examples().length;
    choices($("examples"), examples().map(({ text }) => text), take, (example) => example === state.text);
  };
  subscribe(["models", "model", "text"], showExamples);

  // --- of several sentences, the one that is looked at; and what the model cannot know of it
  const choose = ({ target }) => {
    const sentence = [...$("sentences").children].indexOf(target);
    set({ ...anew, sentence });
    announce(t("input.one-of", { k: sentence + 1, n: state.sentences.length }));
  };
  const showSentences = () => {
    const { sentences, sentence, unknown } = state;
    const several = sentences.length > 1;
    $("one-of").hidden = $("sentences").hidden = !several;
    if (several) $("one-of").textContent = t("input.one-of", { k: sentence + 1, n: sentences.length });
    choices($("sentences"), several ? sentences : [], choose, (_, index) => index === sentence);
    $("unknown").hidden = !unknown.length;
    if (unknown.length) $("unknown").textContent = t("input.unknown", { texts: unknown.join(" · ") });
  };
  subscribe(["sentences", "sentence", "unknown", "language"], showSentences);

  // --- models
  const arrow = (model) => {
    if (model.error) return t("model.broken", model);
    return model.source ? `${model.id} · ${model.source} → ${model.target}` : model.id;
  };
  const options = (select, models, chosen) => {
    sync(select, models, () => h("option"), (option, model) => {
      option.value = model.id;
      option.textContent = model.id === "" ? t("compare.none") : arrow(model);
      option.disabled = Boolean(model.error);
    });
    select.value = chosen;
  };
  const showModels = () => {
    options($("model"), state.models, state.model);
    const others = state.models.filter(({ id, task }) => id !== state.model && task === modelOf(state)?.task);
    $("compare-with").parentElement.hidden = !others.length;
    options($("compare-with"), [{ id: "" }, ...others], state.compare);
    const model = modelOf(state);
    const heads = model?.attentions?.reduce((sum, { heads: n, derived }) => sum + (derived ? 0 : n), 0);
    const note = model && t("model.note", { parameters: short.format(model.parameters), heads });
    const shared = model?.shared && t("model.shared");
    $("model-note").textContent = model ? [note, model.note, shared].filter(Boolean).join(" · ") : "";
    $("model-note").title = $("model-note").textContent; // it may be cut
  };
  $("model").addEventListener("change", ({ target }) => {
    const [old, model] = [modelOf(state), modelOf(state, target.value)];
    // A sentence is kept where the new model can read it; an example gives way to one of the new model's own.
    const alike = old?.source === model.source && old.task === model.task;
    const keep = alike && !old.examples.some((example) => exampleOf(example).text === state.text);
    const other = state.compare === model.id ? old?.id ?? "" : state.compare;
    const examples = model.examples.length || model.sees === old?.sees ? {} : { text: "", pair: "" };
    // So does a sample that it cannot see: a video is none for a model of pictures.
    const sample = state.models.some(({ samples }) => samples?.includes(state.picture));
    const lost = model.sees && sample && !model.samples.includes(state.picture);
    set({
      ...(lost ? { picture: model.samples[0] ?? "" } : {}),
      ...anew, model: model.id, compare: modelOf(state, other)?.task === model.task ? other : "",
      ...(alike ? {} : unsaid), edits: {}, off: null, head: null, side: "original", ...examples,
      ...(keep || !model.examples.length ? {} : exampleOf(model.examples[0])),
    });
    $("examples").scrollLeft = 0;
    announce(arrow(model));
  });
  $("compare-with").addEventListener("change", ({ target }) => set({ compare: target.value }));
  subscribe(["models", "model", "compare", "language"], showModels);

  // --- choices: a fieldset of radio buttons or a select, and the key of the state that it shows
  const radios = (id, key, read = String) => {
    $(id).addEventListener("change", ({ target }) => set({ [key]: read(target.value) }));
    const show = () => {
      for (const radio of $(id).querySelectorAll("input")) radio.checked = radio.value === String(state[key]);
    };
    subscribe([key], show);
    show();
  };
  radios("beam", "beam", Number);
  radios("sides", "side");
  for (const key of ["theme", "language"]) {
    $(key).addEventListener("change", ({ target }) => set({ [key]: target.value }));
    const show = () => ($(key).value = state[key]);
    subscribe([key], show);
    show();
  }

  // --- whose maps: only the sides that there are
  const showSides = () => {
    const there = { original: true, edited: state.edited !== null, other: state.other !== null };
    there.both = there.edited || there.other;
    $("sides").hidden = !there.both;
    for (const radio of $("sides").querySelectorAll("input")) {
      radio.parentElement.hidden = !there[radio.value];
      radio.nextElementSibling.textContent = sideText(t, state, radio.value);
    }
  };
  subscribe(["edited", "other", "models", "model", "edits", "off", "language"], showSides);

  showText();
  showModels();
};
