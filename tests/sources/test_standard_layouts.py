"""Splits as COCO, Pascal VOC and Keras have them; images alone out of every kind of source; resuming with other splits."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from images import Folder, encode, photo
from PIL import Image
from pyarrow import parquet
from reading import rejected_of, rows_of
from sources_read import PHOTOS, listed, names_of, packed, reasons_of, splits_of
from zips import write_zip

import gpuload
from gpuload import SourceError, cli

RNG = np.random.default_rng(0)


def coco(names: list[str], categories: tuple[str, ...] = ("ant", "bee")) -> bytes:
    found = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [1, 2, 3, 4]} for number in range(len(names))
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(categories)],
    }
    return json.dumps(found).encode()


def two_of_coco(
    train: list[str], val: list[str], folders: tuple[str, str] = ("train2017", "val2017")
) -> dict[str, bytes]:
    images = {f"{folders[0]}/{name}": PHOTOS[n] for n, name in enumerate(train)}
    images |= {f"{folders[1]}/{name}": PHOTOS[3 + n] for n, name in enumerate(val)}
    return {
        "annotations/instances_train2017.json": coco(train),
        "annotations/instances_val2017.json": coco(val),
        "annotations/captions_val2017.json": b"{}",
        **images,
    }


@pytest.mark.parametrize(
    ("train", "val", "folders"),
    [
        (["0.jpg", "1.jpg"], ["3.jpg"], ("train2017", "val2017")),
        (["0.jpg", "1.jpg"], ["0.jpg"], ("train2017", "val2017")),  # the same names in both
        (["0.jpg", "1.jpg"], ["3.jpg"], ("images", "images")),
    ],
)
def test_coco_with_a_file_for_each_split(
    make_folder: Folder, train: list[str], val: list[str], folders: tuple[str, str]
) -> None:
    root = make_folder(two_of_coco(train, val, folders))
    listing = listed(root)
    assert listing.splits is not None and listing.splits.origin == "by the names of the files in 'annotations'"
    assert not any("left out" in note for note in listing.notes)
    assert splits_of(listing) == ["train"] * len(train) + ["val"] * len(val)
    assert names_of(listing) == [f"{folders[0]}/{name}" for name in train] + [f"{folders[1]}/{name}" for name in val]
    assert listing.fields[0].classes == ("ant", "bee")
    assert listed(root, no_splits=True).splits is None


def test_files_of_coco_that_are_no_splits(make_folder: Folder) -> None:
    files = two_of_coco(["0.jpg"], ["3.jpg"])
    other = {**files, "annotations/instances_val2017.json": coco(["3.jpg"], ("ant", "cat"))}
    with pytest.raises(SourceError, match="instances_val2017.json have different categories .*--labels"):
        listed(make_folder(other))
    with pytest.raises(SourceError, match="both name images such as 'images/0.jpg'"):
        listed(make_folder(two_of_coco(["0.jpg"], ["0.jpg"], ("images", "images"))))


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


def keras(**changes: Any) -> dict[str, Any]:
    images = RNG.integers(0, 255, (7, 8, 9, 3), np.uint8)
    found = {"x_train": images[:5], "y_train": np.arange(5) % 2, "x_test": images[5:], "y_test": np.arange(2)}
    return {**found, **changes}


def test_arrays_of_keras_are_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = keras()
    np.savez(tmp_path / "a.npz", **arrays)
    packed(tmp_path / "a.npz", tmp_path / "out", "--no-shuffle", "--encode", "raw")
    assert "the splits are the source's own, by the names of its arrays" in capsys.readouterr().out
    for name in ("train", "test"):
        rows = rows_of(tmp_path / "out" / name)
        assert [row["image"] for row in rows] == [image.tobytes() for image in arrays[f"x_{name}"]]
        assert [row["label"] for row in rows] == arrays[f"y_{name}"].tolist()
    whole = listed(tmp_path / "a.npz", no_splits=True)
    assert (whole.splits, len(whole)) == (None, 7)


@pytest.mark.parametrize("names", ["{1}_{0}", "{0}-{1}"])
def test_words_in_names_of_arrays_are_splits(tmp_path: Path, names: str) -> None:
    """Whichever word it is, and however training and validation are called."""
    called = {"train": "training", "test": "dev"}
    arrays = {
        names.format({"x": "images", "y": "label"}[what], called[split]): array
        for name, array in keras().items()
        for what, split in [name.split("_")]
    }
    np.savez(tmp_path / "a.npz", **arrays)
    listing = listed(tmp_path / "a.npz")
    assert splits_of(listing) == ["train"] * 5 + ["val"] * 2
    assert [field.name for field in listing.fields] == ["label"]


def sources_with_labels(folder: Path) -> dict[str, Path]:
    """One of each kind that is no folder of images."""
    images = RNG.integers(0, 255, (5, 8, 9, 3), np.uint8)
    labels = np.arange(5) % 2
    np.savez(folder / "a.npz", images=images, labels=labels)
    with h5py.File(folder / "a.h5", "w") as file:
        file["images"], file["labels"], file["angle"] = images, labels, np.arange(5.0)
    rows = {"image": [{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(PHOTOS[:5])], "label": labels}
    (folder / "parquet").mkdir()
    parquet.write_table(pa.table(rows), folder / "parquet" / "a.parquet")
    samples = [{"image": data, "label": n % 2, "caption": "x"} for n, data in enumerate(PHOTOS[:5])]
    gpuload.pack(samples, folder / "wds", workers=1)
    tars = folder / "tars"
    tars.mkdir()
    for path in (folder / "wds" / "train").glob("*.tar"):
        (tars / path.name).write_bytes(path.read_bytes())
    return {"npz": folder / "a.npz", "hdf5": folder / "a.h5", "parquet": folder / "parquet", "tar": tars}


def test_images_alone_out_of_every_kind_of_source(tmp_path: Path) -> None:
    for kind, source in sources_with_labels(tmp_path).items():
        listing = listed(source, no_labels=True)
        assert (listing.fields, listing.classes, len(listing)) == ((), None, 5), kind


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


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(make_folder: Folder, tmp_path: Path, name: str, archive: bool) -> None:
    listing = listed(write_zip(tmp_path / "a.zip", LAYOUTS[name]) if archive else make_folder(LAYOUTS[name]))
    assert sum(note.startswith("1 image has no .txt, so no boxes: '") for note in listing.notes) == 1
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


def test_an_image_that_lies_on_its_side(make_folder: Folder) -> None:
    """Boxes are shares of the image as it is shown."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encode(photo(0, 40, 20), exif=exif)
    listing = listed(make_folder({"1.jpg": turned, "1.txt": b"0 0.5 0.5 1 0.5"}))
    assert listing.samples.column("boxes").to_pylist() == [[[0, 10, 20, 30]]]


def test_edges(make_folder: Folder, tmp_path: Path) -> None:
    """Boxes that rounding leaves a little outside, empty texts, and an image that is none."""
    root = make_folder({
        "images/1.jpg": SMALL[0], "labels/1.txt": b"0 0.1 0.5 0.2000002 1.0005\r\n", "images/2.jpg": SMALL[1],
        "labels/2.txt": b"\n", "images/3.jpg": b"no image", "labels/3.txt": TEXT, "labels/4.txt": TEXT,
    })  # fmt: skip
    listing = listed(root)
    assert listing.samples.column("boxes").to_pylist() == [[[0, 0, pytest.approx(8, abs=1e-4), 20]], []]
    reason = "its size cannot be read: it is not an image in a format that Pillow reads"
    assert [(r.source, r.reason) for r in listing.rejected] == [("images/3.jpg", reason)]
    assert "1 .txt belongs to no image: 'labels/4.txt'" in listing.notes
    assert listing.fields[0].classes is None
    assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == cli.REJECTED
    assert list(rejected_of(tmp_path / "out" / "train")) == ["images/3.jpg"]


def test_captions_and_class_folders_are_not_boxes(make_folder: Folder) -> None:
    captions = {"a/1.jpg": SMALL[0], "a/1.txt": b"5 cats", "b/2.jpg": SMALL[1], "b/2.txt": b""}
    assert listed(make_folder(captions)).classes == ("a", "b")
    boxes = {name: TEXT if name.endswith("txt") else data for name, data in captions.items()}
    assert [f.name for f in listed(make_folder(boxes)).fields] == ["boxes", "labels"]
    assert listed(make_folder(boxes), form="folder").classes == ("a", "b")
    coco = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"id": 1, "image_id": 1, "caption": "x"}]}
    both = {"images/1.jpg": SMALL[0], "labels/1.txt": TEXT, "annotations/a.json": json.dumps(coco).encode()}
    assert listed(make_folder(both)).fields[0].name == "caption"
