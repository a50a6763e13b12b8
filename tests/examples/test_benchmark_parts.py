"""Parts of tools/bench.py: the summary, the page cache, contenders that fail, and the look at what one delivers: it finds
what is missing, what came twice, and other pixels."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import bench
import pytest
import torch
from benchmark import page_cache
from benchmark.course import Course, Result
from benchmark.crops import random_window
from benchmark.examine import Examined, describe, examine, faults
from benchmark.process import ContenderError, ContenderProcess, First, Round
from benchmark.report import make_table, summarise
from benchmark.stored import stored_samples
from benchmark.work import Contender, Work

import gpuload


def rounds(*seconds: float) -> list[Round]:
    return [Round(100, s, 2 * s, 10**6) for s in seconds]


def test_ratios_are_taken_round_by_round() -> None:
    first = First(0.1, (8, 3, 4, 4), "float32")
    # The machine is half as fast in the second round; the second loader is twice as fast as the first in each.
    results = {
        "torch": Result({}, first=first, warm=rounds(2, 4, 2)),
        "gpuload": Result({}, first=first, warm=rounds(1, 2, 1), cold=rounds(4, 2, 8), cached_share=0.5),
    }
    rows = summarise(results, {"images_per_s": 200.0})
    assert [row["images_per_s"] for row in rows] == [50, 100]
    assert [(row["ratio_min"], row["ratio"], row["ratio_max"]) for row in rows] == [(1, 1, 1), (2, 2, 2)]
    assert [row["cpu_s_per_1000"] for row in rows] == [40, 20]
    assert [row["share_of_ceiling"] for row in rows] == [0.25, 0.5]
    assert [row["cold_images_per_s"] for row in rows] == [None, 25]
    heads = [str(column.header) for column in make_table(rows, "").columns]
    assert "cold" in heads
    assert "resume" not in heads  # nobody has a figure for it


def test_a_contender_that_fails_says_why(tmp_path: Path) -> None:
    work = Work(tmp_path / "none", 8, 32, 1, 8)
    with (
        ContenderProcess("gpuload", work) as process,
        pytest.raises(ContenderError, match=r"gpuload: .*no such folder"),
    ):
        process.open()


def test_a_process_ends_with_the_benchmark(tmp_path: Path) -> None:
    """Even where that is killed, which leaves it no time to say so."""
    code = """
import subprocess, sys
from pathlib import Path
from benchmark.process import ContenderProcess
from benchmark.work import Contender, Work
from PIL import Image
process = ContenderProcess("webdataset", Work(Path(sys.argv[1]), 8, 32, 1, 8))
# Holds the pipe of its orders open, as if it were busy with a turn and did not look whether they end.
holder = subprocess.Popen(["sleep", "300"], pass_fds=[process._process.stdin.fileno()], stdout=subprocess.DEVNULL)
print(process.pid, holder.pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    folders = os.pathsep.join(sys.path)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": folders}
    ) as benchmark:
        assert benchmark.stdout is not None
        child, holder = map(int, benchmark.stdout.readline().split())
        benchmark.kill()
    while Path(f"/proc/{child}/status").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
        time.sleep(0.05)
    os.kill(holder, signal.SIGKILL)


def test_peers_get_the_stored_bytes_and_labels(packed: Path) -> None:
    dataset = gpuload.Dataset(packed / "val")
    stored = list(stored_samples(packed / "val"))
    assert len(stored) == len(dataset)
    start = 0
    for shard, path in enumerate(dataset.shard_paths):
        rows, data = dataset.rows(shard), path.read_bytes()
        offsets, sizes = rows.column("image_offset").to_pylist(), rows.column("image_bytes").to_pylist()
        expected = [data[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
        part = stored[start : start + len(expected)]
        assert [image for image, _ in part] == expected
        assert [label for _, label in part] == rows.column("label").to_pylist()
        start += len(expected)


def test_a_file_is_put_out_of_the_page_cache_and_read_back(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind} is the page cache itself")
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    page_cache.warm([path])
    assert page_cache.cached_share([path]) == 1
    page_cache.evict([path])
    assert page_cache.cached_share([path]) == 0


def test_windows_are_those_of_random_resized_crop() -> None:
    areas = []
    for _ in range(2000):
        top, left, height, width = random_window(300, 400)
        assert 0 <= top <= 300 - height
        assert 0 <= left <= 400 - width
        assert 0.73 < width / height < 1.36  # 3/4 to 4/3, rounded to pixels
        areas.append(height * width / (300 * 400))
    assert 0.07 < min(areas) < 0.1
    assert max(areas) > 0.9
    assert random_window(10, 1000) == (0, (1000 - 13) // 2, 10, 13)  # none fits: the largest, in the middle


class StandIn:
    """In the place of a contender's process, whose rounds fail as `fails` says, and all that are cold."""

    pid = os.getpid()
    versions: ClassVar[dict[str, str]] = {}
    fails: ClassVar[dict[tuple[str, int], BaseException]] = {}

    def __init__(self, name: str, work: Work, python: str) -> None:
        self.name, self.rounds = name, 0

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None: ...

    def prepare(self) -> None: ...

    def close(self) -> None: ...

    def examine(self) -> dict[str, object]:
        return Examined(8, False, {}, 8, [0.0] * 3, [1.0] * 3, 1)._asdict()

    def open(self) -> First:
        return First(0.1, (8, 3, 4, 4), "float32")

    def round(self) -> Round:
        self.rounds += 1
        if (self.name, self.rounds) in self.fails:
            raise self.fails[self.name, self.rounds]
        return Round(1024, 2.0, 1.0, 10**6)

    def cold(self) -> Round:
        raise ContenderError(f"{self.name}: its epoch has one batch only")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    monkeypatch.setattr(StandIn, "fails", {})
    monkeypatch.setattr("benchmark.course.ContenderProcess", StandIn)
    return StandIn


def test_who_fails_in_a_round_is_left_out_and_the_others_go_on(
    packed: Path, stand_in: type[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.fails["torch", 2] = ContenderError("torch: it broke")
    course = Course(Work(packed / "val", 8, 32, 1, 8), {}, {})
    course.take(["torch", "gpuload"])
    course.run_warm(3, None)
    course.run_cold(2)
    assert course.left_out == {"torch": "it broke"}
    assert {name: len(result.warm) for name, result in course.results.items()} == {"gpuload": 3}
    said = capsys.readouterr().err
    assert "left out: torch: it broke" in said
    assert said.count("no cold figure: gpuload: its epoch has one batch only") == 1


def test_a_run_that_is_interrupted_leaves_its_rounds(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: type[StandIn]
) -> None:
    stand_in.fails["torch", 2] = KeyboardInterrupt()
    figures = tmp_path / "figures.json"
    monkeypatch.setattr("bench.Ceiling.measure", lambda self: self._rates.append(1.0))
    options = ["--rounds", "3", "--images", "1024", "--loaders", "gpuload", "torch", "--json", str(figures)]
    with pytest.raises(KeyboardInterrupt):
        bench.main([str(packed / "train"), *options])
    record = json.loads(figures.read_text())
    assert not record["complete"]
    found = [(row["name"], len(row["rounds"]), row["images_per_s"]) for row in record["loaders"]]
    assert found == [("gpuload", 1, 512), ("torch", 1, 512)]


TRUTH = {"0": 128, "1": 128}
WORK = Work(folder=None, batch_size=32, size=16, threads=2, images=1024, samples=256)  # type: ignore[arg-type]
ANY = Contender("any", "any", open=None)  # type: ignore[arg-type]


class Loader:
    """256 images whose red is brighter than their blue; labels 0 and 1 in turn."""

    def __init__(self, batches: int = 8, channels: tuple[int, ...] = (0, 1, 2), labels: int = 2) -> None:
        self.batches, self.channels, self.labels = batches, list(channels), labels
        self.given = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        random = torch.Generator().manual_seed(0)
        for number in range(1, self.batches + 1):
            self.given = number
            images = torch.randn(32, 3, 16, 16, generator=random) + torch.tensor([0.5, 0.0, -0.5]).view(3, 1, 1)
            yield images[:, self.channels], torch.arange(32) % self.labels


class Resumable(Loader):
    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}


def found(loader: Loader) -> Examined:
    return examine(loader, ANY, WORK)[0]


def test_a_whole_epoch_is_counted_and_weighed() -> None:
    result = found(Loader())
    assert (result.images, result.whole, result.labels) == (256, True, TRUTH)
    assert result.mean == pytest.approx([0.5, 0.0, -0.5], abs=0.02)
    assert result.std == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
    assert faults(result, TRUTH, result, WORK) is None
    assert faults(found(Loader(batches=6)), TRUTH, None, WORK) is None  # a last batch of each worker may be missing
    assert examine(Loader(), ANY, WORK)[1] is None
    result, state = examine(Resumable(), ANY, WORK)
    assert (result.middle, state) == (4, {"given": 4})


@pytest.mark.parametrize(
    ("loader", "fault"),
    [
        (Loader(batches=5), "its epoch has 160 of 256 images"),
        (Loader(batches=9), "label 0 occurs 144 times in an epoch, but 128 times in the set"),
        (Loader(labels=3), "but 0 times in the set"),
        (Loader(channels=(2, 1, 0)), r"its images differ from the first loader's: mean -0\.\d+, .* in red, green"),
    ],
)
def test_what_is_wrong_is_said(loader: Loader, fault: str) -> None:
    assert re.search(fault, str(faults(found(loader), TRUTH, found(Loader()), WORK)))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(32, 3, 16, 8), torch.zeros(32), r"its batches are \(32, 3, 16, 8\), torch.float32 on cpu"),
        (torch.zeros(32, 3, 16, 16, dtype=torch.uint8), torch.zeros(32), "torch.uint8 on cpu; expected"),
        (torch.full((32, 3, 16, 16), torch.nan), torch.zeros(32), "a pixel is not finite"),
        (torch.zeros(32, 3, 16, 16), torch.zeros(31), "a label is missing"),
    ],
)
def test_batches_of_another_form_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe((images, labels), ANY, WORK)
