// The focused head: a heat map and lines that move together, the exact number of what is pointed at, and the views.

import { RAMPS, scale, shade, ticks } from "./colour.js";
import { beside, nameOf, texts as besideTexts } from "./beside.js";
import { h } from "./dom.js";
import { faithfulness } from "./faithfulness.js";
import { PADDING, fitTwo, fitsBeside } from "./geometry.js";
import { heatmap } from "./heatmap.js";
import { sideText } from "./i18n.js";
import { lines } from "./lines.js";
import { axes, digits, figure, readout, shownAt, topOf } from "./maps.js";
import { gallery, overlay } from "./overlay.js";
import {
  atlasOf, attentionsOf, besideOf, derived, headMap, kindsOf, modelShown, pictureOf, roleText, sentence, titleOf, viewShown,
} from "./sight.js";
import { editsShown, factorOf, partner, sees, shown, sliding, withFactor } from "./state.js";
import { tools } from "./tools.js";
import { texts as own } from "./focus-texts.js";

export const texts = { ...own, ...besideTexts };

const GAP = 16; // px between the two pictures

export function mount(root, store, services) {
  const { api, t, announce, fail } = services;
  const { state } = store;
  let controller = new AbortController();
  const title = h("h2", { class: "focus-title" });
  const slider = h("input", { type: "range", min: 0, max: 2, step: 0.05 });
  const factor = h("output");
  const scaling = h("div", { class: "scaling" }, h("label", {}, h("span"), slider), factor);
  const switches = h("div", { class: "tools" });
  const says = h("p", { class: "readout" });
  const pictures = h("div", { class: "pictures" });
  const name = h("h3"); // of the first map, where there are two
  const left = h("div", { class: "picture" }, name);
  const right = h("div", { class: "picture" });
  const legend = h("div", { class: "legend" });
  const notes = h("p", { class: "note" });
  const faithful = h("p", { class: "note faithful" });
  pictures.append(left, right);
  root.classList.add("focus");
  const above = h("div", { class: "focus-head" }, h("div", { class: "titled" }, title, scaling), switches);
  root.append(above, says, pictures, legend, notes, faithful);

  // --- what is chosen: hover in figure cells, locked in token positions, so that it outlives the switches

  const point = (to) => {
    const was = state.hover;
    const nothing = !to || (to.row == null && to.column == null);
    if (nothing ? was : to.row !== was?.row || to.column !== was?.column) store.set({ hover: nothing ? null : to });
  };
  const pick = ({ row, column }, adds) => {
    const { rows, columns } = state.figure;
    const now = state.locked ?? { rows: [], columns: [] };
    const positions = (shown, i) => (i == null ? [] : shown[i].members);
    if (row == null && column == null) return store.set({ locked: null });
    const [r, c] = [positions(rows, row), positions(columns, column)];
    const flip = (old, more) =>
      more.length && more.every((m) => old.includes(m))
        ? old.filter((m) => !more.includes(m))
        : [...new Set([...old, ...more])].sort((a, b) => a - b);
    // shift adds rows (or, at a column's label, columns); a plain click on what is locked alone unlocks it
    const next = adds
      ? row == null ? { ...now, columns: flip(now.columns, c) } : { rows: flip(now.rows, r), columns: [] }
      : { rows: r, columns: c };
    const same = JSON.stringify(next) === JSON.stringify(state.locked);
    store.set({ locked: same || next.rows.length + next.columns.length === 0 ? null : next });
  };
  const heat = heatmap(left, { point, pick });
  const links = lines(right, { point, pick });
  // Over a picture: what is chosen, beside it the map, or a picture for each word, or the same of the other side.
  const boxes = [h("div", { class: "picture" }, h("h3")), h("div", { class: "picture" }, h("h3"))];
  const told = () => sayIt(mark());
  const overs = boxes.map((box) => overlay(box, { point, pick, told }));
  const words = h("div", { class: "picture" });
  const shots = gallery(words, (r) => {
    const { members } = state.figure.rows[r];
    store.set(state.figure.steps ? { step: members[0], locked: null } : { locked: { rows: members, columns: [] } });
  });

  const chosen = () => {
    const { figure: shown, locked, step } = state;
    const { row = null, column = null } = state.hover ?? {};
    // a new sentence may be shorter than what was pointed at
    const hover = row < shown.rows.length && column < shown.columns.length ? state.hover : null;
    const rows = shownAt(shown.rows, locked?.rows ?? []);
    const columns = shownAt(shown.columns, locked?.columns ?? []);
    const stands = modelShown(state)?.task === "match" && !shown.picture; // the last place of a text, for all of it
    const at = stands ? [shown.rows.length - 1] : step == null || !shown.steps ? [] : shownAt(shown.rows, [step]);
    return { rows, columns, step: at, hover, combine: state.combine };
  };

  const mark = () => {
    if (!state.figure) return;
    const now = chosen();
    if (state.figure.picture) {
      const [most] = overs.map((over) => over.mark(now));
      drawLegend({ ...scale(state.colour, most.value, shade()), tint: "over" });
      shots.mark(now.hover?.row == null ? (now.rows.length ? now.rows : now.step) : [now.hover.row]);
      if (state.figure.picture.itself && !state.beside) heat.mark(now);
      const seen = readout(state.figure, now) ?? { key: "focus.whole", values: { column: most.text }, value: most.value };
      tell(says, state.figure, seen);
      return seen;
    }
    heat.mark(now);
    if (state.beside) second.mark(now);
    else markLines(now);
    const said = readout(state.figure, now);
    tell(says, state.figure, said);
    return said;
  };
  const markLines = (now) => {
    const locked = now.rows.length + now.columns.length > 0;
    const { row = null, column = null } = (!locked && now.hover) || {};
    const pointed = { rows: row == null ? now.step : [row], columns: column == null ? [] : [column] };
    links.mark(locked ? now : { ...now, ...pointed });
  };
  const spell = (values) => ({
    ...values,
    how: t(`combine.${state.combine}`),
    role: t(`axis.${state.figure.role}.doing`),
  });
  const tell = (line, { side }, said) =>
    line.replaceChildren(
      ...(state.beside ? [h("small", {}, sideText(t, state, side))] : []),
      ...(said
        ? [h("span", { dir: "auto" }, t(said.key, spell(said.values))), h("b", {}, digits(said.value))]
        : line === says ? [h("span", { class: "hint" }, t("focus.hint"))] : []),
    );
  const second = beside(store, t, { point, pick, tell, remark: () => mark() });

  /** One map and its lines, or two maps; what is not shown is not there. */
  const arrange = () => {
    const two = Boolean(state.beside);
    const { picture } = state.figure;
    if (picture) {
      const next = two ? boxes[1] : picture.itself ? left : words;
      if (pictures.firstElementChild !== boxes[0] || pictures.lastElementChild !== next) pictures.replaceChildren(boxes[0], next);
      second.about.remove();
      name.hidden = true;
      [state.figure, state.beside].forEach((each, i) => {
        boxes[i].firstElementChild.hidden = !two;
        if (two) boxes[i].firstElementChild.textContent = nameOf(t, state, each);
      });
      return;
    }
    if (pictures.firstElementChild !== left) pictures.replaceChildren(left, right);
    const wanted = two ? second.box : right;
    if (pictures.lastElementChild !== wanted) pictures.replaceChildren(left, wanted);
    if (!two) second.about.remove();
    else if (!second.about.isConnected) says.after(second.about);
    name.hidden = !two;
    if (two) name.textContent = nameOf(t, state, state.figure);
  };

  // --- what is shown

  const drawLegend = (colours) => {
    const strip = h("canvas", { "aria-hidden": "true" });
    strip.width = 256;
    strip.height = 1;
    strip.getContext("2d").putImageData(new ImageData(RAMPS[colours.tint], 256, 1), 0, 0);
    const marks = ticks(colours).map((value) => h("span", {}, String(Number(value.toPrecision(2)))));
    legend.replaceChildren(strip, h("div", { class: "ticks" }, ...marks));
    legend.setAttribute("aria-label", t("focus.legend"));
  };

  const draw = () => {
    const { figure: shown, beside: other } = state;
    root.hidden = !shown;
    if (!shown || state.tab !== "heads") return;
    arrange();
    const colours = scale(state.colour, topOf(state), shade());
    const titles = { rows: t(`axis.${shown.role}`), columns: t("axis.keys") };
    const half = (pictures.clientWidth - GAP) / 2 - 2 * PADDING;
    if (shown.picture) return drawOver(colours, titles, half);
    pictures.classList.toggle("beside", other ? fitTwo(shown, other, half) : fitsBeside(shown, half));
    heat.draw(shown, colours, titles);
    if (other) second.draw(colours, titles);
    else links.draw(shown, colours, titles);
    const head = other ? `${title.textContent} (${name.textContent})` : title.textContent;
    heat.frame.setAttribute(
      "aria-label",
      t("focus.map", { head, rows: shown.rows.length, columns: shown.columns.length }),
    );
    drawLegend(colours);
    notes.textContent = [
      shown.normalised && t("focus.normalised"),
      state.words && t("focus.merged"),
      !other && partner(state) && t("beside.none"),
      state.colour === "log" && t("focus.floor", { floor: Number(colours.floor.toPrecision(2)) }),
    ].filter(Boolean).join(" ");
    mark();
  };

  /** The focused head over the picture. */
  const drawOver = (colours, titles, half) => {
    const { figure: shown, beside: other } = state;
    const log = state.colour === "log";
    const wide = half >= 300;
    pictures.classList.toggle("beside", wide);
    [shown, other].forEach((each, i) => each && overs[i].draw(each, wide ? half : pictures.clientWidth - 2 * PADDING, log));
    const { rows, columns } = shown.picture.grid;
    for (const { frame } of overs) frame.setAttribute("aria-label", t("focus.over", { head: title.textContent, rows, columns }));
    if (!other && shown.picture.itself) heat.draw(shown, colours, titles);
    else if (!other) shots.draw(shown, log);
    notes.textContent = [
      t(shown.picture.itself ? "focus.seen" : "focus.seen.words"),
      shown.normalised && t("focus.normalised"),
      state.words && !shown.picture.itself && t("focus.merged"),
    ].filter(Boolean).join(" ");
    mark();
    return undefined;
  };

  /** A head of the chosen kind is always in focus: the same layer and number as before where there is one. */
  const ensureHead = () => {
    const attentions = attentionsOf(state);
    if (!attentions.length) {
      // A model of another family may have no heads of this kind; of two towers, the one that sees comes first.
      const kinds = kindsOf(state);
      const first = sees(state) && !kinds.includes("cross") && !modelShown(state)?.asks;
      const kind = first ? kinds[0] : kinds.at(-1);
      return store.set(kind ? { kind } : { head: null });
    }
    if (attentions.some(({ name }) => name === state.head?.name)) return undefined;
    const before = state.models.flatMap((model) => model.attentions ?? []).find(({ name }) => name === state.head?.name);
    const layer = before?.layer ?? attentions.length - 1;
    const { name, heads } = attentions[Math.min(layer, attentions.length - 1)];
    return store.set({ head: { name, head: Math.min(state.head?.head ?? 0, heads - 1) } });
  };

  const load = async () => {
    ensureHead();
    const about = sentence(state);
    const attention = attentionsOf(state).find(({ name }) => name === state.head?.name);
    if (!about) {
      if (!state.source.length) store.set({ figure: null, beside: null });
      return; // still streaming: keep the last picture
    }
    if (!attention && !kindsOf(state).length) store.set({ figure: null, beside: null }); // nothing to see in it
    if (!attention) return;
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    const view = viewShown(state);
    const head = view === "rollout" ? 0 : Math.min(state.head.head, attention.heads - 1);
    const other = besideOf(state, attention, head);
    if (other && !other.about) return; // the two change together
    const { words, special, kind, axis } = state;
    const look = async (seen) => {
      const raw = await headMap(api, seen.about, seen.name, seen.head, view, signal);
      const ends = axes(attention, seen.about, axis);
      const picture = pictureOf(seen.about, attention);
      return { ...figure(raw, ends, { words, special, view, picture }), ...seen, kind, view, words };
    };
    const first = { side: shown(state).side, about, name: attention.name, head };
    try {
      const [one, two] = await Promise.all([look(first), other?.name ? look(other) : null]);
      if (!signal.aborted) store.set({ figure: one, beside: two });
    } catch (error) {
      fail(error);
    }
  };

  const showTitle = () => {
    title.textContent = state.head ? titleOf(t, state, state.head) : "";
    showRole();
  };
  const showRole = async () => {
    const { head } = state;
    const model = modelShown(state);
    const found = head && model && viewShown(state) !== "rollout" && (await atlasOf(api, model));
    if (head !== state.head || model !== modelShown(state)) return;
    const role = found?.heads?.find((each) => each.name === head.name && each.head === head.head)?.role;
    title.dataset.note = role ? roleText(t, role) : "";
  };

  // --- how loud the head is: the same number as in the list of edits
  const showFactor = () => {
    const { head } = state;
    const edits = editsShown(state);
    scaling.hidden = !head || !edits || viewShown(state) === "rollout" || derived(state);
    if (scaling.hidden) return;
    const at = factorOf(edits, head.name, head.head);
    slider.value = at;
    slider.setAttribute("aria-label", t("ablation.scale", { head: titleOf(t, state, head) }));
    scaling.querySelector("span").textContent = t("focus.factor");
    scaling.classList.toggle("touched", at !== 1);
    factor.textContent = `×${at.toFixed(2)}`;
  };
  slider.addEventListener("input", () => {
    const { head: { name, head }, edits } = state;
    store.set({ edits: sliding(edits, name, head, slider.valueAsNumber) });
  });
  slider.addEventListener("blur", () => {
    const { head, edits } = state;
    if (head && edits[head.name]?.[head.head] === 1) store.set({ edits: withFactor(edits, head.name, head.head, 1) });
  });

  const sayIt = (said) => said && announce(`${t(said.key, spell(said.values))}: ${digits(said.value)}`);

  /** The keys of one map: `seen()` is its figure, `hover()` what is pointed at in it, `mark()` marks and reads it. */
  const steer = ({ seen, hover, point: to, pick: take, mark: read }) => (event) => {
    if (!seen()) return;
    const { rows, columns } = seen();
    const { row, column } = hover() ?? {};
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) {
      const step = (i, d, n) => Math.min(n - 1, Math.max(0, i == null ? 0 : i + d));
      to({ row: step(row, by[0], rows.length), column: step(column, by[1], columns.length) });
      sayIt(read());
    } else if (event.key === "Enter" && hover()) take(hover(), event.shiftKey);
    else if (event.key === "Escape" && (state.locked || hover())) {
      to(null);
      store.set({ locked: null, hover: null });
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the arrows mean the map here, not the scrubber
  };
  const first = { seen: () => state.figure, hover: () => state.hover, point, pick, mark };
  const other = { seen: () => state.beside, hover: second.hover, point: second.here, pick: second.choose };
  heat.frame.addEventListener("keydown", steer(first));
  second.frame.addEventListener("keydown", steer({ ...other, mark: () => second.mark(chosen()) }));

  root.hidden = true; // until there is something to look at
  tools(switches, store, services);
  faithfulness(faithful, store, services);
  const sources = ["models", "model", "compare", "side", "done", "edited", "other", "source"];
  store.subscribe([...sources, "kind", "head", "view", "words", "special", "axis"], load);
  store.subscribe([...sources, "kind", "head", "view", "language"], showTitle);
  store.subscribe([...sources, "kind", "head", "view", "edits", "language"], showFactor);
  store.subscribe(["figure", "beside", "colour", "theme", "tab", "language", "difference"], draw);
  store.subscribe(["hover", "locked", "step", "combine"], mark);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Only the width matters: drawing changes the height, and must not call itself.
  let wide = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - wide) < 1) return;
    wide = contentRect.width;
    draw();
  }).observe(pictures);
}
