"""Named arrays of images and their fields, as HDF5, `.npy` and `.npz` hold them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.sources.columns import USUAL, check_columns
from gpuload.sources.files import Findings
from gpuload.sources.rows import Names, image_array
from gpuload.types import Array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells
_LABEL = ("label", "labels")


class NamedArrays:
    """Arrays that can be sliced, each with a row for every sample.

    columns: names of arrays by what they hold, where they are not the usual ones. as_stored: see `Source`.
    image: name of the array of images. others: names of the arrays for each field.

    Raises:
        SourceError: there is not exactly one array of images, another array differs in length, or labels are not
        classes.
    """

    def __init__(self, title: str, arrays: Mapping[str, Any], columns: Mapping[str, Names], as_stored: bool) -> None:
        self._title, self._arrays, self._columns, self._as_stored = title, arrays, columns, as_stored
        check_columns(title, list(arrays), columns, "array")
        self.image = self._image_name()
        self.others = self._other_names()

    def samples(
        self, findings: Findings, refer: Callable[[str, int, Array], Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """A sample for each row; images are read chunk by chunk.

        refer: makes the `Ref` for a row of images, or of another array with more than a number or text a row, from the
        array's name, the row's number and its value; None: samples hold the rows themselves.
        """
        used = {self.image, *(name for names in self.others.values() for name in names)}
        if left := [f"{name} {tuple(item.shape)}" for name, item in self._arrays.items() if name not in used]:
            findings.notes.append(f"arrays that are not packed: {', '.join(left)}")
        images, peak = self._arrays[self.image], None if self._as_stored else 255.0
        encoded = _is_encoded(images)
        for start, stop in _steps(images, encoded):
            block = images[start:stop]
            if start == 0 and not self._as_stored and is_in_unit_range(block):
                peak = 1.0
            rows = {role: [self._arrays[name][start:stop] for name in names] for role, names in self.others.items()}
            for place in range(stop - start):
                sample = {role: _joined(role, [values[place] for values in of]) for role, of in rows.items()}
                if refer is None:
                    yield {"image": block[place].tobytes() if encoded else image_array(block[place], peak), **sample}
                    continue
                for role, value in sample.items():
                    if isinstance(value, np.ndarray):
                        sample[role] = refer(self.others[role][0], start + place, value)
                yield {"image": refer(self.image, start + place, block[place]), **sample}

    def _image_name(self) -> str:
        arrays = self._arrays
        large = [name for name, item in arrays.items() if len(item.shape) in (3, 4) or _is_encoded(item)]
        usual = [name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]]
        names = self._columns.get("image", usual or large)
        if len(names) != 1:
            shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in arrays.items())
            raise SourceError(
                f"{self._title}: which array holds the images? It has {shapes or 'none'}; images are (N, height, "
                "width) or (N, height, width, 3). Give --column image=NAME, and --column label=NAME for their classes"
            )
        shape = tuple(arrays[names[0]].shape)
        if len(shape) == 3 and shape[0] > 4 and shape[2] in (3, 4):
            raise SourceError(
                f"{self._title}: {names[0]!r} is {shape}, a single image and not many. Give an array of (N, height, "
                "width, 3)"
            )
        return names[0]

    def _other_names(self) -> dict[str, Names]:
        count = len(self._arrays[self.image])
        others = {role: names for role, names in self._columns.items() if role != "image"} or self._by_name(count)
        for name in (name for names in others.values() for name in names):
            if len(self._arrays[name]) != count:
                rows = counted(len(self._arrays[name]), "row")
                raise SourceError(
                    f"{self._title}: {name!r} has {rows}, {self.image!r} {count:,}. They must agree: give each image "
                    "one"
                )
        for name in others.get("label", ()):
            self._check_labels(name)
        return others

    def _by_name(self, count: int) -> dict[str, Names]:
        """Every array with the length of the images, and those with the name of labels."""
        others: dict[str, Names] = {}
        for name, item in self._arrays.items():
            last = name.rpartition("/")[2]
            is_label = last.lower() in (*USUAL["label"], *_LABEL)
            if name == self.image or (len(item) != count and not is_label):
                continue
            role = "label" if is_label and (item.dtype.kind != "f" or last.lower() in _LABEL) else last
            if role in others:
                which = "label" if role == "label" else "ROLE"
                raise SourceError(
                    f"{self._title}: {others[role][0]!r} and {name!r} would both be the field {role!r}. Give --column "
                    f"{which}=NAME for those that are wanted"
                )
            others[role] = (name,)
        return others

    def _check_labels(self, name: str) -> None:
        """Raises SourceError if an array does not hold one class for each sample."""
        labels = self._arrays[name]
        shape = tuple(labels.shape)
        if len(shape) > 1 and int(np.prod(shape[1:])) != 1:
            raise SourceError(
                f"{self._title}: {name!r} is {shape}, but a label is one number for each image. If these are one-hot, "
                f"save labels.argmax(1); numbers to be predicted are floats, with --column target={name}"
            )
        if labels.dtype.kind == "f":
            raise SourceError(
                f"{self._title}: {name!r} holds floats, but classes are whole numbers. Save labels.astype(int), or "
                f"give --column target={name} for numbers to be predicted"
            )


def _steps(images: Any, encoded: bool) -> Iterator[tuple[int, int]]:
    """Start and end of each run of rows that is read at once."""
    row_bytes = _ENCODED_BYTES if encoded else max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    return ((start, min(start + step, len(images))) for start in range(0, len(images), step))


def _joined(role: str, values: list[Any]) -> Any:
    """The value of a field out of a row of each of its arrays."""
    if role == "label" and isinstance(values[0], np.ndarray):
        return plain(values[0].reshape(-1)[0])
    return plain(values[0]) if len(values) == 1 else [float(plain(value)) for value in values]


def plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


def is_in_unit_range(images: Array) -> bool:
    """Whether these are floats of at most 1, so that 1 is the brightest."""
    return images.dtype.kind == "f" and float(images.max(initial=0)) <= 1


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8
