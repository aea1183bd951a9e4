// A row of tokens: of an output, the tint and the line below each say how probable it was. Used for every one shown.

import { h, sync } from "./dom.js";
import { percent, rightToLeft, t } from "./i18n.js";

/** What a token looks like on the page: special ones by name, white space made visible. */
export const visible = (token) => token.text.replace(/\n/g, "⏎").replace(/^\s+$/, "␣") || "∅";

/** Text put together of tokens, as a person reads it. */
export const readable = (tokens) =>
  tokens
    .filter((token) => !token.special)
    .map((token, index) => (token.space && index ? " " : "") + token.text)
    .join("");

/** A function that draws tokens into `element`; `look(k)` is called to look at step k, `chosen(k)` marks what was forced. */
export const strip = (element, look) => {
  const create = (index) =>
    h("button", { type: "button", class: "token", dir: "auto", onclick: () => look(index) }, h("span"));

  element.addEventListener("keydown", (event) => {
    const chips = [...element.children];
    const here = chips.indexOf(document.activeElement);
    const on = element.dir === "rtl" ? -1 : 1;
    const to = { ArrowLeft: here - on, ArrowRight: here + on, Home: 0, End: chips.length - 1 }[event.key];
    if (here < 0 || !chips[to]) return;
    event.preventDefault();
    event.stopPropagation();
    look(to);
    chips[to].focus();
  });

  return ({ tokens, step, chosen = () => false, given = 0, whole }) => {
    // While tokens stream in, the room of the old ones is kept: what is below does not jump.
    element.style.minHeight = whole || !tokens.length ? "" : `${element.offsetHeight}px`;
    element.dir = rightToLeft(readable(tokens)) ? "rtl" : "ltr";
    const stop = step !== null && step < tokens.length ? step : 0;
    sync(element, tokens, create, (chip, token, index) => {
      const p = token.log_p === undefined ? null : Math.exp(token.log_p); // none: it is read, not written
      chip.firstElementChild.textContent = visible(token);
      chip.style.setProperty("--p", (p ?? 0).toFixed(3));
      chip.classList.toggle("special", Boolean(token.special));
      chip.classList.toggle("last", Boolean(tokens[index + 1]?.space)); // of its word
      chip.classList.toggle("forced", chosen(index));
      chip.classList.toggle("given", index < given); // the text that a language model goes on with
      chip.tabIndex = index === stop ? 0 : -1; // one stop for Tab; arrows move inside
      chip.setAttribute("aria-pressed", index === step);
      const named = { step: index + 1, n: index + 1, text: visible(token) };
      const says = p === null ? t("token.read", named) : t("token.says", { ...named, p: percent(p) });
      const why = chosen(index) ? "token.forced" : index < given ? "token.given" : null;
      chip.setAttribute("aria-label", why ? `${says}, ${t(why)}` : says);
      chip.title = p === null ? "" : percent(p);
    });
    // A long output scrolls in its own room: scrollIntoView would move the whole column.
    const chip = step === null ? null : element.children[step];
    if (!chip) return;
    const [top, bottom] = [chip.offsetTop - 3, chip.offsetTop + chip.offsetHeight + 3];
    element.scrollTop = Math.min(Math.max(element.scrollTop, bottom - element.clientHeight), top);
  };
};
