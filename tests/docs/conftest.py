"""The folder in which the snippets of docs/ and the notebooks are run."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from images import encode, smooth_image, write_files
from snippets import PROGRAMS, ROOT

from gpuload import cli

CLASSES = ("bridge", "dragonfly", "fossa", "wine")


@pytest.fixture(scope="session")
def pages_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/<class>/<image>.jpg, and shards/train and shards/val packed from them."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    for number in range(320):
        image = smooth_image(rng, *(int(side) for side in rng.integers(80, 200, 2)))
        write_files(folder, {f"photos/{CLASSES[number % 4]}/{number:03d}.jpg": encode(image, quality=90)})
    arguments = ["--val", "0.1", "--maxcount", "64", "--workers", "1"]
    assert cli.main(["pack", str(folder / "photos"), str(folder / "shards"), *arguments]) == 0
    return folder


@pytest.fixture
def page_folder(pages_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it for one page, which is the current folder; with the repository's programs."""
    folder = tmp_path / "page"
    shutil.copytree(pages_folder, folder)
    for name in PROGRAMS:
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder
