"""Named ranges in the timelines of NVIDIA's Nsight Systems and torch's profiler.

Without a profiler they cost almost nothing: nothing is imported, and a range is one comparison.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_NO_RANGE: AbstractContextManager[Any] = nullcontext()


def annotate(name: str) -> AbstractContextManager[Any]:
    """A range in this thread, for the time within the context.

    It is an NVTX range in the domain "gpuload" if a tool such as `nsys profile` listens and the package nvtx is
    installed, and a record function if torch's profiler is active. torch's profiler sees only the thread that started
    it.
    """
    if is_listening():
        return _NvtxRange(_nvtx_domain(), name)
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is not None and getattr(profiler, "_is_profiler_enabled", False):
        return profiler.record_function(f"gpuload: {name}")  # type: ignore[no-any-return]
    return _NO_RANGE


def annotate_each(name: str, values: Iterable[T]) -> Iterator[T]:
    """Yields the same values, with a range around the time to get each."""
    source = iter(values)
    while True:
        with annotate(name):
            fetched = [next(source, _END)]
        if fetched[0] is _END:
            return
        yield fetched.pop()  # type: ignore[misc]  # not from a variable: a waiting caller must not keep a batch alive


_END = object()


class _NvtxRange:
    def __init__(self, domain: Any, name: str) -> None:
        self._domain, self._name = domain, name

    def __enter__(self) -> None:
        self._domain.push_range(_attributes(self._domain, self._name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._domain.pop_range()


def is_listening() -> bool:
    """Whether a tool listens to NVTX; it sets an environment variable before the process starts."""
    return _TOOL is not None and _nvtx_domain() is not None


_TOOL = os.environ.get("NVTX_INJECTION64_PATH") or None


@cache
def _nvtx_domain() -> Any:
    """The domain of NVTX ranges; None without the package, whose import takes 0.1 s cold."""
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.get_domain("gpuload") if nvtx.enabled() else None


@cache
def _attributes(domain: Any, name: str) -> Any:
    return domain.get_event_attributes(message=name)
