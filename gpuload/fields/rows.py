"""What a batch brings to its fields, and what a field makes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.types import F64, I32, Array, HeightWidth

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset


class View(Protocol):
    """How each output image of a batch came out of the stored one; all in its pixels, (y, x).

    start: int32 (N, 2), negative where the image is padded. roi_start, roi_end: float32 (N, 2), relative to `start`:
    what lies between them is stretched over the output. mirror, mirror_y: int32 (N,), 1 where the output is then
    flipped left to right, and top to bottom.
    """

    @property
    def start(self) -> I32: ...
    @property
    def roi_start(self) -> npt.NDArray[np.float32]: ...
    @property
    def roi_end(self) -> npt.NDArray[np.float32]: ...
    @property
    def mirror(self) -> I32: ...
    @property
    def mirror_y(self) -> I32: ...


@dataclass(frozen=True)
class Rows:
    """N samples of a batch, without their pixels.

    columns: index columns that were asked for, (N,): numbers as NumPy arrays, others as one Arrow array. "index" and
        "dataset", int64 (N,), are always there: the number of each sample in stored order, and its data set's.
    members: of fields that stay in the shard, the bytes of their elements: N views, uint8 (bytes,).
    views: how each view of the samples came about, one at least; sizes: (height, width) of its output.
    affines: of each view float64 (N, 2, 3), the map from (x, y, 1) in the output as cropped, resized and flipped to
        (x, y) in the output as it is, or None where nothing was moved since. Both count from the upper left corner of
        the image, so that pixel 0 lies between 0 and 1.
    """

    columns: Mapping[str, Any]
    members: Mapping[str, Sequence[npt.NDArray[np.uint8]]]
    views: Sequence[View]
    sizes: Sequence[HeightWidth]
    affines: Sequence[F64 | None]

    def __len__(self) -> int:
        return len(self.columns["index"])

    def sample_name(self, datasets: "Sequence[Dataset]", place: int) -> str:
        """What messages call the sample at a place of the batch."""
        dataset = datasets[int(self.columns["dataset"][place])]
        return f"{dataset.folder}: sample {dataset.keys([int(self.columns['index'][place])])[0]!r}"

    def per_view(self, values: "Callable[[View, HeightWidth, F64 | None], Value]") -> "Value":
        """What a function gives for the view; of several views, a tuple of what it gives for each."""
        views = zip(self.views, self.sizes, self.affines, strict=True)
        found = tuple(values(*view) for view in views)
        return found[0] if len(found) == 1 else found


class PaddedBoxes(NamedTuple):
    """The boxes of N images; M is the largest number of them in one.

    boxes: float32 (N, M, 4), 0 behind the last. labels: int64 (N, M), their class numbers, -1 behind the last.
    counts: int64 (N,), how many each image has.
    """

    boxes: Any
    labels: Any
    counts: Any


class PaddedTokens(NamedTuple):
    """N arrays of tokens. values: int64 (N, L), padded behind their ends. lengths: int64 (N,), without the padding."""

    values: Any
    lengths: Any


Value = Array | list[Any] | PaddedBoxes | PaddedTokens | tuple["Value", ...]


class BoundField(Protocol):
    """A field of certain data sets, ready to be taken out of batches.

    name: its key in a dict of outputs. columns, members: what it needs of `Rows`; members are names of packed fields.
    """

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def members(self) -> tuple[str, ...]: ...

    def values(self, rows: Rows) -> Value:
        """The field of a batch, in memory that nobody else writes to.

        What depends on the view is, with more than one, a plain tuple of a value for each view.

        Raises:
            DecodeError: a sample's value does not fit those of the others, or is damaged.
        """


@dataclass(frozen=True)
class PixelField:
    """A field whose values the decoder makes: the image, or a mask. fill: where there is no pixel of it."""

    name: str
    kind: str
    fill: int = 0
