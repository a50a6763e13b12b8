"""Functions compiled by numba, which run without the GIL, and their compilation.

numba holds Python's lock while it compiles, so several processes compile at the same time: each goes through all
functions, and compiles those whose lock in the cache is free. A helper needs no orders and no answers, and whatever it
leaves, this process compiles.
"""

import gc
import hashlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite.binding import ffi
from numba import config, njit, types
from numba.core.compiler_lock import global_compiler_lock

from gpuload.decode.native.cache import Cache
from gpuload.machine.limits import count_cores

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Any = {"nogil": True, "fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}
_HERE = Path(__file__).parent
_cached: list[Any] = []
ROWS = (types.int64,) * 3  # the arguments of a function that is called by its address

# A helper takes 0.6 s to start, which several functions are worth.
_MOST, _FUNCTIONS_OF_EACH = 2, 3
_PROGRAM = "import sys; sys.path[:] = {}; from gpuload.decode.native import compiled; compiled.help_with({})"


def inlined(function: F) -> F:
    """Compiled, and inlined into every compiled function that calls it. Python must not call it.

    It has no wrapper for Python, which would cost a fifth of the compile time of all functions: 11 s of processor time
    instead of 14 (2026-11).
    """
    return _for_compiled(function, forceinline=True)


def exact(function: F) -> F:
    """As `inlined`, with each float operation rounded separately."""
    return _for_compiled(function, forceinline=True, fastmath=False)


def compiled(function: F) -> F:
    """Compiled and called, for functions too large to inline. Python must not call it, either."""
    return _for_compiled(function)


def _for_compiled(function: F, **options: Any) -> F:
    """Keeps numba from recompiling a function for each constant argument or initial value in a caller. LLVM finds
    constants itself after inlining."""
    made: Any = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **{**_OPTIONS, **options})(function)
    find = made.get_call_template
    made.get_call_template = lambda args, kws: find([types.unliteral(kind) for kind in args], kws)
    return cast(F, made)


def cached(function: F, by_address: bool = False, is_exact: bool = False) -> F:
    """Compiled once for all processes if a cache is writable: compiling takes 2 to 5 s, loading 0.2 s.

    It is compiled, with all inlined functions, for each dtype and layout of its arrays; pass values that differ from
    call to call as an address and flags.

    by_address: compiled code also calls it by its address. is_exact: each float operation is rounded separately.

    For functions that Python calls. Functions that they call must be in one of the files of `sources_of`, or a change
    would go unnoticed.
    """
    options = {**_OPTIONS, "fastmath": False} if is_exact else _OPTIONS
    made: F = njit(no_cfunc_wrapper=not by_address, **options)(function)
    made._cache = Cache(function, _stamp(Path(function.__code__.co_filename)))  # type: ignore[attr-defined]
    _cached.append(made)
    return made


@cache
def address_of(function: Any) -> int:
    """The address of a function cached `by_address`, with three int64 arguments; loads or compiles it if necessary."""
    if not function.overloads:
        function.compile(ROWS)
    (made,) = function.overloads.values()
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name))


def cache_folders() -> list[Path]:
    """The folders with the cached code of all modules imported so far; none if nothing can be kept."""
    paths = {function._cache.cache_path for function in _cached}
    return sorted(Path(path) for path in paths if path is not None)


def count_compiled() -> int:
    """Number of versions of these functions that this process has compiled rather than loaded."""
    return sum(sum(function.stats.cache_misses.values()) for function in _cached)


def sources_of(path: Path) -> list[Path]:
    """The source files of a cached function in this file: its own file (in a subfolder, all files of that folder), the
    shared ones, and compiled parts of headers."""
    own = [path] if path.parent == _HERE else sorted(path.parent.glob("*.py"))
    shared = [_HERE / f"{name}.py" for name in ("compiled", "intrinsics", "steps", "values")]
    header = _HERE.parents[1] / "headers" / "jpeg.py"
    codes = [_HERE.parents[1] / "transforms" / "ops.py"] if path.parent.name == "transforms" else []
    return [*shared, header, *codes, *own]


def _stamp(path: Path) -> bytes:
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources_of(path))).digest()


# Loading from the cache takes 0.2 s; waiting slightly longer costs less than decoding without it.
_WAIT_S = 0.5


class BackgroundCompilation:
    """Calls a function that loads or compiles others, in a separate thread.

    The interpreter waits for the thread at exit, and so does a fork: a child that inherited numba's lock without the
    thread that holds it could never compile anything.
    """

    is_done = False

    def __init__(self, load: Callable[[], None]) -> None:
        self._load = load
        self.thread = threading.Thread(target=self._run, name="gpuload-compile")
        self._first = threading.Lock()

    def start(self, wait: bool = True) -> None:
        """Starts at the first call only. wait: return when it is done, or after half a second; otherwise
        immediately."""
        if not self._first.acquire(blocking=False):
            return
        self.thread.start()
        _running.add(self.thread)
        if wait:
            self.thread.join(_WAIT_S)

    def _run(self) -> None:
        self._load()
        self.is_done = True


_running: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def wait_for_all() -> None:
    """Waits for all compilations in progress."""
    for thread in _running - {threading.current_thread()}:
        thread.join()


# Decoding threads may load functions, for which numba and llvmlite hold a lock each. A child forked meanwhile would
# inherit the locks without the thread that releases them, and wait forever.
_locks = (global_compiler_lock, getattr(ffi.lib, "_lock", nullcontext()))


def _acquire() -> None:
    wait_for_all()
    for lock in _locks:
        lock.__enter__()


def _release() -> None:
    for lock in reversed(_locks):
        lock.__exit__(None, None, None)


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)


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
