"""Compiles functions in several processes at the same time, since numba holds Python's lock while it compiles.

Each process goes through all functions, and compiles those whose lock in the cache is free. So a helper needs no orders
and no answers, and whatever it leaves, this process compiles.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from numba import config
from numba.core.compiler_lock import global_compiler_lock

from gpuload.decode.native.compiled import ROWS, address_of
from gpuload.machine.limits import count_cores

# A helper takes 0.6 s to start, which several functions are worth.
_MOST, _FUNCTIONS_OF_EACH = 2, 3
_PROGRAM = "import sys; sys.path[:] = {}; from gpuload.decode.native import helpers; helpers.help_with({})"


def load(functions: Sequence[Any], also: Callable[[], None] = lambda: None) -> None:
    """Loads functions cached `by_address`, or compiles those that are not in the cache, with helpers. Give those first
    that take longest. also: loads what no helper can compile; called before helpers are waited for."""
    missing = [one for one in dict.fromkeys(functions) if not (one.overloads or one._cache.has(ROWS, one.targetctx))]
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        with global_compiler_lock, suppress(OSError):  # no room for another process
            # Of processes that begin at the same time, such as ranks, one starts helpers.
            number = _count_helpers(missing) if missing and missing[0]._cache.lock(0) else 0
            helpers.extend(_start(missing) for _ in range(number))
        _compile_free(missing)
        also()
        for one in functions:
            address_of(one)
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


def help_with(names: Sequence[tuple[str, str]]) -> None:
    """What a helper does: compiles functions, of these modules and names."""
    gc.disable()
    _compile_free([getattr(import_module(module), name) for module, name in names])


def _count_helpers(missing: Sequence[Any]) -> int:
    # The executable of a frozen program is that program.
    if not sys.executable or getattr(sys, "frozen", False) or any(one._cache.cache_path is None for one in missing):
        return 0
    return min(_MOST, count_cores() - 1, len(missing) // _FUNCTIONS_OF_EACH)


def _start(functions: Sequence[Any]) -> "subprocess.Popen[bytes]":
    names = [(one.py_func.__module__, one.py_func.__name__) for one in functions]
    folder = {"NUMBA_CACHE_DIR": config.CACHE_DIR} if config.CACHE_DIR else {}
    command, nothing = [sys.executable, "-c", _PROGRAM.format(sys.path, names)], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env={**os.environ, **folder})


def _compile_free(functions: Sequence[Any]) -> None:
    """Compiles those that no other process compiles."""
    for one in functions:
        with global_compiler_lock:  # threads of a process share the locks of its caches
            if one._cache.lock(0):
                one.compile(ROWS)
