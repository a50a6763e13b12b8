"""JPEGs that are cut off or have bits flipped inside their scan, on each unit of a GPU.

A GPU need not notice damage inside a scan. What is asked for is that the process lives, that an error names the sample,
and that the other images of the batch are what they were.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jpegs
import numpy as np
import pytest
import torch
from gpu_decoders import DECODERS, Load, params

import gpuload

IMAGES, BAD = 24, 13  # in batches of 8, the second one's
AUGMENT = gpuload.Augment(48, crop="none", dtype="uint8")


def flipped(data: bytes, seed: int) -> bytes:
    """20 bits of the second half, where the scan is; no marker is made, so that only coefficients differ."""
    rng = np.random.default_rng(seed)
    found = bytearray(data)
    for place in rng.integers(len(found) // 2, len(found) - 2, 20).tolist():
        changed = found[place] ^ 1 << int(rng.integers(7))
        if 0xFF not in (found[place - 1], found[place], changed):
            found[place] = changed
    return bytes(found)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut at a quarter": lambda data: data[: len(data) // 4],
    "cut near its end": lambda data: data[: len(data) - 40],
    "without its end": lambda data: data[:-2],
    "flipped": lambda data: flipped(data, 1),
    "flipped otherwise": lambda data: flipped(data, 2),
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
}


def make_set(folder: Path, damage: Callable[[bytes], bytes] | None) -> Path:
    rng = np.random.default_rng(3)
    images = {f"image-{n:02d}": jpegs.encode(jpegs.picture(rng, 180, 150), quality=90) for n in range(IMAGES)}
    if damage is None:
        folder.mkdir()
        return jpegs.write_set(folder, images, shards=1)
    broken = {key: damage(data) if key == f"image-{BAD}" else data for key, data in images.items()}
    folder.mkdir()
    # Indexed as it was: the indexer reads headers alone, which are whole.
    return jpegs.write_set(folder, broken, shards=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("whole") / "set", None)


def read(loader: gpuload.DaliIterator) -> tuple[dict[int, torch.Tensor], str]:
    """The images by index, and the error that ended the epoch, or ""."""
    seen: dict[int, torch.Tensor] = {}
    try:
        for index, images in loader:
            seen |= dict(zip(index.tolist(), images.cpu(), strict=True))
    except gpuload.DecodeError as error:
        return seen, str(error)
    return seen, ""


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("decoder", params("native", "cuda", "hardware", "default"))
def test_a_damaged_scan_harms_no_other_image(
    whole: Path, tmp_path: Path, load: Load, decoder: str, damage: str, record_property: Callable[[str, object], None]
) -> None:
    options: dict[str, Any] = {"augment": AUGMENT, "shuffle": False, "fields": ("index", "image")}
    expected = torch.cat([images.cpu() for _, images in load(whole, 8, DECODERS[decoder], **options)])
    loader = load(make_set(tmp_path / "set", DAMAGE[damage]), 8, DECODERS[decoder], **options)
    seen, said = read(loader)
    if said:
        assert f"sample 'image-{BAD}' does not decode" in said
        assert set(seen) == set(range(8))
        record_property("found", "an error")
    else:
        assert set(seen) == set(range(IMAGES))
        record_property("found", float((seen[BAD].int() - expected[BAD].int()).abs().float().mean()))
    for index, image in seen.items():
        if index != BAD:
            assert torch.equal(image, expected[index])
