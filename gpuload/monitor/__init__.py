"""Monitors a run: metrics, a warning, and ranges for profilers."""

from gpuload.monitor.metrics import Metrics

__all__ = ["Metrics"]
