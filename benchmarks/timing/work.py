"""The task that every contender gets, and what a contender is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Batches: images and labels, both with a length.
Batches = Iterable[tuple[Any, Any]]

# ImageNet's, for pixels in 0..1 (torchvision's pretrained weights). Defined here, since a peer may run without gpuload.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Work(NamedTuple):
    """Batches of randomly cropped, or whole, flipped, normalised images from a packed folder.

    folder: one split. threads: worker processes or decoding threads. images: per round, without the warm-up.
    dtype: "float32" or "float16". cache: folder for the set in the peers' formats. raw: the set stores pixels.
    samples: number of samples in the set. largest: largest width and height in the set, in pixels; 0 if unknown.
    whole: images are resized whole, without a crop.
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
    whole: bool = False

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("*.tar"))

    def set_folder(self, data: str) -> Path:
        """Of a set that was made for a feature; "": of the one that is measured."""
        return self.cache / data / "set" / "train" if data else self.folder


Open = Callable[..., AbstractContextManager[Batches]]


@dataclass(frozen=True)
class Contender:
    """A loader that takes part in the benchmark.

    open: `open(work)` gives an iterable of batches; each pass over it is an epoch, without a last, smaller batch.
        If the iterable has `state_dict`, `open(work, state=…)` resumes from that state.
    package: the package to import, named in the message if it is missing. distribution: its name for pip.
    prepare: writes the set in the peer's format into an empty folder.
    jpeg, raw: whether it loads sets of JPEGs, of pixels.
    with_state: further arguments of `open` when a state will be taken, if that has a cost. without_end: those for
        batches without an epoch's end, which would drain the loader's queues. data: name of its folder in the cache,
        which contenders may share; by default its own. channels: of its images. one_size: whether all of its
        batches have the work's size. if_asked: whether it takes part only where it is named.
    """

    name: str
    what: str
    open: Open
    package: str | None = None
    distribution: str | None = None
    prepare: Callable[[Work, Path], None] | None = None
    device: str = "cpu"
    jpeg: bool = True
    raw: bool = False
    with_state: Mapping[str, Any] = field(default_factory=dict)
    without_end: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    channels: int = 3
    one_size: bool = True
    if_asked: bool = False

    def folder(self, work: Work) -> Path:
        """The folder of its data: its own format in the cache, or the shards."""
        return (
            work.cache / (self.data or self.name.removesuffix("-gpu"))
            if self.prepare
            else work.folder
        )
