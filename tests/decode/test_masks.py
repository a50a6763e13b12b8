"""Masks that do not fit or do not decode, and where an output pixel takes its class from."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pytest
from damaged import damage
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode
from PIL import Image

import gpuload
from gpuload import Augment
from gpuload.decode.pillow import crop_and_resize_mask

BROKEN = 7  # of eight samples to a batch, unshuffled, the first batch's last


@pytest.fixture(params=["dali", "native", "both"])
def decoder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def png(width: int, height: int) -> bytes:
    return encode(Image.new("1", (width, height), 1), "PNG")


def replaced(painted: Path, tmp_path: Path, field: str, data: bytes) -> tuple[Path, str]:
    """A copy of the set in which bytes stand in place of one sample's field, and a pattern of that sample's name.

    The packer refuses such samples, so that it is done in the shard; what follows the end of a PNG does not count.
    """
    dataset = gpuload.Dataset(painted)
    folder = damage(painted, tmp_path / "damaged", [BROKEN], lambda _: data, field)
    return folder, rf"shard-00000{int(dataset.shards_of(BROKEN))}.tar: .*'{dataset.keys([BROKEN])[0]}'"


def load(folder: Path, decoder: str, augment: Any, fields: Any = ("index", "mask")) -> gpuload.DaliIterator:
    return loaders.load(folder, 4, augment=augment, fields=fields, decoder=decoder, shuffle=False, drop_last=False)


@pytest.mark.parametrize("size", [(160, 150), (30, 20), (123, 117), (1, 1)])
@pytest.mark.parametrize("crop", ["random", "pad_or_crop"])
def test_a_mask_of_another_size_is_named(
    painted: Path, tmp_path: Path, decoder: str, size: tuple[int, int], crop: Any
) -> None:
    folder, name = replaced(painted, tmp_path, "mask", png(*size))
    loader = load(folder, decoder, Augment(16, crop=crop), ("index", "image", "mask"))
    seen = []
    with pytest.raises(
        gpuload.DecodeError, match=rf"{name} does not decode .*: it is not of its image's size. Pack it again"
    ) as caught:
        for index, *_ in loader:
            seen += index.tolist()
    assert seen == [0, 1, 2, 3] and "\n" not in str(caught.value)
    assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]  # and the loader still works
    loader.close()
    with load(folder, decoder, Augment(16, crop=crop), ("index", "image")) as unmasked:
        assert sum(len(index) for index, _ in unmasked) == 40


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n" + bytes(40), png(100, 117)[:-20]])
def test_a_broken_mask_is_named(painted: Path, tmp_path: Path, decoder: str, data: bytes) -> None:
    folder, name = replaced(painted, tmp_path, "mask", data)
    with load(folder, decoder, Augment(16)) as loader:
        batches = iter(loader)
        assert next(batches)[0].tolist() == [0, 1, 2, 3]
        with pytest.raises(
            gpuload.DecodeError,
            match=rf"the mask 'mask' of sample {name.split('.*')[1]} does not decode \(byte [\d,]+\): .*. Pack",
        ):
            next(batches)


def test_a_corrupt_image_among_several_views_is_named(painted: Path, tmp_path: Path, decoder: str) -> None:
    folder, name = replaced(painted, tmp_path, "image", b"\x89PNG\r\n\x1a\n")
    views = [Augment(16), Augment(8, normalize="image"), Augment(200, crop="pad_or_crop")]
    loader = load(folder, decoder, views, ("index", "image", "mask"))
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(gpuload.DecodeError, match=rf"{name} does not decode \(byte [\d,]+\): .*. Pack it again"):
        next(batches)
    index, images, masks = next(iter(loader))
    assert index.tolist() == [0, 1, 2, 3] and len(images) == len(masks) == 3
    loader.close()


@settings(max_examples=60)
@given(
    st.sampled_from(["random", "center", "none", "pad_or_crop"]),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(0, 2**40),
)
def test_a_pixel_takes_the_class_at_its_middle(crop: Any, width: int, height: int, size: int, seed: int) -> None:
    """Of region r, output pixel i of n has its middle at (2 i + 1) r / 2 n: in whole numbers where those of r are."""
    mask = np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)
    augment = Augment((size, size + 3), crop=crop, flip=0.5, vertical_flip=0.5)
    view = augment.draw(seed, 0, np.arange(1), np.array([width], np.int32), np.array([height], np.int32))
    found = crop_and_resize_mask(mask, view, 0, 9, Augment(1).form)
    crops = view.crops
    places = []
    for axis, (start, shape, low, high) in enumerate(zip(*(part[0].tolist() for part in crops[:4]), strict=True)):
        twice = [
            Fraction(2 * i + 1) * (Fraction(high) - Fraction(low)) / view.size[axis] for i in range(view.size[axis])
        ]
        places.append([start + min(math.floor(Fraction(low) + middle / 2), shape - 1) for middle in twice])
    around = np.pad(mask, 80, constant_values=9)
    expected = around[80 + np.array(places[0])[:, None], 80 + np.array(places[1])]
    expected = expected[:, ::-1] if crops.mirror[0] else expected
    np.testing.assert_array_equal(found, expected[::-1] if crops.mirror_y[0] else expected)
