"""The values of every kind of field in a batch, read from a set packed with the real packer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_fields import COUNT, flips, pack, sample, unnamed, values_of

import gpuload
from gpuload import Boxes, Mask, MultiHot, OneHot, SourceError, Target, Tokens
from gpuload.fields.arrays import PaddedTokens, join_elements
from gpuload.fields.boxes import PaddedBoxes
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.kind import FieldSpec
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.ragged import pad
from gpuload.fields.registry import KINDS, bind_field, kind_of
from gpuload.fields.rows import PixelField, Rows
from gpuload.fields.targets import negate_flipped


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    """Eleven samples in shards of four, in this order."""
    return pack(tmp_path_factory.mktemp("fields") / "packed", [sample(number) for number in range(COUNT)])


SOME = [7, 0, 10, 3]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("label", np.array([3, 0, 2, 3])),
        (OneHot(background=True), np.eye(4, dtype=np.float32)[[3, 1, 2, 3]]),  # background, ant, bee, cat
        (OneHot(num_classes=5), np.eye(5, dtype=np.float32)[[2, 0, 1, 2]]),  # ant, bee, cat
        ("labels", np.array([[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0]], np.float32)),
        ("angle", np.array([0.375, -0.5, 0.75, -0.125], np.float32)),
        (Target("angle", negate_on_flip=True), np.array([0.375, -0.5, 0.75, -0.125], np.float32)),
        ("drive", np.array([[1.75, -1.5, 2], [0, -1.5, 2], [2.5, -1.5, 2], [0.75, -1.5, 2]], np.float32)),
        ("features", np.arange(6, dtype=np.float32).reshape(2, 3) + np.array(SOME, np.float32)[:, None, None]),
        ("flag", np.array([[False, True], [True, True], [True, True], [False, True]])),
        ("wave", np.array([[7j], [0], [10j], [3j]], np.complex128)),
        ("index", np.array(SOME)),
        ("dataset", np.array([0, 0, 0, 0])),
    ],
)
def test_arrays_of_numbers(dataset: gpuload.Dataset, spec: str | FieldSpec, expected: np.ndarray) -> None:
    found = values_of(spec, dataset, SOME)
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert torch.from_numpy(found).numpy().tolist() == expected.tolist()  # from_numpy warns of read-only memory
    empty = values_of(spec, dataset, [])
    assert (empty.dtype, empty.shape) == (expected.dtype, (0, *expected.shape[1:]))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("caption", [f"photo {number}, größer" for number in SOME]),
        ("about", [{"number": number, "list": [None, {"a": 1.5}]} for number in SOME]),
    ],
)
def test_lists(dataset: gpuload.Dataset, spec: str, expected: list[Any]) -> None:
    assert values_of(spec, dataset, SOME) == expected
    assert values_of(spec, dataset, []) == []


def test_keys(dataset: gpuload.Dataset) -> None:
    assert values_of("key", dataset, SOME) == dataset.keys(SOME)
    assert values_of("key", dataset, []) == []


def test_background_has_a_row_of_zeros_or_the_first_column(dataset: gpuload.Dataset) -> None:
    assert values_of(OneHot(), dataset, [0, 1, 2, 3]).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert values_of(OneHot(background=True), dataset, [0, 1, 2, 3]).argmax(axis=1).tolist() == [1, 0, 2, 3]
    assert values_of(OneHot(background=True, num_classes=9), dataset, [0, 1, 2, 3]).shape == (4, 9)


def test_classes_without_names(tmp_path: Path) -> None:
    dataset = unnamed(tmp_path / "out")
    assert values_of(OneHot(num_classes=3), dataset, [0, 1]).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert values_of(OneHot(num_classes=4, background=True), dataset, [0, 1]).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert values_of(MultiHot(num_classes=3), dataset, [0, 1]).tolist() == [[0, 1, 0], [1, 0, 1]]
    for spec in (OneHot(), "labels", MultiHot()):
        message = r"\('labels?'\): the number of classes is unknown, since the classes in .*train have no names. Use \w+Hot\('labels?', num_classes=…\)"
        with pytest.raises(gpuload.ArgumentError, match=message):
            bind_field(spec, [dataset])
    for spec in (OneHot(num_classes=2), MultiHot(num_classes=2), OneHot(num_classes=3, background=True)):
        message = rf"train: sample '{dataset.keys([1])[0]}': its 'labels?' has class 2, expected 2 classes, numbered from 0. Give a larger num_classes"
        with pytest.raises(gpuload.ArgumentError, match=message):
            values_of(spec, dataset, [0, 1])


@given(st.lists(st.integers(-2, 5), max_size=9), st.booleans())
def test_negative_labels_are_background(labels: list[int], background: bool) -> None:
    class Unnamed:
        classes, fields, folder = None, {"label": Field("label", "class", "cls")}, "out"
        require_field = fields.__getitem__

    field = bind_field(OneHot(num_classes=6 + background, background=background), [Unnamed()])  # type: ignore[list-item]
    rows = Rows({"label": np.array(labels, np.int64), "index": np.arange(len(labels))}, {}, [], [], [])
    expected = np.zeros((len(labels), 6 + background), np.float32)
    for row, label in enumerate(labels):
        if label >= 0 or background:
            expected[row, max(label, -1) + background] = 1
    assert field.values(rows).tolist() == expected.tolist()  # type: ignore[union-attr]


def test_targets_change_their_sign_with_a_flip(dataset: gpuload.Dataset) -> None:
    one = {"views": [flips([1, 0, 1, 0])]}
    angle, drive = [0.375, -0.5, 0.75, -0.125], [[1.75, -1.5, 2], [0, -1.5, 2], [2.5, -1.5, 2], [0.75, -1.5, 2]]
    assert values_of("angle", dataset, SOME, **one).tolist() == angle
    negated = values_of(Target("angle", negate_on_flip=True), dataset, SOME, **one)
    assert (negated.dtype, negated.tolist()) == (np.float32, [-0.375, -0.5, -0.75, -0.125])
    negated = values_of(Target("drive", negate_on_flip=(False, True, False)), dataset, SOME, **one)
    assert negated.tolist() == [[1.75, 1.5, 2], [0, -1.5, 2], [2.5, 1.5, 2], [0.75, -1.5, 2]]
    two = {"views": [flips([1, 0, 1, 0]), flips([0, 1, 0, 0])]}
    found = values_of(Target("drive", negate_on_flip=True), dataset, SOME, **two)
    assert type(found) is tuple and len(found) == 2
    np.testing.assert_array_equal(found[0], np.array(drive) * [[-1], [1], [-1], [1]])
    np.testing.assert_array_equal(found[1], np.array(drive) * [[1], [-1], [1], [1]])
    assert (
        values_of("drive", dataset, SOME, **two).tolist() == drive
    )  # without a change of sign there is one value for both views


@given(st.lists(st.tuples(st.floats(-9, 9, width=32), st.integers(0, 1)), max_size=6), st.booleans())
def test_negating_twice_restores_the_values(pairs: list[tuple[float, int]], negated: bool) -> None:
    values = np.array([value for value, _ in pairs], np.float32)
    mirror = np.array([flip for _, flip in pairs], np.int32)
    once = negate_flipped(values, mirror, [negated])
    assert once.tolist() == [-value if flip and negated else value for value, flip in pairs]
    assert negate_flipped(once, mirror, [negated]).tolist() == values.tolist()


def test_tokens(dataset: gpuload.Dataset) -> None:
    found = values_of(Tokens(), dataset, [3, 0, 5])
    assert isinstance(found, PaddedTokens) and found.values.dtype == found.lengths.dtype == np.int64
    assert found.lengths.tolist() == [3, 0, 5]
    row = [60_000, 60_001, 60_002, 60_003, 60_004]
    assert found.values.tolist() == [[*row[:3], 0, 0], [0] * 5, row]
    cut = values_of(Tokens(pad=-100, max_length=4), dataset, [3, 0, 5])
    assert cut.values.tolist() == [[*row[:3], -100], [-100] * 4, row[:4]]
    assert cut.lengths.tolist() == [3, 0, 4]
    assert values_of(Tokens(), dataset, []).values.shape == (0, 0)
    assert values_of(Tokens(max_length=7), dataset, []).values.shape == (0, 7)
    assert values_of(Tokens(), dataset, [0]).values.shape == (1, 0)


@given(st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=5), st.none() | st.integers(0, 7))
def test_padding_is_row_by_row(lists: list[list[int]], width: int | None) -> None:
    values = np.array([value for row in lists for value in row], np.int64)
    found = pad(values, np.array([len(row) for row in lists], np.int64), width, 99)
    wide = max(map(len, lists), default=0) if width is None else width
    assert found.shape == (len(lists), wide)
    assert found.tolist() == [(row + [99] * wide)[:wide] for row in lists]


@pytest.mark.parametrize("stored", ["<i8", ">i2", "|u1", "<u2", ">u4", "<u8", "<f2", ">f8", "|b1", ">c16"])
def test_every_dtype_that_torch_has(stored: str) -> None:
    values = np.array([[0, 1], [7, 3]]).astype(stored)
    unaligned = np.concatenate([np.zeros(1, np.uint8), values.reshape(-1).view(np.uint8)])[1:]
    found = join_elements([unaligned[: len(unaligned) // 2], unaligned[len(unaligned) // 2 :]], np.dtype(stored))
    assert found.tolist() == values.reshape(-1).tolist()
    assert torch.from_numpy(found).numpy().dtype == np.dtype(stored).newbyteorder("=")


def test_boxes_are_in_pixels_of_the_output(dataset: gpuload.Dataset) -> None:
    found = values_of("boxes", dataset, [1, 3, 5])  # widths 25, 27, 29; the part beyond 20 is cropped
    assert isinstance(found, PaddedBoxes)
    assert found.boxes.tolist() == [[[0, 0, 12.5, 20], [0] * 4], [[0] * 4] * 2, [[0, 0, 14.5, 20], [2, 3, 10, 9]]]
    assert found.labels.tolist() == [[1, -1], [-1, -1], [1, 0]]  # the boxes' own classes: ant, cat
    assert found.counts.tolist() == [1, 0, 2]
    wide = values_of(Boxes("boxes", format="xywh", max_boxes=1), dataset, [5])
    assert wide.boxes.tolist() == [[[0, 0, 14.5, 20]]]


def test_images_and_masks_are_left_to_the_decoder(dataset: gpuload.Dataset) -> None:
    assert bind_field("image", [dataset]) == PixelField("image", "image")
    assert bind_field("mask", [dataset]) == PixelField("mask", "mask", 0)
    assert bind_field(Mask(fill=255), [dataset]) == PixelField("mask", "mask", 255)


@pytest.fixture(scope="module")
def mixed(dataset: gpuload.Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[gpuload.Dataset]:
    """Two data sets with the same fields."""
    samples = [{**sample(number), "caption": f"other {number}"} for number in range(8, 12)]
    return [dataset, pack(tmp_path_factory.mktemp("other") / "packed", samples)]


def test_batches_of_a_mixture(mixed: list[gpuload.Dataset]) -> None:
    which = {"numbers": [2, 2, 0], "sources": [1, 0, 1]}
    assert values_of("caption", mixed, **which) == ["other 10", "photo 2, größer", "other 8"]
    assert values_of("features", mixed, **which)[:, 0, 0].tolist() == [10, 2, 8]
    assert values_of("dataset", mixed, **which).tolist() == [1, 0, 1]
    assert values_of(Tokens(), mixed, **which).lengths.tolist() == [10, 2, 8]
    message = (
        rf"{mixed[1].folder}: sample '{mixed[1].keys([1])[0]}': its 'text' has shape \(4,\), that of "
        rf"{mixed[0].folder}: sample '{mixed[0].keys([2])[0]}' has \(5,\)"
    )
    with pytest.raises(gpuload.DecodeError, match=message):
        values_of("text", mixed, [2, 1], sources=[0, 1])


def test_which_kind_claims_a_number_in_an_array() -> None:
    """An array without dimensions is a number."""
    assert not KINDS["array"].claims(np.array(3)) and KINDS["array"].claims(np.array([3]))


def test_captions_of_other_names_have_their_own_members() -> None:
    caption = KINDS["caption"]
    members = {name: caption.parse("here", name, ["a"], None, "")[0].member for name in ("caption", "title")}
    assert members == {"caption": "txt", "title": "title.txt"}
    assert caption.guess("txt", b"a") == Field("caption", "caption", "txt") and caption.guess("title.txt", b"a") is None
    with pytest.raises(
        SourceError, match=r"^here: every sample needs a title; 2 have none \(numbers 1, 2\). Fill them in"
    ):
        caption.parse("here", "title", ["a", None, None], None, "")


def test_one_class_is_enough() -> None:
    class Unnamed:
        classes, fields, folder = None, {"label": Field("label", "class", "cls")}, "out"
        require_field = fields.__getitem__

    rows = Rows({"label": np.zeros(2, np.int64), "index": np.arange(2)}, {}, [], [], [])
    field: Any = bind_field(OneHot(num_classes=1), [Unnamed()])  # type: ignore[list-item]
    assert field.values(rows).tolist() == [[1], [1]]


@pytest.mark.parametrize("more", [0, 1])
def test_as_many_classes_as_have_names_or_more(dataset: gpuload.Dataset, more: int) -> None:
    plain = values_of(MultiHot(), dataset, SOME)
    found = values_of(MultiHot(num_classes=4 + more), dataset, SOME)
    assert found.shape == (4, 4 + more) and found[:, :4].tolist() == plain.tolist() and not found[:, 4:].any()


def test_most_kinds_take_one_column_of_a_table() -> None:
    with pytest.raises(ValueError, match="a field of kind 'class' takes one column, 2 are given"):
        KINDS["class"].parse_cells(["1", "2"])


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
