"""Further pictures of any size, also of one pixel, where crops show padding: all decoders fill the same pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import HAS_DALI, load
from PIL import Image

import gpuload
from gpuload import Augment, Depth, Letterbox, Picture, Pictures, RandomCrop, ZoomOut

SIDES = [1, 2, 3, 5, 8, 13, 40]
SIZES = [(height, width) for height in SIDES for width in SIDES]
IMAGE = (30, 24)
LEVEL = 200
EVERY: dict[str, Any] = {"flip": 0.5, "vertical_flip": 0.5, "normalize": None, "dtype": "uint8"}
AUGMENTS = {
    "crops that lie in the padding": Augment(12, crop=RandomCrop(padding=20), **EVERY),
    "crops beside the image": Augment((7, 9), crop=RandomCrop(padding=(9, 8), fill=30), **EVERY),
    "larger than the image": Augment((40, 44), crop=RandomCrop(padding=3, pad_if_needed=True, fill=30), **EVERY),
    "pad or crop": Augment((33, 10), crop="pad_or_crop", **EVERY),
    "letterbox": Augment((20, 28), crop=Letterbox(fill=30), **EVERY),
    "zoomed out": Augment(20, crop=ZoomOut((1, 6)), **EVERY),
}


def plain(size: tuple[int, int], level: int = LEVEL, channels: int = 3) -> Image.Image:
    shape = (*size, channels) if channels > 1 else size
    return Image.fromarray(np.full(shape, level, np.uint8))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padding") / "set"
    samples = [
        {
            "image": plain(IMAGE),
            "other": plain(size),
            "depth": np.full(size, 500, np.uint16),
            "views": [plain(size), plain(size[::-1]), plain(IMAGE)],
            "mask": plain(IMAGE, 1, 1),
        }
        for size in SIZES
    ]
    gpuload.pack(samples, folder, workers=1, progress=False, shuffle=False, pictures=["depth"])
    return folder / "train"


FIELDS = ("image", "other", "depth", "views", "mask", "pixel_mask")


def loaded(packed: Path, augment: Augment, interpolation: Any, decoder: str) -> dict[str, np.ndarray]:
    depth: Any = Depth("depth", interpolation="nearest" if interpolation == "nearest" else "bilinear")
    views = Pictures("views", count=3, interpolation=None if interpolation == "nearest" else interpolation)
    fields = ("image", Picture("other", interpolation=interpolation), depth, views, "mask", "pixel_mask")
    options: dict[str, Any] = {"augment": augment, "fields": fields, "decoder": decoder, "seed": 1}
    with load(packed, len(SIZES), **options, shuffle=False) as loader:
        batch: Any = next(iter(loader))
    return {name: getattr(batch, name).numpy() for name in FIELDS}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("name", AUGMENTS)
def test_all_decoders_pad_the_same_pixels(packed: Path, name: str, interpolation: Any) -> None:
    augment = AUGMENTS[name]
    native = loaded(packed, augment, interpolation, "native")
    fill = int(native["image"].min()) if native["image"].min() < LEVEL else -1
    assert set(np.unique(native["other"])) <= {fill, LEVEL}
    # Of the image's own size all is known: its mask, and where the batch says it is.
    is_image = native["image"][:, 0] == LEVEL
    assert np.array_equal(native["mask"] == 1, is_image)
    assert np.array_equal(native["pixel_mask"], is_image)
    assert np.array_equal(native["views"][:, 2, 0] == LEVEL, is_image)
    # Where the image is not at all, no picture of its sample is.
    nowhere = ~is_image.any(axis=(1, 2))
    for field in ("other", "depth", "views"):
        values = native[field][nowhere]
        assert (values == (0 if field == "depth" else fill)).all()
    # "both" takes no images that are scaled and padded.
    decoders = ("dali",) if augment.form.places else ("dali", "both")
    if HAS_DALI:
        for decoder in decoders:
            found = loaded(packed, augment, interpolation, decoder)
            for field in FIELDS:
                assert np.array_equal(found[field], native[field]), field
