"""The table of sources: every row works, and none depends on another."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from images import Folder
from zips import write_zip

from gpuload.sources import open_source

ROOM = Path(__file__).parents[2] / "gpuload" / "sources"
MODULES = set(re.findall(r'"(\w+):\w+Source"', (ROOM / "registry.py").read_text()))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_source_imports_another(module: str) -> None:
    tree = ast.parse((ROOM / f"{module}.py").read_text())
    imported = {str(node.module).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(MODULES) > 5 and imported & (MODULES - {module}) == set()


def test_packages_of_single_sources_are_imported_when_they_are_needed() -> None:
    code = "import sys, gpuload.sources; print({'h5py', 'lmdb', 'msgpack', 'xml.etree', 'gpuload.sources.boxes'} & set(sys.modules))"
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
        ({"Annotations/1.xml": b"", "Data/1.jpg": b""}, "", {"form": "folder"}, "FolderSource"),
        ({"Annotations/1.xml": b"", "Other/1.jpg": b""}, "", {}, "FolderSource"),
        ({"data.mdb": b""}, "", {}, "LmdbSource"),
        ({"x.lmdb/data.mdb": b""}, "x.lmdb", {}, "LmdbSource"),
        ({"x.mdb": b""}, "x.mdb", {}, "LmdbSource"),
        ({"x.H5": b""}, "x.H5", {}, "Hdf5Source"),
        ({"x.hdf": b""}, "x.hdf", {"columns": {"image": ("x",)}}, "Hdf5Source"),
        ({"x.any": b""}, "x.any", {"form": "hdf5"}, "Hdf5Source"),
        ({"x.npz": b""}, "x.npz", {}, "ArraysSource"),
        ({"x.npy": b""}, "x.npy", {"labels": "y.npy"}, "ArraysSource"),
        ({"1.tar": b"", "1.parquet": b""}, "", {}, "TarsSource"),
        ({"1.tar": b""}, "1.tar", {}, "TarsSource"),
        ({"1.parquet": b""}, "", {}, "ParquetSource"),
        ({"1.parquet": b""}, "1.parquet", {}, "ParquetSource"),
        ({"1.jpg": b""}, "", {"labels": "t.csv"}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.csv", "form": "folder"}, "TableSource"),
        ({"1.jpg": b"", "t.parquet": b"", "s.tar": b""}, "", {"labels": "t.parquet"}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.txt", "columns": {"path": ("x",)}}, "TableSource"),
        ({"1.jpg": b""}, "", {"labels": "t.JSON"}, "CocoSource"),
        ({}, "missing", {}, "FolderSource"),
        ({}, "missing.zip", {}, "FolderSource"),
    ],
)  # fmt: skip
def test_which_source_is_meant(make_folder: Folder, files, name: str, options, kind: str) -> None:
    assert type(open_source(make_folder(files) / name, **options)).__name__ == kind


@pytest.mark.parametrize(
    ("files", "options", "kind"),
    [
        (["a/1.jpg", "b/1.jpg"], {}, "FolderSource"),
        (["set/Annotations/1.xml", "set/JPEGImages/1.jpg"], {}, "VocSource"),
        (["1.tar", "1.parquet", "data.mdb"], {}, "FolderSource"),  # archives inside an archive are not opened
        (["a/1.jpg"], {"form": "sidecar"}, "SidecarSource"),
        (["a/1.jpg"], {"labels": "t.csv"}, "TableSource"),
        (["a/1.jpg"], {"labels": "t.json"}, "CocoSource"),
        (["a/1.jpg"], {"no_labels": True}, "UnlabeledSource"),
    ],
)
def test_which_source_is_meant_by_an_archive(tmp_path: Path, files: list[str], options, kind: str) -> None:
    source = open_source(write_zip(tmp_path / "x.zip", dict.fromkeys(files, b"")), **options)
    assert type(source).__name__ == kind
    assert str(source.root) == str(tmp_path / "x.zip")
