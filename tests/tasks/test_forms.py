"""Answers that keep a form: what a model that knows nothing writes under a schema always satisfies it."""

import json
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from regard.data.spelling import added
from regard.data.tokenizers import UNK, Tokenizer, TokensConfig
from regard.data.vocabulary import MARKS
from regard.decoding.forms import Form
from regard.models.family import build, configure
from regard.tasks.asks import Prompt, Writing
from regard.tasks.generate import WriteConfig
from regard.tasks.generator import Generator
from tests.chats import CHATML, talker

pytest.importorskip("llguidance")
ASCII = "".join(map(chr, range(32, 127)))
LINES = [ASCII, 'a "name": "it", and {"so": [1, 2, 3]} was low, lower, lowest', "größe ☕ 日本"] * 3
KINDS = {"bpe": 300, "unigram": 365, "char": 0, "byte": 0}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def generator(kind: str, spare: int = 0, **how: Any) -> Generator:
    tokens = Tokenizer.learn(TokensConfig(kind, KINDS[kind]), LINES)
    torch.manual_seed(4)
    shape = {"layers": 2, "d_model": 32, "heads": 4, "max_length": 128}
    config = configure("gpt-tiny", [f"{name}={value}" for name, value in shape.items()], vocabulary=len(tokens) + spare)
    made: Any = build(config)
    for matrix in made.parameters():
        matrix.data *= 3.0
    made.output.weight.data[[*MARKS[:2], UNK]] = 0.0
    return Generator(made.eval(), tokens, WriteConfig(), **how)


@pytest.fixture(scope="module")
def made() -> Callable[[str], Generator]:
    return lru_cache(generator)


TEXT = st.text('abxyzé☕ "\\\n{', max_size=4)
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.integers(-50, 50).flatmap(
        lambda low: st.integers(0, 30).map(lambda more: {"type": "integer", "minimum": low, "maximum": low + more})
    ),
    st.integers(0, 6).map(lambda n: {"type": "string", "maxLength": n}),
    st.just({"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"}),
    st.lists(st.one_of(TEXT, st.integers(-9, 9), st.none()), min_size=1, max_size=3, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(st.sampled_from(["a", "b b", 'c"', "größe"]), inner, max_size=3).flatmap(
        lambda properties: st.lists(st.sampled_from([*properties] or ["a"]), unique=True).map(
            lambda needed: {
                "type": "object",
                "properties": properties,
                "required": [key for key in needed if key in properties],
                "additionalProperties": False,
            }
        )
    )
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda each: {"type": "array", "items": each[0], "minItems": each[1], "maxItems": each[1] + each[2]}
    )
    return st.one_of(objects, arrays, st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}))


SCHEMAS = st.recursive(LEAVES, grown, max_leaves=4)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_or_searched_satisfies_its_schema(made: Any, kind: str) -> None:
    model = made(kind)
    ended = []

    @settings(max_examples=12, deadline=None)
    @given(SCHEMAS, st.integers(0, 99))
    def check(schema: Any, seed: int) -> None:
        validator = Draft202012Validator(schema)
        for how in ({"seed": seed, "best": 2, "temperature": 1.5}, {"beam": 3, "best": 2}, {"beam": 1}):
            prompts = [Prompt("a low "), Prompt("")]
            for outputs in model.answers(prompts, Writing.of({"schema": schema, "limit": 300, **how}, model.decode)):
                for each in outputs:
                    ended.append(each.complete)
                    assert each.complete or each.why == "length"
                    if each.complete:
                        validator.validate(json.loads(each.text))

    check()
    assert np.mean(ended) > 0.9  # most have an end in sight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", ["[a-z]{2,5}(, [a-z]{2,5})*", "(é|☕|日本){3}", "low|lower", "[^a-z]{1,9}x"])
def test_a_regular_expression_is_matched_as_a_whole(made: Any, kind: str, pattern: str) -> None:
    for how in ({"seed": 3, "best": 3}, {"beam": 2}):
        for each in made(kind).completions("a low", regex=pattern, limit=40, **how):
            assert not each.complete or re.fullmatch(pattern, each.text)
            assert each.complete is not None


def test_a_space_that_a_beginning_loses_is_not_counted_as_written(made: Any) -> None:
    for kind in KINDS:
        for seed in range(5):
            (each,) = made(kind).completions("", regex=" ?low", limit=9, seed=seed)
            assert each.complete, kind
            assert each.text in ("low", " low")
    with pytest.raises(ValueError, match="nothing that the model can write keeps the regex"):
        made("bpe").generate("", regex=" low", limit=9)
    assert made("bpe").generate("a", regex=" low", limit=9) == " low"


def test_a_grammar_is_kept(made: Any) -> None:
    grammar = 'start: "(" inner ")"\ninner: ("a" | start)~1..2'
    for each in made("bpe").completions("a", grammar=grammar, limit=60, seed=1, best=5):
        if each.complete:
            assert re.fullmatch("[(a)]+", each.text)
            assert each.text.count("(") == each.text.count(")")


def test_an_output_that_is_cut_says_so(made: Any) -> None:
    (cut,) = made("byte").completions("a", schema=PERSON, limit=8, beam=1)
    assert (cut.text, cut.why, cut.complete) == ('{"name":', "length", False)
    (done,) = made("byte").completions("a", regex="abc", limit=3, beam=1)  # at the limit, but there is no more of it
    assert (done.text, done.complete) == ("abc", True)
    (stopped,) = made("byte").completions("a", schema=PERSON, stop=":", beam=1)
    assert (stopped.text, stopped.why, stopped.complete) == ('{"name"', "stop", False)
    (free,) = made("byte").completions("a", limit=3, beam=1)
    assert free.complete is None


def test_a_text_longer_than_the_places_keeps_its_form(made: Any) -> None:
    schema = {"type": "array", "items": {"enum": ["low"]}, "minItems": 40, "maxItems": 40}
    (found,) = made("byte").completions("a", schema=schema, limit=400, beam=1)
    assert (json.loads(found.text), found.complete) == (["low"] * 40, True)
    assert "".join(made("byte").stream("a", schema=schema, limit=400, beam=1)) == found.text


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 3}, {"seed": 2, "temperature": 1.3}])
def test_requests_of_other_forms_are_company_that_changes_nothing(how: dict[str, Any]) -> None:
    model = generator("bpe", bitwise=True)
    forms = [Form.of(PERSON), Form.of(regex="[a-z ]{5,20}"), None, Form.of({"type": "array", "maxItems": 3})]
    prompts = [Prompt(text, form=form) for form in forms for text in ("a low", "and so")]
    chosen = Writing.of({"limit": 60, **how}, model.decode)
    together = model.answers(prompts, chosen)
    assert together == [model.answers([prompt], chosen)[0] for prompt in prompts]
    for prompt, (best, *_) in zip(prompts, together, strict=True):
        assert "".join(model.stream(prompt, limit=60, **how)) == best.text


def test_tokens_that_no_text_has_are_never_written() -> None:
    for how in ({"seed": 1}, {"beam": 2}):
        (found, *_) = generator("bpe", spare=40).completions("a", schema=PERSON, **how)
        Draft202012Validator(PERSON).validate(json.loads(found.text))


def test_both_engines_write_the_same() -> None:
    found = [
        [each.text for each in generator("bpe", engine=engine).completions("a low", schema=PERSON, beam=3, best=2)]
        for engine in ("native", "torch")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["bytes", "pieces", "before"])
def test_a_conversation_ends_where_its_form_does(kind: str, tmp_path: Any) -> None:
    import regard

    model = regard.load(talker(tmp_path, kind, CHATML)[1])
    for how in ({"beam": 1}, {"seed": 1}, {"beam": 3}):
        prompt = model.conversation("Why?")
        ((found, *_),) = model.answers([prompt], Writing.of({"schema": PERSON, "limit": 90, **how}, model.decode))
        assert found.complete
        Draft202012Validator(PERSON).validate(json.loads(found.text))
        assert model.chat("Why?", schema=PERSON, limit=90, **how) == found.text
    spelled = added(model.tokenizer)
    ids = model.tokenizer.encode("a{ b")
    assert b"".join(spelled[i] for i in ids).decode().strip() == "a{ b"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"schema": "{"}, "the schema is no JSON: Expecting property name"),
        ({"schema": "[1]"}, "the schema is list in JSON: give an object"),
        ({"schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "nothing satisfies the schema: minimum (3) is"),
        ({"schema": False}, "nothing satisfies the schema: false"),
        ({"schema": {"not": {}, "uniqueItems": True}}, "the schema asks for what cannot be held to (not, uniqueItems)"),
        ({"schema": {"$ref": "http://a.b/c"}}, "the schema cannot be kept: Resource 'http://a.b/c'"),
        ({"regex": "("}, "regex = '(' cannot be kept: unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": "start: foo"}, 'the grammar cannot be kept: at 1(8): unknown name: "foo"'),
        ({"grammar": "start: r0" + "".join(f"\nr{i}: r{i + 1}" for i in range(20_000))}, "names that lead to others"),
        ({"schema": {"anyOf": [{"$ref": "#"}] * 600}}, "the schema has 600 names that lead to others"),
        ({"schema": {}, "regex": "a"}, "schema and regex are both given, and an output keeps one form"),
        ({"regex": "a", "block": 2}, "leave required and forbidden phrases, `shortest` and `block` out"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_line(made: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        made("bpe").generate("a", **asked)
    assert "\n" not in str(refused.value)


def test_a_vocabulary_that_cannot_write_it_ends_in_no_lie() -> None:
    model = generator("char")
    (found,) = model.completions("a", regex="low(☕|本)x|a語b", beam=1)
    assert found.complete == bool(re.fullmatch("low(☕|本)x|a語b", found.text))
    with pytest.raises(ValueError, match="nothing that the model can write"):
        model.generate("a", regex="語+")
    words = Tokenizer.learn(TokensConfig("wordpiece", 200), LINES)
    with pytest.raises(ValueError, match="it can keep no form"):
        added(words)


def test_without_the_package_a_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"the package llguidance: pip install 'regard\[forms\]'"):
        generator("byte").generate("a", regex="a")


def test_a_long_chain_of_names_is_followed(made: Any) -> None:
    links = 400
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(links)}
    schema = {"$defs": {**chain, f"a{links}": {"const": "low"}}, "$ref": "#/$defs/a0"}
    assert made("bpe").generate("a", schema=schema, beam=1) == '"low"'
