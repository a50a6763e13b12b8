"""A copy of the packed set, to damage."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "train"))
