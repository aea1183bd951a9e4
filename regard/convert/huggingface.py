"""To and from Hugging Face's encoder-decoders, of which four are regard's Transformer under other names.

              norm    positions     norm of the embedding
    Marian    post    sinusoidal
    Pegasus   pre     sinusoidal
    BART      post    learned       yes
    mBART     pre     learned       yes

Their sinusoids come as [sin | cos], ours alternate: between the two lies a permutation of the residual stream, which
the weights absorb, so a model stays exact and without a limit of length.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.convert import foreign
from regard.convert.foreign import CONFIG, GENERATION
from regard.convert.source import Source, refuse, same_heads
from regard.core.positions import sinusoid
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import BOS, EOS, PAD
from regard.files import write_whole
from regard.models.transformer import Transformer, TransformerConfig

WEIGHTS = "model.safetensors"
POSITIONS = 1024  # that transformers tabulates of the sinusoids
BEFORE = 2  # rows of BART's table before position 0
NEVER = -1e4  # the logit of a token that must not be written; finite, so that a mean of logits still is


class Kind(NamedTuple):
    """What sets a class of transformers apart."""

    architecture: str
    norm: str
    positions: str
    embedding_norm: bool


KINDS = {
    "marian": Kind("MarianMTModel", "post", "sinusoidal", False),
    "pegasus": Kind("PegasusForConditionalGeneration", "pre", "sinusoidal", False),
    "bart": Kind("BartForConditionalGeneration", "post", "learned", True),
    "mbart": Kind("MBartForConditionalGeneration", "pre", "learned", True),
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}  # theirs -> ours


def write(source: Source, directory: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer into an empty directory."""
    c = source.config
    kinds = tuple(dict.fromkeys(ACTIVATIONS.values()))
    refuse(
        c, "Hugging Face", norm_kind=("layer",), norm_eps=(1e-5,), feed_forward=kinds, scale=(None,), **same_heads(c)
    )
    ours = (c.norm, c.positions, c.embedding_norm)
    name = next((name for name, kind in KINDS.items() if kind[1:] == ours), None)
    if name is None:
        known = "; ".join(f"{kind.norm}, {kind.positions}, {kind.embedding_norm}" for kind in KINDS.values())
        raise ValueError(
            f"Hugging Face has no model with norm = {c.norm!r}, positions = {c.positions!r} and embedding_norm = "
            f"{c.embedding_norm}, only {known}"
        )
    special: dict[str, Any] = {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    special |= {"forced_bos_token_id": None, "forced_eos_token_id": None}
    share = c.tie == "all" or name != "marian"  # only Marian can do without
    about = special | {
        "model_type": name,
        "architectures": [KINDS[name].architecture],
        "is_encoder_decoder": True,
        "vocab_size": c.vocabulary,
        "d_model": c.d_model,
        "max_position_embeddings": c.max_length if c.positions == "learned" else POSITIONS,
        "activation_function": c.feed_forward,
        "scale_embedding": c.scale_embedding,
        "share_encoder_decoder_embeddings": share,
        "tie_word_embeddings": c.tie == "all" or (c.tie == "target" and not share),
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "activation_dropout": c.feed_forward_dropout,
        "dtype": "float32",
    }
    for stack, layers in (("encoder", c.encoder_layers), ("decoder", c.decoder_layers)):
        about |= {f"{stack}_layers": layers, f"{stack}_ffn_dim": c.d_ff, f"{stack}_attention_heads": c.heads}
    longest = min(about["max_position_embeddings"], 512)
    write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
    write_whole(directory / GENERATION, json.dumps(special | {"max_length": longest}, indent=2) + "\n")
    save_file(_theirs(source, share=share, tied=about["tie_word_embeddings"]), directory / WEIGHTS, {"format": "pt"})
    foreign.write(source.tokenizer.rust, directory)


def read(directory: Path) -> tuple[Transformer, Tokenizer]:
    """The model and the tokenizer of a directory of Hugging Face's."""
    if not foreign.settings(directory, CONFIG):
        raise ValueError(f"{directory} is not a directory of a Hugging Face model: it has no {CONFIG}")
    about = foreign.about_model(directory)
    if not isinstance(name := about.get("model_type"), str) or name not in KINDS:
        raise ValueError(f"{directory / CONFIG}: model_type = {name!r} cannot be imported, only {', '.join(KINDS)}")
    content, tensors = foreign.read(directory), _load(directory)
    try:
        c = _config(directory, about, KINDS[name])
        _check_sizes(directory, c, tensors)
        numbering = foreign.Numbering.of(directory, content, about)
    except TypeError as error:
        raise ValueError(f"{directory / CONFIG} holds a value of a wrong kind ({error}): copy it again") from error
    state = _ours(directory, tensors, c, numbering)
    c = c.but(vocabulary=len(numbering.rows), output_bias="output.bias" in state)
    model = Transformer(c)
    model.load_state_dict(state)
    return model.eval(), numbering.tokenizer(content, directory)


def _config(directory: Path, about: dict[str, Any], kind: Kind) -> TransformerConfig:
    """The config, with their vocabulary."""
    path = directory / CONFIG

    def get(key: str, *others: str) -> Any:
        values = {name: about.get(name) for name in (key, *others)}
        if None in values.values():
            raise ValueError(f"{path} has no {next(name for name, value in values.items() if value is None)}")
        if len(set(values.values())) > 1:
            differ = " and ".join(f"{name} = {value}" for name, value in values.items())
            raise ValueError(f"{path}: {differ} differ, which regard cannot express")
        return values[key]

    if (activation := get("activation_function")) not in ACTIVATIONS:
        raise ValueError(
            f"{path}: activation_function = {activation!r} cannot be expressed, only {', '.join(ACTIVATIONS)}"
        )
    share, tied = about.get("share_encoder_decoder_embeddings", True), about.get("tie_word_embeddings", True)
    if not share and about.get("decoder_vocab_size", get("vocab_size")) != get("vocab_size"):
        raise ValueError(f"{path}: source and target have vocabularies of their own, but regard has one tokenizer")
    return TransformerConfig(
        get("vocab_size"),
        encoder_layers=get("encoder_layers"),
        decoder_layers=get("decoder_layers"),
        d_model=get("d_model"),
        d_ff=get("encoder_ffn_dim", "decoder_ffn_dim"),
        heads=get("encoder_attention_heads", "decoder_attention_heads"),
        positions=kind.positions,
        max_length=get("max_position_embeddings"),
        norm=kind.norm,
        feed_forward=ACTIVATIONS[activation],
        tie="none" if not tied else "all" if share else "target",
        scale_embedding=about.get("scale_embedding", False),
        embedding_norm=kind.embedding_norm,
        dropout=about.get("dropout", 0.1),
        attention_dropout=about.get("attention_dropout", 0.0),
        feed_forward_dropout=about.get("activation_dropout", 0.0),
        pad=PAD,
    )


def _load(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS
    if not path.is_file():
        others = [file.name for file in sorted(directory.glob("*.bin")) + sorted(directory.glob("*.index.json"))]
        found = f" but {others[0]}, which regard does not open" if others else ""
        raise ValueError(
            f"{directory} has no {WEIGHTS}{found}: load it with transformers in a place you trust, and call "
            f"save_pretrained, which writes one {WEIGHTS}"
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from error


def _check_sizes(directory: Path, c: TransformerConfig, tensors: dict[str, Tensor]) -> None:
    """Refuse a config that is larger than its weights, before anything of that size is built."""
    most = {"layers": len(tensors), "size": max((max(x.shape, default=0) for x in tensors.values()), default=0)}
    for name in ("encoder_layers", "decoder_layers", "vocabulary", "d_model", "d_ff"):
        if (value := getattr(c, name)) > most["layers" if name.endswith("_layers") else "size"]:
            raise ValueError(f"{directory / WEIGHTS} does not fit its {CONFIG}: no tensor is for {name} = {value}")


def _names(c: TransformerConfig) -> Iterator[tuple[str, list[str]]]:
    """Each tensor of ours, and theirs that make it, one below the other."""
    for stack, side, layers in (("encoder", "source", c.encoder_layers), ("decoder", "target", c.decoder_layers)):
        pairs = []
        for i in range(layers):
            ours, theirs = f"{stack}.layers.{i}", f"model.{stack}.layers.{i}"
            qkv = [f"{theirs}.self_attn.{x}_proj" for x in "qkv"]
            pairs += [
                (f"{ours}.self_attention.sublayer.query_key_value", qkv),
                (f"{ours}.self_attention.sublayer.output", [f"{theirs}.self_attn.out_proj"]),
                (f"{ours}.self_attention.norm", [f"{theirs}.self_attn_layer_norm"]),
                (f"{ours}.feed_forward.sublayer.inner", [f"{theirs}.fc1"]),
                (f"{ours}.feed_forward.sublayer.outer", [f"{theirs}.fc2"]),
                (f"{ours}.feed_forward.norm", [f"{theirs}.final_layer_norm"]),
            ]
            if stack == "decoder":
                cross, encoder = f"{ours}.cross_attention", f"{theirs}.encoder_attn"
                pairs += [
                    (f"{cross}.sublayer.query", [f"{encoder}.q_proj"]),
                    (f"{cross}.sublayer.key_value", [f"{encoder}.k_proj", f"{encoder}.v_proj"]),
                    (f"{cross}.sublayer.output", [f"{encoder}.out_proj"]),
                    (f"{cross}.norm", [f"{encoder}_layer_norm"]),
                ]
        if c.norm == "pre":
            pairs.append((f"{stack}.norm", [f"model.{stack}.layer_norm"]))
        if c.embedding_norm:
            pairs.append((f"{side}_embedding.norm", [f"model.{stack}.layernorm_embedding"]))
        for name, theirs_of in pairs:
            for part in ("weight", "bias"):
                yield f"{name}.{part}", [f"{their}.{part}" for their in theirs_of]
        if c.positions == "learned":
            yield f"{side}_embedding.positions.table", [f"model.{stack}.embed_positions.weight"]
        yield f"{side}_embedding.tokens.weight", [f"model.{stack}.embed_tokens.weight"]
    yield "output.weight", ["lm_head.weight"]
    yield "output.bias", ["final_logits_bias"]


def _order(c: TransformerConfig) -> Tensor:
    """Our residual stream in their order: the even dimensions, to which sines are added, then the odd ones."""
    return torch.cat([torch.arange(0, c.d_model, 2), torch.arange(1, c.d_model, 2)])


def _permuted(name: str, x: Tensor, c: TransformerConfig, *, back: bool) -> Tensor:
    """One of our tensors with the residual stream in their order; or, `back`, in ours again."""
    if c.positions != "sinusoidal":
        return x
    order = _order(c).argsort() if back else _order(c)
    if re.search(r"\.(output|outer|norm)\.", name):  # what writes into the stream, or scales it
        return x.index_select(0, order)
    return x.index_select(1, order) if x.dim() == 2 else x


def _theirs(source: Source, *, share: bool, tied: bool) -> dict[str, Tensor]:
    """The tensors by their names; of tied ones only the first."""
    c, ours, tensors = source.config, source.tensors, {}
    for name, parts in _names(c):
        if name in ours:
            x = _permuted(name, ours[name], c, back=False)
        else:  # a bias that we do without
            x = torch.zeros(c.vocabulary if name == "output.bias" else len(ours[name.replace("bias", "weight")]))
        if name.endswith("positions.table"):
            x = torch.cat([x.new_zeros(BEFORE, c.d_model), x])
        for part, piece in zip(parts, x.chunk(len(parts)), strict=True):
            tensors[part] = piece.contiguous().clone()
    tensors["final_logits_bias"] = tensors["final_logits_bias"][None]
    if c.positions == "sinusoidal":
        table = sinusoid(torch.arange(POSITIONS), c.d_model).float()
        for stack in ("encoder", "decoder"):
            tensors[f"model.{stack}.embed_positions.weight"] = table.index_select(1, _order(c)).clone()
    if c.tie == "all":
        tensors["model.shared.weight"] = tensors.pop("model.encoder.embed_tokens.weight")
        del tensors["model.decoder.embed_tokens.weight"]
    elif share:  # it must be there, though nothing reads it
        tensors["model.shared.weight"] = tensors["model.encoder.embed_tokens.weight"].clone()
    if tied:
        del tensors["lm_head.weight"]
    return tensors


def _ours(
    directory: Path, tensors: dict[str, Tensor], c: TransformerConfig, numbering: foreign.Numbering
) -> dict[str, Tensor]:
    """The tensors by our names, with our numbers for the tokens. No `output.bias` where it is nothing but zeros."""
    source, target, shared = (
        f"model.{part}.weight" for part in ("encoder.embed_tokens", "decoder.embed_tokens", "shared")
    )
    for tied, first in ((source, shared), (target, shared), ("lm_head.weight", target)):
        if tied not in tensors and first in tensors:
            tensors[tied] = tensors[first]
    tensors.setdefault("final_logits_bias", torch.zeros(1, c.vocabulary))
    tensors["final_logits_bias"] = tensors["final_logits_bias"].flatten()
    with torch.device("meta"):
        blank = Transformer(c.but(output_bias=True)).state_dict()
    state = {}
    for name, parts in _names(c):
        first, *rest = blank[name].shape
        shape = (first // len(parts) + BEFORE * name.endswith("positions.table"), *rest)
        for part in parts:
            if part not in tensors:
                raise ValueError(f"{directory / WEIGHTS} has no tensor {part!r}")
            if tensors[part].shape != shape:
                raise ValueError(
                    f"{directory / WEIGHTS} does not fit its {CONFIG}: {part!r} has the shape "
                    f"{tuple(tensors[part].shape)}, not {shape}"
                )
        x = _permuted(name, torch.cat([tensors[part] for part in parts]).float(), c, back=True)
        if name.endswith("positions.table"):
            x = x[BEFORE:]
        if name.startswith("output.") or name.endswith("tokens.weight"):
            x = x[numbering.rows]
        state[name] = x
    state["output.bias"][numbering.never] = NEVER
    if not state["output.bias"].any():
        del state["output.bias"]
    return state
