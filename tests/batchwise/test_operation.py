"""Batch transforms of one's own, made of numbers and a kernel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import load, world

from gpuload import ArgumentError, Augment
from gpuload.batchwise import MixUp, Operation


class Fade(Operation):
    def draw(self, draws: Any, height: int, width: int) -> Any:
        assert (height, width) == (12, 12)
        return 0.5 + draws(0) / 2

    def kernel(self, numbers: Any, images: Any) -> Any:
        return (images * numbers[:, None, None, None]).to(images.dtype)


class SwapHalf(Operation):
    """Images and labels of two fields, in place and anew."""

    uses = ("label", "image")

    def draw(self, draws: Any, height: int, width: int) -> Any:
        return np.stack([draws(0) < 0.5, draws(1) < 2], 1)

    def kernel(self, numbers: Any, labels: Any, images: Any) -> Any:
        assert numbers.dtype == torch.bool and numbers[:, 1].all()
        images.mul_(0)
        return torch.where(numbers[:, 0], -labels, labels), images


def rows(loaders: Any) -> dict[int, Any]:
    found = {}
    for batches in zip(*loaders, strict=True):
        for index, images, labels in batches:
            found |= {
                int(i): (image.numpy().tobytes(), label.tolist())
                for i, image, label in zip(index, images, labels, strict=True)
            }
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_it_is_done_to_each_image(packed: Path, dtype: Any, layout: Any) -> None:
    augment = Augment(12, dtype=dtype, layout=layout)
    with load(packed, augment=augment) as loader:
        expected = [images for _, images, _ in loader]
    with load(packed, augment=augment, batch_transforms=[Fade()]) as loader:
        found = [images for _, images, _ in loader]
    for before, after in zip(expected, found, strict=True):
        assert before.dtype == after.dtype
        factor = after.float().flatten(1).norm(dim=1) / before.float().flatten(1).norm(dim=1)
        assert ((factor > 0.49) & (factor <= 1.01)).all() and len(factor.unique()) > 1


@pytest.mark.parametrize("transforms", [[Fade()], [MixUp(alpha=1), Fade()], [SwapHalf()], [Fade(), SwapHalf(), Fade()]])
def test_its_numbers_are_those_of_the_sample(packed: Path, transforms: Any) -> None:
    """As those of gpuload's own operations: for any ranks and batch size (MixUp's partner depends on them)."""
    options: dict[str, Any] = {"batch_transforms": transforms, "drop_last": False}
    with load(packed, 8, **options) as loader:
        expected, again = rows([loader]), rows([loader])
    assert expected != again  # another epoch
    with load(packed, 8, num_threads=3, **options) as loader:
        assert rows([loader]) == expected
    if not isinstance(transforms[0], MixUp):
        assert rows(world(packed, 3, 5, **options)) == expected


def test_what_it_makes_is_checked(packed: Path) -> None:
    def wrong(match: str, draw: Any = None, kernel: Any = None, **options: Any) -> None:
        class Wrong(Operation):
            def draw(self, draws: Any, height: int, width: int) -> Any:
                return draws(0) if draw is None else draw(draws)

            def kernel(self, numbers: Any, images: Any) -> Any:
                return images if kernel is None else kernel(images)

        with pytest.raises(ArgumentError, match=match), load(packed, batch_transforms=[Wrong()], **options) as loader:
            list(loader)

    wrong(r"Wrong: draw returned .* \(\), expected \(8,\) or \(8, K\)", lambda draws: 1.0)
    wrong(r"draw returned .* \(2,\), expected \(8,\)", lambda draws: draws(0)[:2])
    wrong(r"batch_transforms\[0\]: asks for draw number 256, expected 0..255", lambda draws: draws(256))
    wrong(r"Wrong: kernel returned None, expected torch.uint8 \(8, 3, 12, 12\) on cpu", kernel=lambda images: None)
    wrong(r"kernel returned torch.float32", kernel=lambda images: images.float())
    wrong(r"kernel returned torch.uint8 \(8, 1, 12, 12\)", kernel=lambda images: images[:, :1])
    wrong(r"kernel returned .*, torch.uint8 .*, expected torch", kernel=lambda images: (images, images))
    wrong(r"Wrong: needs the field 'image'; fields are 'index'", fields=("index",))
    with pytest.raises(TypeError, match="abstract"):
        Operation()  # type: ignore[abstract]
