"""What a run of the packer says of itself: its report, its summary and its progress."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from images import Folder, encode, photo

import gpuload
from gpuload import cli
from gpuload.packing.progress import progress_bar


def samples(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"image": encode(photo(first + number)), "label": "ab"[number % 2]} for number in range(count)]


def test_a_report_says_in_a_line_what_was_packed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = gpuload.pack([*samples(4), {"image": b"", "label": "a"}], out, workers=1, min_size=1)
    assert repr(report).startswith(
        f"PackReport('{out}': train 4 samples in 1 shard; 1 rejected, 0 left out; 4 packed in "
    )
    more = gpuload.pack(samples(3, 9), out, workers=1, append=True)
    assert (more.packed, more.images) == (3, 7)
    assert "train 7 samples in 2 shards; 0 rejected, 0 left out; 3 packed in " in repr(more)
    assert gpuload.pack(samples(3, 9), out, workers=1, resume=True).packed == 0


def test_the_rate_is_that_of_the_images_packed_now(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder({f"a/{n}.jpg": encode(photo(n)) for n in range(5)} | {"a/it's 5.jpg": encode(photo(4))})
    command = ["pack", str(root), str(tmp_path / "out"), "--workers", "1"]
    assert cli.main([*command, "--dedup", "drop"]) == cli.DONE
    said = capsys.readouterr().out
    assert "\n5 images in " in said
    assert "note: 1 image has the same bytes as earlier ones; skipped\n" in said
    assert "\nleft out, as asked: 1 × has the same bytes as another\n" in said
    assert cli.main([*command, "--append"]) == cli.DONE
    said = capsys.readouterr().out
    assert "images   11\n" in said and "\n6 images in " in said
    assert cli.main([*command, "--resume"]) == cli.DONE
    said = capsys.readouterr().out
    assert "note: the set was complete already\n" in said and "images/s" not in said


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
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("gpuload.packing.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("packing", "images") as bar:
        bar(1000, 2000, 0)
        now[0] = 2.0
        bar(1010, 2000, 0)
    assert "5 images/s" in terminal.getvalue() and "505" not in terminal.getvalue()


def test_info_cuts_no_path_where_nobody_looks_at_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / ("long" * 30)
    gpuload.pack(samples(3), out, workers=1)
    assert cli.main(["info", str(out / "train")]) == cli.DONE
    assert f"{out / 'train'} " in capsys.readouterr().out
