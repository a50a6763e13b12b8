"""The one warning that training waits: when it comes, what it says, and when it must not come."""

import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from loaders import load

from gpuload import monitor
from gpuload.monitor import Meter, Setup

SETUP = Setup(Path("shards/train"), "cpu", 2, 8, 64)


class Run:
    """A meter with a clock of its own."""

    sources, image_bytes, read_s, work_s, read_wait_s, queue_depth = (0,) * 64, 8, 0.0, 0.0, 0.0, 0.0
    download_s = function_s = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(monitor, "perf_counter", lambda: self.now)
        self.meter = Meter(lambda: 0.0, SETUP)

    def steps(self, count: int, waits: float, trains: float) -> list[str]:
        """What is said in some steps, by their times."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(count):
                asked = self.meter.ask()
                self.now += waits
                self.meter.hand_over(self, self, asked, self.now, (0, 0))
                self.now += trains
        return [str(one.message) for one in said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_it_comes_once_and_says_what_to_do(run: Run) -> None:
    """Not in the first minute nor in the first 200 steps."""
    assert run.steps(199, 0.1, 0.3) == []
    (said,) = run.steps(5000, 0.1, 0.3)
    assert said == (
        "DaliIterator('shards/train'): training waited for 25% of its time in the last 100 steps; the bottleneck is "
        "decode. Decoding has num_threads=2 of the 8 cores that this process may use. `python -m gpuload tune shards/train "
        "--device cpu` finds the best num_threads, prefetch and decoder. Or pack smaller images (`python -m gpuload pack "
        "--encode jpeg --size 256`). See loader.metrics()"
    )


@pytest.mark.parametrize(
    ("steps", "waits", "trains", "count"),
    [
        (199, 1.0, 1.0, 0),
        (201, 1.0, 1.0, 1),
        (3000, 0.0099, 0.0901, 0),  # ten percent
        (3000, 0.0102, 0.0898, 1),
        (100_000, 0.002, 0.00001, 0),  # a loop that does nothing does not train
    ],
)
def test_when_it_comes(run: Run, steps: int, waits: float, trains: float, count: int) -> None:
    assert len(run.steps(steps, waits, trains)) == count


def test_a_run_that_becomes_slow_is_told(run: Run) -> None:
    assert run.steps(5000, 0.01, 0.3) == []
    assert len(run.steps(300, 0.05, 0.3)) == 1


def test_it_names_the_line_of_the_loop(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_STEPS", 4)
    monkeypatch.setattr(monitor, "_SECONDS", 0.0)
    options: Any = {"batch_transforms": [lambda batch: time.sleep(0.01)]}
    message = "training waited for .* in the last 4 steps"
    with load(packed, **options) as loader, pytest.warns(UserWarning, match=message) as said:  # noqa: PT031
        for _ in loader:
            time.sleep(0.001)
    assert [Path(one.filename).name for one in said] == [Path(__file__).name]
