"""Class numbers: one a sample, or several."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.errors import ArgumentError
from gpuload.fields.ragged import flat, lengths_of, rows_of
from gpuload.fields.rows import Rows
from gpuload.fields.spec import MultiHot, OneHot, describe
from gpuload.types import I64, ClassNames

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset

BACKGROUND = "background"  # the packer's name for the class of images in which there is nothing


class BoundOneHot:
    """float32 (N, K), see `OneHot`.

    Raises:
        ArgumentError: the number of classes is unknown, or too small for those that have names.
    """

    members: tuple[str, ...] = ()

    def __init__(self, spec: OneHot, names: ClassNames, datasets: "Sequence[Dataset]") -> None:
        self.name, self.columns, self._datasets = spec.name, (spec.name,), tuple(datasets)
        if not names:
            self._num_classes = _known(spec, datasets)
            foreground = np.arange(self._num_classes - spec.background)
        else:
            foreground = np.flatnonzero(np.array(names) != BACKGROUND)
            needed = len(foreground) + spec.background
            self._num_classes = needed if spec.num_classes is None else spec.num_classes
            if self._num_classes < needed:
                raise ArgumentError(
                    f"{describe(spec)[:-1]}, num_classes={spec.num_classes}): {datasets[0].folder} needs {needed} for "
                    "its named classes. Leave it out, or filter the data set"
                )
        # Column of each class, -1 for none; the last entry is that of a negative class.
        self._column_of = np.full((len(names) if names else len(foreground)) + 1, 0 if spec.background else -1)
        self._column_of[foreground] = np.arange(len(foreground)) + spec.background

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        numbers = np.maximum(rows.columns[self.name], -1)
        _check_known(self, rows, self._datasets, numbers, np.arange(len(rows)), len(self._column_of) - 1)
        columns = self._column_of[numbers]
        places = np.flatnonzero(columns >= 0)
        hot = np.zeros((len(rows), self._num_classes), np.float32)
        hot[places, columns[places]] = 1
        return hot


class BoundMultiHot:
    """float32 (N, K), see `MultiHot`.

    Raises:
        ArgumentError: the number of classes is unknown, or too small for those that have names.
    """

    members: tuple[str, ...] = ()

    def __init__(self, spec: MultiHot, names: ClassNames, datasets: "Sequence[Dataset]") -> None:
        self.name, self.columns, self._datasets = spec.name, (spec.name,), tuple(datasets)
        if names is not None and spec.num_classes is not None and spec.num_classes < len(names):
            raise ArgumentError(
                f"{describe(spec)[:-1]}, num_classes={spec.num_classes}): {datasets[0].folder} has {len(names)} named "
                "classes. Leave it out"
            )
        self._num_classes = len(names) if names and spec.num_classes is None else _known(spec, datasets)

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        labels = rows.columns[self.name]
        places, numbers = rows_of(lengths_of(labels)), flat(labels)
        _check_known(self, rows, self._datasets, numbers, places, self._num_classes)
        hot = np.zeros((len(rows), self._num_classes), np.float32)
        hot[places, numbers] = 1
        return hot


def _known(spec: OneHot | MultiHot, datasets: "Sequence[Dataset]") -> int:
    if spec.num_classes is None:
        raise ArgumentError(
            f"{describe(spec)}: the classes in {datasets[0].folder} have no names, so that their number is not known. "
            f"Use {describe(spec)[:-1]}, num_classes=…)"
        )
    return spec.num_classes


def _check_known(
    field: BoundOneHot | BoundMultiHot,
    rows: Rows,
    datasets: "Sequence[Dataset]",
    numbers: I64,
    places: I64,
    known: int,
) -> None:
    """places: of each class number, its sample's place in the batch."""
    if numbers.max(initial=-1) >= known:
        wrong = int(np.argmax(numbers >= known))
        raise ArgumentError(
            f"{rows.sample_name(datasets, int(places[wrong]))} has class {numbers[wrong]} in {field.name!r}, and "
            f"{known} classes were expected, numbered from 0. Give a larger num_classes"
        )
