"""Annotations of COCO, Pascal VOC and YOLO: where they belong, what contradicts, and the numbers of classes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import Folder
from PIL import Image
from reading import rejected_of, rows_of
from sources_read import IMAGES, PHOTOS, coco, inside, listed, packed, reasons_of

import gpuload
from gpuload import ArgumentError, DecodeError, FormatError, SourceError, cli
from gpuload.disk import Manifest

WIDTH, HEIGHT = 64, 40  # of the image as it is stored, before its orientation
BOX = [8, 4, 24, 12]  # x y width height of what is bright in it
POINT = [20, 10, 2]


def picture(orientation: int = 1) -> bytes:
    """A dark image with a bright box."""
    pixels = np.full((HEIGHT, WIDTH, 3), 20, np.uint8)
    x, y, width, height = BOX
    pixels[y : y + height, x : x + width] = 240
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=98, subsampling=0, exif=exif)
    return file.getvalue()


def runs() -> dict[str, Any]:
    mask = np.zeros((HEIGHT, WIDTH), int)
    x, y, width, height = BOX
    mask[y : y + height, x : x + width] = 1
    edges = np.flatnonzero(np.diff(mask.T.reshape(-1), prepend=0))
    return {"size": [HEIGHT, WIDTH], "counts": np.diff(edges, prepend=0, append=mask.size).tolist()}


def polygon(factor: int = 1) -> list[list[float]]:
    x, y, width, height = (factor * side for side in BOX)
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def document(size: tuple[int, int], factor: int = 1, **more: Any) -> dict[str, Any]:
    """COCO's, of one image with one box. size: (width, height) of the image that it says. factor: of its numbers."""
    annotation = {
        "id": 1, "image_id": 1, "category_id": 18, "bbox": [factor * side for side in BOX], "iscrowd": 0,
        "keypoints": [factor * POINT[0], factor * POINT[1], 2], **more,
    }  # fmt: skip
    return {
        "images": [{"id": 1, "file_name": "1.jpg", "width": size[0], "height": size[1]}],
        "annotations": [annotation],
        "categories": [{"id": 18, "name": "dog", "keypoints": ["nose"]}],
    }


def check_places(folder: Path, has_masks: bool) -> None:
    """All that is in the box, the mask and around the keypoint is bright, and nothing else is."""
    fields = ["image", gpuload.Boxes(as_targets=True, masks=has_masks), gpuload.Keypoints()]
    augment = gpuload.Augment(None, crop="keep", normalize=None, dtype="uint8")
    options: dict[str, Any] = {"device": "cpu", "output": "numpy", "shuffle": False}
    with gpuload.DaliIterator(folder, 1, augment=augment, fields=fields, **options) as loader:
        ((images, targets, points),) = loader
    image = images[0].mean(axis=0 if images[0].shape[0] == 3 else 2)
    inside_box = np.zeros(image.shape, bool)
    x0, y0, x1, y1 = targets[0]["boxes"][0].round().astype(int)
    inside_box[y0:y1, x0:x1] = True
    assert image[inside_box].mean() > 220 and image[~inside_box].mean() < 30
    if has_masks:
        assert np.array_equal(targets[0]["masks"][0] != 0, inside_box)
        assert targets[0]["area"][0] == pytest.approx(inside_box.sum(), rel=0.02)
    x, y, visibility = points.keypoints[0, 0, 0].tolist()
    assert (image[int(y), int(x)] > 220, visibility) == (True, 2)


@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
@pytest.mark.parametrize("outline", ["runs", "polygon", ""])
def test_boxes_drawn_before_the_orientation_are_turned(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], orientation: int, outline: str
) -> None:
    """Those of an image that is turned by a quarter, of which the size tells it."""
    segmentation = {"runs": runs(), "polygon": polygon(), "": None}[outline]
    more = {"segmentation": segmentation, "area": BOX[2] * BOX[3]} if segmentation else {}
    told = document((WIDTH, HEIGHT), **more)
    root = make_folder({"1.jpg": picture(orientation), "c.json": json.dumps(told).encode()})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    check_places(tmp_path / "out" / "train", bool(outline))
    is_turned = orientation > 4
    assert ("annotations for the image before its Exif orientation: 1, turned" in capsys.readouterr().out) == is_turned


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 6])
def test_an_orientation_that_sizes_do_not_tell_is_noted(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], orientation: int
) -> None:
    """Boxes are those of the upright image, which a tool that ignores Exif did not show."""
    told = document((HEIGHT, WIDTH) if orientation > 4 else (WIDTH, HEIGHT))
    root = make_folder({"1.jpg": picture(orientation), "c.json": json.dumps(told).encode()})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    note = "that keeps their size: 1, annotations are taken as those of the upright image"
    assert (note in capsys.readouterr().out) == (orientation in (2, 3, 4))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", ["", "32"])
def test_boxes_drawn_at_another_size_are_scaled(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], orientation: int, size: str
) -> None:
    told = document((3 * WIDTH, 3 * HEIGHT), 3, segmentation=polygon(3), area=9 * BOX[2] * BOX[3])
    root = make_folder({"1.jpg": picture(orientation), "c.json": json.dumps(told).encode()})
    resize = ["--encode", "jpeg", "--size", "20", "--quality", "98"] if size else []
    packed(root, tmp_path / "out", "--labels", root / "c.json", *resize)
    check_places(tmp_path / "out" / "train", not size)
    word = "another size: 1, scaled" if orientation == 1 else "before its Exif orientation: 1, turned"
    assert word in capsys.readouterr().out


@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (0, 0), (None, None), (str(WIDTH), float(HEIGHT))])
def test_a_size_that_agrees_or_is_unknown(make_folder: Folder, tmp_path: Path, size: Any) -> None:
    root = make_folder({"1.jpg": picture(), "c.json": json.dumps(document(size)).encode()})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    check_places(tmp_path / "out" / "train", False)


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (WIDTH, 50), (640, 480)])
def test_a_size_that_nothing_explains(make_folder: Folder, tmp_path: Path, size: tuple[int, int]) -> None:
    """The image is left out with both sizes; one without boxes stays."""
    told = document(size)
    told["images"].append({**told["images"][0], "id": 2, "file_name": "2.jpg"})
    root = make_folder({"1.jpg": picture(), "2.jpg": picture(3), "c.json": json.dumps(told).encode()})
    packed(root, tmp_path / "out", "--labels", root / "c.json", code=cli.REJECTED)
    assert rejected_of(tmp_path / "out" / "train") == {
        "1.jpg": f"has 64 x 40 pixels, its annotations are for {size[0]} x {size[1]}, which neither its Exif orientation "
        "nor a resize explains"
    }
    assert [row["source"] for row in rows_of(tmp_path / "out" / "train")] == ["2.jpg"]


def voc(size: str, *objects: tuple[str, Any]) -> bytes:
    parts = [
        f"<object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
        "</bndbox></object>"
        for name, (x, y, w, h) in objects
    ]
    return f"<annotation>{size}{''.join(parts)}</annotation>".encode()


def size_of(width: int, height: int) -> str:
    return f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"


def test_sizes_and_classes_of_pascal_voc(make_folder: Folder, tmp_path: Path) -> None:
    """Boxes have no background that nobody asked for; one that is in the files is a class as any other."""
    files = {
        "JPEGImages/1.jpg": picture(6), "Annotations/1.xml": voc(size_of(WIDTH, HEIGHT), ("dog", BOX)),
        "JPEGImages/2.jpg": picture(), "Annotations/2.xml": voc(size_of(2 * WIDTH, 2 * HEIGHT), ("cat", [2 * x for x in BOX])),
        "JPEGImages/3.jpg": picture(), "Annotations/3.xml": voc(size_of(HEIGHT, WIDTH), ("cat", BOX)),
        "JPEGImages/4.jpg": picture(), "Annotations/4.xml": voc(""),
    }  # fmt: skip
    packed(make_folder(files), tmp_path / "out", "--no-shuffle", code=cli.REJECTED)
    train = tmp_path / "out" / "train"
    assert list(rejected_of(train)) == ["JPEGImages/3.jpg"]
    data = gpuload.Dataset(train)
    assert (data.classes, data.fields["boxes"].classes) == (("background", "cat", "dog"), ("cat", "dog"))
    augment = gpuload.Augment(None, crop="keep", normalize=None)
    fields = ["label", gpuload.Boxes(as_targets=True)]
    with gpuload.DaliIterator(data, 3, augment=augment, fields=fields, device="cpu", shuffle=False) as loader:
        ((labels, targets),) = loader
    assert labels.tolist() == [2, 1, 0]
    assert [target["labels"].tolist() for target in targets] == [[2], [1], []]
    x, y, width, height = BOX
    assert targets[0]["boxes"].tolist() == [[HEIGHT - y - height, x, HEIGHT - y, x + width]]
    assert targets[1]["boxes"].tolist() == [[x, y, x + width, y + height]]


def test_pascal_voc_without_xml(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({**inside("JPEGImages"), "Annotations/0.xml": voc("", ("dog", BOX))})
    with pytest.raises(
        SourceError, match=r"2 files have no partner .*--negatives packs images without an XML as images"
    ):
        listed(root)
    packed(root, tmp_path / "out", "--negatives", "--no-shuffle")
    rows = rows_of(tmp_path / "out" / "train")
    assert [(row["label"], len(row["boxes"])) for row in rows] == [(1, 1), (0, 0), (0, 0)]
    assert listed(root, negatives=True).notes[0] == (
        "2 images have no XML, so no objects: 'JPEGImages/1.jpg', 'JPEGImages/2.jpg'"
    )
    with pytest.raises(
        SourceError, match="1 file has no partner .*'Annotations/7.xml'. Add the partner, or remove them$"
    ):
        listed(make_folder({**inside("JPEGImages"), "Annotations/7.xml": voc("")}), negatives=True)
    with pytest.raises(ArgumentError, match="--negatives: .* is packed as 'folder', where it has no meaning"):
        listed(make_folder(inside("cat")), negatives=True)


def test_one_damaged_xml_is_the_fault_of_one_image(make_folder: Folder) -> None:
    files = {f"Annotations/{n}.xml": voc("", ("dog", BOX)) for n in range(2)} | {"Annotations/2.xml": b"<annotation>"}
    listing = listed(make_folder({**inside("JPEGImages"), **files}))
    assert listing.samples.column("name").to_pylist() == ["JPEGImages/0.jpg", "JPEGImages/1.jpg"]
    ((name, reason),) = reasons_of(listing)
    assert name == "JPEGImages/2.jpg" and reason.startswith("its 'Annotations/2.xml', no element found")


YOLO = b"0 0.5 0.5 0.2 0.4\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"0 0.1 0.1 0.2 0.1 0.2", "line 2 is '0 0.1 0.1 0.2 0.1 0.2', is not YOLO's boxes: lines of class, x"),
        (b"0 0.5 0.5 0.2 1.02", "line 2 is '0 0.5 0.5 0.2 1.02'"),
        (b"2 0.5 0.5 0.2 0.2", "line 2 has class 2, the last one with a name is 1"),
        (b"0.5 0.5 0.5 0.2 0.2", "line 2 is '0.5 0.5"),
        (b"0 0.5 0.5 0.2 0.2 0.98", "line 2 is '0 0.5 0.5 0.2 0.2 0.98'"),
    ],
)
@pytest.mark.parametrize("form", [None, "yolo"])
def test_one_bad_line_of_yolo_is_the_fault_of_one_image(
    make_folder: Folder, form: str | None, line: bytes, fault: str
) -> None:
    files = {"labels/0.txt": YOLO + line, "labels/1.txt": YOLO, "labels/2.txt": YOLO, "data.yaml": b"names: [a, b]"}
    listing = listed(make_folder({**inside("images"), **files}), form=form)
    assert listing.samples.column("name").to_pylist() == ["images/1.jpg", "images/2.jpg"]
    ((name, reason),) = reasons_of(listing)
    assert name == "images/0.jpg" and reason.startswith(f"its 'labels/0.txt', {fault}")


def test_what_ultralytics_takes(make_folder: Folder) -> None:
    """Shares that rounding leaves a hundredth outside, and a class that is written as a float."""
    files = {
        "labels/0.txt": b"1.0000 1.004 0.5 1.01 0.4\n0 -0.01 0.5 0.5 0.5",
        "labels/1.txt": b"",
        "labels/2.txt": b"",
    }
    listing = listed(make_folder({**inside("images"), **files}))
    assert listing.samples.column("boxes_class").to_pylist() == [[1, 0], [], []]
    assert np.array(listing.samples.column("boxes")[0].as_py()).max() <= 40


def test_a_set_of_poses_without_their_number_is_told_as_one(make_folder: Folder) -> None:
    files = {f"labels/{n}.txt": b"0 0.1 0.1 0.2 0.1 0.2 0.3 2\n" for n in range(3)}
    with pytest.raises(
        SourceError, match=r"holds no sample; found: 'images/0.jpg' its 'labels/0.txt', line 1 is .*polygon"
    ):
        listed(make_folder({**inside("images"), **files}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"names: [yes, no, off, 007, 010, 1.10, 1e3, ~, 2024-01-01]",
         ("yes", "no", "off", "007", "010", "1.10", "1e3", "~", "2024-01-01")),
        (b"nc: 3\nnames:\n  0: y\n  1: 'on'\n  2: 0x10\n", ("y", "on", "0x10")),
        (b"\xef\xbb\xbfnames: [a, b]\n", ("a", "b")),
    ],
)  # fmt: skip
def test_names_in_yaml_are_as_they_are_written(make_folder: Folder, text: bytes, names: tuple[str, ...]) -> None:
    root = make_folder({**inside("images"), "labels/0.txt": YOLO, "data.yaml": text})
    assert listed(root).fields[0].classes == names


@pytest.mark.parametrize("text", ["\ufeffant\nbee\n".encode(), "ant\r\nbee\r\n".encode("utf-16"), b"ant\nbee\n\n  \n"])
def test_names_in_lines(make_folder: Folder, text: bytes) -> None:
    root = make_folder({**inside("images"), "labels/0.txt": YOLO, "classes.txt": text})
    assert listed(root).fields[0].classes == ("ant", "bee")


def test_a_class_without_a_name(make_folder: Folder) -> None:
    root = make_folder({**inside("images"), "labels/0.txt": YOLO, "classes.txt": b"ant\n\nbee\n"})
    with pytest.raises(SourceError, match="classes.txt: line 2 is empty, so that class 1 has no name. Write one name"):
        listed(root)


CATEGORIES = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
BOXES = [
    {"id": n, "image_id": n, "bbox": [1, 2, 3, 4], "category_id": category["id"]}
    for n, category in enumerate(CATEGORIES)
]


def targets_of(folder: Path, **options: Any) -> list[list[int]]:
    spec = gpuload.Boxes(as_targets=True, **options)
    augment = gpuload.Augment(None, crop="keep", normalize=None)
    with gpuload.DaliIterator(folder, 3, augment=augment, fields=[spec], device="cpu", shuffle=False) as loader:
        ((targets,),) = loader
    return [target["labels"].tolist() for target in targets]


def test_the_numbers_of_cocos_categories(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({**IMAGES, "c.json": coco(annotations=BOXES, categories=CATEGORIES)})
    packed(root, tmp_path / "out", "--labels", root / "c.json", "--no-shuffle")
    train = tmp_path / "out" / "train"
    assert gpuload.Dataset(train).fields["boxes"].category_ids == (1, 18, 90)
    assert json.loads((train / "manifest.json").read_text())["fields"][1]["category_ids"] == [1, 18, 90]
    assert targets_of(train, numbers="coco") == [[90], [1], [18]]
    assert targets_of(train) == [[3], [1], [2]]
    assert targets_of(train, numbers="from 0") == [[2], [0], [1]]
    # Packed again from its shards, and appended to.
    packed(train, tmp_path / "again", "--from", "tar", "--no-shuffle")
    assert targets_of(tmp_path / "again" / "train", numbers="coco") == [[90], [1], [18]]
    more = make_folder(
        {
            **IMAGES,
            "c.json": coco(
                annotations=BOXES[:1], categories=[{"id": 90, "name": "toothbrush"}, {"id": 5, "name": "airplane"}]
            ),
        }
    )
    packed(more, tmp_path / "out", "--labels", more / "c.json", "--no-shuffle", "--append")
    assert gpuload.Dataset(train).fields["boxes"].category_ids == (1, 18, 90, 5)
    for changed, message in [
        (
            {"id": 7, "name": "dog"},
            "--append: the category 'dog' of 'boxes' has the id 18 in the set, and 7 in the new",
        ),
    ]:
        other = make_folder(
            {**IMAGES, "c.json": coco(annotations=[{**BOXES[0], "category_id": 7}], categories=[changed])}
        )
        with pytest.raises(SourceError, match=message):
            gpuload.pack(gpuload.sources.open_source(other, other / "c.json"), tmp_path / "out", append=True, workers=1)


def test_numbers_that_a_set_does_not_have(tmp_path: Path) -> None:
    gpuload.pack([{"image": PHOTOS[0], "boxes": [[1, 2, 3, 4]]}], tmp_path / "out", workers=1)
    assert Manifest.read(tmp_path / "out" / "train").fields[1].category_ids is None
    with pytest.raises(
        ArgumentError, match=r"numbers='coco': .*train was packed without the numbers of COCO's categories"
    ):
        targets_of(tmp_path / "out" / "train", numbers="coco")
    with pytest.raises(ArgumentError, match=r"Boxes\(numbers='coco'\): are those of targets alone.*as_targets=True"):
        gpuload.Boxes(numbers="coco")


CONTRADICTIONS = [
    ({"categories": []}, "has boxes but no 'categories', which list the classes"),
    ({"categories": [{"id": 5, "name": "cat"}, {"id": 5, "name": "dog"}]}, "its category 5 is 'cat' and 'dog'"),
    ({"categories": [{"id": "5", "name": "cat"}, {"id": "05", "name": "dog"}]}, "its category 5 is 'cat' and 'dog'"),
    *(({"annotations": [{"id": 1, "image_id": 0, "bbox": [1, 2, 3, 4], "category_id": 5, "iscrowd": value}]},
       "an entry of its annotations has the iscrowd") for value in (2, "no", "false", [])),
    ({"images": [{"id": 0, "file_name": "0.jpg", "width": -4, "height": 3}]}, "an entry of its images has the width -4"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_documents_that_contradict_themselves(make_folder: Folder, changes: dict[str, Any], message: str) -> None:
    root = make_folder({**IMAGES, "c.json": coco(**changes)})
    with pytest.raises(SourceError, match=message):
        listed(root, root / "c.json")


@pytest.mark.parametrize(("value", "count"), [("0", 1), (0, 1), (None, 1), (False, 1), ("1", 0), (1, 0), (True, 0)])
def test_crowds(make_folder: Folder, value: Any, count: int) -> None:
    """Some tools write them as texts: "0" is none."""
    box = {"id": 1, "image_id": 0, "bbox": [1, 2, 3, 4], "category_id": 5, "iscrowd": value}
    root = make_folder({**IMAGES, "c.json": coco(annotations=[box])})
    assert len(listed(root, root / "c.json").samples.column("boxes")[0].as_py()) == count


def test_harmless_oddities(make_folder: Folder) -> None:
    """Annotations without ids, a category that is there twice, ids as texts, a byte order mark."""
    boxes = [{"image_id": 0, "bbox": [n, 2, 3, 4], "category_id": "5"} for n in (7, 1)]
    text = coco(annotations=boxes, categories=[{"id": 5, "name": "x"}, {"id": 5, "name": "x"}, {"id": 6, "name": "x"}])
    root = make_folder({**IMAGES, "c.json": b"\xef\xbb\xbf" + text})
    listing = listed(root, root / "c.json")
    assert [box[0] for box in listing.samples.column("boxes")[0].as_py()] == [7, 1]
    assert listing.fields[0].classes == ("x", "x") and listing.fields[0].category_ids == (5, 6)
    assert any("several categories are called 'x', and stay different classes" in note for note in listing.notes)


def test_a_split_of_negatives(make_folder: Folder) -> None:
    """It has no areas and no keypoints, and belongs to the other one all the same."""
    train = document((WIDTH, HEIGHT), area=30)
    val = {**train, "annotations": [], "images": [{"id": 7, "file_name": "2.jpg"}]}
    files = {"images/1.jpg": picture(), "images/2.jpg": picture()}
    files |= {f"annotations/{name}.json": json.dumps(text).encode() for name, text in (("train", train), ("val", val))}
    listing = listed(make_folder(files))
    assert [(field.name, field.kind) for field in listing.fields[:1]] == [("boxes", "instances")]
    assert [len(boxes) for boxes in listing.samples.column("boxes").to_pylist()] == [1, 0]
    assert [len(points) for points in listing.samples.column("keypoints").to_pylist()] == [1, 0]


@pytest.mark.parametrize("area", [None, 12])
def test_keypoints_are_those_of_the_boxes(make_folder: Folder, area: int | None) -> None:
    """Of an instance without any, none is labelled, and the n-th of an image are those of its n-th box."""
    given = [{"keypoints": [1, 2, 2]}, {}, {"keypoints": []}, {"keypoints": [3, 4, 1]}]
    more = {} if area is None else {"area": area}
    boxes = [
        {"id": n, "image_id": 0, "bbox": [n, 2, 3, 4], "category_id": 5, **more, **of} for n, of in enumerate(given)
    ]
    listing = listed(root := make_folder({**IMAGES, "c.json": coco(annotations=boxes)}), root / "c.json")
    assert [box[0] for box in listing.samples.column("boxes")[0].as_py()] == [0, 1, 2, 3]
    assert listing.samples.column("keypoints")[0].as_py() == [[1, 2, 2], [0, 0, 0], [0, 0, 0], [3, 4, 1]]
    assert any("2 instances have no keypoints; their points are not labelled" in note for note in listing.notes)


def with_points(*points: list[int] | None) -> bytes:
    """COCO's JSON of one image: a box for each instance, n pixels wide for the n-th, and the keypoints."""
    boxes = [
        {
            "id": n,
            "image_id": 0,
            "bbox": [2 * n, 1, n, 6],
            "category_id": 5,
            **({} if at is None else {"keypoints": at}),
        }
        for n, at in enumerate(points)
    ]
    return coco(["0.jpg"], annotations=boxes)


def targets_with_points(folder: Path, **options: Any) -> dict[str, Any]:
    spec = gpuload.Boxes(as_targets=True, keypoints="keypoints", min_visible=0)
    augment = gpuload.Augment(None, normalize=None, **{"crop": "keep", **options})
    with gpuload.DaliIterator(folder, 1, augment=augment, fields=[spec], device="cpu", shuffle=False) as loader:
        (((target,),),) = loader
    return target


POINTS = ([9, 9, 2], [3, 3, 2], None, [7, 4, 1], [0, 0, 0])


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_targets_with_keypoints(make_folder: Folder, tmp_path: Path, flip: float) -> None:
    """The first box is empty and left out by the packer, and so are its points; rows belong together."""
    root = make_folder({"0.jpg": PHOTOS[0], "c.json": with_points(*POINTS)})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    data = gpuload.Dataset(tmp_path / "out" / "train")
    assert [len(data[0][name]) for name in ("boxes", "keypoints")] == [4, 4]
    assert data.fields["keypoints"].instances_of == "boxes"
    target = targets_with_points(tmp_path / "out" / "train", flip=flip)
    left = [[2.0 * n, 3.0 * n] for n in range(1, 5)]
    expected = [[3, 3, 2], [0, 0, 0], [7, 4, 1], [0, 0, 0]]
    if flip:  # the images are 40 pixels wide
        left = [[40 - right, 40 - first] for first, right in left]
        expected = [[40 - x if visible else 0, y, visible] for x, y, visible in expected]
    assert target["boxes"][:, [0, 2]].tolist() == left
    assert target["keypoints"].dtype == torch.float32 and target["keypoints"][:, 0].tolist() == expected


def test_keypoints_of_boxes_that_the_packer_crops_off(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder(
        {"0.jpg": PHOTOS[0], "c.json": with_points(None, [2, 2, 2], [5, 2, 2], *[[3 * n, 2, 2] for n in range(3, 9)])}
    )
    options = ["--encode", "jpeg", "--size", "10x30", "--fit", "center-crop"]
    packed(root, tmp_path / "out", "--labels", root / "c.json", *options)
    target = targets_with_points(tmp_path / "out" / "train")
    points = target["keypoints"][:, 0].tolist()
    assert 0 < len(points) == len(target["boxes"]) < 8
    assert all(
        box[0] <= x <= box[2] for box, (x, _, visible) in zip(target["boxes"].tolist(), points, strict=True) if visible
    )


def test_keypoints_that_are_not_those_of_the_boxes(make_folder: Folder, tmp_path: Path) -> None:
    sample = {"image": PHOTOS[0], "boxes": [[1, 2, 3, 4]], "keypoints": [[[1, 1, 2]], [[2, 2, 2]]], "caption": "x"}
    gpuload.pack([sample], tmp_path / "out", workers=1)
    with pytest.raises(DecodeError, match=r"has 1 'boxes' and 2 'keypoints', which do not belong together. Pack them"):
        targets_with_points(tmp_path / "out" / "train")
    spec = gpuload.Boxes(as_targets=True, keypoints="caption")
    with pytest.raises(
        ArgumentError, match=r"keypoints='caption'\): 'caption' in .* is of kind 'caption'.*Name keypoints"
    ):
        gpuload.DaliIterator(tmp_path / "out" / "train", 1, augment=gpuload.Augment(8), fields=[spec], device="cpu")
    with pytest.raises(
        ArgumentError, match=r"Boxes\(keypoints='keypoints'\): are in targets alone. Use as_targets=True"
    ):
        gpuload.Boxes(keypoints="keypoints")


def test_points_of_boxes_in_a_forged_manifest(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({"0.jpg": PHOTOS[0], "c.json": with_points(*POINTS)})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    path = tmp_path / "out" / "train" / "manifest.json"
    whole = path.read_text()
    for old, new, message in [
        (
            '"instances_of": "boxes"',
            '"instances_of": "image_id"',
            "has the instances of 'image_id', which are no boxes",
        ),
        ('"category_ids": [\n    5\n   ]', '"category_ids": [5, 6]', "has 2 ids of categories for 1 class"),
    ]:
        assert old in whole
        path.write_text(whole.replace(old, new))
        with pytest.raises(FormatError, match=message):
            gpuload.Dataset(path.parent)


def test_runs_of_a_size_that_takes_too_much_memory(make_folder: Folder, tmp_path: Path) -> None:
    """The file claims it; the image is small."""
    size = (1000 * WIDTH, 1000 * HEIGHT)
    runs_of_nothing = {"size": [size[1], size[0]], "counts": [size[0] * size[1]]}
    told = document(size, 1000, segmentation=runs_of_nothing, area=1)
    told["images"].append({"id": 2, "file_name": "2.jpg"})
    root = make_folder({"1.jpg": picture(), "2.jpg": picture(), "c.json": json.dumps(told).encode()})
    packed(root, tmp_path / "out", "--labels", root / "c.json", code=cli.REJECTED)
    reason = rejected_of(tmp_path / "out" / "train")["1.jpg"]
    assert reason == "the runs of a mask of 'boxes' are of 64000 x 40000 pixels, too many to be scaled"


def test_classes_without_a_number_are_not_appended(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({**IMAGES, "c.json": coco()})
    packed(root, tmp_path / "out", "--labels", root / "c.json")
    samples = [
        {"image": PHOTOS[5], "boxes": [[1, 2, 3, 4]], "boxes_class": [name], "labels": [name], "image_id": {"a": 1}}
        for name in ("new", "x")
    ]
    with pytest.raises(SourceError, match=r"--append: 'boxes' has classes without an id \('new'\), .*from COCO's JSON"):
        gpuload.pack(samples[:1], tmp_path / "out", append=True, workers=1)
    gpuload.pack(samples[1:], tmp_path / "out", append=True, workers=1)
    assert gpuload.Dataset(tmp_path / "out" / "train").fields["boxes"].category_ids == (5,)


def test_a_mixture_of_other_numbers(make_folder: Folder, tmp_path: Path) -> None:
    folders = []
    for number in (5, 6):
        root = make_folder(
            {
                **IMAGES,
                "c.json": coco(
                    annotations=[{**BOXES[0], "category_id": number}], categories=[{"id": number, "name": "x"}]
                ),
            }
        )
        packed(root, tmp_path / str(number), "--labels", root / "c.json")
        folders.append(gpuload.Dataset(tmp_path / str(number) / "train"))
    both = gpuload.mix([(folders[0], 0.5), (folders[1], 0.5)])
    options: dict[str, Any] = {"augment": gpuload.Augment(None, crop="keep", normalize=None), "device": "cpu"}
    with pytest.raises(ArgumentError, match=r"has other numbers than .* for the same classes. Use numbers='from 0'"):
        gpuload.DaliIterator(
            both, 2, fields=[gpuload.Boxes(as_targets=True, numbers="coco")], steps_per_epoch=1, **options
        )
    gpuload.DaliIterator(both, 2, fields=[gpuload.Boxes(as_targets=True)], steps_per_epoch=1, **options).close()
