// What is looked at: the sentence of the chosen side, and the maps of its heads, each fetched once.

import { headLabel } from "./i18n.js";
import { patches, urlOf } from "./overlay.js";
import { counterpart } from "./pairs.js";
import { inputsOf, KINDS, modelOf, partner, shown } from "./state.js";

const BUDGET = 96 * 2 ** 20; // bytes of maps kept, the longest unused dropped first
const kept = new Map(); // key -> {promise, signal, bytes}, in order of use; no bytes yet while it is on its way
const atlases = new Map(); // model -> promise of its atlas, or of null

/** The model of the side that is shown, as /models describes it; null if there is none that works. */
export const modelShown = (state) => {
  const model = modelOf(state, shown(state).model);
  return model && !model.error ? model : null;
};

/** The kinds of attention that the shown model has: a recurrent one, say, reads the source and nothing else. */
export const kindsOf = (state) =>
  KINDS.filter((kind) => modelShown(state)?.attentions.some((attention) => attention.kind === kind));

/** The attentions of the shown model that are of the chosen kind, in the order of their layers. */
export const attentionsOf = (state) =>
  (modelShown(state)?.attentions ?? []).filter((attention) => attention.kind === state.kind);

/** Whether the scores of the focused head are products of its queries and keys: only then is there a neuron view. */
export const dotsIn = (state) => attentionsOf(state).find(({ name }) => name === state.head?.name)?.dots ?? false;

/**
 * {model, source, target, edits, off, ids, key} of the side that is shown; null while there is nothing whole to look at. Of a
 * language model the source is what its text begins with, and what it writes goes by the name of its input as well; of a
 * model that reads it is all there is.
 */
export const sentence = (state) => {
  const { model, edits, off, source, target, done, picture } = shown(state);
  const { reads: read, sees, asks, grid } = modelShown(state) ?? {};
  if (!modelShown(state) || !done || !source?.length || !(read || target?.length)) return null;
  const inputs = inputsOf(modelShown(state), source, target, picture);
  const [names, ids] = [Object.keys(inputs), Object.values(inputs)];
  if (asks) {
    const read = [...source, ...target.slice(0, -1)];
    const before = { ...grid, tokens: source.findIndex(({ patch }) => patch) };
    const along = { pixels: patches(grid), read, start: source.at(-1), key: JSON.stringify([model, ids, edits, off]) };
    const words = source.filter(({ patch }) => !patch);
    return { model, edits, off, source: words, target, ids, names, picture, grids: { pixels: grid, read: before }, ...along };
  }
  if (sees) {
    const [first, second] = modelShown(state).inputs;
    const along = { [first]: patches(grid), ...(second ? { [second]: read ? source : target } : {}) };
    const seen = { picture, grids: { [first]: grid }, names, shares: done.shares, key: JSON.stringify([model, ids, edits, off]) };
    return { model, edits, off, source: read && second ? source : [], target, ids, ...along, ...seen };
  }
  const alone = names[0] === "source" ? {} : { names, [names[0]]: read ? source : target, start: source[0] };
  return { model, edits, off, source, target, ids, ...alone, key: JSON.stringify([model, ids, edits, off]) };
};

/**
 * The head whose map stands beside that of `head` of an attention: {side, name, head, same, about}, where `about` is null
 * while its sentence is not whole; {side} alone if that model has no such heads; null if only one map is wanted.
 */
export const besideOf = (state, attention, head) => {
  const side = partner(state);
  if (!side) return null;
  const there = { ...state, side };
  return { side, about: sentence(there), ...counterpart(modelShown(there)?.attentions ?? [], attention, head) };
};

/**
 * The picture whose patches are the keys of an attention: {url, grid, shares, itself}, where `itself` says that they look,
 * too; null where its keys are tokens.
 */
export const pictureOf = ({ model, picture, grids, shares }, { queries, keys }) =>
  picture && grids[keys.input]
    ? { url: urlOf(picture, model), grid: grids[keys.input], shares, itself: queries.input === keys.input }
    : null;

/** What every request about a sentence says. */
export const body = ({ model, ids, names = ["source", "target"], edits, off }) =>
  ({ model, ...Object.fromEntries(names.map((name, i) => [name, ids[i]])), edits, off });

const keep = (key, signal, make) => {
  const known = kept.get(key);
  if (known && (known.bytes || !known.signal.aborted)) {
    kept.delete(key);
    kept.set(key, known); // now the last used
    return known.promise;
  }
  const entry = { bytes: 0, signal, promise: null };
  kept.set(key, entry);
  entry.promise = make().then(
    (map) => {
      entry.bytes = map.data.byteLength;
      let total = [...kept.values()].reduce((sum, { bytes }) => sum + bytes, 0);
      for (const [old, { bytes }] of kept) {
        if (total <= BUDGET || old === key) break;
        kept.delete(old);
        total -= bytes;
      }
      return map;
    },
    (error) => {
      if (kept.get(key) === entry) kept.delete(key); // ask again next time
      throw error;
    },
  );
  return entry.promise;
};

/** The maps of all heads of one attention in bytes, small enough for thumbnails: {data, shape: [H, T, S], scale}. */
export const layerMaps = (api, about, name, view, pool, signal) =>
  keep(JSON.stringify(["layer", about.key, name, view, pool]), signal, async () => {
    const request = { ...body(about), view, attentions: [{ name, heads: null }], pool, dtype: "u8" };
    return (await api.maps(request, signal))[0];
  });

/** The exact map of one head: {data: Float32Array, shape: [T, S]}. */
export const headMap = (api, about, name, head, view, signal) =>
  keep(JSON.stringify(["head", about.key, name, head, view]), signal, async () => {
    const request = { ...body(about), view, attentions: [{ name, heads: [head] }], pool: 0, dtype: "f32" };
    const [{ data, shape }] = await api.maps(request, signal);
    return { data, shape: shape.slice(1) };
  });

/** The atlas of a model, or null if it has none. */
export const atlasOf = (api, model) => {
  if (!atlases.has(model.id)) {
    const none = () => null;
    atlases.set(model.id, model.atlas ? api.atlas(model.id).catch(none) : Promise.resolve(null));
  }
  return atlases.get(model.id);
};

/** Whether there is a roll-out of the chosen kind: it goes through an encoder alone. */
export const rollsOut = ({ kind }) => kind === "encoder";

/** Whether what is chosen is no attention, but made of what the model says: it has no heads to switch, and one view. */
export const derived = (state) => (state.models ? attentionsOf(state)[0]?.derived : false) ?? false;

/** The view whose maps are shown: the neuron view adds to the weights. */
export const viewShown = (state) =>
  derived(state) || state.view === "neuron" || (state.view === "rollout" && !rollsOut(state)) ? "weights" : state.view;

/** A role in the page's language: "positional +1" names its offset; one that the page does not know stays as it is. */
export const roleText = (t, role) => {
  const [name, offset] = role.startsWith("positional ") ? role.split(" ") : [role];
  const text = t(`role.${name}`, { offset: offset?.replace("-", "−") });
  return text.startsWith("role.") ? role : text;
};

/** What a map is of: "encoder 2 · head 3", or the layer that a roll-out ends in. */
export const titleOf = (t, state, { name, head }) => {
  const model = modelShown(state);
  if (viewShown(state) !== "rollout") return headLabel(model, name, head);
  return t("focus.rollout", { n: model?.attentions.find((each) => each.name === name)?.layer });
};
