"""To ONNX, and a runtime that every search of regard can use.

Letters: B sentences, S source length, K hypotheses of each sentence, T tokens so far, V vocabulary, G key/value heads,
d width of a head.

A model that reads, or goes on with, a text is one graph, model.onnx, by the names that other programs have: input_ids
(B, T), attention_mask (B, P + T), 0 where padding is, and token_type_ids (B, T) if it tells two sentences apart; what
comes out, its head says (`GIVEN`). A language model takes past_key_values.i.key and .value (B, G, P, d) of each layer
i, where P may be 0, and gives present.i.key and .value, those of the next step. Tokens may be padded on either side.
What is seen or heard is one input of a fixed size (`SHOWN`). Of two towers each is a graph: vision_model.onnx makes
image_embeds, text_model.onnx text_embeds. A language model that sees is vision_model.onnx, which makes image_features
(N, patches, d_model), and model.onnx, which takes these as well: they stand where input_ids has places of patches. A
model of graphs takes nodes, distances, keep, and what else it reads of them, as `GraphTransformer` has them.

An encoder-decoder is two. encoder.onnx reads sentences once: source (B, S), or what is seen or heard -> keep (B, S),
and for each layer i of the decoder the keys and values of the memory, memory_keys.i and memory_values.i (B, G, S, d).
decoder.onnx appends a token to each hypothesis: token (B, K), these, and past_keys.i and past_values.i (B, K, G, T, d),
which are empty at first -> logits (B, K, V), and keys.i and values.i, the past of the next step. B, S, K and T are
free.
"""

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import need
from regard.convert import foreign
from regard.convert.graphs import NAMED
from regard.convert.source import PAPERS, TOKENIZER, Source, refuse
from regard.core.attention import MultiHeadAttention, attend
from regard.core.cache import Cache, KeyValues, LayerCache
from regard.core.generation import EncoderDecoder, Reading, longest
from regard.core.layers import ACTIVATIONS, GATES
from regard.core.masks import causal
from regard.decoding.module import Module
from regard.files import write_whole
from regard.models.audio import Audio
from regard.models.captioner import Captioner
from regard.models.decoder import Decoder
from regard.models.encoder import Encoder
from regard.models.family import family, named
from regard.models.graph import GraphTransformer
from regard.models.pair import Pair
from regard.models.seer import Seer
from regard.models.speech import Listener
from regard.models.transformer import Memory, Transformer
from regard.models.video import Video
from regard.models.vision import Vision

OPSET = 18
CONFIG, ENCODER, DECODER, MODEL = "config.json", "encoder.onnx", "decoder.onnx", "model.onnx"
SIGHT, TEXT = "vision_model.onnx", "text_model.onnx"
GIVEN = {  # by the kind of a head
    "tokens": ["logits"],
    "classes": ["logits"],
    "tags": ["logits"],
    "spans": ["start_logits", "end_logits"],
    "vector": ["last_hidden_state", "sentence_embedding"],
}
RELATED = ["prediction_logits", "seq_relationship_logits"]  # of tokens with a relation beside them
PICTURE: tuple[str, Callable[[Any], tuple[int, ...]]] = "pixel_values", lambda c: (c.channels, c.size, c.size)
SHOWN = {  # what a model sees or hears: what that is called, and its shape after the rows
    **dict.fromkeys((Vision, Pair, Captioner, Seer), PICTURE),
    Video: ("pixel_values", lambda c: (c.frames, c.channels, c.size, c.size)),
    Audio: ("input_values", lambda c: (c.frames, c.bands)),
    Listener: ("frames", lambda c: (c.frames, c.bands)),
}
LARGE = 2**31 - 2**24  # bytes; with more, numbers lie in a file beside the graph


def write(source: Source, directory: Path, quantization: str | None = None, *, past: bool = True) -> None:
    """Write the graphs of a model, config.json and the tokenizer into an empty directory. `quantization` may be int8;
    without a `past`, a language model reads all of a text at once."""
    c = source.config
    source.is_one("ONNX", *WRITERS)
    pattern = (c.self_attention,) if isinstance(source.model, Decoder) and "window" in c.self_attention else ()
    refuse(c, "our ONNX graph", **PAPERS | {"self_attention": (*PAPERS["self_attention"], *pattern)})
    refuse(c, "our ONNX graph", feed_forward=(*ACTIVATIONS, *GATES))  # a convolution has a past of its own
    refuse(c, "our ONNX graph", gated=(False,), height=(None,))
    if quantization not in (None, "int8"):
        raise ValueError(f"unknown quantization {quantization!r}: for onnx it is int8")
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if quantization else [])):
        need(package, "convert")
    model = _own(source.model)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):  # in plain operations, which every runtime has
            module.mix.backend = "math"
    WRITERS[type(model)](source, model, directory, past)
    if not isinstance(model, Transformer):
        _describe(source, directory)
    for path in directory.glob("*.onnx") if quantization else ():
        _quantise(path)


def _write_one(source: Source, model: Any, directory: Path, past: bool) -> None:
    B, T, P = 2, 7, 5  # of an example: none is 0 or 1, and no two are equal, so that all are free
    c, head, ids = model.config, model.head, torch.ones(B, T, dtype=torch.int64)
    writes = past and isinstance(model, Decoder) and head.kind == "tokens"
    n, G = c.layers if writes else 0, c.kv_heads or c.heads
    widths = {"key": c.d_k or c.d_model // c.heads, "value": c.d_v or c.d_model // c.heads}
    free: Any = {0: "batch", 1: "sequence"}
    inputs: dict[str, tuple[Any, Any]] = {"input_ids": (ids, free)}
    inputs["attention_mask"] = ids.new_ones(B, P + T if n else T), {0: "batch", 1: "total"} if n else free
    if (getattr(c, "segments", None) or 1) > 1:
        inputs["token_type_ids"] = torch.zeros_like(ids), free
    if n:
        pasts = [{x: torch.zeros(B, G, P, d) for x, d in widths.items()} for _ in range(n)]
        inputs["past_key_values"] = pasts, [{x: {0: "batch", 2: "past"} for x in widths}] * n
    if isinstance(model, Seer):
        _export_shown(model, model.seen, ["image_features"], directory / SIGHT)
        inputs["image_features"] = torch.zeros(3, c.places, c.d_model), {0: "pictures"}
    outputs = RELATED if head.relation else GIVEN[head.kind]
    _export(_One(model), inputs, [*outputs, *(f"present.{i}.{x}" for i in range(n) for x in widths)], directory / MODEL)


def _write_shown(source: Source, model: Any, directory: Path, past: bool) -> None:
    def told(x: Tensor) -> tuple[Tensor, ...]:
        features = model.features(x)
        y = model.output(features)
        return (features, y) if model.head.kind == "vector" else (y,)

    _export_shown(model, told, GIVEN[model.head.kind], directory / MODEL)


def _write_towers(source: Source, model: Pair, directory: Path, past: bool) -> None:
    ids, free = torch.ones(2, 7, dtype=torch.int64), {0: "batch", 1: "sequence"}
    read = _Calling(model, lambda input_ids, attention_mask: model.read(input_ids, attention_mask > 0))
    _export_shown(model, model.seen, ["image_embeds"], directory / SIGHT)
    inputs = {"input_ids": (ids, free), "attention_mask": (ids.clone(), free)}
    _export(read, inputs, ["text_embeds"], directory / TEXT)


def _write_graph(source: Source, model: Any, directory: Path, past: bool) -> None:
    B, N, free = 2, 5, {0: "batch", 1: "nodes"}
    c, ids, between = model.config, torch.ones(B, N, 3, dtype=torch.int64), {**free, 2: "nodes"}
    inputs: dict[str, tuple[Any, Any]] = {"nodes": (ids, {**free, 2: "words"})}
    inputs["distances"] = ids.new_ones(B, N, N), between
    inputs["keep"] = ids.new_ones(B, N), free
    inputs |= {"paths": (ids.new_ones(B, N, N, c.reach), between)} if c.reach else {}
    inputs |= {"numbers": (torch.zeros(B, N, c.numbers), free)} if c.numbers else {}
    if source.task.get("level") == "edge":
        inputs["pairs"] = ids.new_ones(B, 4, 2), {0: "batch", 1: "pairs"}

    def told(*given: Tensor) -> Tensor:
        known = dict(zip(inputs, given, strict=True))
        return model(**known | {"keep": known["keep"] > 0})

    _export(_Calling(model, told), inputs, GIVEN[model.head.kind][-1:], directory / MODEL)


def _export_shown(model: Any, told: Callable[[Tensor], Any], outputs: list[str], path: Path) -> None:
    """The graph of what is told of something that is seen or heard."""
    name, shape = SHOWN[type(model)]
    _export(_Calling(model, told), {name: (torch.zeros(2, *shape(model.config)), {0: "batch"})}, outputs, path)


def _describe(source: Source, directory: Path) -> None:
    """What lies beside a graph: as Hugging Face has it; where no class of theirs is such a model, as we do."""
    try:
        foreign.their_config(source)
    except ValueError:
        about = {"config": asdict(source.config), "head": asdict(source.head), "task": source.task}
        write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
        if source.words is not None:
            source.words.save(directory / TOKENIZER)
    else:
        foreign.describe(source, directory)


class _Calling(nn.Module):
    """A model, of which a function of its own is called, by position."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *given: Tensor) -> Any:
        return self.call(*given)


class _One(nn.Module):
    """A model with what stands on it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        past_key_values: list[dict[str, Tensor]] | None = None,
        image_features: Tensor | None = None,
    ) -> tuple[Any, ...]:
        model, keep, T = self.model, attention_mask > 0, input_ids.shape[1]
        new: list[dict[str, Tensor | None]] = []
        if isinstance(model, Encoder):
            x = model.features(input_ids, token_type_ids, keep)
        else:
            P = past_key_values[0]["key"].shape[2] if past_key_values else 0
            torch._check(keep.shape[1] == P + T)
            pasts = past_key_values or [{}] * model.config.layers
            own = [_Past(each.get("key"), each.get("value"), P) for each in pasts]
            mask = causal(P).dense(T, P + T) & keep[:, None, None]
            at = (keep.long().cumsum(1) - 1).clamp(min=0)[:, P:]  # padding before a text is no place
            seen = None if image_features is None else (input_ids == model.config.place, image_features)
            read = model.stem(input_ids, at, seen=seen)
            x = model.decoder(read, mask=mask, cache=Cache(LayerCache(each) for each in own))
            new = [{"key": each.keys, "value": each.values} for each in own] if past_key_values else []
        kind = model.head.kind
        y = model.output(x, keep=keep) if kind in ("classes", "vector") else model.output(x)
        if model.head.relation:
            return y, model.output.relation(x, keep=keep)
        return (*(y.unbind(-1) if kind == "spans" else (x, y) if kind == "vector" else (y,)), *new)


def _write_two(source: Source, model: Transformer, directory: Path, past: bool) -> None:
    c = model.config
    n, G = c.decoder_layers, c.kv_heads or c.heads
    d_k, d_v = c.d_k or c.d_model // c.heads, c.d_v or c.d_model // c.heads
    widths = {"keys": d_k, "values": d_v}
    B, S, K, T = 2, 7, 5, 3
    b, s, k, t = map(torch.export.Dim, "BSKT")
    words: Any = torch.ones(B, S, dtype=torch.int64), {0: b, 1: s}
    newest: Any = {"token": (torch.ones(B, K, dtype=torch.int64), {0: b, 1: k}), "keep": (words[0] > 0, words[1])}
    name, given = "source", words
    if shown := SHOWN.get(type(model)):
        name, given = shown[0], (torch.zeros(B, *shown[1](c)), {0: b})
    # The exporter knows inputs by their identity: each is a tensor of its own.
    memory = {
        f"memory_{x}": ([torch.zeros(B, G, S, d) for _ in range(n)], [{0: b, 2: s}] * n) for x, d in widths.items()
    }
    grown = {
        f"past_{x}": ([torch.zeros(B, K, G, T, d) for _ in range(n)], [{0: b, 1: k, 3: t}] * n)
        for x, d in widths.items()
    }
    _export(
        _Calling(model, _Encoder(model).forward), {name: given}, ["keep", *_numbered(n, *memory)], directory / ENCODER
    )
    _export(_Decoder(model), newest | memory | grown, ["logits", *_numbered(n, *widths)], directory / DECODER)
    marks = {mark: getattr(source.tokenizer.marks, mark) for mark in ("pad", "bos", "eos")}
    about = {"format": 1, "family": named(c), **marks, "key_value": [G, d_k, d_v], "config": asdict(c)}
    write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
    source.tokenizer.save(directory / TOKENIZER)


def _own(model: Any) -> Any:
    """A model with the same tensors, whose modules may be changed."""
    return copy.deepcopy(model, {id(x): x for x in (*model.parameters(), *model.buffers())})


class _Encoder(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.shown = model, type(model) in SHOWN  # which a tracer would not know

    def forward(self, source: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        states, pairs = self.model.encode(source).states, []
        layer: Any
        for layer in self.model.decoder.layers:
            attention = layer.cross_attention.sublayer
            parts = attention.key_value(states).split(attention.widths[1:], -1)
            pairs.append([x.unflatten(-1, (attention.kv_heads, -1)).transpose(1, 2) for x in parts])
        keep = torch.ones_like(states[..., 0]) > 0 if self.shown else source != self.model.config.pad
        return keep, [k for k, _ in pairs], [v for _, v in pairs]


class _Decoder(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = _own(model)
        layer: Any
        for layer in self.model.decoder.layers:
            layer.cross_attention.sublayer = _Read(layer.cross_attention.sublayer)

    def forward(
        self,
        token: Tensor,
        keep: Tensor,
        memory_keys: list[Tensor],
        memory_values: list[Tensor],
        past_keys: list[Tensor],
        past_values: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        B, K = token.shape
        for x in (keep, *memory_keys, *memory_values):  # the exporter would take equal sizes for different ones
            torch._check(x.shape[0] == B and x.shape[x.dim() // 2] == keep.shape[1])
        for x in (*past_keys, *past_values):
            torch._check(x.shape[0] == B and x.shape[1] == K and x.shape[3] == past_keys[0].shape[3])
        pairs = zip(past_keys, past_values, strict=True)
        own: list[Any] = [_Past(k.flatten(0, 1), v.flatten(0, 1), k.shape[3]) for k, v in pairs]
        read = [KeyValues(k, v, k.shape[2]) for k, v in zip(memory_keys, memory_values, strict=True)]
        cache = Cache(LayerCache(*pair) for pair in zip(own, read, strict=True))
        memory = Memory(keep, keep[:, None, None])  # nobody reads its states: their keys and values are in the cache
        logits = self.model.decode(token.flatten()[:, None], memory, cache)[:, -1]
        keys, values = ([getattr(past, part).unflatten(0, (B, K)) for past in own] for part in ("keys", "values"))
        return logits.unflatten(0, (B, K)), keys, values


class _Read(nn.Module):
    """The attention to a memory whose keys and values are at hand; K rows read one sentence."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, memory: Tensor, *, mask: Tensor, cache: KeyValues) -> Tensor:
        attention, k, v = self.attention, cache.keys, cache.values
        assert k is not None
        assert v is not None
        q = attention.query(x).reshape(k.shape[0], -1, attention.heads, attention.d_k).transpose(1, 2)  # (B, H, K, d_k)
        heads = attend(q, k, v, mask=mask, scale=attention.config.scale, backend="math")
        return attention.output(heads.transpose(1, 2).reshape(x.shape[0], 1, -1))


class _Past(KeyValues):
    """Keys and values that grow by concatenation: a graph has no buffers."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = k if self.keys is None else torch.cat([self.keys, k], 2)
        self.values = v if self.values is None else torch.cat([self.values, v], 2)
        return self.keys, self.values


def _numbered(count: int, *names: str) -> list[str]:
    return [f"{name}.{i}" for name in names for i in range(count)]


def _flat(name: str, x: Any) -> list[str]:
    """The names of an input, or of all within it."""
    inner = enumerate(x) if isinstance(x, list) else x.items() if isinstance(x, dict) else None
    return [name] if inner is None else [flat for key, each in inner for flat in _flat(f"{name}.{key}", each)]


def _export(module: nn.Module, inputs: dict[str, tuple[Any, Any]], outputs: list[str], path: Path) -> None:
    """Write a graph; an input is an example, or a list of them, and which of its dimensions are free."""
    logs = {log: log.level for log in map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for log in logs:
            log.setLevel(logging.ERROR)  # they miss packages that we have no use for
        examples, free = ({name: each[i] for name, each in inputs.items()} for i in (0, 1))
        by_place = isinstance(module, _Calling)  # whose inputs have no names of their own
        try:
            program: Any = torch.onnx.export(
                module.eval(),
                tuple(examples.values()) if by_place else (),
                kwargs=None if by_place else examples,
                dynamic_shapes=(tuple(free.values()),) if by_place else free,
                input_names=[*chain(*(_flat(name, x) for name, (x, _) in inputs.items()))],
                output_names=outputs,
                opset_version=OPSET,
                verbose=False,
                dynamo=True,
            )
        except torch.onnx.OnnxExporterError as error:
            why = str(error.__cause__ or error).splitlines()[0]
            raise ValueError(f"PyTorch makes no graph of this model: {why}") from error
        finally:
            for log, level in logs.items():
                log.setLevel(level)
    for node in program.model.graph.all_nodes():
        for each in (node, *node.outputs):
            each.metadata_props.clear()  # where in our files on this machine it comes from
    stored = program.model.graph.initializers
    program.model.metadata_props[NAMED] = json.dumps(
        _places(module, {x: stored[x].const_value.numpy() for x in stored})
    )
    program.save(str(path), external_data=sum(x.const_value.nbytes for x in stored.values()) > LARGE)


def _places(module: nn.Module, stored: dict[str, Any]) -> dict[str, str]:
    """Where in a graph each tensor of a model is: an exporter renames, turns round (^T) and shares them as it likes."""
    found = {_content(x): name for name, x in stored.items()}
    places = {}
    for name, x in module.state_dict().items():
        for turned, y in (("", x), ("^T", x.mT)) if x.dim() == 2 else (("", x),):
            if (place := found.get(_content(y.detach().numpy()))) is not None:
                places[name.removeprefix("model.")] = place + turned
                break
    return places


def _content(x: Any) -> tuple[tuple[int, ...], bytes]:
    return x.shape, hashlib.sha256(np.ascontiguousarray(x).data).digest()


def _quantise(path: Path) -> None:
    """Put the matrices of a graph in eight bits, in place; activations are rounded as it runs."""
    model = need("onnx", "convert").load(str(path))
    nodes = [node for node in model.graph.node if node.op_type == "Gemm"]  # whose matrices are turned round for it
    turned = {n.input[1] for n in nodes if any(each.name == "transB" and each.i for each in n.attribute)}
    (named,) = (each for each in model.metadata_props if each.key == NAMED)
    named.value = json.dumps({x: f"{at}^T" if at in turned else at for x, at in json.loads(named.value).items()})
    del model.graph.value_info[:]  # shapes of what lies between, which are found anew
    for each in (path, path.with_name(f"{path.name}.data")):
        each.unlink(missing_ok=True)
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # it would have us prepare the graph, for which there is no need
    try:
        need("onnxruntime.quantization", "convert").quantize_dynamic(model, path)
    finally:
        log.setLevel(level)


WRITERS: dict[type[Any], Callable[[Source, Any, Path, bool], None]] = {
    **dict.fromkeys((Encoder, Decoder, Seer), _write_one),
    **dict.fromkeys((Vision, Video, Audio), _write_shown),
    Pair: _write_towers,
    GraphTransformer: _write_graph,
    **dict.fromkeys((Transformer, Captioner, Listener), _write_two),
}


class Onnx(Module):
    """The graphs of a directory, run by onnxruntime: every search of regard works on them.

    >>> from regard.decoding.pool import search                                  # doctest: +SKIP
    >>> search(Onnx("model-onnx"), requests, SearchConfig(beam=4), eos)          # doctest: +SKIP
    """

    def __init__(self, directory: str | Path, *, threads: int = 1) -> None:
        super().__init__(_Graphs(Path(directory), threads))


class _Graphs(EncoderDecoder):
    """An encoder-decoder of two graphs."""

    def __init__(self, directory: Path, threads: int) -> None:
        runtime = need("onnxruntime", "convert")
        for name in (CONFIG, ENCODER, DECODER):
            if not (directory / name).is_file():
                raise ValueError(f"{directory} is not a directory that regard exported to ONNX: it has no {name}")
        about = json.loads((directory / CONFIG).read_text("utf-8"))
        about["config"].pop("kept_heads", None)  # which an older regard has written, empty
        self.config: Any = family(about.get("family", "transformer")).config(**about["config"])
        self.key_value: tuple[int, int, int] = tuple(about["key_value"])
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.encoder, self.decoder = (
            runtime.InferenceSession(directory / name, options, ["CPUExecutionProvider"]) for name in (ENCODER, DECODER)
        )

    def encode(self, source: Tensor) -> "_Memory":
        names = [output.name for output in self.encoder.get_outputs()]
        (read,) = self.encoder.get_inputs()
        return _Memory(zip(names, self.encoder.run(None, {read.name: source.numpy()}), strict=True))

    def start(self, sources: Sequence[Any], device: torch.device) -> Reading:
        if not isinstance(sources[0], Tensor):
            return super().start(sources, device)
        return Reading(self.encode(torch.stack([*sources])), self.new_cache())

    def room(self, source: Any) -> int | None:
        return longest(self) if isinstance(source, Tensor) else super().room(source)

    def new_cache(self) -> "_Decoded":
        return _Decoded()

    def decode(self, target: Tensor, memory: "_Memory", cache: Any = None) -> Tensor:
        B, R = len(memory["keep"]), len(target)  # R = B · K
        if not cache:
            G, *widths = self.key_value
            for name, d in zip(("past_keys", "past_values"), widths, strict=True):
                empty = np.zeros((R, G, 0, d), np.float32)
                cache.update(dict.fromkeys(_numbered(self.config.decoder_layers, name), empty))
        past = {name: x.reshape(B, R // B, *x.shape[1:]) for name, x in cache.items()}
        logits, *new = self.decoder.run(None, {"token": target.numpy().reshape(B, -1), **memory, **past})
        cache.update((name, x.reshape(R, *x.shape[2:])) for name, x in zip(cache, new, strict=True))
        return torch.from_numpy(logits.reshape(R, 1, -1))


class _Memory(dict[str, Any]):
    """What the encoder found, by name."""

    def reorder(self, index: Tensor) -> "_Memory":
        return _Memory((name, x[index.numpy()]) for name, x in self.items())


class _Decoded(dict[str, Any]):
    """Keys and values of the past, (R, G, T, d) by name; those of the memory are with the memory."""

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        if rows is not None:
            self.update((name, x[rows.numpy()]) for name, x in self.items())
