"""A bucket on the loopback, and photos to pack."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
pytest.importorskip("moto", reason="moto is not installed (extra dev)")

from images import write_files
from s3_server import S3, s3_server
from store.servers import Proxy, running


@pytest.fixture(scope="package")
def server() -> Iterator[tuple[S3, Proxy]]:
    with s3_server("bucket") as s3, running(Proxy(s3.url)) as proxy:
        yield s3, proxy


@pytest.fixture
def proxy(server: tuple[S3, Proxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    """The proxy before the server; the environment holds the credentials, and a cache of the test's own."""
    s3, proxy = server
    s3.use(monkeypatch, proxy.url)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    proxy.reset()
    yield proxy
    proxy.reset()


@pytest.fixture
def s3(server: tuple[S3, Proxy], proxy: Proxy) -> S3:
    return server[0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up within seconds."""
    from gpuload.store.objects import Objects

    brief = replace(Objects.patience, give_up_s=1, first_wait_s=0.02, longest_wait_s=0.1)
    monkeypatch.setattr(Objects, "patience", brief)
    monkeypatch.setattr("gpuload.store.objects.Bucket.retries", 0)


@pytest.fixture(scope="package")
def images(tmp_path_factory: pytest.TempPathFactory, photo_files: dict[str, bytes]) -> Path:
    """60 photos of three classes, and a file that is none."""
    root = tmp_path_factory.mktemp("photos")
    write_files(root, {**photo_files, "bee/bad.jpg": b"garbage"})
    return root


@pytest.fixture(scope="package")
def settings() -> dict[str, Any]:
    return {"maxcount": 12, "val": 0.2, "seed": 5, "workers": 2}


@pytest.fixture(scope="package")
def on_disk(images: Path, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What is packed into a folder."""
    from reading import files_of

    import gpuload
    from gpuload.sources import FolderSource

    out = tmp_path_factory.mktemp("on disk")
    gpuload.pack(FolderSource(images), out, **settings)
    return files_of(out)
