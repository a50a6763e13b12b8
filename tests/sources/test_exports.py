"""What annotation tools export, in the layout that each writes: packed with what they say, or refused by name.

The versions are those whose files were looked at. An export that is not read, or only by an option, ends the run with the
name of its file of annotations.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tool_files as tools
from images import Folder
from reading import rejected_of, rows_of
from sources_read import listed, names_of, packed, reasons_of, splits_of
from tool_files import BOXES, IMAGES, MOT_FRAMES, NAMES, at, of_each

from gpuload import SourceError, cli


def coco(prefix: str = "", first: int = 1, names: str = "abc", **changes: Any) -> bytes:
    images = [{"id": n, "file_name": f"{prefix}{name}.jpg", "width": 100, "height": 50} for n, name in enumerate(names)]
    annotations: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        for label, x0, y0, x1, y1 in BOXES[name]:
            box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "category_id": NAMES.index(label) + first, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": number, **box})
    categories = [{"id": n + first, "name": name} for n, name in enumerate(NAMES)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories, **changes}).encode()


def padded(document: bytes) -> bytes:
    """A document of which the list of annotations begins far from both ends."""
    content = json.dumps({"license": 1, "coco_url": "x" * 600_000})[1:-1].encode()
    start = document.index(b'], "annotations"') - 1
    inside = document.index(b'"image_id"')
    note = b'"note": "%s", ' % (b"y" * 600_000)
    return document[:start] + b", " + content + document[start:inside] + note + document[inside:]


def voc(name: str, first_pixel: int = 0) -> bytes:
    sides = ("xmin", "ymin", "xmax", "ymax")
    objects = ""
    for label, x0, y0, x1, y1 in BOXES[name]:
        corners = (x0 + first_pixel, y0 + first_pixel, x1, y1)
        box = "".join(f"<{side}>{value}</{side}>" for side, value in zip(sides, corners, strict=True))
        objects += f"<object><name>{label}</name><bndbox>{box}</bndbox></object>"
    size = "<size><width>100</width><height>50</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}.jpg</filename>{size}{objects}</annotation>".encode()


def yolo(name: str) -> bytes:
    lines = []
    for label, x0, y0, x1, y1 in BOXES[name]:
        shares = ((x0 + x1) / 200, (y0 + y1) / 100, (x1 - x0) / 100, (y1 - y0) / 50)
        lines.append(" ".join([str(NAMES.index(label)), *(f"{share:.6f}" for share in shares)]))
    return "\n".join(lines).encode()


ROBOFLOW = {
    **{f"train/{name}.jpg": IMAGES[f"{name}.jpg"] for name in "ab"},
    "train/_annotations.coco.json": coco(names="ab"),
    "valid/c.jpg": IMAGES["c.jpg"],
    "valid/_annotations.coco.json": coco(names="c"),
    "README.roboflow.txt": b"exported via roboflow.com", "README.dataset.txt": b"cats and dogs",
}  # fmt: skip
LABEL_STUDIO_COCO = {**at("images"), "result.json": coco("images/", first=0)}
YAML = b"names:\n  0: cat\n  1: dog\npath: /home/me/set\nval: ./images/val/\n"

RIGHT: dict[str, tuple[dict[str, bytes], list[str] | None]] = {
    "FiftyOne 1.22 COCO": ({**at("data"), "labels.json": coco()}, None),
    "FiftyOne 1.22 VOC": ({**at("data"), **of_each("labels/{}.xml", voc)}, None),
    "FiftyOne 1.22 YOLOv5": ({**at("images/val"), **of_each("labels/val/{}.txt", yolo), "dataset.yaml": YAML}, ["val"] * 3),
    "FiftyOne 1.22 YOLOv4": (
        {**at("data"), **of_each("data/{}.txt", yolo), "obj.names": b"cat\ndog", "images.txt": b"data/a.jpg\ndata/b.jpg\ndata/c.jpg\n"}, None),
    "FiftyOne 1.22 COCO, large": ({**at("data"), "labels.json": padded(coco())}, None),
    "supervision 0.31 COCO": ({**at("images"), "annotations.json": coco()}, None),
    "VOC in folders of small letters": ({**at("images"), **of_each("annotations/{}.xml", voc)}, None),
    "supervision 0.31 YOLO": ({**at("images"), **of_each("labels/{}.txt", yolo), "data.yaml": b"names: [cat, dog]\nnc: 2\n"}, None),
    "globox 2.9 COCO": ({**at("images"), "coco.json": coco(first=0)}, None),
    "globox 2.9 VOC": ({**at("images"), **of_each("annotations/{}.xml", voc)}, None),
    "Label Studio 2.1 COCO": (LABEL_STUDIO_COCO, None),
    "Label Studio 2.1 YOLO": (
        {**at("images"), **of_each("labels/{}.txt", yolo), "classes.txt": b"cat\ndog\n", "notes.json": b'{"categories": [], "info": {}}'}, None),
    "CVAT COCO": ({**at("images/default"), "annotations/instances_default.json": coco()}, None),
    "CVAT VOC": (
        {**at("JPEGImages"), **of_each("Annotations/{}.xml", voc), "ImageSets/Main/default.txt": b"a\nb\nc\n", "labelmap.txt": b"# label:color_rgb:parts:actions\ncat:1,2,3::"},
        None),
    "Roboflow COCO": (ROBOFLOW, ["train", "train", "val"]),
    "Roboflow VOC": ({**at("train"), **of_each("train/{}.xml", voc), "README.roboflow.txt": b"exported"}, None),
    "LabelImg 1.8 VOC": ({**at(""), **of_each("{}.xml", voc), "predefined_classes.txt": b"cat\ndog\n"}, None),
    "LabelImg 1.8 VOC in class folders": ({**at("x"), **of_each("x/{}.xml", voc), "y/d.jpg": IMAGES["a.jpg"], "y/d.xml": b"<annotation></annotation>"}, None),
    "Datumaro 1.13 COCO with a split of negatives": (
        {**{f"images/train/{name}": IMAGES[name] for name in ("a.jpg", "b.jpg")}, "annotations/instances_train.json": coco(names="ab"),
         "annotations/image_info_train.json": coco(names="ab", annotations=[], categories=[]), "images/val/c.jpg": IMAGES["c.jpg"],
         "annotations/image_info_val.json": coco(names="c", annotations=[], categories=[])}, ["train", "train", "val"]),
    "Datumaro 1.13 COCO": (
        {**at("images/train"), "annotations/instances_train.json": coco(), "annotations/image_info_train.json": coco(annotations=[]),
         "annotations/captions_train.json": coco(annotations=[])}, None),
}  # fmt: skip

CORNERS = {name: [list(box[1:]) for box in boxes] for name, boxes in BOXES.items()}
TRAIN_VAL = ["train", "train", "val"]
# With the names of the two classes where they are not "cat" and "dog".
DRAWN: dict[str, tuple[dict[str, bytes], list[str] | None]] = {
    "LabelMe 6.3": ({**at(""), **of_each("{}.json", tools.labelme)}, None),
    "LabelMe, in class folders": ({**at("x"), **of_each("x/{}.json", tools.labelme)}, None),
    "Label Studio JSON": ({**at("images"), "export.json": tools.document([tools.label_studio_task(name) for name in "abc"])}, None),
    "Label Studio JSON-MIN": ({**at("images"), "export.json": tools.document([tools.label_studio_minimal(name) for name in "abc"])}, None),
    "VIA 2 project": ({**at(""), "via_project.json": tools.document({"_via_settings": {}, "_via_img_metadata": tools.via()})}, None),
    "VIA 2 JSON": ({**at("images"), "via_region_data.json": tools.document(tools.via())}, None),
    "CVAT for images 1.1": ({**at("images"), "annotations.xml": tools.cvat()}, None),
    "FiftyOne CVAT": ({**at("data"), "labels.xml": tools.cvat()}, None),
    "Datumaro 1.13": ({**at("images/default"), "annotations/default.json": tools.datumaro()}, None),
    "Datumaro 1.13 with splits": (
        {**at("images/train", "ab"), **at("images/val", "c"), "annotations/train.json": tools.datumaro("ab"), "annotations/val.json": tools.datumaro("c")}, TRAIN_VAL),
    "FiftyOne boxes": ({**at("data"), "labels.json": tools.fiftyone_boxes()}, None),
    "FiftyOne data set": ({**at("data"), "samples.json": tools.fiftyone_samples(), "metadata.json": b"{}"}, None),
    "Ultralytics NDJSON": ({**at("images/train", "ab"), **at("images/val", "c"), "pets.ndjson": tools.ndjson()}, TRAIN_VAL),
    "KITTI": ({**at("training/image_2"), **of_each("training/label_2/{}.txt", tools.kitti)}, None),
    "Datumaro 1.13 KITTI": (
        {**at("train/image_2"), **of_each("train/label_2/{}.txt", tools.kitti), **at("train/instance")}, None),
    "FiftyOne KITTI": ({**at("data"), **of_each("labels/{}.txt", tools.kitti)}, None),
    "VisDrone": ({**at("images"), **of_each("annotations/{}.txt", tools.visdrone)}, None),
    "VisDrone with splits": (
        {**at("VisDrone2019-DET-train/images", "ab"), **of_each("VisDrone2019-DET-train/annotations/{}.txt", tools.visdrone, "ab"),
         **at("VisDrone2019-DET-val/images", "c"), **of_each("VisDrone2019-DET-val/annotations/{}.txt", tools.visdrone, "c")}, TRAIN_VAL),
    "MOT17": ({**MOT_FRAMES, "train/MOT17-02-FRCNN/gt/gt.txt": tools.mot()}, None),
    "WIDER FACE": ({**at("WIDER_train/images/0--Parade"), "wider_face_split/wider_face_train_bbx_gt.txt": tools.wider()}, None),
    "VIA 2 CSV": ({**at("images"), "via_export_csv.csv": tools.via_csv()}, None),
    "Kaggle's runs": ({**at("train_images"), "train.csv": tools.runs()}, None),
    "LabelMe's XML": ({**at("Images/train"), **of_each("Annotations/train/{}.xml", tools.labelme_xml)}, None),
    "Datumaro 1.13 MOT": (
        {**{name.partition("FRCNN/")[2]: data for name, data in MOT_FRAMES.items()}, "gt/gt.txt": tools.mot(first=1), "gt/labels.txt": b"cat\ndog\n"}, None),
    "Datumaro 1.13 WIDER": ({**at("WIDER_train/images/no_label"), "wider_face_split/wider_face_train_bbx_gt.txt": tools.wider_with_names()}, None),
    "LVIS": ({**at("train2017"), "lvis_v1_train.json": tools.nearly_coco("lvis")}, None),
    "Objects365": ({**at("train/patch8"), "zhiyuan_objv2_train.json": tools.nearly_coco("objects365")}, None),
    "Label Studio COCO of local files": ({**at("images"), "result.json": tools.nearly_coco("label-studio")}, None),
    "COCO panoptic": ({**at("train2017"), "annotations/panoptic_train2017.json": tools.nearly_coco("panoptic")}, None),
    "CrowdHuman": ({**at("Images"), "annotation_train.odgt": tools.crowdhuman()}, None),
    "Roboflow Create ML": (
        {**at("train", "ab"), "train/_annotations.createml.json": tools.createml("ab"), **at("valid", "c"),
         "valid/_annotations.createml.json": tools.createml("c"), "README.roboflow.txt": b"exported"}, TRAIN_VAL),
    "BDD100K": (
        {**at("images/100k/train", "ac"), "labels/det_20/det_train.json": tools.bdd("ac"), **at("images/100k/val", "b"),
         "labels/det_20/det_val.json": tools.bdd("b")}, TRAIN_VAL),
}  # fmt: skip
# Images without an object are not in these tables.
TABLES: dict[str, tuple[dict[str, bytes], list[str] | None]] = {
    "Roboflow CSV": (
        {**at("train", "ab"), "train/_annotations.csv": tools.roboflow_csv("ab"), **at("valid", "c"), "valid/_annotations.csv": tools.roboflow_csv("c"),
         "README.roboflow.txt": b"exported"}, TRAIN_VAL),
    "Open Images": (
        {**at("train"), "oidv6-train-annotations-bbox.csv": tools.open_images(), "class-descriptions-boxable.csv": tools.OPEN_IMAGES_NAMES}, None),
    "Kaggle's bbox": ({**at("train"), "train.csv": tools.wheat()}, None),
    "Kaggle's class_id": ({**at("train"), "train.csv": tools.vinbig()}, None),
}  # fmt: skip
CLASSES = {
    "VisDrone": ["car", "van"],
    "MOT17": ["car", "bicycle"],
    "WIDER FACE": ["face"] * 2,
    "CrowdHuman": ["person"] * 2,
}


@pytest.mark.parametrize("name", [*DRAWN, *TABLES])
def test_what_tools_draw(make_folder: Folder, tmp_path: Path, name: str) -> None:
    files, splits = (DRAWN | TABLES)[name]
    root = make_folder(files)
    options = ["--negatives"] * (name in TABLES)
    assert sorted(splits_of(listed(root, negatives=bool(options))) or ()) == (splits or [])
    manifests = packed(root, tmp_path / "out", *options)
    boxes = next(field for field in next(iter(manifests.values())).fields if field.name == "boxes")
    names = dict(zip(NAMES, CLASSES.get(name.partition(" with")[0], NAMES), strict=True))
    rows = {Path(row["source"]).stem: row for split in manifests for row in rows_of(tmp_path / "out" / split)}
    for stem, image in zip(sorted(rows), "abc", strict=True):
        assert [names[box[0]] for box in BOXES[image]] == [
            boxes.classes[number] for number in rows[stem]["boxes_class"]
        ]
        assert rows[stem]["boxes"] == [pytest.approx(box, abs=0.01) for box in CORNERS[image]]


@pytest.mark.parametrize("name", RIGHT)
def test_exports_that_are_packed_as_they_are(make_folder: Folder, tmp_path: Path, name: str) -> None:
    files, splits = RIGHT[name]
    root = make_folder(files)
    listing = listed(root)
    assert sorted(splits_of(listing) or ()) == (splits or [])
    for around in ("", "exported"):  # perhaps in a folder of its own
        root = make_folder({f"{around}/{name}".lstrip("/"): data for name, data in files.items()})
        out = tmp_path / f"out{around}"
        manifests = packed(root, out)
        boxes = next(field for field in next(iter(manifests.values())).fields if field.name == "boxes")
        assert boxes.classes == tuple(NAMES)
        rows = {Path(row["source"]).stem: row for split in manifests for row in rows_of(out / split)}
        for image, corners in CORNERS.items():
            assert sorted(rows[image]["boxes"]) == [pytest.approx(box, abs=0.01) for box in corners]
            assert [NAMES[number] for number in rows[image]["boxes_class"]] == [box[0] for box in BOXES[image]]


def yolo_rows(*rows: str) -> bytes:
    return "\n".join(rows).encode()


TRIANGLE = [10.0, 5.0, 50.0, 5.0, 50.0, 25.0]
MORE_YOLO: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "segments": (
        {"data.yaml": b"path: x\nnames: {0: cat, 1: dog}\n", "a": yolo_rows("1 0.1 0.1 0.5 0.1 0.5 0.5")},
        {"boxes": [[10, 5, 50, 25]], "boxes_class": [1], "boxes_masks": [[TRIANGLE]], "boxes_area": [400]}),
    "turned boxes": (
        {"data.yaml": b"names: [cat, dog]\n", "a": yolo_rows("0 0.5 0.1 0.9 0.5 0.5 0.9 0.1 0.5")},
        {"boxes": [[10, 5, 90, 45]], "boxes_masks": [[[50, 5, 90, 25, 50, 45, 10, 25]]], "boxes_area": [1600]}),
    "boxes among polygons": (
        {"data.yaml": b"names: [cat, dog]\n", "a": yolo_rows("0 0.1 0.1 0.5 0.1 0.5 0.5", "1 0.2 0.5 0.2 0.4")},
        {"boxes": [[10, 5, 50, 25], [10, 15, 30, 35]], "boxes_class": [0, 1], "boxes_masks": [[TRIANGLE], []]}),
    "pose": (
        {"data.yaml": b"names: [cat, dog]\nkpt_shape: [2, 3]\n", "a": yolo_rows("0 0.2 0.5 0.2 0.4 0.2 0.4 2 0 0 0")},
        {"boxes": [[10, 15, 30, 35]], "keypoints": [[20, 20, 2, 0, 0, 0]]}),
    "pose of two numbers": (
        {"data.yaml": b"names: [cat, dog]\nkpt_shape: [4, 2]\n", "a": yolo_rows("0 0.2 0.5 0.2 0.4 0.2 0.4 0.3 0.6 0.1 0.1 0 0")},
        {"boxes": [[10, 15, 30, 35]], "keypoints": [[20, 20, 2, 30, 30, 2, 10, 5, 2, 0, 0, 0]]}),
}  # fmt: skip


def test_runs_by_rows_and_labels_elsewhere(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder(at("images"))
    (tmp_path / "t.csv").write_bytes(tools.runs(by_rows=True))
    out = tmp_path / "out"
    packed(root, out, "--labels", tmp_path / "t.csv", "--option", "order=rows")
    rows = {Path(row["source"]).stem: row for row in rows_of(out / "train")}
    assert {name: row["boxes"] for name, row in rows.items()} == CORNERS
    assert rows["b"]["boxes_area"] == [1250]
    (tmp_path / "t.csv").write_bytes(b"ImageId,EncodedPixels\na.jpg,4999 3\nb.jpg,4999 2\n")
    listing = listed(root, tmp_path / "t.csv")
    assert [tuple(reason) for reason in reasons_of(listing)] == [
        ("images/a.jpg", "a run of a mask lies outside of its image: 4999 3 in an image of 100 x 50")
    ]


def test_pixels_of_pascal_voc_may_be_counted_from_1(make_folder: Folder, tmp_path: Path) -> None:
    """As supervision 0.31.2 writes them: a note says so, and the option reads them."""
    files = {**at("images"), **{f"annotations/{name}.xml": voc(name, 1) for name in "abc"}}
    root = make_folder(files)
    advice = "give --option first_pixel=1"
    assert advice in " ".join(listed(root).notes)
    packed(root, tmp_path / "out", "--option", "first_pixel=1")
    rows = {Path(row["source"]).stem: row["boxes"] for row in rows_of(tmp_path / "out" / "train")}
    assert rows == CORNERS
    from_0 = make_folder({**at("images"), **of_each("annotations/{}.xml", voc)})
    assert advice not in " ".join(listed(from_0).notes)  # a box begins at 0
    reasons = reasons_of(listed(from_0, options={"first_pixel": 1}))
    assert [name for name, _ in reasons] == ["images/b.jpg"]
    assert "a box that begins before pixel 1" in reasons[0][1]
    with pytest.raises(SourceError, match="first_pixel=2: expected 0 or 1"):
        listed(root, options={"first_pixel": 2})


def test_columns_of_flags(make_folder: Folder, tmp_path: Path) -> None:
    """Roboflow's multi-class CSV."""
    flags = {"train": b"filename, cat, dog\na.jpg, 1, 1\nb.jpg, 0, 1\n", "valid": b"filename, cat, dog\nc.jpg, 0, 0\n"}
    root = make_folder(
        {**at("train", "ab"), **at("valid", "c"), **{f"{at}/_classes.csv": text for at, text in flags.items()}}
    )
    manifests = packed(root, tmp_path / "out")
    (labels,) = (field for field in manifests["train"].fields if field.name == "labels")
    assert labels.classes == ("cat", "dog")
    rows = {Path(row["source"]).stem: row["labels"] for split in manifests for row in rows_of(tmp_path / "out" / split)}
    assert rows == {"a": [0, 1], "b": [1], "c": []}


def rounded(value: Any) -> Any:
    """Nested lists of numbers, to hundredths of a pixel."""
    return round(float(value), 2) if isinstance(value, (int, float)) else list(map(rounded, value))


@pytest.mark.parametrize("name", MORE_YOLO)
def test_yolo_beyond_boxes(make_folder: Folder, tmp_path: Path, name: str) -> None:
    """As Ultralytics 8.4 trains from it; supervision and Label Studio mix boxes and polygons."""
    files, expected = MORE_YOLO[name]
    root = make_folder(
        {**at("images"), "data.yaml": files["data.yaml"], "labels/a.txt": files["a"], "labels/b.txt": b""}
    )
    packed(root, tmp_path / "out")
    rows = {row["source"]: row for row in rows_of(tmp_path / "out" / "train")}
    row = rows["images/a.jpg"]
    for field, value in expected.items():
        found = json.loads(row[field]) if field == "boxes_masks" else row[field]
        assert rounded(found) == rounded(value), field
    assert rows["images/c.jpg"]["boxes"] == []


def test_yolo_numbers_with_gaps(make_folder: Folder) -> None:
    """labelformat 0.1.17 keeps COCO's numbers: classes keep them, and those that are missing are called by theirs."""
    root = make_folder(
        {**at("images"), "labels/a.txt": b"3 0.2 0.5 0.2 0.4", "data.yaml": b"names: {1: cat, 3: dog}\nnc: 2\n"}
    )
    listing = listed(root)
    assert listing.fields[0].classes == ("0", "cat", "2", "dog")
    assert listing.samples.column("boxes_class").to_pylist() == [[3], [], []]


KITTI = b"cat 0.00 0 -10.00 10.00 5.00 30.00 25.00 -1.00 -1.00 -1.00 -1000.00 -1000.00 -1000.00 -10.00\n"
WIDER = b"0--Parade/a.jpg\n1\n10 5 20 20 0 0 0 0 0 0\n0--Parade/b.jpg\n0\n0 0 0 0 0 0 0 0 0 0\n"
CVAT = b'<?xml version="1.0"?>\n<annotations><version>1.1</version><image id="0" name="a.jpg" width="100" height="50"/></annotations>'
FIFTYONE = b'{"classes": ["cat", "dog"], "labels": {"a": 0, "b": 1, "c": null}}'
FLAT_FOLDERS = {"cat/a.jpg": IMAGES["a.jpg"], "dog/b.jpg": IMAGES["b.jpg"]}

CONVERT = "which 'folder' would not use. Give COCO's JSON or YOLO's texts instead"

REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "FiftyOne CSV": ({**at("data"), "labels.csv": b"filepath,label\ndata/a.jpg,cat\ndata/b.jpg,dog\n"}, "'labels.csv', a table of images, which .*--labels .*/labels.csv to use it"),
    "FiftyOne dataset": ({**at("data"), "samples.json": b'{"samples": [{"filepath": "data/a.jpg"}]}', "metadata.json": b"{}"}, "'samples.json', JSON about images"),
    "LabelMe 6": ({**at(""), **of_each("{}.json", lambda name: b'{"shapes": [], "imagePath": "%s.jpg"}' % name.encode())}, "'a.json', JSON about images.*--from sidecar to use it"),
    "Label Studio JSON": ({**at("images"), "export.json": b'[{"id": 1, "data": {"image": "/data/upload/1/a.jpg"}}]'}, "'export.json', JSON about images"),
    "VGG VIA": ({**at("images"), "via_project.json": b'{"_via_img_metadata": {"a.jpg123": {"filename": "a.jpg"}}}'}, "'via_project.json', JSON about images"),
    "Hugging Face's ImageFolder": ({**at("train"), "train/metadata.jsonl": b'{"file_name": "a.jpg", "text": "a cat"}\n'}, "metadata.jsonl', a table of images"),
    "captions beside images": ({**FLAT_FOLDERS, "cat/a.txt": b"a photo of a cat"}, "'cat/a.txt', a text beside an image, .*--from sidecar to use it, or --from folder to pack class"),
    "lists of class folders": ({**FLAT_FOLDERS, "train.txt": b"cat/a.jpg\n", "test.txt": b"dog/b.jpg\n"}, "'test.txt', a list of images, .*--from folder to pack class folders without it"),
    "lists without extensions": ({**FLAT_FOLDERS, "train.txt": b"cat/a\n"}, "'train.txt', a list of images"),
    "Ultralytics' COCO with COCO's own": (
        {**at("images/train2017"), **of_each("labels/train2017/{}.txt", yolo), "train2017.txt": b"./images/train2017/a.jpg\n", "annotations/instances_val2017.json": coco()},
        "several sources recognise it equally well. Give --from coco .* or --from yolo "),
    "a table around class folders": ({**{f"photos/{name}": data for name, data in FLAT_FOLDERS.items()}, "labels.csv": b"image,label\nphotos/cat/a.jpg,0\n"}, "'labels.csv'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_exports_that_are_refused_by_name(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    files, word = REFUSED[name]
    root = make_folder(files)
    assert cli.main(["pack", str(root), str(tmp_path / "out")]) == cli.WRONG
    said = capsys.readouterr().err
    assert re.search(word, said) and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert len(listed(root, no_labels=True)) == sum(name.endswith(".jpg") for name in files)


def test_an_option_leaves_annotations_out(make_folder: Folder) -> None:
    root = make_folder({**FLAT_FOLDERS, "labels.csv": b"image,label\ncat/a.jpg,0\n"})
    assert listed(root, form="folder").classes == ("cat", "dog")
    both = make_folder({**at("set/images"), **of_each("set/labels/{}.txt", yolo), "set/annotations/a.json": coco()})
    for form, kind in (("coco", "image_id"), ("yolo", "labels")):
        assert listed(both, form=form).fields[-1].name == kind
    inner = make_folder(
        {f"deep/{name}": data for name, data in {**at("data"), "labels.csv": b"f\ndata/a.jpg\n"}.items()}
    )
    with pytest.raises(SourceError, match=rf"Give {inner}/deep as SOURCE and --labels {inner}/deep/labels.csv"):
        listed(inner)


@pytest.mark.parametrize("name", ["no_label", "_unlabeled"])
def test_images_without_a_class(make_folder: Folder, tmp_path: Path, name: str) -> None:
    """As Datumaro 1.13 and FiftyOne 1.22 write them."""
    root = make_folder({**FLAT_FOLDERS, f"{name}/c.jpg": IMAGES["c.jpg"]})
    manifest = packed(root, tmp_path / "out", code=cli.REJECTED)["train"]
    assert manifest.classes == ("cat", "dog")
    reason = f"lies in '{name}', where Datumaro and FiftyOne put images without a class; --from folder takes it as one"
    assert rejected_of(tmp_path / "out" / "train") == {f"{name}/c.jpg": reason}
    assert listed(root, form="folder").classes == tuple(sorted(["cat", "dog", name]))


def test_images_that_no_annotation_names(make_folder: Folder) -> None:
    root = make_folder({**at("images"), **at("unlabeled2017"), "annotations/instances_val.json": coco("images/")})
    listing = listed(root)
    assert names_of(listing) == list(at("images"))
    assert any(re.search("passed over 3 images in folders of which .* names none: 'unlabeled2017'", note) for note in listing.notes)  # fmt: skip


@pytest.mark.parametrize(
    ("extension", "word"),
    [
        ("dng", ".dng are camera raw, which is not read: develop them to TIFF, PNG or JPEG"),
        ("hdr", ".hdr are Radiance, which is not read: convert them to TIFF or PNG, or pass arrays to gpuload.pack"),
        ("nii", ".nii are NIfTI, which is not read"),
        ("jxr", ".jxr are JPEG XR, which is not read"),
        ("npy", ".npy are arrays: give --mode with their type and number of channels, such as --mode uint16x4"),
    ],
)
def test_images_of_kinds_that_are_not_read(make_folder: Folder, extension: str, word: str) -> None:
    """Class folders are what the user has, so no advice to make some."""
    root = make_folder({f"{name}/1.{extension}": b"x" for name in NAMES})
    with pytest.raises(SourceError, match=word) as caught:
        listed(root)
    assert f"2 × .{extension}" in str(caught.value) and "Give a folder" not in str(caught.value)
    with pytest.raises(SourceError, match=word):
        listed(root, no_labels=True)


SEGMENTS = {
    f"{split}/{place}/a.png": b"" for split in ("train", "val") for place in ("image_2", "instance", "semantic_rgb")
}
CITYSCAPES = {f"{place}/train/aachen/a.png": b"" for place in ("leftImg8bit", "gtFine")}


@pytest.mark.parametrize(
    ("files", "folder"),
    [
        (SEGMENTS, "image_2"),
        (CITYSCAPES, "gtFine"),
        ({"JPEGImages/a.jpg": b"", "SegmentationObject/a.png": b""}, "JPEGImages"),
        ({"data/cat/a.jpg": b"", "data/dog/b.jpg": b"", "README.md": b""}, "data"),
        ({"img1/000001.jpg": b"", "det/notes.md": b""}, "img1"),
    ],
)
def test_folders_of_masks_are_no_classes(make_folder: Folder, files: dict[str, bytes], folder: str) -> None:
    """As Datumaro writes KITTI's; no file says what they are."""
    with pytest.raises(
        SourceError, match=f"the folder '{folder}' does not look like a class. If it is one, give --from f"
    ):
        listed(make_folder(files))


def test_images_that_pillow_does_not_read_are_named(make_folder: Folder) -> None:
    """A JPEG of 12 bits is one, whatever Pillow calls it."""
    twelve = bytearray(IMAGES["a.jpg"])
    twelve[twelve.index(b"\xff\xc0") + 4] = 12
    root = make_folder({**at("images"), **of_each("labels/{}.txt", yolo), "images/a.jpg": bytes(twelve)})
    listing = listed(root)
    reasons = [rejection.reason for rejection in listing.rejected]
    assert len(listing) == 3 or (
        len(listing) == 2 and "a JPEG of 12 bits" in reasons[0]
    )  # with and without imagecodecs
    assert not any("format that Pillow reads" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("rows", "role", "values"),
    [("a,1,0\nb,0,1\nc,0,1\n", "label", [0, 1, 1]), ("a,1,1\nb,0,1\nc,0,0\n", "labels", [[0, 1], [1], []])],
)
def test_a_table_with_a_column_for_each_class(make_folder: Folder, rows: str, role: str, values: list[Any]) -> None:
    """As Kaggle's plant pathology has one: classes are in the order of the columns."""
    root = make_folder({**at(""), "train.csv": f"image_id,rust,healthy\n{rows}".encode()})
    listing = listed(root, root / "train.csv")
    (field,) = listing.fields
    assert (field.name, listing.classes or field.classes) == (role, ("rust", "healthy"))
    assert listing.samples.column(role).to_pylist() == values


def test_several_numbers_in_a_cell_are_labels(make_folder: Folder) -> None:
    """Kaggle's protein atlas: `Target` is named, and refused as a class before."""
    root = make_folder({**at(""), "train.csv": b"Id,Target\na,16 0\nb,7\nc,5\n"})
    with pytest.raises(SourceError, match="found '16 0'.* Give --column labels=NAME"):
        listed(root, root / "train.csv")
    listing = listed(root, root / "train.csv", columns={"labels": ("Target",)})
    assert listing.samples.column("labels").to_pylist() == [[16, 0], [7], [5]]


def turned_task() -> bytes:
    """A box of 20 × 10 pixels at 50, 10, turned by 90° around its top left corner, as Label Studio's canvas does."""
    task = tools.label_studio_task("b")
    task["annotations"][0]["result"][0]["value"] |= {"x": 50, "y": 20, "width": 20, "height": 20, "rotation": 90}
    return tools.document([task])


CVAT_SHAPES = """<annotations><version>1.1</version><image id="0" name="a.jpg" width="100" height="50">
<box label="cat" xtl="40" ytl="10" xbr="60" ybr="20" rotation="90"/>
<polygon label="cat" points="10,5;50,5;50,25"/><mask label="cat" rle="1,2,2,1" left="10" top="5" width="3" height="2"/>
<points label="cat" points="1,1;2,2"/></image></annotations>"""
CIRCLE = {"label": "cat", "points": [[50, 25], [50, 35]], "shape_type": "circle"}
SHAPES: dict[str, tuple[dict[str, bytes], list[list[float]], list[float]]] = {
    "Label Studio": ({**at("images", "b"), "e.json": turned_task()}, [[40, 10, 50, 30]], [200]),
    "CVAT": ({**at("", "a"), "a.xml": CVAT_SHAPES.encode()}, [[45, 5, 55, 25], [10, 5, 50, 25], [10, 5, 13, 7]], [200, 400, 3]),
    "LabelMe": (
        {**at("", "a"), "a.json": tools.document({"shapes": [CIRCLE], "imagePath": "a.jpg", "imageWidth": 100, "imageHeight": 50})},
        [[40, 15, 60, 35]], [312.14]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_turned_boxes_and_other_shapes(make_folder: Folder, tmp_path: Path, name: str) -> None:
    files, boxes, areas = SHAPES[name]
    packed(make_folder(files), tmp_path / "out")
    (row,) = rows_of(tmp_path / "out" / "train")
    assert rounded(row["boxes"]) == rounded(boxes)
    assert rounded(row["boxes_area"]) == rounded(areas)
    outlines = json.loads(row["boxes_masks"])
    if name == "Label Studio":
        assert rounded(outlines) == [[[50, 10, 50, 30, 40, 30, 40, 10]]]
    if name == "CVAT":
        assert outlines[2]["size"] == [50, 100]
