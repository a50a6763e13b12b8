"""What every contender is asked to do."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# What passes for one batch: images (or encoded samples) and labels, both with a length.
Batches = Iterable[tuple[Any, Any]]


class Work(NamedTuple):
    """Batches of randomly cropped, flipped, normalised float32 images, from a packed folder, without end.

    folder: one split. threads: worker processes or threads that decode. images: of one round, without the warm-up.
    """

    folder: Path
    batch_size: int
    size: int
    threads: int
    images: int


@dataclass(frozen=True)
class Contender:
    """A loader that the benchmark knows.

    open: gives an iterable of batches; each pass over it is an epoch, as short as drop_last makes it.
    reads_only: its batches are encoded samples, not images.
    """

    name: str
    what: str
    open: Callable[[Work], AbstractContextManager[Batches]]
    device: str = "cpu"
    package: str | None = None
    reads_only: bool = False
