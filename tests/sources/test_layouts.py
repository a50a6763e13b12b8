"""Folders that are no class folders, or hold more than images: found out, or findings, and never a class in silence."""

import json
import os
import re
from pathlib import Path

import pytest
from images import Folder, encode, photo
from reading import files_of, rows_of
from zips import write_zip

import gpuload
from gpuload import SourceError, cli
from gpuload.disk import Manifest
from gpuload.sources import open_source

PHOTOS = [encode(photo(number, 40 + number, 30)) for number in range(6)]
CLASSES = {"a/1.jpg": PHOTOS[0], "b/2.jpg": PHOTOS[1], "c/3.jpg": PHOTOS[2]}
COCO = json.dumps(
    {
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)],
        "annotations": [{"id": 1, "image_id": 1, "bbox": [1, 2, 3, 4], "category_id": 5}],
        "categories": [{"id": 5, "name": "x"}],
    }
).encode()
IMAGES = {f"{n}.jpg": PHOTOS[n] for n in range(3)}


def inside(folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


def fields_of(folder: Path) -> list[str]:
    return [field.name for field in Manifest.read(folder).fields]


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(("place", "wrap"), [("images", ""), ("val2017", "coco/"), ("images/val2017", "")])
def test_annotations_beside_images_are_found(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, archive: bool, wrap: str
) -> None:
    files = {**inside(place, IMAGES), "annotations/instances_val2017.json": COCO, "annotations/captions_x.json": b"{}"}
    files = {f"{wrap}{name}": data for name, data in files.items()}
    source = write_zip(tmp_path / "a.zip", files) if archive else make_folder(files)
    assert cli.main(["pack", str(source), str(tmp_path / "out"), "--workers", "1"]) == cli.DONE
    said = capsys.readouterr().out
    assert "note: annotations are those in 'annotations/instances_val2017.json'" in said
    assert f"start in the folder {place!r}" in said
    assert fields_of(tmp_path / "out" / "train") == ["image", "boxes", "labels", "image_id"]
    rows = {row["source"]: row for row in rows_of(tmp_path / "out" / "train")}
    assert {name: row["image"] for name, row in rows.items()} == inside(place, IMAGES)
    assert rows[f"{place}/1.jpg"]["boxes"] == [[1, 2, 4, 6]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"annotations/instances_a.json": COCO, "annotations/instances_b.json": COCO, "images/1.jpg": b""},
         r"holds several files of annotations. Give one of them with --labels: '.*/annotations/instances_a.json', '.*/annotations/instances_b.json'"),
        ({"annotations/a.json": COCO, "annotations/b.json": COCO, "images/1.jpg": b""}, "several files of annotations"),
        ({"annotations/a.json": b"[]", "images/1.jpg": b""}, "annotations/a.json: not COCO's JSON with images and annot"),
        ({"annotations/a.json": COCO, "images/1.jpg": b""}, "names 3 of 3 files that are not in .*'0.jpg', '1.jpg', '2.jpg'"),
        ({"annotations/a.json": COCO, **inside("images", IMAGES), **inside("other", IMAGES)}, "all images that it names are in each of 'images', 'other'. Give one"),
        ({"annotations/a.txt": b"", **inside("images", IMAGES)}, r"folder 'images' does not look like a class \(also found: 1 × .txt\). Give --labels table.csv, --no-labels for"),
        ({"labels.csv": b"", **inside("images", IMAGES)}, r"'images' does not look like a class .*Give --labels .*/labels.csv, --no-labels for the images alone, or --from folder"),
        ({"Images/a/1.jpg": b"", "Images/b/1.jpg": b"", "parts/x.txt": b""}, "folder 'Images' does not look like a class .*Give .*/Images if its folders are the classes"),
        ({**inside("images", IMAGES), **inside("masks", IMAGES)}, "folder 'images' does not look like a class"),
        ({**inside("cat", IMAGES), **inside("masks", IMAGES)}, "folder 'masks' does not look like a class"),
    ],
)  # fmt: skip
def test_annotations_that_are_not_found(make_folder: Folder, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        open_source(make_folder(files)).list_samples()
    assert "\n" not in str(caught.value)


def test_coco_without_annotations(make_folder: Folder) -> None:
    with pytest.raises(SourceError, match=r"holds no \.json in a folder 'annotations'. Give the file .* with --labels"):
        open_source(make_folder(IMAGES), form="coco").list_samples()


def test_who_means_it_gets_a_class_called_images(make_folder: Folder) -> None:
    root = make_folder({**inside("images", IMAGES), "annotations/a.json": COCO})
    listing = open_source(root, form="folder").list_samples()
    assert listing.classes == ("annotations", "images")
    assert "all images are of one class, 'images'" in listing.notes


@pytest.mark.parametrize("names", [("annotations", "images"), ("Annotations", "Images"), ("annotations", "JPEGImages")])
def test_xml_beside_images(make_folder: Folder, names: tuple[str, str]) -> None:
    files = {**inside(names[1], IMAGES), **{f"{names[0]}/{n}.xml": b"<annotation/>" for n in range(3)}}
    for root in (make_folder(files), make_folder(inside("set", files))):
        assert [field.name for field in open_source(root).list_samples().fields] == ["label", "boxes"]


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({"x/a/1.jpg": b"", "x/b/1.jpg": b""}, r"all images are of one class, 'x'. If its folders \('a', 'b'\) are the classes, give .*/x$"),
        ({"x/1.jpg": b""}, "all images are of one class, 'x'$"),
        ({"x/a/1.jpg": b"", "y/b/1.jpg": b""}, "no image lies directly in a class folder, but in folders below, such as 'x/a'; the classes are 'x', 'y'"),
        ({"Cat/1.jpg": b"", "cat/1.jpg": b"", "dog/1.jpg": b""}, "classes that differ only in case are different classes: 'Cat', 'cat'$"),
    ],
)  # fmt: skip
def test_classes_that_are_told(make_folder: Folder, files: dict[str, bytes], note: str) -> None:
    (found,) = open_source(make_folder(files)).list_samples().notes
    assert re.search(note, found)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.jpg": b"", "1.txt": b""}, "holds no class folders .*or --no-labels, or --from sidecar for the .txt or .json beside them"),
        ({"1.jpg": b"", "train.csv": b""}, "holds no class folders .*or give --labels .*/train.csv, or --no-labels"),
    ],
)  # fmt: skip
def test_flat_folders(make_folder: Folder, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(make_folder(files)).list_samples()


def pack(*arguments: object, code: int = cli.DONE) -> None:
    assert cli.main(["pack", *map(str, arguments), "--workers", "1"]) == code


def test_the_output_folder_is_no_input(
    make_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_folder(CLASSES))
    pack(".", tmp_path / "elsewhere")
    expected = files_of(tmp_path / "elsewhere")
    capsys.readouterr()
    pack(".", "apacked")
    assert "note: passed over 'apacked', the output folder" in capsys.readouterr().out
    assert files_of(Path("apacked")) == expected
    pack(".", "apacked", "--overwrite")
    assert files_of(Path("apacked")) == expected
    os.rename("apacked", "old")
    pack(".", "a/deep/out")
    said = capsys.readouterr().out
    assert "note: passed over 'a/deep/out', the output folder" in said
    assert "note: passed over 'old', which gpuload packed" in said
    assert files_of(Path("a/deep/out")) == expected
    os.rename("a/deep/out/train", "again")
    pack(".", tmp_path / "last")
    assert "note: passed over 'again', which gpuload packed" in capsys.readouterr().out
    assert files_of(tmp_path / "last") == expected


def test_the_output_folder_by_another_name(make_folder: Folder, tmp_path: Path) -> None:
    """Images that lie in it, by whatever way, are no samples; what only looks like it is read."""
    root = make_folder({**CLASSES, "d/out/x.jpg": PHOTOS[3], "e/outer/x.jpg": PHOTOS[4]})
    (tmp_path / "link").symlink_to(root / "d" / "out")
    (root / "f").symlink_to(root / "d" / "out")
    source = open_source(root)
    source.leave_out(tmp_path / "link")
    names = source.list_samples().samples.column("name").to_pylist()
    assert names == [*CLASSES, "e/outer/x.jpg"]
    source.leave_out(tmp_path / "missing")
    assert len(source.list_samples()) == 6


def test_a_manifest_alone_is_no_packed_set(make_folder: Folder) -> None:
    root = make_folder({**CLASSES, "d/manifest.json": b"", "d/1.jpg": b"", "e/x/manifest.json": b"", "e/x/index.arrow": b"", "e/1.jpg": b""})  # fmt: skip
    assert open_source(root).list_samples().classes == ("a", "b", "c", "d", "e")


def test_a_set_is_not_packed_into_itself(
    make_folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_folder(CLASSES))
    pack(".", ".", code=cli.WRONG)
    assert "SOURCE '.' is OUT '.', or lies in it" in capsys.readouterr().err
    pack(".", "out")
    capsys.readouterr()
    pack("out/train", "out", "--append", code=cli.WRONG)
    assert "SOURCE 'out/train' is OUT 'out', or lies in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.JPG", "is a single image. Give the folder in which it lies, "),
        ("x.csv", "describes images but does not hold them. Give the folder of the images, and --labels "),
        ("x.json", "describes images but does not hold them"),
        (
            "x.tar.gz",
            "is a compressed tar, which is not supported. Unpack it, as with `tar xf x.tar.gz`, and give the folder",
        ),
        ("x.tgz", "is a compressed tar, which is not supported"),
        ("x.7z", "is an archive of an unsupported kind. Unpack it, and give the folder; or pack it again as .zip"),
        ("x.foo", "is of an unknown kind. Name it with --from: folder, sidecar"),
    ],
)
def test_files_that_are_no_source(make_folder: Folder, name: str, message: str) -> None:
    root = make_folder({name: b"x"})
    with pytest.raises(SourceError, match=f"{name}: {message}"):
        open_source(root / name)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("hdf5", "is a folder, not an HDF5 file. Give the file"),
        ("npy", "is a folder. Give an .npy or .npz"),
        ("lmdb", "cannot be opened as LMDB .*Give the folder with data.mdb"),
        ("parquet", "holds no .parquet. Give a file, or the folder that holds some"),
        ("tar", "holds no .tar. Give a file, or the folder that holds some"),
        ("voc", "holds no Annotations beside Data .ILSVRC., JPEGImages .Pascal VOC. or images"),
    ],
)
def test_a_folder_of_something_else(make_folder: Folder, tmp_path: Path, form: str, message: str) -> None:
    pytest.importorskip({"hdf5": "h5py", "lmdb": "lmdb"}.get(form, "numpy"))
    with pytest.raises(SourceError, match=message) as caught:
        gpuload.pack(open_source(make_folder({"a/x.txt": b""}), form=form), tmp_path / "out", workers=1)
    assert "\n" not in str(caught.value)


def test_masks_among_images_without_labels_are_told(make_folder: Folder) -> None:
    listing = open_source(
        make_folder({**inside("x", IMAGES), **inside("Masks", IMAGES)}), no_labels=True
    ).list_samples()
    assert listing.notes == ("images in 'Masks' are packed like all others: 3",)


def test_addresses_are_no_paths() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
    with pytest.raises(SourceError, match="s3://bucket/x.zip: is an archive at a URL. Download what is there, or"):
        open_source("s3://bucket/x.zip")
