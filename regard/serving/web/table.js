// The numbers of the focused head as a table: screen readers always find it, eyes on request.

import { h, idle } from "./dom.js";
import { digits, shownAt } from "./maps.js";
import { nameOf } from "./beside.js";
import { titleOf } from "./sight.js";

const MOST = 48; // rows and columns; a table of more helps nobody, and the CSV file has them all

export const texts = {
  "table.show": ["Show the numbers as a table", "以表格显示数值"], "table.hide": ["Hide the table", "收起表格"],
  "table.caption": [
    "{head}: each row is a position that {role} a token, each column a token it looks at.",
    "{head}：每行是一个{role}词元的位置，每列是它看向的词元。",
  ],
  "table.cut": [
    "The first {rows} rows and {columns} columns of {allRows} × {allColumns}; the CSV export has them all.",
    "{allRows} × {allColumns} 中的前 {rows} 行、前 {columns} 列；CSV 导出包含全部。",
  ],
  "table.corner": ["{role} ↓ · looks at →", "{role} ↓ · 看向 →"],
};

export function mount(root, store, { t }) {
  const { state } = store;
  let open = false;
  let waiting = 0;
  const button = h("button", { type: "button", class: "quiet", onclick: () => show(!open) });
  const scroll = h("div", { class: "unseen" });
  root.append(button, scroll);

  const show = (on) => {
    open = on;
    button.textContent = t(open ? "table.hide" : "table.show");
    button.setAttribute("aria-pressed", String(open)); // not aria-expanded: for a screen reader it is always there
    scroll.className = open ? "numbers-scroll" : "unseen";
    if (open) scroll.tabIndex = 0; // so that the keyboard can scroll it
    else scroll.removeAttribute("tabindex");
  };

  const numbers = (figure) => {
    const rows = figure.rows.slice(0, MOST);
    const columns = figure.columns.slice(0, MOST);
    const all = { allRows: figure.rows.length, allColumns: figure.columns.length };
    const cut = rows.length < all.allRows || columns.length < all.allColumns;
    const role = t(`axis.${figure.role}`);
    const title = titleOf(t, state, state.figure);
    const head = state.beside ? `${title} (${nameOf(t, state, figure)})` : title;
    const caption = [t("table.caption", { head, role })];
    if (cut) caption.push(t("table.cut", { rows: rows.length, columns: columns.length, ...all }));
    const line = (row, r) =>
      h(
        "tr",
        {},
        h("th", { scope: "row", dir: "auto" }, row.text),
        ...columns.map((_, c) => h("td", {}, digits(figure.weights[r * all.allColumns + c]))),
      );
    return h(
      "table",
      { class: "numbers" },
      h("caption", { class: "note" }, caption.join(" ")),
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, t("table.corner", { role })),
        ...columns.map(({ text }) => h("th", { scope: "col", dir: "auto" }, text)),
      )),
      h("tbody", {}, ...rows.map(line)),
    );
  };
  const build = () => {
    const seen = [state.figure, state.beside].filter(Boolean);
    button.hidden = !seen.length;
    scroll.replaceChildren(...seen.map(numbers));
    mark();
  };
  const mark = () => {
    if (!state.figure) return;
    const chosen = new Set(shownAt(state.figure.rows, state.locked?.rows ?? []));
    const lines = scroll.querySelectorAll("table:first-child tbody tr");
    lines.forEach((row, r) => row.classList.toggle("chosen", chosen.has(r)));
  };

  /** Thousands of cells are made when nothing else is going on. */
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => idle(build), 120);
  };
  store.subscribe(["figure", "beside", "language"], soon);
  store.subscribe(["locked"], mark);
  store.subscribe(["language"], () => show(open));
  show(false);
  button.hidden = true;
}
