"""Memory of batches: nobody's until the last view of it has gone, whatever Python counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load

from gpuload import Augment
from gpuload.decode.interface import Buffers


def torch() -> Any:
    """Where it is missing, what needs no torch is tested all the same."""
    return pytest.importorskip("torch")


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "the array": lambda array: array,
    "a view": lambda array: array[1:, 2:].T,
    "an entry": lambda array: array[0, 0, :1],
    "a memoryview": lambda array: memoryview(array[1]),
    "a tensor": lambda array: torch().from_numpy(array),
    "a view of a tensor": lambda array: torch().from_numpy(array).permute(0, 2, 1)[1:],
    "a tensor through DLPack": lambda array: torch().from_dlpack(array),
    "an array of a tensor": lambda array: torch().from_numpy(array).numpy()[:1],
    "a capsule": lambda array: torch().from_numpy(array).__dlpack__(),
    "a tensor for a step back": lambda array: (torch().ones(1, requires_grad=True) * torch().from_numpy(array)).sum(),
}


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_batches_in_use_are_not_overwritten_and_the_memory_of_others_is_used_again(packed: Path) -> None:
    with load(packed, 8, decoder="native", augment=Augment(16), drop_last=True, prefetch=1) as loader:
        held = [images for _, images, _ in loader]
        copies = [images.clone() for images in held]
        for _, images, _ in loader:
            images.zero_()
        assert len({images.data_ptr() for images in held}) == len(held) > 5
        assert all(torch().equal(*pair) for pair in zip(held, copies, strict=True))
        places = {images.data_ptr() for _ in range(3) for _, images, _ in loader}
    assert len(places) <= 1 + 3 + 1  # 36 batches out of prefetch + 3 arrays, and the one that the loop holds


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_comes_back_with_its_last_view(holder: str) -> None:
    buffers = Buffers(4, "float32", 2)
    array = buffers.take(4, (6, 5))
    taken = place(array)
    held = HOLDERS[holder](array)
    del array
    other = buffers.take(4, (6, 5))
    assert place(other) != taken
    del held
    assert place(buffers.take(4, (6, 5))) == taken


def test_an_array_fits_up_to_twice_its_need_and_only_some_are_kept() -> None:
    made: list[int] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        made.append(shape[0])
        return np.empty(shape, dtype)

    buffers = Buffers(2, "uint8", 2, allocate)
    for sides, shapes in [((10, 10), [200]), ((5, 10), []), ((4, 12), [96]), ((10, 10), []), ((12, 10), [240])]:
        made.clear()
        assert buffers.take(1, sides).shape == (1, *sides) and made == shapes
    many = [buffers.take(2, (30, 10)) for _ in range(5)]
    made.clear()
    del many
    many = [buffers.take(2, (30, 10)) for _ in range(5)]
    assert len(many) == 5 and len(made) == 3
