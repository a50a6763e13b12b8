"""Faults while a loop runs, each made to happen: the error reaches the loop, nothing hangs, and the next loop is whole."""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import prepared
import pytest
from images import encode, photo
from loaders import drain, load

import gpuload
from gpuload import Augment
from gpuload.decode.native.images import ImageDecoder
from gpuload.read.shards import Window

PROCESSES = Path(__file__).with_name("processes.py")


@pytest.fixture(params=["native", "dali", "both"])
def decoder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def users(batch: Any) -> None:
    """A batch transform of one's own."""


def failing_once(function: Callable[..., Any], error: BaseException, call: int) -> Callable[..., Any]:
    """The function, of which one call raises."""
    calls = count(1)

    def fail(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise error
        return function(*args, **options)

    return fail


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (ImageDecoder, "thread_memory", MemoryError("no room for pixels")),
        (Augment, "draw", MemoryError("no room for crops")),
        (Window, "read", KeyError("a bug of ours")),
        (Window, "__init__", OSError(5, "Input/output error")),
        (sys.modules[__name__], "users", ZeroDivisionError("in a batch transform of the user's")),
    ],
)
def test_an_error_in_any_thread_reaches_the_loop_as_it_is(
    packed: Path,
    decoder: str,
    owner: Any,
    name: str,
    error: BaseException,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if owner is ImageDecoder and decoder == "dali":
        return
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    options: dict[str, Any] = {"decoder": decoder, "num_threads": 2, "shuffle": gpuload.Shuffle(window=2)}
    options["batch_transforms"] = [lambda batch: users(batch)]
    with load(packed, **options) as undisturbed:
        expected = drain([undisturbed])
    with load(packed, **options) as loader:
        monkeypatch.setattr(owner, name, failing_once(getattr(owner, name), error, call))
        found = []
        with pytest.raises(type(error)) as raised:
            for index, _, _ in loader:
                found += index.tolist()
        assert raised.value is error
        assert found == [sample for sample, _ in expected][: len(found)]
        assert loader.state_dict()["samples"] == len(found)
        loader.set_epoch(0)  # as training loops do; it must not go back to the epoch's start
        assert drain([loader]) == expected[len(found) :]
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_close_from_another_thread_ends_the_loop(packed: Path, decoder: str, pause_s: float) -> None:
    def close() -> None:
        started.wait()
        time.sleep(pause_s)
        loader.close()

    for _ in range(3):
        loader, started = load(packed, decoder=decoder, num_threads=2), threading.Event()
        threads = [threading.Thread(target=close) for _ in range(2)]  # twice, at once
        for thread in threads:
            thread.start()
        with pytest.raises(gpuload.GpuloadError, match=r"ended by a later one .*or by close\(\)|is closed"):
            while True:
                for _ in loader:
                    started.set()
        for thread in threads:
            thread.join()
        loader.close()
        with pytest.raises(gpuload.GpuloadError, match="is closed; construct a new one"):
            iter(loader)


def test_loaders_in_several_threads_give_what_each_gives_alone(packed: Path, decoder: str) -> None:
    found: dict[int, Any] = {}

    def run(seed: int) -> None:
        with load(gpuload.Dataset(packed, verify="sha256"), decoder=decoder, seed=seed) as loader:
            found[seed] = [drain([loader]) for _ in range(2)]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    for seed in range(3):
        with load(packed, decoder=decoder, seed=seed) as loader:
            assert [drain([loader]) for _ in range(2)] == found[seed]


def script(*args: object, **environment: str) -> str:
    """What a process prints that must end well."""
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}
    variables = {name: value for name, value in variables.items() if value}
    command = [*prepared.python(), "-W", "ignore", *map(str, args)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_at_any_moment_of_a_batch(packed: Path, decoder: str) -> None:
    assert int(script(PROCESSES, "interrupt_loops", packed, decoder)) > 0


@pytest.mark.parametrize("decoder", ["native", "dali"])
def test_processes_end_and_go_on_whatever_became_of_their_loader(packed: Path, decoder: str, tmp_path: Path) -> None:
    """Inherited by forked children; closed, left alone, iterated by a thread at the end; ended by SIGTERM, twice, and resumed."""
    found = json.loads(script(PROCESSES, "end_and_go_on", packed, decoder, tmp_path / "state.json"))
    assert found["forked"] == [0, ""]
    assert list(found["ends"]) == ["close", "leave", "forget"] + ["iterate_in_a_thread"] * (decoder == "native")
    assert list(found["ends"].values()) == [[0, ""]] * len(found["ends"])
    with load(packed, decoder=decoder) as loader:
        epochs = [[sample for sample, _ in drain([loader])] for _ in range(2)]
    assert found["killed"] == [15, 15, 0]
    assert found["samples"].splitlines()[-1] == str(epochs[0] + epochs[1])


@pytest.mark.parametrize("decoder", ["native", "dali"])
def test_many_shards_need_no_file_handles(tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 20 shards, and a limit of open files below the number that the process has already."""
    gpuload.pack([{"image": encode(photo()), "label": 0}] * 100, tmp_path, workers=1, maxcount=1, progress=False)
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with load(tmp_path / "train", decoder=decoder, shuffle=gpuload.Shuffle(window=20)) as loader:
        before = len(os.listdir("/proc/self/fd"))
        batches = iter(loader)
        next(batches)
        assert len(os.listdir("/proc/self/fd")) <= before + 8  # of DALI's, and of this listing
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(gpuload.ShardError, match=r"shard-\d+.tar: cannot be read \(Too many open files\)"):
                list(loader)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        next(iter(loader))


def test_no_home_and_no_cache_folder(packed: Path) -> None:
    code = "import sys, loaders; loader = loaders.load(sys.argv[1]); print(loader.decoder, len(list(loader)))"
    without = {"HOME": "", "XDG_CACHE_HOME": ""}
    assert script("-c", code, packed, **without) == "native 12\n"
