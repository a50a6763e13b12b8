"""What `loader.metrics` says, of runs whose slow stage is known, also where others write it; the one warning that training
waits; and ranges in profilers, without an import where nobody looks."""

import math
import re
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from loaders import load

import gpuload
from gpuload import monitor
from gpuload.decode.native.images import ImageDecoder
from gpuload.monitor import Meter, Metrics, Sums, advice, metrics_of
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
    assert whole.bytes == sum(sizes)
    assert last.bytes == sum(sizes[sample] for samples, _ in batches[-5:] for sample in samples)
    for some, of in ((whole, each), (last, each[-5:]), (one, each[-1:])):
        assert some.wait_s == pytest.approx(sum(found.wait_s for found in of))
        assert some.read_s == pytest.approx(sum(found.read_s for found in of))
    assert 0 < whole.wait_s < whole.seconds <= elapsed
    assert whole.wait_s == pytest.approx(whole.wait_read_s + whole.wait_decode_s + whole.hand_over_s)
    assert min(whole.wait_read_s, whole.wait_decode_s, whole.hand_over_s) > 0
    assert whole.images_per_s == pytest.approx(97 / whole.seconds)
    assert whole.bytes_per_s == pytest.approx(sum(sizes) / whole.seconds)
    assert whole.wait_share == pytest.approx(whole.wait_s / whole.seconds)
    assert (last.steps, last.images) == (5, 4 * 8 + 1) and one.images == 1
    assert repr(loader.metrics(13)) == repr(loader.metrics(1000)) == repr(whole)  # NaN differs from itself
    with pytest.raises(gpuload.ArgumentError, match=r"metrics\(window=1001\): expected a whole number in 1\.\.1000"):
        loader.metrics(1001)
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


def users(batch: Any) -> None:
    """A batch transform of one's own."""


@pytest.mark.parametrize("decoder", ["native"])
@pytest.mark.parametrize(
    ("owner", "name", "stage"),
    [
        (Stream, "slices", "read"),
        (ImageDecoder, "thread_memory", "decode"),
        (sys.modules[__name__], "users", "hand_over"),
    ],
)
def test_what_is_slow_binds(
    packed: Path, slow_s: float, owner: Any, name: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)

    def slow(*given: Any, **options: Any) -> Any:
        time.sleep(slow_s)
        return real(*given, **options)

    monkeypatch.setattr(owner, name, slow)
    found = run(load(packed, decoder="native", num_threads=2, batch_transforms=[lambda batch: users(batch)]))
    assert found.binds == stage and (found.queue_depth < 1) == (stage != "hand_over")
    assert getattr(found, f"{stage}_s") > 12 * slow_s and getattr(found, f"wait_{stage}_s", math.inf) > 6 * slow_s


def test_the_disk_binds(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the thread that reads ahead is always busy."""
    monkeypatch.setattr(gpuload.read.batches.BatchReader, "disk_s", lambda reader: time.perf_counter())
    assert run(load(packed)).binds == "disk"


def test_another_thread_may_ask(packed: Path) -> None:
    """Each answer is of one moment, also while the records of its window are replaced."""
    meter = Meter(lambda: 0.0, packed)
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
        meter.hand_over(FakeBatch(), meter.ask(), time.perf_counter(), (0, 0))
    done.set()
    asking.join()
    assert wrong == []
    assert meter.metrics(1000).steps == 1000 and meter.metrics().steps == 20_000


@pytest.mark.parametrize(
    ("stage", "waits", "busy"),
    [
        ("none", (), {}),
        ("training", (3, 3, 3.9), {"disk_s": 100, "download_s": 3}),
        ("read", (4, 2.2, 3.9), {}),
        ("decode", (2.2, 4, 3.9), {}),
        ("hand_over", (3.9, 2.2, 4), {"disk_s": 100, "download_s": 3.9}),
        ("decode", (3.9, 4, 3.9), {"disk_s": 79}),
        ("disk", (3.9, 4, 3.9), {"disk_s": 80}),
        # What is downloaded is written to the disk, which is busy, too.
        ("download", (40, 39, 0), {"download_s": 21, "disk_s": 100}),
        ("disk", (40, 39, 0), {"download_s": 19, "disk_s": 100}),
        ("disk", (39, 40, 0), {"download_s": 39, "disk_s": 100}),
        # Of decoding, it is the function where that takes longer; DALI does not tell how long it takes.
        ("decode", (9, 10, 9), {"decode_s": 20, "function_s": 19}),
        ("function", (9, 10, 9), {"decode_s": 20, "function_s": 21}),
        ("decode", (9, 10, 9), {"decode_s": math.nan, "function_s": 49}),
        ("function", (9, 10, 9), {"decode_s": math.nan, "function_s": 51}),
        ("read", (10, 9, 9), {"decode_s": 20, "function_s": 21}),
    ],
)
def test_the_binding_stage(stage: str, waits: tuple[float, ...], busy: dict[str, float]) -> None:
    """Of 100 seconds; waits: for reading, for decoding, and to hand over."""
    sums = dict(zip(("wait_read_s", "wait_decode_s", "hand_over_s"), waits, strict=False))
    training_s = 100 - sum(waits) if waits else 0
    assert metrics_of(Sums({"training_s": training_s, **sums, **busy})).binds == stage


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("function", r"Function\(f, processes=\.\.\.\)"),
        ("decode", "gpuload tune FOLDER"),
        ("read", "Raise batch_size"),
        ("download", r"use Shuffle\(lanes=\.\.\.\), so that each downloads its share"),
        ("disk", "local NVMe"),
        ("hand_over", "batch_transforms"),
        ("training", "Nothing needs to be changed"),
    ],
)
def test_advice(stage: Any, words: str) -> None:
    assert re.search(words, advice(stage))


def test_a_pace_is_measured_for_as_long_as_asked_and_after_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(monitor, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def batches(seconds: float) -> Iterator[range]:
        while True:
            now[0] += seconds
            yield range(8)

    found = monitor.pace(batches(1.0), 5.0, ahead=2)
    assert found == (1.0, 5.0, 5, 40) and found.images_per_s == 8
    assert monitor.pace(batches(0.5), 0.0) == (0.0, 0.5, 1, 8)


class FakeBatch:
    """As much of a batch, decoded, as is counted."""

    sources, bytes, read_s, work_s, read_wait_s, queue_depth = (0, 0, 0), 8, 0.25, 0.5, 0.0, 2.0
    function_s = download_s = 0.0

    @property
    def batch(self) -> "FakeBatch":
        return self


class Run:
    """A meter with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(monitor, "perf_counter", lambda: self.now)
        self.meter = Meter(lambda: 0.0, Path("shards/train"))

    def steps(self, count: int, waits: float, trains: float) -> list[str]:
        """What is said in some steps, by their times."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(count):
                asked = self.meter.ask()
                self.now += waits
                self.meter.hand_over(FakeBatch(), asked, self.now, (0, 0))
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
        "decode. `python -m gpuload tune FOLDER` finds the best num_threads, prefetch and decoder. Or pack smaller images "
        "(`python -m gpuload pack --encode jpeg --size 256`). See loader.metrics()"
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


# Ranges in profilers


class Nvtx:
    """The package, where a tool listens; notes the ranges of each thread."""

    def __init__(self) -> None:
        self.open: dict[int, list[str]] = {}
        self.seen: list[tuple[str, ...]] = []
        self.threads: dict[str, set[str]] = {}

    @contextmanager
    def annotate(self, name: str, domain: str) -> Iterator[None]:
        assert domain == "gpuload"
        stack = self.open.setdefault(threading.get_ident(), [])
        stack.append(name)
        self.seen.append(tuple(stack))
        self.threads.setdefault(name, set()).add(threading.current_thread().name)
        try:
            yield
        finally:
            stack.pop()


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_nvtx(packed: Path, monkeypatch: pytest.MonkeyPatch, decoder: str) -> None:
    domain = Nvtx()
    monkeypatch.setattr(monitor, "_nvtx", lambda: domain)
    with load(packed, decoder=decoder) as loader:
        for _ in loader:
            assert domain.open[threading.get_ident()] == []  # the training step is in none of them
    assert not any(domain.open.values())
    assert domain.seen.count(("hand over",)) == 12
    assert domain.seen.count(("wait",)) == 13  # and for the end
    here = threading.current_thread().name
    assert domain.threads["wait"] == domain.threads["hand over"] == {here}
    reading = {"native": {"gpuload-decode-start_0"}, "dali": {"gpuload-feed_0"}}
    assert domain.threads["read"] == reading.get(decoder, {"gpuload-read_0"})
    assert domain.seen.count(("read",)) >= 12
    if decoder != "dali":
        assert domain.threads["decode"] == {"gpuload-decode_0"} and domain.seen.count(("decode",)) == 12


def test_torchs_profiler(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(packed) as loader:
        batches = iter(loader)
        next(batches)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                next(batches)
        monkeypatch.setattr(torch.autograd.profiler, "record_function", None)
        next(batches)
    names = [event.key for event in profile.events()]
    assert names.count("gpuload: wait") == names.count("gpuload: hand over") == 3


@pytest.mark.parametrize(("variable", "imported"), [("", False), ("/nonexistent.so", True)])
def test_nvtx_is_imported_only_where_a_tool_listens(variable: str, imported: bool) -> None:
    """And a range is a range of the real package; without the package, none."""
    pytest.importorskip("nvtx")
    code = (
        "import sys; from gpuload import monitor\n"
        "with monitor.annotate('a'):\n    pass\n"
        "print('nvtx' in sys.modules, 'torch' in sys.modules)\n"
        "sys.modules['nvtx'] = None; monitor._nvtx.cache_clear()\n"
        "with monitor.annotate('a'):\n    pass\n"
    )
    environment = {"NVTX_INJECTION64_PATH": variable, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{imported} False\n", "")


# The snippets of docs/waiting.md about TensorBoard, Weights & Biases and Prometheus, as they are written there.

PAGE = Path(__file__).parents[2] / "docs" / "waiting.md"
BOARD, WANDB, PROMETHEUS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text().partition("\n## TensorBoard")[2], re.DOTALL
)


def run_snippet(text: str, packed: Path) -> dict[str, Any]:
    with load(packed, 1, fields=("image", "label"), steps_per_epoch=200) as loader:
        exec(text, names := {"loader": loader, "urllib": urllib})
    return names


def test_writers(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests install neither of them."""
    board, wandb = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for text in (BOARD, WANDB):
        run_snippet(text, packed)
    names = [f"loader/{name}" for name in Metrics._fields]
    logs = [call.args[0] for call in wandb.init().__enter__().log.call_args_list]
    assert [list(told) for told in logs] == [names, names] and [told["loader/images"] for told in logs] == [100, 100]
    scalars = [(*call.args,) for call in board.SummaryWriter().add_scalar.call_args_list]
    assert [name for name, _, _ in scalars] == 2 * [name for name in names if name != "loader/binds"]
    assert all(isinstance(value, int | float) for _, value, _ in scalars)


def test_prometheus(packed: Path) -> None:
    pytest.importorskip("prometheus_client")
    assert PROMETHEUS.count("(9464)") == 1
    read = "\npage = urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/metrics').read()"
    names = run_snippet(
        f"{PROMETHEUS.replace('(9464)', '(0)')}{read}\nserver.shutdown(); server.server_close()", packed
    )
    assert re.search(rb"gpuload_images_per_s [1-9]", names["page"]) and b"gpuload_wait_share 0." in names["page"]
