"""Numbers, words and class names of annotations mean what their file says, or the run ends with a message."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import Folder
from reading import rows_of
from sources_read import IMAGES, PHOTOS, listed, packed, reasons_of
from tars import tar_bytes

import gpuload
from gpuload import SourceError

LARGE = 123_456_789  # float32 holds 123,456,792


def batch_of(folder: Path, *fields: Any) -> Any:
    """The fields of all samples in one batch, in stored order."""
    data = gpuload.Dataset(folder)
    options = {"fields": fields, "device": "cpu", "output": "numpy", "shuffle": False}
    with gpuload.DaliIterator(data, len(data), augment=gpuload.Augment(20), **options) as loader:
        return next(iter(loader))


def test_whole_numbers_stay_exact(tmp_path: Path) -> None:
    """From a program: of any integer type; a number among them that is none makes all of them floats."""
    ids = [LARGE, np.int32(-7), np.uint64(2**62 + 1)]
    mixed = [1, 0.5, 2]
    samples = [{"image": PHOTOS[n], "image_id": ids[n], "angle": mixed[n]} for n in range(3)]
    gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    values, angles = batch_of(tmp_path / "out" / "train", "image_id", "angle")
    assert (values.dtype, values.tolist()) == (np.int64, [LARGE, -7, 2**62 + 1])
    assert (angles.dtype, angles.tolist()) == (np.float32, [1, 0.5, 2])
    assert [row["image_id"] for row in rows_of(tmp_path / "out" / "train")] == [LARGE, -7, 2**62 + 1]
    assert gpuload.Dataset(tmp_path / "out" / "train")[0]["image_id"] == LARGE


def test_whole_numbers_as_targets(tmp_path: Path) -> None:
    gpuload.pack([{"image": PHOTOS[0], "age": 34}], tmp_path / "out", workers=1)
    (ages,) = batch_of(tmp_path / "out" / "train", gpuload.Target("age"))
    assert (ages.dtype, ages.tolist()) == (np.float32, [34])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([LARGE, 0.5], "123456789 has more digits than a target, float32, holds"),
        ([1, 2**63], "whole number of 64 bits, or a list of these; found 9223372036854775808"),
    ],
)
def test_whole_numbers_that_no_column_holds(tmp_path: Path, values: list[Any], message: str) -> None:
    samples = [{"image": PHOTOS[n], "number": value} for n, value in enumerate(values)]
    with pytest.raises(SourceError, match=message):
        gpuload.pack(samples, tmp_path / "out", workers=1)


def test_numbers_of_a_table(make_folder: Folder, tmp_path: Path) -> None:
    """A target is a number to predict, so float32; what that cannot hold is refused, with the role that can."""
    rows = "".join(f"{n}.jpg,{n},{LARGE + n}\n" for n in range(3))
    root = make_folder({**IMAGES, "t.csv": f"path,age,id\n{rows}".encode()})
    options = ["--labels", root / "t.csv", "--no-shuffle", "--column", "path=path", "--column"]
    packed(root, tmp_path / "out", *options, "target=age", "--column", "integers=id")
    ages, ids = batch_of(tmp_path / "out" / "train", "target", "integers")
    assert (ages.dtype, ages.tolist()) == (np.float32, [0, 1, 2])
    assert (ids.dtype, ids.tolist()) == (np.int64, [LARGE, LARGE + 1, LARGE + 2])
    with pytest.raises(SourceError, match=r"t.csv: row 1: '123456789' has more digits than a target.*column integers="):
        listed(root, root / "t.csv", {"target": ("id",), "path": ("path",)})


LABELS = [
    (["7", "007"], "classes of 'label' must be written alike.*found '007', '7', first in sample 0 .'0.jpg'"),
    (["16 0", "5"], "must be one for each sample; found '16 0', first in sample 0 .*--column labels=NAME"),
    (["3", "1,2"], "must be one for each sample; found '1,2', first in sample 1 .'1.jpg'"),
    (["1", "-1"], r"numbered from 0; found '-1', first in sample 1 \('1.jpg'\). -1 stands for no label.*--no-labels"),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
def test_labels_that_are_more_or_less_than_one_class(make_folder: Folder, labels: list[str], message: str) -> None:
    table = "path,Target\n" + "".join(f'{n}.jpg,"{label}"\n' for n, label in enumerate(labels))
    root = make_folder({**IMAGES, "t.csv": table.encode()})
    with pytest.raises(SourceError, match=message):
        listed(root, root / "t.csv")


def test_the_label_of_a_test_split(tmp_path: Path) -> None:
    splits = {"train": [{"image": PHOTOS[0], "label": 1}], "test": [{"image": PHOTOS[1], "label": -1}]}
    with pytest.raises(SourceError, match=r"found '-1', first in sample 1. -1 stands for no label, as in test splits"):
        gpuload.pack(splits, tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["fire truck, car", "fire truck", ""], [["fire truck", "car"], ["fire truck"], []]),
        (["fire truck", "car; fire truck", "a, b"], [["fire truck"], ["car", "fire truck"], ["a, b"]]),
        (["healthy rust", "rust", "scab"], [["healthy", "rust"], ["rust"], ["scab"]]),
        (['["fire truck"]', "car|fire truck", "car"], [["fire truck"], ["car", "fire truck"], ["car"]]),
    ],
)
def test_one_separator_for_a_column(make_folder: Folder, cells: list[str], expected: list[list[str]]) -> None:
    quoted = [cell.replace('"', '""') for cell in cells]
    table = "path,tags\n" + "".join(f'{n}.jpg,"{cell}"\n' for n, cell in enumerate(quoted))
    root = make_folder({**IMAGES, "t.csv": table.encode()})
    listing = listed(root, root / "t.csv")
    names = listing.fields[0].classes
    found = [[names[number] for number in row] for row in listing.samples.column("labels").to_pylist()]
    assert found == expected


MARKED = ["\ufeffa cat".encode(), "a cat".encode("utf-16"), b"\r\na cat\r\n", b"a cat"]


@pytest.mark.parametrize("text", MARKED)
def test_byte_order_marks_are_no_part_of_captions(make_folder: Folder, text: bytes) -> None:
    document = text.replace(b"a cat", b'"a cat"') if b"\0" not in text else '"a cat"'.encode("utf-16")
    root = make_folder({"0.jpg": PHOTOS[0], "0.txt": text, "0.json": document})
    listing = listed(root, form="sidecar")
    assert listing.samples.column("caption").to_pylist() == ["a cat"]
    assert listing.samples.column("json").to_pylist()[0].strip() == '"a cat"'


def test_byte_order_marks_in_tars_and_programs(tmp_path: Path) -> None:
    marked = "\ufeffa cat".encode()
    (tmp_path / "x.tar").write_bytes(tar_bytes({"0.jpg": PHOTOS[0], "0.txt": marked, "0.json": b"\xef\xbb\xbf[1]"}))
    packed(tmp_path / "x.tar", tmp_path / "out")
    (row,) = rows_of(tmp_path / "out" / "train")
    assert (row["caption"], row["json"]) == ("a cat", "[1]")
    gpuload.pack([{"image": PHOTOS[0], "caption": "\ufeffa cat"}], tmp_path / "own", workers=1)
    assert [row["caption"] for row in rows_of(tmp_path / "own" / "train")] == ["a cat"]


def test_one_damaged_sidecar_is_the_fault_of_one_image(make_folder: Folder) -> None:
    files = {f"{n}.txt": b"a cat" for n in range(3)} | {f"{n}.json": b"{}" for n in range(3)}
    root = make_folder({**IMAGES, **files, "1.txt": b"\xff\xfe\xff", "2.json": b"{'a': 1}"})
    listing = listed(root, form="sidecar")
    assert listing.samples.column("name").to_pylist() == ["0.jpg"]
    (first, no_text), (second, no_json) = reasons_of(listing)
    assert (first, second) == ("1.jpg", "2.jpg")
    assert no_text.startswith("its '1.txt', ") and no_text.endswith(" is not a text in UTF-8")
    assert no_json.startswith("its '2.json', Expecting") and no_json.endswith(" is not a JSON document")


def test_a_tar_with_json_that_is_none(tmp_path: Path) -> None:
    members = {"0.jpg": PHOTOS[0], "0.json": b"{}", "1.jpg": PHOTOS[1], "1.json": b"{'a': 1}"}
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    with pytest.raises(SourceError, match=r"'json' of sample 1 \('x.tar/1.jpg'\) must be a JSON document; found"):
        listed(tmp_path / "x.tar")


def test_whole_numbers_are_packed_again_from_their_shards(tmp_path: Path) -> None:
    samples = [{"image": PHOTOS[n], "frame": LARGE + n, "pair": [n / 2, 1.0]} for n in range(3)]
    gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    packed(tmp_path / "out" / "train", tmp_path / "again", "--from", "tar", "--no-shuffle")
    (values,) = batch_of(tmp_path / "again" / "train", "frame")
    assert (values.dtype, values.tolist()) == (np.int64, [LARGE, LARGE + 1, LARGE + 2])


def test_names_that_look_alike(make_folder: Folder) -> None:
    """Composed and decomposed letters, and blanks of another kind: they stay different, with a note."""
    names = ["caf\u00e9", "cafe\u0301", "dog"]
    table = "path,label\n" + "".join(f"{n}.jpg,{name}\n" for n, name in enumerate(names))
    root = make_folder({**IMAGES, "t.csv": table.encode()})
    listing = listed(root, root / "t.csv")
    assert len(set(listing.samples.column("label").to_pylist())) == 3
    assert any("differ only in blanks or the form of their characters" in note for note in listing.notes)


@pytest.mark.parametrize(
    ("cell", "is_told"), [("fire truck", True), ("fire", False), ("16 0", False), ("a b, c", False)]
)
def test_labels_that_blanks_separate_are_told(make_folder: Folder, cell: str, is_told: bool) -> None:
    table = f'path,tags\n0.jpg,"{cell}"\n1.jpg,7\n'
    root = make_folder({**IMAGES, "t.csv": table.encode()})
    notes = listed(root, root / "t.csv").notes
    assert (
        any("labels are split at blanks, such as 'fire truck'; write JSON lists" in note for note in notes) == is_told
    )
