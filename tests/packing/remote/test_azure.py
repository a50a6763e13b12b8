"""Sets in a container of Azure's, behind the proxy: what holds of S3 holds here."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure_server import Azure, azure_server
from images import write_files
from loaders import drain, load
from reading import files_of
from store.servers import Proxy, running

import gpuload
from gpuload import OutputError, RemoteError
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source

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
def uploaded(serving: tuple[Azure, Proxy], packed: Path) -> str:
    """The URL of a packed set."""
    for path in packed.iterdir():
        serving[0].put("sets", f"photos/train/{path.name}", path.read_bytes())
    return "az://sets/photos/train"


def test_an_epoch(azure: Azure, web: Proxy, uploaded: Any, packed: Path, tmp_path: Path) -> None:
    web.fault = lambda path, number: "503" if number == 1 else "cut" if number == 2 else None
    with load(packed) as local, load(gpuload.Dataset(uploaded, cache=tmp_path / "1")) as loader:
        assert drain([loader]) == drain([local])
        held = repr(loader) + str(loader.state_dict()) + repr(loader.dataset)
    asked = {path: count for path, count in web.asked.items() if path.endswith(".tar")}
    assert len(asked) == 10 and set(asked.values()) == {3}
    assert os.environ["AZURE_STORAGE_ACCOUNT_KEY"] not in held
    with load(packed) as local, load(gpuload.Dataset(uploaded, cache=tmp_path / "2", cache_size=0)) as loader:
        assert drain([loader]) == drain([local])
    fetch(uploaded, tmp_path / "copy")
    copied, own = files_of(tmp_path / "copy"), files_of(packed)
    assert copied.pop("_info.json") and own.pop("_info.json")  # made anew, by the name of the new folder
    assert copied == {name: data for name, data in own.items() if name != "tuning.json"}


def test_a_wrong_key_and_what_is_not_there(
    azure: Azure, uploaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(gpuload.FormatError, match="^az://none/set: no manifest.json there, so this is not a packed"):
        gpuload.Dataset("az://none/set", tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmctc2VjcmV0")
    with pytest.raises(RemoteError, match=rf"^{uploaded}/manifest.json: access was denied .*AZURE_STORAGE_") as error:
        gpuload.Dataset(uploaded, tmp_path)
    assert "d3Jvbmctc2VjcmV0" not in str(error.value)


def test_packing(
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
