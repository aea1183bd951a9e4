// The page's texts, [English, Chinese]. A component adds its own with `add(texts)`; index.html names its texts by
// data-t (content), data-t-label (aria-label and tooltip). What is said otherwise of a model to generate text has the
// key of what it stands for, and @generate; of models that read, @ and the task, or @reads; of those that see, @sees.

import { addedTo, isBase, modelOf, offOf, overTime, store } from "./state.js";

const texts = {
  skip: ["Skip to the heads", "跳到注意力头"], model: ["Model", "模型"], beam: ["Beam", "束宽"], theme: ["Theme", "主题"],
  language: ["Language", "语言"], close: ["Close", "关闭"], dismiss: ["Dismiss", "知道了"], on: ["on", "开"], off: ["off", "关"],
  "colour.linear": ["Linear colour", "线性颜色"], "colour.log": ["Logarithmic colour", "对数颜色"],
  "theme.auto": ["Auto", "自动"], "theme.light": ["Light", "浅色"], "theme.dark": ["Dark", "深色"],
  "model.note": ["{parameters} parameters · heads: {heads}", "{parameters} 参数 · {heads} 个头"],
  "model.broken": ["{id} (cannot be loaded)", "{id}（无法加载）"],
  "error.network": ["The server does not answer. Is it still running?", "服务器没有响应。它还在运行吗？"],
  "error.model": ["{id} cannot be loaded: {error}", "{id} 无法加载：{error}"],
  "error.gone": [
    "The address asks for a model “{id}” that is not served here; this is {model}.",
    "地址中的模型“{id}”不在此服务器上；现在显示的是 {model}。",
  ],
  "input.title": ["Sentence", "句子"], "input.examples": ["Examples", "例句"],
  "input.hint": ["Type a sentence to translate", "输入要翻译的句子"], "input.sentences": ["Sentences of the text", "文中的句子"],
  "input.one-of": ["The model reads sentence by sentence. This is {k} of {n}:", "模型逐句阅读。这是第 {k} 句，共 {n} 句："],
  "input.unknown": [
    "⚠ No sub-words for {texts}: what the model makes of it is a guess.",
    "⚠ 词表中没有 {texts} 的子词：模型对它的翻译只是猜测。",
  ],
  "generation.title": ["Translation", "译文"], "generation.tokens": ["Output tokens", "输出词元"],
  "generation.empty": ["Waiting for a sentence.", "等待输入。"], "generation.busy": ["Translating …", "正在翻译……"],
  "generation.loading": ["Loading the model …", "正在加载模型……"],
  "generation.figures": ["log-probability {log_p} · tokens {n} · {ms} ms", "对数概率 {log_p} · 词元 {n} · {ms} 毫秒"],
  "generation.cut": ["cut at the longest length", "已达最大长度而截断"], "generation.done": ["Translation: {text}", "译文：{text}"],
  "input.title@generate": ["Text to go on with", "要续写的文字"],
  "input.hint@generate": ["Type the beginning of a text", "输入文字的开头"],
  "generation.title@generate": ["The text, and what the model makes of it", "文字与模型的续写"],
  "generation.tokens@generate": ["Tokens of the text", "文字的词元"],
  "generation.empty@generate": ["Waiting for a text.", "等待输入。"], "generation.busy@generate": ["Writing …", "正在续写……"],
  "generation.done@generate": ["Text: {text}", "文字：{text}"], "key.input@generate": ["go to the text", "回到文字"],
  "ablation.hint@generate": [
    "Switch a head off or scale it, in the grid or by a preset, and watch the text change.",
    "在网格中或用预设关闭、缩放注意力头，观察文字的变化。",
  ],
  "ablation.same@generate": ["The text stays the same.", "文字不变。"], "by.measures@generate": ["by this text", "依据本文"],
  "input.title@denoise": ["Text to make whole", "要复原的文字"], "input.hint@denoise": ["Type a text", "输入文字"],
  "generation.title@denoise": ["What the model writes", "模型的输出"], "generation.done@denoise": ["Output: {text}", "输出：{text}"],
  "generation.busy@denoise": ["Writing …", "正在输出……"], "ablation.same@denoise": ["The output stays the same.", "输出不变。"],
  "input.title@reads": ["Text", "文字"], "input.title@mask": ["Text with gaps", "带空格的文字"],
  "input.title@answer": ["Question", "问题"], "input.hint@reads": ["Type a text", "输入文字"],
  "input.hint@mask": ["Type a text, with [MASK] where something is missing", "输入文字，缺失处写 [MASK]"],
  "input.hint@answer": ["Type a question", "输入问题"],
  "pair.pair": ["Second text, if the model reads pairs", "第二段文字（若模型读取文本对）"], "pair.context": ["Context", "上下文"],
  "pair.lines": ["Texts to compare it with, one a line", "用来比较的文字，每行一段"],
  "input.unknown@reads": ["⚠ No sub-words for {texts}: the model does not know it.", "⚠ 词表中没有 {texts} 的子词：模型不认识它。"],
  "generation.title@reads": ["Answer", "答案"], "generation.tokens@reads": ["Tokens that are read", "读入的词元"],
  "generation.title@classify": ["Class", "类别"], "generation.title@tag": ["What stands in it", "识别结果"],
  "generation.title@mask": ["What may stand in the gaps", "空格处的候选"], "generation.title@embed": ["Vector", "向量"],
  "input.title@match": ["A text", "一段文字"], "input.hint@match": ["Type a text about the picture", "输入描述图片的文字"],
  "pair.lines@match": ["Other texts, one a line", "其他文字，每行一段"],
  "generation.title@recognise": ["Class", "类别"], "generation.title@match": ["Nearest text", "最接近的文字"],
  "generation.title@caption": ["Caption", "描述"], "generation.done@caption": ["Caption: {text}", "描述：{text}"],
  "input.title@look": ["A question", "一个问题"], "input.hint@look": ["Ask about the picture", "就图片提问"],
  "generation.title@look": ["Answer", "答案"], "generation.done@look": ["Answer: {text}", "答案：{text}"],
  "generation.empty@sees": ["Waiting for a picture.", "等待图片。"], "generation.busy@sees": ["Looking …", "正在看……"],
  "grid.empty@sees": ["Choose a picture: every head will show what it looks at.", "选择图片：每个头会显示它看哪里。"],
  "grid.encoder@sees": ["Picture", "图片"], "grid.decoder@sees": ["Text", "文字"], "grid.cross@caption": ["Words to picture", "词到图片"],
  "grid.decoder@look": ["Words to picture", "词到图片"], "ablation.same@look": ["The answer stays the same.", "答案不变。"],
  "grid.decoder.title@look": ["Words of the answer look at the picture, and at the words before", "答案的词看图片与前面的词"],
  "grid.encoder.title@sees": ["Patches look at patches", "图块看图块"], "grid.cross.title@sees": ["Words look at the picture", "词看图片"],
  "grid.cross@match": ["Words to picture", "词到图片"], "layer.cross@match": ["words to patches", "词到图块"], "grid.derived": ["cosines", "余弦"],
  "grid.cross.title@match": ["How near the text up to each word is to each patch: no head looks there", "到每个词为止的文字与各图块有多近：没有注意力头在看"],
  "kind.cross@match": ["Words to picture", "词到图片"], "grid.cell.derived": ["words to patches", "词到图块"],
  "grid.decoder.title@match": ["The text reads itself up to here; its last place stands for it", "文字读自身（到此为止）；其末位代表全文"],
  "layer.encoder@sees": ["picture {layer}", "图片 {layer}"], "layer.decoder@sees": ["text {layer}", "文字 {layer}"], "layer.time": ["time {layer}", "时间 {layer}"],
  "kind.encoder@sees": ["Picture", "图片"], "kind.decoder@sees": ["Text", "文字"],
  "ablation.hint@sees": [
    "Switch a head off or scale it, in the grid or by a preset, and watch the answer change.",
    "在网格中或用预设关闭、缩放注意力头，观察答案的变化。",
  ],
  "by.measures@sees": ["by this picture", "依据本图"], "reading.figures@recognise": ["{n} places · {ms} ms", "{n} 个位置 · {ms} 毫秒"],
  "answer.alike@match": ["Cosine with the picture", "与图片的余弦"], "ablation.same@caption": ["The caption stays the same.", "描述不变。"],
  "generation.empty@reads": ["Waiting for a text.", "等待输入。"], "generation.busy@reads": ["Reading …", "正在阅读……"],
  "generation.done@reads": ["Answer: {text}", "答案：{text}"], "key.input@reads": ["go to the text", "回到文字"],
  "reading.figures": ["tokens {n} · {ms} ms", "词元 {n} · {ms} 毫秒"],
  "reading.windows": ["read in {n} parts; below, heads in the first", "分 {n} 段阅读；下方为第一段的注意力"],
  "tokens.title": ["Tokens: click one to see what it looks at", "词元：单击查看它看向何处"],
  "token.read": ["Token {n}: {text}", "第 {n} 个词元：{text}"],
  "ablation.hint@reads": [
    "Switch a head off or scale it, in the grid or by a preset, and watch the answer change.",
    "在网格中或用预设关闭、缩放注意力头，观察答案的变化。",
  ],
  "by.measures@reads": ["by this text", "依据本文"],
  "model.shared": ["one layer, gone through again and again: its last pass is shown", "各层共用一层：显示最后一次"],
  "token.says": ["Step {step}: {text}, probability {p}", "第 {step} 步：{text}，概率 {p}"], "token.forced": ["forced", "强制"],
  "token.given": ["given", "给定"], "step.back": ["Previous step", "上一步"], "step.on": ["Next step", "下一步"],
  "step.scrub": ["Step of the output", "输出的步骤"], "step.all": ["all {n} steps", "全部 {n} 步"],
  "step.says": ["step {step} of {n}", "第 {step} 步，共 {n} 步"],
  "alternatives.at": ["Step {step}, after “{before}”", "第 {step} 步：“{before}”之后的候选"],
  "alternatives.first": ["Step {step}: how it could begin", "第 {step} 步：开头的候选"],
  "alternatives.least": ["least certain", "最不确定"],
  "alternatives.force": ["Continue with “{text}”, probability {p}", "改用“{text}”继续，概率 {p}"],
  "alternatives.chosen": ["chosen", "已选"], "alternatives.joins": ["no space before it", "前面没有空格"],
  "alternatives.other": ["Only the first model's output can be forced.", "只能强制第一个模型的输出。"],
  "forced.title": ["Forced tokens", "强制的词元"], "forced.chip": ["forced at step {step}: {text}", "第 {step} 步强制：{text}"],
  "forced.undo": ["Undo: {text} at step {step}", "撤销：第 {step} 步的 {text}"],
  "forced.said": ["Continued with {text} at step {step}.", "第 {step} 步改用 {text}。"],
  "compare.with": ["Compare with", "对比"], "compare.none": ["no other model", "无"],
  "compare.title": ["Second model: {model}", "第二个模型：{model}"],
  "compare.difference": ["{difference} to the first", "与第一个相差 {difference}"], "ablation.title": ["Ablation", "消融"],
  "ablation.list": ["Edited heads", "已改动的头"], "ablation.reset": ["Reset", "还原"],
  "ablation.hint": [
    "Switch a head off or scale it, in the grid or by a preset, and watch the sentence change.",
    "在网格中或用预设关闭、缩放注意力头，观察译文的变化。",
  ],
  "ablation.same": ["The translation stays the same.", "译文不变。"],
  "ablation.changed": ["Words that differ: {n}.", "不同的词：{n}。"], "ablation.scale": ["Factor of {head}", "{head} 的系数"],
  "ablation.switch": ["{head} on or off", "{head} 开或关"], "ablation.remove": ["As it was: {head}", "还原：{head}"],
  "ablation.count": ["edited heads: {n}", "已改动的头：{n}"], "ablation.restored": ["All heads are as they were.", "所有头已还原。"],
  "edited.title": ["With the edits", "改动后"], "edited.base": ["The base, without what was added", "基座：未添加时"],
  "edited.off": ["Without {names}", "不含 {names}"], "edited.tokens": ["Output tokens with the edits", "改动后的输出词元"],
  "edited.figures": ["Log-probability {log_p} ({difference}) · tokens {n}", "对数概率 {log_p}（{difference}） · 词元 {n}"],
  "other.tokens": ["Output tokens of the second model", "第二个模型的输出词元"], "steps.title": ["Step by step", "逐步查看"],
  "rescored.title": ["The original output under the edits", "改动后原译文的概率"],
  "rescored.base": ["How likely the base holds this output", "基座给出此输出的概率"],
  "rescored.token": ["{text}: probability {before}, with the edits {after}", "{text}：概率 {before}，改动后 {after}"],
  "rescored.figures": ["log-probability {before} → {after} ({difference})", "对数概率 {before} → {after}（{difference}）"],
  preset: ["Preset", "预设"], "preset.apply": ["Apply", "应用"], "preset.k": ["Number of heads to keep", "保留的头数"],
  "preset.layers": ["Silence all heads of", "关闭整层"], "preset.kinds": ["Silence by kind", "按类别关闭"],
  "preset.importance": ["By importance", "按重要性"], "preset.positional": ["all positional heads", "所有位置头"],
  "preset.keep": ["keep the k most important", "只保留最重要的 k 个"],
  "preset.said": ["Silenced heads: {n} ({by}).", "已关闭 {n} 个头（{by}）。"],
  "preset.none": ["No head is positional ({by}).", "没有位置头（{by}）。"], "by.atlas": ["by the head atlas", "依据头图谱"],
  "by.measures": ["by this sentence", "依据本句"], "kind.encoder": ["Encoder", "编码器"], "kind.decoder": ["Decoder", "解码器"],
  "kind.cross": ["Cross-attention", "交叉注意力"], "layer.encoder": ["encoder {layer}", "编码器 {layer}"],
  "layer.decoder": ["decoder {layer}", "解码器 {layer}"], "layer.cross": ["cross {layer}", "交叉 {layer}"],
  "head.label": ["{layer} · head {head}", "{layer} · 头 {head}"], tabs: ["What to look at", "查看内容"],
  "tab.heads": ["Heads", "注意力头"], "tab.atlas": ["Atlas", "头图谱"], sides: ["Maps of", "图来自"],
  "side.original": ["Original", "原模型"], "side.edited": ["Edited", "改动后"], "side.other": ["Second model", "第二个模型"],
  "side.both": ["Both", "并排"], "side.adapted": ["Adapted", "适配后"], "side.base": ["Base", "基座"], "help.open": ["Keys and help", "快捷键与帮助"], "help.title": ["Keys", "快捷键"],
  "help.about": [
    "Everything can be reached with Tab. Arrow keys move among tokens and in the grid of heads.",
    "所有内容都可用 Tab 到达。方向键在词元之间和网格中移动。",
  ],
  "key.help": ["this list", "显示本列表"], "key.input": ["go to the sentence", "回到句子"],
  "key.steps": ["previous, next step of the output (also ← →)", "输出的上一步、下一步（也可用 ← →）"],
  "key.all": ["look at all steps", "查看全部步骤"],
  "key.grid": ["move in the grid of heads; Enter looks at one", "在网格中移动；回车查看"],
  "key.toggle": ["switch the focused head off or on", "关闭或打开当前的头"], "key.reset": ["all heads as they were", "还原所有头"],
  "key.kinds": ["encoder, decoder, cross-attention", "编码器、解码器、交叉注意力"], "key.words": ["words or sub-words", "词或子词"],
  "key.special": ["show or hide special tokens", "显示或隐藏特殊词元"],
  "key.colour": ["linear or logarithmic colour", "线性或对数颜色"],
  "key.axis": ["rows by what is predicted or read", "行按预测或读入标注"],
  "key.view": ["next view: weights, norms, rollout, neuron", "下一视图：权重、范数、rollout、神经元"],
  "key.side": ["next side: original, edited, second model, both", "下一来源：原模型、改动后、第二个模型、并排"],
  "key.tab": ["heads or atlas", "注意力头或头图谱"], "key.export": ["export what is seen", "导出所见内容"],
  "key.escape": ["unlock; leave the step", "解除锁定；离开当前步骤"],
};

export const add = (more) => Object.assign(texts, more);

const RIGHT_TO_LEFT = /\p{Script=Arabic}|\p{Script=Hebrew}|\p{Script=Syriac}|\p{Script=Thaana}/u;
export const rightToLeft = (text) => RIGHT_TO_LEFT.test(text);
/** Text of the other direction inside a sentence, set apart: else the quotation marks around it change places. */
const isolated = (value) => (rightToLeft(value) ? `\u2068${value}\u2069` : value);

/** The text of `key` in the page's language, {names} filled in: t("step.says", {step: 3, n: 9}). */
export const t = (key, values = {}) => {
  const { task, reads, sees } = modelOf(store.state) ?? {};
  const kinds = [task, ...(sees ? ["sees"] : []), ...(reads ? ["reads"] : [])].map((kind) => texts[`${key}@${kind}`]);
  const [english, chinese] = kinds.find(Boolean) ?? texts[key] ?? [key, key];
  const text = store.state.language === "zh" ? chinese : english;
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

/** What a side is called: where something was added to a model, that is the adapted one, and without it the base. */
export const sideText = (say, state, side) => {
  const off = Object.keys(state.edits).length ? [] : offOf(state);
  if (side === "edited" && off.length === 1 && !isBase(state)) return say("edited.off", { names: off[0] });
  const named = { original: addedTo(state).length > 0 && "adapted", edited: isBase(state) && "base" }[side];
  return say(`side.${named || side}`);
};

/** "encoder 0 · head 3"; layers and heads are counted from 0, as in their names in Python. */
export const headLabel = (model, name, head) => {
  const attention = model?.attentions?.find((each) => each.name === name);
  const kind = attention && (overTime(attention) ? "time" : attention.kind);
  const layer = attention ? t(`layer.${kind}`, { layer: attention.layer }) : name;
  return head === undefined || attention?.derived ? layer : t("head.label", { layer, head });
};
