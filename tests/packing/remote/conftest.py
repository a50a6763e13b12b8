"""Buckets on the loopback: of an S3 server, or of Azure's where a test asks for that `scheme`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
pytest.importorskip("moto", reason="moto is not installed (extra dev)")

from azure_server import azure_server
from s3_server import s3_server
from store.servers import Proxy, running

Servers = Callable[[str], tuple[Any, Proxy]]


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    """By its scheme the server, with a bucket "bucket", and a proxy before it; started when it is asked for."""
    with ExitStack() as stack:

        @cache
        def start(scheme: str) -> tuple[Any, Proxy]:
            store = stack.enter_context({"s3": s3_server, "az": azure_server}[scheme]("bucket"))
            return store, stack.enter_context(running(Proxy(store.url)))

        yield start


@pytest.fixture
def scheme() -> str:
    return "s3"


@pytest.fixture
def proxy(servers: Servers, scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    """The proxy before the server; the environment holds the credentials, and a cache of the test's own."""
    store, proxy = servers(scheme)
    store.use(monkeypatch, proxy.url)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    proxy.reset()
    yield proxy
    proxy.reset()


@pytest.fixture
def store(servers: Servers, scheme: str, proxy: Proxy) -> Any:
    return servers(scheme)[0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up within seconds."""
    from gpuload.store.objects import Objects

    brief = replace(Objects.patience, give_up_s=1, first_wait_s=0.02, longest_wait_s=0.1)
    monkeypatch.setattr(Objects, "patience", brief)
    monkeypatch.setattr("gpuload.store.objects.Bucket.retries", 0)
