"""Talking with a language model: what it reads is its template's, where an answer ends, and what it cannot."""

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.tasks.asks import ReachError, Writing
from regard.tasks.generator import Generator
from tests.chats import CHATML, TURNS, talker
from tests.serving.toys import writer

CHAT = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "It is."},
    {"role": "user", "content": "So"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    talker(folder, "bytes", CHATML)
    return folder


@pytest.fixture(scope="module")
def generator(folder: Path) -> Any:
    return regard.load(folder / "ours")


def test_a_stream_is_the_answer_and_a_text_is_the_first_message(generator: Generator) -> None:
    for how in ({"seed": 1}, {"beam": 1}, {"beam": 3, "stop": "a"}):
        said = generator.chat(CHAT, limit=30, **how)
        assert "".join(generator.stream_chat(CHAT, limit=30, **how)) == said
    assert generator.chat("Why?", beam=1, limit=9) == generator.chat(CHAT[:1], beam=1, limit=9)
    assert generator.chat("Why?", beam=1, limit=9, echo=True).startswith("<|im_start|>system\nYou help.<|im_end|>\n")


def test_an_answer_ends_where_the_template_ends_one(tmp_path: Path) -> None:
    """As Gemma's do: by another mark than the end of a text."""
    _, ours = talker(tmp_path, "pieces", TURNS)
    generator = regard.load(ours)
    prompt = generator.conversation("Why?")
    assert prompt.end not in (None, generator.eos)
    generator.model.output.weight.data[prompt.end] = generator.model.output.weight.data.sum(0)  # likely, now and then
    ended = 0
    for seed in range(20):
        settings = Writing.of({"limit": 40, "seed": seed, "temperature": 1.0}, generator.decode)
        ((found,),) = generator.answers([prompt], settings)
        assert (found.ids[-1:] == [prompt.end]) or (prompt.end not in found.ids)
        ended += (after := found.ids[-1:] == [prompt.end])
        assert found.why == "stop" if after else True
        assert "".join(generator.stream(prompt, limit=40, seed=seed, temperature=1.0)) == found.text
    assert ended > 0


def test_what_no_model_can_answer_is_said(generator: Generator, folder: Path, tmp_path: Path) -> None:
    short = writer(tmp_path / "short", "{{ messages[-1].content }}")
    with pytest.raises(
        ReachError, match="the conversation has 129 sub-words, the model 128 places: leave out its oldest messages"
    ):
        regard.load(short).chat("a" * 129)
    with pytest.raises(ReachError, match=r"2\d\d sub-words, the model 256 places"):  # which it could go beyond
        generator.chat("a" * 240)
    with pytest.raises(ValueError, match="the chat template refuses these messages: 'dict object' has no attribute"):
        generator.chat([{"role": "user"}])
    _, ours = talker(tmp_path, "bytes", None)
    silent = regard.load(ours)
    with pytest.raises(ValueError, match=r"the model has no chat template: .* put a chat_template\.jinja into its dir"):
        silent.chat("Why?")
    (ours / "chat_template.jinja").write_text("{{ messages[-1].content }}:")  # of one's own
    assert regard.load(ours).conversation("Why?").text == "Why?:"
    (ours / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    with pytest.raises(ValueError, match=r"chat_template\.jinja:1: this is not UTF-8 text"):
        regard.load(ours)
    (ours / "chat_template.jinja").write_text("{% endif %}")
    with pytest.raises(ValueError, match="the chat template is no Jinja: line 1"):
        regard.load(ours).chat("Why?")
    assert isinstance(regard.load(ours).generate("Why?", limit=3), str)
