"""Functions compiled by numba, which run without Python's lock."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Any = {"nogil": True, "fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}
_HERE = Path(__file__).parent


def inlined(function: F) -> F:
    """Compiled, and inlined into every compiled function that calls it."""
    made: F = njit(forceinline=True, **_OPTIONS)(function)
    return made


def compiled(function: F) -> F:
    """Compiled, and called: for what is too large to be inlined."""
    made: F = njit(**_OPTIONS)(function)
    return made


def cached(function: F) -> F:
    """Compiled once for all processes, where a cache can be written: compiling takes 4 to 10 s, loading 0.2 s.

    For the functions that Python calls. What they call must be in a file of `sources_of` theirs, or a change of it
    would go unnoticed.
    """
    try:
        made: F = njit(cache=True, **_OPTIONS)(function)
        # numba only checks whether the function's own file has changed.
        file = made._cache._cache_file  # type: ignore[attr-defined]
        file._source_stamp = (file._source_stamp, _stamp(Path(function.__code__.co_filename)))
    except RuntimeError:  # none of NUMBA_CACHE_DIR, the folder of this file and the user's cache can be written
        made = compiled(function)
    return made


def sources_of(path: Path) -> list[Path]:
    """The files of which a cached function in this file may be made: its own file, in a subfolder all files of that
    folder, and the two that every compiled function uses."""
    own = [path] if path.parent == _HERE else sorted(path.parent.glob("*.py"))
    return [_HERE / "compiled.py", _HERE / "pointers.py", *own]


def _stamp(path: Path) -> str:
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources_of(path))).hexdigest()
