"""Field names that the packer refuses, and boxes that lie outside their images."""

from pathlib import Path
from typing import Any

import pytest
from images import encode, photo
from reading import rows_of

import gpuload
from gpuload import SourceError
from gpuload.fields.field import Field
from gpuload.packing.plan import check_names


def samples(*boxes: list[list[float]]) -> list[dict[str, Any]]:
    """Images of 48x32 with these boxes."""
    return [{"image": encode(photo(n)), "boxes": b, "boxes_class": [7] * len(b)} for n, b in enumerate(boxes)]


@pytest.mark.parametrize("name", ["key", "source", "width", "height", "index", "dataset", "row", "measured"])
def test_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    source = [{"image": encode(photo()), name: 1.5}]
    with pytest.raises(
        SourceError, match=f"^field '{name}': has a name that gpuload reserves for every set. Rename the field$"
    ):
        gpuload.pack(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("image", "target")], "field 'image': has a name that field 'image' uses already. Rename the field"),
        ([("image_bytes", "target")], "field 'image_bytes': has a name that field 'image' uses already"),
        ([("a", "boxes"), ("a_class", "class")], "field 'a_class': has a name that field 'a' uses already"),
        ([("a_class", "class"), ("a", "boxes")], "field 'a': needs a column 'a_class', a name that field 'a_class' uses already"),
        ([("a", "array"), ("a_shape", "json")], "field 'a_shape': has a name that field 'a' uses already"),
        ([("x", "mask"), ("x", "target")], "field 'x': has a name that field 'x' uses already"),
    ],
)  # fmt: skip
def test_names_that_two_fields_would_use_are_refused(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        check_names([Field(name, kind, name) for name, kind in fields])


def test_similar_names_are_accepted() -> None:
    check_names([Field(name, "target", name) for name in ("keys", "Key", "x", "x_class", "x_shape", "image_class")])


def test_notes_count_boxes_outside_their_images(tmp_path: Path) -> None:
    inside, rounded = [0, 0, 48, 32], [-0.4, 1, 48.4, 9]
    outside, empty = [50, 0, 60, 9], [5, 5, 5, 9]
    over = [40, 20, 60, 30]
    source = samples([inside, outside, empty], [over, rounded], [])
    report = gpuload.pack(source, tmp_path / "out", workers=2, shuffle=False)
    assert tuple(note for note in report.notes if "have no sample" not in note) == (
        "boxes that are empty or lie outside their images: 2, dropped",
        "boxes that reach over an edge of their images: 1, clipped",
    )
    rows = rows_of(tmp_path / "out" / "train")
    assert [row["boxes"] for row in rows[:2]] == [[inside], [[40, 20, 48, 30], [0, 1, 48, 9]]]
    assert [len(row["boxes_class"]) for row in rows] == [1, 2, 0]


def test_boxes_move_with_their_image_and_those_that_a_crop_cuts_off_are_not_noted(tmp_path: Path) -> None:
    settings = {"encode": "jpeg", "size": (16, 16), "fit": "center-crop", "workers": 1}  # 24x16, without 4 at each side
    report = gpuload.pack(samples([[0, 0, 3, 3], [0, 0, 48, 32], [24, 0, 32, 16]]), tmp_path / "out", **settings)
    assert tuple(note for note in report.notes if "have no sample" not in note) == ()
    assert rows_of(tmp_path / "out" / "train")[0]["boxes"] == [[0, 0, 16, 16], [8, 0, 12, 8]]


def test_a_resumed_run_keeps_the_counts_and_classes_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    source = [{**sample, "boxes_class": ["dog"]} for sample in samples([[50, 0, 60, 9]], [[0, 0, 9, 9]])]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gpuload.packing.output.write_timm_info", stop)
        gpuload.pack(source, tmp_path / "out", workers=1)
    report = gpuload.pack(source, tmp_path / "out", workers=1, resume=True)
    assert tuple(note for note in report.notes if "have no sample" not in note) == (
        "boxes that are empty or lie outside their images: 1, dropped",
    )
    assert gpuload.Dataset(tmp_path / "out" / "train").fields["boxes"].classes == ("dog",)
