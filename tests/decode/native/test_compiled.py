"""A cached function is compiled again when any source file changes that it is made of."""

import re
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import prepared
import pytest
from numba.core.codegen import JITCPUCodegen
from test_structure import PACKAGE, module_graph, own_modules

from gpuload.decode.native.compiled import compiled, inlined, sources_of
from gpuload.decode.native.intrinsics import TABLE_BYTES, look_up

_INNER = "from gpuload.decode.native.compiled import inlined\n\n@inlined\ndef inner(x):\n    return x + {number}\n"
_OUTER = (
    "from gpuload.decode.native.compiled import cached\nfrom inner import inner\n\n@cached\ndef outer(x):\n    return inner(x)\n\n"
    "print(outer(1), sum(outer.stats.cache_hits.values()))\n"
)


def run(folder: Path) -> str:
    result = subprocess.run([*prepared.python(), "outer.py"], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_a_cached_function_is_loaded_until_a_file_of_its_folder_changes(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)
    (tmp_path / "inner.py").write_text(_INNER.format(number=1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "inner.py").write_text(_INNER.format(number=2))
    assert run(tmp_path) == "3 0"
    assert run(tmp_path) == "3 1"


_FUNCTIONS = "from gpuload.decode.native.steps import step\n" + "".join(
    f"\n@step\ndef {name}(arguments, begin, end):\n    return begin + {number}\n" for number, name in enumerate("abcd")
)
# This process compiles the first function, whose lock it holds, and nothing else until its helper has had its turn.
_LOADS = """
import sys, time
from pathlib import Path
from types import SimpleNamespace

import functions
from gpuload.decode.native import compiled

sys.executable = {executable!r}
compiled.count_cores = lambda: 2
compile_free, start = compiled._compile_free, compiled._start

def wait(missing):
    while helper.poll() is None and len(list(Path("cache").rglob("*.nbc"))) < 3:
        time.sleep(0.01)
    return compile_free(missing)

def started(missing):
    global helper
    helper = start(missing)
    return helper

helper, compiled._compile_free, compiled._start = SimpleNamespace(poll=lambda: "none"), wait, started
all_of_them = [getattr(functions, name) for name in "abcd"]
compiled.load(all_of_them)
assert len({{compiled.address_of(one) for one in all_of_them}}) == 4
assert helper.poll() is not None
print(compiled.count_compiled())
"""


@pytest.mark.parametrize(
    ("executable", "first"),
    [(sys.executable, "1"), ("/bin/false", "4"), ("/none", "4")],
)
def test_helpers_compile_for_a_process_and_none_is_needed(
    tmp_path: Path, executable: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "functions.py").write_text(_FUNCTIONS)
    (tmp_path / "outer.py").write_text(_LOADS.format(executable=executable))
    assert (run(tmp_path), run(tmp_path)) == (first, "0")


def test_a_function_is_compiled_once_for_all_constants() -> None:
    @inlined
    def inner(x: int, times: int) -> int:
        return x * times

    @compiled
    def outer(x: int) -> int:
        done = 0
        for turn in range(x):
            done += inner(turn, 2) + inner(done, 3) + inner(4, turn)
        return done

    outer.compile((numba.int64,))  # type: ignore[attr-defined]
    assert inner.signatures == [(numba.int64, numba.int64)]  # type: ignore[attr-defined]


# Types are in annotations only; the cache keeps what others have compiled, and helpers are counted by the cores. What
# these import is not compiled, either.
_NOT_COMPILED = {"gpuload.types", "gpuload.decode.native.cache", "gpuload.machine.limits"}


def compiled_in(module: str) -> set[str]:
    """The module and all modules of the package that it imports, directly or through others that may be compiled in."""
    graph, found, open_ = module_graph(PACKAGE), set(), {module}
    while open_:
        name = open_.pop()
        found.add(name)
        open_ |= graph[name] - found - _NOT_COMPILED
    return found


_CACHED = [
    name for name, path in own_modules(PACKAGE).items() if re.search("\n@(cached|step|operation)\n", path.read_text())
]


@pytest.mark.parametrize("module", _CACHED)
def test_the_cache_depends_on_every_file_that_a_cached_function_can_use(module: str) -> None:
    """Functions inlined from another file, constants, and the fields of tuples are all compiled in."""
    paths = own_modules(PACKAGE)
    used = {paths[name] for name in compiled_in(module)}
    assert len(used) > 2
    assert used - set(sources_of(paths[module])) == set()


def test_there_are_cached_functions() -> None:
    assert {f"gpuload.decode.native.{name}" for name in ("jpeg.decode", "steps", "transforms.points")} <= set(_CACHED)


@pytest.mark.parametrize("features", [None, ""])  # this processor's; none that a table could use
def test_bytes_are_looked_up_with_every_processor(features: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if features is not None:
        monkeypatch.setattr(JITCPUCodegen, "magic_tuple", lambda _: ("", "", features))

    @numba.njit  # type: ignore[untyped-decorator]
    def outer(table: int, source: int, target: int) -> None:
        look_up(table, source, target)

    rng = np.random.default_rng(0)
    table, levels = rng.permutation(256).astype(np.uint8), np.zeros((2, 256), np.uint8)
    levels[0] = np.roll(np.arange(256), 1)
    for at in range(0, 256, TABLE_BYTES):
        outer(table.ctypes.data, levels[0, at:].ctypes.data, levels[1, at:].ctypes.data)
    assert np.array_equal(levels[1], table[levels[0]])
