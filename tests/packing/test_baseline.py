"""Progressive JPEGs that are stored as baseline: the same coefficients, and the loader's fast decoder takes them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from images import encode, photo
from PIL import Image

from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding

jpeglib = pytest.importorskip("jpeglib", reason="needs the extra 'sources'")


def make(mode: str = "RGB", **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    extra = {"exif": exif, "icc_profile": bytes(200), "comment": b"a comment"}
    return encode(photo(3).convert(mode), progressive=True, **extra, **options)


def baseline(data: bytes, how: Any = "baseline") -> bytes:
    return prepare_image(data, encoding=Encoding(jpeg=how)).data


def is_progressive(data: bytes) -> bool:
    return "progressive" in Image.open(io.BytesIO(data)).info


def coefficients(data: bytes, path: Path) -> list[np.ndarray]:
    path.write_bytes(data)
    image = jpeglib.read_dct(str(path))
    return [one for one in (image.Y, image.Cb, image.Cr, image.qt) if one is not None]


@pytest.mark.parametrize(("mode", "subsampling"), [("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)])
def test_coefficients_and_metadata_are_the_same(mode: str, subsampling: int, tmp_path: Path) -> None:
    data = make(mode, subsampling=subsampling)
    made = baseline(data)
    assert is_progressive(data) and not is_progressive(made)
    for one, other in zip(coefficients(data, tmp_path / "a"), coefficients(made, tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(data), simplejpeg.decode_jpeg(made))
    was, now = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(made))
    for name in ("exif", "icc_profile", "comment"):
        assert now.info[name] == was.info[name]


def test_metadata_can_be_left_out() -> None:
    bare = Image.open(io.BytesIO(baseline(make(), "bare-baseline")))
    assert {"exif", "icc_profile", "comment"}.isdisjoint(bare.info)


def test_the_packer_keeps_them_with_a_remark_or_makes_them_baseline() -> None:
    data = make()
    kept, made = prepare_image(data), prepare_image(data, encoding=Encoding(jpeg="baseline"))
    assert kept.data == data and list(kept.remarks.values()) == [1]
    assert "JPEGs are progressive, and crops of these load at half the rate" in next(iter(kept.remarks))
    assert made.kind == "jpeg-progressive" and not is_progressive(made.data)
    assert sum(made.remarks.values()) == abs(len(made.data) - len(data))
    assert all("progressive JPEGs became baseline, and take {} bytes" in remark for remark in made.remarks)
    plain = encode(photo(3))
    assert prepare_image(plain, encoding=Encoding(jpeg="baseline")).data == plain
