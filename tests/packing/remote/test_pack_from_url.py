"""Sources in a bucket: the same set as from a local copy of them, and no image is lost because of the network."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from reading import files_of, rejected_of
from s3_server import S3
from store.servers import Proxy

import gpuload
from gpuload import RemoteError, SourceError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.sources import open_source

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


def test_tars(s3: S3, packed: Path, tmp_path: Path) -> None:
    for path in packed.glob("*.tar"):
        s3.client.upload_file(str(path), "bucket", f"sources/tars/{path.name}")
    (tmp_path / "here").mkdir()
    for path in packed.glob("*.tar"):
        (tmp_path / "here" / path.name).symlink_to(path)
    what = "s3://bucket/sources/tars"
    assert packed_from(what, tmp_path / "out") == packed_from(str(tmp_path / "here"), tmp_path / "expected")
    some = open_source(f"{what}/*00000[35].tar")
    assert "shard-000003.tar, shard-000005.tar" in some.identity


def test_parquet(s3: S3, photo_files: dict[str, bytes], tmp_path: Path) -> None:
    rows = [{"image": {"bytes": data, "path": name}, "label": len(name) % 3} for name, data in photo_files.items()]
    for name in ("train-0.parquet", "val-0.parquet"):
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / name)
        s3.client.upload_file(str(tmp_path / name), "bucket", f"sources/parquet/data/{name}")
    (tmp_path / "here" / "data").mkdir(parents=True)
    for name in ("train-0.parquet", "val-0.parquet"):
        (tmp_path / name).rename(tmp_path / "here" / "data" / name)
    expected = packed_from(str(tmp_path / "here"), tmp_path / "expected", val=0.0)
    assert packed_from("s3://bucket/sources/parquet", tmp_path / "out", val=0.0) == expected
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]


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
