// The page's texts in English and Chinese. A component adds its own with `add(texts)`; index.html names its texts by
// data-t (content), data-t-label (aria-label and tooltip). What is said otherwise of a model to generate text has the
// key of what it stands for, and @generate.

import { modelOf, store } from "./state.js";

const texts = {
  en: {
    skip: "Skip to the heads",
    model: "Model", beam: "Beam", theme: "Theme", language: "Language", close: "Close", dismiss: "Dismiss", on: "on", off: "off",
    "colour.linear": "Linear colour", "colour.log": "Logarithmic colour",
    "theme.auto": "Auto", "theme.light": "Light", "theme.dark": "Dark",
    "model.note": "{parameters} parameters · heads: {heads}", "model.broken": "{id} (cannot be loaded)",
    "error.network": "The server does not answer. Is it still running?",
    "error.model": "{id} cannot be loaded: {error}",
    "error.gone": "The address asks for a model “{id}” that is not served here; this is {model}.",
    "input.title": "Sentence", "input.examples": "Examples", "input.hint": "Type a sentence to translate",
    "input.sentences": "Sentences of the text", "input.one-of": "The model reads sentence by sentence. This is {k} of {n}:",
    "input.unknown": "⚠ No sub-words for {texts}: what the model makes of it is a guess.",
    "generation.title": "Translation", "generation.tokens": "Output tokens",
    "generation.empty": "Waiting for a sentence.", "generation.busy": "Translating …",
    "generation.loading": "Loading the model …",
    "generation.figures": "log-probability {log_p} · tokens {n} · {ms} ms",
    "generation.cut": "cut at the longest length",
    "generation.done": "Translation: {text}",
    "input.title@generate": "Text to go on with", "input.hint@generate": "Type the beginning of a text",
    "generation.title@generate": "The text, and what the model makes of it", "generation.tokens@generate": "Tokens of the text",
    "generation.empty@generate": "Waiting for a text.", "generation.busy@generate": "Writing …",
    "generation.done@generate": "Text: {text}", "key.input@generate": "go to the text",
    "ablation.hint@generate": "Switch a head off or scale it, in the grid or by a preset, and watch the text change.",
    "ablation.same@generate": "The text stays the same.", "by.measures@generate": "by this text",
    "token.says": "Step {step}: {text}, probability {p}", "token.forced": "forced", "token.given": "given",
    "step.back": "Previous step", "step.on": "Next step", "step.scrub": "Step of the output",
    "step.all": "all {n} steps", "step.says": "step {step} of {n}",
    "alternatives.at": "Step {step}, after “{before}”",
    "alternatives.first": "Step {step}: how it could begin",
    "alternatives.least": "least certain", "alternatives.force": "Continue with “{text}”, probability {p}",
    "alternatives.chosen": "chosen", "alternatives.joins": "no space before it", "alternatives.other": "Only the first model's output can be forced.",
    "forced.title": "Forced tokens", "forced.chip": "forced at step {step}: {text}",
    "forced.undo": "Undo: {text} at step {step}",
    "forced.said": "Continued with {text} at step {step}.",
    "compare.with": "Compare with", "compare.none": "no other model", "compare.title": "Second model: {model}",
    "compare.difference": "{difference} to the first",
    "ablation.title": "Ablation", "ablation.list": "Edited heads", "ablation.reset": "Reset",
    "ablation.hint": "Switch a head off or scale it, in the grid or by a preset, and watch the sentence change.",
    "ablation.same": "The translation stays the same.", "ablation.changed": "Words that differ: {n}.",
    "ablation.scale": "Factor of {head}", "ablation.switch": "{head} on or off", "ablation.remove": "As it was: {head}",
    "ablation.count": "edited heads: {n}", "ablation.restored": "All heads are as they were.",
    "edited.title": "With the edits", "edited.tokens": "Output tokens with the edits",
    "edited.figures": "Log-probability {log_p} ({difference}) · tokens {n}",
    "other.tokens": "Output tokens of the second model",
    "steps.title": "Step by step",
    "rescored.title": "The original output under the edits",
    "rescored.token": "{text}: probability {before}, with the edits {after}",
    "rescored.figures": "log-probability {before} → {after} ({difference})",
    preset: "Preset", "preset.apply": "Apply", "preset.k": "Number of heads to keep",
    "preset.layers": "Silence all heads of", "preset.kinds": "Silence by kind", "preset.importance": "By importance",
    "preset.positional": "all positional heads", "preset.keep": "keep the k most important",
    "preset.said": "Silenced heads: {n} ({by}).", "preset.none": "No head is positional ({by}).",
    "by.atlas": "by the head atlas", "by.measures": "by this sentence",
    "kind.encoder": "Encoder", "kind.decoder": "Decoder", "kind.cross": "Cross-attention",
    "layer.encoder": "encoder {layer}", "layer.decoder": "decoder {layer}", "layer.cross": "cross {layer}",
    "head.label": "{layer} · head {head}",
    tabs: "What to look at", "tab.heads": "Heads", "tab.atlas": "Atlas",
    sides: "Maps of", "side.original": "Original", "side.edited": "Edited", "side.other": "Second model", "side.both": "Both",
    "help.open": "Keys and help", "help.title": "Keys",
    "help.about": "Everything can be reached with Tab. Arrow keys move among tokens and in the grid of heads.",
    "key.help": "this list", "key.input": "go to the sentence",
    "key.steps": "previous, next step of the output (also ← →)",
    "key.all": "look at all steps", "key.grid": "move in the grid of heads; Enter looks at one",
    "key.toggle": "switch the focused head off or on", "key.reset": "all heads as they were",
    "key.kinds": "encoder, decoder, cross-attention", "key.words": "words or sub-words",
    "key.special": "show or hide special tokens",
    "key.colour": "linear or logarithmic colour", "key.axis": "rows by what is predicted or read",
    "key.view": "next view: weights, norms, rollout, neuron", "key.side": "next side: original, edited, second model, both",
    "key.tab": "heads or atlas", "key.export": "export what is seen", "key.escape": "unlock; leave the step",
  },
  zh: {
    skip: "跳到注意力头",
    model: "模型", beam: "束宽", theme: "主题", language: "语言", close: "关闭", dismiss: "知道了", on: "开", off: "关",
    "colour.linear": "线性颜色", "colour.log": "对数颜色",
    "theme.auto": "自动", "theme.light": "浅色", "theme.dark": "深色",
    "model.note": "{parameters} 参数 · {heads} 个头", "model.broken": "{id}（无法加载）",
    "error.network": "服务器没有响应。它还在运行吗？",
    "error.model": "{id} 无法加载：{error}",
    "error.gone": "地址中的模型“{id}”不在此服务器上；现在显示的是 {model}。",
    "input.title": "句子", "input.examples": "例句", "input.hint": "输入要翻译的句子",
    "input.sentences": "文中的句子", "input.one-of": "模型逐句阅读。这是第 {k} 句，共 {n} 句：",
    "input.unknown": "⚠ 词表中没有 {texts} 的子词：模型对它的翻译只是猜测。",
    "generation.title": "译文", "generation.tokens": "输出词元", "generation.empty": "等待输入。", "generation.busy": "正在翻译……",
    "generation.loading": "正在加载模型……",
    "generation.figures": "对数概率 {log_p} · 词元 {n} · {ms} 毫秒", "generation.cut": "已达最大长度而截断",
    "generation.done": "译文：{text}",
    "input.title@generate": "要续写的文字", "input.hint@generate": "输入文字的开头",
    "generation.title@generate": "文字与模型的续写", "generation.tokens@generate": "文字的词元",
    "generation.empty@generate": "等待输入。", "generation.busy@generate": "正在续写……",
    "generation.done@generate": "文字：{text}", "key.input@generate": "回到文字",
    "ablation.hint@generate": "在网格中或用预设关闭、缩放注意力头，观察文字的变化。",
    "ablation.same@generate": "文字不变。", "by.measures@generate": "依据本文",
    "token.says": "第 {step} 步：{text}，概率 {p}", "token.forced": "强制", "token.given": "给定",
    "step.back": "上一步", "step.on": "下一步", "step.scrub": "输出的步骤",
    "step.all": "全部 {n} 步", "step.says": "第 {step} 步，共 {n} 步",
    "alternatives.at": "第 {step} 步：“{before}”之后的候选", "alternatives.first": "第 {step} 步：开头的候选",
    "alternatives.least": "最不确定", "alternatives.force": "改用“{text}”继续，概率 {p}",
    "alternatives.chosen": "已选", "alternatives.joins": "前面没有空格", "alternatives.other": "只能强制第一个模型的输出。",
    "forced.title": "强制的词元", "forced.chip": "第 {step} 步强制：{text}", "forced.undo": "撤销：第 {step} 步的 {text}",
    "forced.said": "第 {step} 步改用 {text}。",
    "compare.with": "对比", "compare.none": "无", "compare.title": "第二个模型：{model}",
    "compare.difference": "与第一个相差 {difference}",
    "ablation.title": "消融", "ablation.list": "已改动的头", "ablation.reset": "还原",
    "ablation.hint": "在网格中或用预设关闭、缩放注意力头，观察译文的变化。",
    "ablation.same": "译文不变。", "ablation.changed": "不同的词：{n}。",
    "ablation.scale": "{head} 的系数", "ablation.switch": "{head} 开或关", "ablation.remove": "还原：{head}",
    "ablation.count": "已改动的头：{n}", "ablation.restored": "所有头已还原。",
    "edited.title": "改动后", "edited.tokens": "改动后的输出词元",
    "edited.figures": "对数概率 {log_p}（{difference}） · 词元 {n}", "other.tokens": "第二个模型的输出词元",
    "steps.title": "逐步查看",
    "rescored.title": "改动后原译文的概率", "rescored.token": "{text}：概率 {before}，改动后 {after}",
    "rescored.figures": "对数概率 {before} → {after}（{difference}）",
    preset: "预设", "preset.apply": "应用", "preset.k": "保留的头数",
    "preset.layers": "关闭整层", "preset.kinds": "按类别关闭", "preset.importance": "按重要性",
    "preset.positional": "所有位置头", "preset.keep": "只保留最重要的 k 个",
    "preset.said": "已关闭 {n} 个头（{by}）。", "preset.none": "没有位置头（{by}）。",
    "by.atlas": "依据头图谱", "by.measures": "依据本句",
    "kind.encoder": "编码器", "kind.decoder": "解码器", "kind.cross": "交叉注意力",
    "layer.encoder": "编码器 {layer}", "layer.decoder": "解码器 {layer}", "layer.cross": "交叉 {layer}",
    "head.label": "{layer} · 头 {head}",
    tabs: "查看内容", "tab.heads": "注意力头", "tab.atlas": "头图谱",
    sides: "图来自", "side.original": "原模型", "side.edited": "改动后", "side.other": "第二个模型", "side.both": "并排",
    "help.open": "快捷键与帮助", "help.title": "快捷键",
    "help.about": "所有内容都可用 Tab 到达。方向键在词元之间和网格中移动。",
    "key.help": "显示本列表", "key.input": "回到句子", "key.steps": "输出的上一步、下一步（也可用 ← →）",
    "key.all": "查看全部步骤", "key.grid": "在网格中移动；回车查看",
    "key.toggle": "关闭或打开当前的头", "key.reset": "还原所有头",
    "key.kinds": "编码器、解码器、交叉注意力", "key.words": "词或子词", "key.special": "显示或隐藏特殊词元",
    "key.colour": "线性或对数颜色", "key.axis": "行按预测或读入标注",
    "key.view": "下一视图：权重、范数、rollout、神经元", "key.side": "下一来源：原模型、改动后、第二个模型、并排",
    "key.tab": "注意力头或头图谱", "key.export": "导出所见内容", "key.escape": "解除锁定；离开当前步骤",
  },
};

export const add = (more) => {
  for (const language of Object.keys(texts)) Object.assign(texts[language], more?.[language]);
};

const RIGHT_TO_LEFT = /\p{Script=Arabic}|\p{Script=Hebrew}|\p{Script=Syriac}|\p{Script=Thaana}/u;
export const rightToLeft = (text) => RIGHT_TO_LEFT.test(text);
/** Text of the other direction inside a sentence, set apart: else the quotation marks around it change places. */
const isolated = (value) => (rightToLeft(value) ? `\u2068${value}\u2069` : value);

/** The text of `key` in the page's language, {names} filled in: t("step.says", {step: 3, n: 9}). */
export const t = (key, values = {}) => {
  const [own, task] = [texts[store.state.language], modelOf(store.state)?.task];
  const text = own[`${key}@${task}`] ?? own[key] ?? texts.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => name in values ? isolated(values[name]) : whole);
};

/** Fill in every element below `root` that names its text. */
export const localise = (root = document) => {
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]")) {
    const text = t(element.dataset.tLabel);
    element.setAttribute("aria-label", text);
    if (element.tagName === "BUTTON") element.title = text;
  }
};

// --- numbers and names, the same everywhere

const MINUS = "−";
export const signed = (x) => (x < 0 ? MINUS : "+") + Math.abs(x).toFixed(2);
export const logarithm = (x) => signed(x).replace("+", "");
/** A probability as a person reads it: 97 %, 3.1 %, < 0.1 %; 100 % only when it is. */
export const percent = (p) => {
  if (p < 0.001) return "< 0.1 %";
  if (p > 0.999 && p < 1) return "> 99.9 %";
  const fine = p < 0.0995 || (p >= 0.995 && p < 1);
  return `${(100 * p).toFixed(fine ? 1 : 0)} %`;
};

/** "encoder 0 · head 3"; layers and heads are counted from 0, as in their names in Python. */
export const headLabel = (model, name, head) => {
  const attention = model?.attentions?.find((each) => each.name === name);
  const layer = attention ? t(`layer.${attention.kind}`, { layer: attention.layer }) : name;
  return head === undefined ? layer : t("head.label", { layer, head });
};
