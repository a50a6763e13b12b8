"""Metrics of loaders for Prometheus, by its own client."""

import math
import weakref
from collections.abc import Iterator, Mapping
from threading import Thread
from types import TracebackType
from typing import Any

from gpuload.checks import Rule, as_text, checked, whole
from gpuload.errors import GpuloadError, MissingPackageError
from gpuload.machine.installed import fault_of

_WINDOW = 100  # steps that the gauges are of; counters are since the start
_PORT = 9464

# Of each family of metrics the name and the help; and of each stage, or "" where there are none, the field of
# `Metrics`. Counters are since the start; Prometheus makes rates of them: rate(…[1m]).
_COUNTERS = {
    ("gpuload_steps", "Batches handed out"): {"": "steps"},
    ("gpuload_images", "Images handed out"): {"": "images"},
    ("gpuload_read_bytes", "Bytes of these images as they are stored"): {"": "bytes"},
    ("gpuload_loop_seconds", "Time spent in loops over the loader"): {"": "seconds"},
    ("gpuload_bad_samples", "Samples that did not decode and were replaced"): {"": "bad_samples"},
    ("gpuload_wait_seconds", "Time that training waited, by what for"): {
        "read": "wait_read_s",
        "decode": "wait_decode_s",
        "hand_over": "hand_over_s",
    },
    ("gpuload_work_seconds", "Time that the loader's threads worked"): {
        stage: f"{stage}_s" for stage in ("disk", "read", "decode", "function", "hand_over")
    },
}
_GAUGES = {
    ("gpuload_images_per_second", f"Over the last {_WINDOW} steps"): {"": "images_per_s"},
    ("gpuload_wait_share", f"Share of its time that training waited, over the last {_WINDOW} steps"): {
        "": "wait_share"
    },
    ("gpuload_queue_depth", f"Mean number of batches ready, over the last {_WINDOW} steps"): {"": "queue_depth"},
    ("gpuload_epoch", "The epoch"): {"": "epoch"},
    ("gpuload_position", "Samples of the epoch handed out, on all ranks together"): {"": "position"},
}


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
        for kind, families, told in ((CounterMetricFamily, _COUNTERS, whole), (GaugeMetricFamily, _GAUGES, last)):
            for (name, about), fields in families.items():
                labels = ["loader"] if "" in fields else ["loader", "stage"]
                family = kind(name, about, labels=labels)
                for loader, found in told.items():
                    for stage, field in fields.items():
                        if not math.isnan(value := getattr(found, field)):
                            family.add_metric([loader, stage][: len(labels)], value)
                yield family
        binds = GaugeMetricFamily(
            "gpuload_binds", f"1 for the stage that limits, over the last {_WINDOW} steps", labels=["loader", "stage"]
        )
        for loader, found in last.items():
            binds.add_metric([loader, found.binds], 1)
        yield binds
