"""What a run tells while it runs: numbers, a warning, and ranges for profilers."""

from gpuload.monitor.metrics import Metrics

__all__ = ["Metrics"]
