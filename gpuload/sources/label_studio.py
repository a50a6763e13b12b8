"""Label Studio's exports of annotations: JSON, JSON-MIN, CSV and TSV."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np

from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import box_of_runs, outline_of
from gpuload.machine.untrusted import parse_json
from gpuload.sources.drawn import AttributeOptions, Drawing, DrawnSource, areas
from gpuload.sources.files import Findings, Ref, extension_of
from gpuload.sources.listing import first_named
from gpuload.sources.shapes import Shape, blank_mask, ellipse, polygon, turned_box
from gpuload.types import U8

Entry = Mapping[str, Any]

_IMAGES = ("image", "img", "image_url", "url")  # the usual keys of the image of a task
# What JSON-MIN says about a task besides its data and its annotation.
_ABOUT_TASK = frozenset(
    (
        "id",
        "annotator",
        "annotation_id",
        "created_at",
        "updated_at",
        "lead_time",
        "agreement",
    )
)
_SHAPES = ("rectanglelabels", "polygonlabels", "ellipselabels", "brushlabels", "labels")
_OPAQUE = 128  # of the alpha of a brush, from which on a pixel belongs to the object


class LabelStudioSource(DrawnSource):
    """The exports "JSON", "JSON-MIN", "CSV" and "TSV" of Label Studio: rectangles, turned ones too, ellipses, polygons,
    masks of brushes, and choices.

    Of several annotations of an image in "JSON" the last one that was not cancelled counts. The other exports do not
    say which of their columns hold choices: it is the only one with texts besides the image, or the one that the option
    `attribute` names.
    """

    kind = "label-studio"
    form = "Label Studio's JSON or CSV"
    extensions = ("json", "csv", "tsv")
    Options = AttributeOptions
    options: AttributeOptions

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        is_table = extension_of(file.name) != "json"
        tasks = self._table(file) if is_table else self.document(file)
        if any("data" not in task for task in tasks):
            yield from self._of_minimal(tasks, findings)
            return
        several = 0
        for task in tasks:
            done = task.get("annotations") or task.get("completions") or []
            done = [
                annotation for annotation in done if not annotation.get("was_cancelled")
            ]
            several += len(done) > 1
            results = done[-1]["result"] if done else []
            values = [_merged(result) for result in results if "value" in result]
            yield _drawing(_image_in(task["data"]), values, findings)
        if several:
            findings.notes.append(
                f"{several:,} images have several annotations, of which the last is packed"
            )

    def _table(self, file: Ref) -> list[Entry]:
        """The tasks of a CSV, whose cells hold texts, or lists and dicts as JSON; the tool separates by commas or tabs,
        whatever the file is called."""
        text = self.files.text(file.name)
        delimiter = max(",\t", key=text.partition("\n")[0].count)
        rows = csv.DictReader(StringIO(text, newline=""), delimiter=delimiter)
        return [
            {name: _parsed(cell) for name, cell in row.items() if cell} for row in rows
        ]

    def _of_minimal(
        self, tasks: Sequence[Entry], findings: Findings
    ) -> Iterator[Drawing]:
        """The drawings of tasks without the tool's ids, whose annotations stand beside their data."""
        shapes = [_drawn_in(task) for task in tasks]
        choices = self.options.attribute
        if not choices and not any(shapes):
            choices = self._column_of_choices(tasks)
        for task, values in zip(tasks, shapes, strict=True):
            if choices:
                values.append({"choices": _choices_in(task.get(choices))})
            yield _drawing(_image_in(task), values, findings)

    def _column_of_choices(self, tasks: Sequence[Entry]) -> str:
        """The key whose values are classes of whole images; "" if there is none.

        Raises:
            SourceError: several keys may be it.
        """
        keys = {
            key
            for task in tasks
            for key, value in task.items()
            if key not in _ABOUT_TASK and _choices_in(value)
        }
        keys.discard(first_named(_IMAGES, keys))
        if len(keys) > 1:
            raise SourceError(
                f"{self.title}: its tasks have the texts {some_of(sorted(keys))}. Which holds the classes? Give "
                "--option attribute=NAME"
            )
        return next(iter(keys), "")


def _parsed(cell: str) -> Any:
    """The value of a cell: JSON, or a text."""
    return parse_json(cell) if cell.startswith(("[{", "{", '["')) else cell


def _drawn_in(task: Entry) -> list[Entry]:
    """The shapes of a task of JSON-MIN, by whichever keys."""
    lists = [value for value in task.values() if isinstance(value, list)]
    return [
        entry
        for values in lists
        for entry in values
        if isinstance(entry, dict) and "original_width" in entry
    ]


def _choices_in(value: Any) -> list[str]:
    """The classes that a value of JSON-MIN names: one alone, several, or none."""
    values = value if isinstance(value, list) else [value]
    choices = list[str]()
    for entry in values:
        if isinstance(entry, str):
            choices.append(entry)
        elif isinstance(entry, dict):
            choices += entry.get("choices", ())
    return choices


def _merged(result: Entry) -> Entry:
    sizes = {key: result.get(key) for key in ("original_width", "original_height")}
    return {**result["value"], **sizes}


def _image_in(values: Entry) -> str:
    """The image of a task: the value that is called so, or the only text."""
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    if key := first_named(_IMAGES, texts):
        return texts[key]
    if len(texts) != 1:
        raise ValueError(
            f"its data have {some_of(sorted(values))}; which is the image?"
        )
    return next(iter(texts.values()))


def _drawing(image: str, values: Sequence[Entry], findings: Findings) -> Drawing:
    """The drawing of an image, by the shapes and choices of its annotation."""
    labels = list[str]()
    drawn = list[Shape | str]()
    size = (0, 0)
    for value in values:
        if "choices" in value:
            labels += value["choices"]
        else:
            size = int(value["original_width"]), int(value["original_height"])
            drawn.append(_shape(value, *size))
    return Drawing(image, areas(drawn, findings), size, tuple(map(str, labels)))


def _shape(value: Entry, width: int, height: int) -> Shape | str:
    """A shape, whose values are percent of the sides of the image; points have no area."""
    names = next((value[kind] for kind in _SHAPES if value.get(kind)), None)
    if names is None:
        return next((key for key in value if key.endswith("labels")), "shape")
    label = str(names[0])
    if "rle" in value:
        outline = outline_of(brush_mask(value["rle"], width, height))
        return Shape(label, box_of_runs(outline), outline)
    degrees = float(value.get("rotation") or 0)
    if "points" in value:
        points = [(x * width / 100, y * height / 100) for x, y in value["points"]]
        return polygon(label, points)
    x = value["x"] * width / 100
    y = value["y"] * height / 100
    if "radiusX" in value:
        radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
        return ellipse(label, (x, y), radii, degrees)
    right = x + value["width"] * width / 100
    bottom = y + value["height"] * height / 100
    return turned_box(label, (x, y, right, bottom), degrees, (x, y))


class _BrushBits:
    """Numbers that lie one after the other as bits, the highest first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def take(self, count: int) -> int:
        """The next number of so many bits.

        Raises:
            ValueError: there are fewer.
        """
        end = self._place + count
        if end > 8 * len(self._data):
            raise ValueError("the runs of a brush end early")
        piece = self._data[self._place // 8 : (end + 7) // 8]
        self._place = end
        return int.from_bytes(piece, "big") >> -end % 8 & (1 << count) - 1


def brush_mask(runs: Sequence[int], width: int, height: int) -> U8:
    """The pixels (height, width) of a brush: 1 where it painted, else 0.

    The tool packs the four channels of an image as bits, by the library rle-pack: the number of values, the bits of
    each, four sizes of lengths, then runs of one value and of single ones.

    Args:
        runs: Bytes.
        width: Of the image, in pixels.
        height: Of the image, in pixels.

    Raises:
        ValueError: they are damaged, or of another image.
    """
    mask = blank_mask(height, width)
    bits = _BrushBits(bytes(runs))
    count = bits.take(32)
    value_bits = bits.take(5) + 1
    length_bits = [bits.take(4) + 1 for _ in range(4)]
    if count != 4 * mask.size or value_bits != 8:
        raise ValueError(
            f"a brush of {count:,} values on an image of {width} x {height}"
        )
    values = np.zeros(count, np.uint8)
    start = 0
    while start < count:
        is_run = bits.take(1)
        end = start + 1 + bits.take(length_bits[bits.take(2)])
        if end > count:
            raise ValueError("the runs of a brush leave its image")
        if is_run:
            values[start:end] = bits.take(8)
        else:
            values[start:end] = [bits.take(8) for _ in range(start, end)]
        start = end
    alpha = values.reshape(height, width, 4)[:, :, 3]
    return (alpha >= _OPAQUE).astype(np.uint8)
