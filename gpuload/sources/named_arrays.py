"""Arrays with names, of images and what belongs to them: what HDF5, `.npy`, `.npz` and LMDB have in common."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuload.errors import SourceError
from gpuload.sources.columns import USUAL, find_column
from gpuload.types import Array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells


def array_samples(
    title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """A sample for each row of arrays that can be sliced; whole chunks of the images are read, one after the other.

    Raises:
        SourceError: there is no array of images, or the others are of another length.
    """
    name = image_name(title, arrays, columns)
    images = arrays[name]
    count = len(images)
    others = other_names(title, arrays, columns, name, count)
    encoded = _is_encoded(images)
    row_bytes = _ENCODED_BYTES if encoded else max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    peak = 255.0
    for start in range(0, count, step):
        stop = min(start + step, count)
        block = images[start:stop]
        if start == 0 and block.dtype.kind == "f" and float(block.max(initial=0)) <= 1:
            peak = 1.0
        rows = {role: [arrays[column][start:stop] for column in found] for role, found in others.items()}
        for place in range(stop - start):
            sample: dict[str, Any] = {"image": block[place].tobytes() if encoded else image_array(block[place], peak)}
            for role, found in rows.items():
                parts = [plain(values[place]) for values in found]
                sample[role] = parts[0] if len(parts) == 1 else [float(part) for part in parts]
            yield sample


def image_name(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> str:
    if "image" in columns:
        return find_column(title, list(arrays), "image", columns)[0]
    large = [name for name, item in arrays.items() if len(item.shape) in (3, 4) or _is_encoded(item)]
    usual = [name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]]
    if len(usual or large) != 1:
        shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in arrays.items())
        raise SourceError(f"{title}: which array holds the images? It has {shapes or 'none'}. Give --column image=NAME")
    return (usual or large)[0]


def other_names(
    title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]], image: str, count: int
) -> dict[str, tuple[str, ...]]:
    """Names of the arrays for each field."""
    found: dict[str, tuple[str, ...]] = {}
    for role in columns:
        if role != "image":
            found[role] = find_column(title, list(arrays), role, columns)
    if not found:
        for name, item in arrays.items():
            last = name.rpartition("/")[2]
            if name == image or len(item) != count:
                continue
            whole = item.dtype.kind in "iu" and len(item.shape) == 1
            found["label" if whole and last.lower() in (*USUAL["label"], "labels") else last] = (name,)
    wrong = [name for names in found.values() for name in names if len(arrays[name]) != count]
    if wrong:
        raise SourceError(
            f"{title}: {wrong[0]!r} has {len(arrays[wrong[0]]):,} rows, {image!r} {count:,}. They must agree"
        )
    return found


def plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


def image_array(array: Array, peak: float = 1.0) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..peak, with the channels first or last.

    What cannot be an image is given back as it is: the packer then rejects it with its type and shape.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f" and array.size and float(array.min()) >= 0 and float(array.max()) <= peak:
        array = np.round(array.astype(np.float64) * (255 / peak)).astype(np.uint8)
    return array


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8
