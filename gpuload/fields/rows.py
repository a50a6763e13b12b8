"""The rows of a batch, from which fields take their values, and the interface of a bound field to the loader."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.fields.field import Field
from gpuload.store.url import URL
from gpuload.types import F64, I32, I64, U64, Array, ClassNames, HeightWidth


class DatasetView(Protocol):
    """The part of `gpuload.disk.dataset.Dataset` that fields need: its fields, names for messages, and first row."""

    @property
    def folder(self) -> Path | URL: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def classes(self) -> ClassNames: ...

    def require_field(self, name: str) -> Field: ...

    def keys(self, samples: npt.ArrayLike) -> list[str]: ...

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index, as a batch of one row."""


class Crops(NamedTuple):
    """The crop of each image of a batch of N, in pixels of the decoded image, (y, x).

    start, shape: int32 (N, 2), the window to decode. It lies within the image, except that of a crop with a
        `Geometry.outside`, which may extend beyond the image on all sides; what is outside is padding.
    roi_start, roi_end: float32 (N, 2), relative to `start`: the region of the window that becomes the output. The
        window is larger where the resize filter may use pixels beyond the region's edge.
    mirror, mirror_y: int32 (N,), 1 where the output is flipped left to right, and top to bottom.
    sizes: int64 (N, 2), the height and width of each output, where they differ; None where the batch has one size.
    padded: whether outputs of their own sizes are padded to the largest, instead of in a list.

    The region of an image that is `placed` may extend beyond the image, although the window does not.
    """

    start: I32
    shape: I32
    roi_start: npt.NDArray[np.float32]
    roi_end: npt.NDArray[np.float32]
    mirror: I32
    mirror_y: I32
    sizes: I64 | None = None
    padded: bool = False


@dataclass(frozen=True)
class Rows:
    """N samples of a batch, without their pixels.

    columns: the requested index columns, (N,): numbers as NumPy arrays, others as Arrow arrays. Always includes "index"
        and "dataset", int64 (N,): the number of each sample in stored order, and that of its data set.
    members: for fields that stay in the shard, the bytes of their elements: N views, uint8 (bytes,).
    views: the crop and flips of each view of the samples, at least one. sizes: (height, width) of each view's output.
    affines: for each view float64 (N, 2, 3), which maps (x, y, 1) in the cropped, resized and flipped image to (x, y)
        in the final one; or (N, 3, 3) where a perspective is among them, whose last row gives what the first two are
        divided by; or None if no transform moves pixels. Both are measured from the upper left corner of the image, so
        pixel 0 lies between 0 and 1.
        Fields that do not move get None.
    bucket: the number of the batch's bucket; None without buckets. keys: uint64 (N,), of the samples' random numbers.
    """

    columns: Mapping[str, Any]
    members: Mapping[str, Sequence[npt.NDArray[np.uint8]]]
    views: Sequence[Crops]
    sizes: Sequence[HeightWidth]
    affines: Sequence[F64 | None]
    bucket: int | None = None
    keys: U64 | None = None

    def __len__(self) -> int:
        return len(self.columns["index"])

    def sample_name(self, datasets: Sequence[DatasetView], row: int) -> str:
        """The sample in a row of the batch, in messages."""
        dataset = datasets[int(self.columns["dataset"][row])]
        return f"{dataset.folder}: sample {dataset.keys([int(self.columns['index'][row])])[0]!r}"

    def per_view(self, values: "Callable[[Crops, HeightWidth, F64 | None], Value]") -> "Value":
        """The function's result for the view; with several views, a tuple of the results."""
        views = zip(self.views, self.sizes, self.affines, strict=True)
        results = tuple(values(*view) for view in views)
        return results[0] if len(results) == 1 else results


# A tuple is a named one, such as PaddedBoxes, or has a value for each view.
Value = Array | list[Any] | tuple[Any, ...] | dict[str, Any]


class BoundField(ABC):
    """A field bound to data sets, whose values can be taken from their batches.

    name: its key in a dict of outputs. columns: names of the index columns that it needs in `Rows`. members: names of
    the packed fields whose members it needs there. ahead: whether `values` is called where batches are read.
    """

    members: tuple[str, ...] = ()
    ahead = False

    def __init__(
        self, field: Field, columns: tuple[str, ...] = (), spec: Any = None, datasets: Sequence[DatasetView] = ()
    ) -> None:
        self.name, self.columns, self.field, self.spec, self.datasets = field.name, columns, field, spec, datasets
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 -- most have nothing to prepare
        """Checks the spec, and computes what does not depend on a batch.

        Raises:
            ArgumentError: the spec does not fit what was packed.
        """

    @abstractmethod
    def values(self, rows: Rows) -> Value:
        """The field's values for a batch, in memory that is not reused.

        With several views, a field that depends on the view returns a plain tuple of one value per view.

        Raises:
            DecodeError: a sample's value is damaged or cannot be batched with the others.
        """


@dataclass(frozen=True)
class PixelField:
    """A field whose values the decoder computes: the image or a mask. fill: the value of pixels outside of it."""

    name: str
    kind: str
    fill: int = 0


class BoundIntegers(BoundField):
    """int64 (N,): "label", "index" (number of the sample in stored order) or "dataset" (number of its data set)."""

    def values(self, rows: Rows) -> I64:
        numbers: I64 = np.array(rows.columns[self.name], np.int64)
        return numbers
