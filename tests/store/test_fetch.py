"""`fetch`, `info` and `verify` of sets at URLs."""

from pathlib import Path
from typing import Any

import pytest
from reading import files_of
from store.servers import shards_asked

from gpuload import ArgumentError, FormatError, OutputError, RemoteError, ShardError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify


def test_commands_of_a_set_wherever_it_lies(
    place: Any, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    url, out = str(place(tmp_path / "cache").folder), tmp_path / "new" / "train"  # as the split is called
    for command, said in [
        (["info", url], "97 in 10 shards"),
        (["verify", url, "--workers", "2"], f"{url}: all is well\n"),
        (["fetch", url, str(out)], f"{out}: 97 samples in 10 shards, "),
    ]:
        assert main(command) == 0
        assert said in capsys.readouterr().out
    files = files_of(out)
    assert b'"num_samples": 97' in files.pop("_info.json")  # of a set, it lies above the splits
    assert files == files_of(packed)


@pytest.mark.parametrize(
    ("fault", "file", "error", "message"),
    [
        ("503", "5.tar", RemoteError, "shard-000005.tar: the server answered 503"),
        ("wrong bytes", ".arrow", ShardError, "index.arrow: its SHA-256 is .*, manifest.json says"),
        ("cut", "", RemoteError, "manifest.json: the connection was cut"),
    ],
)
def test_a_copy_goes_on(
    fault: str, file: str, error: type[Exception], message: str, proxy: Any, tmp_path: Path, impatient: None
) -> None:
    """What is whole is not downloaded again."""
    proxy.fault = lambda path, number: fault if path.endswith(file) else None
    with pytest.raises(error, match=message):
        fetch(f"{proxy.url}/train", tmp_path)
    assert not (tmp_path / "manifest.json").exists() and not (tmp_path / "index.arrow").exists()
    here = sorted(path for path in tmp_path.glob("*.tar") if path.stat().st_size)
    assert bool(here) == bool(file) == any(tmp_path.iterdir()) and not list(tmp_path.glob("*.part"))
    for path, size in zip(here, (7, -1), strict=False):  # one is cut short, another is of the right size
        path.write_bytes(path.read_bytes()[:size] + b"!")
    proxy.reset()
    fetch(f"{proxy.url}/train", tmp_path)
    assert verify(tmp_path) == [] and not (tmp_path / ".manifest.json").exists()
    assert not shards_asked(proxy).keys() & {f"/train/{path.name}" for path in here[2:]}
    proxy.reset()
    fetch(f"{proxy.url}/train", tmp_path)
    assert not shards_asked(proxy)


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


def test_verify(proxy: Any) -> None:
    url = f"{proxy.url}/train"
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
