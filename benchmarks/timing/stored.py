"""The samples of a packed folder, read as any WebDataset reader does, so that peers can be measured without gpuload."""

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_JPEG = b"\xff\xd8\xff"  # the first bytes of a JPEG


def is_jpeg(encoded: bytes) -> bool:
    return encoded.startswith(_JPEG)


def stored_images(folder: Path) -> Iterator[bytes]:
    """Each encoded image in stored order, read by gpuload's index."""
    import pillow_loader

    images = pillow_loader.PackedImages(folder, lambda image: image)
    for number in range(len(images)):
        yield images.read(number)


def stored_samples(folder: Path) -> Iterator[tuple[bytes, int]]:
    """(encoded image, or .npy file with uint8 (height, width, 3), and its label) in stored order.

    In a set without labels, each label is 0.
    """
    ends = image_ends(folder)
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for _, members in itertools.groupby(tar, _key):
                image = None
                label = 0
                for member in members:
                    file = tar.extractfile(member)
                    if file is None:
                        continue
                    if member.name.endswith(ends):
                        image = file.read()
                    elif member.name.endswith(".cls"):
                        label = int(file.read())
                if image is not None:
                    yield image, label


def image_ends(folder: Path) -> tuple[str, ...]:
    """How the names of images end, such as (".jpg", ".png")."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    fields = {field["name"]: field for field in manifest["fields"]}
    return tuple(f".{extension}" for extension in fields["image"]["member"].split(";"))


def _key(member: tarfile.TarInfo) -> str:
    """The part of a name that the members of a sample share: up to the first dot after the folders."""
    folders, slash, name = member.name.rpartition("/")
    return folders + slash + name.partition(".")[0]


def stored_arrays(folder: Path) -> Iterator[tuple[np.ndarray, int]]:
    """The same for a set of raw pixels: uint8 (height, width, 3) and its label."""
    for file, label in stored_samples(folder):
        yield np.load(io.BytesIO(file)), label
