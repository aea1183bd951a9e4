// The menu that saves exactly what is seen.

import { scale, shade } from "./colour.js";
import { h } from "./dom.js";
import { drawing } from "./drawing.js";
import { csv, npz, page } from "./files.js";
import { headLabel } from "./i18n.js";
import { combineColumns, combineRows, shownAt } from "./maps.js";
import { body, modelShown, titleOf } from "./sight.js";

export const texts = {
  en: {
    "export.open": "Export", "export.menu": "Save what is seen",
    "export.svg": "drawing", "export.png": "picture, twice the size", "export.csv": "numbers and labels",
    "export.npz": "arrays for numpy", "export.html": "page of its own", "export.page": "every head on one page",
    "export.saved": "Saved {name}.", "export.corner": "{role} ↓ / looks at →",
    "export.model": "Model", "export.source": "Source", "export.target": "Output", "export.head": "Head",
    "export.view": "View",
    "export.edits": "Edited heads", "export.chosen": "{how} of the chosen rows",
    "export.chosen.columns": "{how} of the chosen columns",
    "export.too.large": "This map is too large for a picture; SVG, CSV and NPZ have no limit.",
  },
  zh: {
    "export.open": "导出", "export.menu": "保存所见内容",
    "export.svg": "矢量图", "export.png": "图片（两倍大小）", "export.csv": "数值与标签",
    "export.npz": "numpy 数组", "export.html": "独立网页", "export.page": "所有注意力头的网页",
    "export.saved": "已保存 {name}。", "export.corner": "{role} ↓ / 看向 →",
    "export.model": "模型", "export.source": "源文", "export.target": "译文", "export.head": "注意力头", "export.view": "视图",
    "export.edits": "改动的头", "export.chosen": "所选各行的{how}", "export.chosen.columns": "所选各列的{how}",
    "export.too.large": "此图过大，无法存为图片；SVG、CSV 和 NPZ 没有限制。",
  },
};

/** "encoder.layers.0.self_attention", 3, "norm" -> "encoder-0-head-3-norm". */
export const fileName = ({ name, kind, head, view }) => {
  const layer = name.match(/\d+/)?.[0] ?? "0";
  return [kind, layer, ...(view === "rollout" ? [] : ["head", head]), view].join("-");
};

/** The text of tokens as it was written. */
export const plain = (tokens) =>
  tokens.filter((token) => !token.special).map(({ text, space }) => (space ? ` ${text}` : text)).join("").trim();

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

  /** Everything that is seen, gathered once. */
  const gather = () => {
    const { figure } = state;
    const rows = shownAt(figure.rows, state.locked?.rows ?? []);
    const columns = shownAt(figure.columns, state.locked?.columns ?? []);
    const step = state.step === null || figure.kind === "encoder" ? [] : shownAt(figure.rows, [state.step]);
    const head = titleOf(t, state, figure);
    const how = t(`combine.${state.combine}`);
    const edits = Object.entries(figure.about.edits).flatMap(([name, heads]) =>
      Object.entries(heads).map(([each, factor]) => `${headLabel(modelShown(state), name, each)} ×${factor}`),
    );
    const role = t(`axis.${figure.role}`);
    const facts = [
      [t("export.model"), figure.about.model],
      [t("export.source"), plain(figure.about.source)],
      [t("export.target"), plain(figure.about.target)],
      [t("export.head"), `${figure.name} · ${figure.head}`],
      [t("export.view"), t(`view.${figure.view}`)],
      ...(edits.length ? [[t("export.edits"), edits.join(", ")]] : []),
    ];
    return {
      figure,
      colours: scale(state.colour, figure.top, shade()),
      choice: { rows, columns, step, combine: state.combine },
      combined: {
        across: rows.length
          ? { text: t("export.chosen", { how }), values: combineRows(figure, rows, state.combine) }
          : null,
        down: columns.length && !rows.length
          ? { text: t("export.chosen.columns", { how }), values: combineColumns(figure, columns, state.combine) }
          : null,
      },
      said: {
        title: `${head} · ${t(`view.${figure.view}`)}`,
        titles: { rows: role, columns: t("axis.keys") },
        corner: t("export.corner", { role }),
        notes: [
          `${figure.about.model}: ${plain(figure.about.source)} → ${plain(figure.about.target)}`,
          ...(edits.length ? [`${t("export.edits")}: ${edits.join(", ")}`] : []),
          ...(figure.normalised ? [t("focus.normalised")] : []),
          ...(figure.words ? [t("focus.merged")] : []),
          t("focus.faith"),
        ],
        facts,
      },
      about: {
        ...body(figure.about), attention: figure.name, head: figure.head, kind: figure.kind, view: figure.view,
        rows: figure.role, words: figure.words, normalised: figure.normalised, combine: state.combine,
      },
    };
  };

  const makers = {
    svg: ({ figure, colours, choice, said }) =>
      new Blob([drawing(figure, colours, choice, said).svg], { type: "image/svg+xml" }),
    png: ({ figure, colours, choice, said }) => picture(drawing(figure, colours, choice, said), t("export.too.large")),
    csv: ({ figure, said, combined }) => new Blob([csv(figure, said.corner, combined)], { type: "text/csv" }),
    npz: ({ figure, choice, about }) => new Blob([npz(figure, choice, about)], { type: "application/zip" }),
    html: ({ figure, colours, choice, said }) => {
      const { svg } = drawing(figure, colours, choice, said);
      return new Blob([page(figure, svg, said, state.language)], { type: "text/html" });
    },
    page: ({ figure }) => api.page(body(figure.about)),
  };

  const run = async (kind) => {
    toggle(false);
    if (!state.figure) return;
    try {
      const name = kind === "page" ? "heads.html" : `${fileName(state.figure)}.${kind}`;
      save(await makers[kind](gather()), name);
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
    menu.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) menu.firstElementChild.focus();
  };
  const name = () => {
    button.textContent = t("export.open");
    menu.setAttribute("aria-label", t("export.menu"));
    menu.replaceChildren(
      ...Object.keys(makers).map((kind) =>
        h(
          "button",
          { type: "button", role: "menuitem", tabindex: "-1", "data-kind": kind, onclick: () => run(kind) },
          kind === "page" ? "HTML+" : kind.toUpperCase(),
          h("small", {}, t(`export.${kind}`)),
        ),
      ),
    );
  };
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
  const show = () => (root.hidden = !state.figure || state.tab !== "heads");
  store.subscribe(["figure", "tab"], show);
  store.subscribe(["language"], name);
  name();
  show();
}
