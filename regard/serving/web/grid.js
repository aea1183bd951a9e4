// All heads of one kind: a row for each layer, a thumbnail for each head; layers are fetched as they come into sight.

import { scale, shade } from "./colour.js";
import { h } from "./dom.js";
import { choice } from "./elements.js";
import { axes, figure, labels, paint, reduce, top } from "./maps.js";
import { lay, overOf } from "./overlay.js";
import {
  atlasOf, attentionsOf, kindsOf, layerMaps, modelShown, pictureOf, roleText, sentence, viewShown,
} from "./sight.js";
import { editsShown, hasInput, overTime, shown, switched } from "./state.js";

const PATCHES = 700; // of a picture, up to which they come whole
const WHOLE = 128; // up to so many tokens thumbnails come whole and follow the switches; beyond, pooled by the server
const POOL = 64;

export const texts = {
  "grid.kind": ["Which attention", "哪种注意力"], "grid.encoder": ["Encoder", "编码器"], "grid.decoder": ["Decoder", "解码器"],
  "grid.cross": ["Cross", "交叉"], "grid.encoder.title": ["The source reads itself", "源文读自身"],
  "grid.decoder.title": ["The output reads itself, up to here", "译文读自身（到此为止）"],
  "grid.cross.title": ["The output reads the source", "译文读源文"],
  "grid.label": ["Heads: one row for each layer", "注意力头：每层一行"], "grid.layer": ["layer {n}", "第 {n} 层"],
  "grid.time": ["time {n}", "时间 {n}"],
  "grid.cell": ["layer {layer}, head {head}", "第 {layer} 层，第 {head} 头"], "grid.off": ["silenced", "已静音"],
  "grid.scaled": ["times {factor}", "乘以 {factor}"],
  "grid.switch": ["Silence head {head} of layer {layer}", "静音第 {layer} 层第 {head} 头"],
  "grid.free": ["Free head {head} of layer {layer}", "恢复第 {layer} 层第 {head} 头"],
  "grid.pooled": ["Long text: thumbnails show the greatest weight of each patch.", "文本较长：缩略图显示每块中的最大权重。"],
  "grid.empty": ["Type a sentence: every head will show what it looks at.", "输入一句话：每个头会显示它看哪里。"],
  "grid.none": ["This model has no attention: there is nothing to look at.", "这个模型没有注意力：没有可看的内容。"],
  "grid.encoder.title@reads": ["The text reads itself, both ways", "文字双向读自身"],
  "grid.decoder.title@reads": ["The text reads itself, up to here", "文字读自身（到此为止）"],
  "grid.empty@reads": ["Type a text: every head will show what it looks at.", "输入文字：每个头会显示它看哪里。"],
  "grid.rollout": ["all heads", "所有头"],
};

export function mount(root, store, { api, t, announce, fail }) {
  let cells = new Map(); // "name head" -> {node, canvas, role, factor, toggle}
  let atlas = null;
  let controller = new AbortController();
  let watcher = null;
  const bar = h("div", { class: "grid-bar" });
  const board = h("div", { class: "grid-board", role: "grid" });
  const note = h("p", { class: "note" });
  root.classList.add("grid");
  root.append(bar, board, note);

  const rollout = () => viewShown(store.state) === "rollout";
  const focusHead = (name, head) => store.set({ head: { name, head } });
  const toggle = (name, head) => {
    if (rollout() || !editsShown(store.state)) return;
    store.set({ edits: switched(store.state.edits, name, head) });
    dress();
    announce(cells.get(`${name} ${head}`).node.ariaLabel);
  };

  const makeCell = (attention, head) => {
    const canvas = h("canvas", { "aria-hidden": "true" });
    const role = h("span", { class: "grid-role" });
    const factor = h("span", { class: "grid-factor" });
    const power = h("button", { type: "button", class: "grid-switch", tabindex: "-1" });
    const node = h(
      "div",
      { class: "grid-cell", role: "gridcell", tabindex: "-1", "data-name": attention.name, "data-head": head },
      h("div", { class: "grid-picture" }, h("img", { alt: "", hidden: true }), canvas, factor),
      h("div", { class: "grid-caption" }, h("b", {}, rollout() || attention.derived ? "" : String(head)), role, power),
    );
    node.addEventListener("click", () => {
      focusHead(attention.name, head);
      node.focus();
    });
    power.addEventListener("click", (event) => {
      event.stopPropagation();
      toggle(attention.name, head);
    });
    const cell = { node, canvas, role, factor, power, attention, head };
    cells.set(`${attention.name} ${head}`, cell);
    return node;
  };

  const build = () => {
    const attentions = attentionsOf(store.state);
    const width = rollout() ? 1 : Math.max(0, ...attentions.map(({ heads }) => heads));
    cells = new Map();
    watcher?.disconnect();
    watcher = new IntersectionObserver((seen) => fetchLayers(seen), { rootMargin: "200px" });
    board.style.setProperty("--heads", width);
    board.classList.toggle("wide", width > 8);
    root.parentElement.classList.toggle("stacked", width > 6); // many heads: the grid takes the whole width
    board.setAttribute("aria-label", t("grid.label"));
    board.replaceChildren(
      ...attentions.map((attention) => {
        const heads = rollout() ? [0] : Array.from({ length: attention.heads }, (_, head) => head);
        const kind = attention.derived ? "derived" : overTime(attention) ? "time" : "layer";
        const layer = t(`grid.${kind}`, { n: attention.layer });
        const row = h(
          "div",
          { class: "grid-row", role: "row", "aria-label": layer },
          h("span", { class: "grid-layer", role: "rowheader" }, layer),
          ...heads.map((head) => makeCell(attention, head)),
        );
        row.dataset.name = attention.name;
        watcher.observe(row);
        return row;
      }),
    );
    dress();
  };

  /** What changes without new maps: which head is focused, which are silenced or scaled, what role they play. */
  const dress = () => {
    const { head: focused } = store.state;
    const edits = rollout() ? null : editsShown(store.state);
    const chosen = focused && cells.get(`${focused.name} ${rollout() ? 0 : focused.head}`);
    const entry = chosen ?? cells.values().next().value;
    const room = modelShown(store.state)?.atlas ? "\u00a0" : ""; // for a role that is on its way: rows do not move
    for (const cell of cells.values()) {
      const { attention, head, node, role, factor, power } = cell;
      const edit = edits?.[attention.name]?.[head];
      const part = rollout() ? t("grid.rollout") : roleText(t, atlas?.get(`${attention.name} ${head}`) ?? "");
      const touched = edit === undefined ? "" : edit === 0 ? t("grid.off") : t("grid.scaled", { factor: edit });
      const place = { layer: attention.layer, head };
      role.textContent = part || room;
      role.title = part;
      factor.textContent = edit === undefined || edit === 0 ? "" : `×${edit}`;
      power.hidden = !edits || Boolean(attention.derived);
      power.title = t(edit === 0 ? "grid.free" : "grid.switch", place);
      power.setAttribute("aria-label", power.title);
      power.setAttribute("aria-pressed", String(edit === 0));
      node.classList.toggle("off", edit === 0);
      node.classList.toggle("touched", edit !== undefined && edit !== 0);
      node.setAttribute("aria-selected", String(cell === chosen));
      node.setAttribute("aria-label", [t(attention.derived ? "grid.cell.derived" : "grid.cell", place), part, touched].filter(Boolean).join(", "));
      node.tabIndex = cell === entry ? 0 : -1;
    }
  };

  const draw = (about, name, map) => {
    const { state } = store;
    const [heads, height, width] = map.shape;
    const attention = attentionsOf(state).find((each) => each.name === name);
    if (!attention) return; // another kind is shown by now
    const { rows, columns } = axes(attention, about, state.axis);
    const whole = height === rows.length && width === columns.length;
    const [down, across] = whole ? [rows, columns].map((tokens) => labels(tokens, state)) : [];
    const normalise = !state.special && viewShown(store.state) !== "norm";
    const most = top([map.scale], viewShown(store.state));
    const picture = whole ? pictureOf(about, attention) : null;
    for (let h = 0; h < heads; h++) {
      const cell = cells.get(`${name} ${map.heads[h]}`);
      if (!cell) continue;
      const data = map.data.subarray(h * height * width, (h + 1) * height * width);
      const factor = map.scale / 255;
      const [image] = cell.node.getElementsByTagName("img");
      image.hidden = !picture;
      cell.canvas.classList.toggle("laid", Boolean(picture));
      if (picture) {
        const options = { words: false, special: true, view: viewShown(state), picture };
        const seen = figure({ data, shape: [height, width] }, { rows, columns }, options);
        if (image.getAttribute("src") !== picture.url) image.src = picture.url;
        const step = picture.itself || state.step === null ? [] : [state.step];
        lay(cell.canvas, overOf(seen, { rows: state.locked?.rows ?? [], columns: state.locked?.columns ?? [], step }), picture.grid, state.colour === "log");
        continue;
      }
      const colours = scale(state.colour, most, shade());
      const seen = whole ? reduce(data, width, down, across, normalise, factor) : data;
      const [r, c] = whole ? [down.length, across.length] : [height, width];
      paint(cell.canvas, seen, r, c, colours, whole ? 1 : factor);
      // a map of more cells than the thumbnail has points is averaged, not sampled
      cell.canvas.classList.toggle("fine", Math.max(r, c) > cell.canvas.clientWidth * devicePixelRatio);
    }
  };

  const fetchLayers = (seen) => {
    const about = sentence(store.state);
    showNote(about);
    if (!about) return;
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      const { name } = target.dataset;
      const { signal } = controller;
      layerMaps(api, about, name, viewShown(store.state), pooled(about) ? POOL : 0, signal).then(
        (map) => signal.aborted || draw(about, name, map),
        fail,
      );
    }
  };
  const showNote = (about) => {
    const { busy } = store.state;
    const waits = busy.models || busy.original || hasInput(store.state); // for an answer, not for a person
    const none = modelShown(store.state)?.attentions.length === 0;
    note.hidden = !none && (about ? !pooled(about) : waits);
    note.textContent = t(none ? "grid.none" : about ? "grid.pooled" : "grid.empty");
  };
  const pooled = (about) => {
    const [attention] = attentionsOf(store.state);
    if (!attention) return false;
    const { rows, columns } = axes(attention, about, store.state.axis);
    return Math.max(rows.length, columns.length) > (pictureOf(about, attention) ? PATCHES : WHOLE);
  };

  /** New maps: what is still on its way for the old ones is given up; rows in sight are asked for first. */
  const refresh = () => {
    if (!sentence(store.state) && store.state.source.length) return; // still streaming: keep the last picture
    controller.abort();
    controller = new AbortController();
    watcher?.disconnect();
    board.querySelectorAll(".grid-row").forEach((row) => watcher?.observe(row)); // reports at once what is in sight
    showNote(sentence(store.state));
    if (sentence(store.state)) return;
    for (const { canvas } of cells.values()) canvas.width = 1; // nothing to show: this also clears
    fetchLayers([]);
  };

  const loadAtlas = async () => {
    const model = modelShown(store.state);
    atlas = null;
    const found = model && (await atlasOf(api, model));
    if (model !== modelShown(store.state)) return;
    atlas = found && new Map(found.heads.map(({ name, head, role }) => [`${name} ${head}`, role]));
    dress();
  };

  const move = (event) => {
    const cell = event.target.closest(".grid-cell");
    if (!cell) return;
    const { name, head } = cell.dataset;
    const row = [...cell.parentElement.querySelectorAll(".grid-cell")];
    const column = row.indexOf(cell);
    const beside = (up) => {
      const next = up ? cell.parentElement.previousElementSibling : cell.parentElement.nextElementSibling;
      const others = next ? [...next.querySelectorAll(".grid-cell")] : [];
      return others[Math.min(column, others.length - 1)];
    };
    const to = {
      ArrowLeft: () => row[column - 1],
      ArrowRight: () => row[column + 1],
      ArrowUp: () => beside(true),
      ArrowDown: () => beside(false),
      Home: () => row[0],
      End: () => row.at(-1),
    }[event.key];
    if (to) {
      event.preventDefault();
      event.stopPropagation(); // the arrows mean the grid here, not the scrubber
      to()?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      focusHead(name, Number(head));
    } else if (event.key === "x") {
      event.stopPropagation();
      toggle(name, Number(head));
    }
  };
  board.addEventListener("keydown", move);

  const dressBar = () => {
    const kinds = kindsOf(store.state).map((kind) => [kind, t(`grid.${kind}`), t(`grid.${kind}.title`)]);
    const { node, set } = choice("kind", t("grid.kind"), kinds, (kind) => store.set({ kind }));
    set(store.state.kind);
    bar.replaceChildren(node);
  };

  const rebuild = () => {
    dressBar();
    build();
    refresh();
  };
  store.subscribe(["models", "model", "compare", "side", "kind", "language"], rebuild);
  store.subscribe(["models", "model", "compare", "side"], loadAtlas);
  // An address may ask for a side that is not there yet: until it is, the heads are those of the first model.
  const whose = () => `${modelShown(store.state)?.id} ${shown(store.state).side}`;
  let drawn = whose();
  store.subscribe(["edited", "other"], () => {
    if (drawn === whose()) return;
    drawn = whose();
    rebuild();
    loadAtlas();
  });
  store.subscribe(["head", "edits"], dress);
  store.subscribe(["locked", "step"], () => sentence(store.state)?.picture && refresh()); // whose look is laid over it
  store.subscribe(["busy", "text", "picture"], () => showNote(sentence(store.state)));
  store.subscribe(["done", "edited", "other", "words", "special", "colour", "theme", "axis", "source"], refresh);
  // only the roll-out has cells of its own (one a layer); the other views share the grid
  let wasRollout = rollout();
  store.subscribe(["view"], () => {
    const changed = rollout() !== wasRollout;
    wasRollout = rollout();
    (changed ? rebuild : refresh)();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  rebuild();
  loadAtlas();
}
