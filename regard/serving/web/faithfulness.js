// The note beside every map: attention is not explanation, and how far it agrees with other evidence in this sentence.

import { h, idle } from "./dom.js";
import { body, kindsOf, sentence } from "./sight.js";

const LONGEST = 128; // source tokens; each is left out once, and the server does so for no more

/** The note in `root`; the figures are asked for once a sentence has stood for a while and nothing else is going on. */
export const faithfulness = (root, store, { api, t }) => {
  const { state } = store;
  let timer = 0;
  let shown = { key: null, found: null };

  const write = () => {
    const tau = (x) => (x == null ? "–" : x.toFixed(2).replace("-", "−"));
    const { found } = shown;
    const values = found && { gradient: tau(found.gradient.tau), left: tau(found.leave_one_out.tau) };
    root.replaceChildren(h("b", {}, t("focus.faith")), ...(values ? [" ", t("focus.faith.measured", values)] : []));
  };
  const ask = async (about) => {
    const found = await api.faithfulness(body(about)).catch(() => null); // a note, not worth an alarm
    if (shown.key !== about.key) return;
    shown.found = found;
    write();
  };
  const look = () => {
    const about = sentence(state);
    if (!about || about.key === shown.key || state.tab !== "heads") return;
    clearTimeout(timer);
    shown = { key: about.key, found: null };
    write();
    if (about.picture || about.source.length > LONGEST || !kindsOf(state).includes("cross")) return;
    timer = setTimeout(() => idle(() => ask(about)), 800);
  };
  store.subscribe(["done", "edited", "other", "side", "tab"], look);
  store.subscribe(["language"], write);
  write();
};
