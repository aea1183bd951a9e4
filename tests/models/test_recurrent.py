"""Recurrent encoder-decoders: PyTorch's cells, the papers' equations by hand, decoding as in training, alignments."""

from collections.abc import Callable
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.core.recurrence import LinearRecurrence
from regard.data.batching import Batch, collate
from regard.data.generated import SymbolPair, sequence_pairs
from regard.data.vocabulary import BOS, EOS, PAD, Vocabulary
from regard.decoding.module import Module
from regard.decoding.protocol import SearchConfig
from regard.inspection.maps import attention_maps
from regard.inspection.taps import attentions, edit, record
from regard.models.costs import footprint, forward_flops, parameters
from regard.models.recurrent import FAMILY, Cell, CellDecoder, Recurrent, RecurrentConfig
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule
from tests.decoding.toys import asking, search

V = 13

KINDS: dict[str, dict[str, Any]] = {
    "rnn-luong": {"cell": "rnn"},
    "gru-bahdanau": {"cell": "gru", "attention": "bahdanau"},
    "gru-whole": {"cell": "gru", "input_feeding": False, "score": "dot"},
    "lstm-luong": {"cell": "lstm"},
    "lstm-bahdanau-heads": {"cell": "lstm", "attention": "bahdanau", "heads": 2, "decoder_layers": 1},
    "lstm-whole": {"cell": "lstm", "input_feeding": False, "score": "concat", "encoder_layers": 1},
    "lstm-one-way": {"cell": "lstm", "bidirectional": False, "score": "location", "tie": "none"},
    "lstm-sparse": {"cell": "lstm", "normaliser": "sparsemax", "tie": "target", "source_vocabulary": 17},
    "lstm-monotonic": {"cell": "lstm", "normaliser": "monotonic"},
    "linear": {"cell": "linear", "input_feeding": False, "heads": 2},
    "linear-one-way": {"cell": "linear", "input_feeding": False, "bidirectional": False, "d_ff": 5, "heads": 4},
    "linear-additive": {"cell": "linear", "input_feeding": False, "score": "additive", "normaliser": "entmax"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Recurrent:
    torch.manual_seed(0)
    model = Recurrent(RecurrentConfig(**{"vocabulary": V, "d_model": 8, **KINDS[kind], **changes})).eval().to(dtype)
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)  # away from zero biases
    return model


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(seed))


@every_kind
def test_shapes_and_features(kind: str) -> None:
    model, source, target = build(kind), tokens(2, 6), tokens(2, 5, 2)
    logits = model(source, target)
    assert logits.shape == (2, 5, V)
    torch.testing.assert_close(model.output(model.features(source, target)), logits)


@every_kind
def test_token_by_token_is_the_whole(kind: str) -> None:
    model, source, target = build(kind), tokens(3, 6), tokens(3, 7, 2)
    with torch.no_grad():
        whole, memory, cache = model(source, target), model.encode(source), model.new_cache()
        parts = [model.decode(part, memory, cache) for part in target.split([1, 1, 3, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@every_kind
def test_no_word_sees_a_later_one(kind: str) -> None:
    model, source, target = build(kind), tokens(1, 6), tokens(1, 7, 2)
    other = target.clone()
    other[:, 4:] = (other[:, 4:] + 1) % V
    with torch.no_grad():
        one, two = model(source, target), model(source, other)
    assert torch.equal(one[:, :4], two[:, :4])
    assert not torch.allclose(one[:, 4:], two[:, 4:])


@every_kind
def test_padding_and_company_change_nothing(kind: str) -> None:
    model = build(kind)
    source, target = tokens(3, 8), tokens(3, 6, 2)
    lengths = [(8, 6), (3, 2), (1, 4)]
    for row, (S, T) in enumerate(lengths):
        source[row, S:], target[row, T:] = PAD, PAD
    with torch.no_grad():
        together = model(source, target)
        for row, (S, T) in enumerate(lengths):
            alone = model(source[row : row + 1, :S], target[row : row + 1, :T])
            torch.testing.assert_close(together[row : row + 1, :T], alone)


@every_kind
def test_each_word_of_the_source_matters_from_either_end(kind: str) -> None:
    if "one-way" in kind:
        pytest.skip("a state that has not seen the end")
    model, source = build(kind), tokens(1, 6)
    with torch.no_grad():
        states = model.encode(source).states
        for place in (0, 5):
            changed = source.clone()
            changed[0, place] = 3 + (changed[0, place] - 2) % (V - 3)
            moved = (model.encode(changed).states - states).abs().amax(-1)[0]
            assert (moved > 1e-6).all()


@every_kind
def test_a_source_of_padding_alone_is_no_trouble(kind: str) -> None:
    model, source = build(kind), tokens(2, 4)
    source[1] = PAD
    logits = model(source, tokens(2, 3, 2))
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every_kind
def test_several_rows_may_read_one_memory_and_be_reordered(kind: str) -> None:
    model, source = build(kind), tokens(3, 6)
    source[1, 4:] = PAD
    written = tokens(6, 4, 3)  # two rows for each sentence
    with torch.no_grad():
        expected = model(source.repeat_interleave(2, 0), written)
        memory, cache = model.encode(source), model.new_cache()
        for t in range(2):
            torch.testing.assert_close(model.decode(written[:, t : t + 1], memory, cache)[:, 0], expected[:, t])
        rows, kept = torch.tensor([5, 4, 0, 0]), torch.tensor([2, 0])  # two of the last sentence, two of the first
        memory = memory.reorder(kept)
        cache.reorder(rows, kept)
        torch.testing.assert_close(model.decode(written[rows, 2:3], memory, cache)[:, 0], expected[rows, 2])


@every_kind
def test_a_beam_wide_enough_finds_what_trying_everything_finds(kind: str) -> None:
    model, sources = build(kind, torch.float32, vocabulary=5), [[3, 4, 4, EOS], [4, EOS]]
    config = SearchConfig(beam=64, best=20, alpha=0.0, extra=0)
    found = search(Module(model), [asking(source) for source in sources], config)
    for source, hypotheses in zip(sources, found, strict=True):
        ended = {tuple(h.tokens): h.log_probability for h in hypotheses if len(h.token_scores) > len(h.tokens)}
        tried: dict[tuple[int, ...], float] = {}
        for length in range(len(source)):  # and the end
            all_of = list(product([token for token in range(5) if token != EOS], repeat=length))
            written, labels = (
                torch.tensor([[*b, *said, *e] for said in all_of]) for b, e in (([BOS], []), ([], [EOS]))
            )
            log_p = model(torch.tensor([source] * len(all_of)), written).log_softmax(-1)
            tried |= zip(all_of, log_p.gather(2, labels[:, :, None]).sum((1, 2)).tolist(), strict=True)
        best = sorted(tried, key=lambda said: -tried[said])[: len(ended)]
        assert list(ended) == best
        assert list(ended.values()) == pytest.approx([tried[said] for said in best], abs=1e-4)


@pytest.mark.parametrize(("kind", "module"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_the_encoder_is_pytorchs_of_a_packed_batch(kind: str, module: Callable[..., nn.RNNBase]) -> None:
    model = build(f"{kind}-luong" if kind != "gru" else "gru-bahdanau")
    oracle = module(8, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    for i, layer in enumerate(model.encoder.layers):  # type: ignore[arg-type]
        for cell, suffix in ((layer.onward, ""), (layer.back, "_reverse")):
            for name, p in cell.run.named_parameters():
                oracle.get_parameter(name.replace("l0", f"l{i}") + suffix).data.copy_(p.data)
    source = tokens(3, 7)
    source[1, 4:], source[2, 1:] = PAD, PAD
    packed = nn.utils.rnn.pack_padded_sequence(
        model.source_embedding(source), torch.tensor([7, 4, 1]), batch_first=True, enforce_sorted=False
    )
    states, _ = nn.utils.rnn.pad_packed_sequence(oracle(packed)[0], batch_first=True)
    mine = model.encode(source).states
    for row, length in enumerate((7, 4, 1)):
        torch.testing.assert_close(mine[row, :length], states[row, :length])


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_step_of_a_cell_is_a_step_of_the_whole_in_value_and_gradient(kind: str) -> None:
    torch.manual_seed(0)
    cell, x = Cell(kind, 5, 4).double(), torch.randn(2, 6, 5, dtype=torch.float64)
    state = tuple(torch.randn(2, 4, dtype=torch.float64) for _ in range(2 if kind == "lstm" else 1))
    whole, last = cell(x, state)
    steps = []
    for word in x.unbind(1):
        h, state = cell(word, state)
        steps.append(h)
    by_step = torch.stack(steps, 1)
    torch.testing.assert_close(by_step, whole)
    torch.testing.assert_close(state, last)
    wanted = list(cell.parameters())
    one, other = (torch.autograd.grad(y.square().sum(), wanted) for y in (by_step, whole))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def by_hand(model: Recurrent, source: Tensor, target: Tensor) -> Tensor:
    """The equations of Luong (input feeding, general score) or of Bahdanau, for one layer of LSTM and one sentence."""
    c, decoder = model.config, model.decoder
    assert isinstance(decoder, CellDecoder)
    memory = model.encode(source).states[0]  # (S, d)
    (layer,) = decoder.layers
    W_x, W_h, b_x, b_h = layer.run.parameters()  # type: ignore[union-attr]
    half = c.d_model // 2
    ended = torch.cat([memory[-1, :half], memory[0, half:]])
    h, cell = torch.tanh(decoder.start.weight @ ended + decoder.start.bias).chunk(2)
    result, out, score = torch.zeros_like(h), [], decoder.cross_attention.score

    def attend(query: Tensor) -> Tensor:
        if c.attention == "luong":
            scores = torch.stack([query @ score.matrix[0] @ key for key in memory])  # type: ignore[index]
        else:
            W_q, W_k, v = (score.get_parameter(name)[0] for name in ("query", "key", "vector"))
            scores = torch.stack([torch.tanh(query @ W_q + key @ W_k) @ v[:, 0] for key in memory])
        weights = scores.exp() / scores.exp().sum()
        return sum((w * value for w, value in zip(weights, memory, strict=True)), torch.zeros_like(query))

    for word in model.target_embedding(target)[0]:
        fed = result if c.attention == "luong" else attend(h)
        gates = W_x @ torch.cat([word, fed]) + b_x + W_h @ h + b_h
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        h = o.sigmoid() * cell.tanh()
        context = attend(h) if c.attention == "luong" else fed
        result = torch.tanh(decoder.readout.weight @ torch.cat([context, h]))
        out.append(result)
    return torch.stack(out)[None]


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
def test_the_decoder_is_the_equations_of_the_paper(attention: str) -> None:
    model, source, target = build("lstm-luong", decoder_layers=1, attention=attention), tokens(1, 5), tokens(1, 4, 2)
    torch.testing.assert_close(model.features(source, target), by_hand(model, source, target))


@pytest.mark.parametrize("kind", ["lstm-luong", "gru-whole", "linear"])
def test_a_scale_multiplies_the_scores(kind: str) -> None:
    usual, halved = build(kind), build(kind, scale=0.5)
    halved.load_state_dict(usual.state_dict())
    usual_scale = 8**-0.5 * 2**0.5 if kind == "linear" else 1.0  # 1/√d_k of two heads; as they are of one
    seen = []
    for model in (usual, halved):
        with record(model, what="scores") as found:
            model.decode(tokens(2, 1), model.encode(tokens(2, 6)))
        seen.append(next(iter(found.scores.values())))  # of the first attention, which reads the same in both
    torch.testing.assert_close(seen[1], seen[0] * (0.5 / usual_scale))
    with pytest.raises(ValueError, match=r"scale = 0.5 is one of the scores dot and general; additive has none"):
        usual.config.but(scale=0.5, score="additive")


@every_kind
def test_every_parameter_learns(kind: str) -> None:
    model, source, target = build(kind).train(), tokens(2, 6), tokens(2, 5, 2)
    model(source, target).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().sum() > 0 or "location" in KINDS[kind].get("score", ""), name


@pytest.mark.parametrize("kind", ["gru-bahdanau", "lstm-luong", "linear"])
def test_the_gradient_is_the_slope(kind: str) -> None:
    model, source, target = build(kind, d_model=4), tokens(2, 3), tokens(2, 3, 2)
    source[1, 2:] = PAD
    names, values = zip(*model.named_parameters(), strict=True)

    def loss(*parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, given, (source, target), tie_weights=True).square().mean()

    assert torch.autograd.gradcheck(loss, values, fast_mode=True)


@every_kind
def test_what_is_recorded_is_the_whole_map(kind: str) -> None:
    model, source, target = build(kind), tokens(2, 6), tokens(2, 5, 2)
    with torch.no_grad():
        unseen = model(source, target)
        with record(model) as seen:
            torch.testing.assert_close(model(source, target), unseen)
        memory, cache, steps = model.encode(source), model.new_cache(), []
        for t in range(5):
            with record(model) as now:
                model.decode(target[:, t : t + 1], memory, cache)
            steps.append(dict(now.weights))
    assert set(seen) == set(attentions(model)) == {name for name in seen if name.endswith("cross_attention")}
    for name, weights in seen.weights.items():
        assert weights.shape == (2, model.config.heads, 5, 6)
        torch.testing.assert_close(weights, torch.cat([step[name] for step in steps], 2))


def test_an_edit_of_attention_changes_what_comes_after() -> None:
    model, source, target = build("lstm-luong"), tokens(1, 6), tokens(1, 5, 2)
    with torch.no_grad(), edit(model, {"decoder.cross_attention": {0: lambda w: torch.full_like(w, 1 / 6)}}):
        edited = model.features(source, target)
    with torch.no_grad():
        model.decoder.cross_attention.score.matrix.zero_()  # type: ignore[union-attr, operator]  # all keys alike
        torch.testing.assert_close(model.features(source, target), edited)


@every_kind
def test_maps_of_a_translation(kind: str) -> None:
    model, source, target = build(kind), tokens(1, 6), tokens(1, 5, 2)
    maps = attention_maps(model, {"source": source, "target": target}, {"source": [*"abcdef"], "target": [*"vwxyz"]})
    assert len(maps) == len(attentions(model)) > 0
    for shown in maps:
        assert shown.weights.shape == (model.config.heads, 5, 6)
        assert (shown.queries, shown.keys) == ([*"vwxyz"], [*"abcdef"])


def test_how_training_begins() -> None:
    cell = Cell("lstm", 3, 4).run
    for gate in cell.get_parameter("weight_hh_l0").detach().split(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(4))
    assert cell.get_parameter("bias_ih_l0").tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    model = Recurrent(RecurrentConfig.lstm(V))
    assert model.output.weight is model.target_embedding.tokens.weight is model.source_embedding.tokens.weight


def test_dropout_is_drawn_anew_and_only_in_training() -> None:
    model, source, target = build("lstm-luong", dropout=0.5), tokens(2, 6), tokens(2, 5, 2)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


@every_kind
def test_half_precision_is_close(kind: str) -> None:
    if "monotonic" in kind:
        pytest.skip("a hard choice may fall elsewhere")
    model, source, target = build(kind, torch.float32), tokens(2, 6), tokens(2, 5, 2)
    with torch.no_grad():
        exact = model.features(source, target)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model.features(source, target).float(), exact, rtol=0.0, atol=0.25)


def test_a_linear_model_keeps_states_of_one_size() -> None:
    model = build("linear")
    memory, cache = model.encode(tokens(2, 6)), model.new_cache()
    sizes = set()
    for t in range(5):
        model.decode(tokens(2, 1, t), memory, cache)
        sizes.add(tuple(sum(part.numel() for part in past.state) for past in cache))
    assert sizes == {(16, 16)}
    assert all(isinstance(block.recurrence.sublayer, LinearRecurrence) for block in model.decoder.layers)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "ltsm"}, "cell = 'ltsm': choose rnn, gru, lstm or linear"),
        ({"attention": "bahdanaux"}, "attention = 'bahdanaux': choose luong or bahdanau"),
        ({"score": "cosine"}, "score = 'cosine'"),
        ({"normaliser": "max"}, "unknown normaliser 'max'"),
        ({"d_model": 7}, "d_model = 7 does not halve into two directions"),
        ({"d_model": 10, "heads": 4}, "d_model = 10 does not divide into 4 heads"),
        ({"cell": "linear"}, "input_feeding = false"),
        ({"cell": "linear", "attention": "bahdanau"}, "attention = luong"),
        ({"d_ff": 64}, "d_ff = 64: only cell = 'linear'"),
        ({"attention": "bahdanau", "input_feeding": False}, "feeds its context to the cell"),
        ({"source_vocabulary": 9}, "use one joint vocabulary, or tie='target'"),
        ({"encoder_layers": 0}, "encoder_layers = 0: it must be at least 1"),
        ({"dropout": 1.5}, "dropout = 1.5"),
        ({"pad": 99}, "pad = 99 is no token"),
        ({"layers": 3}, "no setting 'layers'"),
    ],
    ids=str,
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecurrentConfig(V, d_model=8).but(**changes)


@every_kind
def test_rows_that_do_not_fit_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="target and source do not fit together: 3 rows read 2"):
        build(kind)(tokens(2, 6), tokens(3, 5))


@pytest.mark.parametrize("cell", ["lstm-one-way", "linear"])
def test_a_location_score_reaches_as_far_as_told(cell: str) -> None:
    model = build(cell, score="location", max_length=9)
    assert Module(model).room([1]) == 9  # so that a search refuses what is longer before it begins
    assert model(tokens(2, 9), tokens(2, 3)).shape == (2, 3, V)
    with pytest.raises(ValueError, match="10 keys are more than the 9 positions"):
        model(tokens(2, 10), tokens(2, 3))
    assert parameters(model.config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", FAMILY.presets)
def test_presets_have_the_size_of_a_tiny_transformer(name: str) -> None:
    model = Recurrent(FAMILY.presets[name](V))
    words = model.output.weight.numel()
    assert 1.1e6 < sum(p.numel() for p in model.parameters()) - words < 1.5e6  # tiny: 1.3 million


@every_kind
def test_parameters_of_the_account_are_those_of_the_model(kind: str) -> None:
    model = build(kind, d_model=12)
    assert parameters(model.config) == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:TF32")  # a remark of PyTorch's about other machines
@every_kind
def test_flops_of_the_account_are_those_that_torch_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kind, torch.float32, d_model=12)
    account = forward_flops(model.config, 3, 7, 5)
    # PyTorch counts matrix products alone: v · tanh(q + k) as one.
    added = lambda q, k, v: ((q[:, :, :, None] + k[:, :, None]).tanh() @ v[:, None]).squeeze(-1)  # noqa: E731
    monkeypatch.setattr("regard.core.scores._added", added)
    # PyTorch does not look into fused kernels; without them, the same products are made one by one.
    slow = torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH)
    with slow[0], slow[1], FlopCounterMode(display=False) as counter:
        model(tokens(3, 7), tokens(3, 5, 2))
    assert account == counter.get_total_flops()


@every_kind
def test_the_cache_of_the_account_is_what_decoding_keeps(kind: str) -> None:
    model = build(kind, torch.float32)
    with torch.no_grad():
        memory, cache = model.encode(tokens(1, 6)), model.new_cache()
        for t in range(3):
            model.decode(tokens(1, 1, t), memory, cache)
    size = footprint(model.config, 1, 6, 3)
    assert size.cache_per_target_token == 0
    assert size.cache_per_sentence == 4 * sum(part.numel() for past in cache for part in past.state)
    read = [x for past in cache for x in (past.cross_attention.keys, past.cross_attention.values) if x is not None]
    assert 6 * size.cache_per_source_token == 4 * sum(x.numel() for x in read)


DIGITS = "0123456789"
VOCABULARY = Vocabulary(tuple(DIGITS))


def batch(pairs: list[SymbolPair]) -> Batch:
    return collate((VOCABULARY.encode(source), VOCABULARY.encode(target)) for source, target in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task"), [("gru-bahdanau", "copy"), ("lstm-luong", "reverse"), ("linear", "reverse")])
def test_a_small_model_learns(kind: str, task: str) -> None:
    torch.manual_seed(0)
    lengths, steps = range(3, 7), 250
    shape = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = Recurrent(RecurrentConfig(len(VOCABULARY), **{**KINDS[kind], **shape}))
    pairs = sequence_pairs(task, symbols=DIGITS, lengths=lengths, seed=0)
    batches = [list(islice(pairs, 64)) for _ in range(steps)]
    for _report in fit(
        model,
        map(batch, batches),
        schedule(ScheduleConfig("linear", peak=8e-3, warmup=20), total=steps),
        smoothing=0.0,
    ):
        pass
    known = {pair.source for pairs in batches for pair in pairs}
    unseen = (p for p in sequence_pairs(task, symbols=DIGITS, lengths=lengths, seed=1) if p.source not in known)
    test = list(islice(unseen, 300))
    requests = [asking([*VOCABULARY.encode(pair.source), EOS]) for pair in test]
    found = search(Module(model.eval()), requests, SearchConfig(beam=2))
    right = sum(VOCABULARY.decode(h.tokens) == list(pair.target) for (h,), pair in zip(found, test, strict=True))
    assert right / len(test) >= 0.95
