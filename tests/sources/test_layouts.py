"""Folders that are no class folders, or hold more than images: found out, or findings, and never a class in silence."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from images import Folder
from reading import files_of
from sources_read import PHOTOS, coco, inside, listed, names_of, packed

from gpuload import cli
from gpuload.sources import open_source

BOXES = b"0 0.5 0.5 0.2 0.4"
CLASSES = {"a/1.jpg": PHOTOS[0], "b/2.jpg": PHOTOS[1], "c/3.jpg": PHOTOS[2]}


@pytest.mark.parametrize(("place", "wrap"), [("images", ""), ("val2017", "coco/"), ("images/val2017", "")])
def test_annotations_beside_images_are_found(make_folder: Folder, place: str, wrap: str) -> None:
    files = {**inside(place), "annotations/instances_val2017.json": coco(), "annotations/captions_x.json": b"{}"}
    files = {f"{wrap}{name}": data for name, data in files.items()}
    listing = listed(make_folder(files))
    said = f"annotations are those in .*/instances_val2017.json, .* start in '{place}/'"
    assert any(re.search(said, note) for note in listing.notes)
    assert [field.name for field in listing.fields] == ["boxes", "labels", "image_id"]
    assert names_of(listing) == list(inside(place))
    assert listing.samples.column("boxes").to_pylist() == [[[1, 2, 4, 6]], [], []]


@pytest.mark.parametrize(
    ("files", "options", "note"),
    [
        ({"x/a/1.jpg": b"", "x/b/1.jpg": b""}, {}, "images lie in folders such as 'x/a'; the classes are 'x'"),
        ({"x/1.jpg": b""}, {}, "images lie in folders such as 'x'; the classes are 'x'"),
        ({**inside("images"), "annotations/a.json": coco()}, {"form": "folder"}, ".*: 'annotations'\nimages lie .* 'images'; the classes are 'images'\npassed over.*"),
        ({"x/a/1.jpg": b"", "y/b/1.jpg": b""}, {}, "images lie in folders such as 'x/a'; the classes are 'x', 'y'"),
        ({"x/1.jpg": b"", "x/a/1.jpg": b"", "y/1.jpg": b""}, {}, "1 folder lies below those of classes: the class of images in 'x/a' is 'x'"),
        ({"Cat/1.jpg": b"", "cat/1.jpg": b"", "dog/1.jpg": b""}, {}, "classes that differ only in case are different classes: 'Cat', 'cat'"),
        ({"Cat/1.jpg": b"", "cat/1.jpg": b"", "caf\u00e9/1.jpg": b"", "cafe\u0301/1.jpg": b""}, {}, ".* in case are .*: 'Cat', 'cat'\n.* the form of their characters are different classes: 'caf.*"),
    ],
)  # fmt: skip
def test_classes_that_are_told(make_folder: Folder, files: dict[str, bytes], options: Any, note: str) -> None:
    notes = open_source(make_folder(files), **options).list_samples().notes
    assert re.fullmatch(note, "\n".join(notes))


def test_the_output_folder_is_no_input(
    make_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_folder(CLASSES))

    def pack(out: str, note: str, *options: str) -> dict[str, bytes]:
        assert cli.main(["pack", ".", out, "--workers", "1", *options]) == cli.DONE
        assert note in capsys.readouterr().out
        return files_of(Path(out))

    expected = pack(str(tmp_path / "elsewhere"), "")
    assert pack("apacked", "note: passed over 'apacked', the output folder") == expected
    assert pack("apacked", "note: passed over 'apacked', the output folder", "--overwrite") == expected
    os.rename("apacked", "old")
    assert pack("a/deep/out", "note: passed over 'a/deep/out', the output folder") == expected
    os.rename("a/deep/out/train", "again")
    notes = open_source(".").list_samples().notes
    assert {f"passed over {name!r}, which gpuload packed" for name in ("old", "again")} <= set(notes)


def test_what_tells_a_source(tmp_path: Path) -> None:
    """A run is resumed with the same source alone; what the packer records besides is not part of it."""
    assert open_source(tmp_path).identity == f"FolderSource({tmp_path})"
    assert open_source("a", "t.csv", no_splits=True).identity == "TableSource(a, labels=t.csv)"


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
    assert cli.main(["pack", ".", "."]) == cli.WRONG
    assert "SOURCE '.' is OUT '.', or lies in it" in capsys.readouterr().err
    packed(".", Path("out"))
    assert cli.main(["pack", "out/train", "out", "--append"]) == cli.WRONG
    assert "SOURCE 'out/train' is OUT 'out', or lies in it" in capsys.readouterr().err


ROOM = Path(__file__).parents[2] / "gpuload" / "sources"
MODULES = set(re.findall(r'"gpuload\.sources\.([\w.]+):\w+Source"', (ROOM / "registry.py").read_text()))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_source_imports_another(module: str) -> None:
    tree = ast.parse((ROOM / f"{module.replace('.', '/')}.py").read_text())
    imported = {
        str(node.module).removeprefix("gpuload.sources.") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    assert len(MODULES) > 5 and imported & (MODULES - {module}) == set()


def test_packages_of_single_sources_are_imported_when_they_are_needed() -> None:
    code = "import sys, gpuload.sources; print({'h5py', 'lmdb', 'msgpack', 'xml.etree', 'gpuload.sources.yolo'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("files", "name", "options", "kind"),
    [
        ({"a/1.jpg": b""}, "", {}, "FolderSource"),
        ({"a/1.jpg": b""}, "", {"no_labels": True}, "UnlabeledSource"),
        ({"a/1.jpg": b""}, "", {"form": "folder", "no_labels": True}, "UnlabeledSource"),
        ({"a/1.jpg": b""}, "", {"form": "unlabeled"}, "UnlabeledSource"),
        ({"a/1.jpg": b""}, "", {"form": "sidecar"}, "SidecarSource"),
        ({"Annotations/1.xml": b"", "Data/1.jpg": b""}, "", {}, "VocSource"),
        ({"Annotations/1.xml": b"", "JPEGImages/1.jpg": b""}, "", {}, "VocSource"),
        ({"set/Annotations/1.xml": b"", "set/JPEGImages/1.jpg": b""}, "", {}, "VocSource"),
        ({"annotations/1.xml": b"", "images/1.jpg": b""}, "", {}, "VocSource"),
        ({"annotations/1.txt": b"", "images/1.jpg": b""}, "", {}, "FolderSource"),
        ({"Annotations/1.xml": b"", "Data/1.jpg": b""}, "", {"form": "folder"}, "FolderSource"),
        ({"Annotations/1.xml": b"", "Other/1.jpg": b""}, "", {}, "FolderSource"),
        ({"a/1.jpg": b"", "a/1.txt": b"", "b/1.jpg": b"", "b/README.txt": b"5 cats"}, "", {}, "FolderSource"),
        ({"a/1.jpg": b"", "a/1.txt": BOXES, "b/1.jpg": b"", "b/1.txt": BOXES}, "", {}, "YoloSource"),
        ({"a/1.jpg": b"", "a/1.txt": BOXES}, "", {"form": "folder"}, "FolderSource"),
        ({"images/1.jpg": b"", "labels/1.txt": BOXES, "annotations/a.json": b""}, "", {"form": "coco"}, "CocoSource"),
        ({"images/1.jpg": b"", "labels/1.txt": BOXES, "annotations/a.json": b""}, "", {"form": "yolo"}, "YoloSource"),
        ({"data.mdb": b""}, "", {}, "LmdbSource"),
        ({"x.lmdb/data.mdb": b""}, "x.lmdb", {}, "LmdbSource"),
        ({"x.mdb": b""}, "x.mdb", {}, "LmdbSource"),
        ({"x.H5": b""}, "x.H5", {}, "Hdf5Source"),
        ({"x.hdf": b""}, "x.hdf", {"columns": {"image": ("x",)}}, "Hdf5Source"),
        ({"x.any": b""}, "x.any", {"form": "hdf5"}, "Hdf5Source"),
        ({"x.npz": b""}, "x.npz", {}, "ArraysSource"),
        ({"x.npy": b""}, "x.npy", {"labels": "y.npy"}, "ArraysSource"),
        ({"1.tar": b"", "1.parquet": b""}, "", {"form": "tar"}, "TarsSource"),
        ({"1.tar": b""}, "1.tar", {}, "TarsSource"),
        ({"1.parquet": b""}, "", {}, "ParquetSource"),
        ({"1.parquet": b""}, "1.parquet", {}, "ParquetSource"),
        ({"1.jpg": b""}, "", {"labels": "t.csv"}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.csv", "form": "folder"}, "TableSource"),
        ({"1.jpg": b"", "t.parquet": b"", "s.tar": b""}, "", {"labels": "t.parquet"}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.txt", "columns": {"path": ("x",)}}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.JSON"}, "CocoSource"),
        ({}, "missing", {}, "FolderSource"),
    ],
)  # fmt: skip
def test_which_source_is_meant(make_folder: Folder, tmp_path: Path, files, name: str, options, kind: str) -> None:
    assert type(open_source(make_folder(files) / name, **options)).__name__ == kind
