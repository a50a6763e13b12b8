"""The index of a set at a URL, of which only what is needed is fetched: every sample is still the right one."""

import errno
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from damaged import change_manifest
from loaders import load
from store.servers import file_server, proxied, running

import gpuload
from gpuload import FormatError, RemoteError
from gpuload.order.epoch import EpochOrder

INDEX = "/index.arrow"


def here(dataset: gpuload.Dataset) -> set[int]:
    """The shards whose rows are here."""
    assert dataset.index.parts is not None
    return {number for number in range(len(dataset.shard_paths)) if dataset.index.parts.has(number)}


def all_rows(dataset: gpuload.Dataset) -> list[Any]:
    """All rows, each shard's asked for by itself, and all labels."""
    rows: list[Any] = [dataset.rows(shard).to_pylist() for shard in range(len(dataset.shard_paths))]
    return [*rows, dataset.labels.tolist()]


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", 0)


@pytest.fixture
def serving(many: Path) -> Iterator[Any]:
    """The proxy before a server of a set of 49 shards."""
    with proxied(many) as proxy:
        yield proxy


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
    largest = max(gpuload.Dataset(many).rows(number).nbytes for number in range(49)) + 1024
    assert serving.sent[INDEX] - opened <= most * largest < size
    assert serving.asked[INDEX] <= 1 + most


def test_rows_are_fetched_as_they_are_asked_for(serving: Any, many: Path, tmp_path: Path) -> None:
    """Those that adjoin, or all, in one range, and once."""
    local, every = gpuload.Dataset(many), set(range(49))
    key = local.keys([80])[0]
    asks: list[tuple[Any, set[int], int]] = [
        (lambda one: one.first_row(), {0}, 1),
        (lambda one: one.keys([2, 3, 4, 8, 20]), {1, 2, 4, 10}, 3),
        (lambda one: one[33]["key"], {16}, 1),
        (lambda one: one[key]["index"], every, 1),
        (lambda one: one.keys(range(97)), every, 1),
        (lambda one: one.labels.tolist(), every, 1),
        (lambda one: [one.column(name).to_pylist() for name in one.schema.names], every, 1),
        (lambda one: one.filter(pc.field("width") >= 80).stored_samples(np.arange(5)).tolist(), every, 1),
        (lambda one: (one.fetch_rows(), all_rows(one)), every, 1),
    ]
    for number, (ask, needed, ranges) in enumerate(asks):
        dataset = gpuload.Dataset(serving.url, tmp_path / f"{number}")
        opened = serving.asked[INDEX]
        for one in (dataset, gpuload.Dataset(serving.url, tmp_path / f"{number}")):
            assert ask(one) == ask(local)
        assert here(dataset) == needed and serving.asked[INDEX] == opened + ranges


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


def test_parts_that_are_deleted_are_fetched_again(serving: Any, many: Path, tmp_path: Path) -> None:
    """As another process does with an old version."""
    dataset, expected = gpuload.Dataset(serving.url, tmp_path), all_rows(gpuload.Dataset(many))
    assert all_rows(dataset) == expected
    (path,) = tmp_path.rglob("rows-000003")
    shutil.rmtree(path.parent)
    assert all_rows(dataset) == expected == all_rows(gpuload.Dataset(serving.url, tmp_path))


def test_who_shares_a_cache_fetches_no_part_twice(serving: Any, many: Path, tmp_path: Path) -> None:
    """As processes do: each data set has a lock of its own, of which one is held at a time."""
    sets = [gpuload.Dataset(serving.url, tmp_path) for _ in range(2)]
    opened, serving.delay_s = serving.sent[INDEX], 0.2
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.fetch_rows(), sets))
    assert [all_rows(one) for one in sets] == [all_rows(gpuload.Dataset(many))] * 2
    assert serving.sent[INDEX] - opened <= (many / "index.arrow").stat().st_size


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
        assert len(here(dataset)) == 48  # those that are as they were; wrong bytes never come to where readers look
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


@pytest.mark.parametrize("lacking", ["parts", "ranges", "size"])
def test_otherwise_the_whole_is_fetched(
    lacking: str, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a set whose manifest tells no parts, from a server without ranges, and where it is small."""
    folder = Path(shutil.copytree(many, tmp_path / "set"))
    if lacking == "parts":
        names = ("index_offsets", "index_parts", "index_sha256")
        change_manifest(folder, lambda found: [found.pop(name) for name in names])
    if lacking == "size":
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", (many / "index.arrow").stat().st_size)
    with running(file_server(folder, ranges=lacking != "ranges")) as server:
        dataset = gpuload.Dataset(server.url, tmp_path / "cache")
        assert dataset.index.parts is None and all_rows(dataset) == all_rows(gpuload.Dataset(many))
    assert not list(tmp_path.rglob("rows-*"))


def test_what_is_here_counts_for_the_cache(serving: Any, tmp_path: Path) -> None:
    dataset: Any = gpuload.Dataset(serving.url, tmp_path)
    before = dataset.cache.used()
    dataset.rows(3)
    (path,) = tmp_path.rglob("rows-000003")
    assert dataset.cache.used() == before + path.stat().st_size
