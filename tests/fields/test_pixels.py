"""Modes of pixels, and how a field tells of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.fields.field import IMAGE
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.registry import kind_of

anything = st.builds(Pixels, st.integers(1, 256), st.sampled_from(["uint8", "uint16", "float32"]))


@given(anything)
def test_the_mode_and_the_field_tell_all_of_them(pixels: Pixels) -> None:
    assert Pixels.of_mode(pixels.mode) == pixels
    assert Pixels.of_field(replace(IMAGE, **pixels.in_field())) == pixels


def test_modes_are_pillows_where_it_has_them() -> None:
    modes = {Pixels(1): "L", RGB: "RGB", Pixels(4): "RGBA", Pixels(1, "uint16"): "I;16", Pixels(1, "float32"): "F"}
    assert {pixels: pixels.mode for pixels in modes} == modes
    assert Pixels(7, "float32").mode == "float32x7"
    assert Pixels.of_field(IMAGE) == RGB and RGB.in_field() == {}


@pytest.mark.parametrize("mode", ["", "CMYK", "float64x3", "uint8x0", "uint8x257", "uint8x", "uint8x3x"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="there is no mode"):
        Pixels.of_mode(mode)


@pytest.mark.parametrize(("size", "dtype"), [(3, None), (0, "|u1"), (257, "|u1"), (1, ">u2"), (1, "<f8")])
def test_a_field_that_says_what_cannot_be_is_refused(size: int, dtype: str | None) -> None:
    for kind in ("image", "raw"):
        field = replace(IMAGE, kind=kind, size=size, dtype=dtype)
        assert "its pixels cannot be" in kind_of(field).field_fault(field)
