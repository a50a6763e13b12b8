"""The masks of COCO's panoptic segments: a PNG for each image, whose colours are the numbers of its segments."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpuload.errors import some_of
from gpuload.fields.instances import compressed_runs
from gpuload.formats import Conversion, open_file
from gpuload.machine.limits import count_cores
from gpuload.sources.files import Files, Ref
from gpuload.types import I64

_GRAY = ("L", "I;16", "I")  # Pillow's modes of one number
_READ_AHEAD = 64  # images

Entry = Mapping[str, Any]


class PanopticMasks:
    """The PNGs that belong to a file of annotations.

    Args:
        files: The container of the PNGs.
        folder: Where in it they lie; "": at its first level.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder

    @classmethod
    def beside(
        cls, files: Files, document: str, images: Sequence[Sequence[Entry]]
    ) -> "PanopticMasks | None":
        """Those in the folder that is called as a document of annotations, beside it or at the first level, or in the
        folder of the document; None where the PNG of the first image with segments is in none of these.

        Args:
            files: The container of the document.
            document: The name of the document in it.
            images: As `read` takes them.
        """
        place, _, name = document.rpartition("/")
        stem = name.rpartition(".")[0]
        first = next((segments[0]["png"] for segments in images if segments), "")
        for folder in (f"{place}/{stem}", stem, f"annotations/{stem}", place):
            masks = cls(files, folder.strip("/"))
            if masks.find(first) is not None:
                return masks
        return None

    def find(self, name: str) -> Ref | None:
        """The PNG that annotations call by this name; None if there is none."""
        try:
            return self._files.find(f"{self.folder}/{name}".lstrip("/"))
        except (OSError, ValueError):
            return None

    def read(
        self, images: Sequence[Sequence[Entry]]
    ) -> Iterator[list[dict[str, Any]] | str]:
        """COCO's run lengths of each segment, or why there are none, for one image after the other.

        Args:
            images: The segments of each image, with "segment", its number, and "png", the name of the file.
        """
        with ThreadPoolExecutor(count_cores()) as threads:
            for start in range(0, len(images), _READ_AHEAD):
                part = images[start : start + _READ_AHEAD]
                yield from threads.map(self._outlines, part)

    def _outlines(self, segments: Sequence[Entry]) -> list[dict[str, Any]] | str:
        if not segments:
            return []
        name = segments[0]["png"]
        file = self.find(name)
        if file is None:
            return f"its {name!r} is not there"
        try:
            numbers = _numbers_in(self._files.read(file.address))
            return outlines_of(numbers, [segment["segment"] for segment in segments])
        except Exception as error:  # Pillow's parsers may raise anything
            return f"its {name!r} cannot be used: {error}"


def _numbers_in(data: bytes) -> I64:
    """The number of the segment of each pixel, R + 256 G + 65536 B: int64 (height, width)."""
    image = open_file(data, Conversion(alpha="drop")).image
    if image is None:
        raise ValueError("it is no PNG")
    if image.mode in _GRAY:
        return np.asarray(image).astype(np.int64)
    colors = np.asarray(image.convert("RGB")).astype(np.int64)
    return colors @ np.array([1, 256, 65536])


def outlines_of(numbers: I64, segments: Sequence[int]) -> list[dict[str, Any]]:
    """COCO's run lengths of each segment, of a map of numbers (height, width) in which 0 is no segment.

    Raises:
        ValueError: A segment is nowhere in the map, or a number in it is none of them.
    """
    columns = numbers.T.reshape(-1)
    changes = np.flatnonzero(np.diff(columns)) + 1
    starts = np.concatenate([[0], changes])
    ends = np.concatenate([changes, [len(columns)]])
    values = columns[starts]
    if unknown := sorted(set(values.tolist()) - {0, *segments}):
        raise ValueError(f"it holds segments that are not listed: {some_of(unknown)}")
    outlines = list[dict[str, Any]]()
    for segment in segments:
        is_own = values == segment
        if not is_own.any():
            raise ValueError(f"segment {segment} is nowhere in it")
        edges = np.stack([starts[is_own], ends[is_own]], 1).reshape(-1)
        lengths = np.diff(edges, prepend=0, append=len(columns))
        outline = {"size": list(numbers.shape), "counts": compressed_runs(lengths)}
        outlines.append(outline)
    return outlines
