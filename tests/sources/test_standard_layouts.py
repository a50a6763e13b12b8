"""Splits as COCO and Pascal VOC have them; and YOLO's layouts."""

from pathlib import Path

import pytest
from images import Folder, encode, photo
from PIL import Image
from reading import rejected_of
from sources_read import PHOTOS, listed, names_of, reasons_of, splits_of

from gpuload import cli


def voc(**lists: str) -> dict[str, bytes]:
    files = {f"Annotations/{n}.xml": b"<annotation/>" for n in range(4)}
    files |= {f"JPEGImages/{n}.jpg": PHOTOS[n] for n in range(4)}
    return files | {f"ImageSets/Main/{name}.txt": text.encode() for name, text in lists.items()}


def test_the_lists_of_pascal_voc_are_the_splits(make_folder: Folder) -> None:
    root = make_folder(voc(train="0\n1 \n", val="2\r\n", trainval="0\n1\n2\n", ant_train="0 1\n1 -1\n", test="9\n"))
    listing = listed(root)
    assert listing.splits is not None and listing.splits.origin == "by the lists in 'ImageSets/Main'"
    assert splits_of(listing) == ["train", "train", "val"]
    assert reasons_of(listing) == [("JPEGImages/3.jpg", "is in no list of ImageSets/Main")]
    assert listing.rejected[0].asked
    assert len(listed(root, no_splits=True)) == 4


@pytest.mark.parametrize("lists", [{"train": "0\n1\n"}, {"train": "0\n1\n", "val": "1\n2\n"}, {"trainval": "0\n"}])
def test_lists_of_pascal_voc_that_are_no_splits(make_folder: Folder, lists: dict[str, str]) -> None:
    listing = listed(make_folder(voc(**lists)))
    assert (listing.splits, len(listing)) == (None, 4)
    assert "the lists in 'ImageSets/Main' are not used" in listing.notes[0]


def test_images_of_pascal_voc_that_share_a_stem(make_folder: Folder) -> None:
    elsewhere = {"SegmentationClass/0.png": b"", "SegmentationClass/0.jpg": b""}
    listing = listed(make_folder({**voc(), "JPEGImages/0.png": b"", **elsewhere}))
    assert "JPEGImages/0.jpg" in names_of(listing)
    assert reasons_of(listing) == [("JPEGImages/0.png", "shares its stem with 'JPEGImages/0.jpg'")]


SMALL = [encode(photo(number, 40, 20)) for number in range(4)]
TEXT = b"0 0.5 0.5 0.2 0.4\n1 0.25 0.75 0.5 0.5\n"
BOXES = [[16, 6, 24, 14], [0, 10, 20, 20]]
YAML = b"train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['ant', 'bee']\n"
NUMBERED = b"path: /data/elsewhere\ntrain: images/train\nval: images/val\nnames:\n  0: ant\n  1: bee\n"


def layout(image: str, label: str, **more: bytes) -> dict[str, bytes]:
    files = {}
    for number, split in enumerate(("train", "train", "val", "val")):
        files[f"{image.format(split)}/{number}.jpg"] = SMALL[number]
        if number:
            files[f"{label.format(split)}/{number}.txt"] = TEXT
    return {**files, **more}


LAYOUTS = {
    "ultralytics": layout("images/{}", "labels/{}", **{"data.yaml": NUMBERED, "train.txt": b"./images/train/0.jpg\n"}),
    "roboflow": layout("{}/images", "{}/labels", **{"data.yaml": YAML, "README.roboflow.txt": b"exported"}),
    "darknet of roboflow": layout("{}", "{}", **{"train/_darknet.labels": b"ant\nbee\n", "val/_darknet.labels": b"ant\nbee"}),
    "labelimg": {
        **{name.rpartition("/")[2]: data for name, data in layout("{}", "{}").items()}, "classes.txt": b"ant\nbee\n",
    },
    "cvat": {
        **{f"obj_train_data/{name.rpartition('/')[2]}": data for name, data in layout("{}", "{}").items()},
        "obj.names": b"ant\nbee\n", "obj.data": b"classes = 2",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(make_folder: Folder, name: str) -> None:
    listing = listed(make_folder(LAYOUTS[name]))
    assert sum(note.startswith("1 image has no .txt, so no boxes: '") for note in listing.notes) == 1
    assert not any("no image" in note for note in listing.notes)
    splits = None if name in ("cvat", "labelimg") else ["train", "train", "val", "val"]
    assert splits_of(listing) == splits
    assert [(field.name, field.classes) for field in listing.fields] == [
        ("boxes", ("ant", "bee")),
        ("labels", ("ant", "bee")),
    ]
    rows = listing.samples.to_pylist()
    assert [Path(row["name"]).name for row in rows] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert [row["boxes"] for row in rows] == [[], BOXES, BOXES, BOXES]
    assert [(row["boxes_class"], row["labels"]) for row in rows] == [([], []), *[([0, 1], [0, 1])] * 3]


def test_edges(make_folder: Folder, tmp_path: Path) -> None:
    """An image that lies on its side, boxes that rounding leaves a little outside, empty texts, and an image that is
    none."""
    exif = Image.Exif()
    exif[0x0112] = 6
    root = make_folder({
        "images/0.jpg": encode(photo(0, 40, 20), exif=exif), "labels/0.txt": b"0 0.5 0.5 1 0.5",
        "images/1.jpg": SMALL[0], "labels/1.txt": b"0 0.1 0.5 0.2000002 1.0005\r\n", "images/2.jpg": SMALL[1],
        "labels/2.txt": b"\n", "images/3.jpg": b"no image", "labels/3.txt": TEXT, "labels/4.txt": TEXT,
    })  # fmt: skip
    listing = listed(root)
    assert listing.samples.column("boxes").to_pylist() == [
        [[0, 10, 20, 30]],
        [[0, 0, pytest.approx(8, abs=1e-4), 20]],
        [],
    ]
    reason = "its size cannot be read: it is not an image in a format that Pillow reads"
    assert [(r.source, r.reason) for r in listing.rejected] == [("images/3.jpg", reason)]
    assert "1 .txt belongs to no image: 'labels/4.txt'" in listing.notes
    assert listing.fields[0].classes is None
    assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == cli.REJECTED
    assert list(rejected_of(tmp_path / "out" / "train")) == ["images/3.jpg"]
