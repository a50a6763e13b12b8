"""tools/bench.py: the table, the figures in JSON, and what it says of loaders that cannot run."""

import json
import subprocess
import sys
from pathlib import Path

import bench
import pytest
import torch
from benchmark.process import ContenderError, ContenderProcess, Round
from benchmark.process import First as FirstBatch
from benchmark.report import summarise
from benchmark.work import Work

TOOL = str(Path(bench.__file__))


def test_table_and_json(packed: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--rounds", "2", "--images", "512", "--size", "32", "--batch-size", "32", "--json", str(figures)]
    done = subprocess.run([sys.executable, TOOL, str(packed / "train"), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in ("DataLoader + Pillow", "DALI by hand", "gpuload", "images/s", "times torch", "cores", "torch 2."):
        assert text in done.stdout
    loaders = json.loads(figures.read_text())["loaders"]
    assert [row["name"] for row in loaders][:3] == ["torch", "dali", "gpuload"]
    for row in loaders:
        assert [turn["images"] for turn in row["rounds"]] == [512, 512]
        assert row["images_per_s_min"] <= row["images_per_s"] <= row["images_per_s_max"]
        assert row["memory_bytes"] > 10e6


def test_reading_alone(packed: Path) -> None:
    options = ["--read-only", "--rounds", "1", "--images", "1024"]
    done = subprocess.run([sys.executable, TOOL, str(packed / "train"), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fn.readers.webdataset" in done.stdout
    assert "gpuload's reader " in done.stdout
    assert "gpuload's reader, into DALI" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_loader_that_cannot_run_is_named(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(packed / "train"), "--loaders", "gpuload-gpu"]) == 2
    assert "left out: gpuload-gpu: there is no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--batch-size", "5000"], "--batch-size 5000: is larger than"),
        (["--images", "640"], r"--images 640: expected at least 16 batches (1,024 images)"),
        (["--loaders", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_arguments_that_cannot_be(
    packed: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main([str(packed / "train"), *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_contender_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match=r"gpuload: FormatError: .*none: no such folder"):
        ContenderProcess("gpuload", Work(tmp_path / "none", 8, 32, 1, 8))


def test_ratios_are_taken_round_by_round() -> None:
    first = FirstBatch(0.1, (8, 3, 4, 4), "float32", 0.0, 1.0)

    def rounds(*seconds: float) -> list[Round]:
        return [Round(100, s, 2 * s, 10**6) for s in seconds]

    # The machine is half as fast in the second round; the second loader is twice as fast as the first in each.
    rows = summarise({"torch": first, "gpuload": first}, {"torch": rounds(2, 4, 2), "gpuload": rounds(1, 2, 1)})
    assert [row["images_per_s"] for row in rows] == [50, 100]
    assert [(row["ratio_min"], row["ratio"], row["ratio_max"]) for row in rows] == [(1, 1, 1), (2, 2, 2)]
    assert [row["cpu_s_per_1000"] for row in rows] == [40, 20]
