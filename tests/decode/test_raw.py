"""Sets of pixels as they are: the same pixels come out, cropped and resized as encoded ones."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from loaders import drain, load

import gpuload
from gpuload import Augment


def stored(folder: Path) -> dict[str, np.ndarray]:
    """By key, as tar and NumPy read them."""
    pixels = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                if member.name.endswith(".npy"):
                    pixels[member.name[:-4]] = np.load(io.BytesIO(archive.extractfile(member).read()))
    return pixels


def test_pixels_come_out_as_they_were_packed(raw: Path, decoder: str) -> None:
    expected = stored(raw)
    augment = Augment(24, crop="none", dtype="uint8", layout="channels_last")
    seen = 0
    for images, keys in load(raw, 10, augment=augment, fields=("image", "key"), decoder=decoder, drop_last=False):
        for image, key in zip(images.permute(0, 2, 3, 1).numpy(), keys, strict=True):
            np.testing.assert_array_equal(image, expected[key])
            seen += 1
    assert seen == len(expected) == 97


def test_pixels_and_encoded_images_mix_in_the_cpu_decoder_only(raw: Path, packed: Path) -> None:
    mixture = gpuload.mix([(raw, 1), (packed, 1)])
    for decoder in ("dali", "both"):
        with pytest.raises(gpuload.ArgumentError, match=r"encoded images and another raw ones.*decoder='native'"):
            load(mixture, decoder=decoder)
    assert len(drain([load(mixture, 10, decoder="native")])) == 190
