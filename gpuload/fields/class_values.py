"""Class numbers of the values that a source gives for classes: numbers, or names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import SourceError, some_of
from gpuload.fields.cells import is_number, is_whole
from gpuload.fields.kind import Origin
from gpuload.types import I64, ClassNames

_CLASSES = (str, int, float, np.number)
_NUMBERS = re.compile(r"\s*\d+(?:[\s,;|]+\d+)*\s*")  # class numbers in one text
_UNLABELLED = (
    "-1 stands for no label, as in test splits: leave these samples out, or pack them by themselves without labels, as "
    "--no-labels does"
)


def number_classes(
    where: Origin,
    name: str,
    values: Sequence[Any],
    classes: ClassNames,
    rows: Sequence[int] | None = None,
) -> tuple[I64, ClassNames]:
    """The class numbers int64 (N,) of numbers, or of names, which are numbered in sorted order; and the names.

    Args:
        where: The source, subject of all messages.
        name: Of the field.
        values: N numbers or names.
        classes: Names by number, if the source knows them.
        rows: The sample of each value; None: there is one value for each sample.

    Raises:
        SourceError: a number is negative or has no name in `classes`, a name is not in `classes`, or a class is neither
            number nor name; two texts are one number, or a text holds several numbers.
    """
    column = _ClassColumn(where, name, values, rows)
    no_classes = [
        value
        for value in values
        if not isinstance(value, _CLASSES) or not str(value).strip()
    ]
    if no_classes:
        is_list = hasattr(no_classes[0], "__len__") and not isinstance(
            no_classes[0], str
        )
        advice = "Give several labels as 'labels', and of one-hot rows the number"
        raise column.refusal(
            "numbers or names", no_classes, *([advice] if is_list else [])
        )
    different = list(dict.fromkeys(values))
    if all(map(is_whole, different)):
        number_of = column.read_numbers(different, classes)
    else:
        column.check_names(different)
        if classes is None:
            column.check_one_each(different)
            classes = tuple(sorted({value.strip() for value in different}))
        number_of = column.look_up(different, classes)
    return np.array([number_of[value] for value in values], np.int64), classes


@dataclass(frozen=True)
class _ClassColumn:
    """The classes of samples, as a source gives them.

    Attributes:
        rows: The sample of each value; None: there is one for each.
    """

    where: Origin
    name: str
    values: Sequence[Any]
    rows: Sequence[int] | None

    def refusal(
        self, expected: str, wrong: Sequence[Any], advice: str = "Correct them"
    ) -> SourceError:
        """The error for some of the values."""
        texts = some_of(sorted(str(value)[:60] for value in wrong))
        first = next(
            number
            for number, value in enumerate(self.values)
            if any(value is refused for refused in wrong)
        )
        row = first if self.rows is None else int(self.rows[first])
        return SourceError(
            f"{self.where}: classes of {self.name!r} must be {expected}; "
            f"found {texts}, first in {self.where.sample(row)}. {advice}"
        )

    def read_numbers(
        self, different: Iterable[Any], classes: ClassNames
    ) -> dict[Any, int]:
        """The class number that each value is, as a number or its text."""
        number_of = {value: int(value) for value in different}
        most = 2**63 if classes is None else len(classes)
        wrong = [value for value, n in number_of.items() if not 0 <= n < most]
        if wrong:
            has_unlabelled = any(number_of[value] == -1 for value in wrong)
            raise self.refusal(
                "numbered from 0" if classes is None else f"in 0..{most - 1}",
                wrong,
                _UNLABELLED if has_unlabelled else "Correct them",
            )
        alike = _written_differently(number_of)
        if alike:
            raise self.refusal(
                "written alike, or with a letter where they are names",
                alike,
                "Correct one of them",
            )
        return number_of

    def check_names(self, different: Sequence[Any]) -> None:
        """Raises SourceError unless all are names."""
        if all(map(is_number, different)):
            raise self.refusal(
                "whole numbers or names; numbers to be predicted are a target (--column target=…)",
                [value for value in different if not is_whole(value)],
            )
        # NaN is a missing name.
        no_names = [value for value in different if not isinstance(value, str)]
        if no_names:
            raise self.refusal("all numbers or all names", no_names)

    def check_one_each(self, different: Sequence[str]) -> None:
        """Raises SourceError if the names are lists of numbers."""
        if all(map(_NUMBERS.fullmatch, different)):
            raise self.refusal(
                "one for each sample",
                [value for value in different if not is_whole(value)],
                "Give --column labels=NAME for a column of several classes",
            )

    def look_up(
        self, different: Iterable[str], classes: Sequence[str]
    ) -> dict[Any, int]:
        """The class number of each name."""
        numbers = {name.strip(): number for number, name in enumerate(classes)}
        unknown = [value for value in different if value.strip() not in numbers]
        if unknown:
            raise self.refusal("in the source's list of classes", unknown)
        return {value: numbers[value.strip()] for value in different}


def _written_differently(number_of: Mapping[Any, int]) -> list[str]:
    """Two texts that are the same number, such as "007" and "7"; [] if there are none."""
    text_of: dict[int, str] = {}
    for value, number in number_of.items():
        if isinstance(value, str):
            first = text_of.setdefault(number, value)
            if first.strip() != value.strip():
                return [first, value]
    return []
