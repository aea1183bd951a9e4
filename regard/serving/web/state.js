// What the page knows, in one place. Components read `store.state`, change it by `store.set(patch)` and are told
// by `store.subscribe`. What a person chose is kept in the address, so that a link shows the same thing again.

export const KINDS = ["encoder", "decoder", "cross"]; // of attention, as /models names them

export const initial = () => ({
  models: [], model: "", compare: "", text: "", pair: "", sentence: 0, beam: 1,
  picture: "", // what a model sees, by its name on the server
  prefix: [], edits: {},
  off: null, // what was added to the model and is off, by name, in the output that stands beside; null: all of it
  source: [], target: [], done: null, // the model as it is
  sentences: [], unknown: [], // of the text: the model reads one; of this: what it has no sub-words for
  given: 0, // tokens of the output that are the text itself: a language model goes on with it
  windows: 1, // in which a model that reads has read a long text
  edited: null, rescored: null, // with the edits: {target, done}; the original's output under them
  other: null, // the second model: {source, target, done}
  recalled: null, // of each token of the output, what it reminds the model of: [{p, alone, near}]
  step: null, side: "original",
  kind: "cross", head: null, view: "weights", colour: "linear", words: false, special: true, axis: "predicted",
  hover: null, locked: null, combine: "mean", difference: false,
  tab: "heads", theme: "auto", language: "en",
  figure: null, beside: null, neurons: null, listed: null, // what is drawn, so that it can be read out and exported
  busy: {}, error: null,
});

/** No output: what one model has said of a text, another of its own kind alone can have said. */
export const unsaid = { source: [], target: [], done: null, edited: null, rescored: null, recalled: null };

// --- the address: each key has a way to be written and one to be read; reading gives undefined for nonsense

const plain = { write: String, read: (text) => text };
const choice = (...values) => ({ write: String, read: (text) => values.find((value) => String(value) === text) });
const whole = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined);
const wholes = (text) => {
  const numbers = text === "" ? [] : text.split(",").map(whole);
  return numbers.includes(undefined) ? undefined : numbers;
};

const factors = {
  // encoder.layers.0.self_attention:3=0,1=0.5;decoder.layers...
  write: (edits) =>
    Object.entries(edits)
      .map(([name, heads]) => `${name}:${Object.entries(heads).map(([head, factor]) => `${head}=${factor}`).join(",")}`)
      .join(";"),
  read: (text) => {
    const edits = {};
    for (const part of text.split(";").filter(Boolean)) {
      const [name, heads] = part.split(":");
      if (!/^[a-z][\w.]*$/i.test(name) || !heads) return undefined; // no __proto__
      for (const pair of heads.split(",")) {
        const [head, factor] = pair.split("=");
        const value = Number(factor);
        if (whole(head) === undefined || !factor || !Number.isFinite(value)) return undefined;
        edits[name] = { ...(Object.hasOwn(edits, name) && edits[name]), [head]: value };
      }
    }
    return edits;
  },
};

const oneHead = {
  write: ({ name, head }) => `${name}:${head}`,
  read: (text) => {
    const [, name, head] = text.match(/^([a-z][\w.]*):(\d{1,4})$/i) ?? [];
    return name === undefined ? undefined : { name, head: Number(head) };
  },
};

const selection = {
  write: ({ rows, columns }) => `${rows.join(",")};${columns.join(",")}`,
  read: (text) => {
    const [rows, columns] = text.split(";").map(wholes);
    return rows && columns ? { rows, columns } : undefined;
  },
};

const names = {
  write: (all) => all.join(","),
  read: (text) => (/^[\w,]*$/.test(text) ? text.split(",").filter(Boolean) : undefined),
};

const written = {
  model: plain, compare: plain, text: plain, pair: plain,
  picture: { write: String, read: (text) => (/^[0-9a-f]{32}$/.test(text) ? text : undefined) },
  sentence: { write: String, read: whole },
  beam: choice(1, 4),
  prefix: { write: (ids) => ids.join(","), read: wholes },
  edits: factors,
  off: names,
  step: { write: String, read: whole },
  side: choice("original", "edited", "other", "both"),
  kind: choice(...KINDS),
  head: oneHead,
  view: choice("weights", "norm", "rollout", "neuron"),
  colour: choice("linear", "log"),
  words: choice(false, true), special: choice(false, true),
  axis: choice("predicted", "read"),
  locked: selection,
  combine: choice("mean", "sum"),
  difference: choice(false, true),
  tab: choice("heads", "atlas"), theme: choice("auto", "light", "dark"), language: choice("en", "zh"),
};

const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/** The state as the part of an address after `#`; what is as at the beginning is left out. */
export const encode = (state, defaults = initial()) => {
  const query = new URLSearchParams();
  for (const [key, { write }] of Object.entries(written)) {
    if (state[key] !== null && !same(state[key], defaults[key])) query.set(key, write(state[key]));
  }
  return query.toString();
};

/** Every key that an address can hold: as it says, or as at the beginning where it says nothing or nonsense. */
export const decode = (hash, defaults = initial()) => {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const read = (key) => (query.has(key) ? written[key].read(query.get(key)) : undefined);
  return Object.fromEntries(Object.keys(written).map((key) => [key, read(key) ?? defaults[key]]));
};

// --- the store

const soon = (callback) =>
  // A hidden tab draws no frames, but its state must not stand still.
  typeof document === "undefined" || document.hidden ? setTimeout(callback, 16) : requestAnimationFrame(callback);

/** A store; callbacks run once a frame, however often `set` was called. `onchange` hears of every such frame. */
export const createStore = (state, onchange = () => {}) => {
  const listeners = new Set();
  let changed = new Set();
  let waiting = false;

  const flush = () => {
    const keys = changed;
    changed = new Set();
    waiting = false;
    onchange(keys);
    for (const listener of [...listeners]) {
      if (!listener.keys.some((key) => keys.has(key))) continue;
      try {
        listener.callback(state, keys);
      } catch (error) {
        console.error(error); // one broken view must not silence the others
      }
    }
  };

  return {
    state,
    set(patch) {
      for (const [key, value] of Object.entries(patch)) {
        if (state[key] === value) continue;
        state[key] = value;
        changed.add(key);
      }
      if (changed.size && !waiting) {
        waiting = true;
        soon(flush);
      }
    },
    subscribe(keys, callback) {
      const listener = { keys, callback };
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
};

const inAddress = () => {
  const defaults = { ...initial(), language: navigator.language?.startsWith("zh") ? "zh" : "en" };
  let timer = 0;
  const write = () => history.replaceState(null, "", `#${encode(store.state, defaults)}`);
  const store = createStore({ ...defaults, ...decode(location.hash, defaults) }, (keys) => {
    if (!Object.keys(written).some((key) => keys.has(key))) return;
    clearTimeout(timer); // browsers refuse hundreds of addresses a minute: a slider would ask for them
    timer = setTimeout(write, 150);
  });
  addEventListener("pagehide", write);
  addEventListener("hashchange", () => {
    const asked = decode(location.hash, defaults);
    const other = Object.fromEntries(Object.entries(asked).filter(([key, value]) => !same(value, store.state[key])));
    store.set({ ...("model" in other ? unsaid : {}), ...other });
  });
  return store;
};

export const store = typeof location === "undefined" ? createStore(initial()) : inAddress();

// --- questions about a state that several components ask

export const modelOf = (state, id = state.model) => state.models.find((model) => model.id === id);

/** An example as it is typed: a text, and what stands beside it. */
export const exampleOf = (example = "") => {
  const [text, pair = ""] = [example].flat();
  return { text, pair };
};

/** Whether a model reads a text and says something of it, and writes none. */
export const reads = (state, id = state.model) => modelOf(state, id)?.reads ?? false;

/** Whether a model sees a picture. */
export const sees = (state, id = state.model) => modelOf(state, id)?.sees ?? false;

/** Whether an attention is one over the times of a video. */
export const overTime = ({ name }) => /\btime(_encoder)?\b/.test(name);

/** Whether there is what a model can work on. */
export const hasInput = (state) => (sees(state) ? state.picture : state.text.trim()) !== "";

/** The ids of a sentence by the names of its model's inputs; what a language model reads and writes is one of them. */
export const inputsOf = (model, source, target, picture = "") => {
  const ids = (tokens) => tokens.map(({ id }) => id);
  const names = model?.inputs ?? ["source", "target"];
  if (model?.asks) return { picture, source: ids(source), target: ids(target) };
  if (model?.sees) return names.length > 1 ? { picture, [names[1]]: ids(model.reads ? source : target) } : { picture };
  if (model?.reads) return { [names[0]]: ids(source), segments: source.map(({ segment }) => segment) };
  return names.length > 1 ? { source: ids(source), target: ids(target) } : { [names[0]]: ids([...source, ...target]) };
};

/** What was added to the model, change by change: [{name, says, parameters, parts}]; of most models nothing. */
export const addedTo = (state, id) => modelOf(state, id)?.changes ?? [];

/** What of it is off in the output that stands beside the model's own: all, unless somebody chose. */
export const offOf = (state) =>
  addedTo(state).map(({ name }) => name).filter((name) => state.off?.includes(name) ?? true);

/** Whether that output is the base's: nothing acts that was added, and heads are as they were. */
export const isBase = (state) =>
  Object.keys(state.edits).length === 0 && addedTo(state).length > 0 && offOf(state).length === addedTo(state).length;

export const edited = (state) => Object.keys(state.edits).length > 0 || offOf(state).length > 0;
export const factorOf = (edits, name, head) => edits[name]?.[head] ?? 1;

/** Edits with one head's factor changed: 1 is the head as it is, so it is left out. */
export const withFactor = (edits, name, head, factor) => {
  const { [head]: _, ...heads } = edits[name] ?? {};
  if (factor !== 1) heads[head] = factor;
  const { [name]: __, ...rest } = edits;
  return Object.keys(heads).length ? { ...rest, [name]: heads } : rest;
};

/** The same while a slider moves: one that passes 1 keeps its place among the edits, or what is shown would jump. */
export const sliding = (edits, name, head, factor) => ({ ...edits, [name]: { ...edits[name], [head]: factor } });

/** Edits with one head switched: a silent one speaks as before, any other falls silent. */
export const switched = (edits, name, head) => withFactor(edits, name, head, factorOf(edits, name, head) === 0 ? 1 : 0);

/** Whose maps stand beside the original's where both are wanted: with the edits if there are any, else by the second model. */
export const partner = (state) =>
  state.side !== "both" ? null : state.edited ? "edited" : state.other ? "other" : null;

/** Whether the maps of a side are among those that are looked at. */
export const looking = (state, side) =>
  state.side === side || (state.side === "both" && (side === "original" || side === partner(state)));

/** The side to look at when a token of `side` is asked for: where both are seen, they stay. */
export const towards = (state, side) => (looking(state, side) ? state.side : side);

/** The edits that act on the heads that are shown; null where the heads are a second model's, which has none. */
export const editsShown = (state) => (shown(state).side === "other" ? null : state.edits);

/** Whose tokens and maps are looked at: {side, model, edits, off, source, target, done, picture}. */
export const shown = (state) => {
  const { side, model, source, target, done, edits, compare, picture } = state;
  if (side === "edited" && state.edited) return { side, model, edits, off: offOf(state), source, picture, ...state.edited };
  if (side === "other" && state.other) return { side, model: compare, edits: {}, off: [], picture, ...state.other };
  return { side: "original", model, edits: {}, off: [], source, target, done, picture };
};
