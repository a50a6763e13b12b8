"""tools/bench.py: the table, the figures in JSON, the picture, and what it says of loaders that cannot run."""

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import bench
import pytest
import torch
from benchmark import child
from benchmark.contenders import CONTENDERS, why_not
from benchmark.course import Course
from benchmark.examine import describe
from benchmark.feature_data import prepare
from benchmark.features import FEATURES, VARIANTS, names_of, open_dataloader, open_gpuload
from benchmark.process import ContenderProcess, check_out
from benchmark.work import Work
from prepared import python as python_of_a_fork

import gpuload


def test_processes_of_their_own(packed: Path, tmp_path: Path) -> None:
    """As it is started. There is no notice of what was left behind, of semaphores or memory."""
    figures = tmp_path / "figures.json"
    options = ["--loaders", "gpuload", "--rounds", "1", "--cold", "1", "--images", "256", "--size", "32"]
    command = [*python_of_a_fork(), bench.__file__, str(packed / "train"), *options, "--batch-size", "16", "--json"]
    done = subprocess.run([*command, str(figures)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(figures.read_text())
    assert record["complete"] and record["loaders"][0]["memory_bytes"] > 10e6
    assert "gpuload" in done.stdout and record["loaders"][0]["cold_images_per_s"] > 0


def test_table_json_and_plot(
    packed: Path, tmp_path: Path, in_threads: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    options = ["--loaders", "torch", "gpuload", "--rounds", "2", "--cold", "1", "--images", "256"]
    options += ["--size", "32", "--batch-size", "16", "--threads", "2", "--json", str(figures), "--plot", str(picture)]
    started = time.time()
    assert bench.main([str(packed / "train"), *options]) == 0
    said = capsys.readouterr().out
    for text in ("DataLoader + Pillow", "gpuload", "images/s", "times torch", "of ceiling", "torch 2."):
        assert text in said
    assert "The ceiling: whole JPEGs decoded by simplejpeg" in said
    record = json.loads(figures.read_text())
    assert record["complete"] and record["ceiling"]["images_per_s"] > 0
    assert [row["name"] for row in record["loaders"]] == ["torch", "gpuload"]
    for row in record["loaders"]:
        assert [turn["images"] for turn in row["rounds"]] == [256, 256]
        assert started < row["rounds"][0]["began"] < row["rounds"][1]["began"] < time.time()
        assert row["images_per_s_min"] <= row["images_per_s"] <= row["images_per_s_max"]
        assert row["share_of_ceiling"] == row["images_per_s"] / record["ceiling"]["images_per_s"]
        assert min(row["cold_images_per_s"], row["resume_s"]) > 0 and row["memory_bytes"] > 10e6
        assert row["delivers"]["images"] == 256 and row["versions"]["torch"] == torch.__version__
    assert [row["resumes"] for row in record["loaders"]] == ["reads again", "state_dict"]
    assert picture.read_bytes().startswith(b"\x89PNG")


class InThread(ContenderProcess):
    """Serves the orders of a contender's process in a thread of this one, which has imported everything."""

    pid = os.getpid()
    started: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name: str, work: Work, python: str) -> None:
        self.started.append((name, python))
        self.name, self._work = name, work
        self._orders: queue.Queue[str] = queue.Queue()
        self._lines: queue.Queue[str] = queue.Queue()
        answers = SimpleNamespace(write=self._lines.put, flush=lambda: None)
        self._thread = threading.Thread(target=child.serve, args=(name, iter(self._orders.get, ""), answers))
        self._thread.start()
        self.versions = self._receive()["versions"]

    def _ask(self, order: str, patience_s: float = 0, **values: Any) -> dict[str, Any]:
        work = {**self._work._asdict(), "folder": str(self._work.folder), "cache": str(self._work.cache)}
        self._orders.put(json.dumps({"order": order, "work": work, **values}))
        return self._receive()

    def _receive(self, patience_s: float = 0) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._lines.get())
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        self._orders.put("")
        self._thread.join()


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is started, and by which Python; here it runs in this process."""
    monkeypatch.setattr("benchmark.course.ContenderProcess", InThread)
    monkeypatch.setattr(InThread, "started", [])
    return InThread.started


def test_against_a_commit(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_threads: list[tuple[str, str]]
) -> None:
    figures, python = tmp_path / "figures.json", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called')
    python.chmod(0o700)
    monkeypatch.setattr(bench, "check_out", lambda commit: str(python))
    options = ["--rounds", "1", "--images", "256", "--batch-size", "16", "--size", "32", "--json", str(figures)]
    assert bench.main([str(packed / "val"), "--against", "HEAD", *options]) == 0
    before, now = json.loads(figures.read_text())["loaders"]
    assert (before["name"], before["ratio"], now["name"]) == ("gpuload-before", 1, "gpuload") and now["ratio"] > 0
    assert (tmp_path / "called").read_text() == "-m gpuload warm-up\n"
    assert in_threads == [("gpuload-before", str(python)), ("gpuload", sys.executable)] * 2


@pytest.mark.skipif(
    not (Path(bench.__file__).parents[1] / ".git").exists(), reason="needs a git clone with its history"
)
def test_a_commit_is_checked_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = check_out("HEAD")
    place = subprocess.run([python, "-c", "import gpuload; print(gpuload.__file__)"], capture_output=True, text=True)
    assert place.stdout.strip() == str(Path(python).parent / "gpuload" / "__init__.py")
    with pytest.raises(SystemExit, match="2"):
        bench.main([str(packed / "val"), "--against", "no-such-commit"])
    assert "--against no-such-commit: fatal: not a valid object name" in capsys.readouterr().err


def test_lock(packed: Path) -> None:
    """In a process of its own: what else runs in one, such as what other tests have left, would be counted, too."""
    command = [*python_of_a_fork(), bench.__file__, str(packed / "train"), "--lock", "--size", "192"]
    done = subprocess.run([*command, "--batch-size", "8", "--images", "128"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.search(r"compiled steps take [\d.]+ ms an image, all else [\d.]+ µs", lines[0])
    assert [line.split(" threads that wait instead: ")[0] for line in lines[1:3]] == ["16", "64"]


def test_steps_that_seem_to_take_less_than_nothing(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside other threads. To wait as long as they take would be 71 minutes an image, by an unsigned number."""
    times = iter([1e-5] * 3 + [2e-5] * 3)
    monkeypatch.setattr("benchmark.lock._rates", lambda work: (next(times), 1.0))
    with pytest.raises(SystemExit, match="or other threads are at work in this process"):
        bench.main([str(packed / "train"), "--lock"])


def test_features(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_threads: list[tuple[str, str]]
) -> None:
    """gpuload with a feature against gpuload without it, in turns; and a DataLoader. Some on sets made for them."""
    figures = tmp_path / "figures.json"
    options = ["--rounds", "2", "--images", "256", "--batch-size", "16", "--size", "32", "--threads", "1"]
    options += ["--json", str(figures), "--cache", str(tmp_path / "cache")]
    assert bench.main([str(packed / "train"), "--with", "captions", *options]) == 0
    said = capsys.readouterr().out
    record = json.loads(figures.read_text())
    assert record["complete"] and record["left_out"] == {}
    names = [(row["feature"], row["loader"]) for row in record["features"]]
    assert names == [("captions", "gpuload"), ("captions", "torch")]
    for row in record["features"]:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] and row["feature"] in said
        assert len(row["rounds"]) == 2 and row["cpu_us"] >= 0
    assert (tmp_path / "cache" / "texts" / "set" / "train" / "manifest.json").exists()


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_loads(packed: Path, prepared: Work, name: str, transforms: ModuleType) -> None:
    """With its counterpart, and with what both are compared with."""
    for without, own in names_of(name):
        for contender in (without, own):
            loader_name, plus, variant = contender.partition("+")
            if not plus:
                continue
            opens = {"gpuload": open_gpuload, "torch": open_dataloader}.get(loader_name)
            with opens(prepared, variant) if opens else CONTENDERS[contender].open(prepared) as loader:
                batch = next(iter(loader))
                assert describe(batch, CONTENDERS[contender], prepared)["dtype"] == "float32"
                del loader


@pytest.fixture(scope="module")
def prepared(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    work = Work(packed / "val", 16, 32, 1, 64, cache=tmp_path_factory.mktemp("cache"))
    for data in {variant.data for variant in VARIANTS.values()} - {""}:
        (work.cache / data).mkdir()
        prepare(work, work.cache / data, data)
    return work


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--loaders ffcv --python ffcv=/nowhere/python", "ffcv: /nowhere/python: No such file or directory"),
        pytest.param(
            "--loaders gpuload-gpu",
            "gpuload-gpu: there is no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU"),
        ),
    ],
)
def test_a_loader_that_cannot_run_is_named(
    packed: Path, capsys: pytest.CaptureFixture[str], options: str, why: str
) -> None:
    assert bench.main([str(packed / "train"), *options.split()]) == 2
    assert f"left out: {why}" in capsys.readouterr().err


MISTAKES = {
    "--rounds 0": "--rounds 0: expected at least 1",
    "--cold -1": "--cold -1: expected 0 or more",
    "--batch-size 5000 --images 80000": "--batch-size 5000: is larger than",
    "--images 640": "--images 640: expected at least 16 batches (1,024 images)",
    "--loaders fast": "invalid choice: 'fast'",
    "--device cuda --loaders torch-gpu dali gpuload": "--device cuda: contradicts --loaders dali gpuload, whose batches",
    "--device cpu --loaders gpuload-gpu": "--device cpu: contradicts --loaders gpuload-gpu, whose",
    "--python fast=python3": "--python fast=python3: expected LOADER=PATH",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_arguments_that_cannot_be(packed: Path, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main([str(packed / "train"), *options.split()])
    assert MISTAKES[options] in capsys.readouterr().err


def test_peers_that_are_installed_deliver_what_gpuload_does(
    packed: Path, capsys: pytest.CaptureFixture[str], in_threads: list[tuple[str, str]]
) -> None:
    names = [name for name in ("opencv", "webdataset", "spdl-opencv", "dali") if why_not(CONTENDERS[name]) is None]
    assert "webdataset" in names  # gpuload itself needs it
    work = Work(packed / "val", 16, 32, 2, 10_000, samples=len(gpuload.Dataset(packed / "val")))
    course = Course(work, {}, bench.count_labels(gpuload.Dataset(packed / "val")))
    course.examine(["gpuload", *names])
    assert list(course.results) == ["gpuload", *names], capsys.readouterr().err
    for name, result in course.results.items():
        assert result.examined is not None and result.examined.whole
        assert result.examined.images > 0.7 * work.samples
        assert result.examined.resumes == ("state_dict" if name in ("gpuload", "dali") else "reads again")
