"""LaTeX-OCR's weights.pth, with its tokenizer.json beside it: what reads a formula from a picture (pix2tex).

Their convolutions have weights that are standardised each time; here they are once, and then they are plain ones.
"""

import re
from collections import Counter
from pathlib import Path

import torch
from tokenizers import decoders
from torch import Tensor

from regard.convert import tokenizers
from regard.convert.foreign import Imported
from regard.convert.tables import Foreign
from regard.files import regular_size
from regard.models.captioner import Captioner, latex_ocr
from regard.models.family import blank

WEIGHTS = "weights.pth"
HEAD = 64  # numbers in a head of their decoder
EPS = 1e-6  # of what standardises a convolution
SIGHT = {"channels": 1, "mean": (0.7931,), "std": (0.1738,)}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WORDS = Foreign("pix2tex", "captioner", (), "vocabulary num_tokens\n", {}, "")
PARTS = ("self_attention", "cross_attention", "feed_forward")  # of a layer of their decoder
HEADS = ("1.to_q", "1.to_k", "1.to_v")
NAMES = {  # theirs, in ours
    r"encoder\.cls_token": "source_embedding.tokens",
    r"encoder\.pos_embed": "source_embedding.positions.table",
    r"encoder\.patch_embed\.proj\.": "source_embedding.project.last.",
    r"encoder\.patch_embed\.backbone\.stem\.conv\.": "source_embedding.project.first.",
    r"encoder\.patch_embed\.backbone\.stem\.norm\.": "source_embedding.project.norm.",
    r"encoder\.patch_embed\.backbone\.": "source_embedding.project.",
    r"encoder\.blocks\.(\d+)\.norm1\.": r"encoder.layers.\1.self_attention.norm.",
    r"encoder\.blocks\.(\d+)\.norm2\.": r"encoder.layers.\1.feed_forward.norm.",
    r"encoder\.blocks\.(\d+)\.attn\.qkv\.": r"encoder.layers.\1.self_attention.sublayer.query_key_value.",
    r"encoder\.blocks\.(\d+)\.attn\.proj\.": r"encoder.layers.\1.self_attention.sublayer.output.",
    r"encoder\.blocks\.(\d+)\.mlp\.fc1\.": r"encoder.layers.\1.feed_forward.sublayer.inner.",
    r"encoder\.blocks\.(\d+)\.mlp\.fc2\.": r"encoder.layers.\1.feed_forward.sublayer.outer.",
    r"decoder\.net\.token_emb\.": "target_embedding.tokens.",
    r"decoder\.net\.pos_emb\.emb\.weight": "target_embedding.positions.table",
    r"decoder\.net\.to_logits\.": "output.",
    r"decoder\.net\.norm\.": "decoder.norm.",
}


def is_theirs(directory: Path) -> bool:
    """Whether a directory holds LaTeX-OCR."""
    return (directory / WEIGHTS).is_file()


def read(directory: Path) -> Imported:
    """The model and the tokenizer."""
    path = directory / WEIGHTS
    regular_size(path)
    try:
        theirs: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        blocks = Counter(int(found[1]) for each in theirs if (found := re.search(r"stages\.(\d+)\..*conv1", each)))
        state = _ours(theirs, stages := [blocks[i] for i in range(len(blocks))])
        tokens, width = state["target_embedding.tokens.weight"].shape
        c = latex_ocr(
            tokens,
            encoder_layers=len({each.split(".")[2] for each in state if each.startswith("encoder.layers.")}),
            decoder_layers=len({each.split(".")[2] for each in state if each.startswith("decoder.layers.")}),
            d_model=width,
            d_ff=len(state["encoder.layers.0.feed_forward.sublayer.inner.weight"]),
            heads=(heads := len(theirs["decoder.net.attn_layers.layers.0.1.to_q.weight"]) // HEAD),
            encoder_d_k=width // heads,
            max_length=len(state["target_embedding.positions.table"]),
            residual=",".join(map(str, stages)),
        )
        blank(c).load_state_dict(state, assign=True)  # names and shapes fit
    except Exception:  # of pickle, of zip, of many kinds
        raise ValueError(f"{path} is damaged, or not of LaTeX-OCR: fetch it again") from None
    about = MARKS | {"num_tokens": tokens}
    rust = tokenizers.read(directory, WORDS)
    rust.decoder = decoders.ByteLevel()  # theirs has none, and puts spaces between all tokens
    model = Captioner(c)
    model.load_state_dict(state)
    task = {"name": "caption", "sight": SIGHT | {"size": c.size, "height": c.height}}
    return Imported(model.eval(), tokenizers.kept(directory, rust, about, WORDS, ""), task, [], {"limit": c.max_length})


def _ours(theirs: dict[str, Tensor], stages: list[int]) -> dict[str, Tensor]:
    """Their tensors by our names; of queries, keys and values one."""
    state, joined = dict[str, Tensor](), dict[str, dict[str, Tensor]]()
    for name, x in theirs.items():
        for pattern, ours in NAMES.items():
            name = re.sub(f"^{pattern}", ours, name)
        if found := re.match(r"(.*)stages\.(\d+)\.blocks\.(\d+)\.(downsample|conv|norm)(.*)\.(\w+)$", name):
            before, stage, block, kind, which, last = found.groups()
            if kind == "downsample":
                name = f"{before}shortcuts.{stage}.{int(which == '.norm')}.{last}"
            else:
                several = "convolutions" if kind == "conv" else "norms"
                name = f"{before}blocks.{sum(stages[: int(stage)]) + int(block)}.{several}.{int(which) - 1}.{last}"
        if x.dim() == 4 and "project.last" not in name:
            x = (x - x.mean((1, 2, 3), keepdim=True)) / (x.var((1, 2, 3), False, keepdim=True) + EPS).sqrt()
        if found := re.match(r"decoder\.net\.attn_layers\.layers\.(\d+)\.(.*)\.(\w+)$", name):
            layer, part = divmod(int(found[1]), 3)
            of = f"decoder.layers.{layer}." + PARTS[part]
            of += ".norm." if found[2] == "0" else ".sublayer."
            if found[2] in HEADS:
                whole = "query_key_value." if not part else "query." if found[2] == "1.to_q" else "key_value."
                joined.setdefault(f"{of}{whole}{found[3]}", {})[found[2]] = x
                continue
            if found[2] == "1.net.0.proj":  # their gate comes last
                x = torch.cat([*reversed(x.chunk(2))])
            inner = {"0": "", "1.to_out.0": "output.0.", "1.net.0.proj": "inner.", "1.net.2": "outer."}
            name = f"{of}{inner[found[2]]}{found[3]}"
        state[name] = x[0] if name in ("source_embedding.tokens", "source_embedding.positions.table") else x
    return state | {name: torch.cat([x[key] for key in sorted(x, key=HEADS.index)]) for name, x in joined.items()}
