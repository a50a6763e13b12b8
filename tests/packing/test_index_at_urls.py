"""Tars at URLs that are indexed where they lie. Those of the Hub: tests/store/test_hub.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load
from reading import files_of

import gpuload
from gpuload import ArgumentError, FormatError, RemoteError, ShardError, SourceError
from gpuload.cli import main
from gpuload.disk import Manifest
from gpuload.packing.index import expand_shards, index_shards
from gpuload.packing.verify import verify
from gpuload.store.url import URL

pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")


@pytest.fixture(scope="module")
def served(packed: Path) -> Iterator[Any]:
    from store.servers import Proxy, file_server, running

    with running(file_server(packed.parent)) as server, running(Proxy(server.url)) as proxy:
        yield proxy


@pytest.fixture
def web(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    served.reset()
    yield served
    served.reset()


def test_an_index_of_a_web_server(web: Any, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each tar is read once to be indexed, and once by loaders: an epoch, verify, and info need no others."""
    web.fault = lambda path, number: "503" if number == 1 and path.endswith("4.tar") else None
    assert main(["index", f"{web.url}/train/shard-{{000000..000009}}.tar", "--out", str(tmp_path / "index")]) == 0
    assert "97 samples in 10 shards" in capsys.readouterr().out
    assert not list((tmp_path / "index").rglob("*.tar"))
    index_shards([str(packed / "*.tar")], tmp_path / "here")
    assert (tmp_path / "index" / "index.arrow").read_bytes() == (tmp_path / "here" / "index.arrow").read_bytes()
    web.reset()
    with load(tmp_path / "here") as local, load(tmp_path / "index") as loader:
        assert drain([loader]) == drain([local])
    assert {web.asked[f"/train/shard-{n:06d}.tar"] for n in range(10)} == {1}
    dataset = gpuload.Dataset(tmp_path / "index", tmp_path / "other", "10MB")
    assert dataset.cache is not None and dataset.cache.limit == 10_000_000
    assert dataset.shard_paths[0] == URL(f"{web.url}/train/shard-000000.tar")
    assert main(["info", str(tmp_path / "index")]) == 0
    assert verify(tmp_path / "index", 2) == []
    web.fault = lambda path, number: {"2.tar": "404", "3.tar": "wrong bytes"}.get(path[-5:])
    faults = verify(tmp_path / "index", 2)
    assert any(fault.startswith(f"{web.url}/train/shard-000002.tar: No such file") for fault in faults)
    assert any(fault.startswith(f"{web.url}/train/shard-000003.tar: its SHA-256 is") for fault in faults)


def test_a_damaged_tar_is_named(web: Any, packed: Path, tmp_path: Path) -> None:
    web.fault = lambda path, number: "404" if path.endswith("1.tar") else None
    with pytest.raises(RemoteError, match=f"^{web.url}/train/shard-000001.tar: does not exist"):
        index_shards([f"{web.url}/train/shard-{{000000..000002}}.tar"], tmp_path / "index")
    assert not (tmp_path / "index" / "manifest.json").exists()
    web.reset()
    with pytest.raises(ShardError, match=f"^{web.url}/train/index.arrow.tar: "):
        no_tar = packed / "index.arrow.tar"
        no_tar.write_bytes((packed / "index.arrow").read_bytes())
        try:
            index_shards([f"{web.url}/train/index.arrow.tar"], tmp_path / "index")
        finally:
            no_tar.unlink()


@pytest.mark.parametrize(
    ("patterns", "out", "error", "message"),
    [
        (["{web}/train/*.tar"], "x", ArgumentError, "^{web}/train: what lies at http:// cannot be listed"),
        (["{web}/train/a.tar"], None, ArgumentError, "^{web}/train/a.tar lies at a URL. Say with --out where"),
        (["{web}/train/a.tar.gz"], "x", SourceError, "^{web}/train/a.tar.gz: is no plain .tar by its name"),
        (
            ["{web}/a.tar", "s3://b/a.tar"],
            "x",
            ArgumentError,
            "^the shards lie in several places, as {web}/a.tar and s",
        ),
        (["{web}/a.tar", "{here}"], "x", ArgumentError, "^some shards are local files and others lie at URLs"),
    ],
)
def test_what_is_refused(
    web: Any, packed: Path, tmp_path: Path, patterns: list[str], out: str | None, error: type[Exception], message: str
) -> None:
    names = {"web": web.url, "here": str(packed / "shard-000000.tar")}
    with pytest.raises(error, match=message.format(**names)):
        index_shards([one.format(**names) for one in patterns], out and tmp_path / out)
    assert files_of(tmp_path / "x") == {}


def test_an_index_of_several_places_is_refused(packed: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(packed)
    from dataclasses import replace

    names = ["s3://one/a.tar", "s3://two/b.tar", *(shard.name for shard in manifest.shards[2:])]
    shards = tuple(replace(shard, name=name) for shard, name in zip(manifest.shards, names, strict=True))
    replace(manifest, shards=shards, packing={"indexed": "by hand"}).write(tmp_path)
    with pytest.raises(FormatError, match="its shards lie in several places, as s3://one/a.tar and"):
        gpuload.Dataset(tmp_path)


def test_wildcards_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(self: Any, give_up_s: float | None = None) -> dict[str, Any]:
        assert self.url == URL("s3://bucket/tars")
        return dict.fromkeys(("a-1.tar", "a-2.tar", "b.tar", "x/a-1.tar", "x/c.tar"))

    monkeypatch.setattr("gpuload.store.objects.Objects.list", found)
    for pattern, names in (
        ("*.tar", ["a-1.tar", "a-2.tar", "b.tar"]),
        ("a-[13].tar", ["a-1.tar"]),
        ("*/[a-z].tar", ["x/c.tar"]),
        ("{b*tar,*/c.tar}", ["b.tar", "x/c.tar"]),
    ):
        assert expand_shards([f"s3://bucket/tars/{pattern}"]) == [URL(f"s3://bucket/tars/{name}") for name in names]
    with pytest.raises(SourceError, match="^s3://bucket/tars/no.*: fits no object there"):
        expand_shards(["s3://bucket/tars/no*"])
