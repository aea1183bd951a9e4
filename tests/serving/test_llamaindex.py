"""LlamaIndex's clients of text-embeddings-inference, unchanged, against a server of ours."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import regard
from regard.serving.registry import Registry
from tests.readers import directory as reader
from tests.serving.servers import running

pytestmark = pytest.mark.oracle
embeddings = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
ranks = pytest.importorskip("llama_index.postprocessor.tei_rerank")
schema = pytest.importorskip("llama_index.core.schema")

TEXTS = ["a good film", "bad", "a dog runs"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return Registry([reader(tmp_path_factory.mktemp("models") / "vectors", "embed")])


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    with running(registry) as (address, _):
        yield address


def test_it_makes_vectors(registry: Registry, address: str) -> None:
    model = embeddings.TextEmbeddingsInference(model_name="vectors", base_url=address)
    expected = regard.load(registry.get("vectors").path).embed(TEXTS)
    assert np.allclose(model.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    assert np.allclose(model.get_query_embedding(TEXTS[0]), expected[0], atol=1e-6)
    assert np.allclose(asyncio.run(model.aget_text_embedding(TEXTS[1])), expected[1], atol=1e-6)


def test_it_ranks(registry: Registry, address: str) -> None:
    embedder = regard.load(registry.get("vectors").path)
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text)) for text in TEXTS]
    found = ranks.TextEmbeddingInference(base_url=address, top_n=2).postprocess_nodes(nodes, query_str="a cat runs")
    scores = embedder.similarity(["a cat runs"], TEXTS)[0]
    best = np.argsort(-scores)[:2]
    assert [each.node.text for each in found] == [TEXTS[i] for i in best]
    assert np.allclose([each.score for each in found], scores[best], atol=1e-6)
