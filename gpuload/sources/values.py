"""Classes, targets, labels and boxes as people write them, turned into columns of a listing.

Each function takes a value a sample and gives the field and its Arrow columns. `where` opens every message.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields import parsing
from gpuload.fields.field import LABEL, Field
from gpuload.fields.kind import Columns as Columns
from gpuload.fields.registry import KINDS
from gpuload.types import ClassNames


def class_column(where: str, labels: pa.ChunkedArray, classes: ClassNames = None) -> tuple[Columns, ClassNames]:
    field, columns = KINDS["class"].parse(where, "label", labels, classes)
    return columns, field.classes


def target_column(where: str, name: str, rows: Sequence[Any]) -> tuple[Field, Columns]:
    return KINDS["target"].parse(where, name, rows)


def labels_column(
    where: str, name: str, rows: Sequence[Sequence[Any]], classes: ClassNames = None
) -> tuple[Field, Columns]:
    return KINDS["labels"].parse(where, name, rows, classes)


def boxes_column(
    where: str, name: str, boxes: Sequence[Any], box_classes: Sequence[Sequence[Any]], classes: ClassNames = None
) -> tuple[Field, Columns]:
    return KINDS["boxes"].parse(where, name, list(zip(boxes, box_classes, strict=True)), classes)


def caption_column(where: str, name: str, texts: Sequence[Any]) -> tuple[Field, Columns]:
    return KINDS["caption"].parse(where, name, texts)


def json_column(name: str, values: Sequence[Any]) -> tuple[Field, Columns]:
    return KINDS["json"].parse("", name, values)


def label_field(columns: Columns) -> tuple[Field, Columns]:
    return LABEL, columns


def parse_list(text: Any) -> list[Any]:
    try:
        return parsing.parse_list(text)
    except ValueError as error:
        raise SourceError(str(error)) from None
