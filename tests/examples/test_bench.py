"""tools/bench.py: the table, the figures in JSON, the picture, and what it says of loaders that cannot run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import bench
import pytest
import torch
from benchmark.contenders import CONTENDERS, why_not
from benchmark.course import Course
from benchmark.features import FEATURES, names_of, open_dataloader, open_gpuload, ratios
from benchmark.process import First, Round
from benchmark.work import Work

import gpuload

TOOL = str(Path(bench.__file__))


def run_bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, str(folder), *options], capture_output=True, text=True)


def test_table_json_and_plot(packed: Path, tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    options = ["--loaders", "torch", "gpuload", "--rounds", "2", "--cold", "1", "--images", "512"]
    options += ["--size", "32", "--batch-size", "32", "--threads", "2", "--json", str(figures), "--plot", str(picture)]
    started = time.time()
    done = run_bench(packed / "train", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no notice of what was left behind, of semaphores or memory
    for text in ("DataLoader + Pillow", "gpuload", "images/s", "times torch", "of ceiling", "torch 2."):
        assert text in done.stdout
    assert "The ceiling: whole JPEGs decoded by simplejpeg" in done.stdout
    record = json.loads(figures.read_text())
    assert record["complete"]
    assert record["ceiling"]["images_per_s"] > 0
    assert [row["name"] for row in record["loaders"]] == ["torch", "gpuload"]
    for row in record["loaders"]:
        assert [turn["images"] for turn in row["rounds"]] == [512, 512]
        assert started < row["rounds"][0]["began"] < row["rounds"][1]["began"] < time.time()
        assert row["images_per_s_min"] <= row["images_per_s"] <= row["images_per_s_max"]
        assert row["share_of_ceiling"] == row["images_per_s"] / record["ceiling"]["images_per_s"]
        assert row["cold_images_per_s"] > 0
        assert row["memory_bytes"] > 10e6
        assert row["resume_s"] > 0
        assert row["delivers"]["images"] == 512
        assert row["versions"]["torch"] == torch.__version__
    assert [row["resumes"] for row in record["loaders"]] == ["reads again", "state_dict"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_reading_alone(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(packed / "train"), "--read-only", "--rounds", "1", "--images", "1024"]) == 0
    said = capsys.readouterr().out
    assert "fn.readers.webdataset" in said
    assert "gpuload's reader " in said
    assert "gpuload's reader, into DALI" in said


def test_profile(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--profile", "--size", "32", "--batch-size", "32", "--images", "2048"]
    assert bench.main([str(packed / "train"), *options]) == 0
    said = capsys.readouterr().out
    assert "gpuload, a batch every" in said
    assert "ms an image" in said


def test_features(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpuload with a feature against gpuload without it, in turns; and a DataLoader."""
    figures = tmp_path / "figures.json"
    options = ["--with", "function", "--rounds", "2", "--images", "512", "--batch-size", "32", "--size", "32"]
    assert bench.main([str(packed / "train"), *options, "--threads", "1", "--json", str(figures)]) == 0
    said = capsys.readouterr().out
    record = json.loads(figures.read_text())
    assert [(row["feature"], row["loader"]) for row in record["features"]] == [
        ("function", "gpuload"),
        ("function", "torch"),
    ]
    for row in record["features"]:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] and row["loader"] in said
    assert [row["name"] for row in record["loaders"]] == ["gpuload", "gpuload+function", "torch", "torch+function"]


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_loads(packed: Path, name: str) -> None:
    work = Work(packed / "train", 16, 32, 1, 64)
    for opens, there in ((open_gpuload, True), (open_dataloader, FEATURES[name].dataloader is not None)):
        if there:
            with opens(work, name) as loader:
                images, labels = next(iter(loader))
                assert images.shape == (16, 3, 32, 32) and len(labels) == 16
                del loader


def test_ratios_are_taken_round_by_round() -> None:
    rates = {"gpuload": [100.0, 50.0, 80.0], "gpuload+balance": [90.0, 49.0, 40.0], "torch": [10.0, 10.0, 10.0]}
    (row,) = ratios(["balance"], rates)
    assert (row["loader"], row["ratio"], row["ratio_min"], row["ratio_max"]) == ("gpuload", 0.9, 0.5, 0.98)
    assert names_of(["balance", "function-processes"])[:4] == [
        "gpuload",
        "gpuload+balance",
        "gpuload+function-processes",
        "torch",
    ]


def test_with_and_other_modes(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([str(packed / "train"), "--with", "balance", "--read-only"])
    assert "--with: compares gpuload and a DataLoader on the CPU; leave --loaders" in capsys.readouterr().err


class Interrupted:
    """Stands in for a contender's process; Ctrl-C comes in the second round of the second."""

    rounds = 0

    def __init__(self, name: str, work: Work, python: str) -> None:
        pass

    def open(self) -> First:
        return First(0.1)

    def round(self) -> Round:
        Interrupted.rounds += 1
        if Interrupted.rounds == 4:
            raise KeyboardInterrupt
        return Round(1024, 2.0, 1.0, 10**6)

    def close(self) -> None:
        pass


def test_a_run_that_is_interrupted_leaves_its_rounds(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.course.ContenderProcess", Interrupted)
    figures = tmp_path / "figures.json"
    options = ["--read-only", "--rounds", "3", "--images", "1024", "--loaders", "read-gpuload", "read-dali"]
    with pytest.raises(KeyboardInterrupt):
        bench.main([str(packed / "train"), *options, "--json", str(figures)])
    record = json.loads(figures.read_text())
    assert not record["complete"]
    assert [(row["name"], len(row["rounds"]), row["images_per_s"]) for row in record["loaders"]] == [
        ("read-gpuload", 1, 512),
        ("read-dali", 1, 512),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_loader_that_cannot_run_is_named(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(packed / "train"), "--loaders", "gpuload-gpu"]) == 2
    assert "left out: gpuload-gpu: there is no GPU" in capsys.readouterr().err


def test_a_python_that_lacks_the_package_is_named(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--loaders", "ffcv", "--ffcv-python", "/nowhere/python"]
    assert bench.main([str(packed / "train"), *options]) == 2
    assert "left out: ffcv: /nowhere/python: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--cold", "-1"], "--cold -1: expected 0 or more"),
        (["--batch-size", "5000", "--images", "80000"], "--batch-size 5000: is larger than"),
        (["--images", "640"], r"--images 640: expected at least 16 batches (1,024 images)"),
        (["--loaders", "fast"], "invalid choice: 'fast'"),
        (
            ["--device", "cuda", "--loaders", "torch-gpu", "dali", "gpuload"],
            "--device cuda: contradicts --loaders dali gpuload, whose batches are in host memory",
        ),
        (["--device", "cpu", "--loaders", "gpuload-gpu"], "--device cpu: contradicts --loaders gpuload-gpu, whose"),
        (["--python", "fast=python3"], "--python fast=python3: expected LOADER=PATH"),
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


def test_peers_that_are_installed_deliver_what_gpuload_does(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in ("opencv", "webdataset", "spdl-opencv", "dali") if why_not(CONTENDERS[name]) is None]
    assert "webdataset" in names  # gpuload itself needs it
    work = Work(packed / "val", 16, 32, 2, 10_000, samples=len(gpuload.Dataset(packed / "val")))
    course = Course(work, {}, bench.count_labels(gpuload.Dataset(packed / "val")))
    course.examine(["gpuload", *names])
    assert list(course.results) == ["gpuload", *names], capsys.readouterr().err
    for name, result in course.results.items():
        assert result.examined is not None
        assert result.examined.whole
        assert result.examined.images > 0.7 * work.samples
        assert result.examined.resumes == ("state_dict" if name in ("gpuload", "dali") else "reads again")
