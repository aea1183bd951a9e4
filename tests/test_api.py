"""A translator in Python: every search by name, the same answers in any company, and nothing of a text lost."""

import math
import re
import shutil
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.api import Translator
from regard.data.lexicon import Shortlist
from regard.data.sentences import unstopped
from regard.data.tokenizers import KINDS, Tokenizer, TokensConfig
from regard.data.vocabulary import BOS, EOS
from regard.decoding.protocol import Hypothesis
from regard.decoding.risk import choose
from regard.evaluation.translation import sentence_chrf
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native, UnavailableError
from regard.tasks.asks import Ask, DecodeConfig, Settings

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
LINES = [
    "a dog runs",
    "two men sit on a bench",
    "a woman reads.",
    "the man in the hat looks at a dog, don't do not ☕ 中文",
]
SIZES = {"bpe": 290, "unigram": 290, "wordpiece": 60, "byte": 0, "char": 0, "none": 0}


def tokenizer(kind: str = "bpe") -> Tokenizer:
    return Tokenizer.learn(TokensConfig(kind, size=SIZES[kind]), LINES * 3)


def make(seed: int = 3, kind: str = "bpe", **changes: object) -> Translator:
    """A model that has learned nothing, whose outputs are short."""
    tokens = tokenizer(kind)
    torch.manual_seed(seed)
    settings = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 32, "d_ff": 32, "heads": 2, **changes}
    model = Transformer(TransformerConfig.tiny(len(tokens), **settings))
    model.output.weight.data *= 4.0  # surer of itself
    return Translator(model, tokens, regard.tasks.asks.DecodeConfig(extra=6), engine="torch")


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make()


def test_a_list_is_translated_as_one_by_one_and_white_space_is_kept(translator: Translator) -> None:
    texts = [*LINES, "", "  ", "\n", f"  {LINES[0]}\t"]
    together = translator.translate(texts)
    assert together == [translator.translate(text) for text in texts]
    assert together[4:7] == ["", "  ", "\n"]
    assert together[7] == f"  {together[0]}\t"
    assert list(translator.translate_lines(iter(texts))) == together
    assert translator.translate(LINES, beam=1) != translator.translate(LINES, beam=4)


@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 1},
        {"beam": 4, "best": 3},
        {"beam": 4, "groups": 2},
        {"temperature": 0.5},
        {"mbr": 3},
        {"block": 2},
        {"forbid": "dog"},
        {"require": "dog"},
    ],
)
def test_only_a_blank_text_has_a_translation_without_a_token(engine: str, settings: dict[str, object]) -> None:
    silent = make(output_bias=True)
    silent.engine = engine
    with torch.no_grad():
        silent.model.output.bias[EOS] = 50.0
    for text, found in zip([*LINES, " "], silent.hypotheses([*LINES, " "], **settings), strict=True):
        assert all(h.tokens for h in found) == bool(text.strip())
        assert text.strip() or found[0].text == text
    assert silent.translate(LINES, **settings) == [silent.hypotheses(text, **settings)[0].text for text in LINES]
    if not {"best", "mbr"} & {*settings}:
        assert "".join(silent.stream(LINES[0], **settings)) == silent.translate(LINES[0], **settings)
    if "require" not in settings:
        assert silent.translate(LINES, **settings, shortest=0, keep=False) == [""] * len(LINES)
    assert silent.alternatives(LINES[0])[0].token != "</s>" == silent.alternatives(LINES[0], shortest=0)[0].token


def test_hypotheses_are_sorted_and_their_parts_make_the_whole(translator: Translator) -> None:
    for text, found in zip(LINES, translator.hypotheses(LINES, best=3), strict=True):
        assert len(found) == 3
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert found[0].text == translator.translate(text)
        for h in found:
            assert math.fsum(h.token_scores) == pytest.approx(h.log_probability, abs=1e-4)
            assert len(h.tokens) <= len(h.token_scores) <= len(h.tokens) + 1
            assert h.alignment is None
    assert translator.hypotheses("")[0].text == ""


def test_a_score_is_that_of_the_search(translator: Translator) -> None:
    (found,) = translator.hypotheses(LINES[0], beam=3)
    ids = translator.tokenizer.encode(found.text)
    if translator.tokenizer.pieces(ids) == found.tokens:  # else the text has another, likelier segmentation
        (score,) = translator.score([LINES[0]], [found.text])
        assert score.token_scores[: len(found.token_scores)] == pytest.approx(found.token_scores, abs=1e-4)
    scores = translator.score(LINES, LINES[::-1])
    for score, source, target in zip(scores, LINES, LINES[::-1], strict=True):
        assert score.tokens == [*translator.tokenizer.pieces(translator.tokenizer.encode(target)), "</s>"]
        assert score.log_probability == pytest.approx(translator.score([source], [target])[0].log_probability, abs=1e-4)
        assert score.perplexity == pytest.approx(math.exp(-sum(score.token_scores) / len(score.token_scores)))
    with pytest.raises(ValueError, match="1 sources and 2 targets"):
        translator.score(["a"], ["b", "c"])


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"beam": 8, "alpha": 0.0}, {"temperature": 1.0, "seed": 3}])
def test_what_is_streamed_is_the_translation(translator: Translator, settings: dict[str, object]) -> None:
    for text in [*LINES, "", "  ", f" {LINES[0]} "]:
        pieces = list(translator.stream(text, **settings))
        assert "".join(pieces) == translator.translate(text, **settings)
        assert all(pieces)
    two = "a dog runs. Two men sit."
    assert "".join(translator.stream(two, split=True, **settings)) == translator.translate(two, split=True, **settings)
    with pytest.raises(ValueError, match="nothing to stream"):
        list(translator.stream("a", mbr=4))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_text_that_was_streamed_is_never_taken_back(kind: str, data: st.DataObject) -> None:
    """Whatever the tokens, bytes of half characters among them."""
    translator = of_kind(kind)
    ids = data.draw(st.lists(st.integers(3, len(translator.tokenizer) - 1), max_size=12))
    steps = [ids[: i + 1] for i in range(len(ids))]
    text = translator.tokenizer.decode(ids)
    assert "".join(translator._certain(steps, bare=False)) == text
    assert "".join(translator._certain(steps, bare=True)) == unstopped(text)


@cache
def of_kind(kind: str) -> Translator:
    return make(kind=kind)


def test_sentences_are_translated_each_and_what_is_between_them_is_kept(translator: Translator) -> None:
    text = "  A dog runs. Two men sit!\n\n A woman reads. "
    each = [translator.translate(s) for s in ("A dog runs.", "Two men sit!", "A woman reads.")]
    assert translator.translate(text, split=True) == f"  {each[0]} {each[1]}\n\n {each[2]} "
    (found,) = translator.hypotheses(text, split=True)
    parts = [translator.hypotheses(s)[0] for s in ("A dog runs.", "Two men sit!", "A woman reads.")]
    assert found.log_probability == pytest.approx(sum(p.log_probability for p in parts), abs=1e-4)
    assert found.tokens == [token for p in parts for token in p.tokens]


def test_a_sentence_too_long_is_read_in_parts_or_refused() -> None:
    translator = make()
    translator.longest = 8
    text = "a dog runs, a dog runs, a dog runs, " + "x" * 40
    answer, other = translator.answers([Ask(text), Ask("a dog")], Settings.of({}, translator.decode))
    assert (answer.cut, other.cut) == (1, 0)
    (parts,), _ = translator._parts([Ask(text)], Settings())
    assert "".join(part.text + part.gap for part in parts) == text
    assert len(parts) > 4
    assert all(len(part.ids) <= 8 for part in parts)
    expected = "".join(translator.translate(part.text) + part.gap for part in parts)
    assert answer.translations[0].text == translator.translate(text) == expected
    with pytest.raises(ValueError, match=r"a sentence of .* sub-words; the model is used to 8"):
        translator.translate(text, long="refuse")
    with pytest.raises(ValueError, match=r"my.txt:7: a sentence of"):
        translator.answers([Ask(text, "my.txt:7")], Settings.of({"long": "refuse"}))
    assert translator.translate("a dog", long="refuse") == other.translations[0].text


def test_learned_positions_are_a_limit() -> None:
    translator = make(positions="learned", max_length=12)
    assert translator.longest == 11
    assert translator.translate("a dog runs " * 10)
    with pytest.raises(ValueError, match="positions for 11"):
        translator.score(["a"], ["a dog runs " * 10])


def test_a_line_of_a_hundred_thousand_characters_is_read_in_short_parts() -> None:
    limited = make()
    limited.longest = 50
    for text in ("a dog runs, two men sit " * 4_200, "x" * 100_000):
        (parts,), (cut,) = limited._parts([Ask(text)], Settings())
        assert max(len(part.ids) for part in parts) <= 50
        assert "".join(part.text + part.gap for part in parts) == text
        assert cut == 1
    assert limited.translate("two men sit " * 100, beam=1, extra=0)


@pytest.mark.parametrize("text", ["😀🎉", "Ωμέγα", "日本語", "\u202eabc", "e\u0301", "a\u2028b", "\ufeffx"])
def test_any_text_is_text(translator: Translator, text: str) -> None:
    assert isinstance(translator.translate(text), str)
    assert isinstance(translator.translate(text, split=True, align=True), str)


def test_prefix_required_and_forbidden_phrases(translator: Translator) -> None:
    text = LINES[1]
    assert translator.translate(text, prefix="a woman").startswith("a woman")
    assert translator.translate(f"  {text}", prefix="a woman").startswith("  a woman")
    assert "".join(translator.stream(f" {text}", prefix="a woman")).startswith(" a woman")
    said = translator.translate(text, require=["a dog", "two men"])
    assert "a dog" in said
    assert "two men" in said
    ordered = translator.translate(text, require=["a dog", "two men"], ordered=True)
    assert ordered.index("a dog") < ordered.index("two men")


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"temperature": 1.5, "best": 20}, {"require": "sit"}], ids=str)
def test_no_output_has_the_words_that_are_forbidden(translator: Translator, settings: dict[str, object]) -> None:
    seen = 0
    for each in (translator, of_kind("none")):
        free = " ".join(h.text for h in each.hypotheses(LINES[1], **settings))
        for word in [word for word in re.findall(r"\w+", free) if word != "sit"][:3]:
            seen += 1
            for h in each.hypotheses(LINES[1], forbid=word, **settings):
                assert word not in re.findall(r"\w+", h.text)
    assert seen


def test_alternatives_have_nothing_that_is_forbidden() -> None:
    translator = of_kind("none")
    tokens = [a.token for a in translator.alternatives(LINES[1], "a woman", 15)]
    word = next(token for token in tokens if token.isalpha() and token not in ("a", "woman"))
    others = translator.alternatives(LINES[1], "a woman", 15, forbid=word)
    assert len(others) == 15
    assert all(word not in a.text.split() for a in others)


def test_a_model_that_writes_from_the_end_is_read_from_the_beginning() -> None:
    translator = of_kind("char")
    tokens, decode = translator.tokenizer, translator.decode
    backward = Translator(translator.model, tokens, decode, engine="torch", backward=True)
    for ours, theirs in zip(*(each.hypotheses(LINES, keep=False) for each in (backward, translator)), strict=True):
        assert ours[0].tokens == theirs[0].tokens[::-1]
        assert ours[0].log_probability == theirs[0].log_probability
        n = len(ours[0].tokens)
        assert ours[0].token_scores[:n] == theirs[0].token_scores[:n][::-1]
    ids = tokens.encode(LINES[0])
    (score,) = backward.score(LINES[1:2], LINES[:1])
    (turned,) = translator.score(LINES[1:2], [tokens.decode(ids[::-1])])
    assert score.tokens[:-1] == tokens.pieces(ids)
    if tokens.encode(tokens.decode(ids[::-1])) == ids[::-1]:
        assert score.log_probability == pytest.approx(turned.log_probability, abs=1e-4)
    for ask in (
        lambda: list(backward.stream("a")),
        lambda: backward.alternatives("a"),
        lambda: backward.align("a", "a"),
        lambda: backward.attention("a"),
        lambda: backward.translate("a", forbid="dog"),
        lambda: backward.hypotheses("a", align=True),
    ):
        with pytest.raises(ValueError, match="this model writes its outputs from their end"):
            ask()


def test_a_second_opinion_ranks_what_a_beam_has_found(translator: Translator, tmp_path: Path) -> None:
    first, second = save(translator, tmp_path / "a"), save(make(seed=4), tmp_path / "b")
    plain, other = regard.load(first, engine="torch"), regard.load(second, engine="torch")
    both = regard.load(first, engine="torch", rescore=second, weight=2.0)
    settings = {"beam": 5, "alpha": 1.0, "penalty": "mean", "extra": 6, "keep": False}
    for text in LINES:
        found = plain.hypotheses(text, best=5, **settings)
        scores = [h.score + 2.0 * other.score([text], [h.text])[0].log_probability / len(h.token_scores) for h in found]
        ranked = both.hypotheses(text, best=2, **settings)
        assert [h.score for h in ranked] == pytest.approx(sorted(scores)[::-1][:2], abs=1e-3)
        assert both.translate(text, **settings) == ranked[0].text
    with pytest.raises(ValueError, match="nothing to stream"):
        list(both.stream("a"))
    with pytest.raises(ValueError, match="weight = -1"):
        regard.load(first, rescore=second, weight=-1.0)


def test_why_there_is_no_native_engine(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise UnavailableError("there is no compiler")

    monkeypatch.setattr("regard.tasks.searching.Native", missing)
    for engine, reason in (("auto", "there is no compiler"), ("torch", None)):
        assert Translator(translator.model, translator.tokenizer, engine=engine).without_native == reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"require": "a dog", "forbid": "dog"}, "'a dog' contains 'dog', which is forbidden"),
        ({"prefix": "a dog", "forbid": "dog"}, "the prefix 'a dog' contains 'dog'"),
        ({"require": " "}, "no sub-words to write ' ' with"),
        ({"forbid": " "}, "a forbidden phrase is empty"),
        ({"prefix": "dog " * 90}, "the prefix has .* sub-words, and the output at most"),
        ({"require": ["dog " * 90]}, "raise `extra`"),
        ({"require": "a", "temperature": 1.0}, "drawn by chance"),
        ({"require": "a", "split": True}, "read in 2 parts"),
        ({"prefix": "a", "split": True}, "read in 2 parts"),
    ],
)
def test_what_cannot_be_satisfied_is_refused(translator: Translator, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^'A dog runs. Two men.': .*{message}"):
        translator.translate("A dog runs. Two men.", **{"split": False} | settings)


def test_chance_hangs_on_the_seed_and_the_sentence_alone(translator: Translator) -> None:
    draw = {"temperature": 1.0, "best": 4, "seed": 5}
    together = translator.hypotheses(LINES, **draw)
    assert together[::-1] == translator.hypotheses(LINES[::-1], **draw)
    assert [h.text for h in together[0]] == [h.text for h in translator.hypotheses(LINES[0], **draw)]
    assert together != translator.hypotheses(LINES, **{**draw, "seed": 6})
    assert len({h.text for h in together[0]}) > 1


def test_minimum_bayes_risk_takes_the_one_that_the_others_agree_with(translator: Translator) -> None:
    draws = [h.text for h in translator.hypotheses(LINES[0], temperature=0.7, best=8, seed=2)]
    expected = draws[choose(draws, sentence_chrf)]
    assert translator.translate(LINES[0], temperature=0.7, mbr=8, seed=2) == expected
    assert len(translator.hypotheses(LINES[0], mbr=8)) == 1


def test_alternatives_are_the_models_next_tokens(translator: Translator) -> None:
    found = translator.alternatives(LINES[0], "a woman", 4)
    ids = translator.tokenizer.encode("a woman")
    source = torch.tensor([[*translator.tokenizer.encode(LINES[0]), EOS]])
    with torch.inference_mode():
        p = translator.model(source, torch.tensor([[BOS, *ids]]))[0, -1].softmax(0)
    top = p.topk(4)
    assert [a.token for a in found] == translator.tokenizer.pieces(top.indices.tolist())
    assert [a.probability for a in found] == pytest.approx(top.values.tolist(), rel=1e-3)
    for alternative, token in zip(found, top.indices.tolist(), strict=True):
        assert alternative.text.startswith(translator.tokenizer.decode([*ids, token]).rstrip("\ufffd"))
    assert len(translator.alternatives(f" {LINES[0]}")) == 5
    with pytest.raises(ValueError, match="for one sentence, got 0"):
        translator.alternatives("  ")
    with pytest.raises(ValueError, match="count = 0"):
        translator.alternatives("a", count=0)


def test_alignments_name_words_that_are_there(translator: Translator) -> None:
    for text, (found,) in zip(LINES, translator.hypotheses(LINES, align=True), strict=True):
        assert found.alignment is not None
        assert [j for _, j in found.alignment] == list(range(len(found.text.split())))
        assert all(0 <= i < len(text.split()) for i, _ in found.alignment)
    links = translator.align("a dog runs", "two men sit on a bench")
    assert [j for _, j in links] == list(range(6))
    assert {i for i, _ in links} <= {0, 1, 2}
    assert links == translator.align("a dog runs", "two men sit on a bench", layer=None)


def test_an_ensemble_of_a_model_with_itself_is_the_model(translator: Translator, tmp_path: Path) -> None:
    twice = Translator([translator.model, translator.model], translator.tokenizer, translator.decode, engine="torch")
    assert twice.translate(LINES) == translator.translate(LINES)
    assert twice.align(*LINES[:2]) == translator.align(*LINES[:2])
    for a, b in zip(twice.score(LINES, LINES), translator.score(LINES, LINES), strict=True):
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-4)
    other = make(seed=4)
    both = Translator([translator.model, other.model], translator.tokenizer, translator.decode, engine="torch")
    mean = [
        math.log((math.exp(a) + math.exp(b)) / 2)
        for a, b in zip(
            translator.score(LINES[:1], LINES[1:2])[0].token_scores,
            other.score(LINES[:1], LINES[1:2])[0].token_scores,
            strict=True,
        )
    ]
    assert both.score(LINES[:1], LINES[1:2])[0].token_scores == pytest.approx(mean, abs=1e-4)


def save(translator: Translator, directory: Path) -> Path:
    storage.save(translator.model, directory)
    translator.tokenizer.save(directory / "tokenizer.json")
    return directory


def test_loading_one_and_several(translator: Translator, tmp_path: Path) -> None:
    first, second = save(translator, tmp_path / "a"), save(make(seed=4), tmp_path / "b")
    one = regard.load(first, engine="torch")
    assert one.longest == 256  # there is no recipe that says otherwise
    assert one.translate(LINES, extra=6) == translator.translate(LINES)
    assert regard.load([first, second], engine="torch").translate(LINES[0], extra=6)
    stranger = save(make(kind="char"), tmp_path / "c")
    with pytest.raises(ValueError, match="have different tokens"):
        regard.load([first, stranger])
    with pytest.raises(ValueError, match="at least 1 model"):
        regard.load([])
    for wrong in ({"engine": "warp"}, {"workers": 0}, {"rows": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            regard.load(first, **wrong)  # type: ignore[arg-type]


def test_engines_give_the_same_translations(translator: Translator) -> None:
    try:
        Native(translator.model)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    both = [
        Translator(translator.model, translator.tokenizer, translator.decode, engine=engine, workers=workers)
        for engine, workers in (("native", 2), ("auto", 1))
    ]
    for each in both:
        assert isinstance(each.searchable, Native)
        assert each.translate(LINES) == translator.translate(LINES)
    unusual = make(positions="alibi")
    strict = Translator(unusual.model, unusual.tokenizer, engine="native")
    with pytest.raises(ValueError, match="no native engine for this model"):
        strict.translate("a dog")
    assert not isinstance(Translator(unusual.model, unusual.tokenizer).searchable, Native)


@needs_compiler
def test_a_head_that_is_watched_or_silenced_is_the_one_that_translates() -> None:
    translator = make()
    native = Translator(translator.model, translator.tokenizer, translator.decode)
    before = native.translate(LINES)
    assert isinstance(native.searchable, Native)
    with regard.record(native.model) as seen:
        assert native.translate(LINES[:1], beam=1) == translator.translate(LINES[:1], beam=1)
    assert seen["decoder.layers.1.cross_attention"].shape[1] == 2
    heads = {f"decoder.layers.{i}.cross_attention": {0: 0.0, 1: 0.0} for i in range(2)}
    with regard.edit(native.model, heads):
        assert native.translate(LINES) != before
    assert native.translate(LINES) == before


@needs_compiler
def test_weights_that_change_are_the_ones_that_translate() -> None:
    translator = make()
    native = Translator(translator.model, translator.tokenizer, translator.decode, engine="native")
    before = native.translate(LINES)
    with torch.no_grad():
        native.model.get_parameter("output.weight").neg_()
    changed = native.translate(LINES)
    assert changed != before
    assert changed == translator.translate(LINES)


@needs_compiler
def test_precision_and_shortlist_of_what_is_loaded(tmp_path: Path) -> None:
    translator = make()
    storage.save(translator.model, tmp_path)
    translator.tokenizer.save(tmp_path / "tokenizer.json")
    plain = regard.load(tmp_path)
    for precision in ("fp32", "bf16", "int8"):
        said = regard.load(tmp_path, precision=precision).hypotheses(LINES[0], extra=0)[0].log_probability
        expected = plain.hypotheses(LINES[0], extra=0)[0].log_probability
        assert said == pytest.approx(expected, rel=0.1)
        assert (said == expected) == (precision == "fp32")
    with pytest.raises(ValueError, match="precision = 'int3': choose one of fp32, bf16, int8, int4"):
        regard.load(tmp_path, precision="int3")
    with pytest.raises(ValueError, match="make one with `regard shortlist"):
        regard.load(tmp_path, shortlist=True)
    V = len(translator.tokenizer)
    Shortlist(np.zeros(V + 1, np.int64), np.zeros(0, np.int32), np.arange(20, 60, dtype=np.int32)).save(tmp_path)
    listed = regard.load(tmp_path, shortlist=True)
    ids = {i for line in LINES for i in translator.tokenizer.encode(line)} | set(range(20, 60))
    assert set(listed.tokenizer.encode("".join(listed.translate(LINES)))) <= ids | {0, 1, 2, 3}
    with pytest.raises(ValueError, match="shortlists are for the native engine"):
        regard.load(tmp_path, shortlist=True, engine="torch").translate("a dog")
    Shortlist(np.zeros(V + 9, np.int64), np.zeros(0, np.int32), np.arange(20, 60, dtype=np.int32)).save(tmp_path)
    with pytest.raises(ValueError, match=f"a shortlist for {V + 8} tokens, not for its {V}"):
        regard.load(tmp_path, shortlist=True)


@pytest.mark.parametrize("beam", [1, 3])
def test_searches_and_streams_can_be_recorded_and_edited(translator: Translator, beam: int) -> None:
    said = translator.translate(LINES[1], beam=beam)
    with regard.record(translator.model, "decoder.*.cross_attention", every=True) as seen:
        assert translator.translate(LINES[1], beam=beam) == said
    steps = next(iter(seen.weights.values()))
    assert all(each.shape[2] == 1 for each in steps)
    assert max(len(each) for each in steps) == beam
    with regard.record(translator.model, "decoder.*.cross_attention", every=True) as seen:
        assert "".join(translator.stream(LINES[1], beam=beam)) == said
    (best,) = translator.hypotheses(LINES[1], beam=beam)
    assert len(next(iter(seen.weights.values()))) >= len(best.token_scores)
    deaf = {name: dict.fromkeys(range(2), 0.0) for name in seen.weights}

    def first_surprises() -> set[float]:
        return {each[0].token_scores[0] for each in translator.hypotheses(LINES, beam=1)}

    with regard.edit(translator.model, deaf):  # it cannot hear the source: all sound alike
        assert len(first_surprises()) == 1
    assert len(first_surprises()) == len(LINES)


TEXTS = ["Hello. How are you? I am fine.", "A dog runs. Два мира!", "see www.example.org, please 😀", "A heading", ""]


def test_no_sentence_is_lost(translator: Translator) -> None:
    """A model that has learnt from single sentences reads a text sentence by sentence, whoever asks."""
    each = [translator.translate(s) for s in ("Hello.", "How are you?", "I am fine.")]
    text = f" {TEXTS[0].replace('? ', '?  ')}"
    assert translator.translate(text) == f" {each[0]} {each[1]}  {each[2]}"
    assert (
        list(translator.translate_lines([text])) == ["".join(translator.stream(text))] == [translator.translate(text)]
    )
    assert translator.translate(TEXTS[0], split=False) == translator.translate(f"{TEXTS[0]}", split=False)
    whole = Translator(translator.model, translator.tokenizer, replace(translator.decode, split=False), engine="torch")
    assert whole.translate(TEXTS[0]) == translator.translate(TEXTS[0], split=False) != translator.translate(TEXTS[0])
    assert (whole.reads, translator.reads) == ("line by line", "sentence by sentence")
    with pytest.raises(ValueError, match=r"attention is for one sentence, got 3: .*split=False"):
        translator.attention(TEXTS[0])
    assert translator.attention(TEXTS[0], split=False)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte"])
@pytest.mark.parametrize(
    "settings",
    [{"beam": 1}, {"beam": 4, "best": 3}, {"temperature": 1.0, "best": 4}, {"mbr": 4}, {"beam": 4, "forbid": "a"}],
)
def test_outputs_are_unicode_text(kind: str, settings: dict[str, object]) -> None:
    """A model that has learnt nothing writes bytes in any order, unless it is held to whole characters."""
    translator = of_kind(kind)
    found = [h for row in translator.hypotheses(LINES, **settings) for h in row]
    assert not any("\ufffd" in h.text for h in found)
    assert [h.text for h in found] == [h.text for text in LINES for h in translator.hypotheses(text, **settings)]
    if not {"best", "mbr"} & {*settings}:
        assert ["".join(translator.stream(text, **settings)) for text in LINES] == [h.text for h in found]
    if "temperature" not in settings:
        backward = Translator(translator.model, translator.tokenizer, translator.decode, engine="torch", backward=True)
        if "forbid" not in settings:
            assert not any("\ufffd" in text for text in backward.translate(LINES, **settings))


def test_what_the_model_cannot_know_is_named(translator: Translator) -> None:
    known, strange = translator.hypotheses(["a dog runs", TEXTS[1]])
    assert known[0].unknown == ()
    assert {"Два", "мира"} <= {*strange[0].unknown}
    with pytest.warns(UserWarning, match="no sub-words for .*'Два'"):
        translator.translate(TEXTS[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translator.translate("a dog runs") == known[0].text


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"temperature": 0.7, "best": 2}, {"mbr": 4}])
def test_addresses_and_emoji_come_out_as_they_went_in(translator: Translator, settings: dict[str, object]) -> None:
    text = "see www.example.org, please, or write to `me` and bob@example.org now! 😀"
    kept = ("www.example.org", "`me`", "bob@example.org")
    for each in translator.hypotheses(text, **settings, align=True):
        assert all(each.text.count(thing) == 1 for thing in kept)
        assert each.text.endswith(" 😀")
        assert each.alignment is not None
        words = text.split(), each.text.split()
        for thing in ("`me`", "😀"):
            assert (words[0].index(thing), words[1].index(thing)) in each.alignment
    assert "www.example.org" not in translator.translate(text, keep=False)
    if not settings or settings == {"beam": 1}:
        assert "".join(translator.stream(text, **settings)) == translator.translate(text, **settings)
    assert translator.translate("https://example.org/a") == "https://example.org/a"


def test_a_heading_gains_no_full_stop() -> None:
    translator = of_kind("char")
    (stop,) = translator.tokenizer.encode(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "_search", lambda self, requests, settings: [[said(stop)] for _ in requests])
        texts = ["a dog", "a dog.", "a dog!", "a dog, a"]
        assert translator.translate(texts, stops=True) == ["a dog", "a dog.", "a dog.", "a dog"]
        assert translator.translate(texts) == ["a dog."] * 4


def said(stop: int) -> Hypothesis:
    return Hypothesis([*of_kind("char").tokenizer.encode("a dog"), stop], 0.0, 0.0, [])


def test_a_tokenizer_of_another_model_is_refused(translator: Translator, tmp_path: Path) -> None:
    run = save(translator, tmp_path / "run")
    Tokenizer.learn(TokensConfig("bpe", size=295), LINES * 3).save(run / "tokenizer.json")
    with pytest.raises(ValueError, match=r"run has 295 tokens, and its model 290: they do not belong together"):
        regard.load(run)


def test_scores_that_an_older_regard_has_written_are_read_over(translator: Translator, tmp_path: Path) -> None:
    storage.save(translator.model, tmp_path, storage.Purpose({"name": "translate"}, {"beam": 3, "scores": True}))
    translator.tokenizer.save(tmp_path / "tokenizer.json")
    assert regard.load(tmp_path).decode == DecodeConfig(beam=3)
    storage.use_so(tmp_path, scoress=True)
    with pytest.raises(ValueError, match="there is no setting 'scoress'"):
        regard.load(tmp_path)
