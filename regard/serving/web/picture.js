// What a model sees: a picture that is dropped, chosen, pasted, or one of the samples.

import { h, sync } from "./dom.js";
import { modelOf, sees } from "./state.js";
import { urlOf } from "./overlay.js";

export const texts = {
  "picture.title": ["Picture", "图片"], "picture.samples": ["Samples", "示例图片"],
  "picture.drop": ["Drop a picture here, or click to choose one", "将图片拖到此处，或点击选择"],
  "picture.sample": ["Sample {n}", "示例 {n}"], "picture.said": ["A picture was chosen.", "已选择图片。"],
};

// What was said about one picture means nothing for the next.
const anew = { prefix: [], step: null, locked: null, hover: null };

export const mount = (root, store, { api, t, announce, fail }) => {
  const { state, set, subscribe } = store;
  const $ = (id) => document.getElementById(id);

  const take = (picture) => {
    set({ picture, ...anew });
    announce(t("picture.said"));
  };
  const send = async (file) => {
    if (!file) return;
    const { model } = state;
    set({ busy: { ...state.busy, picture: true } });
    try {
      const picture = await api.picture(model, file);
      if (state.model === model) take(picture);
    } catch (error) {
      fail(error);
    }
    set({ busy: { ...state.busy, picture: false } });
  };
  const file = $("file");
  file.addEventListener("change", () => {
    send(file.files[0]);
    file.value = ""; // so that the same can be chosen again
  });
  for (const name of ["dragover", "dragleave", "drop"]) {
    addEventListener(name, (event) => {
      if (!sees(state)) return;
      event.preventDefault(); // a page that is dropped a picture would else show that instead
      $("drop").classList.toggle("over-it", name === "dragover");
      if (name === "drop") send([...event.dataTransfer.files][0]);
    });
  }
  addEventListener("paste", ({ clipboardData }) => {
    const [pasted] = clipboardData?.files ?? [];
    if (sees(state) && pasted) send(pasted);
  });

  const show = () => {
    const model = modelOf(state);
    const on = sees(state);
    $("seen").hidden = !on;
    document.body.classList.toggle("sees", on);
    for (const id of ["text", "text-title"]) $(id).hidden = on && !model.second && !model.asks;
    if (!on) return;
    const chosen = $("chosen");
    chosen.hidden = state.picture === "";
    const url = state.picture && urlOf(state.picture, model.id);
    if (url && chosen.getAttribute("src") !== url) chosen.src = url;
    sync(
      $("samples"), model.samples,
      () => h("button", { type: "button", class: "sample" }, h("img", { alt: "" })),
      (button, name, i) => {
        const src = `api/pictures/${name}`;
        if (button.firstChild.getAttribute("src") !== src) button.firstChild.src = src;
        button.setAttribute("aria-label", t("picture.sample", { n: i + 1 }));
        button.setAttribute("aria-pressed", String(name === state.picture));
        button.onclick = () => take(name);
      },
    );
    $("samples").hidden = !model.samples.length;
  };
  subscribe(["models", "model", "picture", "language"], show);
  // A model that sees begins with a sample, if there is one; what an address asks for may be gone from the server.
  subscribe(["models", "model"], () => {
    const [first] = modelOf(state)?.samples ?? [];
    if (sees(state) && !state.picture && first) set({ picture: first });
  });
  show();
};
