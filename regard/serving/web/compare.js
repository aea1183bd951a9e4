// Other translations of the same sentence below the first: with the edits, and by a second model; what differs is marked.

import { edited, hasInput, isBase, looking, modelOf, offOf, reads, towards } from "./state.js";
import { answerView, changed, saidOf } from "./answer.js";
import { logarithm, signed } from "./i18n.js";
import { differing, wordsOf, write } from "./difference.js";
import { chosenBy } from "./generation.js";
import { strip } from "./strip.js";

const NOTHING = { target: [], done: null };

export const mount = (_, store, { t, announce }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => document.getElementById(id);
  const drawEdited = strip($("edited-strip"), (step) => set({ step, side: towards(state, "edited") }));
  const drawOther = strip($("other-strip"), (step) => set({ step, side: towards(state, "other") }));

  const drawEditedAnswer = answerView($("edited-answer"), t);
  const drawOtherAnswer = answerView($("other-answer"), t);

  /** The answer of a model that reads: below the words, its parts, as `draw` has them, beside what it was `before`. */
  const writeAnswer = (element, draw, { done }, before) => {
    element.textContent = done ? saidOf(t, done.answer) : "";
    element.hidden = element.textContent === "";
    draw(done?.answer, before);
  };

  /** Write one translation, the words marked that the original has not; how many differ, or null if that says nothing. */
  const writeBeside = (element, { target, done }, id) => {
    const words = wordsOf(target);
    const marks = differing(wordsOf(state.target), words);
    // Half a translation differs by being half, and one in another language by everything.
    const comparable = done && state.done && modelOf(state)?.target === modelOf(state, id)?.target;
    write(element, words, comparable ? marks[1] : [], "ins");
    element.lang = modelOf(state, id)?.target ?? "";
    return comparable ? Math.max(...marks.map((each) => each.filter(Boolean).length)) : null;
  };
  const difference = (done) => signed(done.log_probability - state.done.log_probability);

  const nothing = (output) => !output && !hasInput(state); // nor on its way

  const showEdited = () => {
    const off = offOf(state);
    $("edited-title").textContent = t(isBase(state) ? "edited.base" : off.length ? "edited.off" : "edited.title",
      { names: off.join(", ") });
    $("edited").hidden = !edited(state) || nothing(state.edited);
    const { target, done } = state.edited ?? NOTHING;
    if (reads(state)) {
      const before = state.done?.answer ?? null;
      writeAnswer($("edited-translation"), drawEditedAnswer, { done }, before);
      $("edited-figures").textContent = done && before ? changed(t, done.answer, before) : "";
      return;
    }
    drawEditedAnswer(null);
    $("edited-translation").hidden = false;
    const apart = writeBeside($("edited-translation"), { target, done }, state.model);
    const step = looking(state, "edited") ? state.step : null;
    drawEdited({ tokens: target, step, chosen: chosenBy(state, target), given: state.given, whole: done !== null });
    if (!target.length) $("edited-figures").textContent = ""; // those of the sentence before stay only while it changes
    if (apart === null) return;
    const news = apart ? t("ablation.changed", { n: apart }) : t("ablation.same");
    const figures = { log_p: logarithm(done.log_probability), n: target.length, difference: difference(done) };
    $("edited-figures").textContent = `${news} ${t("edited.figures", figures)}`;
  };

  const showOther = () => {
    $("compare").hidden = !state.compare || nothing(state.other);
    if (!state.compare) return;
    $("compare-title").textContent = t("compare.title", { model: state.compare });
    const { target, done, given } = state.other ?? NOTHING;
    if (reads(state, state.compare)) {
      const figures = done && { n: state.other.source.length, ms: Math.round(done.milliseconds) };
      writeAnswer($("other-translation"), drawOtherAnswer, { done });
      $("other-figures").textContent = done ? t("reading.figures", figures) : "";
      return;
    }
    drawOtherAnswer(null);
    $("other-translation").hidden = false;
    const apart = writeBeside($("other-translation"), { target, done }, state.compare);
    drawOther({ tokens: target, step: looking(state, "other") ? state.step : null, given, whole: done !== null });
    if (!target.length) $("other-figures").textContent = "";
    if (!done) return;
    const { log_probability: log_p, milliseconds: ms } = done;
    const figures = [t("generation.figures", { log_p: logarithm(log_p), n: target.length, ms: Math.round(ms) })];
    if (apart !== null) figures.push(t("compare.difference", { difference: difference(done) }));
    $("other-figures").textContent = figures.join(" · ");
  };

  subscribe(["text", "picture", "models", "model", "edits", "off", "edited", "target", "done", "step", "side", "language"], showEdited);
  subscribe(["text", "picture", "models", "model", "compare", "other", "target", "done", "step", "side", "language"], showOther);
  subscribe(["edited"], () => {
    const { done } = state.edited ?? {};
    if (done) announce(`${$("edited-title").textContent}: ${done.text}`);
  });
  showEdited();
  showOther();
};
