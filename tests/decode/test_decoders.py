"""All decoders, without a data set: pixels against Pillow's, torchvision's and NumPy's, order, and images that do not decode."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import images as images_
import numpy as np
import pytest
import torch
from loaders import load
from made_batches import make_batch, no_spare, with_images
from opened import open_runner, pretend_gpu
from PIL import Image

import gpuload
from gpuload import Augment, CenterCrop, Normalize, RandomCrop
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import BatchDecodeError, Stored
from gpuload.decode.runner import Runner
from gpuload.read.batch import Batch
from gpuload.transforms import (
    ColorJitter,
    RandomAffine,
    RandomApply,
    RandomErasing,
    RandomInvert,
    RandomPerspective,
    RandomRotation,
)

all_decoders = pytest.mark.parametrize("how", ["dali", "native", "both", "uploading"])
UINT8_HWC: Any = {"dtype": "uint8", "layout": "channels_last"}
MASK_FILL, BATCH_SIZE = 7, 9


def encode(image: Any, format: str = "PNG") -> np.ndarray:
    """As PNG, unless told otherwise: no loss, so that only what comes after decoding can differ."""
    return np.frombuffer(images_.encode(Image.fromarray(np.asarray(image)), format), np.uint8)


def batch_of(augment: Augment, images: Sequence[Any], masks: Sequence[Any] = (), *, seed: int = 0) -> Batch:
    sizes = [np.asarray(image).shape[1::-1] for image in images]
    fields = {"mask": [encode(mask) for mask in masks]} if masks else {}
    files = [encode(image) for image in images]
    return make_batch(augment, files, sizes, seed=seed, masks=fields, fill=MASK_FILL)


@contextmanager
def opened(how: str, augment: Augment, prefetch: int = 2, masks: Sequence[str] = ()) -> Iterator[Runner]:
    """uploading: the CPU decoder, and torch does all but the crop, as on a GPU. masks: names of the fields."""
    name = "native" if how == "uploading" else how
    fills = dict.fromkeys(masks, MASK_FILL)
    with pytest.MonkeyPatch.context() as patch:
        if how == "uploading":
            pretend_gpu(patch)
        stored = Stored(plain=name == "native")
        runner = open_runner(name, [augment.form], stored, BATCH_SIZE, prefetch=prefetch, fills=fills)
    try:
        yield runner
    finally:
        runner.close()


def decode(how: str, augment: Augment, wanted: Batch) -> tuple[torch.Tensor, ...]:
    """The images, and the masks if there are any."""
    _, *masks = wanted.views
    with opened(how, augment, masks=masks) as runner:
        [decoded] = runner.decode(iter([wanted]))
        images, *shown = (torch.as_tensor(views[0]).clone() for views in decoded.pictures.values())
        return images, *(mask[:, 0] for mask in shown)


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [images_.smooth_image(rng, w, h) for w, h in [(60, 40), (128, 128), (33, 200), (301, 97), (40, 41)]]


def assert_close(found: torch.Tensor, expected: Any) -> None:
    """Pillow and torch round to uint8 between their two passes, DALI does not: up to 2 levels, 0.2 on average."""
    gaps = np.abs(np.asarray(found).astype(int) - np.asarray(expected))
    assert gaps.mean() < 0.3 and gaps.max() <= 2


@all_decoders
@pytest.mark.parametrize("crop", ["random", "none"])
def test_pixels_are_those_of_pillows_crop_and_resize(how: str, images: list[Image.Image], crop: Any) -> None:
    augment = Augment((48, 56), crop=crop, **UINT8_HWC)
    wanted = batch_of(augment, images)
    crops = wanted.image_views[0].crops
    for row, (image, pixels) in enumerate(zip(images, decode(how, augment, wanted)[0], strict=True)):
        (top, left), (height, width) = crops.start[row].tolist(), crops.shape[row].tolist()
        expected = image.crop((left, top, left + width, top + height)).resize((56, 48), Image.Resampling.BILINEAR)
        if crops.mirror[row]:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert_close(pixels, expected)
        assert crop == "random" or (top, left, width, height) == (0, 0, *image.size)
    assert 0 < crops.mirror.sum() < len(images) if crop == "random" else not crops.mirror.any()


@all_decoders
@pytest.mark.parametrize(("size", "resize"), [(32, 36), (32, 32), (50, 57), ((24, 40), 44), (224, 256)])
def test_center_crop_is_torchvisions(
    how: str, transforms: ModuleType, images: list[Image.Image], size: Any, resize: int
) -> None:
    crop = "center" if size == 224 else CenterCrop(resize=resize)  # whose default is that of 256 for 224
    augment = Augment(size, crop=crop, **UINT8_HWC)
    reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
    for image, pixels in zip(images, decode(how, augment, batch_of(augment, images))[0], strict=True):
        assert_close(pixels, reference(image))


@all_decoders
@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_batches_of_any_size_come_in_order_also_after_a_call_that_was_left(
    how: str, images: list[Image.Image], prefetch: int
) -> None:
    augment = Augment(16, **UINT8_HWC)
    wanted = [batch_of(augment, images[:n], seed=n) for n in (5, 5, 3, 1, 4)]
    with opened(how, augment, prefetch) as runner:
        assert next(runner.decode(iter(wanted[1:]))).batch is wanted[1]
        found = list(runner.decode(iter(wanted)))
        assert [decoded.batch for decoded in found] == wanted
        assert [np.asarray(decoded.pictures["image"][0]).shape[0] for decoded in found] == [5, 5, 3, 1, 4]


@all_decoders
def test_an_image_that_does_not_decode_is_found_and_the_decoder_goes_on(how: str, images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    good, jpeg = batch_of(augment, images), encode(images[1], "JPEG")
    with opened(how, augment) as runner:
        for bad in (np.zeros(500, np.uint8), jpeg[: len(jpeg) // 2], np.empty(0, np.uint8)):
            broken = with_images(good, [bad if row in (1, 3) else data for row, data in enumerate(good.image.contents)])
            one = FaultHandler(runner)  # without a screen: DALI meets them itself
            found = []
            with pytest.raises(BatchDecodeError, match="of 5 samples do not decode") as caught:
                for guarded in one.decode(iter([good, good, broken, good]), no_spare):
                    found += [guarded.batch]
            assert found == [good, good]
            faults = [[1], [3], [1, 3]] if how == "both" else [[1, 3]]  # those of DALI's part end the run
            assert list(caught.value.faults) in faults and caught.value.batch is broken
            assert [guarded.batch for guarded in one.decode(iter([good]), no_spare)] == [good]


@pytest.mark.parametrize(
    ("how", "mode"),
    [("dali", "constant"), *(("native", mode) for mode in ("constant", "edge", "reflect", "symmetric"))],
)
def test_padding_is_numpys(how: str, mode: Any) -> None:
    rng = np.random.default_rng(1)
    sides = [(14, 20), (16, 16), (41, 30)] * 3  # height, width
    layers = [rng.integers(0, 256, (*size, 4), dtype=np.uint8) for size in sides]  # the last is the mask
    fill = (9, 200, 77) if mode == "constant" else 0
    for padding, size in ((40, (12, 17)), ((1, 2, 3, 4), (32, 40))):
        crop = RandomCrop(padding, pad_if_needed=True, fill=fill, padding_mode=mode)
        augment = Augment(size, crop=crop, dtype="uint8", vertical_flip=0.5)
        wanted = batch_of(augment, [one[..., :3] for one in layers], [one[..., 3] for one in layers])
        found, masks = decode(how, augment, wanted)
        crops = wanted.image_views[0].crops
        for row, pixels in enumerate(layers):
            for number, level in enumerate((*np.broadcast_to(fill, 3), MASK_FILL)):
                constant = {"constant_values": level} if mode == "constant" else {}
                padded = np.pad(pixels[..., number], 90, mode=mode, **constant)
                y, x = crops.start[row] + 90
                expected = padded[y : y + size[0], x : x + size[1]]
                expected = expected[:: -1 if crops.mirror_y[row] else 1, :: -1 if crops.mirror[row] else 1]
                np.testing.assert_array_equal(found[row, number] if number < 3 else masks[row], expected)


MERGED = RandomAffine(10, (0.1, 0.1), (0.5, 1.5), 10, "bilinear"), RandomPerspective()


@pytest.mark.parametrize(
    ("warps", "options"),
    [
        ([RandomRotation(30, "bilinear", fill=(10, 20, 250))], {"crop": "random"}),
        ([RandomRotation(30)], {"crop": RandomCrop(8, pad_if_needed=True), "layout": "channels_last"}),
        (MERGED, {"crop": "pad_or_crop", "dtype": "float16"}),
        (MERGED, {"crop": RandomCrop(8, pad_if_needed=True), "dtype": "uint8"}),
        (
            [RandomApply((RandomRotation(30, "bilinear"),)), ColorJitter(0.4), RandomErasing(1.0)],
            {"crop": "random", "layout": "channels_last"},
        ),
        (
            [RandomInvert(0.5), RandomPerspective(interpolation="nearest")],
            {"crop": "none", "dtype": "uint8", "vertical_flip": 0.5},
        ),
    ],
)
def test_all_decoders_make_the_same_of_warps(warps: Sequence[Any], options: dict[str, Any]) -> None:
    rng, sides = np.random.default_rng(0), [(90, 70), (64, 64), (50, 80)] * 2
    pictures = [images_.smooth_image(rng, *side) for side in sides]
    masks = [rng.integers(0, 256, side[::-1], dtype=np.uint8) for side in sides]
    augment = Augment((40, 56), transforms=warps, normalize=Normalize((0, 0, 0), (1 / 255,) * 3), **options)
    wanted = batch_of(augment, pictures, masks)
    (one, one_mask), (other, other_mask), (dali, dali_mask) = (
        decode(how, augment, wanted) for how in ("native", "uploading", "dali")
    )
    assert one.dtype == other.dtype and float((one.float() - other.float()).abs().max()) <= 2
    assert torch.equal(one_mask, other_mask)
    difference = (one.float() - dali.float()).abs()
    assert float(difference.max()) <= 3 and float(difference.mean()) < 0.3
    assert float((one_mask != dali_mask).float().mean()) < 0.04  # ties between two nearest pixels in the resize


@pytest.mark.parametrize("field", ["boxes", "keypoints"])
def test_places_with_mirrored_padding_are_refused(painted: Path, field: str) -> None:
    message = rf"fields: '{field}' are not defined with RandomCrop\(padding_mode='reflect'\), whose padding shows"
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(painted, augment=Augment(16, crop=RandomCrop(4, padding_mode="reflect")), fields=("image", field))
