"""What an attention costs in any family, and what the recurrent and the convolutional family cost.

Letters: S and T tokens of source and target, h heads, g key/value heads, d_k and d_v widths of a head, d d_model.

The rule is that of `regard.models.accounting`: a matrix (d_in, d_out) has d_in · d_out weights, and each of them is 2
FLOPs for every token that passes.
"""

from dataclasses import dataclass

import torch

from regard.core.attention import AttentionConfig
from regard.core.efficient import PATTERNS, Kind
from regard.core.linear import CHUNK
from regard.core.normalisers import ALONG_A_MEMORY, read_normaliser
from regard.core.sparse import Pattern, Sparse
from regard.models.convolutional import ConvolutionalConfig
from regard.models.recurrent import RecurrentConfig

GATES_OF_A_CELL = {"rnn": 1, "gru": 3, "lstm": 4}


@dataclass(frozen=True)
class Part:
    """One row of the account."""

    name: str
    parameters: int
    flops: int = 0  # of a forward pass


def attention(
    c: AttentionConfig, d_memory: int, sentences: int, queries: int, keys: int, is_causal: bool = False
) -> tuple[int, int]:
    """Parameters and FLOPs of an attention in which so many queries of each sentence read keys of width d_memory.

    What is computed counts, even if it is hidden afterwards: all pairs of full attention, whole blocks of a sparse one.

    >>> attention(AttentionConfig(d_model=512, heads=8), 512, sentences=1, queries=25, keys=25)
    (1050624, 53708800)
    """
    h, g, width = c.heads, c.kv_heads or c.heads, c.d_model // c.heads
    d_q, d_v = c.d_k or width, c.d_v or width
    d_k = d_q
    if c.project:  # §3.2.2: W_Q, W_K and W_V
        W_Q, W_K, W_V = c.d_model * h * d_q, d_memory * g * d_k, d_memory * g * d_v
        biases = c.bias * (h * d_q + g * d_k + g * d_v)
    else:  # heads are slices of the memory
        W_Q = W_K = W_V = biases = 0
        d_k = d_v = d_memory // h
    W_O = c.output * h * d_v * c.d_model
    biases += c.output * c.bias * c.d_model
    # A score has matrices for queries and for keys, and numbers besides; then a sum over `inner` for every pair.
    S_Q = S_K = others = 0
    inner = d_k
    if c.score == "general":
        S_Q = h * d_q * d_k
    elif c.score in ("additive", "concat"):
        S_Q, S_K, others, inner = h * d_q * d_q, g * d_k * d_q, h * d_q, d_q
    elif c.score == "location":
        others, inner = h * d_q * c.max_length, d_q
    pairs = h * (inner + d_v)  # h even where g < h: heads share keys, not scores
    normaliser, chunk = read_normaliser(c.normaliser)
    if normaliser in ALONG_A_MEMORY:  # r of each head; within a chunk a general score of its own, of what `inner` is
        others += h
        if chunk > 1:
            read = d_q if S_K else d_k
            S_Q, pairs = S_Q + h * d_q * read, pairs + h * read
    mixing = queries * keys * pairs
    if c.kind != "full":
        others, mixing = _efficient(c, h, d_k, d_v, keys, is_causal)
    numbers = W_Q + W_K + W_V + W_O + biases + S_Q + S_K + others
    products = queries * (W_Q + S_Q + W_O) + keys * (W_K + W_V + S_K) + mixing
    return numbers, 2 * sentences * products


def _efficient(c: AttentionConfig, h: int, d_k: int, d_v: int, n: int, is_causal: bool) -> tuple[int, int]:
    """Parameters, and multiplications over n positions, of what stands between the projections instead of eq. 1."""
    kind = Kind.read(c.kind)
    if kind.name in PATTERNS:  # as many pairs as there are in the blocks
        blocks = _pattern(c, kind).plan(n, is_causal)
        at = torch.arange(n)
        return 0, sum(len(at[rows]) * len(at[columns]) for rows, columns in blocks) * h * (d_k + d_v)
    if kind.name == "linformer":  # EK and FV; then n queries over R rows of them
        (R,) = kind.numbers
        return 2 * R * c.max_length, 2 * n * R * h * (d_k + d_v)
    (F,) = kind.numbers or (d_k,)
    features = 2 * n * F * d_k if kind.numbers else 0  # of queries and keys; elu + 1 is no product
    within = 0
    if is_causal:  # a chunk looks at itself directly
        whole, rest = divmod(n, CHUNK)
        within = (whole * CHUNK**2 + rest**2) * (F + d_v + 1)
    return 0, h * (features + 2 * n * F * (d_v + 1) + within)  # Σ φ(k) [v, 1]ᵀ, and φ(q) times it


def _pattern(c: AttentionConfig, kind: Kind) -> Pattern:
    inner = kind.make(d_k=1, max_length=c.max_length)
    assert isinstance(inner, Sparse)
    return inner.pattern


def attention_cache(c: AttentionConfig) -> tuple[int, int]:
    """Numbers that a causal self-attention keeps for each token, and at most for each sentence.

    >>> attention_cache(AttentionConfig(512, 8)), attention_cache(AttentionConfig(512, 8, kind="window:9"))
    ((1024, 0), (0, 9216))
    """
    g, width = c.kv_heads or c.heads, c.d_model // c.heads
    d_k, d_v = c.d_k or width, c.d_v or width
    kind = Kind.read(c.kind)
    if kind.name in ("performer", "linear") and c.backend != "math":  # the sums, and their level
        (F,) = kind.numbers or (d_k,)
        return 0, g * (F * (d_v + 1) + 1)
    if kind.name in PATTERNS and c.backend != "math" and (past := _pattern(c, kind).past()):
        return 0, g * (d_k + d_v) * (past.first + past.last)
    return g * (d_k + d_v), 0


def recurrent(c: RecurrentConfig, sentences: int, source: int, target: int) -> list[Part]:
    """The account of a recurrent model, as `accounting.breakdown` gives it; a scan is no matrix product."""
    d, N, M = c.d_model, c.encoder_layers, c.decoder_layers
    S, T = sentences * source, sentences * target
    numbers, flops = attention(c.cross_attention, d, sentences, target, source)
    words = c.vocabulary * d
    embeddings = Part("embeddings", words + (0 if c.tie == "all" else (c.source_vocabulary or c.vocabulary) * d))
    output = Part("output", words if c.tie == "none" else 0, 2 * T * words)
    if c.cell == "linear":  # a Transformer's layers, with W_z, W_v, W_g and W_O in place of W_Q, W_K, W_V and W_O
        d_ff, norm = c.d_ff or 2 * d, 2 * d
        W_R, W_F = 4 * d * d, 2 * d * d_ff
        return [
            embeddings,
            Part("encoder recurrence", N * (W_R + 4 * d), N * 2 * S * W_R),
            Part("encoder feed-forward", N * (W_F + d_ff + d), N * 2 * S * W_F),
            Part("encoder norms", (2 * N + 1) * norm),
            Part("decoder recurrence", M * (W_R + 4 * d), M * 2 * T * W_R),
            Part("decoder cross-attention", M * numbers, M * flops),
            Part("decoder feed-forward", M * (W_F + d_ff + d), M * 2 * T * W_F),
            Part("decoder norms", (3 * M + 1) * norm),
            output,
        ]
    # A gate reads the input and the state, d_in + d_out -> d_out; PyTorch gives each of the two a bias.
    gates = GATES_OF_A_CELL[c.cell]
    directions = 2 if c.bidirectional else 1
    W_E = N * gates * d * (d + d // directions)  # each direction is d / directions wide
    W_D = gates * d * (M * 2 * d + (d if c.input_feeding else 0))
    begun = d * _states(c) * d  # once for each sentence
    return [
        embeddings,
        Part("encoder cells", W_E + N * 2 * gates * d, 2 * S * W_E),
        Part("decoder start", begun + _states(c) * d, 2 * sentences * begun),
        Part("decoder cells", W_D + M * 2 * gates * d, 2 * T * W_D),
        Part("decoder cross-attention", numbers, flops),
        Part("decoder readout", 2 * d * d, 2 * T * 2 * d * d),
        output,
    ]


def recurrent_cache(c: RecurrentConfig) -> tuple[int, int, int]:
    """Numbers that a decoder keeps for each target token, each source token and each sentence."""
    if c.cell == "linear":
        return 0, c.decoder_layers * 2 * c.d_model, _states(c) * c.d_model
    return 0, 2 * c.d_model, (_states(c) + 1) * c.d_model  # and the last h̃


def _states(c: RecurrentConfig) -> int:
    """Vectors that the decoder's layers carry from word to word."""
    return c.decoder_layers * (2 if c.cell == "lstm" else 1)


def convolutional(c: ConvolutionalConfig, sentences: int, source: int, target: int) -> list[Part]:
    """The account of a convolutional model, as `accounting.breakdown` gives it."""
    d, N, M, A = c.d_model, c.encoder_layers, c.decoder_layers, len(c.attending)
    gated = c.style == "convs2s"
    columns = source if gated else int(c.unfold * source) + 1
    S, T = sentences * columns, sentences * target
    if gated:  # kernel · d -> 2 · d, a value and its gate
        W, biases, norms = c.kernel * d * 2 * d, 2 * d, 0
    else:  # d -> d/2, kernel · d/2 -> d/2, d/2 -> d; norms before each
        half = d // 2
        W, biases, norms = d * half + c.kernel * half * half + half * d, half + half + d, 2 * (d + half + half)
    read = 0 if gated else d * d  # the product of each column
    last = 0 if gated else 2 * d  # the norm at the end of a stack
    numbers, flops = attention(c.cross_attention, 2 * d if gated else d, sentences, target, source)
    words = c.vocabulary * d
    source_words = 0 if c.tie == "all" else (c.source_vocabulary or c.vocabulary) * d
    parts = [
        Part("embeddings", source_words + words),
        Part("positions", 2 * c.max_length * d if c.positions == "learned" else 0),
        Part("encoder convolutions", N * (W + biases), N * 2 * S * W),
        Part("encoder norms", N * norms + last),
        Part("decoder columns", read, 2 * sentences * min(target, columns) * read),
        Part("decoder convolutions", M * (W + biases), M * 2 * T * W),
        Part("decoder cross-attention", A * numbers, A * flops),
        Part("decoder norms", M * norms + (0 if gated else A * 2 * d) + last),
        Part("output", words if c.tie == "none" else 0, 2 * T * words),
    ]
    return [part for part in parts if part.parameters or part.flops]  # one style has norms and columns, the other none


def convolutional_cache(c: ConvolutionalConfig) -> tuple[int, int, int]:
    """Numbers that a decoder keeps for each target token, each source token and each sentence."""
    width = c.d_model if c.style == "convs2s" else c.d_model // 2
    reach = sum((c.kernel - 1) * c.dilation(i) for i in range(c.decoder_layers))
    return 0, len(c.attending) * 2 * c.d_model, reach * width
