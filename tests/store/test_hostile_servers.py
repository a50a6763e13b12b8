"""What a server, or a file of the cache, may say that is wrong: a named error at once, and nothing outside is touched."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load
from store.hub_server import COMMIT, HubServer
from store.servers import _Files, _Server, file_server, running

import gpuload
from gpuload import FormatError, GpuloadError, RemoteError, SourceError
from gpuload.disk.fetch import fetch
from gpuload.packing.verify import verify
from gpuload.store.network import background
from gpuload.store.objects import Objects
from gpuload.store.url import URL

Rows = list[tuple[int, bytes]]
Answer = Callable[["_Odd", bytes, int, int], None]


class _Odd(_Files):
    """Answers in its own way, of the file's bytes and the range that was asked for."""

    def __init__(self, folder: Path, about: str, odd: Answer, *args: Any) -> None:
        self.about, self.odd = about, odd
        super().__init__(folder, True, *args)

    def do_GET(self) -> None:  # noqa: N802
        name = self.path.rpartition("/")[2]
        if not re.fullmatch(self.about, name):
            return super().do_GET()
        data = (self.folder / name).read_bytes()
        wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(wanted[1]), min(int(wanted[2]) + 1, len(data))) if wanted else (0, len(data))
        return self.odd(self, data, start, stop)

    def endless(self, status: int, data: bytes, **headers: str) -> None:
        """An answer that ends with the connection."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True


@contextmanager
def odd_server(folder: Path, name: str, odd: Answer) -> Iterator[Any]:
    """The URL of a folder of which one file is answered in an odd way."""
    with running(_Server(("127.0.0.1", 0), partial(_Odd, folder, re.escape(name), odd))) as server:
        yield server.url


def ranged(to: Callable[[int, int, int], str]) -> Answer:
    """Says of the right bytes that they are others."""

    def answer(self: _Odd, data: bytes, start: int, stop: int) -> None:
        self.answer(206, data[start:stop], **{"Content-Range": to(start, stop, len(data))})

    return answer


UNASKED = "the server answered 304 or 412 unasked. Check the server, and what lies between it and here"
OTHERS = "the server does not send the bytes that were asked for, and says how many they are. Check the server"
REDIRECTS = "its redirects lead to no file. Check the server"


def endless_range(self: _Odd, data: bytes, start: int, stop: int) -> None:
    self.endless(206, data[start:stop], **{"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})


ANSWERS: dict[str, tuple[Answer, str]] = {
    "an unasked 304": (lambda self, *_: self.answer(304), UNASKED),
    "an unasked 412": (lambda self, *_: self.answer(412), UNASKED),
    "no length": (lambda self, data, *_: self.endless(200, data), OTHERS),
    "no length of a range": (endless_range, OTHERS),
    "another range": (ranged(lambda start, stop, size: f"bytes {start + 1}-{stop}/{size + 1}"), OTHERS),
    "no range": (lambda self, data, start, stop: self.answer(206, data[start:stop]), OTHERS),
    "a range of letters": (ranged(lambda *_: "bytes a-b/c"), OTHERS),
    "a range below zero": (ranged(lambda *_: "bytes 0-9/-5"), OTHERS),
    "a circle": (lambda self, *_: self.answer(302, Location=self.path), REDIRECTS),
    "a redirect to a file": (lambda self, *_: self.answer(302, Location="file:///etc/passwd"), "the server answered 302"),
    "a redirect to another scheme": (lambda self, *_: self.answer(302, Location="ftp://127.0.0.1/x"), REDIRECTS),
}  # fmt: skip


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow", "shard-000003.tar"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_what_servers_answer(name: str, kind: str, packed: Path, tmp_path: Path, impatient: None) -> None:
    odd, message = ANSWERS[kind]
    with odd_server(packed, name, odd) as url, pytest.raises(RemoteError, match=f"^{url}/{name}: {message}"):
        drain([load(gpuload.Dataset(url, cache=tmp_path), drop_last=False)])


def test_an_object_without_a_tag_that_is_replaced_while_it_is_read(
    packed: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size tells, where it comes in ranges."""
    monkeypatch.setattr("gpuload.store.objects.RANGE_BYTES", 1000)
    odd = ranged(lambda start, stop, size: f"bytes {start}-{stop - 1}/{size + start}")
    with (
        odd_server(packed, "index.arrow", odd) as url,
        pytest.raises(RemoteError, match=f"^{url}/index.arrow: was repl"),
    ):
        background().wait(Objects(URL(url)).read_whole("index.arrow"))


def sends(size: int, sent: list[int]) -> Answer:
    """Goes on sending spaces, to this size; sent: gets the bytes of each."""

    def answer(self: _Odd, data: bytes, start: int, stop: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        with suppress(OSError):  # until nobody listens
            while sum(sent) < size:
                self.wfile.write(b" " * (1 << 20))
                sent.append(1 << 20)
        self.close_connection = True

    return answer


def test_a_manifest_of_any_length(packed: Path, tmp_path: Path, impatient: None) -> None:
    """One that is too long is not downloaded, as soon as it is longer than the shards explain that it names."""
    sent = list[int]()
    for size, error, message in [
        (1 << 40, RemoteError, "is 1,099,511,627,776 bytes, expected 1,073,741,824 at most"),
        (512 << 20, FormatError, "[0-9,]+ bytes are too many for the manifest of 0 shards"),
    ]:
        sent.clear()
        odd = sends(size, sent)
        with (
            odd_server(packed, "manifest.json", odd) as url,
            pytest.raises(error, match=f"^{url}/manifest.json: {message}"),
        ):
            gpuload.Dataset(url, tmp_path)
    assert sum(sent) < 128 << 20


@pytest.mark.parametrize("name", ["index.arrow", "rejected.jsonl", "shard-000003.idx"])
def test_what_lies_beside_the_shards_has_an_end(packed: Path, tmp_path: Path, impatient: None, name: str) -> None:
    """A server that goes on and on would fill the disk."""

    def odd(self: _Odd, data: bytes, start: int, stop: int) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.answer(206, bytes(last + 1 - first), **{"Content-Range": f"bytes {first}-{last}/{1 << 40}"})

    with odd_server(packed, name, odd) as url:
        message = f"^{url}/{name}: is 1,099,511,627,776 bytes, expected [0-9,]+ at most"
        with pytest.raises(RemoteError, match=message):
            fetch(url, tmp_path / "fetched")
        if name != "rejected.jsonl":
            with pytest.raises(RemoteError, match=message):
                verify(url, 1)
        if name == "index.arrow":
            with pytest.raises(GpuloadError):
                gpuload.Dataset(url, tmp_path / "cache")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2 << 20


def test_no_other_manifest_is_taken_for_the_one_that_was_opened(copy: Path, tmp_path: Path, impatient: None) -> None:
    """Without a network, the last of several versions. A version's name is the hash of its manifest."""
    text = (copy / "manifest.json").read_bytes()
    with running(file_server(copy)) as server:
        for one in (text, text + b"\n", text):
            (copy / "manifest.json").write_bytes(one)
            opened = gpuload.Dataset(server.url, tmp_path).index.path
    for name in ("a" * 24, "b" * 25, ".."):
        planted = opened.parents[1] / name
        planted.mkdir(exist_ok=True)
        (planted / "manifest.json").write_bytes(text.replace(b"shard-000003", b"shard-000030"))
    assert gpuload.Dataset(server.url, tmp_path).index.path == opened


@pytest.mark.parametrize("name", ["lock", "manifest.json", "index.arrow", "rows-000003", "rows-000010"])
def test_a_damaged_copy_is_downloaded_again_and_no_link_is_followed(
    name: str, proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is damaged here is not what somebody must upload again."""
    if name.startswith("rows-"):
        monkeypatch.setattr("gpuload.disk.fetch.WHOLE_BYTES", 0)
    url, cache, target = f"{proxy.url}/train", tmp_path / "cache", tmp_path / "mine"
    keys = gpuload.Dataset(url, cache).keys(range(97))
    (path,) = (one for one in cache.rglob(name) if one.parent.name != "gpuload-1")
    data = path.read_bytes()
    half = len(data) // 2
    for wrong in (data[:half], data[:-9] + bytes(9), b"", data[:half] + bytes(64) + data[half + 64 :]):
        if name != "lock":
            path.unlink()  # else it would be truncated where it is mapped
            path.write_bytes(wrong)
            assert gpuload.Dataset(url, cache).keys(range(97)) == keys
            assert path.read_bytes() == data
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(FormatError, match=f"{name}: .*not a regular file"):
        gpuload.Dataset(url, cache).keys(range(97))
    assert target.read_bytes() == data


def test_what_the_hub_answers(hub: HubServer, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is one, files lie below the folder, and what the cache remembers is a commit again."""
    url = "hf://datasets/me/photos/train"
    hub.commit = "../../other/set/resolve/main"
    with pytest.raises(
        RemoteError, match=r"^hf://.*: the Hub names the commit '\.\./\.\./other.*', expected 40 hexadecim"
    ):
        gpuload.Dataset(url)
    hub.commit = COMMIT
    assert len(gpuload.Dataset(url)) == 97
    (path,) = tmp_path.rglob("commit")
    path.write_text("../../other")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RemoteError, match="the Hub cannot be reached"):
        gpuload.Dataset(url)


@pytest.mark.parametrize("name", ["../outside.tar", "a/../../outside.tar", "/tmp/outside.tar", "a//b.tar", "./x.tar"])
def test_listed_names_lie_below_their_folder(
    name: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = [{"type": "file", "path": name, "size": 5, "oid": "0" * 40}]
    monkeypatch.setattr("store.hub_server._Hub._tree", lambda self, below: tree)
    with pytest.raises(SourceError, match=f"^hf://.*: holds {name!r}, which is no name of a file below a folder"):
        gpuload.pack(gpuload.sources.open_source("hf://datasets/me/photos"), tmp_path / "out")
    assert not list(tmp_path.rglob("outside*"))
