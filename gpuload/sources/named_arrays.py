"""Arrays with names, of images and what belongs to them: what HDF5, `.npy`, `.npz` and LMDB have in common."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.sources.columns import USUAL, find_column
from gpuload.types import Array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells


def array_samples(
    title: str,
    arrays: Mapping[str, Any],
    columns: Mapping[str, tuple[str, ...]],
    notes: list[str],
    as_stored: bool = False,
) -> Iterator[dict[str, Any]]:
    """A sample for each row of arrays that can be sliced; whole chunks of the images are read, one after the other.

    notes: gets sentences for the user. as_stored: see `Source`.

    Raises:
        SourceError: there is no array of images, or the others are of another length.
    """
    name = image_name(title, arrays, columns)
    images = arrays[name]
    count = len(images)
    others = other_names(title, arrays, columns, name, count)
    notes += notes_of_unused(arrays, name, others)
    encoded = _is_encoded(images)
    row_bytes = _ENCODED_BYTES if encoded else max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    peak = None if as_stored else 255.0
    for start in range(0, count, step):
        stop = min(start + step, count)
        block = images[start:stop]
        if start == 0 and not as_stored and block.dtype.kind == "f" and float(block.max(initial=0)) <= 1:
            peak = 1.0
        rows = {role: [arrays[column][start:stop] for column in found] for role, found in others.items()}
        for place in range(stop - start):
            sample: dict[str, Any] = {"image": block[place].tobytes() if encoded else image_array(block[place], peak)}
            for role, found in rows.items():
                parts = [plain(_single(values[place]) if role == "label" else values[place]) for values in found]
                sample[role] = parts[0] if len(parts) == 1 else [float(part) for part in parts]
            yield sample


def image_name(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> str:
    """Name of the array of images.

    Raises:
        SourceError: there is none, or more than one, or it is a single image.
    """
    large = [name for name, item in arrays.items() if len(item.shape) in (3, 4) or _is_encoded(item)]
    usual = [name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]]
    if "image" in columns:
        name = find_column(title, list(arrays), "image", columns)[0]
    elif len(usual or large) == 1:
        name = (usual or large)[0]
    else:
        shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in arrays.items())
        raise SourceError(
            f"{title}: which array holds the images? It has {shapes or 'none'}; images are (N, height, width) or "
            "(N, height, width, 3). Give --column image=NAME, and --column label=NAME for their classes"
        )
    shape = tuple(arrays[name].shape)
    if len(shape) == 3 and shape[0] > 4 and shape[2] in (3, 4):
        raise SourceError(
            f"{title}: {name!r} is {shape}, a single image and not many. Give an array of (N, height, width, 3)"
        )
    return name


def other_names(
    title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]], image: str, count: int
) -> dict[str, tuple[str, ...]]:
    """Names of the arrays for each field.

    Raises:
        SourceError: an array has another length than the images, or labels have a shape or type that they cannot have.
    """
    found: dict[str, tuple[str, ...]] = {}
    for role in columns:
        if role != "image":
            found[role] = find_column(title, list(arrays), role, columns)
            if len(found[role]) > 1 and role != "target":
                raise SourceError(
                    f"{title}: --column {role}= names {len(found[role])} arrays, but takes one. Several are for target="
                )
    if not found:
        for name, item in arrays.items():
            last = name.rpartition("/")[2]
            if name == image or (len(item) != count and not _is_label_name(name)):
                continue
            role = "label" if _is_label_name(name) and (item.dtype.kind != "f" or last.lower() in _LABEL) else last
            if role in found:
                raise SourceError(
                    f"{title}: {found[role][0]!r} and {name!r} would both be the field {role!r}. Give --column "
                    f"{'label' if role == 'label' else 'ROLE'}=NAME for those that are wanted"
                )
            found[role] = (name,)
    wrong = [name for names in found.values() for name in names if len(arrays[name]) != count]
    if wrong:
        raise SourceError(
            f"{title}: {wrong[0]!r} has {counted(len(arrays[wrong[0]]), 'row')}, {image!r} {count:,}. They must agree: "
            "give each image one"
        )
    for name in found.get("label", ()):
        _check_labels(title, name, arrays[name])
    return found


def notes_of_unused(arrays: Mapping[str, Any], image: str, found: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What users should know of arrays that are not packed."""
    used = {image, *(name for names in found.values() for name in names)}
    left = [f"{name} {tuple(item.shape)}" for name, item in arrays.items() if name not in used]
    return [f"arrays that are not packed: {', '.join(left)}"] if left else []


_LABEL = ("label", "labels")


def _is_label_name(name: str) -> bool:
    return name.rpartition("/")[2].lower() in (*USUAL["label"], *_LABEL)


def _check_labels(title: str, name: str, labels: Any) -> None:
    """Raises SourceError where an array holds no class for each sample."""
    shape = tuple(labels.shape)
    if len(shape) > 1 and int(np.prod(shape[1:])) != 1:
        raise SourceError(
            f"{title}: {name!r} is {shape}, but a label is one number for each image. If these are one-hot, save "
            "labels.argmax(1); numbers to be predicted are floats, with --column target=" + name
        )
    if labels.dtype.kind == "f":
        raise SourceError(
            f"{title}: {name!r} holds floats, but classes are whole numbers. Save labels.astype(int), or give --column "
            f"target={name} for numbers to be predicted"
        )


def _single(value: Any) -> Any:
    """The only number of a row such as [3]."""
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) else value


def plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


def image_array(array: Array, peak: float | None = 1.0) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..peak, with the channels first or last; without a peak as it is.

    What cannot be an image is given back as it is: the packer then rejects it with its type and shape.
    """
    if peak is None:
        return array
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f" and array.size and float(array.min()) >= 0 and float(array.max()) <= peak:
        array = np.round(array.astype(np.float64) * (255 / peak)).astype(np.uint8)
    return array


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8
