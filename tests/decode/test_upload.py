"""The CPU decoder for a GPU: uint8 from the CPU, values on the device; here a CPU stands for the GPU, in the same code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import drain, load
from made_batches import make_batch
from painted import pack_painted

import gpuload
from gpuload.augment import Augment
from gpuload.decode import open as opening
from gpuload.decode.interface import Decoded
from gpuload.decode.upload import Copies, allocator, open_uploading
from gpuload.transforms import ColorJitter, RandAugment, RandomErasing

LIMITS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2, "uint8": 0}
TRANSFORMS = [ColorJitter(0.4, 0.4), RandAugment(), RandomErasing(p=0.6, value="random")]


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_painted(tmp_path_factory.mktemp("painted"), count=30)


@pytest.fixture
def uploading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders decode as for a GPU."""
    monkeypatch.setattr(opening, "_open_native", open_uploading)


def batches(folder: Path, augment: Any) -> list[dict[str, Any]]:
    fields = ("index", "image", "mask")
    with load(folder, 8, augment=augment, fields=fields, output_dict=True, decoder="native", num_threads=2) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize(
    ("dtype", "layout", "normalize", "transforms"),
    [
        ("float32", "NCHW", "constants", []),
        ("float16", "channels_last", "constants", []),
        ("uint8", "channels_last", "constants", []),
        ("bfloat16", "NCHW", "image", []),
        ("float32", "channels_last", "image", TRANSFORMS),
        ("float16", "NCHW", "constants", TRANSFORMS),
        ("uint8", "NCHW", "constants", TRANSFORMS),
    ],
)
def test_values_are_the_native_decoders(
    painted: Path, request: pytest.FixtureRequest, dtype: Any, layout: Any, normalize: Any, transforms: Any
) -> None:
    augment = Augment(24, dtype=dtype, layout=layout, normalize=normalize, transforms=transforms)
    expected = batches(painted, augment)
    request.getfixturevalue("uploading")
    found = batches(painted, augment)
    assert len(found) == len(expected) == 6
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours["index"], theirs["index"]) and torch.equal(ours["mask"], theirs["mask"])
        images = ours["image"]
        assert images.dtype == theirs["image"].dtype and images.stride() == theirs["image"].stride()
        assert (images.double() - theirs["image"].double()).abs().max() <= LIMITS[dtype]
    assert len({one["image"].double().sum().item() for one in found}) == 6


@pytest.mark.usefixtures("uploading")
def test_several_views_and_kept_batches(painted: Path) -> None:
    views = [Augment(16), Augment(24, transforms=[ColorJitter(0.4)])]
    kept = [(image, image.clone()) for batch in batches(painted, views) for image in batch["image"]]
    assert len(kept) == 12 and all(torch.equal(*pair) for pair in kept)


@pytest.mark.usefixtures("uploading")
def test_loops_that_are_left_and_damaged_images(packed: Path, tmp_path: Path) -> None:
    with load(packed, 8, decoder="native") as loader:
        expected = [drain([loader]) for _ in range(2)]
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            assert drain([loader], steps=2) == expected[epoch][:16]
            loader.set_epoch(epoch)
            assert drain([loader]) == expected[epoch]


def test_both_decoders_with_uploading(packed: Path, uploading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"decoder": "both", "cpu_share": 0.5, "augment": Augment(12)}
    found = [images for _, images, _ in load(packed, 8, **options)]
    monkeypatch.undo()
    for ours, (_, theirs, _) in zip(found, load(packed, 8, **options), strict=True):
        assert (ours - theirs).abs().max() <= LIMITS["float32"]


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
        assert [len(images) for images, _ in loader] == [8] * 3


class Cuda:
    """torch's streams and events, which note what happens on them in order, on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.done = True
        cuda = self

        class Stream:
            def __init__(self, device: Any = None, name: str = "copies") -> None:
                self.name = name

            def wait_event(self, event: Any) -> None:
                cuda.log.append(f"{self.name} waits for {event.number}")

            def synchronize(self) -> None:
                cuda.log.append(f"{self.name} synchronized")

        class Event:
            count = 0

            def __init__(self) -> None:
                Event.count += 1
                self.number = Event.count

            def record(self, stream: Stream) -> None:
                cuda.log.append(f"{self.number} after {stream.name}")

            def query(self) -> bool:
                return cuda.done

        class Entered:
            def __init__(self, stream: Stream) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                cuda.log.append(f"on {self.stream.name}")

            def __exit__(self, *error: object) -> None:
                cuda.log.append("left")

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", Entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name=f"training on {device}"))

        def copy(tensor: torch.Tensor, device: Any, non_blocking: bool) -> torch.Tensor:
            cuda.log.append(f"copy to {device}, {non_blocking}")
            return tensor.clone()

        monkeypatch.setattr(torch.Tensor, "to", copy)
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda tensor, stream: cuda.log.append(f"kept for {stream.name}")
        )


def test_copies_are_on_a_stream_of_their_own_which_the_training_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    copies = Copies(3)
    batch = make_batch(Augment(2), [np.zeros(1, np.uint8)], [(1, 1)])
    decoded = Decoded((np.ones((1, 3, 2, 2), np.uint8),), (), 0.1)
    uploaded = copies.start(batch, decoded)
    assert cuda.log == ["on copies", "copy to cuda:3, True", "1 after copies", "left"]
    cuda.log.clear()
    copies.wait(uploaded)
    assert cuda.log == ["training on cuda:3 waits for 1", "kept for training on cuda:3"]
    assert torch.equal(uploaded.decoded.images[0], torch.ones(1, 3, 2, 2, dtype=torch.uint8))


def test_memory_is_held_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    cuda = Cuda(monkeypatch)
    copies = Copies(0)
    batch = make_batch(Augment(2), [np.zeros(1, np.uint8)], [(1, 1)])

    def start() -> Any:
        pixels = np.ones((1, 3, 2, 2), np.uint8)
        copies.start(batch, Decoded((pixels,), (), 0.1))
        return weakref.ref(pixels)

    cuda.done = False
    first, second = start(), start()
    assert first() is not None and second() is not None
    cuda.done = True
    third = start()
    assert first() is None and second() is None and third() is not None
    copies.finish()
    assert third() is None and cuda.log[-1] == "copies synchronized"


def test_pinned_memory_is_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    empty = torch.empty

    class Entered:
        def __init__(self, device: int) -> None:
            asked.append(device)

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Entered)
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: asked.append(pin_memory) or empty(shape, dtype=dtype)
    )
    array = allocator(2)((4, 3), np.dtype("uint8"))
    assert asked == [2, True] and array.shape == (4, 3) and array.dtype == np.uint8 and array.flags.writeable


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpus")
def test_native_is_for_the_device_that_is_asked_for() -> None:
    from gpuload.ranks import Ranks

    assert opening.choose_backend("native", "cuda", Ranks(1, 2, 1, 2)) == ("native", 1)
    assert opening.choose_backend("native", "auto", Ranks()) == ("native", 0)
    assert opening.choose_backend("native", "cpu", Ranks()) == ("native", None)
    with pytest.raises(gpuload.DeviceError, match="device='cuda:2': needs GPU 2, and 2 can be used here"):
        opening.choose_backend("native", "cuda:2", Ranks())


def test_without_a_gpu_that_is_said(packed: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("is about machines without a GPU")
    with pytest.raises(
        gpuload.DeviceError, match=r"device='cuda': needs GPU 0, and none can be used here .*Use device='cpu'"
    ):
        load(packed, decoder="native", device="cuda")
