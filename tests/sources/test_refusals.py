"""What is no source, or contradicts itself: one line that names the fault, before anything is packed. And what fits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from images import Folder, encode, photo
from reading import rows_of
from sources_read import BOX, IMAGES, coco, inside, listed
from tars import tar_bytes

import gpuload
from gpuload import ArgumentError, GpuloadError, SourceError, cli
from gpuload.sources import open_source

JPG = encode(photo(0, 40, 20))
YOLO = b"0 0.5 0.5 0.2 0.4\n1 0.25 0.75 0.5 0.5\n"
XML = b"<annotation><object><name>%s</name><bndbox>%s</bndbox></object></annotation>"


def refused(root: Path, word: str, at: str = "", **options: Any) -> None:
    """Lists what is `at` in a folder, and looks for the word in the error. labels: relative to the folder."""
    if "labels" in options:
        options["labels"] = root / options["labels"]
    with pytest.raises(GpuloadError, match=word) as caught:
        listed(root / at, **options)
    assert isinstance(caught.value, SourceError | ArgumentError)
    assert "\n" not in str(caught.value)


# fmt: off
LAYOUTS: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
    ({"annotations/instances_a.json": coco(), "annotations/instances_b.json": coco()}, {}, "found '.*_a.json', '.*_b.json'. Give the file"),
    ({"annotations/a.json": coco(), "annotations/b.json": coco()}, {}, "one for each split; found"),
    ({"annotations/train_1.json": coco(), "annotations/train_2.json": coco()}, {}, "one for each split; found"),
    ({"annotations/train.json": coco(["0.jpg"]), "annotations/val.json": coco(["1.jpg"], categories=[{"id": 5, "name": "y"}]), **IMAGES}, {},
     "train.json and .*/val.json have different categories or kinds of annotations. Give .*--labels"),
    ({"annotations/train.json": coco(), "annotations/val.json": coco(["2.jpg"]), **inside("images")}, {}, "both name images such as 'images/2.jpg'"),
    ({"annotations/a.json": b"[]"}, {}, "annotations/a.json: cannot be read as COCO's JSON"),
    ({"annotations/a.json": coco()}, {}, "names 3 of 3 files that are not in .*'0.jpg', '1.jpg', '2.jpg'"),
    ({"annotations/a.json": coco(), **inside("images"), **inside("other")}, {}, "in each of 'images', 'other'"),
    (IMAGES, {"form": "coco"}, r"expected a \.json in a folder 'annotations'.*--labels"),
    ({"annotations/a.txt": b"", **inside("images")}, {}, "'images' does not look like a class.*--from folder; else give --labels"),
    ({"Images/a/1.jpg": b"", "Images/b/1.jpg": b"", "parts/x.txt": b""}, {}, "'Images' does not look like a class"),
    ({**inside("cat"), **inside("masks")}, {}, "'masks' does not look like a class"),
    ({"train/images/1.jpg": b"", "val/images/2.jpg": b""}, {}, "'images' does not look like a class"),
    ({"1.jpg": b"", "1.txt": b""}, {}, "holds no sample; found: '1.jpg' lies in no class folder; .*1 × .txt.*--no-labels"),
    ({"a/x.txt": b"", "b/y.zip": b""}, {}, "holds no sample; found: .*passed over, by extension: 1 × .txt, 1 × .zip. Give a folder of class"),
    ({"a/x.txt": b""}, {"no_labels": True}, "holds no sample.*1 × .txt. Give a folder of images, which are known by"),
    ({"train/1.jpg": b"", "test/2.jpg": b""}, {}, "'test/2.jpg' lies in no class folder"),
    ({"train/a/1.jpg": b"", "val/a/1.jpg": b"", "car/1.jpg": b""}, {}, r"holds 'train', 'val', as splits are called, beside 'car'. Are they splits\?.*--no-splits"),
    ({"bus/1.jpg": b"", "car/1.jpg": b"", "train/1.jpg": b""}, {}, "holds 'train', as splits are called, beside 'bus'"),
    ({"traffic/bus/1.jpg": b"", "traffic/train/1.jpg": b""}, {}, "holds 'train', as splits are called, beside 'bus'"),
    ({"train/a/1.jpg": b"", "val/a/1.jpg": b"", "valid/a/1.jpg": b""}, {}, "'val', 'valid' would both be the split 'val'"),
    ({"train/1.jpg": b"", "1.jpg": b""}, {"no_labels": True}, "beside images in no folder"),
    ({}, {"at": "missing"}, "missing: no such folder. Give a folder of class folders"),
    ({"1.jpg": b""}, {"at": "1.jpg", "form": "folder"}, "is a file, not a folder"),
    ({"1.tar": b"", "1.parquet": b""}, {}, r"several sources recognise it equally well. Give --from tar \(holds .tar\) or --from parquet \("),
    ({f"d/{n}.{end}": b"" for n in range(6) for end in ("jpg", "txt")[: 1 + n % 2]}, {"form": "sidecar"}, "most of its 6 images have no .txt, .json or .png"),
    ({"1.jpg": b"", "1.txt": b"\xff"}, {"form": "sidecar"}, "'1.jpg' its '1.txt', .*can't decode byte.* is not a text in UTF-8"),
    ({f"{n}.{end}": data for n in range(3) for end, data in (("jpg", JPG), ("txt", YOLO))}, {"form": "sidecar"}, "YOLO's boxes, such as '0 0.5 0.5 0.2 0.4.*Give --from yolo"),
    ({"1.jpg": JPG}, {"form": "yolo"}, "no image has a .txt of its name"),
    ({"a/x.txt": b""}, {"form": "voc"}, "holds no Annotations beside Data"),
    ({"Annotations/a.txt": b"", "Data/a.txt": b""}, {}, "holds no sample"),
    ({"a/x.txt": b""}, {"form": "npy"}, "cannot be read as .npz .Is a directory"),
    ({"a/x.txt": b""}, {"form": "parquet"}, "holds no .parquet. Give a file, or the folder"),
    ({"a/x.txt": b""}, {"form": "tar"}, "holds no .tar. Give a file, or the folder"),
    ({"a/x.txt": b""}, {"form": "hdf5"}, "cannot be read as HDF5"),
    ({"a/x.txt": b""}, {"form": "lmdb"}, "holds no .mdb. Give a file, or the folder"),
    ({"dev-test.tar": tar_bytes({"1.jpg": JPG}), "train.tar": tar_bytes({"1.jpg": JPG})}, {}, "none or two .'dev-test.tar'"),
    ({"backup.tar": tar_bytes({"1.jpg": JPG}), "cat/1.jpg": JPG, "dog/2.jpg": JPG}, {},
     "holds .tar, and images in the folders 'cat', 'dog'. Give --from tar, or --from folder for the images"),
    ({"test.tar": tar_bytes({"1.jpg": JPG}), "extra.tar": tar_bytes({"1.jpg": JPG})}, {}, "none or two .'extra.tar'"),
    *(({"x.tar": tar_bytes({"1.jpg": JPG, "1.txt": texts[0], "2.jpg": JPG, "2.txt": texts[1]})}, {},
       "x.tar: its .txt hold YOLO's boxes, such as '0 0.5 0.5 0.2 0.4.*, and no captions. Unpack .*--from yolo")
      for texts in ([YOLO, YOLO], [b"\n", YOLO])),
    ({"x.tar": tar_bytes({"1.txt": b"1"})}, {}, "holds no sample; found: 'x.tar/1' has no image"),
    *(({name: b"x"}, {"at": name}, f"{name}: is not a file that is packed by itself. Name its kind with --from .folder, sidecar.*gpuload.pack")
      for name in ("train-images-idx3-ubyte.gz", "x.JPG", "x.csv", "x.pkl", "data_batch_1")),
    ({"x.arrow": b"x"}, {"at": "x.arrow"}, "x.arrow: cannot be read as Arrow's IPC format"),
    ({"x.tar.gz": b"x"}, {"at": "x.tar.gz"}, "x.tar.gz: cannot be read as a compressed tar"),
    ({"x.tfrecord": b"x"}, {"at": "x.tfrecord"}, "x.tfrecord: cannot be read as TFRecord of tf.train.Example messages"),
    ({"data_batch_1": b"x"}, {}, "holds no sample; found: passed over, by extension: 1 × no extension"),
]
OPTIONS: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
    ({"x.h5": b""}, {"at": "x.h5", "labels": "t.csv"}, "--labels: .*x.h5 is packed as 'hdf5', which takes none"),
    ({}, {"columns": {"label": ("x",)}}, "--column: .*'folder', which takes none. .*--labels table.csv"),
    ({}, {"columns": {"label": ("x",)}, "labels": "t.json"}, "packed as 'coco', which takes none"),
    ({}, {"no_labels": True, "labels": "t.csv"}, "--no-labels packs images alone"),
    ({}, {"no_labels": True, "columns": {"label": ("x",)}}, "--no-labels packs images alone"),
    ({}, {"no_labels": True, "form": "sidecar"}, "images alone, --from sidecar what lies beside them"),
    ({}, {"form": "zip"}, "--from zip: expected one of 'folder', 'sidecar', "),
    ({"2.jpg": b"", "2.png": b"", "t.csv": b"id,label\n2,0\n"}, {"labels": "t.csv"}, "names '2' without an extension, which '2.jpg', '2.png' fit"),
    (IMAGES, {"labels": "missing.csv"}, "missing.csv: cannot be read as a table.*.No such file"),
    ({"t.csv": b"path,label\n1.jpg,1\n"}, {"at": "nowhere", "labels": "t.csv"}, "nowhere: no such folder"),
]
DOCUMENTS: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
    *(({**IMAGES, "c.json": coco(**changes)}, {"labels": "c.json"}, word) for changes, word in [
        ({"images": []}, "COCO's JSON with images and annotations .it lists no images"),
        ({"images": [{"id": 1}]}, "an entry of its images has the file_name None"),
        ({"annotations": [{"id": 1, "bbox": [1, 2, 3, 4]}]}, "an entry of its annotations has the image_id None"),
        ({"annotations": None}, "lists no images or no annotations"),
        ({"images": {"1": "0.jpg"}}, "its images are not a list of objects"),
        ({"annotations": [1]}, "its annotations are not a list of objects"),
        ({"images": [{"id": 0, "file_name": "0.jpg"}, {"id": "1", "file_name": "1.jpg"}]}, "ids of its images are numbers and texts"),
        ({"annotations": [{**BOX, "bbox": [1, 2, 3]}]}, "an entry of its annotations has the bbox"),
        *(({"annotations": [{**BOX, "segmentation": outline}]}, "an entry of its annotations has the segmentation")
          for outline in ({"counts": [4]}, {"size": [2, 2]}, [[1, 2, 3]], [[10, 5, 30, 15]])),
        ({"annotations": [{**BOX, "category_id": None}]}, "an entry of its annotations has the category_id"),
        ({"annotations": [{"id": 1, "image_id": 1, "bbox": [1, 2, 3, 4], "caption": "x"}]}, "neither a caption nor a bbox with a category_id"),
        ({"annotations": [{"id": 1, "image_id": 1}]}, "an annotation has neither a caption nor a bbox"),
        *(({"categories": [{"id": wrong, "name": "x"}]}, "an entry of its categories has the id") for wrong in (True, 5.0, "5" * 81, "five")),
        ({"images": [{"id": 1, "file_name": "0.jpg"}] * 2}, "lists two images with one id"),
        ({"images": [{"id": 1, "file_name": "1.jpg"}]}, "annotates images that it does not list: numbers '0'"),
        ({"images": [{"id": n, "file_name": name} for n, name in enumerate([*IMAGES, "x.jpg"])]}, "names 1 of 4 files that are not in .*'x.jpg'"),
        ({"categories": [{"id": 6, "name": "z"}]}, "uses a category that it does not list: '5'"),
        ({"categories": [{"id": 5, "name": "a", "keypoints": ["p"]}, {"id": 6, "name": "b", "keypoints": ["q"]}],
          "annotations": [{**BOX, "keypoints": [1, 1, 2]}, {**BOX, "id": 2, "category_id": 6, "keypoints": [1, 1, 2]}]}, "different keypoints.*Keep the annotations of one"),
    ]),
    *(({"Annotations/1.xml": text, "JPEGImages/1.jpg": b""}, {}, f"holds no sample; found: .*1.xml', .*{word}.*, is not an annotation in XML") for text, word in [
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><annotation/>", "declares entities"),
        ("<annotation/>".encode("utf-16"), "declares entities or is not UTF-8"),
        (b"<annotation>", "no element found"),
        (b"<annotation><object><name>a</name></object></annotation>", "without a name or a bndbox"),
        (XML % (b"", b"<xmin>1</xmin><ymin>1</ymin><xmax>1</xmax><ymax>1</ymax>"), "without a name or a bndbox"),
        (XML % (b"a", b"<xmin>1</xmin>"), "could not convert"),
    ]),
    ({"Annotations/1.xml": b"<annotation/>", "Data/1.jpg": b"", "Data/7.jpg": b""}, {}, "1 file has no partner .*: 'Data/7.jpg'"),
    *(({"images/1.jpg": JPG, "labels/1.txt": text, "data.yaml": b"names: [a, b]"}, {"form": "yolo"}, word) for text, word in [
        (b"0 0.5 0.5 0.2", "'images/1.jpg' its 'labels/1.txt', line 1 is '0 0.5 0.5 0.2', is not YOLO's boxes"),
        (YOLO + b"0 0.1 0.1 0.2 0.1 0.2", "line 3 is .*and a polygon"),
        (b"0 5 5 12 14", "line 1 is '0 5 5 12 14'"),
        (b"-1 0.5 0.5 0.2 0.4", "line 1 is '-1 0.5 0.5 0.2 0.4'"),
        (b"0 nan 0.5 0.2 0.4", "line 1 is '0 nan"),
        (b"a photo of a cat", "for captions give --from sidecar"),
        (b"\xff", "'labels/1.txt', .utf-8. codec can't decode byte"),
        (b"7 0.5 0.5 0.2 0.4", "line 1 has class 7, the last one with a name is 1, is not"),
    ]),
    *(({"images/1.jpg": JPG, "labels/1.txt": YOLO, "data.yaml": text}, {}, f"data.yaml: cannot be read as YAML.*{word}") for text, word in [
        (b"names: [", ""),
        (b"names: {-1: ant, 2: bee}", "start at 0"),
        (b"names: ant", "must list the names"),
        (b"names: [[ant]]", "must list the names"),
        (b"#" * 2_000_000, "2,000,000 bytes are more than"),
        (b"!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ]),
]
TABLES: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
    ({**IMAGES, "2.png.jpg": JPG, name: text.encode("latin-1")}, {"labels": name, **options}, word) for name, text, options, word in [
        ("t.csv", "photo,breed\n9,x\n", {}, r"its columns are \['photo', 'breed'\].*--column path=NAME and --column label=NAME.*--no-labels"),
        ("t.csv", "where,label\n1.jpg,2\n", {}, "which holds the paths"),
        ("t.csv", "id,label\n1,0.5\n", {}, "whole numbers or names; .* are a target .--column target=.*found '0.5'"),
        ("t.csv", "id,label\n1,1.0\n2,2\n", {}, "found '1.0'"),
        ("t.csv", "id,label,label\n1,0,1\n", {}, "has several columns called 'label'"),
        ("t.csv", "1.jpg,0\n2.jpg,0\n", {}, r"its columns are \['1.jpg', '0'\]; which holds the paths"),
        ("t.csv", "path,label\n2.png,0\n", {}, "names 1 of 1 files that are not in .*: '2.png'"),
        ("t.csv", "id,label\n7,0\n", {}, "names 1 of 1 files that are not in .*: '7'. Paths start at SOURCE"),
        ("t.csv", "path,label\n1.jpg,0\nb.jpg,0\nc.jpg,1\nd/e.jpg,1\nf.jpg,1\n", {}, "names 4 of 5 .*'b.jpg', 'c.jpg', 'd/e.jpg' and 1 more"),
        ("t.csv", "id,label\n1,0\n1.jpg,0\n", {}, "names images in more than one row: '1.jpg'"),
        ("t.csv", "id,label\n./1.jpg,0\n1.jpg,0\n", {}, "names images in more than one row: '1.jpg'"),
        ("t.csv", "path,label\n1.jpg,0\n,1\n", {}, "names 1 of 2 files"),
        ("t.csv", "path,label\n0.jpg,a\n1.jpg, \n", {}, "classes of 'label' must be numbers or names; found ' '"),
        ("t.csv", f"path,label\n0.jpg,2\n1.jpg,{'9' * 5000}\n", {}, "classes of 'label' must be whole numbers or names"),
        ("t.jsonl", '{"path": "1.jpg", "captions": {"raw": "a"}}\n', {}, "is not a list of captions. Correct the column"),
        ("t.csv", "path,label\n", {}, "holds no sample"),
        ("t.csv", "path,label\n1.jpg\n", {}, "cannot be read as a table: CSV"),
        ("t.csv", "", {}, "cannot be read as a table: CSV"),
        ("t.csv", "path,label\n\xff\xff.jpg,1\n", {}, "cannot be read as a table: CSV or TSV in UTF-8"),
        ("t.csv", "path,x\n1.jpg,nan\n", {"columns": {"target": ("x",)}}, "'target' of sample 0 .*must be a finite number.*found 'nan'"),
        ("t.csv", "path,x\n1.jpg,a\n", {"columns": {"target": ("x",)}}, "'target' of sample 0 .*must be a finite number.*found 'a'"),
        ("t.csv", 'path,boxes\n1.jpg,"[[1,2,3]]"\n', {}, "'boxes' of sample 0 .*must be boxes x0 y0 x1 y1"),
        ("t.csv", 'path,boxes\n1.jpg,"[[5,2,3,4]]"\n', {}, "x1 < x0 or y1 < y0, as in boxes of x y width height"),
        ("t.csv", "path,boxes\n1.jpg,[oops\n", {}, "'.oops' is not a JSON list. Correct the column 'boxes'"),
        ("t.csv", "path,labels\n1.jpg,-1\n", {}, "classes of 'labels' must be numbered from 0; found '-1'"),
        ("t.csv", "path,mask\n1.jpg,none.png\n", {}, "names 1 of 1 files that are not in .*'none.png'"),
        ("t.csv", "path,label\n1.jpg,1\n", {"columns": {"path": ("x",)}}, r"--column path=x: expected one of \['path', 'label'\]"),
        ("t.csv", "path,label,x\n1.jpg,0,1\n", {"columns": {"json": ("x",)}}, "--column json=: a table holds no such field"),
        ("t.csv", "path,label,split\n0.jpg,0,train\n1.jpg,0,test\n2.jpg,0,x\n", {}, "column 'split' names splits, .*but also 'x'"),
        ("t.csv", "path,label,split\n0.jpg,0,train\n1.jpg,0,test\n2.jpg,0,\n", {}, "but also ''"),
        ("t.csv", "path,label,split\n0.jpg,0,0\n1.jpg,0,1\n", {"columns": {"split": ("split",)}}, "but also '0', '1'.*--no-splits"),
    ]
]
# fmt: on


@pytest.mark.parametrize(("files", "options", "word"), [*LAYOUTS, *OPTIONS, *DOCUMENTS, *TABLES])
def test_what_is_refused(make_folder: Folder, files: dict[str, bytes], options: dict[str, Any], word: str) -> None:
    pytest.importorskip({"hdf5": "h5py", "lmdb": "lmdb"}.get(options.get("form", ""), "numpy"))
    refused(make_folder(files), word, **options)


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 3), np.uint8)
NUMBERS = np.arange(20) % 3
KERAS = {"x_train": PIXELS[:5], "y_train": NUMBERS[:5], "x_test": PIXELS[5:7], "y_test": NUMBERS[:2]}


def save(folder: Path, arrays: dict[str, Any], kind: str) -> dict[str, Any]:
    """Arguments of `refused`: for two arrays, images first, in an `.npz`, HDF5 file, or each in an `.npy`."""
    if kind == "npz":
        np.savez(folder / "x.npz", **arrays)
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "x.h5", "w") as file:
            for name, array in arrays.items():
                file[name] = array
    else:
        for name, array in zip("xy", arrays.values(), strict=True):
            np.save(folder / f"{name}.npy", array)
    return {"at": f"x.{kind}", **({"labels": "y.npy"} if kind == "npy" else {})}


LABELS = [
    (np.arange(5), "has 5 rows, 'images?' 20. They must agree"),
    (np.arange(25), "has 25 rows, 'images?' 20. They must agree"),
    (np.eye(20, dtype=int), r"is \(20, 20\) of int64, but a label is one whole number"),
    (np.arange(20) / 1.0, "of float64, but a label is one whole number.*--column target="),
    (NUMBERS - 1, "classes of 'label' must be numbered from 0; found '-1'"),
]
ARRAYS: list[tuple[str, dict[str, Any], Any, str]] = [
    *(("npy npz h5", {"images": PIXELS, "labels": labels}, None, word) for labels, word in LABELS),
    ("npy", {"images": PIXELS, "labels": np.array(3)}, None, "has 1 rows, 'image' 20"),
    ("npz h5", {"images": PIXELS, "label": NUMBERS, "y": NUMBERS}, None, "'label' and 'y' would both be the field 'label'"),
    ("npz h5", {"images": PIXELS, "a": NUMBERS, "b": NUMBERS}, {"label": ("a", "b")}, "--column label=a,b: expected one of"),
    ("npz h5", {"left": PIXELS, "right": PIXELS}, None, "which array holds the images.*left.*Give --column image=NAME"),
    ("npz h5", {**KERAS, "x_more": PIXELS}, None, "which array holds the images.*x_more.*Give --column image=NAME"),
    ("npz h5", {"images": PIXELS[0]}, None, r"which array holds the images, .*It has images \(12, 16, 3\)"),
    *(("npz", {"images": np.zeros(shape, np.uint8)}, None, r"which array holds the images, ") for shape in ((5, 16, 3), (12, 16, 4))),
    ("npz h5", {"images": PIXELS.reshape(20, -1)}, None, "which array holds the images.*--column image=NAME"),
    ("npz h5", {"y": NUMBERS}, None, "which array holds the images"),
]  # fmt: skip


def test_an_npz_that_does_not_fit_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=99))
    message = "x.npz: its arrays take 11,648 bytes unpacked, and .* has 99 free. Free some space"
    refused(tmp_path, message, **save(tmp_path, {"images": PIXELS}, "npz"))


@pytest.mark.parametrize(("kinds", "arrays", "columns", "word"), ARRAYS)
def test_arrays_that_are_refused(tmp_path: Path, kinds: str, arrays: dict[str, Any], columns: Any, word: str) -> None:
    for kind in kinds.split():
        refused(tmp_path, word, columns=columns, **save(tmp_path, arrays, kind))


@pytest.mark.parametrize("kind", ["npy", "npz", "h5"])
@pytest.mark.parametrize(
    ("labels", "values", "classes", "role"),
    [
        (NUMBERS[:, None], NUMBERS.tolist(), None, "label"),
        (np.array([b"cat", b"dog"] * 10), [0, 1] * 10, ("cat", "dog"), "label"),
        (np.arange(20) / 2, [n / 2 for n in range(20)], None, "target"),
    ],
)
def test_labels_of_arrays(
    tmp_path: Path, kind: str, labels: np.ndarray, values: list[Any], classes: tuple[str, ...] | None, role: str
) -> None:
    options = save(tmp_path, {"images": PIXELS, "labels": labels}, kind)
    if kind != "npy":
        save(tmp_path, {"images": PIXELS, "labels": labels, "other": np.zeros((3, 2))}, kind)
    given = {"target": ("label" if kind == "npy" else "labels",)} if role == "target" else None
    source = open_source(tmp_path / options["at"], ("labels" in options and tmp_path / "y.npy") or None, given)
    before = source.identity
    source.prepare(tmp_path)
    listing = source.list_samples()
    assert (listing.samples.column(role).to_pylist(), listing.classes) == (values, classes)
    assert listing.notes == ("arrays that are not packed: other (3, 2)",) * (kind != "npy")
    assert source.identity == before  # so that a run is resumed with the same object


def test_labels_that_are_no_array(tmp_path: Path) -> None:
    options = save(tmp_path, {"images": PIXELS, "labels": NUMBERS}, "npy")
    (tmp_path / "y.npy").write_bytes(b"no array")
    refused(tmp_path, "y.npy: cannot be read as an array", **options)
    np.savez(tmp_path / "y.npz", a=NUMBERS)
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    refused(tmp_path, "an archive of arrays by another name", **options)
    refused(tmp_path, r"none.npy: cannot be read.*\(No such file", at="none.npy")
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    refused(tmp_path, "of Python objects it would be a pickle, never opened", at="x.npy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "label=y", "--column", "label=x"], "--column label=x: 'label' is given twice"),
        (["--column", "x=y"], "--column x=y: write ROLE=NAME, with one of the roles path, image"),
        (["--val", "ten"], "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got 'ten'"),
        (["--val", "10"], "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got '10'"),
    ],
)
def test_options_of_the_command(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main(["pack", str(make_folder(IMAGES)), str(tmp_path / "out"), *options]) == cli.WRONG
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


SAMPLES: list[tuple[Any, str]] = [
    *(([{"image": JPG, "label": label} for label in labels], f"^samples: .*{word}") for labels, word in [
        ([0, None, 1], "numbers or names; found 'None'"),
        (["a", "b", ""], "numbers or names; found ''"),
        ([0, float("nan")], "numbers to be predicted are a target .*; found 'nan'"),
        (["a", 3], "all numbers or all names; found '3'"),
        (["a", float("nan")], "all numbers or all names; found 'nan'"),
        ([np.float32(2)], "numbers to be predicted are a target .*; found '2.0'"),
        ([[0], [1]], r"numbers or names; found '\[0\]', '\[1\]'"),
        ([np.array([0, 1])], r"numbers or names; found '\[0, 1\]'"),
        ([torch.tensor([1])], r"numbers or names; found '\[1\]'"),
        ([b"cat"], "sample 0 has a value that cannot be stored .it holds a bytes"),
    ]),
    ([], "holds no sample"),
    ([(JPG, 3)], r"0 is a tuple. Give a dict such as \{\"image\": image, \"label\": label\}"),
    (["photos"], "0 is a str"),
    ([{"label": 1}], r"0 has only \['label'\]. Give a dict such as"),
    ([{"image": JPG, "labels": "cat"}], "0 has the labels 'cat'. Give a list, or one 'label'"),
    ([{"image": JPG, "labels": 3}], "0 has the labels '3'"),
    ([{"image": JPG, "more": {1, 2}}], "0 has a value that cannot be stored .it holds a set.. Give numbers, texts"),
    ([{"image": JPG, "caption": b"text"}], "0 has a value that cannot be stored .it holds a bytes."),
    ([{"image": JPG, "a": 1.0}, {"image": JPG}], "1 differs from those before in 'a'"),
    ([{"image": JPG, "a": np.zeros(2)}, {"image": JPG, "a": np.zeros(2, int)}], "1 differs from those before in 'a'"),
    *(([{"image": JPG, name: of}], f"'{name}': the class 'x+'… has a name of 4,097 characters")
      for name, of in (("label", "x" * 4097), ("labels", ["x" * 4097]))),
    *(([{"image": JPG, "boxes": [(0, 0, 5, 5)], "boxes_masks": masks}], word) for masks, word in [
        ([[[1, 2, 3]]], "a polygon is a flat list"),
        ([{"size": [20, 40], "counts": [3, 4]}], "its runs are not as long as its image"),
        ([{"size": [20, 40], "counts": "oooo"}], "its text is cut off"),
        ([[], []], "one of them is missing"),
    ]),
    ("photos", "photos: no such folder. Give a folder of class folders"),
    ({"image": JPG, "label": 1}, "a dict with 'image', 'label'; expected an iterable of dicts, one per"),
    ({"train": [], "unsupervised": []}, "a dict with 'unsupervised'; .*of such by split: train, val and test"),
    (pa.table({"a": [1]}), r"its columns are \['a'\]; which holds the image\? Call it 'image', or give"),
    ([{"image": "nowhere.jpg"}], "nowhere.jpg: cannot be read as the image of sample 0 .No such file"),
    ([{"image": JPG, "mask": np.array([{}])}], "0 has a mask that is not an array .Python objects"),
    ([{"image": [[1, None], [2, 3]]}], "0 has an image that is not an array .a value is missing: None, or null in a file"),
    ([{"image": [[1, 2], [3]]}], "0 has an image that is not an array .its rows differ in length.. Give numbers"),
    (pa.table({"image": [[[1, 2], [3, None]]]}), "0 has an image that is not an array .a value is missing"),
    *(([{"image": array}], "^no readable image for 'train': all 1 were rejected .*" + word + ".*. Correct them$")
      for array, word in [
        (np.ones((8, 9), bool), r"array \(8, 9\) of bool; for mode RGB it must be .* give array \* np.uint8\(255\), or"),
        (np.ones((8, 9), int), r"of int64; for mode RGB it .* If its values fit, give array.astype\(np.uint8\)"),
        (np.ones((4, 24, 24), np.uint8), r"If its channels come first, give array.transpose\(1, 2, 0\)"),
        (np.ones((13, 32, 32), np.uint16), r"If its channels come first, give array.transpose\(1, 2, 0\)"),
    ]),
    *(([{"image": JPG, "boxes": boxes}], "'boxes' of sample 0 must be boxes x0 y0 x1 y1 in pixels, .*; found .*" + word)
      for boxes, word in [([[0, 0, 4, 4, 1]], "4, 1"), (None, "None"), ([[0, 0, None, 4]], "nan")]),
    ([{"image": JPG, "label": [0, 1, 0]}], "Give several labels as 'labels', and of one-hot rows the number"),
]  # fmt: skip


@pytest.mark.parametrize(("samples", "word"), SAMPLES)
def test_samples_that_are_wrong(tmp_path: Path, samples: Any, word: str) -> None:
    with pytest.raises((SourceError, ArgumentError), match=word) as caught:
        gpuload.pack(samples, tmp_path / "out", workers=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("labels", [[0, 2, 1], [np.int64(0), np.array(2), 1], [torch.tensor(0), 2, 1]])
def test_labels_that_are_numbers_of_any_type(tmp_path: Path, labels: list[Any]) -> None:
    samples = [{"image": JPG, "label": label} for label in labels]
    report = gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    assert [row["label"] for row in rows_of(tmp_path / "out" / "train")] == [0, 2, 1]
    assert report.manifests["train"].classes is None


def test_a_name_may_be_missing_and_that_of_a_class_long(tmp_path: Path) -> None:
    sample = {"image": JPG, "name": None, "label": "x" * 4096, "labels": ["y" * 4096]}
    gpuload.pack([sample], tmp_path / "out", workers=1)
    assert rows_of(tmp_path / "out" / "train")[0]["source"] == "00000000."
    assert gpuload.Dataset(tmp_path / "out" / "train")
