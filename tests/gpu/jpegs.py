"""Makes JPEGs of every kind, and sets of them."""

import io
import tarfile
from pathlib import Path

import numpy as np
from images import encode, smooth_image
from PIL import Image

from gpuload.packing.index import index_shards

__all__ = ["KINDS", "encode", "every_kind", "picture", "write_set"]

_SIZES = [(90, 70), (64, 64), (121, 203), (333, 250)]
_EXIF_ORIENTATION = 0x0112

# Options of Pillow's writer; "mode" and "sizes" are ours.
KINDS: dict[str, dict[str, object]] = {
    "420": {"subsampling": 2},
    "422": {"subsampling": 1},
    "444": {"subsampling": 0},
    "gray": {"mode": "L"},
    "progressive": {"progressive": True},
    "cmyk": {"mode": "CMYK"},
    "restart": {"restart_marker_rows": 1, "subsampling": 2},
    "exif": {"orientation": 6},
    "tiny": {"sizes": [(1, 1), (8, 8), (17, 3), (16, 16)]},
    "12-megapixel": {"sizes": [(4000, 3000)]},
}


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Like a photo, with edges between colours, at which decoders that upsample chroma otherwise differ most."""
    image = smooth_image(rng, width, height)
    for _ in range(4):
        left, top = int(rng.integers(width)), int(rng.integers(height))
        colour = tuple(rng.integers(0, 256, 3).tolist())
        image.paste(colour, (left, top, left + max(1, width // 5), top + max(1, height // 5)))
    return image


def make(kind: str, rng: np.random.Generator, width: int, height: int) -> bytes:
    options = {name: value for name, value in KINDS[kind].items() if name != "sizes"}
    image = picture(rng, width, height).convert(str(options.pop("mode", "RGB")))
    if orientation := options.pop("orientation", None):
        exif = Image.Exif()
        exif[_EXIF_ORIENTATION] = orientation
        options["exif"] = exif
    return encode(image, quality=90, **options)


def every_kind() -> dict[str, bytes]:
    """By key, "<kind>-<number>"."""
    rng = np.random.default_rng(0)
    found = {}
    for kind, options in KINDS.items():
        sizes: list[tuple[int, int]] = options.get("sizes", _SIZES)  # type: ignore[assignment]
        for number, (width, height) in enumerate(sizes):
            found[f"{kind}-{number}"] = make(kind, rng, width, height)
    return found


def write_set(folder: Path, images: dict[str, bytes], shards: int) -> Path:
    """Shards of images as they are, each with a label, its number modulo 5, and their index.

    The packer would make plain JPEGs of what is not: CMYK or turned by EXIF. In shards of others they lie as they are.
    """
    members = [(key, image, str(number % 5).encode()) for number, (key, image) in enumerate(images.items())]
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for key, image, label in members[shard::shards]:
                for name, data in ((f"{key}.jpg", image), (f"{key}.cls", label)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    index_shards([str(folder / "*.tar")])
    return folder
