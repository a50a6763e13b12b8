"""What a run of the packer says of itself: its report, its summary and its progress."""

import errno
import io
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from images import Folder, encode, photo, write_files
from stand_ins import SlowlySentSource

import gpuload
from gpuload import cli
from gpuload.counted import progress_bar
from gpuload.sources import Source


def samples(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"image": encode(photo(first + number)), "label": "ab"[number % 2]} for number in range(count)]


def test_a_report_says_in_a_line_what_was_packed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = gpuload.pack([*samples(4), {"image": b"", "label": "a"}], out, workers=1, dedup=True)
    assert repr(report) == f"PackReport('{out}': 4 images, 4 packed now; 1 rejected, 0 left out)"


def test_the_rate_is_that_of_the_images_packed_now(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder({f"a/{n}.jpg": encode(photo(n)) for n in range(5)} | {"a/it's 5.jpg": encode(photo(4))})
    for more, parts in (
        (["--dedup"], [
            "\n5 images in ", "note: 1 image has the same bytes as earlier ones; skipped\n",
            "\ndropped, as requested: 1 × has the same bytes as another\n",
        ]),
        (["--append"], ["images   11\n", "\n6 images in "]),
        (["--resume"], ["note: the set was complete already\n"]),
    ):  # fmt: skip
        assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1", *more]) == cli.DONE
        said = capsys.readouterr().out
        assert all(part in said for part in parts)
    assert "images/s" not in said


def test_the_rate_leaves_set_up_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """An hour of listing is none of packing."""
    report = gpuload.pack(samples(40), tmp_path / "out", workers=2, maxcount=10, progress=False)
    assert 0 < report.packing_s < report.elapsed_s
    shown = replace(report, elapsed_s=3600.0, packing_s=2.0)
    monkeypatch.setattr("gpuload.commands.pack.packer.pack", lambda *_, **__: shown)
    write_files(tmp_path / "in", {"a/1.jpg": encode(photo())})
    assert cli.main(["pack", str(tmp_path / "in"), str(tmp_path / "other")]) == cli.DONE
    assert "\n40 images in 3600.0 s; 20 images/s, without set-up\n" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def shown(stderr: io.StringIO, **options: Any) -> str:
        monkeypatch.setattr(sys, "stderr", stderr)
        gpuload.pack(samples(3), tmp_path / str(len(list(tmp_path.iterdir()))), workers=1, **options)
        return stderr.getvalue()

    assert "packing" in shown(Terminal())
    assert shown(Terminal(), progress=False) == shown(io.StringIO()) == ""
    with pytest.raises(gpuload.ArgumentError, match=r"pack\(progress='no'\): expected True or False"):
        shown(io.StringIO(), progress="no")


def test_the_rate_of_a_bar_leaves_out_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is never negative, where what was done is done again, as after the end of a worker."""
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("gpuload.counted.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setenv("COLUMNS", "120")
    for images, rate in ((1010, " 20 images/s  4 MB/s"), (990, " 0 images/s ")):
        with progress_bar("packing", "images") as bar:
            now[0] += 7  # listing the samples, starting the workers
            bar(1000, 2000, 10**9)
            now[0] += 0.5
            bar(images, 2000, 10**9 + (images - 1000) * 200_000)
        assert rate in terminal.getvalue() and not re.search(r"\d{3} (images|MB)/s", terminal.getvalue())
    assert not re.search(r"-\d[\d,]* (images|MB)/s", terminal.getvalue())


def test_the_summary_lists_fields_and_numbers_of_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"image": encode(photo(n)), "label": 7 * n, "caption": "x"} for n in range(4)]
    report = gpuload.pack(rows, tmp_path / "out", workers=1)
    assert "label: 18 of 22 classes have no sample, as 1, 2, 3" in report.notes
    report = gpuload.pack([{**rows[0], "label": n} for n in range(3)], tmp_path / "all", workers=1)
    assert not any("no sample" in note for note in report.notes)
    write_files(tmp_path / "in", {"a/1.jpg": encode(photo()), "b/1.jpg": b"damaged"})
    assert cli.main(["pack", str(tmp_path / "in"), str(tmp_path / "named")]) == cli.REJECTED
    said = capsys.readouterr().out
    assert "fields: image (.jpg), label (.cls)\n" in said
    assert "note: label: 1 of 2 classes have no sample, as 'b'\n" in said


def test_progress_never_goes_backwards(make_folder: Folder, tmp_path: Path) -> None:
    """In a run that continues one that was stopped within a shard, whose worker has noted where it was."""
    files = {f"a/{n}.jpg": encode(photo(n)) for n in range(30)}
    source, out, seen = SlowlySentSource(make_folder(files)), tmp_path / "out", list[tuple[int, int]]()

    def stop(progress: Any) -> None:
        if progress.images >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(source, out, workers=1, maxcount=10, watch=stop)
    (out / ".packing" / "train-000001.position").write_bytes(struct.pack("<qq", 9, 1 << 20))
    gpuload.pack(source, out, workers=1, maxcount=10, resume=True, watch=lambda p: seen.append((p.images, p.bytes)))
    assert seen == sorted(seen)
    assert max(seen) == (30, sum(map(len, files.values())))


def test_a_source_that_cannot_be_read_is_not_an_output_that_is_full(tmp_path: Path) -> None:
    with pytest.raises(
        gpuload.SourceError, match=r"/x/loop: cannot be read \(Too many levels of symbolic links\). Check"
    ):
        gpuload.pack(LoopingSource("x"), tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


class LoopingSource(Source):
    """Raises what a folder with a loop of links does."""

    def rows(self, findings: object) -> Any:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/x/loop")


@pytest.mark.parametrize("module", ["gpuload.cli", "gpuload.commands.pack"])
def test_ctrl_c_during_imports_prints_one_line(tmp_path: Path, module: str) -> None:
    code = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['gpuload', 'pack', 'x', 'y']\n"
        "runpy.run_module('gpuload', run_name='__main__')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (cli.STOPPED, "gpuload: stopped; no half-written files are left\n")


def test_no_room_for_temporary_files_is_said_in_one_line(tmp_path: Path) -> None:
    """For the socket of the process from which workers are forked, and what `verify` notes."""
    gpuload.pack(samples(3), tmp_path / "out", workers=1)
    for command in (["pack", str(tmp_path), str(tmp_path / "2")], ["verify", str(tmp_path / "out")]):
        code = (
            "import os, sys, tempfile\n"
            "from gpuload.cli import main\n"
            "def full(*args, **kwargs): raise OSError(28, os.strerror(28))\n"
            f"tempfile.mkdtemp = {'full' if command[0] == 'verify' else 'tempfile.mkdtemp'}\n"
            f"from multiprocessing import forkserver\n"
            f"if {command[0] == 'pack'}: forkserver.ensure_running = full\n"
            f"sys.exit(main({command!r}))\n"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert run.returncode == cli.WRONG
        assert run.stderr.count("\n") == 1 and "No space left on device" in run.stderr and "set TMPDIR" in run.stderr


@pytest.mark.parametrize("state", ["{", "[]", '{"fields": [], "classes": null, "rejected": [], "splits": [{}]}'])
def test_the_state_of_another_version_is_refused(tmp_path: Path, state: str) -> None:
    (tmp_path / "out" / ".packing").mkdir(parents=True)
    path = tmp_path / "out" / ".packing" / "state.json"
    path.write_text(state)
    with pytest.raises(gpuload.OutputError, match="state.json: is of another version of gpuload, or damaged"):
        gpuload.pack(samples(6), tmp_path / "out", workers=1, resume=True)
    assert path.read_text() == state
