"""OpenAI's API, spoken by OpenAI's own client."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.serving.servers import directory, running


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    return Registry([directory(root / name) for name in ("first", "second")])


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    with running(registry) as (address, _):
        yield address


def test_the_client_lists_the_models(address: str, registry: Registry) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        models = client.models.list().data
        assert [model.id for model in models] == registry.ids
        one = client.models.retrieve("second")
    assert (one.object, one.owned_by) == ("model", "regard")
    assert one.created == int((registry.get("second").path / "model.safetensors").stat().st_mtime)


def test_what_no_model_does_is_said_and_not_pretended(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.models.retrieve("gpt")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError, match="a translation model: ask it by POST /translate") as wrong:
            client.completions.create(model="first", prompt="Hello")
        assert (wrong.value.param, wrong.value.code) == ("model", "model_not_supported")
        with pytest.raises(openai.NotFoundError, match="a translation model"):
            client.embeddings.create(model="first", input="Hello")
        with pytest.raises(openai.NotFoundError, match="no model 'gpt': there are first, second"):
            client.completions.create(model="gpt", prompt="Hello")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b'{"model": 7}', 400),
        ("POST", "/v1/completions", b'{"model": "\xff"}', 400),
        ("POST", "/v1/completions", b'{"model": "\\ud800"}', 404),
        ("POST", "/v1/embeddings", b"{}", 400),
        ("GET", "/v1/completions", b"", 405),
        ("POST", "/v1/models", b"", 405),
        ("GET", "/v1/models/a/b", b"", 404),
        ("GET", "/v1", b"", 404),
    ],
)
def test_errors_have_the_form_that_clients_expect(
    address: str, method: str, path: str, body: bytes, status: int
) -> None:
    answer = httpx.request(method, address + path, content=body, timeout=30)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_a_key_is_a_bearer_token(registry: Registry) -> None:
    with running(registry, ServeConfig(explorer=False, api_keys=("one-key",))) as (address, _):
        with openai.OpenAI(base_url=f"{address}/v1", api_key="one-key") as client:
            assert client.models.list().data[0].id == "first"
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key="another", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError) as refused,
        ):
            client.models.list()
        assert refused.value.code == "invalid_api_key"
