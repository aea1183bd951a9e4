"""What a server tells of itself to Prometheus. Each application has its own registry."""

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
disable_created_metrics()  # the time at which a counter began, once more for each
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters, gauges and histograms, by the name of what they count."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor time, open files
        route, model = ["method", "route"], ["model"]
        self.requests = Counter("regard_requests", "Requests answered.", [*route, "status"], registry=registry)
        self.latency = Histogram(
            "regard_request_seconds", "From the first byte to the last.", route, buckets=SECONDS, registry=registry
        )
        self.refused = Counter("regard_refused", "Requests refused, and why.", ["reason"], registry=registry)
        self.queue = Gauge("regard_queue_length", "Requests waiting or at work.", model, registry=registry)
        self.batch_requests = Histogram(
            "regard_batch_requests", "Requests answered together.", model, buckets=COUNTS, registry=registry
        )
        self.batch_tokens = Histogram(
            "regard_batch_tokens", "Sub-words of them, as they are counted.", model, buckets=TOKENS, registry=registry
        )
        self.batch_seconds = Histogram(
            "regard_batch_seconds", "Time that a batch took.", model, buckets=SECONDS, registry=registry
        )
        self.tokens = Counter("regard_tokens", "Sub-words read and written.", [*model, "side"], registry=registry)
        self.cancelled = Counter(
            "regard_cancelled", "Requests not answered, since their client had left.", model, registry=registry
        )
        self.loaded = Gauge("regard_model_loaded", "1 for a model in memory.", model, registry=registry)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)
