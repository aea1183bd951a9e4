"""A server for the models of a test file, which says what they are in its own `registry`, and OpenAI's client of it."""

from collections.abc import Iterator

import openai
import pytest

from regard.serving.registry import Registry
from tests.serving.servers import running


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    with running(registry) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made
