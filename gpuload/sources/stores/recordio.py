"""MXNet's RecordIO: `.rec`, with labels in each record, or lists of them in `.lst`.

A record begins with a mark, and a word of three bits of continuation and 29 of length; its data end at a multiple of
four bytes. Where data hold the mark, a writer cuts them there into several parts, and leaves the mark out. Packed
images begin with a header: a flag, a label as float32, and two numbers. The flag is how many float32 labels follow, or
0 for the one in the header.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuload.sources.annotations import with_boxes
from gpuload.sources.columns import Table
from gpuload.sources.files import Findings
from gpuload.sources.source import Row
from gpuload.sources.stores.pieces import Pieces, StoreFile, opened
from gpuload.sources.stores.store import StoreSource, is_picture, size_of

_MARK = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_BOX_VALUES = (
    5,
    6,
)  # class, corners as parts of the sides, perhaps whether it is difficult
_HEADER_VALUES = 2  # of detection: their number, and the number of values of a box


class RecordIoSource(StoreSource):
    """A file that `im2rec` or `mx.recordio` wrote, or insightface, whose records of people are passed over.

    A label of one number is the class, of several numbers the boxes, where they are such as im2rec packs them, else a
    target.
    """

    form = "MXNet's RecordIO of packed images"
    suffixes = (".rec",)

    def table(self, path: Path, findings: Findings) -> Table:
        names = _names_in(path.with_suffix(".lst"))
        return Table(("image", "label"), _rows(path, names, findings))


def _names_in(path: Path) -> dict[int, str]:
    """The names of images by their numbers, from the list that im2rec packed."""
    if not path.is_file():
        return {}
    lines = path.read_text("utf-8", "replace").splitlines()
    cells = [line.split("\t") for line in lines if line.strip()]
    return {int(row[0]): row[-1] for row in cells if row[0].strip().isdecimal()}


def _rows(path: Path, names: dict[int, str], findings: Findings) -> Iterator[Row]:
    passed_over = 0
    is_of_faces = False
    with opened(path) as file:
        for place, record in enumerate(records_of(file)):
            number, labels, image = _parts_of(record)
            if not is_picture(image):
                is_of_faces = is_of_faces or place == 0
                passed_over += 1
                continue
            if is_of_faces:
                labels = labels[:1]
            row = {"image": image, **_fields(labels, image)}
            if number in names:
                row["name"] = names[number]
            yield row
    if passed_over:
        findings.notes.append(
            f"{path.name}: passed over {passed_over:,} records without an image, as insightface has for people"
        )


def _parts_of(record: bytes) -> tuple[int, Sequence[float], bytes]:
    """The number of a record, its labels, and its image."""
    pieces = Pieces(record, name="a record")
    flag, label, number, _ = struct.unpack("<IfQQ", pieces.take(24))
    labels = pieces.numbers(flag, "<f4") if flag else [label]
    return number, labels, pieces.rest()


def records_of(file: StoreFile) -> Iterator[bytes]:
    """The data of each record.

    Raises:
        ValueError: the file is damaged.
    """
    place = 0
    parts = list[bytes]()
    while place < file.size:
        head = file.at(place, 8, "a record")
        if head[:4] != _MARK:
            raise ValueError(f"no record begins at byte {place:,}")
        (word,) = struct.unpack("<I", head[4:])
        part = word >> 29
        length = word & (1 << 29) - 1
        if bool(parts) != (part in (_MIDDLE, _LAST)) or part > _LAST:
            raise ValueError(f"the parts of the record at byte {place:,} do not fit")
        parts.append(file.at(place + 8, length, "a record"))
        place += 8 + (length + 3) // 4 * 4
        if part in (_WHOLE, _LAST):
            yield _MARK.join(parts)
            parts.clear()
    if parts:
        raise ValueError("its last record has no end")


def _fields(labels: Sequence[float], image: bytes) -> dict[str, Any]:
    """The class, the boxes or the numbers of an image."""
    if len(labels) == 1:
        return {"label": _class_of(labels[0])}
    boxes = _boxes(labels)
    if boxes is None:
        return {"target": list(labels)}
    sides = size_of(image) * 2
    corners = [
        [side * share for side, share in zip(sides, box[1:5], strict=True)]
        for box in boxes
    ]
    return with_boxes(corners, [_class_of(box[0]) for box in boxes])


def _class_of(label: float) -> int:
    if label != int(label):
        raise ValueError(f"a label is {label}, and no number of a class")
    return int(label)


def _boxes(labels: Sequence[float]) -> list[Sequence[float]] | None:
    """The boxes in labels of detection: the length of a header, that of a box, the rest of the header, boxes; None if
    these are other labels."""
    header, length = labels[:2]
    if header < _HEADER_VALUES or length not in _BOX_VALUES or header > len(labels):
        return None
    values = labels[int(header) :]
    step = int(length)
    boxes = [values[start : start + step] for start in range(0, len(values), step)]
    for box in boxes:
        if len(box) < step or not all(0 <= share <= 1 for share in box[1:5]):
            return None
    return boxes
