"""Folders of images for the tests of the packer."""

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from images import Folder, encode, photo

# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that: the tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def make_folder(tmp_path: Path) -> Folder:
    """Writes files, by their relative paths, into a new folder."""
    count = 0

    def make(files: Mapping[str, bytes]) -> Path:
        nonlocal count
        folder = tmp_path / f"source{count}"
        count += 1
        folder.mkdir()
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return make


@pytest.fixture(scope="session")
def photo_files() -> dict[str, bytes]:
    """60 JPEGs of three classes: 30 of "ant", 20 of "bee", 10 of "cat"."""
    classes = ["ant"] * 30 + ["bee"] * 20 + ["cat"] * 10
    return {
        f"{name}/{number:02d}.jpg": encode(photo(number, 24 + number, 20 + number % 7))
        for number, name in enumerate(classes)
    }
