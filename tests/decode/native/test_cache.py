"""Compiled code on the disk: one process compiles for all, no state of the cache ends a loader, and a function is compiled
again when any source file changes that it is made of."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import prepared
import pytest
from numba.core.codegen import JITCPUCodegen
from test_structure import PACKAGE, module_graph, own_modules

from gpuload.decode.native.compiled import compiled, inlined, sources_of
from gpuload.decode.native.intrinsics import TABLE_BYTES, look_up

# Prints the result, and whether it was loaded (1) or compiled (0), once the code in FIRST has been run.
_SCRIPT = """
import os, sys, time
exec(os.environ.get("FIRST", ""))
from gpuload.decode.native.compiled import cached
from inner import inner

@cached
def outer(x):
    return inner(x) * 2

print(outer(3), sum(outer.stats.cache_hits.values()))
"""


_INNER = "from gpuload.decode.native.compiled import inlined\n\n@inlined\ndef inner(x):\n    return x + 1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "outer.py").write_text(_SCRIPT)
    (tmp_path / "program" / "inner.py").write_text(_INNER)
    return tmp_path


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    given = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **environment}
    given = {name: value for name, value in given.items() if value}
    command = [*prepared.python(), str(folder / "program" / "outer.py")]
    program = folder / "program"
    return subprocess.Popen(command, cwd=program, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder: Path, **environment: str) -> str:
    return said_by(start(folder, **environment))


def said_by(process: subprocess.Popen[str]) -> str:
    """Of errors it says nothing, whatever the cache is like, but that it compiles where that takes long."""
    out, error = process.communicate()
    assert re.sub("gpuload compiles .*\n", "", error) == ""
    return out.strip()


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted((folder / "cache").rglob(f"*{suffix}"))


def test_one_of_many_processes_compiles(folder: Path) -> None:
    processes = [start(folder) for _ in range(4)]
    assert sorted(map(said_by, processes)) == ["8 0"] + ["8 1"] * 3


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "flipped code": lambda data: flipped(data, len(data) // 2),
    "flipped stamp": lambda data: flipped(data, 0),
    "garbage": lambda data: b"garbage" * 100,
}


def test_a_damaged_cache_is_replaced(folder: Path) -> None:
    assert run(folder) == "8 0"
    (path,) = files(folder, ".nbc")
    whole = path.read_bytes()
    for name, damage in DAMAGE.items():
        path.write_bytes(damage(whole))
        assert (run(folder), run(folder)) == ("8 0", "8 1"), name


def test_a_process_that_is_killed_while_it_compiles_leaves_no_lock(folder: Path) -> None:
    first = start(folder)
    while not files(folder, ".lock"):
        assert first.poll() is None
        time.sleep(0.001)
    first.kill()
    first.communicate()
    patience = "from gpuload.decode.native import cache; cache._MOST_WAIT_S = 10_000"
    assert run(folder, FIRST=patience) in ("8 0", "8 1")  # it may have finished just before


def test_a_full_disk_costs_nothing_but_the_time_to_compile(folder: Path) -> None:
    full = """
from gpuload.decode.native import cache
def replaced(path):
    raise OSError(28, "No space left on device")
cache.replaced = replaced
"""
    assert [run(folder, FIRST=full), run(folder, FIRST=full)] == ["8 0", "8 0"]


def nowhere(folder: Path) -> dict[str, str]:
    """An environment in which no place that numba knows can be written, also for root; tmp holds temporary files."""
    (folder / "a file").touch()
    (folder / "program" / "__pycache__").touch()
    (folder / "tmp").mkdir()
    inside = str(folder / "a file" / "inside")
    return {"NUMBA_CACHE_DIR": inside, "HOME": inside, "XDG_CACHE_HOME": inside, "TMPDIR": str(folder / "tmp")}


def test_folders_behind_one_that_can_be_written_are_not_read(folder: Path) -> None:
    """With sudo, they may be those of a user who is not root."""
    blocked, environment = folder / "program" / "__pycache__", {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(folder)}
    blocked.touch()
    assert (run(folder, **environment), run(folder, **environment)) == ("8 0", "8 1")
    blocked.unlink()
    assert (run(folder, **environment), run(folder, **environment)) == ("8 0", "8 1")


@pytest.mark.parametrize("found", ["", "open to others", "a link", "a file"])
def test_a_temporary_folder_is_the_last_resort_if_no_other_user_can_write_it(folder: Path, found: str) -> None:
    environment, private = nowhere(folder), folder / "tmp" / f"gpuload-{os.getuid()}"
    if found == "open to others":
        private.mkdir()
        private.chmod(0o777)
    elif found == "a link":
        (folder / "elsewhere").mkdir(mode=0o700)
        private.symlink_to(folder / "elsewhere")
    elif found:
        private.touch()
    assert [run(folder, **environment), run(folder, **environment)] == ["8 0", "8 0" if found else "8 1"]
    assert bool(list(folder.rglob("*.nb*"))) == (not found)
    assert found or private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("where", "is_full"), [("cache", False), ("program/__pycache__", True)])
def test_a_cache_of_an_image_is_used_where_it_cannot_be_written_any_more(
    folder: Path, where: str, is_full: bool
) -> None:
    """is_full: nor can anything else be written."""
    kept = folder / where
    kept.mkdir()
    environment = {**nowhere(folder), "NUMBA_CACHE_DIR": str(kept) if where == "cache" else ""}
    if is_full:
        (folder / "tmp" / f"gpuload-{os.getuid()}").touch()
    assert run(folder, **environment) == "8 0"
    before = set(kept.rglob("*.nbc"))
    assert before
    # Root may write everywhere, so the test for it is what has to fail.
    environment["FIRST"] = f"""
import tempfile
real = tempfile.TemporaryFile
def refused(*args, dir=None, **options):
    if str(dir).startswith({str(kept)!r}):
        raise PermissionError(dir)
    return real(*args, dir=dir, **options)
tempfile.TemporaryFile = refused
"""
    assert run(folder, **environment) == "8 1"
    for path in before:
        path.write_bytes(b"damaged")
    assert (
        run(folder, **environment) == "8 0"
    )  # of another processor, say: compiled once more, and kept where it can be
    assert run(folder, **environment) == ("8 0" if is_full else "8 1")
    assert set(kept.rglob("*.nbc")) == before


def test_a_cached_function_is_loaded_until_a_file_of_its_folder_changes(folder: Path) -> None:
    assert [run(folder), run(folder)] == ["8 0", "8 1"]
    # A text of another length: Python's own bytecode is that of a file's size and whole second.
    (folder / "program" / "inner.py").write_text(_INNER.replace("+ 1", "+ 1 + 1"))
    assert [run(folder), run(folder)] == ["10 0", "10 1"]


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
    while helper.poll() is None and len(list(Path("../cache").rglob("*.nbc"))) < 3:
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
def test_helpers_compile_for_a_process_and_none_is_needed(folder: Path, executable: str, first: str) -> None:
    (folder / "program" / "functions.py").write_text(_FUNCTIONS)
    (folder / "program" / "outer.py").write_text(_LOADS.format(executable=executable))
    assert (run(folder), run(folder)) == (first, "0")


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
    assert {f"gpuload.decode.native.{name}" for name in ("jpeg.decode", "steps", "transforms.points")} <= set(_CACHED)
    paths = own_modules(PACKAGE)
    used = {paths[name] for name in compiled_in(module)}
    assert len(used) > 2
    assert used - set(sources_of(paths[module])) == set()


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
