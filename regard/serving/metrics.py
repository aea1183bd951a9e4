"""What a server tells of itself to Prometheus. Each application has its own registry."""

from collections.abc import Callable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
disable_created_metrics()  # the time at which a counter began, once more for each


class Metrics:
    """Counters, gauges and histograms, by the name of what they count."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._watched: dict[str, object] = {}  # who tells how a model is
        ProcessCollector(registry=self.registry)  # memory, processor time, open files
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        route, model = ["method", "route"], ["model"]
        self.requests = counter("regard_requests", "Requests answered.", [*route, "status"])
        self.latency = histogram("regard_request_seconds", "From the first byte to the last.", route, buckets=SECONDS)
        self.refused = counter("regard_refused", "Requests refused, and why.", ["reason"])
        self.queue = gauge("regard_queue_length", "Requests waiting or at work.", model)
        self.batch_requests = histogram("regard_batch_requests", "Requests answered together.", model, buckets=COUNTS)
        about = "Sub-words of them, as they are counted."
        self.batch_tokens = histogram("regard_batch_tokens", about, model, buckets=TOKENS)
        self.batch_seconds = histogram("regard_batch_seconds", "Time that a batch took.", model, buckets=SECONDS)
        self.tokens = counter("regard_tokens", "Sub-words read and written.", [*model, "side"])
        self.cancelled = counter("regard_cancelled", "Requests not answered, since their client had left.", model)
        self.loaded = gauge("regard_model_loaded", "1 for a model in memory.", model)

    def watch(self, model: str, who: object, inside: Callable[[], float], loaded: Callable[[], float]) -> None:
        """Tell how a model is, as somebody knows it."""
        self._watched[model] = who
        self.queue.labels(model).set_function(inside)
        self.loaded.labels(model).set_function(loaded)

    def forget(self, model: str, who: object) -> None:
        """Tell it no more, unless another one knows it by now."""
        if self._watched.get(model) is who:
            del self._watched[model]
            for gauge in (self.queue, self.loaded):
                gauge.remove(model)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)
