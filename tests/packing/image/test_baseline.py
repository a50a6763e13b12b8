"""Progressive JPEGs that are stored as baseline: the same coefficients, and the loader's fast decoder takes them."""

import io
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from images import encode, photo
from PIL import Image

from gpuload import DecodeError
from gpuload.headers.jpeg import read_header
from gpuload.packing.image.check import LARGER, SLOW, SMALLER, prepare_image
from gpuload.packing.image.jpegs import to_baseline
from gpuload.packing.options import Encoding

jpeglib = pytest.importorskip("jpeglib", reason="needs the extra 'sources'")


def make(mode: str = "RGB", **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    extra = {"exif": exif, "icc_profile": bytes(200), "comment": b"a comment"}
    return encode(photo(3).convert(mode), progressive=True, **extra, **options)


def coefficients(data: bytes, path: Path) -> list[np.ndarray]:
    path.write_bytes(data)
    image = jpeglib.read_dct(str(path))
    return [one for one in (image.Y, image.Cb, image.Cr, image.qt) if one is not None]


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_coefficients_and_metadata_are_the_same(mode: str, subsampling: int, tmp_path: Path) -> None:
    data = make(mode, subsampling=subsampling)
    made = to_baseline(data)
    assert read_header(data).progressive and not read_header(made).progressive
    for one, other in zip(coefficients(data, tmp_path / "a"), coefficients(made, tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(data), simplejpeg.decode_jpeg(made))
    was, now = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(made))
    for name in ("exif", "icc_profile", "comment"):
        assert now.info[name] == was.info[name]


def test_metadata_can_be_left_out() -> None:
    bare = Image.open(io.BytesIO(to_baseline(make(), bare=True)))
    assert {"exif", "icc_profile", "comment"}.isdisjoint(bare.info)


def test_a_damaged_one_is_refused() -> None:
    with pytest.raises(DecodeError, match="cannot be stored as baseline"):
        to_baseline(b"\xff\xd8 no JPEG at all")


def test_the_packer_keeps_them_with_a_remark_or_makes_them_baseline() -> None:
    data = make()
    kept, made = prepare_image(data), prepare_image(data, encoding=Encoding(jpeg="baseline"))
    assert kept.data == data and kept.remarks == {SLOW: 1}
    assert made.kind == "jpeg-progressive" and not read_header(made.data).progressive
    assert sum(made.remarks.values()) == abs(len(made.data) - len(data)) and set(made.remarks) <= {LARGER, SMALLER}
    plain = encode(photo(3))
    assert prepare_image(plain, encoding=Encoding(jpeg="baseline")).data == plain
