"""Classes of whole images in COCO's JSON, as iNaturalist has them, and in Label Studio's short exports."""

import json
from typing import Any

import pytest
from images import Folder
from sources_read import listed, reasons_of
from tool_files import NAMES, at, document

from gpuload import SourceError

CATEGORIES = [{"id": 4, "name": "cat"}, {"id": 9, "name": "dog"}]


def naturalist(*pairs: tuple[int, int], **changes: Any) -> bytes:
    """pairs: numbers of images and categories."""
    images = [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate("abc")]
    entries = [{"id": n, "image_id": image, "category_id": of} for n, (image, of) in enumerate(pairs)]
    return document({"images": images, "annotations": entries, "categories": CATEGORIES, **changes})


def test_one_class_each(make_folder: Folder) -> None:
    listing = listed(make_folder({**at("images"), "train.json": naturalist((0, 4), (1, 9), (2, 9))}))
    assert listing.classes == tuple(NAMES)
    assert listing.samples.column("label").to_pylist() == [0, 1, 1]
    lacking = listed(make_folder({**at("images"), "train.json": naturalist((0, 4), (2, 9))}))
    assert lacking.samples.column("label").to_pylist() == [0, 1]
    assert reasons_of(lacking) == [("b.jpg", "has no class")]


def test_several_classes(make_folder: Folder) -> None:
    listing = listed(make_folder({**at("images"), "train.json": naturalist((0, 9), (0, 4), (2, 9), (2, 9))}))
    assert listing.samples.column("labels").to_pylist() == [[0, 1], [], [1]]
    (field,) = (field for field in listing.fields if field.name == "labels")
    assert field.classes == tuple(NAMES)


def test_splits_with_and_without_several(make_folder: Folder) -> None:
    files = {**at("train", "ab"), **at("val", "c")}
    first = [{"id": 0, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}]
    last = [{"id": 2, "file_name": "c.jpg"}]
    files["annotations/x_train.json"] = naturalist((0, 4), (1, 9), images=first)
    files["annotations/x_val.json"] = naturalist((2, 4), (2, 9), images=last)
    listing = listed(make_folder(files))
    assert listing.samples.column("labels").to_pylist() == [[0], [1], [0, 1]]


def test_a_category_that_is_not_listed(make_folder: Folder) -> None:
    with pytest.raises(SourceError, match="uses a category that it does not list: '5'"):
        listed(make_folder({**at("images"), "train.json": naturalist((0, 5))}))


def test_annotations_that_stand_twice(make_folder: Folder) -> None:
    """PyLabel 0.1 writes the last one before an image without an object again; equal boxes of other ids stay."""
    box = {"image_id": 0, "category_id": 4, "bbox": [1, 2, 3, 4]}
    entries = [{"id": number, **box} for number in (1, 1, 2)]
    listing = listed(make_folder({**at("images"), "train.json": naturalist(annotations=entries)}))
    assert listing.samples.column("boxes").to_pylist()[0] == [[1, 2, 4, 6]] * 2
    assert any("1 annotation stands there twice, and once in the set" in note for note in listing.notes)


def minimal(**columns: Any) -> bytes:
    """Label Studio's JSON-MIN."""
    about = {"annotator": 1, "annotation_id": 2, "created_at": "2026-11-01", "updated_at": "", "lead_time": 1.5}
    return json.dumps([{"image": f"/data/{name}.jpg", "id": 1, **columns, **about} for name in "abc"]).encode()


def test_choices_of_label_studio(make_folder: Folder) -> None:
    listing = listed(make_folder({**at("images"), "e.json": minimal(kind={"choices": ["dog", "cat"]})}))
    assert listing.samples.column("labels").to_pylist() == [[0, 1]] * 3
    root = make_folder({**at("images"), "e.json": minimal(kind="dog", author="me")})
    with pytest.raises(SourceError, match="its tasks have the texts 'author', 'kind'.* --option attribute=NAME"):
        listed(root)
    assert listed(root, options={"attribute": "kind"}).classes == ("dog",)


def test_lines_end_within_a_cell_of_a_csv(make_folder: Folder) -> None:
    """Of Label Studio's CSV: such a cell is one text, and the rows after it are read."""
    texts = zip("abc", ("dog", "a\r\nb", "cat"), strict=True)
    rows = "".join(f'2,me,2026-11-01,1,/data/{name}.jpg,"{text}",1.5,\r\n' for name, text in texts)
    head = "annotation_id,annotator,created_at,id,image,kind,lead_time,updated_at\r\n"
    root = make_folder({**at("images"), "e.csv": f"{head}{rows}".encode()})
    assert listed(root, options={"attribute": "kind"}).classes == ("a\r\nb", "cat", "dog")
