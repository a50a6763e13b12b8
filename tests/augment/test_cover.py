"""Crops that cover the output: as Pillow resizes the whole image and cuts it, at places that are evenly spread."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import photo
from PIL import Image

import gpuload
from gpuload import Cover
from gpuload.augment.crops import Images

SIZE = (24, 32)  # height, width


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 99), st.integers(1, 99), st.floats(0, 0.999999))
def test_a_crop_covers_the_output_and_keeps_the_ratio(width: int, height: int, high: int, wide: int, at: float) -> None:
    sides = np.array([float(width)]), np.array([float(height)])
    crops = Cover().draw(
        Images(np.arange(1), *sides, (high, wide), 1, np.full((2, 1), at), lambda numbers, rows: numbers)
    )
    begin, end = crops.start[0] + crops.roi_start[0], crops.start[0] + crops.roi_end[0]
    assert (begin >= -1e-3).all() and (end <= np.array([height, width]) + 1e-3).all()
    scale = np.array([high, wide]) / (end - begin)
    resized = scale * (height, width)
    assert np.allclose(resized, np.rint(resized), atol=0.02) and (resized >= np.array([high, wide]) - 0.02).all()
    assert min(resized - (high, wide)) < 0.02  # one side fits exactly
    assert abs(resized[0] * width - resized[1] * height) <= max(width, height) * 1.02  # rounded to whole pixels
    stop = crops.start + crops.shape
    assert (crops.start >= 0).all() and (stop[0] <= (height, width)).all()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cover")
    images = [np.asarray(photo(number, 120 - 20 * number, 40 + 30 * number)) for number in range(4)]
    gpuload.pack([{"image": image} for image in images], folder, workers=1, encode="raw", shuffle=False)
    return folder / "train"


@pytest.mark.parametrize("crop", ["cover", "center_cover"])
def test_pixels_are_pillows(packed: Path, decoder: str, crop: Any) -> None:
    augment = gpuload.Augment(SIZE, crop=crop, flip=0.5, dtype="uint8")
    loader = gpuload.DaliIterator(packed, 4, augment=augment, decoder=decoder, device="cpu", shuffle=False,
                                  fields=("image", "original_size", "crop_top_left"))  # fmt: skip
    seen: set[tuple[int, ...]] = set()
    for _ in range(5):
        for images, sizes, places in loader:
            for number, (image, size, place) in enumerate(zip(images, sizes.tolist(), places.tolist(), strict=True)):
                source = photo(number, 120 - 20 * number, 40 + 30 * number)
                assert size == [source.height, source.width]
                scale = max(SIZE[0] / size[0], SIZE[1] / size[1])
                scaled = source.resize((round(size[1] * scale), round(size[0] * scale)), Image.Resampling.BILINEAR)
                y, x = place
                assert 0 <= y <= scaled.height - SIZE[0] and 0 <= x <= scaled.width - SIZE[1]
                found = image.permute(1, 2, 0).numpy().astype(int)
                differences = []
                for whole in (
                    scaled,
                    scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
                ):  # the place is in the flipped one
                    part = np.asarray(whole.crop((x, y, x + SIZE[1], y + SIZE[0]))).astype(int)
                    differences.append(np.abs(part - found)[1:-1, 1:-1].mean())
                assert min(differences) < 1
                seen.add((number, *place, int(np.argmin(differences))))
    assert len(seen) > 8 if crop == "cover" else 4 < len(seen) <= 8
