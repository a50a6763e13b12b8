"""Zarr 2 and 3, by the package zarr: arrays of images and labels in a group, and images of OME-Zarr."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.errors import DecodeError, SourceError
from gpuload.sources.archive import Archive
from gpuload.sources.files import Files, Findings, Folder, readable
from gpuload.sources.named_arrays import NamedArrays, unstored
from gpuload.sources.source import CERTAIN, Row, Sight
from gpuload.types import Array

_MARKS = (".zgroup", ".zarray", "zarr.json")
_ATTRIBUTES = ("zarr.json", ".zattrs")
_SCALES = b'"multiscales"'
_AXES = "tczyx"
_MOST_FOLDERS = 100_000


class ZarrSource(NamedArrays):
    """Arrays of equal length in one Zarr group, wherever in it; images as in HDF5."""

    needs = ("zarr",)
    needs_process = True
    copies_folders = True

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        if not is_group(files, ""):
            return None
        return Sight(CERTAIN, "is a group of Zarr")

    def rows(self, findings: Findings) -> Iterator[Row]:
        with readable(self._local, "a group of Zarr", Exception):
            group = open_group(self._local)
            arrays = dict(arrays_of(group))
            stored = stored_bytes(self._local)
            for name, array in arrays.items():
                if fault := unstored(array, stored):
                    raise SourceError(
                        f"{self._local}: {name!r} {fault}. Write its elements"
                    )
            yield from self.rows_of(arrays, findings)


class OmeZarrSource(NamedArrays):
    """Images of OME-Zarr: one, or all in a folder or a plate, at full resolution.

    The channels are those of the image; each time and depth is an image of its own. The name is that of the group. With
    several channels, or other values than uint8, give `--mode` with type and channels, such as uint16x3.
    """

    needs = ("zarr",)
    needs_process = True
    copies_folders = True

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        if files.fault() or isinstance(files, Archive):
            return None
        if isinstance(files, Folder):
            holds_images = any(True for _ in _images_in(files.path))
        else:
            holds_images = _tells_of_scales(files)
        return Sight(CERTAIN, "holds images of OME-Zarr") if holds_images else None

    def rows(self, findings: Findings) -> Iterator[Row]:
        if not self._local.is_dir():
            raise SourceError(
                f"{self._local}: no such folder. Give a group of OME-Zarr"
            )
        for path in _images_in(self._local):
            with readable(path, "an image of OME-Zarr", Exception):
                inside = path.relative_to(self._local).as_posix()
                name = path.name if path == self._local else inside
                yield from self._planes(
                    path, name.removesuffix(".zarr").removesuffix(".ome")
                )

    def _planes(self, path: Path, name: str) -> Iterator[Row]:
        group = open_group(path)
        scales = _multiscales(group)[0]
        array = group[scales["datasets"][0]["path"]]
        if fault := unstored(array, stored_bytes(path)):
            raise SourceError(f"{path}: {fault}. Write its elements")
        axes = [
            str(axis["name"] if isinstance(axis, Mapping) else axis)
            for axis in scales["axes"]
        ]
        if len(axes) != array.ndim or not set("yx") <= set(axes) <= set(_AXES):
            raise ValueError(f"its axes are {', '.join(axes)[:60]}")
        counts = {axis: array.shape[axes.index(axis)] for axis in axes if axis in "tz"}
        for place in np.ndindex(*counts.values()):
            chosen = dict(zip(counts, place, strict=True))
            parts = [
                f"-{axis}{number}"
                for axis, number in chosen.items()
                if counts[axis] > 1
            ]
            plane = _plane(array, axes, chosen)
            yield {"image": plane, "name": f"{name}{''.join(parts)}."}


def _plane(array: Any, axes: Sequence[str], chosen: Mapping[str, int]) -> Array:
    """(height, width), or (height, width, channels): the part of an array at these numbers of its other axes."""
    plane = np.asarray(array[tuple(chosen.get(axis, slice(None)) for axis in axes)])
    remaining = [axis for axis in axes if axis not in chosen]
    return np.moveaxis(plane, [remaining.index("y"), remaining.index("x")], [0, 1])


def is_group(files: Files, name: str) -> bool:
    """Whether a folder holds the mark of Zarr, whose name is hidden in its second version."""
    if isinstance(files, Archive):
        return "zarr.json" in files.names(name)
    return any(_holds(files, f"{name}/{mark}".lstrip("/")) for mark in _MARKS)


def _holds(files: Files, name: str) -> bool:
    try:
        files.find(name)
    except (OSError, ValueError):
        return False
    return True


def open_group(path: Path) -> Any:
    """A group on a disk, for reading."""
    import zarr

    return zarr.open_group(str(path), mode="r")


def arrays_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All arrays in a group, and in groups within it, by their names."""
    for name, array in group.arrays():
        if array.shape:
            yield f"{prefix}{name}", array
    for name, inner in group.groups():
        yield from arrays_of(inner, f"{prefix}{name}/")


def stored_bytes(path: Path) -> int:
    """How many bytes the files in a folder take."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _images_in(path: Path) -> Iterator[Path]:
    """The groups of images in a folder, a plate or at the path itself, sorted."""
    waiting = [path]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        folder = waiting.pop(0)
        if _is_image(folder):
            yield folder
        elif folder == path or folder.suffix == ".zarr" or is_group(Folder(folder), ""):
            inner = sorted(
                entry
                for entry in folder.iterdir()
                if entry.is_dir() and entry.name != "labels"
            )
            waiting[:0] = inner


def _is_image(path: Path) -> bool:
    """Whether the attributes of a group tell of scales, without opening it."""
    for mark in _ATTRIBUTES:
        file = path / mark
        if file.is_file():
            return _SCALES in file.read_bytes()[: 1 << 20]
    return False


def _tells_of_scales(files: Files) -> bool:
    """Whether a container at a URL is an image."""
    for mark in _ATTRIBUTES:
        with suppress(OSError, DecodeError):
            return _SCALES in files.content(mark)
    return False


def _multiscales(group: Any) -> Any:
    attributes = dict(group.attrs)
    return attributes.get("ome", attributes)["multiscales"]
