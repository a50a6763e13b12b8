"""The rows of a batch, from which fields take their values, and what a field looks like to the loader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.fields.field import Field
from gpuload.types import F64, I32, Array, ClassNames, HeightWidth


class DatasetView(Protocol):
    """What fields need of a data set (`gpuload.disk.dataset.Dataset`): names for messages, and its first row."""

    @property
    def folder(self) -> Path: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def classes(self) -> ClassNames: ...

    def require_field(self, name: str) -> Field: ...

    def keys(self, samples: npt.ArrayLike) -> list[str]: ...

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index, as a batch of one."""


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
    views: the crop and flips of each view of the samples, one at least; sizes: (height, width) of its output.
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

    def sample_name(self, datasets: Sequence[DatasetView], row: int) -> str:
        """What messages call the sample in a row of the batch."""
        dataset = datasets[int(self.columns["dataset"][row])]
        return f"{dataset.folder}: sample {dataset.keys([int(self.columns['index'][row])])[0]!r}"

    def per_view(self, values: "Callable[[View, HeightWidth, F64 | None], Value]") -> "Value":
        """The function's result for the view; with several views a tuple of its results for each."""
        views = zip(self.views, self.sizes, self.affines, strict=True)
        found = tuple(values(*view) for view in views)
        return found[0] if len(found) == 1 else found


Value = Array | list[Any] | tuple[Any, ...]  # tuples: named ones, such as PaddedBoxes, or a value for each view


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
