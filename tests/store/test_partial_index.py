"""The index of a set at a URL, of which only what is needed is fetched: every sample is still the right one."""

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from loaders import drain, load
from store.partial_sets import all_rows, fetch_in_parts, here, older
from store.servers import Proxy, file_server, running

import gpuload
from gpuload import FormatError, RemoteError
from gpuload.disk import remote_index
from gpuload.disk.arrow_footer import batch_bounds
from gpuload.order.epoch import EpochOrder
from gpuload.read.rows_ahead import _LEAST_AHEAD
from gpuload.store.background import background
from gpuload.store.partial_file import PartialFile

INDEX = "/index.arrow"


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WHOLE_BYTES", "_HEAD_BYTES", "_TAIL_BYTES"):
        monkeypatch.setattr(remote_index, name, getattr(remote_index, name))  # so that it is set back
    fetch_in_parts()


@pytest.fixture(scope="module")
def _serving(many: Path) -> Iterator[Any]:
    with running(file_server(many)) as server, running(Proxy(server.url)) as proxy:
        yield proxy


@pytest.fixture
def serving(_serving: Any) -> Iterator[Any]:
    """The proxy before a server of a set of 49 shards."""
    _serving.reset()
    yield _serving
    _serving.reset()


def serve(folder: Path) -> Any:
    return running(file_server(folder))


def remote(proxy: Any, cache: Path, **options: Any) -> gpuload.DaliIterator:
    return load(gpuload.Dataset(proxy.url, cache), drop_last=False, **options)  # type: ignore[arg-type]


def part_bytes(folder: Path) -> int:
    """Of the largest record batch."""
    dataset = gpuload.Dataset(folder)
    return max(dataset.rows(number).nbytes for number in range(len(dataset.shard_paths))) + 1024


def test_opening_and_a_window_fetch_a_part(serving: Any, many: Path, tmp_path: Path) -> None:
    size = (many / "index.arrow").stat().st_size
    dataset = gpuload.Dataset(serving.url, tmp_path)
    assert here(dataset) == set() and len(dataset) == 97
    opened = serving.sent[INDEX]
    assert opened < 0.1 * size + 3000  # the footer, 24 bytes for each of 49 shards, and the schema in it and before it
    with load(dataset, 4, window=2, fields=("index",), prefetch=1) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=2)
        needed = {0, *order.window_shards(0).tolist()}  # the first sample's is looked at by fields
        assert needed <= here(dataset)
        # A few batches are read ahead: some windows, and what is fetched ahead of these.
        most = 1 + 4 * 2 + _LEAST_AHEAD
        assert len(here(dataset)) <= most
    assert serving.sent[INDEX] - opened <= most * part_bytes(many) < size
    assert serving.asked[INDEX] <= 3 + most


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 5, "verify": "sha256"},
        {"window": 3, "lanes": 4},
        {"window": 3, "shuffle": False},
        {"window": 4, "balance": "label"},
        {"window": 4, "buckets": [(12, 12), (10, 14)], "augment": gpuload.Augment(crop="cover", dtype="uint8")},
        {"window": 4, "exclude": [3, 40]},
    ],
    ids=lambda options: "-".join(options),
)
def test_epochs_are_those_of_the_folder(options: dict[str, Any], serving: Any, many: Path, tmp_path: Path) -> None:
    options = {"drop_last": False, **options}
    if "exclude" in options:
        options["exclude"] = gpuload.Dataset(many).keys(options["exclude"])
    with load(many, **options) as local, load(serving.url, cache=tmp_path, **options) as loader:  # type: ignore[arg-type]
        for _ in range(2):
            assert drain([loader]) == drain([local])
    parts = loader.dataset.index_parts
    assert parts is not None and parts.file.path.name == "index.partial"
    # Nothing is fetched twice, however it was asked for.
    assert serving.sent[INDEX] <= (many / "index.arrow").stat().st_size + 3000


def test_a_run_is_resumed_and_a_subset_and_a_mixture_are_the_same(serving: Any, many: Path, tmp_path: Path) -> None:
    with load(many, window=3, drop_last=False) as loader:
        whole = drain([loader])
    with remote(serving, tmp_path / "a", window=3) as loader:
        begun = drain([loader], steps=5)
        state = loader.state_dict()
    with remote(serving, tmp_path / "b", window=3) as loader:  # in another node's cache
        loader.load_state_dict(state)
        assert begun + drain([loader]) == whole
        assert len(here(loader.dataset)) < 49  # type: ignore[arg-type]

    def subset(data: Any, **options: Any) -> gpuload.Dataset:
        return gpuload.Dataset(data, **options).subset(range(10, 60, 2))

    part = subset(serving.url, cache=tmp_path / "c")
    with load(subset(many)) as local, load(part) as loader:  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])
    assert here(part) == set(range(5, 30))
    mixed = [
        gpuload.mix([(subset(many), 0.5), (other, 0.5)]) for other in (many, gpuload.Dataset(serving.url, tmp_path))
    ]
    with load(mixed[0], window=2) as local, load(mixed[1], window=2) as loader:  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])


def test_what_asks_for_all_rows_gets_all_at_once(serving: Any, many: Path, tmp_path: Path) -> None:
    local = gpuload.Dataset(many)
    rows = [local.rows(number).to_pylist() for number in range(49)]
    keys = [row["key"] for shard in rows for row in shard]
    asks: dict[str, Any] = {
        "labels": lambda one: one.labels.tolist(),
        "filter": lambda one: one.filter(pc.field("width") >= 80).stored_samples(np.arange(5)).tolist(),
        "key": lambda one: one[keys[40]]["index"],
        "keys": lambda one: one.keys(range(97)),
        "rows": lambda one: (one.fetch_rows(), [one.rows(number).to_pylist() for number in range(49)])[1],
    }
    for name, ask in asks.items():
        serving.reset()
        dataset = gpuload.Dataset(serving.url, tmp_path / name)
        opened = serving.asked[INDEX]
        assert ask(dataset) == ask(local)
        assert len(here(dataset)) == 49
        assert serving.asked[INDEX] == opened + 1  # in one range
        assert dataset.index_parts is not None
        assert dataset.index_parts.file.is_checked == (name != "keys")  # which asked for the shards of these samples
        again = gpuload.Dataset(serving.url, tmp_path / name)
        assert ask(again) == ask(local) and serving.asked[INDEX] == opened + 1


def test_single_samples_ask_for_their_own_rows(serving: Any, many: Path, tmp_path: Path) -> None:
    dataset, local = gpuload.Dataset(serving.url, tmp_path), gpuload.Dataset(many)
    assert dataset[33]["key"] == local[33]["key"] and here(dataset) == {16}
    assert dataset.keys([2, 3, 20]) == local.keys([2, 3, 20]) and here(dataset) == {1, 10, 16}
    assert dataset.first_row() == local.first_row() and here(dataset) == {0, 1, 10, 16}


def test_a_fault_in_a_part_is_tried_again(serving: Any, many: Path, tmp_path: Path) -> None:
    for fault in ("wrong bytes", "truncate"):
        serving.reset()
        serving.fault = lambda path, number, fault=fault: fault if path == INDEX and number in (4, 9) else None
        dataset = gpuload.Dataset(serving.url, tmp_path / fault)
        assert all_rows(dataset) == all_rows(gpuload.Dataset(many)) and serving.asked[INDEX] > 9


def test_wrong_bytes_never_come_to_where_readers_look(serving: Any, many: Path, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)
    opened = serving.asked[INDEX]
    serving.fault = lambda path, number: "wrong bytes" if path == INDEX else None
    with pytest.raises(
        FormatError,
        match=rf"^{serving.url}{INDEX}: the SHA-256 of bytes [\d,]+ to [\d,]+ is \w{{16}}…, manifest.json says "
        r"\w{16}…, at 3 attempts. It was damaged or replaced: open the set anew if",
    ):
        dataset.rows(5)
    assert serving.asked[INDEX] == opened + 3 and here(dataset) == set()
    with pytest.raises(FormatError, match="at 3 attempts"):
        assert dataset.labels is None
    serving.reset()
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_the_whole_is_compared_too(serving: Any, many: Path, tmp_path: Path) -> None:
    """So that bytes that changed on the disk are noticed, even those that belong to no part."""
    for number, at in enumerate((5000, 2, -10)):  # in a part, before them, and after them
        dataset = gpuload.Dataset(serving.url, tmp_path / str(number))
        dataset.fetch_rows(list(range(49)))
        (path,) = (tmp_path / str(number)).rglob("index.partial")
        file = PartialFile(path)
        os.pwrite(file.handle, bytes([file.memory[at % file.size] ^ 1]), at % file.size)
        assert not file.is_checked
        with pytest.raises(
            FormatError, match=f"{INDEX}: its SHA-256 is .*Open the set anew, or upload its folder again"
        ):
            dataset.fetch_rows()
        assert here(dataset) == set() and not path.exists()
        assert all_rows(gpuload.Dataset(serving.url, tmp_path / str(number))) == all_rows(gpuload.Dataset(many))


def test_a_footer_with_wrong_bytes_is_not_taken(serving: Any, many: Path, tmp_path: Path) -> None:
    """Then the whole is downloaded, which is compared, too."""
    serving.fault = lambda path, number: "wrong bytes" if path == INDEX and number in (2, 3) else None
    dataset = gpuload.Dataset(serving.url, tmp_path)
    assert dataset.index_parts is None and all_rows(dataset) == all_rows(gpuload.Dataset(many))
    assert not list(tmp_path.rglob("index.partial*"))


def changed(folder: Path, to: Path) -> Path:
    """A copy of a set that can be changed."""
    shutil.copytree(folder, to, symlinks=False)
    return to


def test_an_index_that_is_replaced_meanwhile(many: Path, tmp_path: Path, impatient: None) -> None:
    copy = changed(many, tmp_path / "set")
    with serve(copy) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "cache")
        first = dataset.rows(0).to_pylist()
        data = bytearray((copy / "index.arrow").read_bytes())
        data[len(data) // 2] ^= 1
        (copy / "index.arrow").write_bytes(data)
        with pytest.raises(FormatError, match=f"{INDEX}: the SHA-256 of bytes .* is .*, at 3 attempts"):
            dataset.labels  # noqa: B018
        assert 10 < len(here(dataset)) < 49 or here(dataset) == {0}  # those that are as they were
        (copy / "index.arrow").write_bytes(data + b"\0")
        with pytest.raises(FormatError, match=f"{INDEX}: was replaced since the set was opened. Open it anew"):
            dataset.rows(48)
        assert dataset.rows(0).to_pylist() == first == gpuload.Dataset(many).rows(0).to_pylist()


def test_a_disk_that_is_full(serving: Any, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gpuload.store.partial_file.write_at", full)
        for ask in (lambda: dataset.rows(3), lambda: dataset.labels):
            with pytest.raises(RemoteError, match=f"^{tmp_path}/.*: cannot be written .No space left.*Free some"):
                ask()
    assert here(dataset) == set()
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_a_folder_that_is_removed_meanwhile(serving: Any, many: Path, tmp_path: Path) -> None:
    """As an older version of a set is, after another process has opened the new one."""
    dataset = gpuload.Dataset(serving.url, tmp_path)
    (path,) = tmp_path.rglob("index.partial")
    shutil.rmtree(path.parent)
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))
    assert all_rows(gpuload.Dataset(serving.url, tmp_path)) == all_rows(dataset)


def test_ctrl_c_ends_the_download_of_all(serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)
    parts, opened = dataset.index_parts, serving.asked[INDEX]
    assert parts is not None
    serving.fault = lambda path, number: "503" if path == INDEX else None
    waiting = background().start(parts.get_all())
    while serving.asked[INDEX] < opened + 2:
        time.sleep(0.01)
    assert parts._all is not None and not parts._all.done()
    waiting.cancel()
    while not parts._all.done():
        time.sleep(0.01)
    serving.reset()
    assert len(dataset.labels) == 97 and len(here(dataset)) == 49


def test_an_index_that_is_uploaded_again_as_it_was(serving: Any, many: Path, tmp_path: Path) -> None:
    """Some servers give it another ETag then; the bytes are compared anyway."""
    dataset = gpuload.Dataset(serving.url, tmp_path)
    opened = serving.asked[INDEX]
    serving.fault = lambda path, number: "412" if path == INDEX and number == opened + 1 else None
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_older_sets(many: Path, tmp_path: Path) -> None:
    """Where nothing was compared before, parts must have the ETag of the first; where the whole was, it still is."""
    nothing = older(many, tmp_path / "nothing", "index_parts", "index_sha256")
    whole = older(many, tmp_path / "whole", "index_parts")
    for folder, in_parts in ((nothing, True), (whole, False)):
        with serve(folder) as server, running(Proxy(server.url)) as proxy:
            dataset = gpuload.Dataset(proxy.url, tmp_path / f"{folder.name}-cache")
            assert (dataset.index_parts is not None) == in_parts
            with load(many, window=2, drop_last=False) as local, load(dataset, window=2, drop_last=False) as loader:  # type: ignore[arg-type]
                assert drain([loader]) == drain([local])
            again = gpuload.Dataset(proxy.url, tmp_path / f"{folder.name}-other")
            data = bytearray((many / "index.arrow").read_bytes())
            data[len(data) // 2] ^= 1
            (folder / "index.arrow").unlink()
            (folder / "index.arrow").write_bytes(data)
            if in_parts:
                with pytest.raises(FormatError, match="was replaced since the set was opened"):
                    again.rows(7)
                assert here(again) == set()
                (folder / "index.arrow").write_bytes((many / "index.arrow").read_bytes())
            assert all_rows(again) == all_rows(gpuload.Dataset(many))


def test_a_small_index_and_a_server_without_ranges(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(file_server(many, ranges=False)) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "none")
        assert dataset.index_parts is None and all_rows(dataset) == all_rows(gpuload.Dataset(many))
    monkeypatch.setattr(remote_index, "WHOLE_BYTES", (many / "index.arrow").stat().st_size)
    with serve(many) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "small")
        assert dataset.index_parts is None and dataset.index_path.name == "index.arrow"


def test_without_a_network_what_is_here_is_read(
    many: Path, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpuload.store.remote_set._OFFLINE_S", 0.3)
    with serve(many) as server:
        expected = gpuload.Dataset(server.url, tmp_path).rows(9).to_pylist()
    dataset = gpuload.Dataset(server.url, tmp_path)
    assert dataset.rows(9).to_pylist() == expected
    with pytest.raises(
        RemoteError, match=rf"^{server.url}{INDEX}: no connection after \d+ attempts in \d s. Check the"
    ):
        dataset.rows(10)
    with pytest.raises(RemoteError, match=f"{INDEX}: no connection"):
        dataset.labels  # noqa: B018
    assert "The copy of its manifest and index in the cache is taken" in caplog.text


def test_an_index_that_does_not_come_is_an_error_of_the_loop(serving: Any, many: Path, tmp_path: Path) -> None:
    from gpuload.store.objects import Objects, Patience

    with load(many, 4, window=2, drop_last=False) as loader:
        expected = drain([loader])
    with remote(serving, tmp_path, batch_size=4, window=2) as loader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "patience", Patience(0.5, 5, 1, 0.02, 0.1))
        begun = drain([loader], steps=1)
        serving.fault = lambda path, number: "503" if path == INDEX else None
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RemoteError, match=rf"{INDEX}: the server answered 503 after \d+ attempts"):
            for batch in loader:
                begun += [(int(i), x.numpy().tobytes()) for i, x in zip(batch[0], batch[1], strict=True)]
        serving.reset()
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert begun + drain([loader]) == expected


ENDS = """
import sys, time
from store.partial_sets import fetch_in_parts, gpuload

fetch_in_parts()
loader = gpuload.DaliIterator(
    gpuload.Dataset(sys.argv[1], sys.argv[2]), 2, augment=gpuload.Augment(8), fields=("index", "image"), window=1,
    device="cpu", decoder="native", prefetch=2, shuffle=False,
)
batches = iter(loader)
next(batches)
print("stalls", flush=True)
sys.stdin.readline()
parts = loader.dataset.index_parts
while parts.has(loader.state_dict()["samples"] // 2 + 3):  # its thread does not come so far
    next(batches)
time.sleep(0.5)  # it waits for the rows of a later window by now
begun = time.monotonic()
for _ in loader:  # another loop ends the first
    break
loader.close()
print(time.monotonic() - begun < 15)
"""


def test_nothing_waits_for_rows_that_nobody_wants(serving: Any, tmp_path: Path) -> None:
    """A server that is silent for minutes holds up neither another loop, nor `close`, nor the end of the process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-W", "error", "-c", ENDS, serving.url, str(tmp_path)]
    serving.silent_s = 100
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stalls\n"
        serving.fault = lambda path, number: "stall" if path == INDEX else None
        out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("True\n", 0), err


def start(url: str, cache: Path, loops: int) -> "subprocess.Popen[str]":
    script = Path(__file__).with_name("partial_sets.py")
    command = [sys.executable, "-W", "error", str(script), url, str(cache), str(loops)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> set[str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return set(out.split()) - {"begins"}


def test_processes_share_what_they_fetch(serving: Any, many: Path, tmp_path: Path) -> None:
    serving.delay_s = 0.01
    found = [finish(one) for one in [start(serving.url, tmp_path, 1) for _ in range(2)]]
    serving.delay_s = 0.0
    assert found == [{str(all_rows(gpuload.Dataset(many)))}] * 2
    assert serving.sent[INDEX] <= (many / "index.arrow").stat().st_size + 3000


def test_what_a_killed_process_leaves(serving: Any, many: Path, tmp_path: Path) -> None:
    kill_some(serving, many, tmp_path, kills=1)


def kill_some(proxy: Any, folder: Path, cache: Path, kills: int, seed: int = 0) -> None:
    """Processes that are killed while they fetch the index, each time beside another one. What is marked is right."""
    rng = random.Random(seed)
    expected = {str(all_rows(gpuload.Dataset(folder)))}
    for number in range(kills):
        shutil.rmtree(cache / "one", ignore_errors=True)
        proxy.delay_s = 0.003
        beside = start(proxy.url, cache / "one", 1)
        process = start(proxy.url, cache / "one", 100)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.4))
        process.kill()
        process.communicate()
        for file in map(PartialFile, (cache / "one").rglob("index.partial")):
            dataset = gpuload.Dataset(proxy.url, cache / "one")
            parts = dataset.index_parts
            assert parts is not None and parts.file.size == file.size
            data = (folder / "index.arrow").read_bytes()
            for one in here(dataset):
                begin, end = parts.bounds[one : one + 2].tolist()
                assert file.memory[begin:end] == data[begin:end], number
        proxy.delay_s = 0.0
        assert finish(beside) == expected
        assert {str(all_rows(gpuload.Dataset(proxy.url, cache / "one")))} == expected


def test_a_file_of_parts_that_is_truncated(serving: Any, many: Path, tmp_path: Path) -> None:
    """It is an error that names it, and not the end of the process."""
    with remote(serving, tmp_path, window=2) as loader:
        batches = iter(loader)
        next(batches)
        (path,) = tmp_path.rglob("index.partial")
        os.truncate(path, 1000)
        with pytest.raises(FormatError, match=r"index.partial: (is damaged|was truncated)"):
            list(batches)
    with suppress(FormatError):  # it is removed
        gpuload.Dataset(serving.url, tmp_path)
    dataset = gpuload.Dataset(serving.url, tmp_path)
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_a_truncated_file_of_parts_is_not_made_longer(tmp_path: Path) -> None:
    """Where zeros would take the place of what was lost, and nobody would see it."""
    path = tmp_path / "index.partial"
    assert PartialFile.create(path, 10_000, 3, None, [])
    file = PartialFile(path)
    file.write(5000, b"abc")
    assert file.memory[5000:5003] == b"abc"
    os.truncate(path, 1000)
    for change in (lambda: file.write(5000, b"abc"), lambda: file.mark([1]), file.mark_checked, file.check):
        with pytest.raises(FormatError, match=r"index.partial: was truncated to 1,000 bytes while it was in use. Open"):
            change()
        assert path.stat().st_size == 1000
    file.forget()
    assert os.fstat(file.handle).st_size == 1000 and not path.exists()


@pytest.mark.parametrize("end", [b"", b'{"size": 5, "parts": 49, "tag": 3}'])
def test_a_file_of_parts_that_is_damaged_is_fetched_again(end: bytes, serving: Any, many: Path, tmp_path: Path) -> None:
    gpuload.Dataset(serving.url, tmp_path).rows(0)
    (path,) = tmp_path.rglob("index.partial")
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(end.ljust(4096))
    with pytest.raises(FormatError, match=f"^{serving.url}/index.partial: is damaged"):
        gpuload.Dataset(serving.url, tmp_path)
    assert all_rows(gpuload.Dataset(serving.url, tmp_path)) == all_rows(gpuload.Dataset(many))


def test_only_what_is_here_takes_room(tmp_path: Path) -> None:
    from gpuload.store.cache import Cache

    cache = Cache(tmp_path, 1 << 40)
    (cache.sets / "set").mkdir()
    path = cache.sets / "set" / "index.partial"
    assert PartialFile.create(path, 1 << 30, 1000, '"tag"', [(0, b"head"), ((1 << 30) - 4, b"tail")])
    file = PartialFile(path)
    assert (file.size, file.parts, file.tag, file.count()) == (1 << 30, 1000, '"tag"', 0)
    assert path.stat().st_size > 1 << 30 and cache.used() < 1 << 20
    os.pwrite(file.handle, bytes(range(256)) * 4096, 1 << 20)
    file.mark([3, 4])
    assert 1 << 20 <= cache.used() < 1 << 21
    assert (file.count(), file.missing(np.arange(6)).tolist()) == (2, [0, 1, 2, 5])
    assert not PartialFile.create(path, 10, 1, "x" * 5000, [])  # what does not fit


def test_manifests_tell_the_parts(many: Path) -> None:
    manifest = json.loads((many / "manifest.json").read_text())
    data = (many / "index.arrow").read_bytes()
    bounds = batch_bounds(data, len(data))
    assert bounds is not None and len(bounds) == 50
    ends = [*bounds.tolist(), len(data)]
    digests = [hashlib.sha256(data[begin:end]).hexdigest() for begin, end in pairwise(ends)]
    assert manifest["index_parts"] == digests and manifest["index_sha256"] == hashlib.sha256(data).hexdigest()
