"""Padding and warps with every decoder: the same pixels and masks, and the same epoch however it is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import smooth_image
from loaders import load
from made_batches import make_batch
from opened import open_runner, pretend_gpu
from PIL import Image
from test_decoders import encode

import gpuload
from gpuload import Augment, Normalize, RandomCrop
from gpuload.decode.interface import Stored
from gpuload.transforms import (
    ColorJitter,
    RandomAffine,
    RandomApply,
    RandomErasing,
    RandomInvert,
    RandomPerspective,
    RandomRotation,
)

FILL = 7  # of masks
SIZES = [(90, 70), (64, 64), (50, 80)] * 2


def decode(
    how: str, augment: Augment, images: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The images and masks of one batch, and its crops."""
    sizes = [image.shape[1::-1] for image in images]
    pngs, own = ([encode(Image.fromarray(pixels)) for pixels in arrays] for arrays in (images, masks))
    batch = make_batch(augment, pngs, sizes, masks=[own])
    forms, stored = [augment.form], Stored(plain=True, mask_fills=(FILL,))
    with pytest.MonkeyPatch.context() as patch:
        if how == "uploading":
            pretend_gpu(patch)
        decoder = open_runner("dali" if how == "dali" else "native", forms, stored, len(images), num_threads=1)
    try:
        ((_, decoded),) = decoder.decode(iter([batch]))
        return (
            torch.as_tensor(decoded.images[0]).clone(),
            torch.as_tensor(decoded.masks[0][0]).clone(),
            batch.views[0].crops,
        )
    finally:
        decoder.close()


def pictures() -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    images = [np.asarray(smooth_image(rng, *size)) for size in SIZES]
    return images, [rng.integers(0, 256, size[::-1], dtype=np.uint8) for size in SIZES]


@pytest.mark.parametrize("how", ["native", "dali"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_is_numpys(how: str, mode: Any) -> None:
    rng = np.random.default_rng(1)
    sizes = [(14, 20), (16, 16), (41, 30)] * 3  # (height, width)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    masks = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    fill = (9, 200, 77) if mode == "constant" else 0
    for padding, size in ((40, (12, 17)), ((1, 2, 3, 4), (32, 40))):
        crop = RandomCrop(padding, pad_if_needed=True, fill=fill, padding_mode=mode)
        augment = Augment(size, crop=crop, dtype="uint8", vertical_flip=0.5)
        found, found_masks, crops = decode(how, augment, images, masks)
        for row in range(len(images)):
            channels = [np.moveaxis(images[row], 2, 0)[channel] for channel in range(3)] + [masks[row]]
            levels = [*(np.broadcast_to(fill, 3)), FILL]
            for number, (channel, level) in enumerate(zip(channels, levels, strict=True)):
                padded = np.pad(channel, 90, mode=mode, **({"constant_values": level} if mode == "constant" else {}))
                y, x = crops.start[row] + 90
                expected = padded[y : y + size[0], x : x + size[1]]
                expected = expected[:: -1 if crops.mirror_y[row] else 1, :: -1 if crops.mirror[row] else 1]
                shown = found[row, number] if number < 3 else found_masks[row]
                np.testing.assert_array_equal(shown, expected)


WARPS: dict[str, tuple[Any, ...]] = {
    "rotation": (RandomRotation(30, "bilinear", fill=(10, 20, 250)),),
    "nearest": (RandomRotation(30),),
    "merged": (RandomAffine(10, (0.1, 0.1), (0.5, 1.5), 10, "bilinear"), RandomPerspective()),
    "sometimes, then others": (RandomApply((RandomRotation(30, "bilinear"),)), ColorJitter(0.4), RandomErasing(1.0)),
    "after others": (RandomInvert(0.5), RandomPerspective(interpolation="nearest")),
}


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("rotation", {"crop": "random"}),
    ("nearest", {"crop": RandomCrop(8, pad_if_needed=True, padding_mode="reflect"), "layout": "channels_last"}),
    ("merged", {"crop": "pad_or_crop", "dtype": "float16"}),
    ("sometimes, then others", {"crop": "random", "layout": "channels_last"}),
    ("after others", {"crop": "none", "dtype": "uint8", "vertical_flip": 0.5}),
    ("merged", {"crop": RandomCrop(8, pad_if_needed=True), "dtype": "uint8"}),
]


@pytest.mark.parametrize(("warps", "options"), OPTIONS, ids=[str(number) for number in range(len(OPTIONS))])
def test_all_decoders_make_the_same(warps: str, options: dict[str, Any]) -> None:
    """uploading: torch does all but the crop, as on a GPU."""
    images, masks = pictures()
    augment = Augment((40, 56), transforms=WARPS[warps], normalize=Normalize((0, 0, 0), (1 / 255,) * 3), **options)
    (one, one_mask, _), (other, other_mask, _) = (
        decode(how, augment, images, masks) for how in ("native", "uploading")
    )
    assert one.dtype == other.dtype and float((one.float() - other.float()).abs().max()) <= 2
    assert torch.equal(one_mask, other_mask)
    dali, dali_mask, _ = decode("dali", augment, images, masks)
    difference = (one.float() - dali.float()).abs()
    assert float(difference.max()) <= 3 and float(difference.mean()) < 0.3
    assert float((one_mask != dali_mask).float().mean()) < 0.04  # ties between two nearest pixels in the resize


def test_boxes_and_keypoints_with_mirrored_padding_are_refused(tmp_path: Path) -> None:
    pixels = np.zeros((20, 20, 3), np.uint8)
    sample = {"image": pixels, "boxes": [[1, 2, 8, 9]], "boxes_class": [0], "keypoints": [[[1, 2, 2], [3, 4, 2]]]}
    gpuload.pack([{**sample, "name": str(number)} for number in range(3)], tmp_path, workers=1)
    for field in ("boxes", "keypoints"):
        message = rf"fields: '{field}' are not defined with RandomCrop\(padding_mode='reflect'\), whose padding shows"
        augment = Augment(16, crop=RandomCrop(4, padding_mode="reflect"))
        with pytest.raises(gpuload.ArgumentError, match=message):
            load(tmp_path / "train", 2, augment=augment, fields=("image", field))
        augment = Augment(16, crop=RandomCrop(4))
        with load(tmp_path / "train", 2, augment=augment, fields=("image", field)) as loader:
            assert len(list(loader)) == 1
