"""Tables with a row for each object: boxes in columns, runs of masks, VIA's regions, and columns of 0 and 1."""

import csv
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from gpuload.errors import some_of
from gpuload.sources.drawn import (
    FORM_ERRORS,
    AttributeOptions,
    Drawing,
    DrawnSource,
    areas,
)
from gpuload.sources.drawn_regions import attribute_of, via_shape
from gpuload.sources.files import Findings, Ref, decode_text, read_file, readable
from gpuload.sources.listing import SPLIT, first_named, split_called
from gpuload.sources.shapes import Runs, Shape, box_of
from gpuload.sources.survey import BOX_COLUMNS, CLASS_FLAGS, RUN_COLUMNS
from gpuload.types import WidthHeight

Cells = Mapping[str, str]

_IMAGES = (
    "filename", "file_name", "image", "image_id", "imageid", "image_path", "img", "path", "patientid", "id",
    "image_label", "imageid_classid", "filepath",
)  # fmt: skip
_CLASSES = (
    "class",
    "label",
    "class_name",
    "labelname",
    "category",
    "name",
    "class_id",
    "classid",
    "category_id",
)
_NUMBERS = ("class_id", "category_id", "classid")
_DESCRIPTIONS = "class-descriptions"  # begins the name of Open Images' table of names


@dataclass(frozen=True)
class BoxTableOptions(AttributeOptions):
    """The options of a table with a row for each object.

    Args:
        labels: The table, where it does not lie in the folder of the images (`--labels`).
        order: "columns" or "rows", in which runs of masks go through an image; Kaggle's are by columns, but for a few.
    """

    labels: str | Path | None = None
    order: str = "columns"


class _BoxColumns(NamedTuple):
    """The columns of a table: names in lower case, "" for one that it lacks.

    Attributes:
        box: The columns of x0, y0, x1 and y1, or of x, y, width and height if `is_sized`; or one with all four.
    """

    image: str
    label: str
    number: str
    box: Sequence[str]
    is_sized: bool
    runs: str
    split: str


class BoxTableSource(DrawnSource):
    """A table with a row for each object, such as Roboflow's, Open Images', VIA's, and Kaggle's.

    Boxes are columns xmin ymin xmax ymax (or x1 y1 x2 y2), x y width height, or one `bbox` with the latter; those of
    Open Images are shares of the image. Runs (`EncodedPixels`) start at 1 and go down the columns. A row with an empty
    box or runs names an image without an object. `_classes.csv` of Roboflow has a column of 0 and 1 for each class.
    """

    kind = "boxes"
    form = "a table of boxes"
    extensions = ("csv", "tsv")
    uses = ("boxes",)
    Options = BoxTableOptions
    options: BoxTableOptions
    _names: Mapping[str, str] = {}  # of Open Images' classes, by their identifiers

    @property
    def title(self) -> str:
        return str(self.options.labels or self.path)

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        self._names = self._descriptions(findings)
        if self.options.labels is None:
            yield from super().drawings(findings)
            return
        table = Path(self.options.labels)
        with readable(f"{self.title}/{table.name}", self.form, *FORM_ERRORS):
            text = decode_text(read_file(table))
            yield from self._drawn(table.name, text, findings)

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        yield from self._drawn(file.name, self.files.text(file.name), findings)

    def _descriptions(self, findings: Findings) -> dict[str, str]:
        """Open Images' names of its classes by their identifiers."""
        names = dict[str, str]()
        for file in self.files.walk({"csv"}, Findings()):
            if _DESCRIPTIONS in file.name:
                findings.use(file.name)
                text = self.files.text(file.name)
                rows = csv.reader(StringIO(text, newline=""))
                names |= {row[0]: row[1] for row in rows if len(row) == 2}
        return names

    def _drawn(self, name: str, text: str, findings: Findings) -> Iterator[Drawing]:
        """The drawings in a table."""
        rows = _rows_of(text)
        place = posixpath.dirname(name)
        if CLASS_FLAGS.search(name):
            yield from _flags(rows, place)
        elif rows:
            yield from self._objects(rows, place, findings)

    def _objects(
        self, rows: Sequence[Cells], place: str, findings: Findings
    ) -> Iterator[Drawing]:
        """The drawings in rows of an object each.

        Args:
            place: The folder of the table.
        """
        layout = _layout_of(list(rows[0]))
        if layout.number and layout.label:
            findings.classes.setdefault("boxes", _numbered(rows, layout))
        in_shares = "isgroupof" in rows[0]
        of_image: dict[tuple[str, str], list[Shape]] = {}
        sizes: dict[str, WidthHeight] = {}
        for row in rows:
            image, label = _named(row, layout)
            shapes = of_image.setdefault((image, row.get(layout.split, "")), [])
            if "region_shape_attributes" in row:
                shapes += areas(self._via_regions(row), findings)
            else:
                shapes += self._shapes(row, self._names.get(label, label), layout)
            sizes[image] = _size_in(row, layout)
        if layout.runs:
            findings.notes.append(
                f"runs of masks are read along {self.options.order}, from pixel 1; --option order=rows or columns"
            )
        for (image, split), shapes in of_image.items():
            yield Drawing(
                f"{place}/{image}".lstrip("/"),
                shapes,
                sizes[image],
                split=split if split_called(split) else "",
                in_shares=in_shares,
            )

    def _via_regions(self, row: Cells) -> list[Shape | str]:
        """The region in a row of VIA's CSV; [] for an image without one."""
        form = json.loads(row["region_shape_attributes"] or "{}")
        if not form:
            return []
        attributes = json.loads(row["region_attributes"] or "{}")
        label = attribute_of(self.title, attributes, self.options.attribute)
        return [via_shape(label, form)]

    def _shapes(self, row: Cells, label: str, layout: _BoxColumns) -> list[Shape]:
        """The object of a row; [] where it has none."""
        if layout.runs:
            runs = [int(word) for word in row[layout.runs].split()]
            by_rows = self.options.order == "rows"
            outline = Runs(runs[0::2], runs[1::2], by_rows)
            return [Shape(label, (0, 0, 0, 0), outline)] if runs else []
        cells = [row[name].strip() for name in layout.box]
        if len(cells) == 1:
            cells = cells[0].strip("[]() ").replace(",", " ").split()
        if not any(cells) or cells == ["-1"] * 4:
            return []
        x, y, right, bottom = map(float, cells)
        shape = Shape(label, (x, y, right, bottom))
        if layout.is_sized:
            shape = box_of(label, x, y, right, bottom)
        return [shape._replace(crowd=row.get("isgroupof") == "1")]


def _rows_of(text: str) -> list[Cells]:
    """The rows of a table by its columns, whose names are in lower case."""
    delimiter = max(",\t;", key=text.partition("\n")[0].count)
    rows = csv.reader(StringIO(text, newline=""), delimiter=delimiter)
    names = [name.strip() for name in next(rows, [])]
    if not names:
        raise ValueError("its first line is empty")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have one name: {some_of(names)}")
    keys = [name.lower() for name in names]
    return [dict(zip(keys, row, strict=True)) for row in rows if row]


def _flags(rows: Sequence[Cells], place: str) -> Iterator[Drawing]:
    """Images by columns of 0 and 1, the first of which holds the name."""
    for row in rows:
        image, *flags = row.items()
        if any(flag.strip() not in ("0", "1") for _, flag in flags):
            raise ValueError(f"{image[1]!r} has a class that is neither 0 nor 1")
        labels = tuple(name for name, flag in flags if flag.strip() == "1")
        yield Drawing(f"{place}/{image[1]}".lstrip("/"), labels=labels)


def _layout_of(columns: Sequence[str]) -> _BoxColumns:
    """Raises ValueError if no column names images."""
    image = first_named(_IMAGES, columns)
    if not image:
        raise ValueError(f"none of its columns names images: {some_of(columns)}")
    label = first_named(_CLASSES, columns)
    number = first_named(_NUMBERS, {*columns} - {label})
    box: Sequence[str] = ()
    is_sized = False
    for names, sized in BOX_COLUMNS:
        if not box and set(names) <= set(columns):
            box = names
            is_sized = sized
    runs = first_named(RUN_COLUMNS, columns)
    split = first_named((SPLIT, "subset"), columns)
    return _BoxColumns(image, label, number, box, is_sized, runs, split)


def _named(row: Cells, layout: _BoxColumns) -> tuple[str, str]:
    """The image and the class of a row; Kaggle joins both in one cell."""
    image = row[layout.image].strip()
    label = row.get(layout.label, "object").strip()
    if layout.image in ("image_label", "imageid_classid"):
        image, _, label = image.rpartition("_")
    return image, label


def _numbered(rows: Sequence[Cells], layout: _BoxColumns) -> tuple[str, ...]:
    """The names of classes by their numbers in the table, if these start at 0 without a gap; else ()."""
    numbers = dict[int, str]()
    for row in rows:
        word = row[layout.number].strip()
        if not word.isdecimal():
            return ()
        first = numbers.setdefault(int(word), row[layout.label].strip())
        if first != row[layout.label].strip():
            raise ValueError(f"class {word} is {first!r} and {row[layout.label]!r}")
    if sorted(numbers) != list(range(len(numbers))):
        return ()
    return tuple(name for _, name in sorted(numbers.items()))


def _size_in(row: Cells, layout: _BoxColumns) -> WidthHeight:
    """The size of the image that a row tells; (0, 0) if it tells none."""
    if layout.is_sized and "width" in layout.box:
        return 0, 0
    return int(float(row.get("width") or 0)), int(float(row.get("height") or 0))
