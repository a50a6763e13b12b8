"""Functions compiled by numba, which run without Python's lock."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Any = {"nogil": True, "fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}


def compiled(function: F) -> F:
    """Compiled anew in each process: for what other compiled functions call, and take into themselves."""
    made: F = njit(forceinline=True, **_OPTIONS)(function)
    return made


def kept(function: F) -> F:
    """Compiled once for all processes, where there is a place to keep it: compiling takes 4 s, loading 0.2 s."""
    try:
        made: F = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither NUMBA_CACHE_DIR nor the folder of this file nor the user's cache can be written to
        made = compiled(function)
    return made
