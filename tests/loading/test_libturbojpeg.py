"""The system's libturbojpeg: its pixels against simplejpeg's, and what it leaves to others."""

import ctypes
import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from images import smooth_image
from PIL import Image

from gpuload import libturbojpeg

GUARD = 0xA5

library = libturbojpeg.find()
needs_library = pytest.mark.skipif(library is None, reason="libturbojpeg is not installed here")


def encode(image: Image.Image, **options: Any) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def decode(
    images: list[np.ndarray], sizes: list[tuple[int, int]], factors: list[int], skipped: list[bool] | None = None
) -> tuple[list[np.ndarray | None], np.ndarray]:
    """The pixels of those that were decoded, and the memory behind the last of them."""
    assert library is not None
    spans = np.array([(image.ctypes.data, image.size) for image in images], np.int64)
    pictures = np.zeros((len(images), 7), np.int64)
    pictures[:, 1:3] = sizes
    room = 3 * sum(height * width for height, width in sizes)
    memory = np.full(room + 64, GUARD, np.uint8)
    decoder = libturbojpeg.TurboJpeg(library)
    skip = np.array([False] * len(images) if skipped is None else skipped)
    decoder.decode(spans, np.array(factors), skip, memory.ctypes.data, pictures)
    found: list[np.ndarray | None] = []
    for address, height, width, stride, top, left, factor in pictures.tolist():
        begin = address - memory.ctypes.data
        assert address == 0 or (stride, top, left, factor) == (3 * width, 0, 0, factors[len(found)])
        pixels = memory[begin : begin + height * stride].reshape(height, width, 3) if address else None
        found.append(pixels)
    return found, memory[room:]


@needs_library
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_its_pixels_are_those_of_simplejpeg(factor: int, mode: str) -> None:
    rng = np.random.default_rng(1)
    sizes = [(64, 64), (121, 77), (203, 301), (9, 300)]  # height, width
    options = [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}]
    images = [
        encode(smooth_image(rng, width, height).convert(mode), **kind)
        for (height, width), kind in zip(sizes, options, strict=True)
    ]
    found, behind = decode(images, sizes, [factor] * 4)
    for pixels, data, (height, width) in zip(found, images, sizes, strict=True):
        small: Any = {"min_height": -(-height // factor), "min_width": -(-width // factor), "min_factor": factor}
        np.testing.assert_array_equal(pixels, simplejpeg.decode_jpeg(data, **(small if factor > 1 else {})))
    assert (behind == GUARD).all()


@needs_library
def test_what_it_leaves_to_others() -> None:
    rng = np.random.default_rng(2)
    good = encode(smooth_image(rng, 40, 30))
    larger, smaller = encode(smooth_image(rng, 41, 30)), encode(smooth_image(rng, 40, 29))
    cmyk = encode(smooth_image(rng, 40, 30).convert("CMYK"))
    wrong = [larger, smaller, cmyk, good[: good.size // 2], good[2:], np.zeros(100, np.uint8), good[:0]]
    images = [part for image in wrong for part in (image, good)]
    found, behind = decode(images, [(30, 40)] * len(images), [1] * len(images))
    assert found[::2] == [None] * len(wrong)
    for pixels in found[1::2]:  # each is as if the others were not there
        np.testing.assert_array_equal(pixels, simplejpeg.decode_jpeg(good))
    assert (behind == GUARD).all()


@needs_library
def test_what_is_skipped_is_not_decoded() -> None:
    good = encode(smooth_image(np.random.default_rng(3), 40, 30))
    found, _ = decode([good] * 3, [(30, 40)] * 3, [1] * 3, [False, True, False])
    assert [pixels is None for pixels in found] == [False, True, False]


def test_a_library_that_is_not_there_or_not_itself_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def missing(path: str) -> Any:
        tried.append(path)
        raise OSError(f"{path}: cannot open shared object file")

    real = ctypes.CDLL
    for load in (missing, lambda path: real(None)):  # the second one: a library without its functions
        monkeypatch.setattr(ctypes, "CDLL", load)
        libturbojpeg.find.cache_clear()
        try:
            assert libturbojpeg.find() is None
        finally:
            monkeypatch.undo()
            libturbojpeg.find.cache_clear()
    assert any("turbojpeg" in path for path in tried)
    assert (libturbojpeg.find() is None) == (library is None)
