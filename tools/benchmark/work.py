"""What every contender is asked to do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# What passes for one batch: images (or encoded samples) and labels, both with a length.
Batches = Iterable[tuple[Any, Any]]

# Of ImageNet, for pixels in 0..1 (torchvision's pretrained weights). Here, since a peer may run where gpuload is not.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Work(NamedTuple):
    """Batches of randomly cropped, flipped, normalised images from a packed folder.

    folder: one split. threads: worker processes or threads that decode. images: of one round, without the warm-up.
    dtype: "float32" or "float16". cache: where peers keep the set in their own formats. raw: it is stored as pixels.
    samples: in the set. largest: width and height of the largest images, in pixels; 0 if unknown.
    """

    folder: Path
    batch_size: int
    size: int
    threads: int
    images: int
    dtype: str = "float32"
    cache: Path = Path("cache")
    raw: bool = False
    samples: int = 0
    largest: Sequence[int] = (0, 0)

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("*.tar"))


Open = Callable[..., AbstractContextManager[Batches]]


@dataclass(frozen=True)
class Contender:
    """A loader that the benchmark knows.

    open: `open(work)` gives an iterable of batches; each pass over it is an epoch, as short as drop_last makes it.
        Where the iterable has `state_dict`, `open(work, state=…)` goes on where that was taken.
    package: the one to import, and to be named where it is missing. distribution: the name that pip knows it by.
    prepare: writes the set in the peer's format, into a folder that is still empty.
    jpeg, raw: whether it loads sets of JPEGs, of pixels. reads_only: its batches are encoded samples, not images.
    with_state: what `open` is told besides where a state is to be taken, if that is not free of cost.
    """

    name: str
    what: str
    open: Open
    device: str = "cpu"
    package: str | None = None
    reads_only: bool = False
    distribution: str | None = None
    prepare: Callable[[Work, Path], None] | None = None
    jpeg: bool = True
    raw: bool = False
    with_state: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, work: Work) -> Path:
        """Where its data lie: its own format in the cache, or the shards."""
        return work.cache / self.name.removesuffix("-gpu") if self.prepare else work.folder
