"""Servers for tests: real ones, on a port of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from regard.models import storage
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.door import address, listen
from regard.serving.registry import Registry, Served
from regard.serving.run import Server, server
from tests.serving.toys import model, tokenizer


def directory(path: Path, seed: int = 3, pair: str = "en, es") -> Path:
    """A model that has learned nothing, in a directory."""
    storage.save(model(seed), path)
    tokenizer().save(path / "tokenizer.json")
    (path / "recipe.yaml").write_text(
        f"data: {{corpus: tatoeba-en-es, languages: [{pair}]}}\ntrain: {{steps: 1}}\ndecode: {{extra: 6, beam: 3}}\n"
    )
    return path


@contextmanager
def running(registry: Registry, config: ServeConfig | None = None) -> Iterator[tuple[str, Server]]:
    """A server while the block lasts, and its address."""
    config = replace(config or ServeConfig(explorer=False), port=0)
    ready = Event()
    with listen(config) as door:
        made = server(create_app(registry, config), config, ready.set)
        thread = Thread(target=made.run, args=([door],))
        thread.start()
        try:
            assert ready.wait(30)
            yield address(door), made
        finally:
            made.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


class Hold:
    """Holds up a model's answers until it is let go, and counts the texts of each batch."""

    def __init__(self, served: Served) -> None:
        self.translator: Any = served.predictor()
        self.go, self.begun = Event(), Event()
        self.batches: list[list[str]] = []
        self._answers: Callable[..., Any] = self.translator.answers
        self.translator.answers = self._held

    def release(self) -> None:
        """As it was."""
        self.go.set()
        del self.translator.answers

    def _held(self, asks: list[Any], settings: Any) -> Any:
        self.batches.append([ask.text for ask in asks])
        self.begun.set()
        assert self.go.wait(30)
        return self._answers(asks, settings)
