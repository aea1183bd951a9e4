// The texts of the focused view.

export const texts = {
  "focus.view": ["View", "视图"], "view.weights": ["Weights", "权重"],
  "view.weights.title": ["How a query spreads over the keys: each row sums to 1", "查询如何分配到各个键：每行之和为 1"],
  "view.norm": ["Norms", "范数"],
  "view.norm.title": [
    "Length of weight × value through the output matrix: what is really added",
    "权重 × 值经过输出矩阵后的长度：真正加入的量",
  ],
  "view.rollout": ["Roll-out", "Roll-out"],
  "view.rollout.title": ["Attention through all layers up to this one (encoder only)", "贯穿到此层为止各层的注意力（仅编码器）"],
  "view.neuron": ["Neurons", "神经元"], "view.neuron.title": ["Query times key, dimension by dimension", "逐维的查询乘键"],
  "focus.words": ["Words", "合并为词"],
  "focus.words.title": [
    "Join sub-words: sums over the pieces of a key, means over those of a query",
    "合并子词：对键的各片段求和，对查询的各片段取平均",
  ],
  "focus.special": ["Special tokens", "特殊符号"],
  "focus.special.title": ["Show <s> and </s>; without them rows are scaled to sum to 1", "显示 <s> 与 </s>；隐藏后每行重新归一"],
  "focus.log": ["Log colour", "对数颜色"],
  "focus.log.title": ["Colours by the logarithm: small weights become visible", "按对数着色：小权重也看得见"],
  "focus.axis": ["A row", "行"], "focus.factor": ["Factor", "系数"], "axis.predicted": ["predicts", "预测的词"],
  "axis.predicted.title": ["Rows are named by the token predicted there", "行以该处预测的词元命名"],
  "axis.read": ["reads", "读入的词"],
  "axis.read.title": ["Rows are named by the token read there, one step earlier", "行以该处读入的词元命名（早一步）"],
  "axis.predicts": ["predicts", "预测"], "axis.reads": ["reads", "读入"], "axis.keys": ["looks at", "看向"],
  "focus.combine": ["Together", "合并"], "combine.mean": ["Mean", "平均"], "combine.sum": ["Sum", "求和"],
  "focus.map": [
    "Map of {head}: {rows} rows, {columns} columns. Arrows move, Enter locks, Shift+Enter adds, Escape unlocks.",
    "{head} 的图：{rows} 行，{columns} 列。方向键移动，回车锁定，Shift+回车添加，Esc 解除。",
  ],
  "focus.hint": [
    "Point at a cell to read its number; click locks it, shift-click adds rows.",
    "指向一格即可读数；单击锁定，按住 Shift 单击可选多行。",
  ],
  "axis.predicts.doing": ["Predicting", "预测"], "axis.reads.doing": ["Reading", "读入"],
  "focus.cell": ["{role} “{row}”, it looks at “{column}”", "{role}“{row}”，看向“{column}”"],
  "focus.row": ["{role} “{row}”, it looks most at “{column}”", "{role}“{row}”：最多看“{column}”"],
  "focus.column": ["“{column}” is looked at most by “{row}”", "“{column}”最受“{row}”关注"],
  "focus.rows": ["{how} of {n} rows, at “{column}”", "{n} 行的{how}，在“{column}”处"],
  "focus.columns": ["{how} of {n} columns, in “{row}”", "{n} 列的{how}，在“{row}”处"],
  "focus.rollout": ["roll-out up to layer {n}", "到第 {n} 层为止的 roll-out"],
  "focus.normalised": ["Special tokens are hidden, and each row is scaled to sum to 1 again.", "特殊符号已隐藏，每行重新归一为 1。"],
  "focus.merged": ["Words: sum over the pieces of a key, mean over the pieces of a query.", "词：键的片段求和，查询的片段取平均。"],
  "focus.floor": ["Logarithmic colours from {floor}; less is drawn as 0.", "对数颜色自 {floor} 起；更小者按 0 显示。"],
  "focus.faith": ["Attention is not explanation.", "注意力不等于解释。"],
  "focus.faith.measured": [
    "In this sentence the mean cross-attention ranks the source tokens like the gradient with Kendall τ = {gradient}, " +
      "like leaving each one out with τ = {left} (1: same order, 0: unrelated).",
    "在此句中，平均交叉注意力对源词元的排序与梯度的 Kendall τ = {gradient}，与逐个删去的 τ = {left}（1：同序，0：无关）。",
  ],
  "focus.legend": ["Colours", "颜色"],
};
