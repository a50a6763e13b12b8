"""The number of classes of a field, and the check that a batch's class numbers are below it."""

from collections.abc import Sequence

import numpy as np

from gpuload.counted import counted
from gpuload.errors import ArgumentError
from gpuload.fields.kind import FieldSpec, describe
from gpuload.fields.rows import DatasetView, Rows
from gpuload.types import I64


def known_count(spec: FieldSpec, num_classes: int | None, datasets: Sequence[DatasetView]) -> int:
    """num_classes of a spec whose classes have no names; raises ArgumentError if it was not given."""
    if num_classes is None:
        raise ArgumentError(
            f"{describe(spec)}: the number of classes is unknown, since the classes in {datasets[0].folder} have no "
            f"names. Use {describe(spec)[:-1]}, num_classes=…)"
        )
    return num_classes


def check_classes(
    name: str,
    rows: Rows,
    datasets: Sequence[DatasetView],
    numbers: I64,
    sample_rows: I64,
    known: int,
) -> None:
    """Raises ArgumentError unless all class numbers are below `known`.

    numbers: int64 (T,). sample_rows: int64 (T,), the row in the batch of each number's sample.
    """
    if numbers.max(initial=-1) >= known:
        wrong = int(np.argmax(numbers >= known))
        raise ArgumentError(
            f"{rows.sample_name(datasets, int(sample_rows[wrong]))}: its {name!r} has class {numbers[wrong]}, expected "
            f"{counted(known, 'class', 'classes')}, numbered from 0. Give a larger num_classes"
        )
