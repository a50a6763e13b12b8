"""Photos of three classes, with an odd file, one that is none, and one that is cut short; and what a run makes of them."""

from pathlib import Path
from typing import Any

import pytest
from images import encode, photo, write_files

import gpuload
from gpuload.sources import FolderSource

SETTINGS = {"maxcount": 7, "val": 0.2, "seed": 5}


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    return {"workers": 2, **SETTINGS}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, photo_files: dict[str, bytes]) -> FolderSource:
    root = tmp_path_factory.mktemp("photos")
    odd = {"ant/odd.gif": encode(photo(99), "GIF"), "bee/bad.jpg": b"garbage"}
    write_files(root, {**photo_files, **odd, "cat/short.jpg": photo_files["cat/50.jpg"][:300]})
    return FolderSource(root)


@pytest.fixture(scope="session")
def undisturbed(source: FolderSource, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a run packed."""
    out = tmp_path_factory.mktemp("undisturbed")
    gpuload.pack(source, out, **settings)
    return out
