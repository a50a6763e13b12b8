"""The samples that every golden store holds: six small JPEGs, with a class and a caption each."""

from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parent / "golden"
CLASSES = ("cat", "dog", "bird")
COUNT = 6


class TrueSample(NamedTuple):
    """One sample. file: of its JPEG. size: width and height."""

    jpeg: bytes
    label: int
    caption: str
    size: tuple[int, int]
    file: Path


def true_samples() -> list[TrueSample]:
    samples = []
    for number in range(COUNT):
        file = GOLDEN / "truth" / f"{number}.jpg"
        label = number * 2 % len(CLASSES)
        size = (20 + number % 5, 16 + number % 3)
        samples.append(TrueSample(file.read_bytes(), label, f"picture {number}", size, file))
    return samples
