"""Sets that several tests of decoders read."""

from pathlib import Path

import pytest
from mode_sets import pack_sets

from gpuload.cli import main


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of pixels that are not RGB, by their mode."""
    return pack_sets(tmp_path_factory.mktemp("modes"))


@pytest.fixture(scope="session")
def raw(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos as pixels, 24 × 24."""
    out = tmp_path_factory.mktemp("raw")
    options = ["--encode", "raw", "--size", "24", "--fit", "stretch", "--maxcount", "20", "--workers", "1"]
    assert main(["pack", str(photos), str(out), *options]) == 0
    return out / "train"
