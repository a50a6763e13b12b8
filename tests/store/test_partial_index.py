"""The index of a set at a URL, of which only what is needed is fetched: every sample is still the right one."""

import errno
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from loaders import drain, load
from store.partial_sets import all_rows, here, older
from store.servers import Proxy, file_server, finish, run_code, running, start_script

import gpuload
from gpuload import FormatError, RemoteError
from gpuload.order.epoch import EpochOrder
from gpuload.store.network import background

INDEX = "/index.arrow"


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", 0)


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
    assert opened < 0.1 * size + 3000  # the footer, 24 bytes for each of 49 shards, and the schema in it
    with load(dataset, 4, fields=("index",), prefetch=1, shuffle=gpuload.Shuffle(window=2)) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=2)
        needed = {0, *order.window_shards(0).tolist()}  # the first sample's is looked at by fields
        assert needed <= here(dataset)
        # A few batches are read ahead: some windows, and what is fetched ahead of these.
        most = 1 + 4 * 2 + 8
        assert len(here(dataset)) <= most
    assert serving.sent[INDEX] - opened <= most * part_bytes(many) < size
    assert serving.asked[INDEX] <= 1 + most


BUCKETS = gpuload.Augment(gpuload.Buckets([(12, 12), (10, 14)]), crop="cover", dtype="uint8")
OPTIONS: list[dict[str, Any]] = [
    {"shuffle": gpuload.Shuffle(window=1)},
    {"shuffle": gpuload.Shuffle(window=3, lanes=4)},
    {"verify": "sha256", "shuffle": False},
    {"shuffle": gpuload.Shuffle(window=4), "sampling": gpuload.Balance("label"), "exclude": [3, 40]},
    {"augment": BUCKETS, "shuffle": gpuload.Shuffle(window=4)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_epochs_are_those_of_the_folder(options: dict[str, Any], serving: Any, many: Path, tmp_path: Path) -> None:
    of_set: dict[str, Any] = {name: options[name] for name in ("verify", "exclude") if name in options}
    if "exclude" in of_set:
        of_set["exclude"] = gpuload.Dataset(many).keys(of_set["exclude"])
    options = {"drop_last": False, **{name: value for name, value in options.items() if name not in of_set}}
    sets: list[Any] = [gpuload.Dataset(many, **of_set), gpuload.Dataset(serving.url, cache=tmp_path, **of_set)]
    with load(sets[0], **options) as local, load(sets[1], **options) as loader:
        for _ in range(2):
            assert drain([loader]) == drain([local])
    assert here(loader.dataset) and not list(tmp_path.rglob("index.arrow"))
    # Nothing is fetched twice, however it was asked for.
    assert serving.sent[INDEX] <= (many / "index.arrow").stat().st_size + 3000


def test_a_run_is_resumed_and_a_subset_and_a_mixture_are_the_same(serving: Any, many: Path, tmp_path: Path) -> None:
    with load(many, drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        whole = drain([loader])
    with remote(serving, tmp_path / "a", shuffle=gpuload.Shuffle(window=3)) as loader:
        begun = drain([loader], steps=5)
        state = loader.state_dict()
    with remote(serving, tmp_path / "b", shuffle=gpuload.Shuffle(window=3)) as loader:  # in another node's cache
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
    with (
        load(mixed[0], shuffle=gpuload.Shuffle(window=2)) as local,
        load(mixed[1], shuffle=gpuload.Shuffle(window=2)) as loader,
    ):  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])


def test_what_asks_for_all_rows_gets_all_at_once(serving: Any, many: Path, tmp_path: Path) -> None:
    local = gpuload.Dataset(many)
    rows = [local.rows(number).to_pylist() for number in range(49)]
    keys = [row["key"] for shard in rows for row in shard]
    asks: dict[str, Any] = {
        "labels": lambda one: one.labels.tolist(),
        "columns": lambda one: [one.column(name).to_pylist() for name in one.schema.names],
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
        again = gpuload.Dataset(serving.url, tmp_path / name)
        assert ask(again) == ask(local) and serving.asked[INDEX] == opened + 1


def test_a_large_part_comes_in_ranges(
    serving: Any, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow network has its time for each, and a connection that is cut loses one."""
    dataset = gpuload.Dataset(serving.url, tmp_path)
    monkeypatch.setattr("gpuload.store.transfer.RANGE_BYTES", 300)
    begin, end = (dataset.manifest.index_offsets or ())[3:5]
    serving.reset()
    serving.fault = lambda path, number: "cut" if number == 2 else None
    assert dataset.rows(3).to_pylist() == gpuload.Dataset(many).rows(3).to_pylist()
    assert serving.asked[INDEX] == 1 + -(-(end - begin) // 300) > 3 and serving.sent[INDEX] <= end - begin + 300


def test_single_samples_ask_for_their_own_rows(serving: Any, many: Path, tmp_path: Path) -> None:
    dataset, local = gpuload.Dataset(serving.url, tmp_path), gpuload.Dataset(many)
    assert dataset[33]["key"] == local[33]["key"] and here(dataset) == {16}
    assert dataset.keys([2, 3, 20]) == local.keys([2, 3, 20]) and here(dataset) == {1, 10, 16}
    assert dataset.first_row() == local.first_row() and here(dataset) == {0, 1, 10, 16}


def test_a_fault_in_a_part_is_tried_again(serving: Any, many: Path, tmp_path: Path) -> None:
    """Also in the first, which is the footer."""
    for fault in ("wrong bytes", "truncate"):
        serving.reset()
        serving.fault = lambda path, number, fault=fault: fault if path == INDEX and number in (1, 3, 7) else None
        dataset = gpuload.Dataset(serving.url, tmp_path / fault)
        assert all_rows(dataset) == all_rows(gpuload.Dataset(many)) and serving.asked[INDEX] > 7


def test_wrong_bytes_never_come_to_where_readers_look(serving: Any, many: Path, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)
    opened = serving.asked[INDEX]
    serving.fault = lambda path, number: "wrong bytes" if path == INDEX else None
    asks = (lambda: dataset.rows(5), lambda: dataset.labels, lambda: gpuload.Dataset(serving.url, tmp_path / "new"))
    for ask in asks:
        message = rf"^{serving.url}{INDEX}: the SHA-256 of bytes [\d,]+ to [\d,]+ is not that of .*, at 3 attempts"
        with pytest.raises(FormatError, match=message):
            ask()
    assert serving.asked[INDEX] == opened + 9 and len(here(dataset)) == 48  # one byte of the range of all is wrong
    serving.reset()
    assert all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_what_is_damaged_in_the_cache_is_fetched_again(serving: Any, many: Path, tmp_path: Path) -> None:
    dataset, expected = gpuload.Dataset(serving.url, tmp_path), all_rows(gpuload.Dataset(many))
    damages: list[Callable[[Path, bytes], object]] = [
        lambda path, data: path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
        lambda path, data: path.write_bytes(data[:100]),
        lambda path, data: path.write_bytes(b""),
        lambda path, data: shutil.rmtree(
            path.parent, ignore_errors=True
        ),  # as another process does with an old version
    ]
    for damage in damages:
        assert all_rows(dataset) == expected == all_rows(gpuload.Dataset(serving.url, tmp_path))
        for path, data in [(path, path.read_bytes()) for path in tmp_path.rglob("rows-0*")]:
            damage(path, data)
    assert all_rows(dataset) == expected


def test_no_link_in_the_place_of_a_part_is_followed(serving: Any, tmp_path: Path) -> None:
    dataset, other = gpuload.Dataset(serving.url, tmp_path / "cache"), tmp_path / "other"
    dataset.rows(3)
    (path,) = tmp_path.rglob("rows-000003")
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(FormatError, match="rows-000003: is not a regular file of this user"):
        dataset.rows(3)
    assert other.exists()


def test_an_index_that_is_replaced_meanwhile(many: Path, tmp_path: Path, impatient: None) -> None:
    copy = Path(shutil.copytree(many, tmp_path / "set"))
    with running(file_server(copy)) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "cache")
        first = dataset.rows(0).to_pylist()
        data = bytearray((copy / "index.arrow").read_bytes())
        data[len(data) // 2] ^= 1
        (copy / "index.arrow").write_bytes(data)
        with pytest.raises(FormatError, match=f"{INDEX}: the SHA-256 of bytes .* is not .*, at 3 attempts"):
            dataset.labels  # noqa: B018
        assert len(here(dataset)) == 48  # those that are as they were
        (copy / "index.arrow").write_bytes(data + b"\0")
        with pytest.raises(FormatError, match=f"{INDEX}: the SHA-256 of bytes"):
            dataset.rows(min(set(range(49)) - here(dataset)))
        assert dataset.rows(0).to_pylist() == first == gpuload.Dataset(many).rows(0).to_pylist()


def test_a_disk_that_is_full(serving: Any, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gpuload.store.files.write_at", full)
        for ask in (lambda: dataset.rows(3), lambda: dataset.labels):
            with pytest.raises(RemoteError, match=f"^{tmp_path}/.*: cannot be written .No space left.*Free some"):
                ask()
    assert here(dataset) == set() and all_rows(dataset) == all_rows(gpuload.Dataset(many))


def test_ctrl_c_ends_the_download_of_all(serving: Any, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(serving.url, tmp_path)
    parts, opened = dataset.index.parts, serving.asked[INDEX]
    assert parts is not None
    serving.fault = lambda path, number: "503" if path == INDEX else None
    waiting = background().start(parts.get(range(49)))
    while serving.asked[INDEX] < opened + 2:
        time.sleep(0.01)
    waiting.cancel()
    serving.reset()
    assert len(dataset.labels) == 97 and len(here(dataset)) == 49


ALL = ["index_offsets", "index_parts", "index_sha256"]


@pytest.mark.parametrize("lacking", [["index_offsets"], ["index_parts"], ALL, "ranges", "size"])
def test_otherwise_the_whole_is_fetched(
    lacking: Any, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an older set, from a server without ranges, and where it is small."""
    folder = older(many, tmp_path / "set", *lacking) if isinstance(lacking, list) else many
    if lacking == "size":
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", (many / "index.arrow").stat().st_size)
    with running(file_server(folder, ranges=lacking != "ranges")) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "cache")
        assert dataset.index.parts is None and all_rows(dataset) == all_rows(gpuload.Dataset(many))
    assert not list(tmp_path.rglob("rows-*"))


def test_without_a_network_what_is_here_is_read(
    many: Path, tmp_path: Path, impatient: Any, caplog: pytest.LogCaptureFixture
) -> None:
    impatient(give_up_s=0.5)
    with running(file_server(many)) as server:
        expected = gpuload.Dataset(server.url, tmp_path).rows(9).to_pylist()
    dataset = gpuload.Dataset(server.url, tmp_path)
    assert dataset.rows(9).to_pylist() == expected
    for ask in (lambda: dataset.rows(10), lambda: dataset.labels):
        with pytest.raises(
            RemoteError, match=rf"^{server.url}{INDEX}: no connection after \d+ attempts in \d s. Check"
        ):
            ask()
    assert "Using the copy of its manifest and index in the cache" in caplog.text


def test_an_index_that_does_not_come_is_an_error_of_the_loop(
    serving: Any, many: Path, tmp_path: Path, impatient: Any
) -> None:
    with load(many, 4, drop_last=False, shuffle=gpuload.Shuffle(window=2)) as loader:
        expected = drain([loader])
    impatient(give_up_s=1)
    with remote(serving, tmp_path, batch_size=4, shuffle=gpuload.Shuffle(window=2)) as loader:
        begun, state = drain([loader], steps=1), loader.state_dict()
        loader.load_state_dict(state)
        serving.fault = lambda path, number: "503" if path == INDEX else None
        with pytest.raises(RemoteError, match=rf"{INDEX}: the server answered 503 after \d+ attempts"):
            drain([loader])
        serving.reset()
        loader.load_state_dict(state)
        assert begun + drain([loader]) == expected


ENDS = """
import sys, time
from store.partial_sets import fetch_in_parts, gpuload

fetch_in_parts()
loader = gpuload.DaliIterator(
    gpuload.Dataset(sys.argv[1], sys.argv[2]), 2, augment=gpuload.Augment(8), fields=("index", "image"),
    device="cpu", decoder="native", prefetch=2, shuffle=False,
)
batches = iter(loader)
next(batches)
print("stalls", flush=True)
sys.stdin.readline()
parts = loader.dataset.index.parts
while parts.has(loader.state_dict()["samples"] // 2 + 3):  # its thread does not come so far
    next(batches)
time.sleep(0.5)  # it waits for the rows of a later window by now
for _ in loader:  # another loop ends the first
    break
loader.close()
print("closed")
"""


def test_nothing_waits_for_rows_that_nobody_wants(serving: Any, tmp_path: Path) -> None:
    """A server that is silent for hours holds up neither another loop, nor `close`, nor the end of the process."""

    def stall() -> None:
        serving.fault = lambda path, number: "stall" if path == INDEX else None

    serving.silent_s = 10_000
    out, err, code = run_code(ENDS, serving.url, str(tmp_path), when=stall)
    assert (out, code) == ("stalls\nclosed\n", 0), err


def start(url: str, cache: Path, loops: int) -> "subprocess.Popen[str]":
    return start_script("partial_sets.py", url, str(cache), str(loops), warnings="error")


def test_processes_share_what_they_fetch(serving: Any, many: Path, tmp_path: Path) -> None:
    serving.delay_s = 0.01
    found = [finish(one) for one in [start(serving.url, tmp_path, 1) for _ in range(2)]]
    serving.delay_s = 0.0
    assert found == [{str(all_rows(gpuload.Dataset(many)))}] * 2
    assert serving.sent[INDEX] <= (many / "index.arrow").stat().st_size + 3000


def test_what_a_killed_process_leaves(serving: Any, many: Path, tmp_path: Path) -> None:
    """While it fetches the index, beside another one."""
    expected = {str(all_rows(gpuload.Dataset(many)))}
    serving.delay_s = 0.003
    beside, process = start(serving.url, tmp_path, 1), start(serving.url, tmp_path, 100)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.kill()
    process.communicate()
    serving.delay_s = 0.0
    assert finish(beside) == expected == {str(all_rows(gpuload.Dataset(serving.url, tmp_path)))}


def test_what_is_here_counts_for_the_cache(serving: Any, tmp_path: Path) -> None:
    from gpuload.store.cache import Cache

    dataset, cache = gpuload.Dataset(serving.url, tmp_path), Cache(tmp_path, 1 << 40)
    before = cache.used()
    dataset.rows(3)
    (path,) = tmp_path.rglob("rows-000003")
    assert cache.used() == before + path.stat().st_size


def test_manifests_tell_the_parts(many: Path) -> None:
    manifest, data = json.loads((many / "manifest.json").read_text()), (many / "index.arrow").read_bytes()
    offsets, schema = manifest["index_offsets"], gpuload.Dataset(many).schema
    assert len(offsets) == 51 and offsets[-1] == len(data)
    parts = [data[begin:end] for begin, end in pairwise(offsets)]
    assert manifest["index_parts"] == [hashlib.sha256(part).hexdigest() for part in parts]
    assert manifest["index_sha256"] == hashlib.sha256(data).hexdigest()
    rows = [pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in parts[:-1]]
    assert rows == [gpuload.Dataset(many).rows(number) for number in range(49)]
