"""Whatever a set, a path, an error, a warning or a log record holds, the commands print lines of printable characters."""

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from images import encode, write_files
from painted import pack_hostile
from PIL import Image
from store.servers import file_server, running
from tars import write_tar

from gpuload import cli

HOSTILE = "[/b][red]\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\r\nFORGED :smile: \x7f"
NAME = HOSTILE.replace("/", "")  # for what is a file
LONG = HOSTILE + 10_000_000 * "x"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {3: {"label": LONG[:4000]}, 4: {"caption": LONG}}
    return pack_hostile(tmp_path_factory.mktemp("sets") / NAME, HOSTILE, NAME, texts)


def check(ran: Any) -> str:
    """What was said, all of which can be shown to a terminal."""
    for line in f"{ran.out}\n{ran.err}".split("\n"):
        assert line.isprintable(), ascii(line[:300])
        assert not line.lstrip().startswith("FORGED") and len(line) < 12_000
    return str(ran.out + ran.err)


@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ("info", cli.DONE, "[/b][red]\\x1b[31m"),
        ("verify --workers 1", cli.FAULTY, "FORGED"),
        ("show 0 3 4", cli.DONE, "\\x1b]0;title\\x07"),
        ("report --size 32 -o report.html", cli.DONE, "problem: "),
        ("doctor --seconds 0.1", cli.FAULTY, "FORGED"),
        ("tune --seconds 0.5 --size 32 --device cpu", cli.WRONG, "does not decode"),
    ],
)
def test_a_hostile_set(
    hostile: Path, command: Any, monkeypatch: pytest.MonkeyPatch, words: str, code: int, part: str
) -> None:
    monkeypatch.setattr("gpuload.doctor.checks.decoders", lambda driver: [("cpu", "native")])  # one takes half the time
    name, *options = words.split()
    ran = command(name, hostile, *options)
    assert (ran.code, part in check(ran)) == (code, True), ran


def test_a_hostile_set_is_fetched(hostile: Path, tmp_path: Path, command: Any) -> None:
    with running(file_server(hostile.parent / "sound" / "train")) as server:
        for folder, code in ((tmp_path / NAME, cli.DONE), (hostile.parent, cli.WRONG)):
            ran = command("fetch", server.url, folder)
            assert ran.code == code and "FORGED" in check(ran)


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--missing", "skip"], cli.REJECTED), ([], cli.WRONG), (["damaged"], cli.WRONG)],
)
def test_hostile_shards_are_indexed(tmp_path: Path, command: Any, options: list[str], code: int) -> None:
    """Names of folders, members and classes, captions, a member that is not indexed, and a damaged header."""
    names, stem = tmp_path / f"classes{NAME}", re.sub(r"\s|\.", "", NAME)
    names.write_text("".join(f"x{HOSTILE.replace(chr(13), '').replace(chr(10), '')}{n}\n" for n in range(3)))
    members = {"jpg": encode(Image.new("RGB", (8, 8))), "cls": b"1", "txt": HOSTILE.encode(), "[red]\x1b": b"x"}
    stored = {
        f"{stem}/{stem}{number}.{end}": data for number in range(4) for end, data in members.items()
        if number != 2 or end == "jpg"
    }  # fmt: skip
    shard = write_tar(tmp_path / NAME / f"{NAME}.tar", stored)
    if options == ["damaged"]:
        options = []
        shard.write_bytes(shard.read_bytes().rstrip(b"\0") + b"\x1b[31m" * 999)
    ran = command("index", shard, "--out", tmp_path / f"out{NAME}", "--classes", names, *options)
    assert (ran.code, "FORGED" in check(ran)) == (code, True), ran


def test_hostile_sources(tmp_path: Path, command: Any) -> None:
    files = {f"{NAME}1.jpg": b"no", f"2{NAME}": b"", f"{NAME}.{NAME}": b""}
    write_files(tmp_path / NAME / f"class {NAME}", files)
    ran = command("pack", tmp_path / NAME, tmp_path / f"out{NAME}", "--workers", "1")
    assert ran.code == cli.WRONG and "FORGED" in check(ran)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_hostile_arguments(tmp_path: Path, command: Any, name: str) -> None:
    """A shell puts names of files into a command, too."""
    ran = command(name, "a", "b", f"--{HOSTILE.replace(' ', '')}")
    assert ran.code == cli.WRONG and "FORGED" in check(ran)
    more = {"pack": ["out"], "fetch": [HOSTILE], "show": [HOSTILE]}.get(name, [])
    for path in (tmp_path / NAME, f"https://{NAME}", f"{NAME}://x/y") if name != "index" else ():
        ran = command(name, path, *more)
        assert ran.code in (cli.WRONG, cli.FAULTY)
        check(ran)


class Noisy(cli.load("info")):  # type: ignore[misc]
    def run(self) -> int:
        warnings.warn(HOSTILE, stacklevel=1)
        logging.getLogger("gpuload.x").warning("%s", HOSTILE)
        raise ValueError(HOSTILE) if self.window == 1 else OSError(5, HOSTILE, HOSTILE)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("window", [1, 2])
def test_exceptions_warnings_and_records(command: Any, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(cli, "load", lambda name: Noisy)
    ran = command("info", "x", "--window", window)
    assert ran.code == (cli.BROKEN if window == 1 else cli.WRONG)
    said = check(ran)
    assert said.count("\\x1b[31m") >= 3 and "UserWarning: [/b]" in said
    assert ("Traceback (most recent call last):" in said) == (window == 1)
