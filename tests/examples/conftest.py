"""The digits that the demo uses, packed with the real packer."""

from collections.abc import Iterator
from pathlib import Path

import digits
import pytest
import torch

from gpuload.cli import main

SAMPLES, VAL_SAMPLES = 1797, 179


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/ and val/, ten classes, in shards of 200."""
    images, out = tmp_path_factory.mktemp("digits"), tmp_path_factory.mktemp("packed-digits")
    assert digits.main([str(images)]) == 0
    assert main(["pack", str(images), str(out), "--val", "0.1", "--maxcount", "200", "--workers", "2"]) == 0
    return out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in torch depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
