"""DALI's pipelines in a process that was forked from theirs."""

import ctypes
import os
import weakref
from typing import Any


def survive_fork(pipeline: Any) -> None:
    """Lets a child that is forked later forget this pipeline, instead of waiting for it for ever."""
    _pipelines.add(pipeline)


_pipelines: weakref.WeakSet[Any] = weakref.WeakSet()


def _keep_pipelines() -> None:
    """Keeps DALI from stopping its threads in forked children, which have none of them and would wait for ever: in the
    garbage collector, over a pipeline dropped before the fork, or at the end of the process.

    A pipeline forgets its C++ object, which gets a reference that nothing gives up.
    """
    for pipeline in _pipelines:
        inner, pipeline._pipe = getattr(pipeline, "_pipe", None), None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_keep_pipelines)
