"""Whatever a set, a path, an error, a warning or a log record holds, the commands print lines of printable characters."""

import io
import logging
import re
import tarfile
import warnings
from pathlib import Path

import pytest
from images import encode
from painted import pack_hostile
from PIL import Image
from store.servers import file_server, running

from gpuload import cli

HOSTILE = "[/b][red]\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\r\nFORGED :smile: \x7f"
NAME = HOSTILE.replace("/", "")  # for what is a file
LONG = HOSTILE + 10_000_000 * "x"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {3: {"label": LONG[:4000]}, 4: {"caption": LONG}}
    return pack_hostile(tmp_path_factory.mktemp("sets") / NAME, HOSTILE, NAME, texts)


def check(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, all of which can be shown to a terminal."""
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        for line in text.split("\n"):
            assert line.isprintable(), ascii(line[:300])
            assert not line.lstrip().startswith("FORGED") and len(line) < 12_000
    return captured.out + captured.err


COMMANDS = [
    (["info"], cli.DONE, "[/b][red]\\x1b[31m"),
    (["verify", "--workers", "1"], cli.FAULTY, "FORGED"),
    (["show", "0", "3", "4"], cli.DONE, "\\x1b]0;title\\x07"),
    (["report", "--size", "32", "-o", "report.html"], cli.DONE, "problem: "),
    (["doctor", "--seconds", "0.1"], cli.FAULTY, "FORGED"),
    (["tune", "--seconds", "0.5", "--size", "32", "--device", "cpu"], cli.WRONG, "does not decode"),
]  # fmt: skip


@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize(
    ("arguments", "code", "part"), COMMANDS, ids=lambda value: value[0] if type(value) is list else ""
)
def test_a_hostile_set(
    hostile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gpuload.doctor.checks.decoders", lambda driver: [("cpu", "native")])  # one takes half the time
    found = cli.main([arguments[0], str(hostile), *arguments[1:]])
    said = check(capsys)
    assert (found, part in said) == (code, True), said


def test_a_hostile_set_is_fetched(hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(file_server(hostile.parent / "sound" / "train")) as server:
        for folder, code in ((tmp_path / NAME, cli.DONE), (hostile.parent, cli.WRONG)):
            assert cli.main(["fetch", server.url, str(folder)]) == code
            assert "FORGED" in check(capsys)


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--missing", "skip"], cli.REJECTED), ([], cli.WRONG), (["damaged"], cli.WRONG)],
)
def test_hostile_shards_are_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    """Names of folders, members and classes, captions, a member that is not indexed, and a damaged header."""
    folder, names = tmp_path / NAME, tmp_path / f"classes{NAME}"
    folder.mkdir()
    names.write_text("".join(f"x{HOSTILE.replace(chr(13), '').replace(chr(10), '')}{n}\n" for n in range(3)))
    shard = folder / f"{NAME}.tar"
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(4):
            members = {"jpg": encode(Image.new("RGB", (8, 8))), "cls": b"1", "txt": HOSTILE.encode(), "[red]\x1b": b"x"}
            for ending, content in list(members.items())[: 4 - (number == 2) * 3]:
                member = tarfile.TarInfo(re.sub(r"\s|\.", "", f"{NAME}/{NAME}{number}") + f".{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    if options == ["damaged"]:
        options = []
        shard.write_bytes(shard.read_bytes().rstrip(b"\0") + b"\x1b[31m" * 999)
    command = ["index", str(shard), "--out", str(tmp_path / f"out{NAME}"), "--classes", str(names), *options]
    found, said = cli.main(command), check(capsys)
    assert (found, "FORGED" in said) == (code, True), said


def test_hostile_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / NAME
    for name, content in ((f"{NAME}1.jpg", b"no"), (f"2{NAME}", b""), (f"{NAME}.{NAME}", b"")):
        (photos / f"class {NAME}").mkdir(parents=True, exist_ok=True)
        (photos / f"class {NAME}" / name).write_bytes(content)
    assert cli.main(["pack", str(photos), str(tmp_path / f"out{NAME}"), "--workers", "1"]) == cli.WRONG
    assert "FORGED" in check(capsys)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_hostile_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A shell puts names of files into a command, too."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main([command, "a", "b", f"--{HOSTILE.replace(' ', '')}"])
    assert left.value.code == cli.WRONG
    assert "FORGED" in check(capsys)
    if command in ("warm-up", "index"):
        return
    more = {"pack": ["out"], "fetch": [HOSTILE], "show": [HOSTILE]}.get(command, [])
    for path in (tmp_path / NAME, f"https://{NAME}", f"{NAME}://x/y"):
        assert cli.main([command, str(path), *more]) in (cli.WRONG, cli.FAULTY)
        check(capsys)


class Noisy(cli.load("info")):  # type: ignore[misc]
    def run(self) -> int:
        warnings.warn(HOSTILE, stacklevel=1)
        logging.getLogger("gpuload.x").warning("%s", HOSTILE)
        raise ValueError(HOSTILE) if self.window == 1 else OSError(5, HOSTILE, HOSTILE)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("window", [1, 2])
def test_exceptions_warnings_and_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(cli, "load", lambda name: Noisy)
    assert cli.main(["info", "x", "--window", str(window)]) == (cli.BROKEN if window == 1 else cli.WRONG)
    said = check(capsys)
    assert said.count("\\x1b[31m") >= 3 and "UserWarning: [/b]" in said
    assert ("Traceback (most recent call last):" in said) == (window == 1)
