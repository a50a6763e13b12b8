"""Packing to and from a bucket, and indexing what lies there: the same bytes as on disk, whatever interrupts it, and
nothing of another's is touched."""

import fcntl
import gc
import hashlib
import io
import itertools
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from images import encode, photo, write_files
from loaders import drain, load
from reading import files_of, rejected_of
from sources.stores.true_samples import GOLDEN
from store.servers import Proxy, running

import gpuload
from gpuload import ArgumentError, GpuloadError, OutputError, RemoteError, ShardError, SourceError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.packing.index import expand_shards, index_shards
from gpuload.packing.join import join
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source
from gpuload.store import objects as bucket
from gpuload.store.url import URL

Settings = dict[str, Any]


ARGUMENTS = ["--maxcount", "7", "--val", "0.2", "--seed", "5", "--workers", "2"]  # those of `settings`


def pack_to(source: Any, out: str, settings: Settings, **more: Any) -> Any:
    return gpuload.pack(source, out, **{**settings, **more})


def scratch_folder(out: str) -> Path:
    """Where a run that packs to this URL keeps its state: CACHE/packing-1/<hash of the URL>."""
    return Path(os.environ["GPULOAD_CACHE"]) / "packing-1" / hashlib.sha256(out.encode()).hexdigest()[:24]


def left(out: str) -> list[str]:
    """What a run has left here."""
    return sorted(files_of(scratch_folder(out)))


@pytest.fixture
def on_disk(undisturbed: Path) -> dict[str, bytes]:
    """What is packed into a folder."""
    return files_of(undisturbed)


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_the_same_bytes_as_on_disk(
    store: Any, scheme: str, source: FolderSource, settings: Settings, on_disk: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Packed from there, interrupted and resumed, also when it is complete, appended to, read by a loader, verified."""
    raw, out = f"{scheme}://bucket/raw", f"{scheme}://bucket/same/set"
    for name, data in files_of(source.path).items():
        store.put("bucket", f"raw/{name}", data)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(Manifest, "write", None)
        pack_to(open_source(raw), out, settings)
    assert main(["pack", raw, out, *ARGUMENTS, "--resume"]) == 3
    assert store.files("bucket", "same/set/") == on_disk
    said = capsys.readouterr().out
    assert f"named in {out}/train/rejected.jsonl" in said and "images in" not in said  # all was packed already
    assert left(out) == []
    report = pack_to(source, out, settings, resume=True)
    assert (report.images, report.folder, report.notes) == (61, URL(out), ("the set was complete already",))
    message = "the complete set in .* had maxcount 7, this run has 11. Pack to another URL"
    with pytest.raises(ArgumentError, match=message):
        pack_to(source, out, settings, resume=True, maxcount=11)
    pack_to(source, out, settings, append=True)
    write_files(tmp_path / "local", on_disk)
    pack_to(source, str(tmp_path / "local"), settings, append=True)
    assert store.files("bucket", "same/set/") == files_of(tmp_path / "local")
    with pytest.raises(OutputError, match=f"^{out}: holds a packed set. Give --append to add to it, or another place"):
        pack_to(source, out, settings)
    assert verify(out) == verify(f"{out}/train") == left(out) == []
    assert len(gpuload.Dataset(f"{out}/val", tmp_path / "cache")) == 24
    store.delete("bucket", "same/set/val/shard-000000.tar")
    assert verify(out) == [f"{out}/val/shard-000000.tar: No such file or directory"]


@pytest.mark.parametrize("at", [17, -1])
def test_killed(
    store: Any, proxy: Proxy, source: FolderSource, settings: Settings, on_disk: dict[str, bytes], at: int
) -> None:
    """SIGKILL at the n-th request, or at the last one."""
    out, requests = f"s3://bucket/killed{at}", itertools.count(1)

    def fault(path: str, number: int) -> None:
        last = path == "/bucket" and any(name.endswith("val/manifest.json") for name in [*own.asked])
        if next(requests) == at or (at < 0 and last):
            os.kill(run.pid, signal.SIGKILL)

    with running(Proxy(store.url)) as own:
        own.daemon_threads = False  # it ends once all that the packer had sent has reached the server
        environment = {**os.environ, "AWS_ENDPOINT_URL": own.url}
        command = [sys.executable, "-m", "gpuload", "pack", source.path, out, *ARGUMENTS]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        own.fault = fault
        assert run.wait() == -signal.SIGKILL
    before = store.files("bucket", f"killed{at}/")
    assert ("train/manifest.json" in before) == (at < 0)
    if ".packing.json" in before:
        with pytest.raises(OutputError, match=f"^{out}: holds an interrupted run. Continue it with --resume"):
            pack_to(source, out, settings)
        assert store.files("bucket", f"killed{at}/") == before
    pack_to(source, out, settings, resume=True)
    assert store.files("bucket", f"killed{at}/") == on_disk
    uploads = [path for path, count in proxy.asked.items() if path.endswith(".tar")]
    assert at != 17 or len(uploads) < len([name for name in on_disk if name.endswith(".tar")])  # others were there
    assert left(out) == []


def test_a_service_without_conditional_writes(
    store: Any, proxy: Proxy, source: FolderSource, settings: Settings, on_disk: dict[str, bytes]
) -> None:
    proxy.fault = lambda path, number: "unconditional"
    pack_to(source, "s3://bucket/plain", settings)
    assert store.files("bucket", "plain/") == on_disk


def test_killed_before_what_is_here_is_removed(
    store: Any, source: FolderSource, settings: Settings, on_disk: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set at the URL counts as complete as long as it is the one that the run has published."""
    out = "s3://bucket/published"

    def put_first() -> None:
        for name in store.files("bucket", "published/"):
            store.delete("bucket", f"published/{name}")
        for name, data in on_disk.items():
            store.put("bucket", f"published/{name}", data)

    put_first()
    with monkeypatch.context() as killed:
        killed.setattr("gpuload.packing.remote_output.RemoteOutput._forget", lambda output: None)
        assert pack_to(source, out, settings, append=True).packed == 61
        appended = store.files("bucket", "published/")
        assert pack_to(source, out, settings, append=True, resume=True).notes == ("the set was complete already",)
        assert store.files("bucket", "published/") == appended
    put_first()  # another's, or a copy that is put back
    assert pack_to(source, out, settings, append=True, resume=True).packed == 61
    assert store.files("bucket", "published/") == appended and left(out) == []
    scratch_folder(out).mkdir(exist_ok=True)
    (scratch_folder(out) / "run.json").write_text("{")
    assert pack_to(source, out, settings, resume=True).notes == ("the set was complete already",)


def test_an_outage(
    store: Any, proxy: Proxy, source: FolderSource, settings: Settings, on_disk: dict[str, bytes], impatient: None
) -> None:
    """Shards lie here only until they are uploaded, and a run that fails goes on where it was."""
    out = "s3://bucket/outage"
    proxy.fault = lambda path, number: "503" if "train/shard-000003" in path else None
    with pytest.raises(RemoteError, match=r"shard-000003.idx: the server answered 503 .* continue with --resume$"):
        pack_to(source, out, settings)
    assert len([name for name in left(out) if name.endswith(".tar")]) < 6
    with pytest.raises(ArgumentError, match=f"the interrupted run in {out} had seed 5, this run has 6"):
        pack_to(source, out, settings, resume=True, seed=6)
    proxy.reset()
    store.delete("bucket", "outage/train/shard-000000.tar")  # is noticed, and packed again
    pack_to(source, out, settings, resume=True)
    assert store.files("bucket", "outage/") == on_disk


def test_nothing_of_another_is_touched(store: Any, proxy: Proxy, source: FolderSource, settings: Settings) -> None:
    store.put("bucket", "mine/notes.txt", b"notes")
    store.put("bucket", "mine2/train/manifest.json", b"{}")
    store.put("bucket", "mine3/.packing.json", b'{"run": "other", "host": "node7", "begun": "yesterday"}')
    before = store.files("bucket", "mine")
    for out, message in (
        ("mine", "is not empty, it holds 'notes.txt'"),
        ("mine2", "holds a packed set. Give --append to add to it, or another place"),
        ("mine2/train", "is a packed folder, as splits of a set are. Give the folder above it"),
        ("mine3", "another run packs to it, begun on 'node7' at yesterday, whose state is not in .*/packing-1/"),
    ):
        with pytest.raises(OutputError, match=f"^s3://bucket/{out}: {message}"):
            pack_to(source, f"s3://bucket/{out}", settings)
    for known in (False, True):
        if known:  # one was interrupted here, and another has begun since
            (scratch_folder("s3://bucket/mine3") / "run.json").write_text('{"run": "ours"}')
        with pytest.raises(OutputError, match="mine3: another run packs to it"):
            pack_to(source, "s3://bucket/mine3", settings, resume=True)
    with pytest.raises(OutputError, match="^s3://bucket/mine: holds no packed set for --append"):
        pack_to(source, "s3://bucket/mine", settings, append=True)

    root = scratch_folder("s3://bucket/mine4")
    root.mkdir(parents=True)
    lock = os.open(root, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(OutputError, match="^s3://bucket/mine4: is in use by another packer. Wait for it"):
        pack_to(source, "s3://bucket/mine4", settings)
    os.close(lock)

    def meanwhile(path: str, number: int) -> None:
        if path.endswith("mine4/.packing.json"):
            store.put("bucket", "mine4/train/shard-000001.tar", b"another's")

    proxy.fault = meanwhile
    with pytest.raises(OutputError, match=r"mine4/train/shard-000001.tar: exists, and was not written by this run"):
        pack_to(source, "s3://bucket/mine4", settings)
    assert store.files("bucket", "mine4/")["train/shard-000001.tar"] == b"another's"
    assert {name: data for name, data in store.files("bucket", "mine").items() if name[0] != "4"} == before


def test_each_state_opens_while_a_set_is_appended_to(
    store: Any, proxy: Proxy, source: FolderSource, settings: Settings, on_disk: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What lies at the URL before each request of the packer is the old set or the new one, for a reader who comes
    then, whether an index is read at once or by its parts."""
    for name, data in on_disk.items():
        store.put("bucket", f"stopped/{name}", data)
    states: list[dict[str, bytes]] = []

    def watch(path: str, number: int) -> None:
        state = store.files("bucket", "stopped/")
        if state not in states:
            states.append(state)

    proxy.fault = watch
    pack_to(source, "s3://bucket/stopped", settings, append=True)
    watch("", 0)
    proxy.reset()
    names = [max(state.keys() - before.keys(), default="") for before, state in itertools.pairwise(states)]
    assert {"train/index.next.arrow", "val/index.next.arrow"} <= {*names}
    # Readers fetch these alone when they open a set.
    indexes = [{name: data for name, data in state.items() if not name.endswith((".tar", ".idx"))} for state in states]
    distinct = [index for number, index in enumerate(indexes) if index not in indexes[:number]]
    for number, index in enumerate(distinct):
        for name, data in index.items():
            store.put("bucket", f"stopped-{number}/{name}", data)
    for whole_bytes in (gpuload.disk.fetch.WHOLE_BYTES, 0):
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", whole_bytes)
        counts = set()
        for number, split in itertools.product(range(len(distinct)), ("train", "val")):
            cache = tmp_path / f"readers{whole_bytes}"
            dataset = gpuload.Dataset(f"s3://bucket/stopped-{number}/{split}", cache)
            assert len(dataset.labels) == len(dataset)
            counts.add((split, len(dataset)))
        assert counts == {("train", 49), ("train", 98), ("val", 12), ("val", 24)}

        def replace_set(path: str, number: int) -> None:
            if path.endswith("index.arrow") and number == 1:
                for name, data in distinct[-1].items():
                    store.put("bucket", f"stopped-0/{name}", data)

        for name, data in distinct[0].items():
            store.put("bucket", f"stopped-0/{name}", data)
        proxy.reset()
        proxy.fault = replace_set  # after the old manifest was read, and before its index is
        assert len(gpuload.Dataset("s3://bucket/stopped-0/train", tmp_path / f"others{whole_bytes}")) == 98
        proxy.reset()


def test_a_set_with_joined_columns_is_appended_to(store: Any, proxy: Proxy, tmp_path: Path) -> None:
    """As on a disk; and what lies there at each moment opens for a reader."""
    rows = [{"image": encode(photo(n)), "name": f"{n}.jpg"} for n in range(6)]
    gpuload.pack(rows[:4], tmp_path / "local", workers=1, progress=False)
    table = pa.table({"path": [f"{n}.jpg" for n in range(4)], "score": [n / 2 for n in range(4)]})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    join(tmp_path / "local" / "train", tmp_path / "t.parquet")
    for name, data in files_of(tmp_path / "local").items():
        store.put("bucket", f"joined/{name}", data)
    states: list[dict[str, bytes]] = []

    def watch(path: str, number: int) -> None:
        state = store.files("bucket", "joined/")
        if state not in states:
            states.append(state)

    proxy.fault = watch
    more = [{**rows[4], "score": 2.0}, {**rows[5], "score": 2.5}]
    for out in ("s3://bucket/joined", tmp_path / "local"):
        gpuload.pack(more, out, append=True, workers=1, progress=False)
    proxy.reset()
    assert store.files("bucket", "joined/") == files_of(tmp_path / "local")
    counts = list[int]()
    for number, state in enumerate([*states, store.files("bucket", "joined/")]):
        for name, data in state.items():
            store.put("bucket", f"joined-{number}/{name}", data)
        dataset = gpuload.Dataset(f"s3://bucket/joined-{number}/train", tmp_path / "cache")
        scores = {row["source"]: row["score"] for row in (dataset[place] for place in range(len(dataset)))}
        assert scores == {f"{n}.jpg": n / 2 for n in range(len(dataset))}
        counts.append(len(dataset))
    assert sorted(set(counts)) == [4, 6]


def test_a_set_that_changes_while_it_is_appended_to(
    store: Any, proxy: Proxy, source: FolderSource, settings: Settings, on_disk: dict[str, bytes]
) -> None:
    for name, data in on_disk.items():
        store.put("bucket", f"changes/{name}", data)

    def meanwhile(path: str, number: int) -> None:
        if path.endswith(".tar") and number == 1:
            store.put("bucket", "changes/train/manifest.json", b"{}")

    proxy.fault = meanwhile
    with pytest.raises(OutputError, match="changes/train/manifest.json: was changed since this run began"):
        pack_to(source, "s3://bucket/changes", settings, append=True)
    assert store.files("bucket", "changes/")["train/index.arrow"] == on_disk["train/index.arrow"]


def test_a_run_that_fails_leaves_nothing(store: Any, make_folder: Any, settings: Settings) -> None:
    folder = make_folder({"ant/1.jpg": b"no image", "bee/2.jpg": b"nor this"})
    with pytest.raises(SourceError, match="no readable image"):
        pack_to(FolderSource(folder), "s3://bucket/fails", {"workers": 1})
    assert store.files("bucket", "fails/") == {} and left("s3://bucket/fails") == []


def test_damage_on_the_way_is_noticed(
    store: Any, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the ETag is no MD5, the object is read back."""
    from gpuload.store.network import background

    monkeypatch.setattr(bucket, "_PART_BYTES", 5 << 20)  # the least that S3 takes
    path = tmp_path / "shard.tar"
    path.write_bytes(os.urandom((11 << 20) + 1))
    target = bucket.Bucket(URL("s3://bucket/damage"))
    target.run = "x"
    stored = background().wait(target.upload("a.tar", path))
    assert stored.tag is not None and stored.tag.endswith('-3"') and proxy.sent["/bucket/damage/a.tar"] < 10_000
    monkeypatch.setattr(bucket, "RANGE_BYTES", 1 << 20)  # several at a time, which arrive in any order
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(bucket, "digests_of", lambda path, part: (sha256, ()))
    background().wait(target.upload("whole.tar", path))
    assert 11 << 20 < proxy.sent["/bucket/damage/whole.tar"] < 12 << 20
    monkeypatch.setattr(bucket, "digests_of", lambda path, part: ("0" * 64, ()))
    with pytest.raises(OutputError, match="damage/b.tar: arrives with other bytes than those that were sent"):
        background().wait(target.upload("b.tar", path))
    assert proxy.sent["/bucket/damage/b.tar"] >= 3 * (11 << 20)

    async def replaced(*_: Any, **options: Any) -> None:
        raise bucket.ReplacedError

    monkeypatch.setattr(target, "copy", replaced)  # by another program, while it is read back
    with pytest.raises(OutputError, match="damage/c.tar: arrives with other bytes than those that were sent"):
        background().wait(target.upload("c.tar", path))


def test_refused_before_anything_is_read(
    proxy: Proxy, impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread(FolderSource):
        def list_samples(self) -> Any:
            raise AssertionError("it was listed")

    def refused(out: str, **options: Any) -> str:
        with pytest.raises(gpuload.GpuloadError) as error:
            gpuload.pack(Unread(tmp_path), out, **options)
        return str(error.value)

    out = "s3://bucket/refused"
    assert refused("s3://nobucket/x").startswith("s3://nobucket/x: does not exist. Check the URL")
    assert "https:// can only be read. Pack to a URL of s3:// or gs:// or az://" in refused("https://host/set")
    assert "cannot be replaced in one step" in refused(out, overwrite=True)
    pytest.importorskip("ray")
    assert "packs into a folder that all machines share" in refused(out, engine="ray")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    said = refused(out)
    assert said.startswith(f"{out}: access was denied (403). Set the credentials")
    assert "wrong-secret" not in said and os.environ["AWS_ACCESS_KEY_ID"] not in said
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert refused(out).startswith(f"{out}: no connection after ")
    monkeypatch.setenv("GPULOAD_CACHE", "/proc/none")
    assert "Set GPULOAD_CACHE to another folder" in refused(out)


SOURCE = "s3://bucket/sources/photos"


@pytest.fixture(scope="module")
def uploaded(servers: Any, source: FolderSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, one with a name that URLs escape; at SOURCE with a hidden file, one that is none, and a packed set."""
    root = tmp_path_factory.mktemp("here")
    write_files(root, {**files_of(source.path), "cat/a b#%20é.jpg": (source.path / "cat/50.jpg").read_bytes()})
    more = {".hidden/x/1.jpg": b"", "notes.txt": b"", "old/train/index.arrow": b"", "old/train/manifest.json": b"{}"}
    for name, data in {**files_of(root), **more, "old/train/shard.jpg": b"", "ant/": b""}.items():
        servers("s3")[0].put("bucket", f"sources/photos/{name}", data)
    return root


def packed_from(source: str, out: Path, **more: Any) -> dict[str, bytes]:
    labels = more.pop("labels", None)
    gpuload.pack(open_source(source, labels), out, **{"maxcount": 12, "workers": 2, "val": 0.2, **more})
    return files_of(out)


def test_a_folder(proxy: Proxy, uploaded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = packed_from(str(uploaded), tmp_path / "expected")
    proxy.fault = lambda path, number: "503" if number == 1 and "ant/1" in path else None
    assert main(["pack", SOURCE, str(tmp_path / "out"), "--val", "0.2", "--maxcount", "12", "--workers", "2"]) == 3
    assert files_of(tmp_path / "out") == expected
    assert (
        "passed over 'old', which gpuload packed\nnote: passed over, by extension: 1 × .txt\n"
        in capsys.readouterr().out
    )
    assert {count for path, count in proxy.asked.items() if path.endswith("bee/30.jpg")} <= {1, 2}  # hashed, packed


def test_an_outage_loses_no_image(proxy: Proxy, uploaded: Path, tmp_path: Path) -> None:
    """The run ends, and goes on later; a file that is gone is left out by its name."""
    proxy.fault = lambda path, number: "403" if path.endswith("/ant/07.jpg") and number > 0 else None
    with pytest.raises(RemoteError, match=r"photos/ant/07.jpg: access was denied \(403\)"):
        packed_from(SOURCE, tmp_path / "out", val=0.0)
    proxy.fault = lambda path, number: "404" if path.endswith("/ant/07.jpg") else None
    packed_from(SOURCE, tmp_path / "out", val=0.0, resume=(tmp_path / "out").exists())
    found = rejected_of(tmp_path / "out" / "train")
    assert found.pop("ant/07.jpg") == "cannot be read: No such file or directory"
    assert found.keys() == {"bee/bad.jpg", "cat/short.jpg"}
    assert Manifest.read(tmp_path / "out" / "train").samples == 61


def test_a_table(store: Any, uploaded: Path, tmp_path: Path) -> None:
    text = "path,label,caption\n" + "".join(f"ant/{n:02d}.jpg,{n % 2},photo {n}\n" for n in range(9))
    (tmp_path / "table.csv").write_text(text)
    store.put("bucket", "sources/table.csv", text.encode())
    expected = packed_from(str(uploaded), tmp_path / "expected", labels=str(tmp_path / "table.csv"))
    assert packed_from(SOURCE, tmp_path / "out", labels="s3://bucket/sources/table.csv") == expected
    with pytest.raises(SourceError, match="^s3://bucket/sources/none.csv: does not exist"):
        packed_from(SOURCE, tmp_path / "none", labels="s3://bucket/sources/none.csv")


def test_what_has_been_waited_for_is_read_without_a_request(proxy: Proxy, uploaded: Path) -> None:
    """Also what comes twice, and what lies far behind the file that is read. The limit of time is on reading alone."""
    source = open_source(SOURCE)
    names = [
        f"{name}/{n:02d}.jpg" for name, n in [("ant", n) for n in range(30)] + [("bee", 30), ("ant", 0), ("ant", 0)]
    ]
    source.expect(names)
    for name in (names[-3], *names):
        source.wait(name)
        asked = sum(count for path, count in proxy.asked.items() if path.endswith(name))
        assert source.read(name) == (uploaded / name).read_bytes()
        assert asked == sum(count for path, count in proxy.asked.items() if path.endswith(name)) > 0


def test_an_index_of_tars_there(
    store: Any, proxy: Proxy, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each tar is read once to be indexed, and once by loaders: an epoch, verify, and info need no others."""
    there, index = "s3://bucket/tars", tmp_path / "index"
    for path in packed.glob("*.tar"):
        store.put("bucket", f"tars/{path.name}", path.read_bytes())
    proxy.fault = lambda path, number: "503" if number == 1 and path.endswith("4.tar") else None
    assert main(["index", f"{there}/shard-{{000000..000009}}.tar", "--out", str(index)]) == 0
    assert "97 samples in 10 shards" in capsys.readouterr().out
    assert not list(index.rglob("*.tar"))
    index_shards([str(packed / "*.tar")], tmp_path / "here")
    assert (index / "index.arrow").read_bytes() == (tmp_path / "here" / "index.arrow").read_bytes()
    proxy.reset()
    with load(tmp_path / "here") as local, load(index) as loader:
        assert drain([loader]) == drain([local])
    assert [proxy.asked[f"/bucket/tars/shard-{n:06d}.tar"] for n in range(10)] == [1] * 10
    dataset = gpuload.Dataset(index, tmp_path / "other", "10MB")
    assert dataset.cache is not None and dataset.cache.limit == 10_000_000
    assert dataset.shard_paths[0] == URL(f"{there}/shard-000000.tar")
    assert main(["info", str(index)]) == 0
    assert verify(index, 2) == []
    proxy.fault = lambda path, number: {"2.tar": "404", "3.tar": "wrong bytes"}.get(path[-5:])
    faults = verify(index, 2)
    assert any(fault.startswith(f"{there}/shard-000002.tar: No such file") for fault in faults)
    assert any(fault.startswith(f"{there}/shard-000003.tar: its SHA-256 is") for fault in faults)
    store.put("bucket", "tars/none.tar", b"no tar")
    for name, error, message in (
        ("shard-00000{0..2}", RemoteError, "2.tar: does not exist"),
        ("none", ShardError, ": not a"),
    ):
        with pytest.raises(error, match=f"^{there}/.*{message}"):
            index_shards([f"{there}/{name}.tar"], tmp_path / "none")
    assert not (tmp_path / "none" / "manifest.json").exists()


def test_wildcards(store: Any) -> None:
    for name in ("a-1.tar", "a-2.tar", "b.tar", "x/a-1.tar", "x/c.tar"):
        store.put("bucket", f"wild/{name}", b"")
    for pattern, names in (
        ("*.tar", ["a-1.tar", "a-2.tar", "b.tar"]),
        ("a-[13].tar", ["a-1.tar"]),
        ("*/[a-z].tar", ["x/c.tar"]),
        ("{b*tar,*/c.tar}", ["b.tar", "x/c.tar"]),
    ):
        assert expand_shards([f"s3://bucket/wild/{pattern}"]) == [URL(f"s3://bucket/wild/{name}") for name in names]
    with pytest.raises(SourceError, match="^s3://bucket/wild/no.*: fits no object there"):
        expand_shards(["s3://bucket/wild/no*"])


@pytest.mark.parametrize("kind", ["tars", "parquet"])
def test_other_sources(store: Any, packed: Path, photo_files: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    files = {path.name: path.read_bytes() for path in packed.glob("*.tar")}
    if kind == "parquet":
        rows = [{"image": {"bytes": data, "path": name}, "label": len(name) % 3} for name, data in photo_files.items()]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / "table")
        files = {f"data/{name}-0.parquet": (tmp_path / "table").read_bytes() for name in ("train", "val")}
    for name, data in files.items():
        store.put("bucket", f"sources/{kind}/{name}", data)
    write_files(tmp_path / "here", files)
    what, val = f"s3://bucket/sources/{kind}", 0.2 if kind == "tars" else 0.0  # the tables have splits of their own
    assert packed_from(what, tmp_path / "out", val=val) == packed_from(str(tmp_path / "here"), tmp_path / "2", val=val)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["train", "val"]
    if kind == "tars":
        assert "shard-000003.tar, shard-000005.tar" in open_source(f"{what}/*00000[35].tar").identity


@pytest.mark.parametrize("name", ["mds/splits", "litdata/jpeg", "tfds"])
def test_stores_of_other_loaders(store: Any, tmp_path: Path, name: str) -> None:
    golden = GOLDEN / name
    for path in golden.rglob("*"):
        if path.is_file():
            store.put("bucket", f"stores/{name}/{path.relative_to(golden).as_posix()}", path.read_bytes())
    val = 0.2 if name == "litdata/jpeg" else 0.0  # the others have splits of their own
    remote = packed_from(f"s3://bucket/stores/{name}", tmp_path / "out", val=val)
    assert remote == packed_from(str(golden), tmp_path / "here", val=val)


def archive_of(files: dict[str, bytes], path: Path) -> None:
    """Packs files into an archive, whose name tells its kind."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    elif path.suffix == ".7z":
        py7zr = pytest.importorskip("py7zr")
        with py7zr.SevenZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(data, name)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar.gz", "photos.7z"])
def test_archives(
    store: Any, photo_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Their copies are removed, and messages name the URL."""
    folders = list[Path]()

    def recorded(*arguments: Any, **options: Any) -> str:
        path = make_folder(*arguments, **options)
        folders.append(Path(path))
        return path

    make_folder = tempfile.mkdtemp
    monkeypatch.setattr("tempfile.mkdtemp", recorded)
    files = {f"{'cat' if number % 2 else 'dog'}/{number}.jpg": data for number, data in enumerate(photo_files.values())}
    archive_of(files, tmp_path / name)
    store.put("bucket", f"archives/{name}", (tmp_path / name).read_bytes())
    url = f"s3://bucket/archives/{name}"
    assert open_source(url).title == url
    assert packed_from(url, tmp_path / "out") == packed_from(str(tmp_path / name), tmp_path / "here")
    store.put("bucket", f"archives/damaged-{name}", (tmp_path / name).read_bytes()[:-40])
    with pytest.raises(SourceError, match=f"^s3://bucket/archives/damaged-{name}: cannot be read as "):
        len(open_source(f"s3://bucket/archives/damaged-{name}").list_samples())
    gc.collect()
    copies = [folder for folder in folders if folder.name.startswith("gpuload-")]
    assert len(copies) >= 3 and not any(folder.exists() for folder in copies)


@pytest.mark.parametrize("name", ["shard.tar", "images.beton"])
def test_messages_about_a_file_that_is_copied_name_its_url(store: Any, tmp_path: Path, name: str) -> None:
    store.put("bucket", f"damaged/{name}", b"no such file" * 100)
    with pytest.raises(GpuloadError, match=f"^s3://bucket/damaged/{name}: ") as refused:
        packed_from(f"s3://bucket/damaged/{name}", tmp_path / "out")
    assert str(tmp_path) not in str(refused.value)


def test_an_archive_moves_to_a_folder_that_machines_share(
    store: Any, photo_files: dict[str, bytes], tmp_path: Path
) -> None:
    data = next(iter(photo_files.values()))
    archive_of({"cat/1.jpg": data, "dog/2.jpg": data}, tmp_path / "a.tar.gz")
    source = open_source(tmp_path / "a.tar.gz")
    source.prepare(tmp_path)
    source.share(tmp_path / "shared")
    (row, _) = source.list_samples().samples.to_pylist()
    elsewhere = pickle.loads(pickle.dumps(source))
    assert elsewhere.read(row["where"]) == data
    assert sorted(path.name for path in (tmp_path / "shared").rglob("*")) == ["archive", "unpacked.tar"]


ARRAYS = {"images": np.random.default_rng(0).integers(0, 256, (9, 12, 10, 3), np.uint8), "labels": np.arange(9) % 2}


def array_files(kind: str, folder: Path) -> Path:
    """The arrays in a file or folder of a kind."""
    path = folder / f"x.{kind}"
    if kind == "npz":
        np.savez(path, **ARRAYS)
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in ARRAYS.items():
                file[name] = array
    else:
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(path, mode="w", zarr_format=int(kind[-1]))
        for name, array in ARRAYS.items():
            group.create_array(name, data=array, chunks=(4, *array.shape[1:]))
    return path


@pytest.mark.parametrize("kind", ["npz", "h5", "zarr2", "zarr3"])
def test_arrays(store: Any, tmp_path: Path, kind: str) -> None:
    path = array_files(kind, tmp_path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        store.put("bucket", f"arrays/{file.relative_to(tmp_path).as_posix()}", file.read_bytes())
    remote = packed_from(f"s3://bucket/arrays/{path.name}", tmp_path / "out")
    assert remote == packed_from(str(path), tmp_path / "here")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://bucket/sources/none", "^s3://bucket/sources/none: holds no file, or does not exist. Give a fo"),
        ("s3://bucket/none.zip", "^s3://bucket/none.zip: does not exist"),
        ("s3://bucket/none.h5", "^s3://bucket/none.h5: does not exist"),
        ("s3://bucket/sources/none/*.tar", "^s3://bucket/sources/none/.*.tar: holds no .tar"),
    ],
)
def test_what_is_refused(store: Any, tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises((SourceError, RemoteError), match=message):
        packed_from(source, tmp_path / "out")


@pytest.mark.parametrize("scheme", ["az"])
def test_an_epoch_of_azure(
    store: Any, proxy: Proxy, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong once is tried again, and nothing tells the key. As for S3: tests/store/test_s3.py."""
    there = "az://bucket/photos/train"
    for path in packed.iterdir():
        store.put("bucket", f"photos/train/{path.name}", path.read_bytes())
    proxy.fault = lambda path, number: "503" if number == 1 else "cut" if number == 2 else None
    with load(packed) as local, load(gpuload.Dataset(there, cache=tmp_path / "1")) as loader:  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])
        held = repr(loader) + str(loader.state_dict()) + repr(loader.dataset)
    asked = {path: count for path, count in proxy.asked.items() if path.endswith(".tar")}
    assert len(asked) == 10 and set(asked.values()) == {3}
    assert os.environ["AZURE_STORAGE_ACCOUNT_KEY"] not in held
    with pytest.raises(gpuload.FormatError, match="^az://none/set: no manifest.json there, so this is not a packed"):
        gpuload.Dataset("az://none/set", tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmctc2VjcmV0")
    with pytest.raises(RemoteError, match=rf"^{there}/manifest.json: access was denied .*AZURE_STORAGE_") as error:
        gpuload.Dataset(there, tmp_path)
    assert "d3Jvbmctc2VjcmV0" not in str(error.value)
