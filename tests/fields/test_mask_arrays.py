"""Masks that a program gives as arrays, and files that are no masks."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpuload import DecodeError
from gpuload.fields.field import Field
from gpuload.fields.motion import place
from gpuload.fields.registry import KINDS

FIELD = Field("mask", "mask", "mask.png")
NUMBERS = np.arange(12).reshape(3, 4) * 23


def stored(value: Any) -> Any:
    member = KINDS["mask"].store(FIELD, value, place((4, 3), None, "shortest", False))
    return np.asarray(Image.open(io.BytesIO(member.content)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint16])
def test_with_a_channel_or_without(dtype: Any) -> None:
    for value in (NUMBERS.astype(dtype), NUMBERS.astype(dtype)[..., None]):
        assert stored(value).tolist() == NUMBERS.tolist()
    assert stored(NUMBERS > 100).tolist() == (NUMBERS > 100).astype(int).tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NUMBERS - 1, "class numbers must be in 0..255; found -1..252"),
        (NUMBERS + 3, "class numbers must be in 0..255; found 3..256"),
        (NUMBERS.T, "the mask has 3 x 4 pixels, its image 4 x 3"),
        (np.stack([NUMBERS] * 3, axis=2), "the mask has"),
        (NUMBERS[:, None], "the mask has"),
    ],
)
def test_what_is_refused(value: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        stored(value)


def png(value: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(value).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "the mask cannot be decoded"),
        (png(NUMBERS.astype(np.uint8))[:50], "the mask cannot be decoded"),
        (
            png(np.stack([NUMBERS.astype(np.uint8)] * 3, axis=2)),
            r"one class number per pixel; found colours \(mode RGB\)",
        ),
        (png(NUMBERS.T.astype(np.uint8)), "the mask has 3 x 4 pixels, its image 4 x 3"),
    ],
)
def test_files_that_are_no_masks(content: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        stored(content)


def test_a_plain_file_is_kept() -> None:
    content = png(NUMBERS.astype(np.uint8))
    assert KINDS["mask"].store(FIELD, content, place((4, 3), None, "shortest", False)).content == content
