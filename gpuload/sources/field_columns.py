"""The fields of a listing and their columns, collected one field after another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuload.fields.field import Field
from gpuload.fields.kind import Columns
from gpuload.fields.registry import KINDS
from gpuload.types import ClassNames


class FieldColumns:
    """What a source knows of its samples besides their images.

    title: of the source; opens every message.
    fields, columns: for `Listing` and its table. classes: names by class number, once there is a field with classes of
        the whole set; None without names.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self.fields: list[Field] = []
        self.columns: Columns = []
        self.classes: ClassNames = None

    def add(self, kind: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = "") -> None:
        """Adds a field of this kind out of a value for each sample; see `Kind.parse`.

        Raises:
            SourceError: a value is not of this kind.
        """
        field, columns = KINDS[kind].parse(self._title, name, values, classes, detail)
        if KINDS[kind].names_set_classes:
            self.classes, field = field.classes, replace(field, classes=None)
        self.fields.append(field)
        self.columns += columns
