"""Packing to and from a bucket: the same bytes as on disk, whatever interrupts it, and nothing of another's is touched."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from azure_server import Azure, azure_server
from images import write_files
from loaders import drain, load
from reading import files_of, rejected_of
from s3_server import S3
from store.servers import Proxy, running

import gpuload
from gpuload import ArgumentError, OutputError, RemoteError, SourceError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source
from gpuload.store import objects as bucket
from gpuload.store.url import URL

Settings = dict[str, Any]


def pack_to(images: Path, out: str, settings: Settings, **more: Any) -> Any:
    return gpuload.pack(FolderSource(images), out, **{**settings, **more})


def scratch_folder(out: str) -> Path:
    """Where a run that packs to this URL keeps its state: CACHE/packing-1/<hash of the URL>."""
    return Path(os.environ["GPULOAD_CACHE"]) / "packing-1" / hashlib.sha256(out.encode()).hexdigest()[:24]


def left(out: str) -> list[str]:
    """What a run has left here."""
    return sorted(files_of(scratch_folder(out)))


def test_the_same_bytes_as_on_disk(
    s3: S3, images: Path, settings: Settings, on_disk: dict[str, bytes], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Packed, appended to, resumed when it is complete, read by a loader, and verified."""
    out = "s3://bucket/same/set"
    arguments = ["pack", str(images), out, "--val", "0.2", "--maxcount", "12", "--seed", "5", "--workers", "2"]
    assert main(arguments) == 3
    assert s3.files("bucket", "same/set/") == on_disk
    assert f"named in {out}/train/rejected.jsonl" in capsys.readouterr().out
    assert left(out) == []
    report = pack_to(images, out, settings, resume=True)
    assert (report.images, report.folder, report.notes) == (60, URL(out), ("the set was complete already",))
    message = "the complete set in .* had maxcount 12, this run has 11. Pack to another URL"
    with pytest.raises(ArgumentError, match=message):
        pack_to(images, out, settings, resume=True, maxcount=11)
    pack_to(images, out, settings, append=True)
    write_files(tmp_path / "local", on_disk)
    pack_to(images, str(tmp_path / "local"), settings, append=True)
    assert s3.files("bucket", "same/set/") == files_of(tmp_path / "local")
    assert verify(out) == verify(f"{out}/train") == left(out) == []
    assert len(gpuload.Dataset(f"{out}/val", tmp_path / "cache")) == 22
    s3.client.delete_object(Bucket="bucket", Key="same/set/val/shard-000000.tar")
    assert verify(out) == [f"{out}/val/shard-000000.tar: No such file or directory"]


@pytest.mark.parametrize("at", [17, -1])
def test_killed(
    s3: S3, proxy: Proxy, images: Path, settings: Settings, on_disk: dict[str, bytes], tmp_path: Path, at: int
) -> None:
    """SIGKILL at the n-th request, or at the last one."""
    out = f"s3://bucket/killed{at}"
    arguments = [str(images), out, "--val", "0.2", "--maxcount", "12", "--seed", "5", "--workers", "2"]
    lock, seen = threading.Lock(), 0

    def fault(path: str, number: int) -> None:
        nonlocal seen
        with lock:
            seen += 1
            last = path == "/bucket" and any(name.endswith("val/manifest.json") for name in own.asked)
            if seen == at or (at < 0 and last):
                os.kill(run.pid, signal.SIGKILL)

    with running(Proxy(s3.url)) as own:
        own.daemon_threads = False  # it ends once all that the packer had sent has reached the server
        environment = {**os.environ, "AWS_ENDPOINT_URL": own.url}
        command = [sys.executable, "-m", "gpuload", "pack", *arguments]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        own.fault = fault
        assert run.wait() == -signal.SIGKILL
    assert ("train/manifest.json" in s3.files("bucket", f"killed{at}/")) == (at < 0)
    before = s3.files("bucket", f"killed{at}/")
    if ".packing.json" in before:
        with pytest.raises(OutputError, match=f"^{out}: holds an interrupted run. Continue it with --resume"):
            pack_to(images, out, settings)
        assert s3.files("bucket", f"killed{at}/") == before
    pack_to(images, out, settings, resume=True)
    assert s3.files("bucket", f"killed{at}/") == on_disk
    uploads = [path for path, count in proxy.asked.items() if path.endswith(".tar")]
    assert at != 17 or len(uploads) < 12  # those that were there before were left
    assert left(out) == []


def test_killed_before_what_is_here_is_removed(
    s3: S3, images: Path, settings: Settings, on_disk: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set at the URL counts as complete as long as it is the one that the run has published."""
    out = "s3://bucket/published"

    def put_first() -> None:
        for name in s3.files("bucket", "published/"):
            s3.client.delete_object(Bucket="bucket", Key=f"published/{name}")
        for name, data in on_disk.items():
            s3.client.put_object(Bucket="bucket", Key=f"published/{name}", Body=data)

    put_first()
    with monkeypatch.context() as killed:
        killed.setattr("gpuload.packing.remote_output.RemoteOutput._forget", lambda output: None)
        assert pack_to(images, out, settings, append=True).packed == 60
        appended = s3.files("bucket", "published/")
        assert pack_to(images, out, settings, append=True, resume=True).notes == ("the set was complete already",)
        assert s3.files("bucket", "published/") == appended
    put_first()  # another's, or a copy that is put back
    assert pack_to(images, out, settings, append=True, resume=True).packed == 60
    assert s3.files("bucket", "published/") == appended and left(out) == []
    scratch_folder(out).mkdir(exist_ok=True)
    (scratch_folder(out) / "run.json").write_text("{")
    assert pack_to(images, out, settings, resume=True).notes == ("the set was complete already",)


def test_an_outage(
    s3: S3, proxy: Proxy, images: Path, settings: Settings, on_disk: dict[str, bytes], impatient: None
) -> None:
    """Shards lie here only until they are uploaded, and a run that fails goes on where it was."""
    out = "s3://bucket/outage"
    proxy.fault = lambda path, number: "503" if "train/shard-000003" in path else None
    with pytest.raises(RemoteError, match=r"shard-000003.idx: the server answered 503 .* continue with --resume$"):
        pack_to(images, out, settings)
    assert len([name for name in left(out) if name.endswith(".tar")]) < 6
    with pytest.raises(ArgumentError, match=f"the interrupted run in {out} had seed 5, this run has 6"):
        pack_to(images, out, settings, resume=True, seed=6)
    proxy.reset()
    s3.client.delete_object(Bucket="bucket", Key="outage/train/shard-000000.tar")  # is noticed, and packed again
    pack_to(images, out, settings, resume=True)
    assert s3.files("bucket", "outage/") == on_disk


def test_nothing_of_another_is_touched(s3: S3, proxy: Proxy, images: Path, settings: Settings) -> None:
    put = s3.client.put_object
    put(Bucket="bucket", Key="mine/notes.txt", Body=b"notes")
    put(Bucket="bucket", Key="mine2/train/manifest.json", Body=b"{}")
    put(Bucket="bucket", Key="mine3/.packing.json", Body=b'{"run": "other", "host": "node7", "begun": "yesterday"}')
    before = s3.files("bucket", "mine")
    for out, message in (
        ("mine", "is not empty, it holds 'notes.txt'"),
        ("mine2", "is not empty, it holds a packed set, to which --append adds"),
        ("mine2/train", "is not empty, it holds 'manifest.json'"),
        ("mine3", "another run packs to it, begun on 'node7' at yesterday, whose state is not in .*/packing-1/"),
    ):
        with pytest.raises(OutputError, match=f"^s3://bucket/{out}: {message}"):
            pack_to(images, f"s3://bucket/{out}", settings)
    for known in (False, True):
        if known:  # one was interrupted here, and another has begun since
            (scratch_folder("s3://bucket/mine3") / "run.json").write_text('{"run": "ours"}')
        with pytest.raises(OutputError, match="mine3: another run packs to it"):
            pack_to(images, "s3://bucket/mine3", settings, resume=True)
    with pytest.raises(OutputError, match="^s3://bucket/mine: holds no packed set for --append"):
        pack_to(images, "s3://bucket/mine", settings, append=True)

    root = scratch_folder("s3://bucket/mine4")
    root.mkdir(parents=True)
    lock = os.open(root, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(OutputError, match="^s3://bucket/mine4: is in use by another packer. Wait for it"):
        pack_to(images, "s3://bucket/mine4", settings)
    os.close(lock)

    def meanwhile(path: str, number: int) -> None:
        if path.endswith("mine4/.packing.json"):
            put(Bucket="bucket", Key="mine4/train/shard-000001.tar", Body=b"another's")

    proxy.fault = meanwhile
    with pytest.raises(OutputError, match=r"mine4/train/shard-000001.tar: exists, and was not written by this run"):
        pack_to(images, "s3://bucket/mine4", settings)
    assert s3.files("bucket", "mine4/")["train/shard-000001.tar"] == b"another's"
    assert {name: data for name, data in s3.files("bucket", "mine").items() if name[0] != "4"} == before


def test_a_set_that_changes_while_it_is_appended_to(
    s3: S3, proxy: Proxy, images: Path, settings: Settings, on_disk: dict[str, bytes]
) -> None:
    for name, data in on_disk.items():
        s3.client.put_object(Bucket="bucket", Key=f"changes/{name}", Body=data)

    def meanwhile(path: str, number: int) -> None:
        if path.endswith(".tar") and number == 1:
            s3.client.put_object(Bucket="bucket", Key="changes/train/manifest.json", Body=b"{}")

    proxy.fault = meanwhile
    with pytest.raises(OutputError, match="changes/train/manifest.json: was changed since this run began"):
        pack_to(images, "s3://bucket/changes", settings, append=True)
    assert s3.files("bucket", "changes/")["train/index.arrow"] == on_disk["train/index.arrow"]


def test_a_run_that_fails_leaves_nothing(s3: S3, make_folder: Any, settings: Settings) -> None:
    folder = make_folder({"ant/1.jpg": b"no image", "bee/2.jpg": b"nor this"})
    with pytest.raises(SourceError, match="no readable image"):
        pack_to(folder, "s3://bucket/fails", {"workers": 1})
    assert s3.files("bucket", "fails/") == {} and left("s3://bucket/fails") == []


def test_damage_on_the_way_is_noticed(s3: S3, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        raise bucket.Replaced

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
def uploaded(server: tuple[S3, Proxy], images: Path) -> None:
    """The photos, with a hidden file, one that is none, a name that URLs escape, and a set that gpuload packed."""
    client = server[0].client
    more = {".hidden/x/1.jpg": b"", "notes.txt": b"", "old/train/index.arrow": b"", "old/train/manifest.json": b"{}"}
    more |= {"cat/a b#%20é.jpg": (images / "cat/50.jpg").read_bytes(), "old/train/shard.jpg": b"", "ant/": b""}
    for name, data in {**files_of(images), **more}.items():
        client.put_object(Bucket="bucket", Key=f"sources/photos/{name}", Body=data)


def packed_from(source: str, out: Path, **more: Any) -> dict[str, bytes]:
    labels = more.pop("labels", None)
    gpuload.pack(open_source(source, labels), out, **{"maxcount": 12, "workers": 2, "val": 0.2, **more})
    return files_of(out)


def test_a_folder(
    s3: S3, proxy: Proxy, uploaded: None, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "cat/a b#%20é.jpg").write_bytes((images / "cat/50.jpg").read_bytes())
    try:
        expected = packed_from(str(images), tmp_path / "expected")
    finally:
        (images / "cat/a b#%20é.jpg").unlink()
    proxy.fault = lambda path, number: "503" if number == 1 and "ant/1" in path else None
    assert main(["pack", SOURCE, str(tmp_path / "out"), "--val", "0.2", "--maxcount", "12", "--workers", "2"]) == 3
    assert files_of(tmp_path / "out") == expected
    assert "passed over 'old', which gpuload packed" in capsys.readouterr().out
    assert {count for path, count in proxy.asked.items() if path.endswith("bee/30.jpg")} <= {1, 2}  # hashed, packed


def test_an_outage_loses_no_image(
    s3: S3, proxy: Proxy, uploaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends, and goes on later; a file that is gone is left out by its name."""
    proxy.fault = lambda path, number: "403" if path.endswith("/ant/07.jpg") and number > 0 else None
    with pytest.raises(RemoteError, match=r"photos/ant/07.jpg: access was denied \(403\)"):
        packed_from(SOURCE, tmp_path / "out", val=0.0)
    proxy.fault = lambda path, number: "404" if path.endswith("/ant/07.jpg") else None
    packed_from(SOURCE, tmp_path / "out", val=0.0, resume=(tmp_path / "out").exists())
    found = rejected_of(tmp_path / "out" / "train")
    assert found.pop("ant/07.jpg") == "cannot be read: No such file or directory"
    assert found.keys() == {"bee/bad.jpg"} and Manifest.read(tmp_path / "out" / "train").samples == 60


def test_a_table(s3: S3, proxy: Proxy, uploaded: None, images: Path, tmp_path: Path) -> None:
    text = "path,label,caption\n" + "".join(f"ant/{n:02d}.jpg,{n % 2},photo {n}\n" for n in range(9))
    (tmp_path / "table.csv").write_text(text)
    s3.client.put_object(Bucket="bucket", Key="sources/table.csv", Body=text.encode())
    expected = packed_from(str(images), tmp_path / "expected", labels=str(tmp_path / "table.csv"))
    assert packed_from(SOURCE, tmp_path / "out", labels="s3://bucket/sources/table.csv") == expected
    with pytest.raises(SourceError, match="^s3://bucket/sources/none.csv: does not exist"):
        packed_from(SOURCE, tmp_path / "none", labels="s3://bucket/sources/none.csv")


def test_what_has_been_waited_for_is_read_without_a_request(proxy: Proxy, uploaded: None, images: Path) -> None:
    """Also what comes twice, and what lies far behind the file that is read. The limit of time is on reading alone."""
    source = open_source(SOURCE)
    names = [
        f"{name}/{n:02d}.jpg" for name, n in [("ant", n) for n in range(30)] + [("bee", 30), ("ant", 0), ("ant", 0)]
    ]
    source.expect(names)
    for name in (names[-3], *names):
        source.wait(name)
        asked = sum(count for path, count in proxy.asked.items() if path.endswith(name))
        assert source.read(name) == (images / name).read_bytes()
        assert asked == sum(count for path, count in proxy.asked.items() if path.endswith(name)) > 0


@pytest.mark.parametrize("kind", ["tars", "parquet"])
def test_other_sources(s3: S3, packed: Path, photo_files: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    files = {path.name: path.read_bytes() for path in packed.glob("*.tar")}
    if kind == "parquet":
        rows = [{"image": {"bytes": data, "path": name}, "label": len(name) % 3} for name, data in photo_files.items()]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / "table")
        files = {f"data/{name}-0.parquet": (tmp_path / "table").read_bytes() for name in ("train", "val")}
    for name, data in files.items():
        s3.client.put_object(Bucket="bucket", Key=f"sources/{kind}/{name}", Body=data)
    write_files(tmp_path / "here", files)
    what, val = f"s3://bucket/sources/{kind}", 0.2 if kind == "tars" else 0.0  # the tables have splits of their own
    assert packed_from(what, tmp_path / "out", val=val) == packed_from(str(tmp_path / "here"), tmp_path / "2", val=val)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]
    if kind == "tars":
        assert "shard-000003.tar, shard-000005.tar" in open_source(f"{what}/*00000[35].tar").identity


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://bucket/sources/none", "^s3://bucket/sources/none: holds no file, or does not exist. Give a fo"),
        ("s3://bucket/x.zip", "^s3://bucket/x.zip: is an archive at a URL. Download what is there, or mount it"),
        ("s3://bucket/x.h5", "^s3://bucket/x.h5: is a URL, and this kind of source is read from files. Download"),
        ("s3://bucket/sources/none/*.tar", "^s3://bucket/sources/none/.*.tar: holds no .tar"),
    ],
)
def test_what_is_refused(s3: S3, tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        packed_from(source, tmp_path / "out")


Settings = dict[str, Any]


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Azure, Proxy]]:
    with azure_server("sets") as azure, running(Proxy(azure.url)) as proxy:
        yield azure, proxy


@pytest.fixture
def azure(serving: tuple[Azure, Proxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Azure]:
    """The environment holds the credentials, and a cache of the test's own."""
    azure, proxy = serving
    for name, value in azure.environment(proxy.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    proxy.reset()
    yield azure
    proxy.reset()


@pytest.fixture
def web(serving: tuple[Azure, Proxy]) -> Proxy:
    return serving[1]


@pytest.fixture(scope="module")
def set_there(serving: tuple[Azure, Proxy], packed: Path) -> str:
    """The URL of a packed set."""
    for path in packed.iterdir():
        serving[0].put("sets", f"photos/train/{path.name}", path.read_bytes())
    return "az://sets/photos/train"


def test_an_epoch(azure: Azure, web: Proxy, set_there: Any, packed: Path, tmp_path: Path) -> None:
    web.fault = lambda path, number: "503" if number == 1 else "cut" if number == 2 else None
    with load(packed) as local, load(gpuload.Dataset(set_there, cache=tmp_path / "1")) as loader:
        assert drain([loader]) == drain([local])
        held = repr(loader) + str(loader.state_dict()) + repr(loader.dataset)
    asked = {path: count for path, count in web.asked.items() if path.endswith(".tar")}
    assert len(asked) == 10 and set(asked.values()) == {3}
    assert os.environ["AZURE_STORAGE_ACCOUNT_KEY"] not in held
    fetch(set_there, tmp_path / "copy")
    copied, own = files_of(tmp_path / "copy"), files_of(packed)
    assert copied.pop("_info.json") and own.pop("_info.json")  # made anew, by the name of the new folder
    assert copied == own


def test_a_wrong_key_and_what_is_not_there(
    azure: Azure, set_there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(gpuload.FormatError, match="^az://none/set: no manifest.json there, so this is not a packed"):
        gpuload.Dataset("az://none/set", tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmctc2VjcmV0")
    with pytest.raises(RemoteError, match=rf"^{set_there}/manifest.json: access was denied .*AZURE_STORAGE_") as error:
        gpuload.Dataset(set_there, tmp_path)
    assert "d3Jvbmctc2VjcmV0" not in str(error.value)


def test_packing_to_azure(
    azure: Azure, images: Path, settings: Settings, on_disk: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Packed from there, interrupted and resumed, verified, and appended to: the bytes are those of a disk."""
    out = "az://sets/same/set"
    for name, data in files_of(images).items():
        azure.put("sets", f"raw/{name}", data)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(Manifest, "write", None)
        gpuload.pack(open_source("az://sets/raw"), out, **settings)
    assert gpuload.pack(open_source("az://sets/raw"), out, **settings, resume=True).packed == 0
    assert azure.files("sets", "same/set/") == on_disk and verify(out) == []
    gpuload.pack(FolderSource(images), out, **settings, append=True)
    write_files(tmp_path / "local", on_disk)
    gpuload.pack(FolderSource(images), str(tmp_path / "local"), **settings, append=True)
    assert azure.files("sets", "same/set/") == files_of(tmp_path / "local")
    with pytest.raises(OutputError, match=f"^{out}: is not empty, it holds a packed set"):
        gpuload.pack(FolderSource(images), out, **settings)
    azure.delete("sets", "same/set/val/shard-000000.tar")
    assert verify(out) == [f"{out}/val/shard-000000.tar: No such file or directory"]
