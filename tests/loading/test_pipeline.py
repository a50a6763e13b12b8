"""The graph: pixels against Pillow's and torchvision's, and that its GPU half can be defined."""

import io
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from images import smooth_image
from nvidia.dali import Pipeline
from PIL import Image

import gpuload
from gpuload.augment import Augment, Crops
from gpuload.pipeline import BatchDecodeError, DaliDecoder, Largest, operators
from gpuload.reader import Bytes


@dataclass(frozen=True)
class Request:
    images: Sequence[Bytes]
    crops: Crops


def encode(image: Image.Image, **options: Any) -> Bytes:
    """As PNG, unless told otherwise: no loss, so that only what comes after decoding can differ."""
    file = io.BytesIO()
    image.save(file, **{"format": "PNG", **options})
    return np.frombuffer(file.getvalue(), np.uint8)


def request(augment: Augment, images: list[Image.Image], *, seed: int = 0) -> Request:
    widths, heights = np.array([image.size for image in images], np.int32).T
    return Request([encode(i) for i in images], augment.draw(seed, 0, np.arange(len(images)), widths, heights))


def decoder(augment: Augment, batch_size: int = 8, prefetch: int = 2) -> DaliDecoder[Request]:
    return DaliDecoder(augment, batch_size=batch_size, device_id=None, num_threads=1, prefetch=prefetch)


def decode(augment: Augment, wanted: Request) -> np.ndarray:
    """(N, height, width, 3) of the augment's dtype."""
    [(_, pixels)] = decoder(augment, len(wanted.images)).decode(iter([wanted]))
    return np.asarray(pixels.as_tensor())


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [smooth_image(rng, w, h) for w, h in [(60, 40), (128, 128), (33, 200), (301, 97), (40, 41)]]


def apart(first: np.ndarray, second: np.ndarray) -> tuple[float, int]:
    """Mean and largest absolute difference."""
    difference = np.abs(first.astype(int) - second.astype(int))
    return float(difference.mean()), int(difference.max())


UINT8_HWC: Any = {"dtype": "uint8", "layout": "channels_last"}
# Pillow rounds to uint8 between its two passes, DALI does not: up to 2 levels, 0.2 on average.
MEAN, LARGEST = 0.3, 2


def test_random_crop_is_pillows_crop_and_resize(images: list[Image.Image]) -> None:
    augment = Augment((48, 56), **UINT8_HWC)
    wanted = request(augment, images)
    found = decode(augment, wanted)
    flips = 0
    for image, start, shape, mirror, pixels in zip(
        images, wanted.crops.start, wanted.crops.shape, wanted.crops.mirror, found, strict=True
    ):
        (top, left), (height, width) = start.tolist(), shape.tolist()
        expected = image.crop((left, top, left + width, top + height)).resize((56, 48), Image.Resampling.BILINEAR)
        if mirror:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            flips += 1
        mean, largest = apart(pixels, np.asarray(expected))
        assert mean < MEAN and largest <= LARGEST
    assert 0 < flips < len(images)


@pytest.mark.parametrize(("size", "resize"), [(32, 36), (32, 32), (50, 57), ((24, 40), 44), (224, 256)])
def test_center_crop_is_torchvisions(transforms: ModuleType, images: list[Image.Image], size: Any, resize: int) -> None:
    augment = Augment(size, crop="center", resize=resize, **UINT8_HWC)
    reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
    found = decode(augment, request(augment, images))
    for image, pixels in zip(images, found, strict=True):
        mean, largest = apart(pixels, np.asarray(reference(image)))
        assert mean < MEAN and largest <= LARGEST


def test_default_center_crop_resizes_224_to_256() -> None:
    assert (Augment(224).resize_px, Augment(112).resize_px, Augment((224, 96)).resize_px) == (256, 128, 256)


def test_no_crop_stretches_the_whole_image(images: list[Image.Image]) -> None:
    augment = Augment((20, 30), crop="none", **UINT8_HWC)
    found = decode(augment, request(augment, images))
    for image, pixels in zip(images, found, strict=True):
        mean, largest = apart(pixels, np.asarray(image.resize((30, 20), Image.Resampling.BILINEAR)))
        assert mean < MEAN and largest <= LARGEST


def test_normalisation_and_layout(images: list[Image.Image]) -> None:
    raw = decode(Augment(24, **UINT8_HWC), request(Augment(24), images))
    mean, std = np.array(Augment(24).mean), np.array(Augment(24).std)
    expected = ((raw / 255 - mean) / std).transpose(0, 3, 1, 2)
    # The resized pixels are rounded to uint8 in both, so only float rounding is left: float16 has 11 bits.
    np.testing.assert_allclose(decode(Augment(24), request(Augment(24), images)), expected, atol=1e-5)
    half = decode(Augment(24, dtype="float16"), request(Augment(24), images))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, expected, atol=2e-3)


def test_batches_of_any_size_come_in_order_whatever_the_prefetch(images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    wanted = [request(augment, images[:n], seed=n) for n in (5, 5, 3, 1, 4)]
    for prefetch in (1, 2, 7):
        found = list(decoder(augment, 5, prefetch).decode(iter(wanted)))
        assert [one for one, _ in found] == wanted
        assert [len(pixels) for _, pixels in found] == [5, 5, 3, 1, 4]


def test_a_call_that_is_left_early_does_not_leak_into_the_next(images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    first, second = ([request(augment, images, seed=s) for s in seeds] for seeds in ([1, 2, 3, 4], [5, 6]))
    one = decoder(augment, 5)
    assert next(one.decode(iter(first)))[0] is first[0]
    assert [request for request, _ in one.decode(iter(second))] == second


def test_an_image_that_does_not_decode_is_found_and_the_decoder_goes_on(images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    good = request(augment, images)
    jpeg = encode(images[1], format="JPEG")
    for bad in (np.zeros(500, np.uint8), jpeg[: len(jpeg) // 2], np.empty(0, np.uint8)):
        broken = Request([good.images[0], bad, good.images[2], bad, good.images[4]], good.crops)
        one = decoder(augment, 5)
        found = []
        with pytest.raises(BatchDecodeError, match="2 of 5 images do not decode") as caught:
            for wanted, _ in one.decode(iter([good, good, broken, good])):
                found.append(wanted)
        assert found == [good, good]
        assert caught.value.places == [1, 3] and caught.value.request is broken
        assert [wanted for wanted, _ in one.decode(iter([good]))] == [good]


def test_an_error_of_the_source_comes_through(images: list[Image.Image]) -> None:
    augment = Augment(16, **UINT8_HWC)
    good = request(augment, images)

    def source() -> Any:
        yield good
        raise gpuload.ShardError("gone")

    one = decoder(augment, 5)
    with pytest.raises(gpuload.ShardError, match="gone"):
        list(one.decode(source()))
    assert len(list(one.decode(iter([good, good])))) == 2


@pytest.mark.parametrize("augment", [Augment(8), Augment(8, crop="center", dtype="uint8", layout="channels_last")])
def test_the_gpu_graph_can_be_defined(augment: Augment) -> None:
    """Without a GPU too: DALI checks the names of operators and of their arguments when a graph is defined."""
    with Pipeline(batch_size=4, num_threads=1, device_id=0):
        assert operators(augment, Largest(640, 480, 1), lambda: ()).device == "gpu"
    with Pipeline(batch_size=4, num_threads=1, device_id=None):
        assert operators(augment, Largest(640, 480, 1), lambda: ()).device == "cpu"


def test_without_dali_it_is_said_which_extra_brings_it() -> None:
    code = (
        "import sys; sys.modules['nvidia.dali'] = None\n"
        "import gpuload\n"
        "try: gpuload.DaliIterator\n"
        "except gpuload.MissingPackageError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "NVIDIA DALI is not installed" in said
    assert "pip install 'gpuload[cuda13]'" in said
