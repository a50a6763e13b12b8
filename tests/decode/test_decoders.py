"""All decoders: pixels against Pillow's and torchvision's, order, and images that do not decode."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import images as images_
import numpy as np
import pytest
from made_batches import make_batch, no_spare, with_images
from opened import open_runner, pretend_gpu
from PIL import Image

from gpuload import Augment, CenterCrop, Normalize
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import BatchDecodeError, Stored
from gpuload.read.batch import Batch


def encode(image: Image.Image, format: str = "PNG") -> np.ndarray:
    """As PNG, unless told otherwise: no loss, so that only what comes after decoding can differ."""
    return np.frombuffer(images_.encode(image, format), np.uint8)


def batch_of(augment: Augment, images: list[Image.Image], *, seed: int = 0) -> Batch:
    return make_batch(augment, [encode(image) for image in images], [image.size for image in images], seed=seed)


Open = Callable[..., Any]


@pytest.fixture(params=["dali", "native", "both", "uploading"])
def open_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[Any] = []
    name = request.param
    if name == "uploading":
        pretend_gpu(monkeypatch)
        name = "native"

    def open_(augment: Augment, batch_size: int = 8, prefetch: int = 2) -> Any:
        opened.append(open_runner(name, (augment.form,), Stored(plain=name == "native"), batch_size, prefetch=prefetch))
        return opened[-1]

    yield open_
    for decoder in opened:
        decoder.close()


def decode(open_decoder: Open, augment: Augment, wanted: Batch) -> np.ndarray:
    """The batch, of the augment's dtype and layout."""
    [(_, decoded)] = open_decoder(augment, len(wanted)).decode(iter([wanted]))
    return np.asarray(decoded.images[0]).copy()


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [images_.smooth_image(rng, w, h) for w, h in [(60, 40), (128, 128), (33, 200), (301, 97), (40, 41)]]


def apart(first: np.ndarray, second: np.ndarray) -> tuple[float, int]:
    """Mean and largest absolute difference."""
    difference = np.abs(first.astype(int) - second.astype(int))
    return float(difference.mean()), int(difference.max())


UINT8_HWC: Any = {"dtype": "uint8", "layout": "channels_last"}
# Pillow and torch round to uint8 between their two passes, DALI does not: up to 2 levels, 0.2 on average.
MEAN, LARGEST = 0.3, 2


@pytest.mark.parametrize("crop", ["random", "none"])
def test_pixels_are_those_of_pillows_crop_and_resize(open_decoder: Open, images: list[Image.Image], crop: Any) -> None:
    augment = Augment((48, 56), crop=crop, **UINT8_HWC)
    wanted = batch_of(augment, images)
    found = decode(open_decoder, augment, wanted)
    crops = wanted.views[0].crops
    flips = 0
    for image, start, shape, mirror, pixels in zip(images, crops.start, crops.shape, crops.mirror, found, strict=True):
        (top, left), (height, width) = start.tolist(), shape.tolist()
        expected = image.crop((left, top, left + width, top + height)).resize((56, 48), Image.Resampling.BILINEAR)
        if mirror:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            flips += 1
        mean, largest = apart(pixels, np.asarray(expected))
        assert mean < MEAN and largest <= LARGEST
        assert crop == "random" or (top, left, width, height) == (0, 0, *image.size)
    assert 0 < flips < len(images) if crop == "random" else not flips


@pytest.mark.parametrize(("size", "resize"), [(32, 36), (32, 32), (50, 57), ((24, 40), 44), (224, 256)])
def test_center_crop_is_torchvisions(
    open_decoder: Open, transforms: ModuleType, images: list[Image.Image], size: Any, resize: int
) -> None:
    crop = "center" if size == 224 else CenterCrop(resize=resize)  # whose default is that of 256 for 224
    augment = Augment(size, crop=crop, **UINT8_HWC)
    reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
    found = decode(open_decoder, augment, batch_of(augment, images))
    for image, pixels in zip(images, found, strict=True):
        mean, largest = apart(pixels, np.asarray(reference(image)))
        assert mean < MEAN and largest <= LARGEST


def test_normalisation_and_layout(open_decoder: Open, images: list[Image.Image]) -> None:
    raw = decode(open_decoder, Augment(24, **UINT8_HWC), batch_of(Augment(24), images))
    mean, std = np.array(Normalize().mean), np.array(Normalize().std)
    expected = ((raw / 255 - mean) / std).transpose(0, 3, 1, 2)
    # The resized pixels are rounded to uint8 in both, so only float rounding is left: float16 has 11 bits.
    np.testing.assert_allclose(decode(open_decoder, Augment(24), batch_of(Augment(24), images)), expected, atol=1e-5)
    half = decode(open_decoder, Augment(24, dtype="float16"), batch_of(Augment(24), images))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, expected, atol=2e-3)


def test_batches_of_any_size_come_in_order_whatever_the_prefetch(open_decoder: Open, images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    wanted = [batch_of(augment, images[:n], seed=n) for n in (5, 5, 3, 1, 4)]
    for prefetch in (1, 2, 7):
        found = list(open_decoder(augment, 5, prefetch).decode(iter(wanted)))
        assert [one for one, _ in found] == wanted
        assert [np.asarray(decoded.images[0]).shape[0] for _, decoded in found] == [5, 5, 3, 1, 4]


def test_a_call_that_is_left_early_does_not_leak_into_the_next(open_decoder: Open, images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    first, second = ([batch_of(augment, images, seed=s) for s in seeds] for seeds in ([1, 2, 3, 4], [5, 6]))
    one = open_decoder(augment, 5)
    assert next(one.decode(iter(first)))[0] is first[0]
    assert [batch for batch, _ in one.decode(iter(second))] == second


def test_an_image_that_does_not_decode_is_found_and_the_decoder_goes_on(
    open_decoder: Open, images: list[Image.Image], request: pytest.FixtureRequest
) -> None:
    augment = Augment(16, **UINT8_HWC)
    good = batch_of(augment, images)
    jpeg = encode(images[1], "JPEG")
    for bad in (np.zeros(500, np.uint8), jpeg[: len(jpeg) // 2], np.empty(0, np.uint8)):
        broken = with_images(good, [bad if row in (1, 3) else data for row, data in enumerate(good.encoded.images)])
        one = FaultHandler(open_decoder(augment, 5))  # without a screen: DALI meets them itself
        found = []
        with pytest.raises(BatchDecodeError, match="of 5 samples do not decode") as caught:
            for guarded in one.decode(iter([good, good, broken, good]), no_spare):
                found += [guarded.batch]
        assert found == [good, good]
        faults = [[1], [3], [1, 3]] if "both" in request.node.name else [[1, 3]]  # those of DALI's part end the run
        assert list(caught.value.faults) in faults and caught.value.batch is broken
        assert [guarded.batch for guarded in one.decode(iter([good]), no_spare)] == [good]
