"""How many classes a batch's class numbers may have."""

from collections.abc import Sequence

import numpy as np

from gpuload.errors import ArgumentError
from gpuload.fields.kind import FieldSpec, describe
from gpuload.fields.rows import DatasetView, Rows
from gpuload.types import I64


def known_count(spec: FieldSpec, num_classes: int | None, datasets: Sequence[DatasetView]) -> int:
    """num_classes, where the classes have no names that tell."""
    if num_classes is None:
        raise ArgumentError(
            f"{describe(spec)}: the classes in {datasets[0].folder} have no names, so that their number is not known. "
            f"Use {describe(spec)[:-1]}, num_classes=…)"
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
    """Raises ArgumentError unless each class number is below `known`. sample_rows: of each, its sample's row."""
    if numbers.max(initial=-1) >= known:
        wrong = int(np.argmax(numbers >= known))
        raise ArgumentError(
            f"{rows.sample_name(datasets, int(sample_rows[wrong]))} has class {numbers[wrong]} in {name!r}, and "
            f"{known} classes were expected, numbered from 0. Give a larger num_classes"
        )
