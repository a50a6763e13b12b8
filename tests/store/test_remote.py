"""Sets at URLs, wherever they lie and are kept: the same samples as from a folder, each shard downloaded once, and an
error for all that is not so."""

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from loaders import drain, load, remote, world
from store.servers import file_server, proxied, running, shards_asked

import gpuload
from gpuload import ArgumentError, FormatError, MissingPackageError, RemoteError, ShardError, cli
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify
from gpuload.sources import open_source
from gpuload.store.network import background
from gpuload.store.objects import Objects
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL, as_location

Rows = list[tuple[int, bytes]]


def test_each_shard_is_downloaded_once(proxy: Any, tmp_path: Path, epochs: list[Rows]) -> None:
    """And the time that it takes is told apart from the disk's."""
    for downloads in (True, False):  # the second time out of the cache
        with remote(f"{proxy.url}/train", tmp_path) as loader:
            found = drain([loader])
            seen = loader.metrics(13)
            assert (seen.download_s > 0) == downloads and seen.download_s <= seen.read_s  # of which it is a part
            assert [found, drain([loader])] == epochs and loader.metrics(13).download_s == 0
        assert shards_asked(proxy) == {f"/train/shard-{n:06d}.tar": 1 for n in range(10)}
    assert proxy.asked["/train/index.arrow"] == 1
    assert repr(loader).startswith(f"DaliIterator('{proxy.url}/train': 97 samples")


BUCKETS = gpuload.Augment(gpuload.Buckets([(12, 12), (10, 14)]), crop="cover", dtype="uint8")
OPTIONS: list[dict[str, Any]] = [
    {"shuffle": gpuload.Shuffle(window=1)},
    {"shuffle": gpuload.Shuffle(window=1, lanes=2), "drop_last": True},
    {"verify": "sha256", "shuffle": False, "decoder": "dali"},
    {"exclude": [3, 40], "shuffle": gpuload.Shuffle(window=4), "sampling": gpuload.Balance("label")},
    {"augment": BUCKETS, "shuffle": gpuload.Shuffle(window=4)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_epochs_are_those_of_the_folder(options: dict[str, Any], place: Any, packed: Path, tmp_path: Path) -> None:
    of_loader = {name: value for name, value in options.items() if name not in ("verify", "exclude")}
    of_set = {"verify": options.get("verify"), "exclude": gpuload.Dataset(packed).keys(options.get("exclude", []))}
    sets = gpuload.Dataset(packed, **of_set), place(tmp_path, **of_set)
    with remote(sets[0], **of_loader) as local, remote(sets[1], **of_loader) as loader:
        for _ in range(2):
            assert drain([loader]) == drain([local])


def test_ranks_mixtures_subsets_and_runs_that_go_on_are_those_of_the_folder(
    place: Any, packed: Path, tmp_path: Path, epochs: list[Rows]
) -> None:
    window: dict[str, Any] = {"shuffle": gpuload.Shuffle(window=2)}
    data, local = place(tmp_path), gpuload.Dataset(packed)
    loaders = world(data, 4, 2, drop_last=False, **window)
    rows = drain(loaders)
    assert sorted(rows) == sorted(epochs[0]) and len(rows) == 97
    for loader in loaders:
        loader.close()
    for first, second in ((packed, data), (data, packed), (data, place(tmp_path / "another node"))):
        with load(first, drop_last=False, **window) as loader:
            begun, state = drain([loader], steps=5), loader.state_dict()
        with load(second, drop_last=False, **window) as loader:
            loader.load_state_dict(state)
            assert begun + drain([loader]) == epochs[0] and "http" not in str(loader.state_dict())
    changes: list[Callable[[Any], Any]] = [
        lambda one: one.subset(range(10, 60, 2)),
        lambda one: gpuload.mix([(packed, 0.5), (one.subset(range(50)), 0.5)]),
    ]
    for change in changes:
        with load(change(local), **window) as expected, load(change(data), **window) as loader:
            assert drain([loader]) == drain([expected])


def test_what_is_asked_of_a_set_is_told_as_of_the_folder(place: Any, packed: Path, tmp_path: Path) -> None:
    data, local = place(tmp_path, cache_size="1GB"), gpuload.Dataset(packed)
    keys = local.keys(range(97))
    asks: list[Callable[[Any], Any]] = [
        lambda one: one.first_row(),
        lambda one: one.keys([2, 3, 20]),
        lambda one: one.labels.tolist(),
        lambda one: [one.column(name).to_pylist() for name in one.schema.names],
        lambda one: one.filter(pc.field("width") >= 80).stored_samples(np.arange(5)).tolist(),
        lambda one: [one.rows(number).to_pylist() for number in range(10)],
        lambda one: [{**one[index], "image": one[index]["image"].tobytes()} for index in (3, 96, keys[40])],
        lambda one: drain([load(pickle.loads(pickle.dumps(one.subset(range(30)))))]),
    ]
    for ask in asks:
        assert ask(data) == ask(local)
    copy = pickle.loads(pickle.dumps(data)).cache
    assert (copy.folder, copy.limit) == (tmp_path, 10**9)


ONCE = ["wrong bytes", "500", "stall", "503", "hang up", "cut", "429", "truncate"]


def test_what_goes_wrong_once_is_tried_again(
    way: str, proxy: Any, tmp_path: Path, epochs: list[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault with one of the shards, and some with what lies beside them: of the index, with several parts, the
    first of which is its end."""
    faults = {"manifest.json": ["503"], **{f"shard-{n:06d}.tar": [ONCE[n % 8]] for n in range(10)}}
    faults["index.arrow"] = (
        ["cut", "wrong bytes"] if way != "in parts" else ["wrong bytes", "", "truncate", "", "wrong bytes", ""]
    )

    def fault(path: str, number: int) -> str | None:
        of_file = faults.get(path.rpartition("/")[2], [])
        return of_file[number - 1] or None if number <= len(of_file) else None

    proxy.fault = fault
    proxy.silent_s = 4.0
    monkeypatch.setattr(Objects, "patience", replace(Objects.patience, silent_s=1.5))
    with remote(f"{proxy.url}/train", tmp_path) as loader:
        assert drain([loader]) == epochs[0]
    asked = shards_asked(proxy)
    assert proxy.asked["/train/index.arrow"] > len(faults["index.arrow"])
    # Others are slow, too, beside one that stalls.
    assert len(asked) == 10 and set(asked.values()) <= {2, 3, 4}


def test_whole_files_come_in_ranges(proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into memory or a file: a slow network, or one that is cut, loses a range of them, which comes after the others."""
    monkeypatch.setattr("gpuload.store.objects.RANGE_BYTES", 1_000)
    content, objects = (packed / "index.arrow").read_bytes(), Objects(URL(f"{proxy.url}/train"))
    sha256 = hashlib.sha256(content).hexdigest()

    async def fetched() -> bytes:
        await fetch_file(objects, "index.arrow", tmp_path / "file", len(content), sha256)
        return (tmp_path / "file").read_bytes()

    async def read() -> bytes:
        return bytes((await objects.read_whole("index.arrow")).data)

    for ask in (read, fetched):
        proxy.reset()
        proxy.fault = lambda path, number: "cut" if number == 2 else None
        assert background().wait(ask()) == content
        assert proxy.asked["/train/index.arrow"] == -(-len(content) // 1_000) + 1


LASTING = {
    "503": r"the server answered 503 after \d+ attempts in \d s. Check the network",
    "cut": r"the connection was cut after \d+ attempts in \d s. Check the network and the server",
    "stall": r"timed out after \d attempts in \d s. Check the network and the server, then run it",
    "403": r"access was denied \(403\). No credentials are sent",
    "404": r"does not exist. Check the URL",
    "truncate": r"only [\d,]+ of [\d,]+ bytes came after \d+ attempts in \d s. Check the network",
    "wrong bytes": r"its SHA-256 is \w{16}…, manifest.json says \w{16}…, at 3 attempts. It was damaged or replaced",
}


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        *((fault, "cached") for fault in LASTING),
        ("503", "in parts"),
    ],
    indirect=["way"],
)
def test_what_goes_on_going_wrong_is_an_error_in_a_while(
    fault: str, way: str, proxy: Any, tmp_path: Path, impatient: Any, epochs: list[Rows],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the shards, or with rows of the index that were not fetched as it was opened."""
    impatient(give_up_s=1.0)
    error = ShardError if fault == "wrong bytes" else RemoteError
    file = r"index.arrow" if way == "in parts" else r"shard-\d+.tar"
    proxy.silent_s = 1.0
    if fault == "stall":
        impatient(silent_s=0.5, give_up_s=1.0)
    with remote(f"{proxy.url}/train", tmp_path) as loader:
        proxy.fault = lambda path, number: fault if path.endswith(file[-4:]) else None
        with pytest.raises(error, match=rf"^{proxy.url}/train/{file}: {LASTING[fault]}"):
            drain([loader])
        proxy.reset()  # and the next loop goes on where the last one stopped
        monkeypatch.undo()
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "begin": 0, "samples": 0})
        assert drain([loader]) == epochs[0]


def test_without_a_network_the_cache_is_enough(
    way: str, packed: Path, tmp_path: Path, epochs: list[Rows], caplog: pytest.LogCaptureFixture, impatient: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with running(file_server(packed)) as server:
        url = server.url
        with remote(url, tmp_path) as loader:
            drain([loader])
    caplog.clear()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("gpuload.disk.fetch._OFFLINE_S", 0)  # it waits for the server less where there is a copy
        with remote(url, tmp_path) as loader:
            assert [drain([loader]), drain([loader])] == epochs
    assert re.search("after 1 attempt in .*Using the copy of its manifest and index in the cache", caplog.text)
    with pytest.raises(RemoteError, match=f"{url}/manifest.json: no connection after .* attempts"):
        gpuload.Dataset(url, tmp_path / "empty")
    monkeypatch.setattr("gpuload.disk.fetch._OPEN_S", 0)
    with pytest.raises(RemoteError, match="after 1 attempt in"):
        gpuload.Dataset(url, tmp_path / "empty")


def test_a_folder_of_splits(proxy: Any, tmp_path: Path) -> None:
    message = f"^{proxy.url}: holds packed splits; open one of them, for instance {proxy.url}/train$"
    with pytest.raises(FormatError, match=message):
        gpuload.Dataset(proxy.url, tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("manifest.json", lambda data: data[:-9], "is damaged: .*Upload the folder again"),
        ("index.arrow", lambda data: data[:-9], r"its SHA-256 is \w{16}…, manifest.json says .*upload it again"),
        ("index.arrow", bytes.swapcase, r"its SHA-256 is \w{16}…, manifest.json says .*upload it again"),
    ],
)
def test_what_is_damaged_where_it_lies_is_not_kept(
    name: str, change: Callable[[bytes], bytes], message: str, packed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(change(whole))
    with running(file_server(copy)) as server:
        with pytest.raises(FormatError, match=f"^{server.url}/{name}: {message}"):
            gpuload.Dataset(server.url, tmp_path / "cache")
        (copy / name).write_bytes(whole)
        assert len(gpuload.Dataset(server.url, tmp_path / "cache")) == 97


def test_stored_order_waits_for_one_shard(many: Path, tmp_path: Path) -> None:
    """Which mixes nothing, so that no window has to be here before its first batch."""
    with proxied(many) as proxy:
        proxy.fault = lambda path, number: "503" if path.endswith(".tar") and "shard-000000" not in path else None
        with load(gpuload.Dataset(proxy.url, tmp_path), 2, fields=("index",), prefetch=1, shuffle=False) as loader:
            assert next(iter(loader)).index.tolist() == [0, 1]


REFUSED: list[tuple[Any, str]] = [
    ("https://me:secret@host/set", "https://…@host/set: has a user, a query or a fragment, in which credentials"),
    ("https://host/set?sig=secret", r"https://host/set\?…: has a user, a query or a fragment"),
    # What comes after them would be cut off, and the rest be read, or be packed into.
    ("s3://bucket/set #1/x", r"s3://bucket/set_\?…: has a user, a query or a fragment"),
    ("https://host/a set?sig=secret", r"https://host/a_set\?…: has a user, a query or a fragment"),
    ("s3://bucket/it's#1", r"s3://bucket/it_s\?…: has a user, a query or a fragment"),
    ("s3://bucket/set#", "s3://bucket/set#: has a user, a query or a fragment"),
    ("s3://", "s3://: names no bucket or host"),
    (Path("s3://bucket/set"), "s3:/bucket/set: pathlib has removed a slash of the URL. Give it as a text$"),
    ("file:///set", "file:///set: cannot be read from here, expected a path"),
    ("S3://", "S3://: names no bucket or host"),
    ("gopher://me:secret@host/set", "gopher://…@host/set: cannot be read from here, expected a path"),
    ("ftp://host/set", "ftp://host/set: cannot be read from here, expected a path, or a URL of s3, .*, http, hf"),
]


@pytest.mark.parametrize(("url", "message"), REFUSED)
def test_urls_that_are_refused(url: Any, message: str) -> None:
    doors: list[Callable[[Any], object]] = [
        *(gpuload.Dataset, verify, load, open_source),
        lambda url: gpuload.mix([(url, 1.0)]),
        lambda url: gpuload.pack([{"image": b""}], url),
    ]
    for door in doors:
        with pytest.raises(ArgumentError, match=f"^{message}"):
            door(url)


def test_names_with_blanks_and_signs() -> None:
    for url in ("s3://bucket/a b", "s3://bucket/a b@c", "s3://bucket/it's 100% + 1"):
        assert str(as_location(url)) == url


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=r"^s3://b/set: obstore is not installed. `pip install .*\[remote\]"):
        gpuload.Dataset("s3://b/set")


def test_not_everything_may_lie_at_a_url(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asks: list[tuple[Callable[[], object], str]] = [
        (lambda: gpuload.Dataset("s3://b/set", "s3://c"), "cache s3://c: is a URL, expected a path. Give a folder"),
        (lambda: gpuload.Dataset("s3://b/set", tmp_path / "file"), "cache .*/file: cannot be written .*GPULOAD_CACHE"),
        (lambda: gpuload.pack([], "https://host/set"), "https://host/set: https:// can only be read. Pack to a URL of s3://"),
        (lambda: open_source(tmp_path, "s3://b/x.json"), "--labels s3://b/x.json: is a URL, expected a path. Download"),
        (lambda: index_shards(["ftp://bucket/x.tar"]), "ftp://bucket/x.tar: is no file"),
        (lambda: index_shards(["x.tar"], "s3://bucket/x"), "--out s3://bucket/x: is a URL, expected a path. Give a local"),
    ]  # fmt: skip
    for ask, message in asks:
        with pytest.raises(gpuload.GpuloadError, match=f"^{message}"):
            ask()


def test_a_forked_child_is_told_so(proxy: Any, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path)
    read, write = os.pipe()
    if (process := os.fork()) == 0:
        try:
            for ask in (lambda: gpuload.Dataset(str(dataset.folder), tmp_path), lambda: dataset[0]):
                with pytest.raises(RemoteError) as error:
                    ask()
                os.write(write, str(error.value).encode())
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    assert os.read(read, 1000).count(b"this process was forked from one that had opened a set at a URL") == 2
    os.close(read), os.close(write)


def test_a_report_at_a_url(proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    facts = []
    for name, folder in (("there", f"{proxy.url}/train"), ("here", str(packed))):
        assert cli.main(["report", folder, "-o", str(tmp_path / f"{name}.html")]) == cli.DONE
        facts.append(json.loads((tmp_path / f"{name}.json").read_text()))
    for name in ("extremes", "duplicates", "classes", "looked_at"):
        assert facts[0][name] == facts[1][name]
    assert str(tmp_path) not in (tmp_path / "there.html").read_text()
    assert all(count == 1 for path, count in proxy.asked.items() if path.endswith(".tar"))
