"""LangChain's clients of OpenAI, unchanged, against a server of ours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import regard
from regard.serving.registry import Registry
from tests.chats import CHATML, talker
from tests.readers import directory as reader
from tests.serving.servers import running

pytestmark = pytest.mark.oracle
langchain = pytest.importorskip("langchain_openai")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    return Registry([talker(root, "bytes", CHATML)[1], reader(root / "vectors", "embed")])


@pytest.fixture(scope="module")
def how(registry: Registry) -> Iterator[dict[str, Any]]:
    with running(registry) as (address, _):
        yield {"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}


def test_it_talks(registry: Registry, how: dict[str, Any]) -> None:
    generator = regard.load(registry.get("ours").path)
    said = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Why?"}]
    expected = generator.chat(said, beam=1, limit=12)
    model = langchain.ChatOpenAI(model="ours", temperature=0, max_tokens=12, **how)
    asked = [("system", "You help."), ("human", "Why?")]
    answer = model.invoke(asked)
    assert (answer.content, answer.response_metadata["finish_reason"]) == (expected, "length")
    assert answer.usage_metadata["input_tokens"] == len(generator.conversation(said).ids)
    assert "".join(piece.content for piece in model.stream(asked)) == expected
    assert [each.content for each in model.batch([asked, asked])] == [expected] * 2
    stopped = model.bind(stop=[expected[3:5]]).invoke(asked)
    assert (stopped.content, stopped.response_metadata["finish_reason"]) == (
        expected[: expected.index(expected[3:5])],
        "stop",
    )
    told = model.bind(logprobs=True, top_logprobs=2).invoke(asked).response_metadata["logprobs"]["content"]
    assert {len(each["top_logprobs"]) for each in told} == {2}
    with pytest.raises(Exception, match="there is no model 'other'"):
        langchain.ChatOpenAI(model="other", **how).invoke(asked)


def test_it_makes_vectors(registry: Registry, how: dict[str, Any]) -> None:
    texts = ["a good film", "bad"]
    # Else it would cut texts by the tokens of OpenAI's models, which it downloads.
    model = langchain.OpenAIEmbeddings(model="vectors", check_embedding_ctx_length=False, **how)
    expected = regard.load(registry.get("vectors").path).embed(texts)
    assert np.allclose(model.embed_documents(texts), expected, atol=1e-6)
    assert np.allclose(model.embed_query(texts[0]), expected[0], atol=1e-6)
