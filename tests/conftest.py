"""Fixtures: folders of images, and a set of small photo-like images packed with the real packer."""

import faulthandler
import gc
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import calm_threads  # noqa: F401 - before NumPy and torch
import check_torchvision
import numpy as np
import packed_fields
import prepared
import pytest
from hypothesis import settings
from images import Folder, encode, photo, smooth_image, write_files
from loaders import skip_without_dali
from reading import files_of
from shuffled import pytest_addoption, pytest_collection_modifyitems  # noqa: F401

import gpuload
from gpuload.cli import main

CLASSES = ("ant", "bee", "cat")
SAMPLES = 97  # a prime: no batch size or world size divides it

# No test depends on time or chance: on a busy machine, an example that compiles or reads first may take any, and the
# examples are the same each time. `pytest --hypothesis-profile default` draws others.
settings.register_profile("gpuload", deadline=None, derandomize=True)
settings.load_profile("gpuload")

# Without an address, Ray joins any cluster that runs on the machine, another test's too, and then refuses `num_cpus`.
os.environ["RAY_ADDRESS"] = "local"

# A shell starts background processes with SIGINT ignored, and children inherit that; but the tests send SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """SIGUSR1, which .ci/run sends where the suite hangs, prints the stacks of all threads before it ends a process."""
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=os.dup(2), chain=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test of DALI's decoder where that is missing, before its fixtures are made."""
    call: Any = getattr(item, "callspec", None)
    if call is not None:
        skip_without_dali(call.params.get("decoder"))


def pytest_report_header() -> str | None:
    """Says before the tests, which pytest alone may have started, why some of them are going to fail."""
    return check_torchvision.problem()


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """The collector does not look again at what was imported: torch, JAX and others are a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def make_folder(tmp_path: Path) -> Folder:
    """Writes files, given by their relative paths, into a new folder."""
    count = 0

    def make(files: Mapping[str, bytes]) -> Path:
        nonlocal count
        folder = tmp_path / f"source{count}"
        count += 1
        folder.mkdir()
        write_files(folder, files)
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


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        image = smooth_image(rng, *(int(side) for side in rng.integers(40, 130, 2)))
        write_files(folder, {f"{CLASSES[number % len(CLASSES)]}/{number:03d}.jpg": encode(image, quality=90)})
    return folder


@contextmanager
def unchanged(folder: Path) -> Iterator[Path]:
    """A folder that all tests of a process share: these end with an error if one of them has changed it."""
    files = files_of(folder)
    yield folder
    assert files_of(folder) == files, f"a test has changed {folder}, which others share: it is to use `copy`"


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """97 samples in ten shards: nine of 10 samples and one of 7."""
    out = tmp_path_factory.mktemp("packed")
    assert main(["pack", str(photos), str(out), "--maxcount", "10", "--workers", "2"]) == 0
    with unchanged(out / "train") as split:
        yield split


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A copy of the packed set, to damage."""
    return Path(shutil.copytree(packed, tmp_path / "train"))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    """Every kind of field: eleven samples in this order, in shards of 4, 4 and 3."""
    points = {"keypoints": [[1, 1, 2, 3, 3, 2]]}
    samples = [{**packed_fields.sample(number), **points} for number in range(packed_fields.COUNT)]
    return packed_fields.pack(tmp_path_factory.mktemp("fields"), samples)


@pytest.fixture(scope="session")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images that show their masks, boxes and keypoints."""
    return importlib.import_module("painted").pack_painted(tmp_path_factory.mktemp("painted"), count=40)


@pytest.fixture(params=["native", "dali"])
def decoder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def quick_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are started are forks of a process that has imported what they import."""
    monkeypatch.setattr(sys, "executable", prepared.executable(tmp_path))


@pytest.fixture(scope="session")
def transforms() -> ModuleType:
    """torchvision.transforms.v2, which also works with a CPU-only torch."""
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("torchvision.transforms.v2")
