"""Schemes of other packages: the one of docs/remote.md, as a package that is installed, by its contract suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import ROOT, blocks

import gpuload

pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")

(PROGRAM,) = (
    block.text for block in blocks((ROOT / "docs" / "remote.md").read_text()) if "class ShelfScheme" in block.text
)
SUITE = """
import gpuload.testing
from shelf import ShelfScheme


class TestShelf(gpuload.testing.SchemeTests):
    kind = ShelfScheme

    def make(self, folder):
        (folder / "shelf").mkdir(exist_ok=True)
        return f"shelf://photos{folder}/shelf"
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the package of the page."""
    folder = tmp_path / "installed"
    info = folder / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "shelf.py").write_text(PROGRAM)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpuload.stores]\nshelf = shelf:ShelfScheme\n")
    return folder


def test_the_scheme_of_the_page_fulfils_the_contract(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_shelf.py").write_text(SUITE)
    paths = os.pathsep.join([str(installed), str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "GPULOAD_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shelf.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_elsewhere_the_scheme_is_unknown() -> None:
    with pytest.raises(gpuload.ArgumentError, match="cannot be read from here, expected a path, or a URL of s3, gs"):
        gpuload.Dataset("shelf://photos/train")
