// The menu that saves exactly what is seen.

import { h } from "./dom.js";
import { seen } from "./seen.js";

export const texts = {
  "export.open": ["Export", "导出"], "export.menu": ["Save what is seen", "保存所见内容"], "export.svg": ["drawing", "矢量图"],
  "export.png": ["picture, twice the size", "图片（两倍大小）"], "export.csv": ["numbers and labels", "数值与标签"],
  "export.npz": ["arrays for numpy", "numpy 数组"], "export.html": ["page of its own", "独立网页"],
  "export.page": ["every head on one page", "所有注意力头的网页"], "export.json": ["the whole atlas", "整个图谱"],
  "export.bias": ["position bias", "位置偏置"], "export.saved": ["Saved {name}.", "已保存 {name}。"],
  "export.corner": ["{role} ↓ / looks at →", "{role} ↓ / 看向 →"], "export.model": ["Model", "模型"],
  "export.source": ["Source", "源文"], "export.target": ["Output", "译文"], "export.head": ["Head", "注意力头"],
  "export.view": ["View", "视图"], "export.edits": ["Changed", "改动"],
  "export.off": ["{name}: off", "{name}：关"],
  "export.chosen": ["{how} of the chosen rows", "所选各行的{how}"],
  "export.chosen.columns": ["{how} of the chosen columns", "所选各列的{how}"],
  "export.too.large": [
    "This map is too large for a picture; SVG, CSV and NPZ have no limit.",
    "此图过大，无法存为图片；SVG、CSV 和 NPZ 没有限制。",
  ],
};

const KINDS = ["svg", "png", "csv", "npz", "html", "page", "json"];
const TYPES = { svg: "image/svg+xml", csv: "text/csv", npz: "application/zip", html: "text/html" };

const picture = async ({ svg, width, height }, tooLarge) => {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  image.src = url;
  await image.decode();
  const canvas = h("canvas");
  canvas.width = 2 * width;
  canvas.height = 2 * height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error(tooLarge); // a canvas has a largest size
  return blob;
};

const save = (blob, name) => {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};

export function mount(root, store, { api, t, announce, fail }) {
  const { state } = store;

  /** The kinds of files that what is seen can be saved in. */
  const kinds = () => {
    const files = seen(state, t, api) ?? {};
    return KINDS.filter((kind) => (kind === "png" ? files.svg : files[kind]));
  };
  const make = async (files, kind) => {
    if (kind === "png") return picture(files.svg(), t("export.too.large"));
    const made = await files[kind](); // a file of the server is a blob already
    return made instanceof Blob ? made : new Blob([kind === "svg" ? made.svg : made], { type: TYPES[kind] });
  };

  const run = async (kind) => {
    toggle(false);
    const files = seen(state, t, api);
    if (!files) return;
    try {
      const name = { page: "heads.html", json: "heads.json" }[kind] ?? `${files.name}.${kind}`;
      save(await make(files, kind), name);
      announce(t("export.saved", { name }));
    } catch (error) {
      fail(error);
    }
  };

  const button = h("button", { type: "button", "aria-haspopup": "menu", onclick: () => toggle(menu.hidden) });
  const menu = h("div", { class: "export-menu", role: "menu", hidden: true });
  root.classList.add("export");
  root.append(button, menu);
  button.setAttribute("aria-expanded", "false");

  const toggle = (open) => {
    if (open && root.hidden) return; // by its key, where there is nothing to save
    if (open) list();
    menu.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) menu.firstElementChild.focus();
  };
  const name = () => {
    button.textContent = t("export.open");
    menu.setAttribute("aria-label", t("export.menu"));
  };
  const list = () =>
    menu.replaceChildren(
      ...kinds().map((kind) =>
        h(
          "button",
          { type: "button", role: "menuitem", tabindex: "-1", "data-kind": kind, onclick: () => run(kind) },
          kind === "page" ? "HTML+" : kind.toUpperCase(),
          h("small", {}, t(`export.${kind}`)),
        ),
      ),
    );
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.children];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) items.at(to % items.length).focus();
    else if (event.key === "Escape") {
      toggle(false);
      button.focus();
    } else if (event.key === "Tab") return toggle(false);
    else if (event.key === "Enter" || event.key === " ") return undefined; // the button's own
    event.preventDefault();
    event.stopPropagation();
    return undefined;
  });
  addEventListener("pointerdown", ({ target }) => root.contains(target) || menu.hidden || toggle(false));
  const show = () => (root.hidden = !(state.tab === "atlas" ? state.listed : state.figure));
  store.subscribe(["figure", "listed", "tab"], show);
  store.subscribe(["language"], name);
  name();
  show();
}
