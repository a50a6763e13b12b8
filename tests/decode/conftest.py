"""Sets that several tests of decoders read."""

from pathlib import Path

import pytest

from gpuload.cli import main


@pytest.fixture(scope="session")
def raw(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos as pixels, 24 × 24."""
    out = tmp_path_factory.mktemp("raw")
    options = ["--encode", "raw", "--size", "24", "--fit", "stretch", "--maxcount", "20", "--workers", "1"]
    assert main(["pack", str(photos), str(out), *options]) == 0
    return out / "train"
