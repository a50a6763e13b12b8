"""YOLO's boxes in the layouts in which tools write them, from the files to the loader."""

import json
from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from PIL import Image
from reading import rejected_of, rows_of
from zips import write_zip

import gpuload
from gpuload import cli
from gpuload.disk import Manifest
from gpuload.sources import open_source

PHOTOS = [encode(photo(number, 40, 20)) for number in range(4)]
TEXT = b"0 0.5 0.5 0.2 0.4\n1 0.25 0.75 0.5 0.5\n"
BOXES = [[16, 6, 24, 14], [0, 10, 20, 20]]
YAML = b"train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['ant', 'bee']\n"
NUMBERED = b"path: /data/elsewhere\ntrain: images/train\nval: images/val\nnames:\n  0: ant\n  1: bee\n"


def layout(image: str, label: str, **more: bytes) -> dict[str, bytes]:
    files = {}
    for number, split in enumerate(("train", "train", "val", "val")):
        files[f"{image.format(split)}/{number}.jpg"] = PHOTOS[number]
        if number:
            files[f"{label.format(split)}/{number}.txt"] = TEXT
    return {**files, **more}


LAYOUTS = {
    "ultralytics": layout("images/{}", "labels/{}", **{"data.yaml": NUMBERED, "train.txt": b"./images/train/0.jpg\n"}),
    "roboflow": layout("{}/images", "{}/labels", **{"data.yaml": YAML, "README.roboflow.txt": b"exported"}),
    "darknet of roboflow": layout("{}", "{}", **{"train/_darknet.labels": b"ant\nbee\n", "val/_darknet.labels": b"ant\nbee"}),
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
    assert folders == (["train"] if name == "cvat" else ["train", "val"])
    for folder in folders:
        manifest = Manifest.read(tmp_path / "out" / folder)
        assert [(field.name, field.classes) for field in manifest.fields[1:]] == [
            ("boxes", ("ant", "bee")),
            ("labels", ("ant", "bee")),
        ]
        for row in rows_of(tmp_path / "out" / folder):
            assert row["image"] == PHOTOS[int(Path(row["source"]).stem)]
            is_empty = row["source"].endswith("0.jpg")
            assert row["boxes"] == ([] if is_empty else BOXES)
            assert (row["boxes_class"], row["labels"]) == (([], []) if is_empty else ([0, 1], [0, 1]))


def test_a_flat_folder_reaches_the_loader(make_folder: Folder, tmp_path: Path) -> None:
    files = {f"{n}.{ending}": data for n in range(4) for ending, data in (("jpg", PHOTOS[n]), ("txt", TEXT))}
    gpuload.pack(open_source(make_folder({**files, "classes.txt": b"ant\nbee\n"})), tmp_path / "out", workers=1)
    augment = gpuload.Augment((40, 80), crop="none", dtype="uint8")
    options = {"shuffle": False, "device": "cpu", "decoder": "native", "num_threads": 1}
    with gpuload.DaliIterator(tmp_path / "out" / "train", 4, augment=augment, fields=["boxes"], **options) as loader:
        ((found,),) = loader
    assert found.boxes[0].tolist() == [[2 * side for side in box] for box in BOXES]
    assert found.labels[0].tolist() == [0, 1]


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
        "images/1.jpg": PHOTOS[0], "labels/1.txt": b"0 0.1 0.5 0.2000002 1.0005\r\n", "images/2.jpg": PHOTOS[1],
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
    captions = {"a/1.jpg": PHOTOS[0], "a/1.txt": b"5 cats", "b/2.jpg": PHOTOS[1], "b/2.txt": b""}
    assert open_source(make_folder(captions)).list_samples().classes == ("a", "b")
    boxes = {name: TEXT if name.endswith("txt") else data for name, data in captions.items()}
    assert [f.name for f in open_source(make_folder(boxes)).list_samples().fields] == ["boxes", "labels"]
    assert open_source(make_folder(boxes), form="folder").list_samples().classes == ("a", "b")
    coco = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"id": 1, "image_id": 1, "caption": "x"}]}
    both = {"images/1.jpg": PHOTOS[0], "labels/1.txt": TEXT, "annotations/a.json": json.dumps(coco).encode()}
    assert open_source(make_folder(both)).list_samples().fields[0].name == "caption"
