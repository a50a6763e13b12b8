"""Sets of strangers: no text of a manifest chooses a file, no byte of an index differs unnoticed, no pipe is waited for."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damaged import change_manifest
from fuzzing.folders import tell_index
from loaders import load
from store.servers import file_server, running

import gpuload
from gpuload import FormatError, ShardError
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify
from gpuload.report.samples import ReportSplit, read_rejected


def read_all(data: Any) -> list[int]:
    with load(data, drop_last=False, fields=("label",)) as loader:
        return [label for (labels,) in loader for label in labels.tolist()]


ZEROS = "0" * 63
DIGESTS = ["../../../x", "/home/u/thesis", "", "A" * 64, ZEROS, f"{ZEROS}\n", f"{ZEROS}0.part", "é" * 64, 7, None]


@pytest.mark.parametrize(
    ("entries", "name", "values", "expected"),
    [
        ("shards", "sha256", DIGESTS, "64 hexadecimal digits"),
        # Sets that are packed from this one would have them in the names of their members.
        ("fields", "member", ["../../x", "a/b", "a\\b", "jpg\n"], "extensions of file names"),
    ],
)
def test_texts_that_are_no_paths(
    copy: Path, tmp_path: Path, entries: str, name: str, values: list[Any], expected: str
) -> None:
    with running(file_server(copy)) as server:
        for value in values:
            change_manifest(copy, lambda found, value=value: found[entries][1].update({name: value}))
            for place in (copy, server.url):
                with pytest.raises(FormatError, match=rf"{entries}\[1\].{name} is .*expected {expected}"):
                    gpuload.Dataset(place, cache=tmp_path / "cache")


ELSEWHERE = [
    "../other/shard.tar", "../../x", "http://host/a.tar", "s3://bucket/a.tar", ".hidden/x.tar", ".manifest.json",
]  # fmt: skip
NEVER = [
    "/etc/passwd", "C:/x.tar", "pipe:cat x", "file:///x.tar", "ftp://host/x.tar", "http://user:pass@host/x.tar",
    "http://host/x.tar?sign=1", "a/../../x.tar", "http://host/../x.tar", "http://../x.tar", "..", "", ".", "a//b.tar", "a/",
    "..\\x.tar", "a\nb.tar", "a\x1b[31mb.tar", "manifest.json", "index.arrow",
]  # fmt: skip


@pytest.mark.parametrize("indexed", [False, True])
def test_names_that_no_shard_has(copy: Path, tmp_path: Path, indexed: bool) -> None:
    """Shards lie below their manifest, unless they were indexed, in a folder here."""
    with running(file_server(copy)) as server:
        doors: list[Callable[[], object]] = [
            lambda: gpuload.Dataset(server.url, cache=tmp_path / "cache"),
            lambda: fetch(server.url, tmp_path / "fetched"),
            lambda: gpuload.Dataset(copy),
        ]
        change_manifest(copy, lambda found: found.update(packing={"indexed": 1} if indexed else {}))
        for name in (*ELSEWHERE, *NEVER):
            change_manifest(copy, lambda found, name=name: found["shards"][3].update(name=name))
            for door in doors[: 2 if indexed and name in ELSEWHERE else 3]:
                with pytest.raises(FormatError, match="its shard .* is not below the folder of .* Do not use this set"):
                    door()
    assert not list((tmp_path / "fetched").glob("*"))


def test_a_part_of_an_index_is_asked_for_while_it_comes(copy: Path, tmp_path: Path) -> None:
    """Whatever size the manifest tells: in ranges, of which there would be thousands of millions."""

    def change(found: dict[str, Any]) -> None:
        found["shards"][0]["bytes"], found["index_offsets"][-1] = 1 << 60, 1 << 59

    change_manifest(copy, change)
    with running(file_server(copy)) as server:
        assert len(gpuload.Dataset(server.url, tmp_path / "cache")) == 97


def with_other_label(folder: Path) -> None:
    """Changes the label of one sample of the last shard, in place, without a trace in size or structure."""
    dataset = gpuload.Dataset(folder)
    column = dataset.rows(len(dataset.shard_paths) - 1).column("label")
    at = column.buffers()[1].address - dataset.index.bytes.address
    with (folder / "index.arrow").open("r+b") as file:
        file.seek(at)
        file.write(bytes([1 - column[0].as_py() if column[0].as_py() < 2 else 0]))


@pytest.mark.parametrize("verify", [None, "sha256"])
def test_a_label_that_was_changed_in_the_index_is_not_trained_on(copy: Path, verify: Any) -> None:
    before = read_all(gpuload.Dataset(copy, verify=verify))
    with_other_label(copy)
    dataset = gpuload.Dataset(copy)
    for ask in (
        lambda: read_all(gpuload.Dataset(copy, verify=verify)),
        lambda: dataset.labels,
        lambda: dataset.keys([96]),
        lambda: dataset[96],
        lambda: dataset.rows(9),
    ):
        with pytest.raises(FormatError, match=r"index.arrow: is damaged: the SHA-256 of bytes .*Copy the fold"):
            ask()
    assert dataset[0]["key"] and dataset.keys([3, 80])  # other shards' rows are sound
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "index_parts": None}))  # the whole is compared at once
    with pytest.raises(FormatError, match="index.arrow: is damaged: the SHA-256 of bytes 0 to"):
        gpuload.Dataset(copy)
    path.write_text(json.dumps({**manifest, "index_sha256": None, "index_parts": None}))
    assert read_all(copy) != before  # a set of before there were such checksums


def test_an_index_that_is_changed_while_it_is_read_is_noticed(copy: Path) -> None:
    with load(copy, drop_last=False, shuffle=gpuload.Shuffle(window=1)) as loader:
        next(iter(loader))
        with_other_label(copy)
        os.utime(copy / "index.arrow", ns=(1, 1))  # as a change some time later; the clock of files may be coarse
        with pytest.raises(FormatError, match="the SHA-256 of bytes"):
            for _ in range(3):
                list(loader)


def replaced(path: Path, by: str) -> None:
    path.unlink()
    if by == "pipe":
        os.mkfifo(path)
    elif by == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name}[by])


@pytest.mark.parametrize("by", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "shard-000003.tar"])
def test_what_is_no_file_is_refused_at_once(copy: Path, name: str, by: str) -> None:
    """Also a shard that becomes one after opening. Nor is it left open."""
    dataset = gpuload.Dataset(copy)
    replaced(copy / name, by)
    with pytest.raises(FormatError, match=rf"{name}: .*(s not a regular file|oo many levels of symbolic links)"):
        gpuload.Dataset(copy)
    for ask in (lambda: dataset[35], lambda: read_all(dataset)) if name.endswith(".tar") else ():
        with pytest.raises(ShardError, match="shard-000003.tar: .*(not a regular file|symbolic links)"):
            ask()
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert os.path.realpath(copy) + f"/{name}" not in opened


@pytest.mark.parametrize("by", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("name", ["rejected.jsonl", "shard-000003.idx"])
def test_what_lies_beside_the_shards_is_not_waited_for(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    (copy / name).touch()
    replaced(copy / name, by)
    monkeypatch.chdir(tmp_path)
    if name == "shard-000003.idx":
        assert [fault.partition(" (")[0] for fault in verify(copy, 1)] == [f"{copy / name}: cannot be read"]
    else:
        assert read_rejected(ReportSplit("train", str(copy), gpuload.Dataset(copy)))["rejected"] == 0


def rewrite_index(
    folder: Path,
    change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
    compression: str | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes a set's index anew, in other ways of Arrow's. metadata: of each batch."""
    dataset = gpuload.Dataset(folder)
    batches = [change(dataset.rows(number)) for number in range(len(dataset.shard_paths))]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    other = folder / "other"  # the index itself is mapped
    with pa.OSFile(str(other), "wb") as file, pa.ipc.new_file(file, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch, custom_metadata=metadata)
    other.rename(folder / "index.arrow")
    tell_index(folder)


@pytest.mark.parametrize(
    "how",
    [{"compression": "zstd"}, {"compression": "lz4"}, {"metadata": {"ARROW:experimental_compression": "zstd"}}],
    ids=["zstd", "lz4", "as before Arrow 1.0"],
)
def test_a_compressed_index_is_refused(copy: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    """51 kB of one took 1.9 GB of memory; here and at a URL."""
    rewrite_index(copy, **how)
    message = r"index.arrow: the rows of shard \d are compressed, expected an uncompressed index"
    with pytest.raises(FormatError, match=message):
        read_all(gpuload.Dataset(copy))
    assert any("are compressed, expected" in fault for fault in verify(copy, 1))
    with running(file_server(copy)) as server, pytest.raises(FormatError, match=message):
        read_all(gpuload.Dataset(server.url, cache=tmp_path / "cache"))


def test_an_index_with_dictionaries_is_refused(copy: Path) -> None:
    """They are decompressed with the first rows, whatever these are."""
    rewrite_index(copy, lambda rows: rows.append_column("more", pa.array(["a"] * len(rows)).dictionary_encode()))
    change_manifest(copy, lambda found: [found.pop(name) for name in ("index_parts", "index_offsets")])
    with pytest.raises(FormatError, match=r"index.arrow: cannot be read as an Arrow file \(it has dictionaries\)"):
        gpuload.Dataset(copy)


def with_more(entry: str) -> Callable[[Path], object]:
    more = '{"x": [' + ",".join([entry] * 200_000) + "],"
    return lambda path: path.write_text(path.read_text().replace("{", more, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Zeros, which take no room on the disk; in a text they would be lists in lists.
        (lambda path: os.truncate(path, (64 << 20) + (20 << 10)), "67,129,344 bytes"),
        (lambda path: os.truncate(path, 1 << 40), "1,099,511,627,776 bytes"),
        (with_more("[]"), r"200,\d\d\d lists and objects"),  # 57 MB of empty lists took 1.2 GB of memory
        (with_more('{"a": 0}'), r"200,\d\d\d lists and objects"),
        (with_more("0"), r"200,\d\d\d entries"),
    ],
)
def test_a_manifest_holds_no_more_than_its_shards_need(
    copy: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], message: str
) -> None:
    monkeypatch.setattr("gpuload.disk.manifest._FREE_ENTRIES", 150_000)
    change(copy / "manifest.json")
    with pytest.raises(FormatError, match=rf"manifest.json: cannot be read \({message} are too many for .* manifest"):
        gpuload.Dataset(copy)


def test_a_long_manifest_of_many_shards_is_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.disk.manifest._FREE_BYTES", 2000)
    assert (copy / "manifest.json").stat().st_size > 2000 and len(gpuload.Dataset(copy)) == 97
