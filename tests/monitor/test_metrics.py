"""What `loader.metrics` says, of runs whose slow stage is known; and the one warning that training waits: when it comes,
what it says, and when it must not come."""

import math
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loaders import load

import gpuload
from gpuload import monitor
from gpuload.decode.native.images import ImageDecoder
from gpuload.monitor import Meter, Metrics, Setup, Sums, advice, metrics_of
from gpuload.order.stream import Stream


def test_an_epoch(packed: Path, decoder: str) -> None:
    with load(packed, decoder=decoder, drop_last=False) as loader:
        found = loader.metrics()
        assert math.isnan(found.queue_depth) and found.binds == "none"
        assert set(found._replace(queue_depth=0.0, binds="none")) == {0, "none"}
        begun = time.perf_counter()
        batches = [(index.tolist(), loader.metrics(1)) for index, _, _ in loader]
        elapsed = time.perf_counter() - begun
        whole, last, one = loader.metrics(), loader.metrics(5), loader.metrics(1)
    assert (whole.steps, whole.images, whole.epoch, whole.position) == (13, 97, 0, 97)
    dataset, each = gpuload.Dataset(packed), [found for _, found in batches]
    assert len({found.wait_s for found in each}) == 13 and each[-1].wait_s == one.wait_s
    assert all(min(found.read_s, found.wait_s) > 0 and found.steps == 1 for found in each)
    sizes = [size for shard in range(10) for size in dataset.rows(shard).column("image_bytes").to_pylist()]
    stored = sum(sizes)
    assert whole.bytes == stored
    assert last.bytes == sum(sizes[sample] for samples, _ in batches[-5:] for sample in samples)
    assert whole.wait_s == pytest.approx(sum(found.wait_s for found in each))
    assert whole.read_s == pytest.approx(sum(found.read_s for found in each))
    assert 0 < whole.wait_s < whole.seconds <= elapsed
    assert whole.wait_s == pytest.approx(whole.wait_read_s + whole.wait_decode_s + whole.hand_over_s)
    assert min(whole.wait_read_s, whole.wait_decode_s, whole.hand_over_s) > 0
    assert whole.images_per_s == pytest.approx(97 / whole.seconds)
    assert whole.bytes_per_s == pytest.approx(stored / whole.seconds)
    assert whole.wait_share == pytest.approx(whole.wait_s / whole.seconds)
    assert (last.steps, last.images) == (5, 4 * 8 + 1) and one.images == 1
    assert last.wait_s == pytest.approx(sum(found.wait_s for found in each[-5:]))
    assert repr(loader.metrics(13)) == repr(loader.metrics(1000)) == repr(whole)  # NaN differs from itself
    if decoder == "native":
        assert whole.decode_s > 0 and 0 <= whole.queue_depth <= 2
    else:
        assert math.isnan(whole.decode_s) and math.isnan(whole.queue_depth)


def test_time_between_loops_and_after_leaving_one_does_not_count(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(packed) as loader:
        for _ in loader:
            break
        for _ in loader:
            pass
        before, clock = loader.metrics(), time.perf_counter
        monkeypatch.setattr(monitor, "perf_counter", lambda: clock() + 10_000)
        for _ in loader:
            break
        found = loader.metrics()
        assert (found.steps, found.epoch, found.position) == (before.steps + 1, 2, 8)
        trained_s = found.seconds - found.wait_s - (before.seconds - before.wait_s)
        assert 0 <= trained_s < 5000  # of the last step before, which did nothing


@pytest.fixture
def slow_s(packed: Path, decoder: str) -> float:
    """Ten times what a batch takes just now, and a machine's hiccups."""
    with load(packed, decoder=decoder) as loader:
        seconds = [loader.metrics(12).seconds for _ in range(3) for _ in [list(loader)]]  # the first epoch compiles
    return max(0.05, 10 * max(seconds[1:]) / 12)


def run(loader: gpuload.DaliIterator) -> Metrics:
    with loader:
        for _ in loader:
            pass
        return loader.metrics()


def test_training_binds(packed: Path, decoder: str, slow_s: float) -> None:
    with load(packed, decoder=decoder) as loader:
        asked = time.perf_counter()
        for _ in loader:
            # Ten times what the batch took, so that training is what is slow also where the machine stalls.
            time.sleep(max(slow_s, 10 * (time.perf_counter() - asked)))
            asked = time.perf_counter()
        found = loader.metrics(11)  # without the first batch, for which any loop waits
    assert found.binds == "training" and found.wait_share < 0.1
    if decoder == "native":
        assert found.queue_depth > 1


@pytest.mark.parametrize("decoder", ["native"])
def test_hand_over_binds(packed: Path, decoder: str, slow_s: float) -> None:
    begun, calls = time.perf_counter(), iter(range(12))

    def slow(batch: Any) -> None:
        elapsed = time.perf_counter() - begun
        time.sleep(2 * elapsed if next(calls) == 11 else slow_s)  # the last one longer than all that was before

    found = run(load(packed, decoder=decoder, batch_transforms=[slow]))
    assert found.hand_over_s > 12 * slow_s and found.binds == "hand_over"


@pytest.mark.parametrize("decoder", ["native"])
@pytest.mark.parametrize(("owner", "name", "stage"), [(Stream, "slices", "read"), (ImageDecoder, "own", "decode")])
def test_reading_and_decoding_bind(
    packed: Path, slow_s: float, owner: Any, name: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    monkeypatch.setattr(owner, name, lambda *given: time.sleep(slow_s) or real(*given))  # type: ignore[func-returns-value]
    found = run(load(packed, decoder="native", num_threads=2))
    assert found.binds == stage and found.queue_depth < 1
    assert getattr(found, f"{stage}_s") > 12 * slow_s and getattr(found, f"wait_{stage}_s") > 6 * slow_s


def test_the_disk_binds(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the thread that reads ahead is always busy."""
    monkeypatch.setattr(gpuload.read.batches.BatchReader, "disk_s", lambda reader: time.perf_counter())
    assert run(load(packed)).binds == "disk"


def test_another_thread_may_ask(packed: Path) -> None:
    """Each answer is of one moment, also while the records of its window are replaced."""
    meter = Meter(lambda: 0.0, Setup(packed, "cpu", 1, 1, 1))
    done, wrong = threading.Event(), []

    def ask() -> None:
        while not done.is_set():
            for window in (1, 7, 1000):
                found = meter.metrics(window)
                if found.images != 3 * found.steps or not 0 <= found.steps <= window or found.wait_s < 0:
                    wrong.append(found)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(20_000):
        meter.hand_over(FakeBatch, FakeBatch, meter.ask(), time.perf_counter(), (0, 0))
    done.set()
    asking.join()
    assert wrong == []
    assert meter.metrics(1000).steps == 1000 and meter.metrics().steps == 20_000


SECONDS = st.floats(0, 1e6)


def binding(training: float, for_read: float, for_decode: float, hand_over: float, disk: float, **more: float) -> str:
    waits = {"wait_read_s": for_read, "wait_decode_s": for_decode, "hand_over_s": hand_over}
    return metrics_of(Sums({"training_s": training, "disk_s": disk, **waits, **more})).binds


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0, 2))
def test_the_binding_stage(training: float, for_read: float, for_decode: float, hand_over: float, disk: float) -> None:
    waited = for_read + for_decode + hand_over
    seconds = training + waited
    stage = binding(training, for_read, for_decode, hand_over, disk * seconds)
    if seconds == 0:
        assert stage == "none"
    elif waited / seconds < 0.0999:
        assert stage == "training"
    elif waited / seconds > 0.1001:
        waits = {"read": for_read, "decode": for_decode, "hand_over": hand_over}
        if stage == "disk":
            assert disk > 0.7999 and hand_over <= max(for_read, for_decode)
        else:
            assert waits[stage] == max(waits.values())
            assert disk < 0.8001 or stage == "hand_over"


@pytest.mark.parametrize(
    ("decode_s", "function_s", "stage"),
    [(2.0, 1.9, "decode"), (2.0, 2.1, "function"), (math.nan, 0.4, "decode"), (math.nan, 0.6, "function")],
)
def test_a_function_limits_where_it_takes_longer_than_decoding(decode_s: float, function_s: float, stage: str) -> None:
    assert binding(0.3, 0.1, 0.5, 0.1, 0.0, decode_s=decode_s, function_s=function_s) == stage
    assert binding(0.0, 0.6, 0.3, 0.1, 0.0, decode_s=decode_s, function_s=function_s) == "read"


@pytest.mark.parametrize(
    ("for_read", "for_decode", "hand_over", "download", "stage"),
    [
        (3, 1, 0, 1.6, "download"),
        (3, 1, 0, 1.4, "disk"),
        (3, 3, 0, 3, "disk"),
        (3, 1, 4, 3, "hand_over"),
        (0.5, 0, 0, 0.5, "training"),
    ],
)
def test_downloading_binds(for_read: float, for_decode: float, hand_over: float, download: float, stage: str) -> None:
    """Also where the disk is busy, which what is downloaded is written to."""
    training = 8 - for_read - for_decode - hand_over
    assert binding(training, for_read, for_decode, hand_over, 8.0, download_s=download) == stage


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("function", r"Function\(f, processes=8\)"),
        ("decode", "num_threads=2 of the 8 cores .*gpuload tune s --device cuda:0"),
        ("read", "Raise batch_size=64"),
        ("download", r"use Shuffle\(lanes=\.\.\.\), so that each downloads its share"),
        ("disk", "local NVMe"),
        ("hand_over", "batch_transforms"),
        ("training", "Nothing needs to be changed"),
    ],
)
def test_advice(stage: Any, words: str) -> None:
    assert re.search(words, advice(stage, Setup(Path("s"), "cuda:0", 2, 8, 64)))


class FakeBatch:
    """As much of a batch, decoded, as is counted."""

    sources, image_bytes, read_s, work_s, read_wait_s, queue_depth = (0, 0, 0), 8, 0.25, 0.5, 0.0, 2.0
    function_s = download_s = 0.0


SETUP = Setup(Path("shards/train"), "cpu", 2, 8, 64)


class Run:
    """A meter with a clock of its own."""

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
                self.meter.hand_over(FakeBatch, FakeBatch, asked, self.now, (0, 0))
                self.now += trains
        return [str(one.message) for one in said]


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_a_warning_comes_once_and_says_what_to_do(clocked: Run) -> None:
    """Not in the first minute nor in the first 200 steps."""
    assert clocked.steps(199, 0.1, 0.3) == []
    (said,) = clocked.steps(5000, 0.1, 0.3)
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
def test_when_a_warning_comes(clocked: Run, steps: int, waits: float, trains: float, count: int) -> None:
    assert len(clocked.steps(steps, waits, trains)) == count


def test_a_run_that_becomes_slow_is_told(clocked: Run) -> None:
    assert clocked.steps(5000, 0.01, 0.3) == []
    assert len(clocked.steps(300, 0.05, 0.3)) == 1


def test_a_warning_names_the_line_of_the_loop(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_STEPS", 4)
    monkeypatch.setattr(monitor, "_SECONDS", 0.0)
    options: Any = {"batch_transforms": [lambda batch: time.sleep(0.01)]}
    message = "training waited for .* in the last 4 steps"
    with load(packed, **options) as loader, pytest.warns(UserWarning, match=message) as said:  # noqa: PT031
        for _ in loader:
            time.sleep(0.001)
    assert [Path(one.filename).name for one in said] == [Path(__file__).name]
