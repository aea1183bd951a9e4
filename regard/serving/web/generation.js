// What comes out: tokens with their probabilities, a scrubber through the steps, and what else the model considered.

import { looking, modelOf, reads, sees, shown, towards } from "./state.js";
import { answerView, saidOf, texts as own } from "./answer.js";
import { h, sync } from "./dom.js";
import { logarithm, percent } from "./i18n.js";
import { differing, wordsOf, write } from "./difference.js";
import { readable, strip, visible } from "./strip.js";

export const texts = own;

/** Which of the tokens a person chose: the end of the forced beginning, and what the model would not have taken. */
export const chosenBy = ({ prefix, given = 0 }, target) => (k) =>
  k === prefix.length - 1 ||
  (k >= given && k < prefix.length && target[k]?.alternatives?.[0]?.id !== target[k]?.id);

/** The forced beginning without the choice at step k, and without what the model chose by itself before it. */
export const undone = (prefix, k, chosen) => {
  let end = k;
  while (end > 0 && !chosen(end - 1)) end -= 1;
  return prefix.slice(0, end);
};

/** The step where the model was least certain, of those that it has written: what to show when nobody chose a step. */
export const leastCertain = (target, given = 0) => {
  const first = Math.min(given, target.length - 1);
  return target.reduce((least, token, k) => (k > first && token.log_p < target[least].log_p ? k : least), Math.max(0, first));
};

export const mount = (_, store, { t, announce }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => document.getElementById(id);
  const lock = (k) => {
    const here = !sees(state) || state.kind === "decoder"; // of a pair, the text is read by one of two towers
    set({ locked: here && state.locked?.rows[0] === k ? null : { rows: [k], columns: [] }, ...(here ? {} : { kind: "decoder" }) });
  };
  const look = (step) => (reads(state) ? lock(step) : set({ step, side: towards(state, "original") }));
  const draw = strip($("strip"), look);
  const drawAnswer = answerView($("answer"), t);

  /** What a model says that reads, and the tokens that it has read. */
  const showAnswer = (none) => {
    const { source, done, locked, windows } = state;
    const said = done ? saidOf(t, done.answer) : t(none);
    $("translation").textContent = said;
    $("translation").hidden = said === "";
    $("translation").classList.toggle("none", !done || done.answer.note !== "");
    drawAnswer(done?.answer);
    const tokens = sees(state) && !modelOf(state).second ? [] : source; // a picture's places are over it
    $("tokens-title").hidden = !tokens.length;
    const step = sees(state) && state.kind !== "decoder" ? null : locked?.rows[0] ?? null;
    draw({ tokens, step, whole: true });
    const parts = windows > 1 ? ` · ${t("reading.windows", { n: windows })}` : "";
    const figures = { n: source.length, ms: Math.round(done?.milliseconds ?? 0) };
    $("figures").textContent = done ? t("reading.figures", figures) + parts : "";
  };

  const showOutput = () => {
    const { target, done, step } = state;
    const text = $("translation");
    const words = wordsOf(target);
    // What the edits take away is marked where it was; what they bring, below (compare.js).
    const { models, original } = state.busy;
    const none = `generation.${models ? "loading" : original ? "busy" : "empty"}`;
    document.body.classList.toggle("reads", reads(state));
    if (reads(state)) return showAnswer(none);
    drawAnswer(null);
    text.hidden = false;
    $("tokens-title").hidden = true;
    if (done && state.edited?.done) write(text, words, differing(words, wordsOf(state.edited.target))[0], "del");
    else text.textContent = done ? done.text : readable(target) || t(none);
    text.lang = modelOf(state)?.target ?? "";
    text.classList.toggle("none", !target.length);
    const here = looking(state, "original") ? step : null;
    draw({ tokens: target, step: here, chosen: chosenBy(state, target), given: state.given, whole: done !== null });
    const cut = done?.cut ? ` · ${t("generation.cut")}` : "";
    const { log_probability, milliseconds } = done ?? {};
    if (done) {
      const figures = { log_p: logarithm(log_probability), n: target.length, ms: Math.round(milliseconds) };
      $("figures").textContent = t("generation.figures", figures) + cut;
    } else if (!target.length) $("figures").textContent = "";
    return undefined;
  };

  // --- the scrubber: 0 is all steps, k the k-th
  const steps = () => shown(state).target.length;
  const go = (to) => set({ step: to < 1 ? null : Math.min(to, steps()) - 1 });
  const showStep = () => {
    const { step } = state;
    const n = steps();
    const at = step === null ? 0 : Math.min(step + 1, n);
    const range = $("step");
    range.max = n;
    range.value = at;
    range.disabled = !n;
    const says = at ? t("step.says", { step: at, n }) : t("step.all", { n });
    range.setAttribute("aria-valuetext", says);
    $("step-says").textContent = n ? says : "";
    $("step-back").disabled = at === 0;
    $("step-on").disabled = at >= n;
  };
  $("step").addEventListener("input", ({ target }) => go(Number(target.value)));
  $("step-back").addEventListener("click", () => go(state.step ?? 0));
  $("step-on").addEventListener("click", () => go((state.step ?? -1) + 2));

  // --- alternatives
  const force = (at, alternative) => {
    const { target, side } = shown(state);
    if (side === "other") return;
    const prefix = [...target.slice(0, at), alternative].map(({ id }) => id);
    set({ prefix, step: at, side: towards(state, "original"), locked: null });
    announce(t("forced.said", { text: visible(alternative), step: at + 1 }));
  };
  const row = () => {
    const parts = [h("span", { class: "what", dir: "auto" }), h("span", { class: "bar" }), h("span", { class: "p" })];
    return h("li", {}, h("button", { type: "button" }, ...parts));
  };
  const showAlternatives = () => {
    const { target, side } = shown(state);
    const list = $("alternatives");
    const at = state.step === null ? leastCertain(target, state.given) : Math.min(state.step, target.length - 1);
    const token = target[at];
    list.classList.toggle("none", !token);
    const said = readable(target.slice(0, at));
    const before = said.length > 26 ? `…${said.slice(-24).replace(/^\S{0,12}(?=\s)/u, "")}` : said; // whole words
    const title = t(before ? "alternatives.at" : "alternatives.first", { step: at + 1, before });
    $("alternatives-title").firstElementChild.textContent = token ? title : "";
    $("alternatives-title").dataset.note = token && state.step === null ? t("alternatives.least") : "";
    const all = token?.alternatives ?? [];
    const alike = (a) => all.some((b) => a !== b && a.text === b.text && Boolean(a.space) === Boolean(b.space));
    sync(list, all, row, (item, alternative) => {
      const [button] = item.children;
      const [what, bar, p] = button.children;
      const taken = alternative.id === token.id;
      // Pieces that go on with the word before, and two that look the same, are told apart.
      const joins = at > 0 && !alternative.space && !/^<\/?s>$/.test(alternative.text);
      const text = alike(alternative) ? `${visible(alternative)} #${alternative.id}` : visible(alternative);
      what.textContent = text;
      what.classList.toggle("joins", joins);
      bar.style.setProperty("--p", alternative.p.toFixed(4));
      p.textContent = percent(alternative.p);
      const says = [
        t("alternatives.force", { text, p: percent(alternative.p) }),
        ...(joins ? [t("alternatives.joins")] : []), ...(taken ? [t("alternatives.chosen")] : []),
      ];
      button.setAttribute("aria-label", says.join(", "));
      button.title = side === "other" ? t("alternatives.other") : joins ? t("alternatives.joins") : "";
      button.setAttribute("aria-disabled", side === "other");
      button.setAttribute("aria-current", taken);
      button.onclick = () => force(at, alternative);
    });
  };

  // --- what is forced, one chip for each choice
  const showForced = () => {
    const { target, prefix } = state;
    const chosen = chosenBy(state, target);
    const steps = target.slice(0, prefix.length).map((token, k) => ({ token, k })).filter(({ k }) => chosen(k));
    sync($("forced"), steps, () => h("button", { type: "button", class: "undo", dir: "auto" }), (chip, { token, k }) => {
      const names = { step: k + 1, text: visible(token) };
      chip.textContent = t("forced.chip", names);
      chip.setAttribute("aria-label", t("forced.undo", names));
      chip.onclick = () => set({ prefix: undone(prefix, k, chosen), step: k, locked: null });
    });
  };

  subscribe(["source", "target", "done", "edited", "busy", "step", "side", "prefix", "language", "model", "locked", "kind"], showOutput);
  subscribe(["target", "edited", "other", "step", "side", "language"], showStep);
  subscribe(["target", "edited", "other", "step", "side", "language"], showAlternatives);
  subscribe(["target", "prefix", "language"], showForced);
  subscribe(["step"], () => {
    const [{ target }, { step }] = [shown(state), state];
    const here = document.activeElement;
    if (!target[step] || here === $("step") || here.matches(".token")) return; // those speak for themselves
    announce(t("token.says", { step: step + 1, text: visible(target[step]), p: percent(Math.exp(target[step].log_p)) }));
  });
  subscribe(["done"], () => state.done && announce(t("generation.done", { text: state.done.text })));
  showOutput();
  showStep();
};
