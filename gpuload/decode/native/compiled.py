"""Functions compiled by numba, which run without Python's lock."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Any = {"nogil": True, "fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}
_HERE = Path(__file__).parent


def compiled(function: F) -> F:
    """Compiled anew in each process: for what other compiled functions call, and take into themselves."""
    made: F = njit(forceinline=True, **_OPTIONS)(function)
    return made


def called(function: F) -> F:
    """The same of what is too large to be taken in."""
    made: F = njit(**_OPTIONS)(function)
    return made


def kept(function: F) -> F:
    """Compiled once for all processes, where there is a place to keep it: compiling takes 4 to 10 s, loading 0.2 s.

    What it calls may be in its own file, and in `gpuload.decode.native.pointers`; in a folder below, in all files of that.
    """
    try:
        made: F = njit(cache=True, **_OPTIONS)(function)
        # numba looks whether the function's own file has changed, and at no other.
        file = made._cache._cache_file  # type: ignore[attr-defined]
        file._source_stamp = (file._source_stamp, _stamp(Path(function.__code__.co_filename)))
    except RuntimeError:  # neither NUMBA_CACHE_DIR nor the folder of this file nor the user's cache can be written to
        made = compiled(function)
    return made


def _stamp(path: Path) -> str:
    """Of all source text that a function in this file may be made of."""
    sources = [path] if path.parent == _HERE else sorted(path.parent.glob("*.py"))
    texts = (source.read_bytes() for source in [_HERE / "compiled.py", _HERE / "pointers.py", *sources])
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
