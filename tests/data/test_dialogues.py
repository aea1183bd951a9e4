"""Conversations and preferences as files have them: every form gives the same rows, and what says nothing is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.chat import CHATML, PLAIN, ChatTemplate, with_marks
from regard.data.dialogues import DialogueFiles, PreferenceFiles
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer, TokensConfig

HI = [{"role": "user", "content": "Hi!"}]
SAID = [*HI, {"role": "assistant", "content": "Hello."}]


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_form_of_a_conversation_is_messages(tmp_path: Path) -> None:
    forms = [
        {"messages": SAID},
        {"conversations": [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hello."}]},
        {"prompt": "Hi!", "answer": "Hello."},
        {"instruction": "Hi!", "input": "", "output": "Hello."},
    ]
    found = list(DialogueFiles(jsonl=lines(tmp_path / "a.jsonl", *forms)).read())
    assert [row["messages"] for row in found] == [SAID] * 4
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(forms).encode()))
    assert [row["messages"] for row in DialogueFiles.at(tmp_path / "a.json.gz").read()] == [SAID] * 4
    (tmp_path / "a.csv").write_text('prompt,answer\nHi!,Hello.\n\n"Hi!","Hello."\n')
    assert [row["messages"] for row in DialogueFiles(csv=str(tmp_path / "a.csv")).read()] == [SAID] * 2
    (tmp_path / "a.tsv").write_text("Hello.\tHi!\n")
    turned = DialogueFiles(tsv=str(tmp_path / "a.tsv"), columns={"prompt": 1, "answer": 0})
    assert next(turned.read())["messages"] == SAID
    both = {"system": "Be brief.", "instruction": "Add.", "input": "1 1", "output": "2"}
    (row,) = DialogueFiles(jsonl=lines(tmp_path / "b.jsonl", both)).read()
    assert [each["content"] for each in row["messages"]] == ["Be brief.", "Add.\n\n1 1", "2"]


def test_what_has_no_answer_is_counted_and_what_is_no_conversation_named(tmp_path: Path) -> None:
    skipped = Skipped()
    path = lines(tmp_path / "a.jsonl", {"messages": HI}, {"prompt": "Hi!", "answer": " "}, {"messages": SAID})
    assert len(list(DialogueFiles(jsonl=path).read(skipped))) == 1
    assert skipped.report() == "2 conversations have no answer, and are left out"
    for row, why in (
        ({"text": "x"}, "a.jsonl, line 1 has neither messages nor 'prompt', only ['text']"),
        ({"messages": "x"}, "line 1: messages are a list of objects with a role and a content"),
        ({"messages": [{"role": "user"}]}, "messages are a list of objects"),
        ({"prompt": "x", "answer": {"a": 1}}, "line 1: answer is {'a': 1}, no text"),
        ({"prompt": "x\0", "answer": "y"}, "line 1: 'prompt' holds a NUL"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "line 1: 'content' holds a NUL or half"),
    ):
        with pytest.raises(ValueError, match=why.replace("[", r"\[").replace("{", r"\{")):
            list(DialogueFiles(jsonl=lines(tmp_path / "a.jsonl", row)).read())
    (tmp_path / "a.json").write_text('{"messages": 1}')
    with pytest.raises(ValueError, match=r"a\.json is no list of JSON objects"):
        list(DialogueFiles(json=str(tmp_path / "a.json")).read())


def test_the_chosen_one_of_two_conversations_is_a_conversation(tmp_path: Path) -> None:
    both = {"chosen": "\n\nHuman: Hi!\n\nAssistant: Hello.", "rejected": "\n\nHuman: Hi!\n\nAssistant: What?"}
    (row,) = DialogueFiles(jsonl=lines(tmp_path / "a.jsonl", both)).read()
    assert row["messages"] == SAID
    (row,) = DialogueFiles(jsonl=lines(tmp_path / "a.jsonl", both | {"prompt": "So?", "answer": "So."})).read()
    assert row["messages"][0]["content"] == "So?"


def test_every_form_of_a_preference_is_a_prompt_and_two_answers(tmp_path: Path) -> None:
    good, bad = ([*HI, {"role": "assistant", "content": x}] for x in ("Hello.", "What?"))
    forms = [
        {"prompt": "Hi!", "chosen": "Hello.", "rejected": "What?"},
        {"prompt": HI, "chosen": good[1:], "rejected": bad[1:]},
        {"chosen": good, "rejected": bad},
        {"messages": HI, "chosen": "Hello.", "rejected": "What?", "margin": 2},
        {"chosen": "\n\nHuman: Hi!\n\nAssistant: Hello.", "rejected": "\n\nHuman: Hi!\n\nAssistant: What?"},
        {"instruction": "Hi!", "input": "", "output": "Hello.", "chosen": "Hello.", "rejected": "What?"},
    ]
    found = list(PreferenceFiles(jsonl=lines(tmp_path / "a.jsonl", *forms)).read())
    assert [(row["messages"], row["chosen"], row["rejected"]) for row in found] == [(HI, "Hello.", "What?")] * 6
    assert [row.get("margin") for row in found] == [None, None, None, 2.0, None, None]


def test_pairs_that_say_nothing_are_counted_named_and_refused_beyond_a_share(tmp_path: Path) -> None:
    fine = [{"prompt": f"{i}", "chosen": "a", "rejected": "b"} for i in range(30)]
    same, empty = {"prompt": "x", "chosen": "a", "rejected": "a "}, {"prompt": "x", "chosen": "", "rejected": "a"}
    other = {"chosen": "\n\nHuman: A\n\nAssistant: B", "rejected": "\n\nHuman: C\n\nAssistant: D"}
    skipped = Skipped()
    path = lines(tmp_path / "a.jsonl", *fine, same, other, empty)
    assert len(list(PreferenceFiles(jsonl=path).read(skipped))) == 30
    assert skipped.report() == (
        "1 pairs left out with twice the same answer (the first: line 31); 1 pairs left out with no answers to the "
        "same prompt (the first: line 32); 1 pairs left out with an empty answer (the first: line 33)"
    )
    path = lines(tmp_path / "a.jsonl", *fine[:10], same, empty)
    with pytest.raises(
        ValueError, match=r"2 of 12 pairs have an empty answer, twice the same one .* the first in line 11"
    ):
        list(PreferenceFiles(jsonl=path).read())
    with pytest.raises(ValueError, match="line 1 has no 'rejected', only"):
        list(PreferenceFiles(jsonl=lines(tmp_path / "a.jsonl", {"prompt": "x", "chosen": "a"})).read())
    row = {"prompt": "x", "chosen": "a", "rejected": None}  # which is nothing
    with pytest.raises(ValueError, match=r"line 1 has no 'rejected', only \['prompt', 'chosen'\]"):
        list(PreferenceFiles(jsonl=lines(tmp_path / "a.jsonl", row)).read())
    row = {"prompt": "x", "chosen": "a", "rejected": "b", "margin": "wide"}
    with pytest.raises(ValueError, match="line 1: margin is 'wide', no number"):
        list(PreferenceFiles(jsonl=lines(tmp_path / "a.jsonl", row)).read())
    with pytest.raises(ValueError, match="line 1 has no prompt, only"):
        list(PreferenceFiles(jsonl=lines(tmp_path / "a.jsonl", {"chosen": "a", "rejected": "b"})).read())


TALK = [*SAID, {"role": "user", "content": "<|im_end|> so?"}, {"role": "assistant", "content": " It <s> is. "}]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "unigram"])
@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_answers_are_what_is_written_after_each_prompt_up_to_their_mark(kind: str, template: str) -> None:
    texts = ["Hello. user assistant Hi! It is so? <|im_end|> ### <s>\n"] * 9
    tokens = Tokenizer.learn(TokensConfig(kind, {"bpe": 275, "unigram": 287}.get(kind, 0)), texts)
    tokens = with_marks(tokens, ["<|im_start|>", "<|im_end|>"])
    chat = ChatTemplate(template, tokens)
    ids, spans = chat.answered(TALK)
    assert len(spans) == 2
    end = chat.end
    assert end is not None
    for (begin, stop), before, said in zip(spans, (TALK[:1], TALK[:3]), ("Hello.", "It <s> is."), strict=True):
        assert ids[:begin] == chat.encode(before)[1]
        assert ids[stop - 1] == end
        assert end not in ids[begin : stop - 1]
        assert tokens.decode(ids[begin : stop - 1]).strip() == said


def test_a_template_without_answers_is_refused() -> None:
    tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"])
    with pytest.raises(ValueError, match="the chat template writes 0 of 1 answers: there is nothing to learn"):
        ChatTemplate("{{ messages[0].content }}", tokens).answered(SAID)
    with pytest.raises(ValueError, match="writes 0 of 0 answers"):
        ChatTemplate(PLAIN, tokens).answered(HI)


def test_marks_are_added_once_and_no_text_gives_them(tmp_path: Path) -> None:
    for kind, size in (("bpe", 262), ("wordpiece", 36), ("byte", 0), ("char", 0), ("unigram", 279)):
        plain = Tokenizer.learn(TokensConfig(kind, size), ["low lower lowest <|im_end|>"] * 9, ("mask",))
        marked = with_marks(plain, ["<|im_start|>", "<|im_end|>"])
        assert len(marked) == len(plain) + 2
        assert marked.marks == plain.marks
        assert marked.silent - plain.silent == {len(plain), len(plain) + 1}
        assert marked.encode("a <|im_end|> low") == plain.encode("a <|im_end|> low")
        again = with_marks(marked, ["<|im_end|>"])
        assert again.__reduce__() == marked.__reduce__()
        marked.save(tmp_path / "tokenizer.json")
        assert Tokenizer.load(tmp_path / "tokenizer.json").silent == marked.silent
    with pytest.raises(ValueError, match="cannot have the mark <x>: a text that says so would give it, too"):
        with_marks(Tokenizer.learn(TokensConfig("none", 0), ["a b"]), ["<x>"])
