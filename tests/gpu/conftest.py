"""Decoders that take work off the CPU, and sets of every kind of JPEG.

    pytest -m gpu tests/gpu           # on a machine with an NVIDIA GPU
    pytest tests/gpu                  # anywhere: "native" stands in for the GPU, so that the tests themselves are tested

The reference is always DALI's graph on the CPU.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_decoders import DECODERS, Load, deterministic, every_kind, params, picture, write_pairs, write_set
from images import encode

import gpuload


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU, and torch built for it (extra cuda13 or cuda12)")


@pytest.fixture(params=params("native", "default", "copied", "both"))
def accelerated(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What opens the loader under test."""
    return DECODERS[request.param]


@pytest.fixture(params=params("native", "default", "copied", "both"))
def exact(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The same, for tests that compare bits: one unit of the GPU decodes all images."""
    return deterministic(request.param)


@pytest.fixture
def load() -> Iterator[Load]:
    """Opens loaders, and closes them afterwards."""
    with ExitStack() as opened:

        def load(folder: Path, batch_size: int, decoder: dict[str, Any], **options: Any) -> gpuload.DaliIterator:
            usual: Any = {"augment": gpuload.Augment(48), "num_threads": 2}
            return opened.enter_context(gpuload.DaliIterator(folder, batch_size, **{**usual, **decoder, **options}))

        yield load


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of every kind of JPEG, as WebDataset shards of others hold them."""
    return write_set(tmp_path_factory.mktemp("kinds"), every_kind())


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 small images of many sizes, in four shards."""
    rng = np.random.default_rng(1)
    images = {
        f"mixed-{number:03d}": encode(picture(rng, *rng.integers(24, 200, 2).tolist()), quality=90)
        for number in range(96)
    }
    return write_set(tmp_path_factory.mktemp("mixed"), images, shards=4)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples of several pictures."""
    return write_pairs(tmp_path_factory.mktemp("pairs"), 24)
