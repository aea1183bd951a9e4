from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import collate
from regard.data.generated import TASKS, SymbolPair, sequence_pairs
from regard.data.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary

NUMBERS = [str(i) for i in range(12)]  # as text, "10" comes before "9"


def draw(task: str, count: int = 200, seed: int = 0) -> list[SymbolPair]:
    return list(islice(sequence_pairs(task, symbols=NUMBERS, lengths=range(1, 9), seed=seed), count))


@pytest.mark.parametrize("task", TASKS)
def test_pairs_are_a_function_of_the_seed(task: str) -> None:
    assert draw(task, seed=1) == draw(task, seed=1)
    assert draw(task, seed=1) != draw(task, seed=2)


@pytest.mark.parametrize("task", TASKS)
def test_every_length_and_symbol_occurs_and_no_other(task: str) -> None:
    sources = [source for source, _ in draw(task)]
    assert {len(source) for source in sources} == set(range(1, 9))
    assert {symbol for source in sources for symbol in source} == set(NUMBERS)


def test_each_task_does_what_it_says() -> None:
    assert all(target == source for source, target in draw("copy"))
    assert all(target == tuple(reversed(source)) for source, target in draw("reverse"))
    assert all(list(target) == sorted(source, key=int) for source, target in draw("sort"))
    assert all(list(target) == [each for each in source if each == "0"] for source, target in draw("count"))
    bits = islice(sequence_pairs("parity", symbols=("1", "0"), lengths=range(9), seed=0), 200)
    assert all(target == ("0" if sum(map(int, source)) % 2 else "1",) for source, target in bits)


def test_wrong_arguments_fail_at_the_call() -> None:
    with pytest.raises(ValueError, match=r"'shuffle'.*copy, reverse, sort"):
        sequence_pairs("shuffle", symbols="ab", lengths=[3], seed=0)
    with pytest.raises(ValueError, match="at least one symbol"):
        sequence_pairs("copy", symbols="", lengths=[3], seed=0)
    with pytest.raises(ValueError, match="one length"):
        sequence_pairs("copy", symbols="ab", lengths=range(3, 3), seed=0)
    with pytest.raises(ValueError, match="two symbols"):
        sequence_pairs("parity", symbols="a", lengths=[3], seed=0)


ids = st.lists(st.integers(3, 50), max_size=7)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=5))
def test_a_batch_holds_its_pairs_and_nothing_else(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = collate(pairs)
    S = max(len(source) for source, _ in pairs) + 1
    T = max(len(target) for _, target in pairs) + 1
    assert batch["source"].shape == (len(pairs), S)
    assert batch["target"].shape == batch["labels"].shape == (len(pairs), T)
    assert {t.dtype for t in (batch["source"], batch["target"], batch["labels"])} == {torch.int64}
    for (source, target), s, t, l in zip(pairs, batch["source"], batch["target"], batch["labels"], strict=True):
        assert s.tolist() == [*source, EOS] + [PAD] * (S - 1 - len(source))
        assert t.tolist() == [BOS, *target] + [PAD] * (T - 1 - len(target))
        assert l.tolist() == [*target, EOS] + [PAD] * (T - 1 - len(target))
    assert batch.count == sum(len(target) + 1 for _, target in pairs)


def test_specials_come_first_and_have_the_ids_everyone_uses() -> None:
    assert (PAD, BOS, EOS) == (0, 1, 2)
    assert [SPECIALS[PAD], SPECIALS[BOS], SPECIALS[EOS]] == ["<pad>", "<s>", "</s>"]
    assert Vocabulary(("x", "y")).encode(["x", "y"]) == [3, 4]
    assert len(Vocabulary(("x", "y"))) == 5


@given(st.lists(st.sampled_from(NUMBERS)))
def test_decoding_undoes_encoding(symbols: list[str]) -> None:
    vocabulary = Vocabulary(tuple(NUMBERS))
    encoded = vocabulary.encode(symbols)
    assert vocabulary.decode(encoded) == symbols
    assert vocabulary.decode([BOS, *encoded, PAD, EOS, 3, 4]) == symbols


def test_a_vocabulary_refuses_what_it_cannot_hold() -> None:
    letters = Vocabulary(tuple("ab"))
    with pytest.raises(ValueError, match="'z'"):
        letters.encode("abz")
    with pytest.raises(ValueError, match="'<s>'"):
        letters.encode(["<s>"])
    for outside in (-1, 5):
        with pytest.raises(ValueError, match=f"id {outside} "):
            letters.decode([outside])
    with pytest.raises(ValueError, match="'a'"):
        Vocabulary(tuple("aba"))
    with pytest.raises(ValueError, match="'<pad>'"):
        Vocabulary(("a", "<pad>"))
    with pytest.raises(AttributeError):
        letters.symbols = ("c",)  # type: ignore[misc]
