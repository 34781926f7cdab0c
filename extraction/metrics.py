"""Prometheus metrics of a run, from its status page: they answer while the worker hangs."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from extraction.status import Phase, RunStatus, ServerPhase
from hsstore.errors import InputError
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from extraction.status import WatchStatus


ACCEPTED = (
    "*/*",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=0.0.1",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
)
"""What Prometheus and its kin ask for."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the supervisor knows at one moment."""

    status: RunStatus | None
    stall: WatchStatus | None
    """The last stall report, also of a stall that is over."""
    still_seconds: float
    """Without progress until now."""
    stall_reports: int
    restarts: int


class RunCollector(Collector):
    """Turns a run's state into metrics whenever it is asked."""

    def __init__(self, look: Callable[[], Vitals]) -> None:
        self._look = look

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        vitals = self._look()
        status = vitals.status or RunStatus(run="")
        yield from _identity(status)
        yield from _samples(status)
        yield from _volume(status)
        yield from _load(status)
        yield from _servers(status)
        yield from _stages(status)
        yield from _life(status, vitals)


def _identity(status: RunStatus) -> Iterator[Metric]:
    labels = {
        "run": status.run,
        "worker": status.worker,
        "store": status.store,
        "server": status.server,
        "host": status.host,
    }
    yield InfoMetricFamily("hsstore_run", "Which run this is.", labels)
    phases = GaugeMetricFamily("hsstore_phase", "1 for what the run is doing.", labels=["phase"])
    for phase in get_args(Phase):
        phases.add_metric([phase], phase == status.phase)
    yield phases


def _samples(status: RunStatus) -> Iterator[Metric]:
    complete = status.complete + status.complete_now
    failed = status.failed + status.failed_now
    samples = GaugeMetricFamily("hsstore_samples", "Samples of the store.", labels=["state"])
    samples.add_metric(["complete"], complete)
    samples.add_metric(["failed"], failed)
    samples.add_metric(["pending"], max(status.samples - complete - failed, 0))
    yield samples
    yield _counter("hsstore_samples_committed", "Samples committed.", status.complete_now)
    yield _counter("hsstore_samples_failed", "Samples given up.", status.failed_now)
    yield _counter("hsstore_retries", "Samples asked for again.", status.retries)


def _volume(status: RunStatus) -> Iterator[Metric]:
    left = max(status.tokens_pending - status.tokens_now, 0)
    yield _counter("hsstore_tokens_appended", "Tokens appended.", status.tokens_now)
    yield _gauge("hsstore_tokens_pending", "Tokens still to be appended.", left)
    yield _counter("hsstore_bytes_appended", "Raw bytes appended.", status.bytes_now)
    yield _counter("hsstore_bytes_committed", "Raw bytes committed.", status.bytes_committed_now)
    yield _counter("hsstore_bytes_stored", "Committed bytes on disk.", status.bytes_stored_now)


def _load(status: RunStatus) -> Iterator[Metric]:
    yield _gauge("hsstore_requests_in_flight", "Requests under way.", status.in_flight)
    yield _gauge("hsstore_requests_in_flight_limit", "At most.", status.in_flight_cap)
    yield _gauge("hsstore_open_blocks", "Blocks being filled.", status.open_blocks)
    yield _gauge("hsstore_spool_used_bytes", "Spool memory in use.", status.spool_used_bytes)
    yield _gauge("hsstore_spool_budget_bytes", "Spool memory allowed.", status.spool_budget_bytes)


def _servers(status: RunStatus) -> Iterator[Metric]:
    """Yield what is known of each server, whether the run has one or several."""
    states = GaugeMetricFamily(
        "hsstore_server_state", "1 for what the run does with it.", labels=["server", "state"]
    )
    flying = GaugeMetricFamily(
        "hsstore_server_requests_in_flight", "Requests under way.", labels=["server"]
    )
    tokens = CounterMetricFamily(
        "hsstore_server_tokens_asked", "Tokens asked of it.", labels=["server"]
    )
    for one in status.servers:
        for state in get_args(ServerPhase):
            states.add_metric([one.url, state], state == one.state)
        flying.add_metric([one.url], one.in_flight)
        tokens.add_metric([one.url], one.tokens)
    yield from (states, flying, tokens)


def _stages(status: RunStatus) -> Iterator[Metric]:
    items = GaugeMetricFamily("hsstore_stage_items", "Items in a stage.", labels=["stage"])
    age = GaugeMetricFamily(
        "hsstore_stage_oldest_age_seconds", "Age of a stage's oldest item.", labels=["stage"]
    )
    now = time.time()
    for name in {stage.name for stage in status.stages}:
        alike = [stage for stage in status.stages if stage.name == name]
        items.add_metric([name], sum(stage.items for stage in alike))
        since = [stage.oldest_since_seconds or now for stage in alike]
        age.add_metric([name], max(now - min(since), 0.0))
    yield items
    yield age


def _life(status: RunStatus, vitals: Vitals) -> Iterator[Metric]:
    for name, text, seconds in (
        ("updated", "The worker's last word.", status.updated_seconds),
        ("progress", "Bytes last moved, or the server last worked.", status.progress_seconds),
        ("heartbeat", "The server's heartbeat last advanced.", status.heartbeat_seconds),
    ):
        yield _gauge(f"hsstore_last_{name}_timestamp_seconds", text, seconds)
    yield _gauge("hsstore_still_seconds", "Without progress until now.", vitals.still_seconds)
    yield _counter("hsstore_stall_reports", "Stall reports.", vitals.stall_reports)
    yield _counter("hsstore_restarts", "Workers started again.", vitals.restarts)
    now = vitals.stall.verdict if vitals.stall and not vitals.stall.recovered_seconds else ""
    stalled = GaugeMetricFamily("hsstore_stalled", "1 for why it has stalled.", labels=["verdict"])
    for verdict in Verdict:
        stalled.add_metric([verdict], verdict == now)
    yield stalled


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


class MetricsServer:
    """Serves the metrics of a run over HTTP, from a thread of this process.

    Raises
    ------
    InputError
        The port cannot be had.
    """

    def __init__(self, host: str, port: int, look: Callable[[], Vitals]) -> None:
        registry = CollectorRegistry()
        registry.register(RunCollector(look))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(f"--metrics-port {port}: {error.strerror} ({host})") from None
        # A client that goes away is no reason to print a traceback, sources and all.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = int(self._server.server_address[1])
        self._rehearse({"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host))  # noqa: S104

    def _rehearse(self, host: str) -> None:
        """Ask for every format: whatever is loaded late is loaded before the worker starts."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for accept in ACCEPTED:
            headers = {"Accept": accept, "Accept-Encoding": "gzip"}
            request = urllib.request.Request(  # always http
                f"http://{host}:{self.port}/metrics", headers=headers
            )
            with opener.open(request, timeout=10) as answer:
                answer.read()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
