"""`tools/bench_remote.py`: its server, and that a loader that is missing is named. The measurements are made by hand."""

import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from tools.remote.peers import Peers
from tools.remote.processes import served, stats

DATA = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "object").write_bytes(DATA)
    return tmp_path


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=250) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_server_answers_ranges_and_counts_what_it_sends(folder: Path) -> None:
    size = len(DATA)
    with served(folder) as url:
        place = f"{url}/bucket/object"
        for asked, sent in (("10-99", DATA[10:100]), (f"{size - 5}-", DATA[-5:]), (f"0-{2 * size}", DATA)):
            status, headers, body = get(place, Range=f"bytes={asked}")
            assert (status, body) == (206, sent)
            assert asked != "10-99" or headers["Content-Range"] == f"bytes 10-99/{size}"
        status, headers, body = get(place)
        assert (status, body) == (200, DATA)
        assert get(place, "HEAD")[2] == b"" and get(place, "HEAD")[1]["Content-Length"] == str(size)
        found = stats(url)
        assert found.sent == {"/bucket/object": 2 * size + 90 + 5} and found.requests == 6
        assert get(f"{url}/bucket/other")[0] == 404
        assert get(place, Range=f"bytes={size}-")[0] == 416
        assert get(place, **{"If-None-Match": headers["ETag"]})[0] == 304
        assert stats(url).bytes == found.bytes


def test_what_is_not_installed_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = Peers(tmp_path, tmp_path, {"mosaic": "false"}, 1e6)  # a program that finds no package
    peers._try("mosaic", lambda: peers._prepare("mosaic", tmp_path, 1))
    assert "left out: mosaic: mosaicml-streaming is not installed in false" in capsys.readouterr().err
    assert not peers._rounds
