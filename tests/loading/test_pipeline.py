"""The DALI graph: that its GPU half can be defined, and what is said where DALI is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from nvidia.dali import Pipeline

from gpuload.augment import Augment
from gpuload.decoder import Largest
from gpuload.pipeline import operators


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("augment", [Augment(8), Augment(8, crop="center", dtype="uint8", layout="channels_last")])
def test_the_gpu_graph_can_be_defined(augment: Augment, raw: bool) -> None:
    """Without a GPU too: DALI checks the names of operators and of their arguments when a graph is defined."""
    with Pipeline(batch_size=4, num_threads=1, device_id=0):
        assert operators(augment, Largest(640, 480, 1), raw, lambda: ()).device == "gpu"
    with Pipeline(batch_size=4, num_threads=1, device_id=None):
        assert operators(augment, Largest(640, 480, 1), raw, lambda: ()).device == "cpu"


def test_without_dali_the_cpu_still_loads_and_it_is_said_which_extra_brings_it(packed: Path) -> None:
    code = (
        "import sys; sys.modules['nvidia.dali'] = None\n"
        "import gpuload\n"
        f"options = dict(data={str(packed)!r}, batch_size=8, augment=gpuload.Augment(12))\n"
        "print(len(next(iter(gpuload.DaliIterator(**options)))[0]))\n"
        "for choice in (dict(decoder='dali'), dict(device='cuda')):\n"
        "    try: gpuload.DaliIterator(**options, **choice)\n"
        "    except gpuload.MissingPackageError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "8"
    assert len(said) == 3
    assert all("NVIDIA DALI is not installed" in line and "pip install 'gpuload[cuda13]'" in line for line in said[1:])
