"""The OpenAPI document is true: requests made up from it, good and bad, meet only what it says."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.readers import directory as reader
from tests.serving.servers import directory, running
from tests.serving.toys import writer


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    readers = [reader(root / "vectors", "embed"), reader(root / "classes", "classify", labels=("no", "yes"))]
    return Registry([directory(root / "first"), writer(root / "writer", "{{ messages[0].content }}"), *readers])


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_document_names(registry: Registry, mode: GenerationMode) -> None:
    app = create_app(registry, ServeConfig(characters=1_000, host_names=("testserver",)))
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        operation = found.ok()
        if mode == GenerationMode.NEGATIVE and not operation.body:
            continue  # there is nothing to get wrong

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            guessed = isinstance(case.body, dict) and case.body.get("source") == "auto"  # it may be in no language
            case.call_and_validate(excluded_checks=[positive_data_acceptance] if guessed else None)

        ask()


def test_every_route_is_in_the_document_and_on_the_page(registry: Registry) -> None:
    with running(registry) as (address, _):
        paths = httpx.get(f"{address}/spec").json()["paths"]
        page = httpx.get(f"{address}/docs").text
    named = "/translate /detect /languages /frontend/settings /v1/models /v1/models/{id} /v1/completions /v1/embeddings"
    assert set(paths) == {
        *named.split(),
        "/v1/chat/completions",
        "/embed",
        "/predict",
        "/rerank",
        "/models/{id}",
        "/health",
        "/ready",
        "/metrics",
        "/spec",
        "/docs",
    }
    assert all(f"<code>{path}</code>" in page for path in paths)


def test_the_page_and_the_document_need_nothing_from_elsewhere(registry: Registry) -> None:
    with running(registry) as (address, _):
        assert "//" not in httpx.get(f"{address}/docs").text
        home = httpx.get(address, follow_redirects=False)
        assert (home.status_code, home.headers["location"]) == (307, "/docs")
