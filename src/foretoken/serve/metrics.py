"""Metrics for Prometheus under vLLM's names, with our prefix or with vLLM's own, so that its dashboards work.

Source: vLLM's `v1/metrics/loggers.py` and `v1/spec_decode/metrics.py` for names, labels and buckets. Latencies are
those of the loop: from when a request has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from foretoken.protocol.telemetry import RoundRecord
from foretoken.results.completion import Completion
from foretoken.serve.asked import Asked, Times, Watcher
from foretoken.serve.worker import Worker
from foretoken.verification.prefixes import Prefixes

OWN, VLLM = PREFIXES = ("foretoken", "vllm")
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class _PrefixCounters(Collector):
    """What was looked for among what earlier requests have read, and what was found."""

    def __init__(self, prefix: str, labels: Mapping[str, str], prefixes: Prefixes) -> None:
        self._prefix, self._labels, self._prefixes = prefix, labels, prefixes

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        for name, said, value in (
            ("queries", "Tokens of prompts that were looked for among what was read before.", self._prefixes.queries),
            ("hits", "Those that were found.", self._prefixes.hits),
        ):
            metric = CounterMetricFamily(f"{self._prefix}:prefix_cache_{name}", said, labels=list(self._labels))
            metric.add_metric(list(self._labels.values()), value)
            yield metric


class Metrics(Watcher):
    """What the loop does, counted. prefix: `foretoken`, or `vllm`. model: the label model_name."""

    def __init__(self, model: str, prefix: str = OWN) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # dashboards sum over names, and would count these, too
        self._registry = CollectorRegistry(auto_describe=True)
        self._prefix, self._labels = prefix, {"model_name": model, "engine": "0"}
        counter, histogram = self._counter, self._histogram
        self._read = counter("prompt_tokens", "Tokens of prompts.")
        self._cached = counter("prompt_tokens_cached", "Tokens of prompts that were not read again.")
        self._written = counter("generation_tokens", "Tokens that were generated.")
        self._drafts = counter("spec_decode_num_drafts", "Drafts.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens that were drafted.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.")
        counter("num_preemptions", "Requests that were pushed out: none ever is.")
        self._first = histogram("time_to_first_token_seconds", "Until the first token.", _FIRST)
        self._between = histogram("inter_token_latency_seconds", "Between two tokens of a text.", _BETWEEN)
        # the name that vLLM's dashboard reads for the same
        self._old_between = histogram("time_per_output_token_seconds", "Between two tokens of a text.", _BETWEEN)
        self._mean = histogram("request_time_per_output_token_seconds", "The same, on average of a text.", _BETWEEN)
        self._seconds = {
            "e2e_request_latency_seconds": histogram("e2e_request_latency_seconds", "From beginning to end.", _LONG),
            **{
                name: histogram(name, said, _LONG)
                for name, said in {
                    "request_queue_time_seconds": "Until there was room.",
                    "request_inference_time_seconds": "From then on.",
                    "request_prefill_time_seconds": "From then until the first token.",
                    "request_decode_time_seconds": "From the first token on.",
                }.items()
            },
        }
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._length = histogram("request_generation_tokens", "Tokens of a text.", _TOKENS)
        self._asked_for = histogram("request_params_max_tokens", "max_tokens of a request.", _TOKENS)
        self._n = histogram("request_params_n", "n of a request.", (1, 2, 5, 10, 20))
        self._rows = histogram("iteration_tokens_total", "Rows of a pass.", _ROWS)
        name = f"{prefix}:spec_decode_num_accepted_tokens_per_pos"
        self._per_pos = Counter(
            name, "Draft tokens that were accepted, by place.", [*self._labels, "position"], registry=self._registry
        )
        self._reasons = Counter(
            f"{prefix}:request_success",
            "Texts that have ended.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )

    def watch(self, worker: Worker) -> None:
        """Show how many requests there are, and how much memory they may need."""
        most = worker.limits.positions

        def used() -> float:
            return worker.positions / most if most else 0.0

        self._gauge("num_requests_running", "Requests under way.", lambda: float(len(worker.running)))
        self._gauge("num_requests_waiting", "Requests that wait.", lambda: float(worker.waiting))
        self._gauge("kv_cache_usage_perc", "The share of keys and values that is reserved; 1 is all.", used)
        prefixes = worker.prefixes
        if prefixes is not None:
            self._registry.register(_PrefixCounters(self._prefix, self._labels, prefixes))

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        return generate_latest(self._registry)

    # -- in the loop's thread ----------------------------------------------------------------------------------------

    def came(self, asked: Asked) -> None:
        """A request has come."""
        self._n.observe(len(asked.requests))
        self._asked_for.observe(asked.settings.max_new_tokens)

    def went_on(self, asked: Asked, tokens: int, seconds: float, first: bool) -> None:
        """A text has gained tokens. Those of one round share its time."""
        self._written.inc(tokens)
        for _ in range(tokens - first):
            self._between.observe(seconds / tokens)
            self._old_between.observe(seconds / tokens)

    def made(self, record: RoundRecord) -> None:
        """A round was made."""
        self._rows.observe(sum(record.read.values()) + sum(1 + drafted for drafted in record.drafted.values()))
        self._read.inc(sum(record.read.values()))
        for sequence, drafted in record.drafted.items():
            if drafted:
                accepted = record.accepted.get(sequence, 0)
                self._drafts.inc()
                self._drafted.inc(drafted)
                self._accepted.inc(accepted)
                for position in range(accepted):
                    self._per_pos.labels(*self._labels.values(), str(position)).inc()

    def ended(self, asked: Asked, times: Times, completion: Completion | None, reason: str) -> None:
        """A text has ended."""
        self._reasons.labels(*self._labels.values(), "abort" if reason == "cancelled" else reason).inc()
        if completion is None:
            return
        self._cached.inc(completion.cached_tokens)
        self._read.inc(completion.cached_tokens)
        self._prompt.observe(completion.prompt_tokens)
        self._length.observe(len(completion.tokens))
        began, first = times.began or times.ended, times.first or times.ended
        if times.first:
            self._first.observe(times.first - times.came)
        if len(completion.tokens) > 1:
            self._mean.observe((times.ended - first) / (len(completion.tokens) - 1))
        for name, seconds in {
            "e2e_request_latency_seconds": times.ended - times.came,
            "request_queue_time_seconds": began - times.came,
            "request_inference_time_seconds": times.ended - began,
            "request_prefill_time_seconds": first - began,
            "request_decode_time_seconds": times.ended - first,
        }.items():
            self._seconds[name].observe(seconds)

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _counter(self, name: str, said: str) -> Any:
        return self._labelled(Counter(f"{self._prefix}:{name}", said, list(self._labels), registry=self._registry))

    def _histogram(self, name: str, said: str, buckets: tuple[float, ...]) -> Any:
        return self._labelled(
            Histogram(f"{self._prefix}:{name}", said, list(self._labels), buckets=buckets, registry=self._registry)
        )

    def _gauge(self, name: str, said: str, value: Callable[[], float]) -> None:
        gauge = Gauge(f"{self._prefix}:{name}", said, list(self._labels), registry=self._registry)
        self._labelled(gauge).set_function(value)

    def _labelled(self, metric: Any) -> Any:
        return metric.labels(*self._labels.values())
