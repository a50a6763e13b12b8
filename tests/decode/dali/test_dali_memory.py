"""Memory that DALI allocates in advance, and errors of the device, neither of which needs a GPU to be tested."""

from typing import Any

import pytest
from nvidia.dali import Pipeline, fn

import gpuload
from gpuload import Augment
from gpuload.decode.dali import decoder as dali
from gpuload.decode.dali.graph import build_graph
from gpuload.decode.interface import Stored

FORMS = [Augment(8).form]


@pytest.mark.parametrize(
    ("sides", "batch_size", "load", "is_told"),
    [
        ((640, 480), 256, None, True),  # 0.65 of 256 images of 0.9 MB
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
        build_graph(FORMS, Stored(*sides), lambda: (), {} if load is None else {"hw_decoder_load": load})
    (options,) = asked
    told = {"preallocate_width_hint": sides[0], "preallocate_height_hint": sides[1]}
    assert {name: value for name, value in options.items() if name in told} == (told if is_told else {})
    assert options["jpeg_fancy_upsampling"] and options.get("hw_decoder_load") == load


MESSAGES = (
    "CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory",
    "Error in thread 1: nvImageCodec: NVIMGCODEC_STATUS_ALLOCATOR_FAILURE",
    "std::bad_alloc",
    "Can't allocate 12884901888 on device 0. CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access",
)


@pytest.mark.parametrize("said", MESSAGES)
def test_errors_of_the_device_are_no_images_fault(said: str) -> None:
    found = dali.find_device_fault(RuntimeError(f"Critical error in pipeline:\n{said}\nCurrent pipeline object"), 1)
    assert isinstance(found, gpuload.DeviceError) and "\n" not in str(found)
    assert str(found).startswith(f"cuda:1: DALI failed ({said.splitlines()[0]}). If memory ran out, use a smaller b")


def test_other_errors_may_be_an_images() -> None:
    for said in ("Failed to decode a JPEG", "Unrecognized image format.", "Error while decoding: could not"):
        assert dali.find_device_fault(RuntimeError(said), 0) is None


def test_a_loader_tells_it(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory")

    with gpuload.DaliIterator(packed, 8, augment=Augment(8), device="cpu", decoder="dali", num_threads=1) as loader:
        for _ in loader:
            monkeypatch.setattr(Pipeline, "outputs", fail)
            break
        with pytest.raises(
            gpuload.DeviceError, match="the CPU: DALI failed .CUDA.* use a smaller batch_size or prefetch"
        ):
            next(iter(loader))
        monkeypatch.undo()
        assert len(list(loader)) == len(loader)
