"""/metrics: vLLM's names where one exists, `luce:` otherwise, with vLLM's label model_name."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from luce_core.request import FinishReason
from luce_core.runtime.runtime import Runtime
from luce_core.server.histogram import Histogram
from luce_core.server.metrics import Metrics

# vLLM's word for a request whose client left.
_FINISH_LABELS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}


class MetricsPage:
    """Renders one server's metrics; has its own registry."""

    def __init__(self, runtime: Runtime, metrics: Metrics, model_name: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ServerCollector(runtime, metrics, model_name))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the text format that `accept` prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _ServerCollector(Collector):
    def __init__(self, runtime: Runtime, metrics: Metrics, model_name: str) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._model = model_name

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._labelled_counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        snapshot = self._runtime.loop.snapshot
        used = snapshot.total_blocks - snapshot.free_blocks
        owned = sum(slot.blocks for slot in snapshot.slots)
        now = time.monotonic()
        values = (
            ("vllm:num_requests_running", "Requests that hold a slot", snapshot.running),
            ("vllm:num_requests_waiting", "Requests in the queue", snapshot.queued),
            ("vllm:kv_cache_usage_perc", "Used share of the KV pool, 0 to 1",
             used / snapshot.total_blocks),
            ("luce:kv_blocks_total", "Blocks of the KV pool", snapshot.total_blocks),
            ("luce:leaked_blocks", "Blocks that are neither free nor a slot's; must be 0",
             used - owned),
            ("luce:head_of_line_wait_seconds", "Wait so far of the oldest request without a slot",
             self._metrics.head_of_line_wait_s(now)),
            ("luce:unread_bytes", "Text that clients have not read",
             self._runtime.hub.unread_bytes),
            ("luce:unfinished_requests", "Requests accepted and not ended",
             self._runtime.hub.unfinished),
        )  # fmt: skip
        for name, text, value in values:
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        metrics, loop = self._metrics, self._runtime.loop
        values = (
            ("vllm:prompt_tokens", "Prompt tokens prefilled", metrics.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", metrics.generation_tokens),
            ("vllm:num_preemptions", "Requests put back into the queue", loop.snapshot.preemptions),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified", metrics.draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted",
             metrics.accepted_tokens),
            ("luce:steps", "Engine steps", loop.trace.steps),
            ("luce:step_faults", "Engine steps that failed", loop.step_faults),
        )  # fmt: skip
        for name, text, value in values:
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter

    def _labelled_counters(self) -> Iterator[Metric]:
        metrics, trace = self._metrics, self._runtime.loop.trace
        finished = {_FINISH_LABELS[reason]: metrics.finished[reason] for reason in FinishReason}
        parts = {"plan": trace.plan_s, "engine": trace.engine_s, "deliver": trace.deliver_s}
        families = (
            ("vllm:request_success", "Ended requests", "finished_reason", finished),
            ("luce:requests_cancelled", "Requests whose client left, by phase", "phase",
             {str(phase): count for phase, count in metrics.cancelled_in.items()}),
            ("luce:requests_rejected", "Requests refused for lack of room", "code",
             metrics.rejections),
            ("luce:readers_aborted", "Clients cut off for reading too slowly", "cause",
             metrics.aborted_readers),
            ("luce:step_seconds", "Time in steps", "part", parts),
        )  # fmt: skip
        for name, text, label, values in families:
            counter = CounterMetricFamily(name, text, labels=["model_name", label])
            for key, value in values.items():
                counter.add_metric([self._model, key], value)
            yield counter

    def _histograms(self) -> Iterator[Metric]:
        metrics = self._metrics
        families: tuple[tuple[str, str, Histogram], ...] = (
            ("vllm:time_to_first_token_seconds", "Arrival to first token",
             metrics.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two deliveries of a request",
             metrics.inter_token),
            ("vllm:e2e_request_latency_seconds", "Arrival to end", metrics.end_to_end),
            ("vllm:request_queue_time_seconds", "Arrival to slot", metrics.queue_time),
            ("vllm:request_prefill_time_seconds", "Slot to first token", metrics.prefill_time),
            ("vllm:request_decode_time_seconds", "First token to end", metrics.decode_time),
            ("vllm:request_prompt_tokens", "Prompt tokens of a request",
             metrics.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Generated tokens of a request",
             metrics.request_generation_tokens),
        )  # fmt: skip
        for name, text, histogram in families:
            family = HistogramMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model], histogram.buckets(), histogram.total)
            yield family
