"""Masks that do not fit or do not decode, and where an output pixel takes its class from."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode
from loaders import load
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


ANOTHER_SIZE = r": it is not of its image's size. Pack it again"
VIEWS = [Augment(16), Augment(8, normalize="image"), Augment(200, crop="pad_or_crop")]


@pytest.mark.parametrize(
    ("field", "data", "augment", "reason"),
    [
        *(
            ("mask", png(*size), Augment(16, crop="pad_or_crop"), ANOTHER_SIZE)
            for size in [(160, 150), (30, 20), (1, 1)]
        ),
        ("mask", png(123, 117), Augment(16), ANOTHER_SIZE),
        ("mask", b"", Augment(16), ": .*. Pack"),
        ("mask", b"\x89PNG\r\n\x1a\n" + bytes(40), Augment(16), ": .*. Pack"),
        ("mask", png(100, 117)[:-20], Augment(16), ": .*. Pack"),
        ("image", b"\x89PNG\r\n\x1a\n", VIEWS, ": .*. Pack"),
    ],
)
def test_what_does_not_decode_is_named_and_the_loader_goes_on(
    painted: Path, tmp_path: Path, decoder: str, field: str, data: bytes, augment: Any, reason: str
) -> None:
    """The packer refuses such samples, so that bytes are put in a shard; what follows the end of a PNG does not count."""
    dataset = gpuload.Dataset(painted)
    folder = damage(painted, tmp_path / "damaged", [BROKEN], lambda _: data, field)
    shard, key = f"shard-00000{int(dataset.shards_of(BROKEN))}.tar: ", dataset.keys([BROKEN])[0]
    name = rf"{shard}{'the mask .mask. of ' if field == 'mask' else ''}sample '{key}' does not decode"
    options: Any = {"augment": augment, "decoder": decoder, "shuffle": False, "drop_last": False}
    with load(folder, 4, fields=("index", "image", "mask"), **options) as loader:
        for first in ([0, 1, 2, 3], None):  # the second loop begins where the first one ended
            batches = iter(loader)
            assert first is None or next(batches)[0].tolist() == first
            with pytest.raises(gpuload.DecodeError, match=rf"{name} \(byte [\d,]+\){reason}") as caught:
                next(batches)
            assert "\n" not in str(caught.value)
    if field == "mask":
        with load(folder, 4, fields=("index", "image"), **options) as unmasked:
            assert sum(len(index) for index, _ in unmasked) == 40


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
