// What is asked of the server when: a translation as it is, one with the edits, one by the second model.

import { edited, hasInput, inputsOf, modelOf, offOf, reads, shown } from "./state.js";
import { debounced } from "./dom.js";

const TYPING = 150; // ms of rest before a half-written sentence is sent

export const start = (store, { api, fail }) => {
  const { state, set, subscribe } = store;

  // A lane has one request under way. A newer one aborts it, here and on the server; a patient one, as of a slider that
  // moves on, lets it finish, so that something is seen all the while. When nothing is wanted, or the answer is an
  // error, the lane's part of the state is `none`.
  const lane = (name, none, wanted, work) => {
    let control = new AbortController();
    let running = false;
    let again = false;
    const begin = debounced(async () => {
      const mine = (control = new AbortController());
      again = false;
      running = wanted();
      if (!running) return set({ ...none, busy: { ...state.busy, [name]: false } });
      set({ busy: { ...state.busy, [name]: true } });
      try {
        await work(mine.signal);
      } catch (error) {
        if (!mine.signal.aborted) fail(error, set(none));
      }
      if (control !== mine || mine.signal.aborted) return undefined;
      running = false;
      return again ? begin(0) : set({ busy: { ...state.busy, [name]: false } });
    });
    return (wait, patient) => {
      again = patient && running;
      if (again) return;
      control.abort();
      running = false;
      begin(wait);
    };
  };

  // The old output stays until the first token of the new one is there: nothing blinks while one types.
  const translate = (body, signal, put) => {
    let source = [];
    let about = {};
    const target = [];
    const { sentence, beam } = state;
    const model = modelOf(state, body.model);
    const text = model?.sees && !model.second && !model.asks ? "" : state.text;
    const pair = model?.second ? state.pair : "";
    const seen = model?.sees ? { picture: state.picture } : {};
    return api.translate({ text, pair, sentence, beam, ...seen, ...body }, (line) => {
      const { kind, picture, ...rest } = line; // of which picture it is, the state knows
      if (signal.aborted) return;
      if (kind === "source") ({ tokens: source, ...about } = { given: 0, windows: 1, ...rest });
      else if (kind === "token") put({ source, target: [...target, rest], done: null, ...about }, target.push(rest));
      else if (kind === "done") put({ source, target: [...target], done: rest, ...about });
    }, signal);
  };

  const there = () => state.model !== "" && hasInput(state);
  const lanes = {
    original: lane("original", { source: [], target: [], done: null, sentences: [], unknown: [], given: 0, windows: 1 }, there, (signal) =>
      translate({ model: state.model, prefix: state.prefix }, signal, set)),
    edited: lane("edited", { edited: null }, () => there() && edited(state), (signal) => {
      const { model, prefix, edits } = state;
      return translate({ model, prefix, edits, off: offOf(state) }, signal, ({ target, done }) => set({ edited: { target, done } }));
    }),
    rescored: lane("rescored", { rescored: null }, () => there() && edited(state) && !reads(state), async (signal) => {
      const { model, edits, source, target, done } = state;
      if (!done) return; // comes again when the output is whole
      const { tokens } = await api.score({ model, edits, off: offOf(state), ...inputsOf(modelOf(state), source, target, state.picture) }, signal);
      set({ rescored: tokens });
    }),
    recalled: lane("recalled", { recalled: null }, () => there() && Boolean(modelOf(state)?.remembers), async (signal) => {
      const { model, source, target, done } = state;
      if (!done) return set({ recalled: null });
      const { steps } = await api.recall({ model, ...inputsOf(modelOf(state), source, target) }, signal);
      return set({ recalled: steps });
    }),
    other: lane("other", { other: null }, () => there() && state.compare !== "", (signal) =>
      translate({ model: state.compare }, signal, (other) => set({ other }))),
  };

  const watch = (name, keys) =>
    subscribe(keys, (_, changed) => {
      if (!state.models.length) return; // the address spoke first
      const patient = changed.has("edits") && !keys.some((key) => key !== "edits" && changed.has(key));
      lanes[name]((changed.has("text") || changed.has("pair")) && state.done ? TYPING : 0, patient);
    });
  watch("original", ["models", "model", "text", "pair", "picture", "sentence", "beam", "prefix"]);
  watch("edited", ["models", "model", "text", "pair", "picture", "sentence", "beam", "prefix", "edits", "off"]);
  watch("rescored", ["done", "edits", "off"]);
  watch("recalled", ["models", "model", "done"]);
  watch("other", ["models", "compare", "text", "pair", "picture", "sentence", "beam"]);

  // What a person asks next makes an old complaint stale; the first load may have one of its own.
  subscribe(["text", "pair", "picture", "sentence", "model", "compare", "beam", "prefix", "edits", "off"], (_, changed) => {
    if (!changed.has("models")) set({ error: null });
  });
  // Without edits there is no edited side to look at, nor another without a second model.
  subscribe(["models", "edits", "off", "compare", "edited", "other"], () => {
    if (!state.models.length) return; // the address spoke first
    const there = { original: true, edited: edited(state), other: state.compare !== "" };
    there.both = there.edited || there.other;
    if (!there[state.side]) set({ side: shown(state).side });
  });
};
