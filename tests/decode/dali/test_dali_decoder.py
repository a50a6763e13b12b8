"""DALI's graph, the memory that it allocates in advance, how it is asked for batches, and errors of the device; none of
these needs a GPU to be tested."""

import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from made_batches import make_batch
from nvidia.dali import Pipeline, fn

import gpuload
from gpuload import Augment
from gpuload.decode.dali import decoder as dali
from gpuload.decode.dali.graph import build_graph
from gpuload.decode.device import Device
from gpuload.decode.interface import PictureForm, Resources, Stored
from gpuload.decode.runner import Job, Runner
from gpuload.read.batch import Batch


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "augments",
    [
        [Augment(8)],
        [Augment(8, crop="center", dtype="uint8", layout="channels_last")],
        [Augment(8, crop="pad_or_crop", vertical_flip=0.5), Augment(4, normalize="image", interpolation="bicubic")],
    ],
)
def test_the_gpu_graph_can_be_defined(augments: list[Augment], raw: bool) -> None:
    """Without a GPU too: DALI checks the names of operators and of their arguments when a graph is defined."""
    forms = tuple(augment.form for augment in augments)
    image = PictureForm("image", forms, Stored(640, 480, raw=raw))
    right = PictureForm("right", forms, Stored(raw=raw), is_further=True)
    for device_id, device in ((0, "gpu"), (None, "cpu")):
        with Pipeline(batch_size=4, num_threads=1, device_id=device_id):
            outputs = build_graph([image, right], lambda: ())
            assert [output.device for output in outputs] == [device] * 2 * len(forms)


FORMS = (Augment(8).form,)


@pytest.mark.parametrize(
    ("sides", "batch_size", "load", "is_told"),
    [
        ((1465, 1465), 256, None, True),  # DALI's default: 0.65 of 256 images
        ((1467, 1467), 257, None, False),
        ((5980, 6430), 256, None, False),  # ImageNet's largest: 19 GB
        ((5980, 6430), 256, 0.0, True),  # one image
        ((5980, 6430), 16, 1.0, False),
        ((1465, 1465), 166, 1.0, True),  # just below 1 GiB
        ((1467, 1467), 167, 1.0, False),
        ((0, 0), 256, None, False),  # unknown
        ((13_377, 13_377), 1, 1.0, True),  # just below what the loader takes by default
        ((13_378, 13_378), 1, 1.0, False),  # just above
    ],
)
def test_memory_in_advance_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], batch_size: int, load: float | None, is_told: bool
) -> None:
    asked: list[dict[str, Any]] = []
    image = fn.decoders.image
    monkeypatch.setattr(fn.decoders, "image", lambda *args, **options: asked.append(options) or image(*args, **options))
    with Pipeline(batch_size=batch_size, num_threads=1, device_id=0):
        build_graph([PictureForm("image", FORMS, Stored(*sides))], lambda: (), load)
    (options,) = asked
    told = {"preallocate_width_hint": sides[0], "preallocate_height_hint": sides[1]}
    assert {name: value for name, value in options.items() if name in told} == (told if is_told else {})
    assert options["jpeg_fancy_upsampling"] and options.get("hw_decoder_load") == load


GLOBAL = "a CUDA graph was captured in mode 'global'.*capture_error_mode='thread_local'"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory", ""),
        ("Error in thread 1: nvImageCodec: NVIMGCODEC_STATUS_ALLOCATOR_FAILURE", ""),
        ("std::bad_alloc", ""),
        ("Can't allocate 12884901888 on device 0. CUDA_ERROR_OUT_OF_MEMORY", ""),
        ("CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access", ""),
        ("CUDA runtime API error cudaErrorStreamCaptureUnsupported (900)", GLOBAL),
        ("CUDA runtime API error CUDA error: operation not permitted when stream is capturing", GLOBAL),
    ],
)
def test_errors_of_the_device_are_no_images_fault(said: str, told: str) -> None:
    found = dali.find_device_fault(RuntimeError(f"Critical error in pipeline:\n{said}\nCurrent pipeline object"), 1)
    assert isinstance(found, gpuload.DeviceError) and "\n" not in str(found)
    usual = rf"DALI failed \({re.escape(said.splitlines()[0])}\)\. If memory ran out, use a smaller b"
    assert re.match(f"cuda:1: {told or usual}", str(found))
    for other in ("Failed to decode a JPEG", "Unrecognized image format."):
        assert dali.find_device_fault(RuntimeError(other), 0) is None


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        (
            "CUDA runtime API error (2):\nout of memory",
            gpuload.DeviceError,
            "the CPU: DALI failed .out of memory.*smaller batch",
        ),
        ("Assert on x failed\nStack", gpuload.DecodeError, ".Assert on x failed., while Pillow decodes each.*'native'"),
    ],
)
def test_a_loader_tells_it_and_goes_on(
    packed: Any, monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception], told: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(said)

    with gpuload.DaliIterator(packed, 8, augment=Augment(8), device="cpu", decoder="dali", num_threads=1) as loader:
        for _ in loader:
            monkeypatch.setattr(Pipeline, "outputs", fail)
            break
        with pytest.raises(error, match=told):
            next(iter(loader))
        monkeypatch.undo()
        assert len(list(loader)) == len(loader)


AUGMENT, PREFETCH = Augment(4, dtype="uint8"), 2
IMAGE = PictureForm("image", (AUGMENT.form,), Stored())
RIGHT = IMAGE._replace(name="right", is_further=True)


class Stream(Device):
    """A GPU's stream, by its number alone."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(None)
        self.log = log

    @property
    def stream_number(self) -> int:
        return 7

    def upload(self, array: Any) -> torch.Tensor:
        self.log.append("through DLPack")
        return super().upload(array)

    def leave(self, held: list[Any]) -> None:
        self.log += [f"{type(one).__name__} of DALI are held" for outputs in held for one in outputs]


class Outputs:
    def as_tensor(self) -> Any:
        return np.zeros((1, 3, 4, 4), np.uint8)


class Asked:
    """DALI's, which asks for inputs until there are none, and notes what it is asked for."""

    def __init__(self, log: list[str], take: Callable[[], Any], pictures: Sequence[PictureForm] = (IMAGE,)) -> None:
        self._log, self._take = log, take
        self._pictures = pictures
        self._scheduled: deque[Any] = deque()

    def reset(self) -> None: ...

    def schedule_run(self) -> None:
        while True:
            try:
                self._scheduled.append(self._take())
            except StopIteration:
                return
            self._log.append("scheduled")

    def outputs(self, stream: int | None) -> list[Outputs]:
        self._scheduled.popleft()
        self._log.append(f"outputs on {stream}")
        return [Outputs() for _ in self._pictures]


def open_dali(monkeypatch: pytest.MonkeyPatch, log: list[str], device: Device | None, *pictures: PictureForm) -> Runner:
    monkeypatch.setattr(dali, "open_pipeline", lambda _, pictures, take, *__, **___: Asked(log, take, pictures))
    stage = dali.DaliDecoder(pictures or [IMAGE], Resources(1, 1, PREFETCH), None, device)
    return Runner([stage.feed, stage], PREFETCH, device)


def one_batch() -> Batch:
    image = np.frombuffer(encode(smooth_image(np.random.default_rng(0), 8, 8)), np.uint8)
    batch = make_batch(AUGMENT, [image], [(8, 8)])
    batch.pictures["right"] = batch.image
    batch.views["right"] = batch.image_views
    return batch


@pytest.mark.parametrize("pictures", [(IMAGE,), (IMAGE, RIGHT)], ids=["image", "pair"])
def test_a_batch_is_handed_over_before_the_next_is_scheduled(
    monkeypatch: pytest.MonkeyPatch, pictures: tuple[PictureForm, ...]
) -> None:
    log: list[str] = []
    runner = open_dali(monkeypatch, log, Stream(log), *pictures)
    batches = list(runner.decode(iter([one_batch() for _ in range(9)])))
    assert [list(decoded.pictures) for decoded in batches] == [[picture.name for picture in pictures]] * 9
    runner.close()
    taken = [number for number, what in enumerate(log) if what == "outputs on 7"]
    uploads = ["through DLPack"] * len(pictures)
    assert len(taken) == 9
    assert all(log[number + 1 : number + 1 + len(pictures)] == uploads for number in taken)
    assert log.count("Outputs of DALI are held") == 9 * len(pictures)
    in_dali = np.cumsum([{"scheduled": 1, "outputs on 7": -1}.get(what, 0) for what in log])
    assert in_dali.max() <= PREFETCH and in_dali[-1] == 0
    log.clear()
    runner = open_dali(monkeypatch, log, None)  # torch is not on the device: the thread waits
    assert len(list(runner.decode(iter([one_batch(), one_batch()])))) == 2
    runner.close()
    assert log.count("outputs on None") == 2 and "through DLPack" not in log


def begun_with_two(monkeypatch: pytest.MonkeyPatch, pipeline: type[Asked]) -> tuple[dali.DaliDecoder, list[Job]]:
    """A decoder to which two batches were fed."""
    monkeypatch.setattr(dali, "open_pipeline", lambda _, pictures, take, *__, **___: pipeline([], take))
    stage = dali.DaliDecoder([IMAGE], Resources(1, 1, PREFETCH), None, None)
    stage.restart()
    return stage, fed(stage)


def fed(stage: dali.DaliDecoder) -> list[Job]:
    jobs = [Job(one_batch()) for _ in range(2)]
    for job in jobs:
        stage.feed.begin(job)
    return jobs


class Exhausted(Asked):
    """Has no memory for another batch, once the first is complete."""

    def reset(self) -> None:
        if not self._scheduled:
            return
        raise RuntimeError("CUDA runtime API error (2):\nout of memory")


def test_a_batch_is_not_lost_where_the_next_cannot_be_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, (first, second) = begun_with_two(monkeypatch, Exhausted)
    stage.begin(first)
    assert first.decoded.pictures["image"][0].shape == (1, 3, 4, 4)
    with pytest.raises(gpuload.DeviceError, match=r"the CPU: DALI failed \(out of memory\)"):
        stage.begin(second)
    with pytest.raises(CancelledError):
        stage.begin(second)
    stage.restart()
    stage.begin(fed(stage)[0])  # of another pipeline
    stage.close()


class Forgetful(Asked):
    """Has lost a batch that it took, as an interrupted call may."""

    def outputs(self, *stream: int | None) -> list[Outputs]:
        if not stream:  # to drain it
            raise StopIteration
        return super().outputs(*stream)


def test_a_batch_that_dali_has_not_begun_does_not_end_the_next_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, (first, _) = begun_with_two(monkeypatch, Forgetful)
    stage.begin(first)
    stage.feed.restart()
    stage.restart()
    for job in fed(stage):
        stage.begin(job)
        assert job.decoded.pictures["image"][0].shape == (1, 3, 4, 4)
    stage.close()


def test_at_the_end_of_the_interpreter_no_pipeline_is_left_to_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali, "_decoders", weakref.WeakSet())  # not those of other tests
    runner = open_dali(monkeypatch, [], None)
    batches = runner.decode(iter([one_batch() for _ in range(9)]))
    next(batches)
    dali._end_all()
    with pytest.raises(CancelledError):
        list(batches)
    runner.close()
