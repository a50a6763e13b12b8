"""What a run tells while it runs: numbers, a warning, ranges for profilers, and Prometheus."""

from gpuload.monitor.exporter import Exporter, prometheus
from gpuload.monitor.metrics import Metrics

__all__ = ["Exporter", "Metrics", "prometheus"]
