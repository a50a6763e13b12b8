"""A packed set behind servers on the loopback."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load

import gpuload
from gpuload.cli import main

OBSTORE = find_spec("obstore") is not None
WITHOUT = {"test_store_cache.py"}  # what needs no server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not OBSTORE and item.path.parent == Path(__file__).parent and item.path.name not in WITHOUT:
            item.add_marker(pytest.mark.skip(reason="obstore is not installed (extra remote)"))


@pytest.fixture
def proxy(packed: Path) -> Iterator[Any]:
    """The proxy before an HTTP server of the folder that holds `packed`."""
    from store.servers import proxied

    with proxied(packed.parent) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def epochs(packed: Path) -> list[list[tuple[int, bytes]]]:
    """Two epochs from the folder."""
    with load(packed, drop_last=False, shuffle=gpuload.Shuffle(window=2)) as loader:
        return [drain([loader]) for _ in range(2)]


@pytest.fixture(scope="session")
def many(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """97 samples in 49 shards."""
    out = tmp_path_factory.mktemp("many")
    assert main(["pack", str(photos), str(out), "--maxcount", "2", "--workers", "2"]) == 0
    return out / "train"


@pytest.fixture(scope="session")
def bucket(packed: Path) -> Iterator[Any]:
    """moto's S3 server with the bucket `sets`."""
    for name in ("moto", "boto3"):
        pytest.importorskip(name, reason=f"{name} is not installed (extra dev)")
    from s3_server import s3_server

    with s3_server("sets") as s3:
        for path in packed.iterdir():
            s3.client.upload_file(str(path), "sets", f"photos/train/{path.name}")
        yield s3


@pytest.fixture
def reader(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The proxy before the bucket; the environment holds the credentials."""
    from store.servers import Proxy, running

    with running(Proxy(bucket.url)) as proxy:
        bucket.use(monkeypatch, proxy.url)
        yield proxy


@pytest.fixture(params=["cached", "in parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the index is fetched: whole, or "in parts", each when it is needed."""
    if request.param == "in parts":
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", 0)
    return str(request.param)


URLS = {"s3": "s3://sets/photos/train", "hub": "hf://datasets/me/photos/train"}


@pytest.fixture(params=["cached", "in parts", "without ranges", "s3", "hub"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., gpuload.Dataset]]:
    """Opens `packed`, as it lies at a URL: by a folder for the cache, and options."""
    from store.servers import file_server, running

    packed = request.getfixturevalue("packed")
    if request.param == "in parts":
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", 0)
    if fixture := {"s3": "reader", "hub": "hub"}.get(request.param):
        request.getfixturevalue(fixture)
    with running(file_server(packed, ranges=request.param != "without ranges")) as server:
        url = URLS.get(request.param, server.url)
        yield lambda cache, **options: gpuload.Dataset(url, cache, **options)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives up within seconds, but waits for a server on a busy machine. Can be called with fields of `Patience` that
    shall differ."""
    from gpuload.store.objects import Objects

    def set_patience(**changes: float) -> None:
        monkeypatch.setattr(Objects, "patience", replace(Objects.patience, **changes))

    set_patience(give_up_s=2, first_wait_s=0.02, longest_wait_s=0.1)
    monkeypatch.setattr("gpuload.disk.fetch._OFFLINE_S", 0.3)
    return set_patience


@pytest.fixture
def hub(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that answers as the Hub, whose token and address the environment has."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra remote)")
    from store.hub_server import TOKEN, CdnServer, HubServer
    from store.servers import running

    from gpuload.store import hub

    with running(CdnServer(packed.parent)) as cdn, running(HubServer(packed.parent, cdn)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub, "_PATIENCE", replace(hub._PATIENCE, first_wait_s=0.01))
        yield server
