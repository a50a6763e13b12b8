"""`tools/bench_remote.py`: its server, and that nothing is left of it. The measurements are made by hand."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from tools.remote.peers import Peers
from tools.remote.processes import ROOT, served, stats

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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_the_script(folder: Path, how: signal.Signals) -> None:
    code = (
        "import sys; from pathlib import Path; from tools.remote.processes import Child, served\n"
        "import time\n"
        "forks = 'import os, time; from tools.remote.processes import end_with_parent; end_with_parent()\\n'\\\n"
        "        'child = os.fork()\\nif child: print([os.getpid(), child], flush=True)\\ntime.sleep(100)'\n"
        "with served(Path(sys.argv[1])) as url:\n"
        "    child = Child([sys.executable, '-c', forks]); print(*child.answer(), flush=True); time.sleep(100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with script:
        assert script.stdout is not None
        pids = [int(pid) for pid in script.stdout.readline().split()]
        children = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
        assert len(pids) == 2 and len(children) == 2
        script.send_signal(how)
    for pid in {*pids, *map(int, children)}:
        while is_running(pid):
            time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process that is more than an entry in the table of processes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_is_not_installed_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = Peers(tmp_path, tmp_path, {"mosaic": "false"}, 1e6)  # a program that finds no package
    peers._try("mosaic", lambda: peers._prepare("mosaic", tmp_path, 1))
    assert "left out: mosaic: mosaicml-streaming is not installed in false" in capsys.readouterr().err
    assert not peers._rounds
