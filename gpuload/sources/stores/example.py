"""TensorFlow's `Example`: a map of features, each a list of byte strings, floats or whole numbers; and what the usual
names of features mean: those of TensorFlow Datasets, of slim, and of the Object Detection API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.sources.annotations import with_boxes
from gpuload.sources.files import Findings
from gpuload.sources.stores.pieces import Pieces
from gpuload.sources.stores.protobuf import fields_of, varints_of
from gpuload.sources.stores.store import is_picture, size_of

# The kinds of lists.
_BYTES = 1
_FLOATS = 2
_INTS = 3

IMAGE = "image/encoded"
_CLASS = "image/class/label"
_NAMES_OF_CLASS = ("image/class/synset", "image/class/text")
_CORNERS = tuple(
    f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")
)
_BOX_CLASS = "image/object/class/label"
_BOX_NAME = "image/object/class/text"
_FILE = "image/filename"
_OF_IMAGE = "image/"  # begins what slim says of an image
# Of TensorFlow Datasets: columns of objects, and what ends the names of files with names of classes.
_OBJECTS = ("objects", "faces")
_LIST_OF_NAMES = ".labels.txt"

Features = dict[str, list[Any]]


def features_of(message: bytes) -> Features:
    """The features of an `Example`, by name.

    Raises:
        ValueError: it is none.
    """
    features = Features()
    for number, part in fields_of(message):
        if number != 1 or not isinstance(part, bytes):
            continue
        for _, entry in fields_of(part):
            pair = dict(fields_of(entry))
            features[pair[1].decode("utf-8")] = list(_values(pair.get(2, b"")))
    if not features:
        raise ValueError("a record is no tf.train.Example with features")
    return features


def _values(feature: bytes) -> Iterator[Any]:
    for kind, values in fields_of(feature):
        for _, value in fields_of(values):
            if kind == _BYTES:
                yield value
            elif kind == _INTS:
                yield from varints_of(value)
            elif kind == _FLOATS:
                yield from Pieces(value, name="floats").array("<f4").tolist()


class Meaning:
    """What the features of a file's examples become.

    Args:
        folder: Of the file, where TensorFlow Datasets leaves names of classes.
        findings: Which gets the names of classes.
    """

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._findings = findings
        self._names = dict[str, dict[int, str]]()  # of class numbers, by field
        for path in sorted(folder.glob(f"*{_LIST_OF_NAMES}")):
            names = tuple(path.read_text("utf-8").splitlines())
            field = path.name.removesuffix(_LIST_OF_NAMES)
            is_of_boxes = field in [f"{name}-label" for name in _OBJECTS]
            for named in ("boxes", "labels") if is_of_boxes else (field,):
                findings.classes[named] = names

    def row(self, features: Features) -> dict[str, Any]:
        """The columns of a sample.

        Raises:
            ValueError, DecodeError: features contradict each other, or boxes have no image.
        """
        row = dict[str, Any]()
        for name, values in features.items():
            if name == IMAGE:
                row["image"] = values[0]
            elif name == _CLASS:
                row["label"] = self._class(features)
            elif name == _FILE and values:
                row["name"] = values[0].decode("utf-8")
            elif not name.startswith(_OF_IMAGE):
                row[name.replace("/", "_")] = _plain(values)
        image = row.get("image") or next(filter(is_picture, row.values()), b"")
        if _BOX_CLASS in features:
            row |= self._boxes_of_detection(features, image)
        for name in _OBJECTS:
            if f"{name}/bbox" in features:
                row |= _boxes_of_datasets(features, name, image)
                for part in (part for part in features if part.startswith(f"{name}/")):
                    row.pop(part.replace("/", "_"), None)
        return row

    def _class(self, features: Features) -> Any:
        """The class of an image, by its name where there is one."""
        (number,) = features[_CLASS]
        for name in _NAMES_OF_CLASS:
            if features.get(name):
                return self._named("label", number, features[name][0])
        return number

    def _boxes_of_detection(self, features: Features, image: bytes) -> dict[str, Any]:
        classes = features[_BOX_CLASS]
        names = features.get(_BOX_NAME, [])
        if len(names) == len(classes):
            classes = [
                self._named("boxes", number, name)
                for number, name in zip(classes, names, strict=True)
            ]
        width, height = size_of(image)
        columns = [features.get(name, []) for name in _CORNERS]
        corners = [
            [width * x0, height * y0, width * x1, height * y1]
            for x0, y0, x1, y1 in zip(*columns, strict=True)
        ]
        return with_boxes(corners, classes)

    def _named(self, field: str, number: int, name: bytes) -> str:
        """The name of a class, whose number is noted."""
        names = self._names.setdefault(field, {})
        if number not in names:
            text = name.decode("utf-8")
            taken = set(names.values())
            names[number] = f"{text} ({number})" if text in taken else text
            ordered = tuple(names[key] for key in sorted(names))
            self._findings.classes[field] = ordered
            if field == "boxes":
                self._findings.classes["labels"] = ordered
        return names[number]


def _boxes_of_datasets(features: Features, name: str, image: bytes) -> dict[str, Any]:
    """Boxes of TensorFlow Datasets: y0 x0 y1 x1 as parts of the sides."""
    shares = np.array(features[f"{name}/bbox"], np.float64).reshape(-1, 4)
    width, height = size_of(image)
    corners = (shares[:, [1, 0, 3, 2]] * (width, height, width, height)).tolist()
    classes = features.get(f"{name}/label")
    if classes is None:
        return {"boxes": corners}
    return with_boxes(corners, classes)


def _plain(values: list[Any]) -> Any:
    """A value in place of a list of one; texts where bytes are some."""
    plain = [_text(value) if isinstance(value, bytes) else value for value in values]
    return plain[0] if len(plain) == 1 else plain


def _text(value: bytes) -> Any:
    if is_picture(value):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
