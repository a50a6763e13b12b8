"""`fetch`, `info` and `verify` of sets at URLs."""

from pathlib import Path
from typing import Any

import pytest
from reading import files_of

from gpuload import ArgumentError, FormatError, OutputError, RemoteError, ShardError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify


def test_a_copy_is_the_set(proxy: Any, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "train"  # as the split is called
    for _ in range(2):  # the second time all is there
        assert main(["fetch", f"{proxy.url}/train", str(out)]) == 0
        assert files_of(out) == {name: data for name, data in files_of(packed).items() if name != "tuning.json"}
        assert capsys.readouterr().out.startswith(f"{out}: 97 samples in 10 shards, ")
    assert {count for path, count in proxy.asked.items() if path.endswith(".tar")} == {1}


def test_a_copy_goes_on(proxy: Any, packed: Path, tmp_path: Path, impatient: None) -> None:
    proxy.fault = lambda path, number: "503" if path.endswith("5.tar") else None
    with pytest.raises(RemoteError, match="shard-000005.tar: the server answered 503"):
        fetch(f"{proxy.url}/train", tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    here = [path for path in tmp_path.glob("*.tar") if path.stat().st_size]
    assert 0 < len(here) < 10 and not list(tmp_path.glob("*.part"))
    proxy.reset()
    (tmp_path / "shard-000008.tar").write_bytes(b"damaged")
    here[0].write_bytes(here[0].read_bytes()[:-1] + b"!")
    fetch(f"{proxy.url}/train", tmp_path)
    assert verify(tmp_path) == [] and not (tmp_path / ".manifest.json").exists()
    kept = {f"/train/{path.name}" for path in here[1:]} - {"/train/shard-000008.tar"}
    assert not kept & set(proxy.asked)


def test_a_folder_that_is_not_for_it(proxy: Any, packed: Path, tmp_path: Path) -> None:
    url, other = f"{proxy.url}/train", tmp_path / "other"
    other.mkdir()
    manifest = Manifest.read(packed)
    type(manifest)(shards=manifest.shards[:1], fields=manifest.fields).write(other)
    asks: list[tuple[Any, Any, type[Exception], str]] = [
        (url, tmp_path, OutputError, f"^{tmp_path}: is not empty, it holds 'other'. Give a new folder"),
        (url, other, OutputError, f"{other}: holds another set .fingerprint .* than {url}"),
        (packed, other, ArgumentError, "is a path, expected a URL such as s3://bucket/set/train"),
        (url, "s3://x", ArgumentError, "fetch.folder. s3://x: is a URL, expected a path. Give a local folder"),
    ]
    for source, folder, error, message in asks:
        with pytest.raises(error, match=message):
            fetch(source, folder)


def test_without_a_manifest_nothing_is_left(proxy: Any, tmp_path: Path, impatient: Any) -> None:
    impatient(give_up_s=0.5)
    proxy.fault = lambda path, number: "cut"
    with pytest.raises(RemoteError):
        fetch(f"{proxy.url}/train", tmp_path)
    assert list(tmp_path.iterdir()) == []
    proxy.reset()
    fetch(f"{proxy.url}/train", tmp_path)


def test_a_copied_index_is_compared_with_the_manifest(proxy: Any, tmp_path: Path) -> None:
    proxy.fault = lambda path, number: "wrong bytes" if path.endswith(".arrow") else None
    with pytest.raises(ShardError, match="index.arrow: its SHA-256 is .*, manifest.json says"):
        fetch(f"{proxy.url}/train", tmp_path)
    assert not (tmp_path / "index.arrow").exists() and not (tmp_path / "manifest.json").exists()


def test_info(proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path))
    assert main(["info", f"{proxy.url}/train"]) == 0
    out = capsys.readouterr().out
    assert f"{proxy.url}/train" in out and "97 in 10 shards" in out
    assert not any(path.endswith(".tar") for path in proxy.asked)  # of the shards, nothing is needed


def test_verify(proxy: Any, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{proxy.url}/train"
    assert main(["verify", url, "--workers", "2"]) == 0
    assert capsys.readouterr().out == f"{url}: all is well\n"
    proxy.fault = lambda path, number: {"3.tar": "wrong bytes", "4.tar": "404"}.get(path[-5:])
    faults = verify(url, 2)
    assert any(fault.startswith(f"{url}/shard-000003.tar: its SHA-256 is") for fault in faults)
    assert f"{url}/shard-000004.tar: No such file or directory" in faults
    assert all(fault.startswith((f"{url}/shard-000003.tar: ", f"{url}/shard-000004.tar: ")) for fault in faults)
    proxy.fault = lambda path, number: "404" if path.endswith("index.arrow") else None
    assert [fault.partition(" (")[0] for fault in verify(url)] == [
        f"{url}/index.arrow: cannot be read as an Arrow file"
    ]
    with pytest.raises(FormatError, match="no manifest.json there, so this is not a packed set"):
        verify(f"{proxy.url}/no")
