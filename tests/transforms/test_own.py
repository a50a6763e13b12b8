"""Pixel transforms of one's own: on the same footing as gpuload's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import load

from gpuload import ArgumentError, Augment
from gpuload.decode.postprocess import transform
from gpuload.transforms import ColorJitter, PixelTransform, RandAugment, RandomApply, RandomRotation, compose
from gpuload.transforms.apply import apply_steps
from gpuload.transforms.steps import Steps


class Darken(PixelTransform):
    """Takes away up to 100 levels, of three of four images."""

    def draw(self, draws: Any, height: int, width: int) -> Steps:
        return self.steps(100 * draws(0), 1.0, where=draws(1) < 0.75)

    @staticmethod
    def kernel(images: Any, args: Any) -> Any:
        assert images.is_contiguous() and (args[:, 1] == 1).all() and not args[:, 2:].any()
        return (images.float() - args[:, :1, None, None]).clamp(0, 255).to(torch.uint8)


class DarkenLess(Darken):
    """With the kernel of its base class."""

    def draw(self, draws: Any, height: int, width: int) -> Steps:
        return self.steps(10 * draws(0), 1.0)


def with_transforms(packed: Path, *transforms: Any, decoder: str = "native") -> torch.Tensor:
    augment = Augment(12, dtype="uint8", transforms=transforms)
    with load(packed, augment=augment, decoder=decoder, shuffle=False, fields=("image",)) as loader:
        return torch.cat([images for (images,) in loader])


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_it_is_done_to_the_images_that_drew_it(packed: Path, decoder: str) -> None:
    before, after = with_transforms(packed, decoder=decoder), with_transforms(packed, Darken(), decoder=decoder)
    taken = (before.float() - after.float()).flatten(1).amax(1)
    assert 0.6 < (taken > 0).float().mean() < 0.9 and taken.max() <= 100 and len(taken.unique()) > 20
    less = with_transforms(packed, DarkenLess(), decoder=decoder)
    assert 0 < (before.float() - less.float()).amax() <= 10


def test_it_combines_with_others(packed: Path) -> None:
    half = with_transforms(packed, RandomApply([Darken(), DarkenLess()], 0.5))
    changed = (half != with_transforms(packed)).flatten(1).any(1).float().mean()
    assert 0.3 < changed < 0.7
    with_transforms(packed, ColorJitter(0.4), Darken(), RandAugment(), Darken())


def test_boxes_and_warps_know_that_it_moves_nothing(packed: Path) -> None:
    turn = RandomRotation((180, 180))
    before, after = with_transforms(packed, Darken(), turn), with_transforms(packed, turn, Darken())
    assert (with_transforms(packed, Darken()).flip(2, 3) == before).all()
    assert not (before == after).all()  # other numbers were drawn
    assert (with_transforms(packed, turn).flip(2, 3) - with_transforms(packed) == 0).all()


def test_groups_of_images_are_done_as_single_ones() -> None:
    """As on a GPU, where all images with a step are done at once."""
    images = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    steps = Darken().draw(lambda number: np.linspace(0, 1, 9), 8, 8)
    assert torch.equal(apply_steps(images, steps), transform(images, steps))


def test_wrong_classes_and_results(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"Plain.kernel: expected a static method, \(images, args\)"):

        class Plain(Darken):
            def kernel(self, images: Any, args: Any) -> Any:
                return images

    class Smaller(Darken):
        @staticmethod
        def kernel(images: Any, args: Any) -> Any:
            return images[..., 1:]

    with pytest.raises(ArgumentError, match=r"Smaller.kernel: returned torch.uint8 \(1, 3, 12, 11\) on cpu, expected"):
        with_transforms(packed, Smaller())
    with pytest.raises(TypeError, match="abstract"):
        PixelTransform()  # type: ignore[abstract]
    for numbers in ((), (np.zeros(3), np.zeros(4)), (1.0,), tuple(np.zeros(2) for _ in range(13))):
        with pytest.raises(ArgumentError, match=r"Darken.steps: \d+ numbers of shapes .*; expected one to 12"):
            Darken().steps(*numbers)
    with pytest.raises(ArgumentError, match=r"Darken.steps: 0 numbers of shapes \[\(2,\)\]; expected one to 12"):
        Darken().steps(where=np.ones(2, bool))

    def add() -> None:
        class OneMore(Darken):
            @staticmethod
            def kernel(images: Any, args: Any) -> Any:
                return images

    monkeypatch.setattr(compose, "_LAST", compose.FIRST_OWN + len(compose._KERNELS))
    add()
    with pytest.raises(ArgumentError, match=r"OneMore: there are \d+ classes of PixelTransform already"):
        add()
