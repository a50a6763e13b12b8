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
from zips import write_zip

import gpuload
from gpuload import SourceError, cli
from gpuload.disk import Manifest
from gpuload.sources import Rejection, open_source

PHOTOS = [encode(photo(number, 40 + number, 30)) for number in range(6)]
RNG = np.random.default_rng(0)


def packed(source: object, out: Path, *options: str, code: int = cli.DONE) -> dict[str, Manifest]:
    assert cli.main(["pack", str(source), str(out), "--workers", "1", *options]) == code
    return {folder.name: Manifest.read(folder) for folder in sorted(out.iterdir())}


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
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    train: list[str], val: list[str], folders: tuple[str, str],
) -> None:  # fmt: skip
    root = make_folder(two_of_coco(train, val, folders))
    manifests = packed(root, tmp_path / "out")
    said = capsys.readouterr().out
    assert "the splits are the source's own, by the names of the files in 'annotations'" in said
    assert "left out" not in said
    assert list(manifests) == ["train", "val"]
    assert [manifest.samples for manifest in manifests.values()] == [2, 1]
    assert [row["image"] for row in rows_of(tmp_path / "out" / "val")] == [PHOTOS[3]]
    [boxes] = [field for field in manifests["val"].fields if field.name == "boxes"]
    assert boxes.classes == ("ant", "bee")
    assert open_source(root, no_splits=True).list_samples().splits is None


def test_files_of_coco_that_are_no_splits(make_folder: Folder) -> None:
    files = two_of_coco(["0.jpg"], ["3.jpg"])
    other = {**files, "annotations/instances_val2017.json": coco(["3.jpg"], ("ant", "cat"))}
    with pytest.raises(SourceError, match="instances_val2017.json have different categories .*--labels"):
        open_source(make_folder(other)).list_samples()
    same = {**two_of_coco(["0.jpg"], ["0.jpg"], ("images", "images"))}
    with pytest.raises(SourceError, match="both name images such as 'images/0.jpg'"):
        open_source(make_folder(same)).list_samples()


def voc(**lists: str) -> dict[str, bytes]:
    files = {f"Annotations/{n}.xml": b"<annotation/>" for n in range(4)}
    files |= {f"JPEGImages/{n}.jpg": PHOTOS[n] for n in range(4)}
    return files | {f"ImageSets/Main/{name}.txt": text.encode() for name, text in lists.items()}


def test_the_lists_of_pascal_voc_are_the_splits(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(voc(train="0\n1 \n", val="2\r\n", trainval="0\n1\n2\n", ant_train="0 1\n1 -1\n", test="9\n"))
    manifests = packed(root, tmp_path / "out")
    said = capsys.readouterr().out
    assert "the splits are the source's own, by the lists in 'ImageSets/Main'" in said
    assert "dropped, as requested: 1 × is in no list of ImageSets/Main" in said
    assert {name: manifest.samples for name, manifest in manifests.items()} == {"train": 2, "val": 1}
    assert rejected_of(tmp_path / "out" / "train") == {"JPEGImages/3.jpg": "is in no list of ImageSets/Main"}
    assert len(open_source(root, no_splits=True).list_samples()) == 4


@pytest.mark.parametrize("lists", [{"train": "0\n1\n"}, {"train": "0\n1\n", "val": "1\n2\n"}, {"trainval": "0\n"}])
def test_lists_of_pascal_voc_that_are_no_splits(make_folder: Folder, lists: dict[str, str]) -> None:
    listing = open_source(make_folder(voc(**lists))).list_samples()
    assert (listing.splits, len(listing)) == (None, 4)
    assert "the lists in 'ImageSets/Main' are not used" in listing.notes[0]


def keras(**changes: Any) -> dict[str, Any]:
    images = RNG.integers(0, 255, (7, 8, 9, 3), np.uint8)
    found = {"x_train": images[:5], "y_train": np.arange(5) % 2, "x_test": images[5:], "y_test": np.arange(2)}
    return {**found, **changes}


def test_images_of_pascal_voc_that_share_a_stem(make_folder: Folder) -> None:
    listing = open_source(make_folder({**voc(), "JPEGImages/0.png": b""})).list_samples()
    assert "JPEGImages/0.jpg" in listing.samples.column("name").to_pylist()
    assert listing.rejected == (Rejection("JPEGImages/0.png", "shares its stem with 'JPEGImages/0.jpg'"),)


def test_arrays_of_keras_are_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = keras()
    np.savez(tmp_path / "a.npz", **arrays)
    manifests = packed(tmp_path / "a.npz", tmp_path / "out", "--no-shuffle", "--encode", "raw")
    assert "the splits are the source's own, by the names of its arrays" in capsys.readouterr().out
    assert {name: manifest.samples for name, manifest in manifests.items()} == {"test": 2, "train": 5}
    augment = gpuload.Augment((8, 9), crop="none", dtype="uint8", layout="channels_last")
    for name in ("train", "test"):
        with gpuload.DaliIterator(tmp_path / "out" / name, 8, augment=augment, device="cpu", shuffle=False) as loader:
            [(images, labels)] = loader
        assert (images.permute(0, 2, 3, 1).numpy() == arrays[f"x_{name}"]).all()
        assert labels.tolist() == arrays[f"y_{name}"].tolist()
    whole = packed(tmp_path / "a.npz", tmp_path / "one", "--no-splits")
    assert {name: manifest.samples for name, manifest in whole.items()} == {"train": 7}


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
    manifests = packed(tmp_path / "a.npz", tmp_path / "out")
    assert {name: manifest.samples for name, manifest in manifests.items()} == {"train": 5, "val": 2}
    assert manifests["train"].fields[1].name == "label"


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
        manifest = packed(source, tmp_path / f"out-{kind}", "--no-labels")["train"]
        assert ([field.name for field in manifest.fields], manifest.samples) == (["image"], 5), kind
        assert manifest.classes is None


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
def test_layouts(make_folder: Folder, tmp_path: Path, capsys: Any, name: str, archive: bool) -> None:
    source = write_zip(tmp_path / "a.zip", LAYOUTS[name]) if archive else make_folder(LAYOUTS[name])
    assert cli.main(["pack", str(source), str(tmp_path / "out"), "--workers", "1"]) == cli.DONE
    assert "note: 1 image has no .txt, so no boxes: '" in capsys.readouterr().out
    folders = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert folders == (["train"] if name in ("cvat", "labelimg") else ["train", "val"])
    for folder in folders:
        manifest = Manifest.read(tmp_path / "out" / folder)
        assert [(field.name, field.classes) for field in manifest.fields[1:]] == [
            ("boxes", ("ant", "bee")),
            ("labels", ("ant", "bee")),
        ]
        for row in rows_of(tmp_path / "out" / folder):
            assert row["image"] == SMALL[int(Path(row["source"]).stem)]
            is_empty = row["source"].endswith("0.jpg")
            assert row["boxes"] == ([] if is_empty else BOXES)
            assert (row["boxes_class"], row["labels"]) == (([], []) if is_empty else ([0, 1], [0, 1]))


def test_an_image_that_lies_on_its_side(make_folder: Folder) -> None:
    """Boxes are shares of the image as it is shown."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encode(photo(0, 40, 20), exif=exif)
    listing = open_source(make_folder({"1.jpg": turned, "1.txt": b"0 0.5 0.5 1 0.5"})).list_samples()
    assert listing.samples.column("boxes").to_pylist() == [[[0, 10, 20, 30]]]


def test_edges(make_folder: Folder, tmp_path: Path) -> None:
    """Boxes that rounding leaves a little outside, empty texts, and an image that is none."""
    root = make_folder({
        "images/1.jpg": SMALL[0], "labels/1.txt": b"0 0.1 0.5 0.2000002 1.0005\r\n", "images/2.jpg": SMALL[1],
        "labels/2.txt": b"\n", "images/3.jpg": b"no image", "labels/3.txt": TEXT, "labels/4.txt": TEXT,
    })  # fmt: skip
    listing = open_source(root).list_samples()
    assert listing.samples.column("boxes").to_pylist() == [[[0, 0, pytest.approx(8, abs=1e-4), 20]], []]
    assert [(r.source, r.reason.partition(":")[0]) for r in listing.rejected] == [
        ("images/3.jpg", "its size cannot be read")
    ]
    assert "1 .txt belongs to no image: 'labels/4.txt'" in listing.notes
    assert listing.fields[0].classes is None
    assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == cli.REJECTED
    assert list(rejected_of(tmp_path / "out" / "train")) == ["images/3.jpg"]


def test_captions_and_class_folders_are_not_boxes(make_folder: Folder) -> None:
    captions = {"a/1.jpg": SMALL[0], "a/1.txt": b"5 cats", "b/2.jpg": SMALL[1], "b/2.txt": b""}
    assert open_source(make_folder(captions)).list_samples().classes == ("a", "b")
    boxes = {name: TEXT if name.endswith("txt") else data for name, data in captions.items()}
    assert [f.name for f in open_source(make_folder(boxes)).list_samples().fields] == ["boxes", "labels"]
    assert open_source(make_folder(boxes), form="folder").list_samples().classes == ("a", "b")
    coco = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"id": 1, "image_id": 1, "caption": "x"}]}
    both = {"images/1.jpg": SMALL[0], "labels/1.txt": TEXT, "annotations/a.json": json.dumps(coco).encode()}
    assert open_source(make_folder(both)).list_samples().fields[0].name == "caption"
