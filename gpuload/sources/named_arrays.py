"""Arrays by their names, each with a row for every sample: what the sources of such files have in common."""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import SourceError
from gpuload.fields.pictures import PictureKind
from gpuload.sources.columns import USUAL, check_columns, predicted
from gpuload.sources.files import Files, Findings
from gpuload.sources.listing import SPLIT, split_called, words_of_splits
from gpuload.sources.source import (
    CERTAIN,
    ColumnOptions,
    Names,
    Sight,
    Source,
    SourceOptions,
)

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells
_LABEL = ("label", "labels")
_CLASS_LISTS = ("list_classes", "classes", "class_names", "label_names")

# What is not stored in HDF5 or Zarr reads as zeros: a file of 1 kB can claim any number of images. DEFLATE makes at
# most 1,032 bytes of one, other filters more of what is blank; so a small array may be blank, and a large one must hold
# something.
_ASSUMED_BYTES = 1 << 30
_MOST_RATIO = 10_000


class NamedArrays(Source):
    """Arrays that can be sliced, each with a row for every sample; images are read chunk by chunk.

    Where each split has an array of images of its own, as `x_train` and `x_test` or `train/images`, its arrays are
    those with its word in their names. Texts called `classes`, `class_names` or `list_classes`, not one for each image,
    are the names of class numbers.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption", or "picture" for
        further pictures, which are called as their arrays are); without, the array of images is the one with a usual
        name, or the only one with three or four dimensions, and every other of its length is taken: whole numbers named
        as labels are, else floats as a target, text as a caption.
    """

    Options: ClassVar[type[SourceOptions]] = ColumnOptions
    options: ColumnOptions

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        """By the name of a single file, since a folder of them is none."""
        if files.suffix not in cls.suffixes:
            return None
        return Sight(CERTAIN, f"its name ends in {files.suffix}")

    def rows_of(
        self, arrays: Mapping[str, Any], findings: Findings
    ) -> Iterator[dict[str, Any]]:
        """A row for each image, split after split.

        Raises:
            SourceError: there is not exactly one array of images, or one for each split, another array differs in
                length, or labels are not classes.
        """
        check_columns(self.title, list(arrays), self.options.columns)
        names_of_classes = self._names_of_classes(arrays, findings)
        parts = self._splits_of(arrays)
        if not parts:
            parts = {"": {name: name for name in arrays}}
        elif self.options.own_splits:
            findings.origin = "by the names of its arrays"
        used = set(names_of_classes)
        for split, names in parts.items():
            part = {short: arrays[name] for short, name in names.items()}
            image = self._image_name(part)
            fields = self._fields(part, image)
            used |= {names[short] for short in chain(*fields.values(), [image])}
            pictures = self.options.columns.get(PictureKind.name, ())
            findings.kinds |= dict.fromkeys(map(_last_part, pictures), PictureKind.name)
            for row in self._rows(part, image, fields):
                yield {**row, SPLIT: split} if findings.origin else row
        unused = {name: arrays[name] for name in arrays if name not in used}
        if unused:
            findings.notes.append(f"arrays that are not packed: {_with_shapes(unused)}")

    def _splits_of(self, arrays: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """The names of the arrays of each split by what is left of them without its word, such as "x" for "x_train" and
        "train_set_x"; {} unless each array of images belongs to another split."""
        if self.options.columns:
            return {}
        parts: dict[str, dict[str, str]] = {}
        for name in arrays:
            splits = words_of_splits(name)
            if len(splits) == 1:
                (split,) = splits
                names = parts.setdefault(split, {})
                if names.setdefault(_without_split(name), name) != name:
                    return {}
        images = [name for name, array in arrays.items() if _holds_images(array)]
        owners = [
            [split for split, names in parts.items() if image in names.values()]
            for image in images
        ]
        is_each = all(len(splits) == 1 for splits in owners)
        if len(images) < 2 or not is_each or len({*map(tuple, owners)}) < len(images):
            return {}
        return {split: names for split, names in parts.items() if [split] in owners}

    def _names_of_classes(
        self, arrays: Mapping[str, Any], findings: Findings
    ) -> list[str]:
        """Notes the names of class numbers, where an array of texts has them; its name."""
        if self.options.images_alone:
            return []
        counts = [array.shape[0] for array in arrays.values() if _holds_images(array)]
        for name, array in arrays.items():
            is_list = len(array.shape) == 1 and counts != [array.shape[0]]
            is_called_so = _last_part(name).lower() in _CLASS_LISTS
            if is_list and is_called_so and _is_text(array):
                texts = [str(_plain(text)) for text in array[:]]
                findings.classes["label"] = (*texts,)
                return [name]
        return []

    def _rows(
        self, arrays: Mapping[str, Any], image: str, fields: Mapping[str, Names]
    ) -> Iterator[dict[str, Any]]:
        images = arrays[image]
        is_encoded = _is_encoded(images)
        for start, stop in _steps(images, is_encoded):
            block = images[start:stop]
            values = _values_of(arrays, fields, slice(start, stop))
            for number, pixels in enumerate(block):
                if is_encoded:
                    pixels = pixels.tobytes()
                yield {"image": pixels, **self._fields_of(values, number)}

    def _fields_of(
        self, values: Mapping[str, list[Any]], number: int
    ) -> dict[str, Any]:
        """The fields of a sample.

        Args:
            values: Of each role, those of a block of samples.
            number: Of the sample in the block.
        """
        cells = {
            role: [_plain(column[number]) for column in columns]
            for role, columns in values.items()
        }
        fields = {role: of_role[0] for role, of_role in cells.items()}
        if "target" in cells:
            fields["target"] = predicted(self.title, cells["target"])
        return fields

    def _image_name(self, arrays: Mapping[str, Any]) -> str:
        large = [name for name, item in arrays.items() if _holds_images(item)]
        usual = [name for name in large if _last_part(name).lower() in USUAL["image"]]
        names = [
            name
            for name in self.options.columns.get("image", usual or large)
            if name in large
        ]
        if len(names) != 1:
            has = _with_shapes(arrays) or "none"
            what = f"which array holds the images, (N, height, width) or (N, height, width, 3)? It has {has}"
            raise SourceError(f"{self.title}: {what}. Give --column image=NAME")
        return names[0]

    def _fields(self, arrays: Mapping[str, Any], image: str) -> dict[str, Names]:
        """The arrays of each field: those that the user named, else every one with the length of the images, and those
        with the name of labels."""
        count = arrays[image].shape[0]
        fields = {
            role: names
            for role, names in self.options.columns.items()
            if role not in ("image", PictureKind.name)
        }
        for name in self.options.columns.get(PictureKind.name, ()):
            fields[_last_part(name)] = (name,)
        if not fields and not self.options.images_alone:
            fields |= self._usual_fields(arrays, image)
        for name in (name for names in fields.values() for name in names):
            if arrays[name].shape[0] != count:
                rows = (
                    f"{name!r} has {arrays[name].shape[0]:,} rows, {image!r} {count:,}"
                )
                raise SourceError(
                    f"{self.title}: {rows}. They must agree: give each image one"
                )
        for name in fields.get("label", ()):
            shape = tuple(arrays[name].shape)
            dtype = arrays[name].dtype
            if math.prod(shape[1:]) != 1 or dtype.kind == "f":
                what = f"{name!r} is {shape} of {dtype}, but a label is one whole number for each image"
                raise SourceError(
                    f"{self.title}: {what}. Convert them, or give --column target={name} to predict numbers"
                )
        return fields

    def _usual_fields(self, arrays: Mapping[str, Any], image: str) -> dict[str, Names]:
        """The arrays of each field where the user named none.

        Raises:
            SourceError: two arrays would be one field.
        """
        count = arrays[image].shape[0]
        fields = dict[str, Names]()
        for name, array in arrays.items():
            role = _role_of(name, array)
            is_field = array.shape[0] == count or _is_called_label(name)
            if name == image or not is_field:
                continue
            if role in fields:
                both = f"{fields[role][0]!r} and {name!r}"
                raise SourceError(
                    f"{self.title}: {both} would both be the field {role!r}. Give --column ROLE=NAME for one"
                )
            fields[role] = (name,)
        return fields


def _with_shapes(arrays: Mapping[str, Any]) -> str:
    """The names of arrays in messages."""
    return ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())


def _is_called_label(name: str) -> bool:
    return _last_part(name).lower() in (*USUAL["label"], *_LABEL)


def _role_of(name: str, array: Any) -> str:
    """The field that an array becomes by its name; floats are a label only where it is called so."""
    last = _last_part(name)
    is_label = array.dtype.kind != "f" or last.lower() in _LABEL
    return "label" if _is_called_label(name) and is_label else last


def _last_part(name: str) -> str:
    """The name of an array without the groups that it lies in."""
    return name.rpartition("/")[2]


def _are_images(shape: tuple[int, ...]) -> bool:
    """Whether this is the shape of images; (height, width, 3) is that of a single one."""
    return len(shape) == 4 or (
        len(shape) == 3 and not (shape[0] > 4 and shape[2] in (3, 4))
    )


def _holds_images(array: Any) -> bool:
    return _are_images(tuple(array.shape)) or _is_encoded(array)


def _is_text(array: Any) -> bool:
    dtype = array.dtype
    return dtype.kind in "SU" or (dtype.metadata or {}).get("vlen") is str


def _without_split(name: str) -> str:
    """The name of an array without the word of its split, and without "set"; "image" if nothing is left."""
    words = [word for word in re.split("[^a-z0-9]+", name.lower()) if word]
    left_over = [word for word in words if word != "set" and not split_called(word)]
    return "_".join(left_over) or "image"


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return (
        len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8
    )


def _values_of(
    arrays: Mapping[str, Any], fields: Mapping[str, Names], samples: slice
) -> dict[str, list[Any]]:
    """The values that each array of a field has for some samples; labels in one dimension."""
    values = {
        role: [arrays[name][samples] for name in names]
        for role, names in fields.items()
    }
    if "label" in values:
        values["label"] = [labels.reshape(-1) for labels in values["label"]]
    return values


def _steps(images: Any, encoded: bool) -> Iterator[tuple[int, int]]:
    """Start and end of each run of rows that is read at once."""
    row_bytes = (
        _ENCODED_BYTES
        if encoded
        else max(1, math.prod(images.shape[1:]) * images.dtype.itemsize)
    )
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    return (
        (start, min(start + step, images.shape[0]))
        for start in range(0, images.shape[0], step)
    )


def _plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


def unstored(array: Any, stored: int) -> str:
    """Why an array is not read: it claims much more than is stored; "" if it is read.

    Args:
        array: With a shape and a dtype.
        stored: The bytes that it takes, or all arrays beside it.
    """
    needed = math.prod(map(int, array.shape)) * array.dtype.itemsize
    if needed > _ASSUMED_BYTES and needed > _MOST_RATIO * stored:
        return f"claims {needed:,} bytes, of which the file stores {stored:,}"
    return ""
