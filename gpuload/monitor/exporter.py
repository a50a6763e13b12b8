"""Metrics of loaders for Prometheus, by its own client."""

import math
import weakref
from collections.abc import Iterator, Mapping
from threading import Thread
from types import TracebackType
from typing import Any, Protocol

from gpuload.checks import Rule, as_text, checked, whole
from gpuload.errors import GpuloadError, MissingPackageError
from gpuload.installed import fault_of
from gpuload.monitor.metrics import Metrics

_WINDOW = 100  # steps that the gauges are of; counters are since the start
_PORT = 9464

# name, help, field of `Metrics`. Counters are since the start; Prometheus makes rates of them: rate(…[1m]).
_COUNTERS = [
    ("gpuload_steps", "Batches handed out", "steps"),
    ("gpuload_images", "Images handed out", "images"),
    ("gpuload_read_bytes", "Bytes of these images as they are stored", "bytes"),
    ("gpuload_loop_seconds", "Time spent in loops over the loader", "seconds"),
    ("gpuload_bad_samples", "Samples that did not decode and were replaced", "bad_samples"),
]
_STAGES = [  # of a counter of seconds, by label
    ("gpuload_wait_seconds", "Time that training waited, by what for", ["read", "decode", "hand_over"]),
    (
        "gpuload_work_seconds",
        "Time that the loader's threads worked",
        ["disk", "read", "decode", "function", "hand_over"],
    ),
]
_FIELDS = {
    ("gpuload_wait_seconds", "read"): "wait_read_s",
    ("gpuload_wait_seconds", "decode"): "wait_decode_s",
}
_GAUGES = [
    ("gpuload_images_per_second", f"Over the last {_WINDOW} steps", "images_per_s"),
    ("gpuload_wait_share", f"Share of its time that training waited, over the last {_WINDOW} steps", "wait_share"),
    ("gpuload_queue_depth", f"Mean number of batches ready, over the last {_WINDOW} steps", "queue_depth"),
    ("gpuload_epoch", "The epoch", "epoch"),
    ("gpuload_position", "Samples of the epoch handed out, on all ranks together", "position"),
]


class HasMetrics(Protocol):
    """A loader, as far as it is needed here."""

    def metrics(self, window: int | None = None) -> Metrics:
        """As `DaliIterator.metrics`."""


def _as_loaders(value: Any) -> Mapping[str, Any]:
    loaders = dict(value) if isinstance(value, Mapping) else {"train": value}
    if not loaders or not all(callable(getattr(loader, "metrics", None)) for loader in loaders.values()):
        raise TypeError
    return {as_text(name): loader for name, loader in loaders.items()}


_LOADERS: Rule[Any] = Rule("a DaliIterator, or a dict of several by name: {'train': train, 'val': val}", _as_loaders)


class Exporter:
    """Serves metrics until it is closed. port: where; the one that the system chose, if 0 was asked for."""

    def __init__(self, server: Any, thread: Thread) -> None:
        self.port = int(server.server_port)
        self._server, self._thread = server, thread

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@checked(
    "monitor.prometheus",
    loaders=_LOADERS,
    port=whole(0, 65_535),
    host=Rule("an address of this machine, such as '127.0.0.1', or '0.0.0.0' for all", as_text),
)
def prometheus(loaders: Any, port: int = _PORT, host: str = "127.0.0.1") -> Exporter:
    """Serves the metrics of a loader, or of several by name, at http://host:port/metrics, in a thread of its own.

    Each is labelled with its name: loader="train" where there is only one. On a machine with several ranks give each
    its own port, such as 9464 + LOCAL_RANK. A loader that was garbage collected is served no longer.

    loaders: a loader, or a dict of several by name.
    port: of the server; 0 takes a free one.
    host: the default is this machine alone. "0.0.0.0" serves whoever can reach it, without a password.

    Raises:
        GpuloadError: the port cannot be opened.
        MissingPackageError: prometheus_client is not installed.
    """
    if (fault := fault_of("prometheus_client")) is not None:
        raise MissingPackageError(f"monitor.prometheus: {fault.reason}. `pip install 'gpuload[monitor]'` brings it")
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Collector({name: weakref.ref(loader) for name, loader in loaders.items()}))
    try:
        return Exporter(*start_http_server(port, host, registry))
    except (OSError, OverflowError) as error:
        raise GpuloadError(
            f"monitor.prometheus(port={port}, host={host!r}): cannot be opened ({error}). Use another port; 0 takes "
            "one that is free"
        ) from None


class _Collector:
    """What prometheus_client asks for at each scrape."""

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        self._loaders = loaders

    def describe(self) -> list[Any]:
        return []  # or it would collect when it is registered

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        alive = {name: loader for name, reference in self._loaders.items() if (loader := reference()) is not None}
        whole = {name: loader.metrics() for name, loader in alive.items()}
        last = {name: loader.metrics(_WINDOW) for name, loader in alive.items()}
        for name, about, field in _COUNTERS:
            counter = CounterMetricFamily(name, about, labels=["loader"])
            for loader, found in whole.items():
                counter.add_metric([loader], getattr(found, field))
            yield counter
        for name, about, stages in _STAGES:
            counter = CounterMetricFamily(name, about, labels=["loader", "stage"])
            for loader, found in whole.items():
                for stage in stages:
                    value = getattr(found, _FIELDS.get((name, stage), f"{stage}_s"))
                    if not math.isnan(value):
                        counter.add_metric([loader, stage], value)
            yield counter
        for name, about, field in _GAUGES:
            gauge = GaugeMetricFamily(name, about, labels=["loader"])
            for loader, found in last.items():
                if not math.isnan(getattr(found, field)):
                    gauge.add_metric([loader], getattr(found, field))
            yield gauge
        binds = GaugeMetricFamily(
            "gpuload_binds", f"1 for the stage that limits, over the last {_WINDOW} steps", labels=["loader", "stage"]
        )
        for loader, found in last.items():
            binds.add_metric([loader, found.binds], 1)
        yield binds
