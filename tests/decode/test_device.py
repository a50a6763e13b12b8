"""The CPU decoder for a GPU: uint8 from the CPU, values on the device; here a CPU stands for the GPU, in the same code."""

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from loaders import load
from made_batches import make_batch
from opened import picture_forms, pretend_gpu

import gpuload
from gpuload import Augment
from gpuload.decode import in_torch
from gpuload.decode.device import Device
from gpuload.decode.in_torch import Finish
from gpuload.decode.interface import Decoded, Stored
from gpuload.decode.postprocess import Postprocess
from gpuload.decode.runner import Job, Runner, Stage
from gpuload.transforms import ColorJitter, RandAugment, RandomErasing

LIMITS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2, "uint8": 0}
TRANSFORMS = [ColorJitter(0.4, 0.4), RandAugment(), RandomErasing(p=0.6, value="random")]


@pytest.fixture
def uploading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders decode as for a GPU."""
    pretend_gpu(monkeypatch)


def batches(folder: Path, augment: Any, decoder: Any = "native") -> list[dict[str, Any]]:
    fields = ("index", "image", "mask")
    with load(folder, 8, augment=augment, fields=fields, decoder=decoder, num_threads=2) as loader:
        next(iter(loader))  # a loop that is left
        return [batch._asdict() for _ in range(2) for batch in loader]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dtype", "layout", "normalize", "transforms", "decoder"),
    [
        ("float32", "NCHW", gpuload.Normalize(), [], "native"),
        ("float32", "NCHW", gpuload.Normalize(), [], gpuload.Both(cpu=0.5)),
        ("float16", "channels_last", gpuload.Normalize(), [], "native"),
        ("uint8", "channels_last", gpuload.Normalize(), [], "native"),
        ("bfloat16", "NCHW", "image", [], "native"),
        ("float32", "channels_last", "image", TRANSFORMS, "native"),
        ("float16", "NCHW", gpuload.Normalize(), TRANSFORMS, "native"),
        ("uint8", "NCHW", gpuload.Normalize(), TRANSFORMS, "native"),
    ],
)
def test_values_are_the_native_decoders(
    painted: Path,
    request: pytest.FixtureRequest,
    dtype: Any,
    layout: Any,
    normalize: Any,
    transforms: Any,
    decoder: Any,
) -> None:
    augment = Augment(24, dtype=dtype, layout=layout, normalize=normalize, transforms=transforms)
    expected = batches(painted, augment, decoder)
    request.getfixturevalue("uploading")
    found = batches(painted, augment, decoder)
    assert len(found) == len(expected) == 10
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours["index"], theirs["index"]) and torch.equal(ours["mask"], theirs["mask"])
        images = ours["image"]
        assert images.dtype == theirs["image"].dtype and images.stride() == theirs["image"].stride()
        assert (images.double() - theirs["image"].double()).abs().max() <= LIMITS[dtype]
    assert len({one["image"].double().sum().item() for one in found}) == 10


@pytest.mark.usefixtures("uploading")
def test_several_views_and_kept_batches(painted: Path) -> None:
    views = [Augment(16), Augment(24, transforms=[ColorJitter(0.4)])]
    kept = [(image, image.clone()) for batch in batches(painted, views) for image in batch["image"]]
    assert len(kept) == 20 and all(torch.equal(*pair) for pair in kept)


@pytest.mark.parametrize("decoder", ["dali", "native", "both"])
def test_torchs_tensors_are_not_exported(
    painted: Path, uploading: None, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch refuses it for tensors of a GPU that is not the current one."""

    def refuse(tensor: torch.Tensor, **_: Any) -> None:
        raise BufferError("Can't export tensors on a different CUDA device index")

    monkeypatch.setattr(torch.Tensor, "__dlpack__", refuse)
    augment = Augment(16, transforms=TRANSFORMS)
    with load(painted, 8, decoder=decoder, augment=augment, fields=("image", "mask")) as loader:
        assert [len(images) for images, _ in loader] == [8] * 5


class Stream:
    """Of torch, on the CPU: it notes what happens on it, in the order of all streams."""

    log: ClassVar[list[str]] = []

    cuda_stream = 7

    def __init__(self, device: Any = None, name: str = "runner") -> None:
        self.name = name

    def wait_event(self, event: "Event") -> None:
        self.log.append(f"{self.name} waits for {event.number}")

    def synchronize(self) -> None:
        self.log.append(f"{self.name} synchronized")


class Event:
    number = 0
    is_over = True

    def record(self, stream: Stream) -> None:
        self.number = 1 + sum("after" in line for line in Stream.log)
        Stream.log.append(f"{self.number} after {stream.name}")

    def query(self) -> bool:
        return self.is_over


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch's streams, events and copies, on the CPU; the log of what happens on them."""
    log: list[str] = []

    current = threading.local()  # each thread begins with GPU 0

    @contextmanager
    def chosen(number: int) -> Iterator[None]:
        before = getattr(current, "device", 0)
        current.device = number
        yield
        current.device = before

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield
        # As torch does: it chooses a stream of the device that was the current one, which needs a context there.
        log.append(f"back to a stream of GPU {getattr(current, 'device', 0)}")

    def copy(tensor: torch.Tensor, device: Any, non_blocking: bool) -> torch.Tensor:
        log.append(f"copy to {device}, {non_blocking}")
        return tensor.clone()

    def keep(tensor: torch.Tensor, stream: Stream) -> None:
        log.append(f"kept for {stream.name}")

    monkeypatch.setattr(Stream, "log", log)
    for name, made in {"Stream": Stream, "Event": Event, "stream": entered, "device": chosen}.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name=f"training on {device}"))
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", keep)
    monkeypatch.setattr(in_torch, "Postprocess", lambda form, _, pixels: Postprocess(form, "cpu", pixels))
    return log


class Pixels(Stage):
    """Makes pixels in host memory. made: weak references to them."""

    name = "pixels"

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []

    def begin(self, job: Job) -> None:
        pixels, mask = np.ones((1, 3, 2, 2), np.uint8), np.zeros((1, 1, 2, 2), np.uint8)
        self.made.append(weakref.ref(pixels))
        job.decoded = Decoded(job.batch, job.batch, {"image": (pixels,), "mask": (mask,)})


AUGMENT = Augment(2, dtype="uint8")


def one_batch() -> Any:
    image = np.zeros(1, np.uint8)
    return make_batch(AUGMENT, [image], [(1, 1)], masks={"mask": [image]})


def open_runner(pixels: Stage, number: int) -> Runner:
    device = Device(number)
    pictures = picture_forms([AUGMENT.form], Stored(), {"mask": 0})
    return Runner([pixels, Finish(pictures, device, levels=True)], 1, device)


def test_all_is_launched_on_a_stream_of_its_own_which_the_training_waits_for(cuda: list[str]) -> None:
    runner = open_runner(Pixels(), 3)
    decoded = next(runner.decode(iter([one_batch()])))
    begun = cuda.index("copy to cuda:3, True")
    copies = ["copy to cuda:3, True"] * 2  # of the images and of the mask
    assert cuda[begun - 1 : begun + 4] == ["on runner", *copies, "1 after runner", "back to a stream of GPU 3"]
    assert not any(line.endswith("GPU 0") for line in cuda)
    assert cuda[-3:] == ["training on cuda:3 waits for 1", *["kept for training on cuda:3"] * 2]
    assert torch.equal(decoded.pictures["image"][0], torch.ones(1, 3, 2, 2, dtype=torch.uint8))
    runner.close()
    assert cuda[-1] == "runner synchronized"


@pytest.mark.usefixtures("cuda")
def test_a_runner_holds_memory_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "is_over", False)
    runner = open_runner(pixels := Pixels(), 0)
    assert len(list(runner.decode(iter([one_batch(), one_batch()])))) == 2
    assert [one() is not None for one in pixels.made] == [True, True]
    monkeypatch.setattr(Event, "is_over", True)
    assert len(list(runner.decode(iter([one_batch()])))) == 1
    assert [one() is not None for one in pixels.made] == [False, False, True]
    runner.close()
    assert pixels.made[2]() is None


def test_what_lies_on_the_gpu_already_is_copied() -> None:
    """Its memory is DALI's, which knows nothing of the streams that read it."""
    ours = np.ones(3)
    copy = Device(None).upload(ours)
    ours[:] = 7
    assert copy.tolist() == [1, 1, 1]


class OnGpu:
    """A batch of DALI's on a GPU, which must not be handed over through DLPack: its memory would come back in a thread
    that synchronises the device."""

    def __init__(self, values: np.ndarray, log: list[str]) -> None:
        self._values, self._log = values, log
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "data": (0, False)}

    def copy_to_external(self, pointer: ctypes.c_void_p, stream: ctypes.c_void_p, non_blocking: bool) -> None:
        self._log.append(f"copied on {stream.value}, {non_blocking}")
        ctypes.memmove(pointer, self._values.ctypes.data, self._values.nbytes)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "uint16"])
def test_dalis_batches_are_copied_without_a_wait(cuda: list[str], monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    places: list[Any] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: places.append(device) or empty(shape, dtype=dtype))
    values = np.arange(24).reshape(2, 3, 4, 1).astype(dtype)
    copy = Device(3).upload(OnGpu(values, cuda))
    assert cuda == ["copied on 7, True"] and places == [torch.device("cuda", 3)]
    assert copy.dtype == getattr(torch, dtype) and np.array_equal(copy.numpy(), values)


@pytest.mark.usefixtures("cuda")
def test_pinned_memory_is_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(asked.append(device)))
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: asked.append(pin_memory) or empty(shape, dtype=dtype)
    )
    array = Device(2).allocate((4, 3), np.dtype("uint8"))
    assert asked == [2, True] and array.shape == (4, 3) and array.dtype == np.uint8 and array.flags.writeable


def test_the_capture_of_a_graph_is_recognised() -> None:
    """torch's own error, in the thread of a stage; others stay as they are."""
    device = Device(None)
    said = "CUDA error: operation not permitted when stream is capturing"
    with pytest.raises(gpuload.DeviceError, match="a CUDA graph was captured in mode 'global'"), device.stream():
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="another"), device.stream():
        raise RuntimeError("another")
