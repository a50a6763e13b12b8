"""The exports of annotation tools at named versions, sample by sample: what `true_drawings` says, or refused by name.

`regenerate_exports.py` has written them with the tools. None may be wrong in silence: an export that needs an option to
be right is refused without it, or a note names the option.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import Folder
from reading import rejected_of, rows_of
from sources_read import listed, packed, splits_of
from true_drawings import CLASSES, EXPORTS, OBJECTS, SPLITS, WHOLE, read_exports

import gpuload
from gpuload import SourceError
from gpuload.commands import REJECTED

TOOLS = sorted(file.stem for file in EXPORTS.glob("*.json"))
NEGATIVES = {"negatives": True}
FIRST_PIXEL = {"options": {"first_pixel": 1}}

# Those that are right with an option, which the message or a note without it names.
OPTIONS: dict[str, dict[str, Any]] = {
    "supervision voc": FIRST_PIXEL,
    "globox open images": NEGATIVES,
    "label_studio VOC boxes": NEGATIVES,
    "datumaro kitti": NEGATIVES,
    "datumaro kitti_detection": NEGATIVES,
    "datumaro kitti_detection splits": NEGATIVES,
    "datumaro mot_seq_gt": NEGATIVES,
    "datumaro open_images": NEGATIVES,
    "datumaro open_images splits": NEGATIVES,
    "datumaro voc": NEGATIVES,
    "datumaro voc_detection": NEGATIVES,
    "datumaro voc_detection splits": NEGATIVES,
    "fiftyone BDDDataset boxes": NEGATIVES,
    "fiftyone CVATImageDataset boxes": NEGATIVES,
    "fiftyone KITTIDetectionDataset boxes": NEGATIVES,
    "fiftyone VOCDetectionDataset boxes": NEGATIVES,
}
ADVICE = {"negatives": "--negatives", "options": "--option first_pixel=1"}

REFUSED = {
    "globox txt": "'labels/a.txt', a text beside an image",  # names of classes, and pixels
    "labelformat lightly": "'predictions/task/a.json', JSON about images",
    "pylabel yolo": "the texts use the classes 1 to 3, and 3 names are numbered from 0",  # PyLabel's own ones are wrong
    "fiftyone CSVDataset boxes": "'labels.csv', a table of images",  # of names alone
    "fiftyone FiftyOneDataset segments": "its field 'truth' holds 'Segmentation', which is not read from samples.json",
    "datumaro kitti masks": "the folder 'image_2' does not look like a class",
    "datumaro voc_classification classes": "'ImageSets/Main/background_train.txt', a list of images",
    "datumaro imagenet_txt classes": "'train.txt', a list of images",
}

# Folders of masks beside folders of images, and what of the masks is refused; Datumaro colours them unless told otherwise.
FOLDERS_OF_MASKS = {
    "camvid masks": "found colours (mode RGB)",
    "cityscapes masks": "",
    "voc_segmentation masks": "found colours (mode RGB)",
}

# Those of classes of images that name the image without one, or leave it out.
WITHOUT_D = {
    "supervision class folders",
    "datumaro imagenet classes",
    "datumaro imagenet_with_subset_dirs classes",
    "datumaro coco_labels classes",
    "fiftyone FiftyOneImageClassificationDataset classes",
    "fiftyone ImageClassificationDirectoryTree classes",
    "fiftyone FiftyOneImageClassificationDataset several",
}

# The splits of images where the tool has made some.
OWN_SPLITS = {
    "sahi yolo": {"a": "train", "b": "val", "c": "train", "d": "val"},
    "ultralytics autosplit": {"a": "val", "b": "val", "c": "train", "d": "train"},
    "fiftyone YOLOv5Dataset boxes": dict.fromkeys("abcd", "val"),
    "fiftyone YOLOv5Dataset polygons": dict.fromkeys("abcd", "val"),
    "sahi coco splits": {"a": "train", "b": "val", "c": "train", "d": "val"},
}
WITH_SPLITS = {
    "supervision coco splits", "supervision yolo splits", "ultralytics convert_coco",
    "ultralytics convert_coco segments", "ultralytics convert_ndjson_to_yolo", "ultralytics ndjson",
    "datumaro coco splits", "datumaro datumaro splits", "datumaro kitti_detection splits",
    "datumaro open_images splits", "datumaro voc_detection splits", "datumaro yolo splits",
    "datumaro yolo_ultralytics splits", "datumaro imagenet_with_subset_dirs classes", "datumaro datumaro classes",
    "datumaro cvat classes", "datumaro coco_labels classes", "fiftyone FiftyOneDataset boxes",
    "fiftyone FiftyOneDataset classes", "fiftyone FiftyOneDataset polygons", "fiftyone FiftyOneDataset masks",
    "fiftyone FiftyOneDataset several", "fiftyone LegacyFiftyOneDataset boxes", "pylabel yolo splits",
    "datumaro coco splits polygons", "datumaro coco_captions captions",
}  # fmt: skip

# Pixels by which supervision's polygons of masks end before the masks do.
TOLERANCES = {"supervision yolo masks": 1.01}


def images_of(tool: str, export: str) -> dict[str, str]:
    """Which image lies at each path."""
    return json.loads((EXPORTS / f"{tool}.json").read_text())["exports"][export]["images"]


def class_name(names: tuple[str, ...] | None, number: int) -> str:
    return CLASSES[number] if names is None else names[number]  # texts of YOLO without names


def check_boxes(row: dict[str, Any], image: str, names: tuple[str, ...] | None, tolerance: float) -> None:
    found = sorted(
        (class_name(names, number), *box) for number, box in zip(row["boxes_class"], row["boxes"], strict=True)
    )
    expected = sorted((thing.label, *thing.box) for thing in OBJECTS[image])
    assert [box[0] for box in found] == [box[0] for box in expected]
    for box, true_box in zip(found, expected, strict=True):
        assert box[1:] == pytest.approx(true_box[1:], abs=tolerance)


def area_of(outline: Any) -> float:
    """Of a polygon in pixels."""
    (flat,) = outline
    points = list(zip(flat[0::2], flat[1::2], strict=True))
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return abs(sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in pairs)) / 2


def check_outlines(row: dict[str, Any]) -> None:
    """Those of the bird, which is a triangle, and of the cat."""
    outlines = json.loads(row["boxes_masks"])
    areas = [
        area_of(outline) if isinstance(outline, list) else area
        for outline, area in zip(outlines, row["boxes_area"], strict=True)
    ]
    assert sorted(areas) == [pytest.approx(600, rel=0.08), pytest.approx(1728, rel=0.08)]


def check_samples(tool: str, export: str, root: Path, options: dict[str, Any]) -> None:
    title = f"{tool} {export}"
    listing = listed(root, **options)
    images = images_of(tool, export)
    rows = {images[row["name"]]: row for row in listing.samples.to_pylist()}
    expected = set(images.values()) - ({"d"} if title in WITHOUT_D else set())
    assert rows.keys() == expected
    names = {field.name: field.classes for field in listing.fields}
    for image, row in rows.items():
        if "boxes" in row:
            check_boxes(row, image, names["boxes"], TOLERANCES.get(title, 0.02))
        elif "label" in row:
            assert class_name(listing.classes, row["label"]) == WHOLE[image]
        elif "caption" in row:
            assert row["caption"] == f"a picture {image}"
        elif export.endswith("several"):
            found = sorted(class_name(names["labels"], number) for number in row["labels"])
            assert found == sorted({thing.label for thing in OBJECTS[image]})
        else:
            assert [class_name(names["labels"], number) for number in row["labels"]] == (
                [WHOLE[image]] if image in WHOLE else []
            )
    if export.endswith(("polygons", "masks")):
        check_outlines(rows["b"])
    splits = splits_of(listing)
    found = dict(zip((images[name] for name in listing.samples.column("name").to_pylist()), splits or [], strict=False))
    in_truth = OWN_SPLITS.get(title, SPLITS if title in WITH_SPLITS else {})
    assert found == {image: in_truth[image] for image in rows if image in in_truth}


@pytest.mark.parametrize("tool", TOOLS)
def test_exports(make_folder: Folder, tool: str) -> None:
    for export, files in read_exports(tool).items():
        title = f"{tool} {export}"
        if export in FOLDERS_OF_MASKS or export.endswith("Directory segments"):
            continue
        root = make_folder(files)
        if title in REFUSED:
            with pytest.raises(SourceError, match=re.escape(REFUSED[title])):
                listed(root)
            continue
        options = OPTIONS.get(title, {})
        if options:
            (advice,) = (ADVICE[name] for name in options)
            try:
                told = " ".join(listed(root).notes)
            except SourceError as error:
                told = str(error)
            assert advice in told, title
        try:
            check_samples(tool, export, root, options)
        except Exception as error:
            error.add_note(title)
            raise


@pytest.mark.parametrize("export", FOLDERS_OF_MASKS)
def test_folders_of_masks(make_folder: Folder, tmp_path: Path, export: str) -> None:
    """The image without objects has no mask, and is named."""
    root = make_folder(read_exports("datumaro")[export])
    if FOLDERS_OF_MASKS[export]:
        with pytest.raises(SourceError, match=re.escape(FOLDERS_OF_MASKS[export])):
            gpuload.pack(str(root), tmp_path / "out", workers=1)
        return
    packed(root, tmp_path / "out", code=REJECTED)
    data = gpuload.Dataset(tmp_path / "out" / "train")
    assert [*rejected_of(data.folder).values()] == ["lacks its picture mask"]
    masks = {row["source"]: data[number]["mask"] for number, row in enumerate(rows_of(data.folder))}
    (of_b,) = (mask for name, mask in masks.items() if name.endswith("/b_leftImg8bit.jpg"))
    numbers = np.asarray(of_b)
    assert np.unique(numbers).tolist() == [0, 1, 3]
    assert (numbers == 1).sum() == pytest.approx(1728, rel=0.08)  # the cat, before the bird


def test_a_folder_of_masks_for_all_images(make_folder: Folder, tmp_path: Path) -> None:
    packed(make_folder(read_exports("fiftyone")["ImageSegmentationDirectory segments"]), tmp_path / "out")
    data = gpuload.Dataset(tmp_path / "out" / "train")
    masks = {row["source"]: data[number]["mask"] for number, row in enumerate(rows_of(data.folder))}
    assert sorted(masks) == ["data/a.jpg", "data/b.jpg", "data/c.jpg", "data/d.jpg"]
    numbers = np.asarray(masks["data/b.jpg"])
    assert np.unique(numbers).tolist() == [0, 1, 3]
    assert (numbers == 1).sum() == pytest.approx(1728, rel=0.08)  # the cat, over the bird


def test_the_tables_name_exports() -> None:
    titles = {f"{tool} {export}" for tool in TOOLS for export in read_exports(tool)}
    named = {*OPTIONS, *REFUSED, *WITHOUT_D, *OWN_SPLITS, *WITH_SPLITS, *TOLERANCES}
    assert named <= titles
    assert len(titles) - len(OPTIONS) - len(REFUSED) > 60


PACKED = {
    "datumaro": "coco_instances masks",
    "fiftyone": "FiftyOneDataset polygons",
    "label_studio": "JSON masks",
    "ultralytics": "convert_ndjson_to_yolo",
}


@pytest.mark.parametrize("tool", PACKED)
def test_exports_by_the_command(make_folder: Folder, tmp_path: Path, tool: str) -> None:
    """In a batch they are what the listing says."""
    export = PACKED[tool]
    manifests = packed(make_folder(read_exports(tool)[export]), tmp_path / "out")
    images = images_of(tool, export)
    (names,) = {field.classes for manifest in manifests.values() for field in manifest.fields if field.name == "boxes"}
    rows = [row for split in manifests for row in rows_of(tmp_path / "out" / split)]
    assert len(rows) == len(images)
    for row in rows:
        check_boxes(row, images[row["source"]], names, 0.02)
