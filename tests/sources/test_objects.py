"""Hugging Face's column `objects`: boxes with classes, in every form in which the Hub has it, and never guessed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from images import encode, photo
from pyarrow import parquet
from reading import rows_of
from sources_read import listed, packed

import gpuload
from gpuload import SourceError, cli

JPG = encode(photo(0, 100, 50))
NAMES = ["cat", "dog"]
# x y width height; of the last image nothing.
SIDES = [[[10, 5, 20, 20], [60, 20, 40, 30]], [[0, 0, 50, 25]], []]
CLASSES = [[0, 1], [1], []]
CORNERS = [[[10, 5, 30, 25], [60, 20, 100, 50]], [[0, 0, 50, 25]], []]
CLASS_LABEL = {"names": NAMES, "_type": "ClassLabel"}
OF_LISTS = {"objects": {"bbox": {"_type": "List"}, "category": {"feature": CLASS_LABEL, "_type": "List"}}}
SEQUENCE = {"objects": {"feature": {"bbox": {"_type": "Sequence"}, "category": CLASS_LABEL}, "_type": "Sequence"}}
OF_DICTS = {"objects": [{"bbox": {"_type": "Sequence"}, "category": CLASS_LABEL}]}


def lists(boxes: list[Any], classes: list[Any] = CLASSES, **more: list[Any]) -> list[dict[str, Any]]:
    every = [{"bbox": a, "category": b} for a, b in zip(boxes, classes, strict=True)]
    return [{**one, **{key: values[n] for key, values in more.items()}} for n, one in enumerate(every)]


def dicts(boxes: list[Any], key: str = "category", classes: list[Any] = CLASSES) -> list[list[dict[str, Any]]]:
    pairs = zip(boxes, classes, strict=True)
    return [[{"bbox": box, key: name} for box, name in zip(a, b, strict=True)] for a, b in pairs]


def write(folder: Path, objects: list[Any], features: Any = None, **more: list[Any]) -> Path:
    table = pa.table({"image": [{"bytes": JPG, "path": f"{n}.jpg"} for n in range(3)], "objects": objects, **more})
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


def check(rows: list[dict[str, Any]], corners: Any = CORNERS) -> None:
    rows = sorted(rows, key=lambda row: row["source"])
    assert [row["boxes"] for row in rows] == corners
    assert [row["boxes_class"] for row in rows] == CLASSES
    assert [row["labels"] for row in rows] == CLASSES


@pytest.mark.parametrize(
    ("objects", "features"),
    [
        (lists(SIDES), OF_LISTS),
        (lists(SIDES), SEQUENCE),
        (dicts(SIDES), OF_DICTS),
        (dicts(SIDES), {"objects": {"feature": OF_DICTS["objects"][0], "_type": "List"}}),
        (dicts(SIDES, "label", [["cat", "dog"], ["dog"], []]), None),
    ],
)
def test_boxes_with_their_classes(tmp_path: Path, objects: list[Any], features: Any) -> None:
    manifest = packed(write(tmp_path, objects, features), tmp_path / "out")["train"]
    assert {field.name: field.classes for field in manifest.fields[1:]} == {
        "boxes": tuple(NAMES), "labels": tuple(NAMES),
    }  # fmt: skip
    check(rows_of(tmp_path / "out" / "train"))


class Dataset(list[Any]):
    """As Hugging Face's: rows with features."""

    features: Any = None


def test_data_sets_of_a_program(tmp_path: Path) -> None:
    parts = {"bbox": SimpleNamespace(), "category": SimpleNamespace(names=NAMES)}
    in_lists = {**parts, "category": SimpleNamespace(feature=parts["category"])}
    for number, feature in enumerate((SimpleNamespace(feature=parts), in_lists)):
        rows = Dataset({"image": JPG, "objects": value} for value in lists(SIDES))
        rows.features = {"image": SimpleNamespace(), "objects": feature}
        report = gpuload.pack(rows, tmp_path / str(number), workers=1, shuffle=False)
        assert report.manifests["train"].fields[1].classes == tuple(NAMES)
        check(rows_of(tmp_path / str(number) / "train"))


def test_corners_are_named_by_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `detection-datasets/coco` has them: read the other way, the second box leaves its image."""
    path = write(tmp_path, lists(CORNERS), OF_LISTS)
    assert cli.main(["pack", str(path), str(tmp_path / "out")]) == cli.WRONG
    said = capsys.readouterr().err
    what = "column 'objects' holds the box [60, 20, 100, 50], which as x y width height leaves its image of (100, 50)"
    assert f"{what}. If boxes are x0 y0 x1 y1, give --column boxes=objects; if not, --column objects=objects" in said
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()
    packed(path, tmp_path / "out", "--column", "boxes=objects")
    check(rows_of(tmp_path / "out" / "train"))
    assert len(listed(path, no_labels=True)) == 3


@pytest.mark.parametrize("key", ["width", "image"])
def test_the_size_of_the_image(tmp_path: Path, key: str) -> None:
    """It may be in columns, and an image may lie on its side."""
    more = {"width": [100] * 3, "height": [50] * 3} if key == "width" else {}
    path = write(tmp_path, lists([[[60, 20, 100, 50]], [], []], [[0], [], []]), **more)
    with pytest.raises(SourceError, match="leaves its image of .100, 50."):
        listed(path)
    path = write(tmp_path, lists([[[10, 60, 20, 39]], [], []], [[0], [], []]), **more)
    assert listed(path).samples.column("boxes").to_pylist() == [[[10, 60, 30, 99]], [], []]


def test_boxes_that_could_be_either(tmp_path: Path) -> None:
    either = lists([[[10, 5, 30, 25]], [[0, 0, 50, 25]], []], [[0], [1], []])
    path = write(tmp_path, either)
    message = "the boxes of 'objects' may be x y width height, or x0 y0 x1 y1, and none of them tells which"
    with pytest.raises(SourceError, match=f"x.parquet: {message}. Give --column objects=objects for the first, or"):
        listed(path)
    first = listed(path, columns={"objects": ("objects",)}).samples.column("boxes").to_pylist()
    second = listed(path, columns={"boxes": ("objects",)}).samples.column("boxes").to_pylist()
    assert (first[0], second[0]) == ([[10, 5, 40, 30]], [[10, 5, 30, 25]])
    with pytest.raises(SourceError, match=f"samples: {message}.*in a program, give 'boxes' x0 y0 x1 y1"):
        gpuload.pack(pa.Table.from_pylist([{"image": JPG, "objects": either[0]}]), tmp_path / "out", workers=1)


def test_areas_tell_which(tmp_path: Path) -> None:
    boxes = [[[10, 5, 30, 25]], [[0, 0, 50, 25]], []]
    path = write(tmp_path, lists(boxes, [[0], [1], []], area=[[750.0], [1250.0], []]))
    listing = listed(path)
    assert listing.samples.column("boxes").to_pylist()[0] == [[10, 5, 40, 30]]
    assert "parts of 'objects' that are not packed: 'area'" in listing.notes


def test_crowds_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, lists(SIDES, iscrowd=[[0, 1], [0], []]))
    assert listed(path).samples.column("boxes_class").to_pylist() == [[0], [1], []]


@pytest.mark.parametrize(
    ("objects", "word"),
    [
        (lists(SIDES, [[0], [1], []]), "has 2 boxes and 1 classes. Correct the column"),
        (lists([[[1, 2, 3]], [], []], [[0], [], []]), r"holds the box \[1, 2, 3\]. Give four numbers"),
    ],
)
def test_objects_that_are_wrong(tmp_path: Path, objects: list[Any], word: str) -> None:
    with pytest.raises(SourceError, match=f"x.parquet: column 'objects' {word}"):
        listed(write(tmp_path, objects))


def test_other_values_of_that_name_stay_as_they_are(tmp_path: Path) -> None:
    listing = listed(write(tmp_path, [["cup", "table"], ["chair"], []]))
    assert [field.kind for field in listing.fields] == ["json"]
