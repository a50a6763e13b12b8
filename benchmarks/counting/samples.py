"""The samples of every loader: small JPEGs, numbered from 0, as bytes and in tar files."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

# Both are divisible by 1, 2 and 3 ranks with two workers each and by the global batch, so no loader has a remainder.
SAMPLES = 504
SHARDS = 12


def samples() -> Iterator[tuple[int, bytes]]:
    """(number, JPEG) of each sample."""
    for number in range(SAMPLES):
        jpeg = io.BytesIO()
        Image.new("RGB", (16, 16), (number % 256, number // 256, 128)).save(
            jpeg, "JPEG"
        )
        yield number, jpeg.getvalue()


def write_tars(folder: Path, shards: int = SHARDS) -> None:
    """WebDataset shards: NUMBER.jpg, and NUMBER.cls with the number in it."""
    folder.mkdir(parents=True, exist_ok=True)
    numbered = samples()
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard:06d}.tar", "w") as tar:
            for _ in range(SAMPLES // shards):
                number, jpeg = next(numbered)
                _add(tar, f"{number:06d}.jpg", jpeg)
                _add(tar, f"{number:06d}.cls", str(number).encode())


def tars(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
