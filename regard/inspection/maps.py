"""The attention maps of a translation, with the texts of the tokens along both axes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.inspection.page import AttentionMap
from regard.inspection.taps import record


@torch.inference_mode()
def translation_maps(
    model: nn.Module, source: Tensor, target: Tensor, read: Sequence[str], written: Sequence[str]
) -> list[AttentionMap]:
    """Every attention of an encoder-decoder while it writes a known target, cross-attention first.

    source (1, S) and target (1, T) as the model reads them: T begins with the start symbol. `read` are the S texts of
    the source's tokens, `written` the T texts of what the model predicts at each position, the end symbol last.
    """
    model.eval()
    with record(model) as seen:
        model(source, target)
    before = ["<s>", *written[:-1]]
    maps = []
    for name, weights in seen.weights.items():
        if name.startswith("encoder"):
            maps.append(AttentionMap(name, weights[0], read, read, "read"))
        else:
            keys = before if name.endswith("self_attention") else read
            maps.append(AttentionMap(name, weights[0], written, keys, "predicted"))
    return sorted(maps, key=lambda m: (not m.name.endswith("cross_attention"), m.name.startswith("encoder")))
