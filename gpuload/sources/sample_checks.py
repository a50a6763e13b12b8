"""Mistakes in samples that come as dicts, told by the number of the sample."""

from collections.abc import Mapping
from typing import Any

from gpuload.errors import SourceError


class SampleChecks:
    """Looks at one sample after the other. title: of their source; opens every message."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._label_type: type | None = None

    def check(self, number: int, sample: Any) -> None:
        """Raises SourceError where this is no dict with an image, or has a label that is none."""
        if not isinstance(sample, Mapping):
            raise self._error(
                number, f"is a {type(sample).__name__}, not a dict", 'Give such as {"image": image, "label": label}'
            )
        if "image" not in sample:
            raise self._error(number, f"has no 'image', only {sorted(map(str, sample))}", "Give it one")
        if "label" in sample:
            self._check_label(number, sample["label"])
        if "labels" in sample and not _is_list(sample["labels"]):
            raise self._error(
                number,
                f"has the labels {str(sample['labels'])[:60]!r}, which are no list",
                "Give a list, or one 'label'",
            )

    def _check_label(self, number: int, given: Any) -> None:
        label = given.tolist() if hasattr(given, "tolist") else given
        if label is None or label == "":
            raise self._error(
                number,
                f"has no label, but {label!r}",
                "Give it one or leave it out; for a set without labels leave 'label' out of every sample",
            )
        if isinstance(label, float):
            raise self._error(
                number,
                f"has the label {label}, a float",
                "Give whole numbers or names for classes; for a number to be predicted call it by another name, "
                "such as 'target'",
            )
        if not isinstance(label, (int, str)):
            raise self._error(
                number,
                f"has the label {str(label)[:60]}, a {type(given).__name__}",
                "Give the number of its class, or its name; several of them are 'labels'",
            )
        kind = str if isinstance(label, str) else int
        if self._label_type not in (None, kind):
            raise self._error(
                number,
                f"has the label {label!r}, those before are {'names' if kind is int else 'numbers'}",
                "Give numbers or names for all",
            )
        self._label_type = kind

    def _error(self, number: int, what: str, advice: str) -> SourceError:
        return SourceError(f"{self._title}: sample {number} {what}. {advice}")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1
