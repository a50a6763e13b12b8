"""How a page refers to a sample, and its thumbnail."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.disk.sample import stored_picture
from gpuload.pictures.embed import jpeg_uri, thumbnail
from gpuload.pictures.marks import name_of
from gpuload.report.splits import Split

_WIDTH, _HEIGHT = 168, 112  # of a thumbnail, in pixels
_LARGEST = 40_000_000  # bytes of a file that is decoded for a thumbnail
_TEXT = 300  # characters of a key or source


def describe(split: Split, number: int, value: str = "") -> dict[str, Any]:
    """What a page and its JSON tell of a sample, given by its number in its whole set. value: why it is shown."""
    row = row_of(split.dataset, number)
    label = row.get("label") if "label" in split.dataset.fields else None
    return {
        "split": split.name,
        "index": number,
        "key": str(row["key"])[:_TEXT],
        "source": str(row["source"])[:_TEXT],
        "width": row["width"],
        "height": row["height"],
        "bytes": row["image_bytes"],
        "label": None if label is None else name_of(label, split.dataset.classes),
        "value": value,
    }


def row_of(dataset: Dataset, number: int) -> dict[str, Any]:
    """A sample's row of the index, by its number in the whole set."""
    shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
    found: dict[str, Any] = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1).to_pylist()[0]
    return found


class Thumbnails:
    """The thumbnails of a page, each made once, as long as they fit into so many bytes; the first ones asked for."""

    def __init__(self, splits: Sequence[Split], most_bytes: int) -> None:
        self._splits = {split.name: split.dataset for split in splits}
        self._left = most_bytes
        self.uris: dict[tuple[str, int], str] = {}
        self._broken: set[tuple[str, int]] = set()
        self.is_full = False

    def want(self, sample: dict[str, Any], width: int = _WIDTH, height: int = _HEIGHT) -> bool:
        """Whether there is a thumbnail of a sample as `describe` gives it, which is made where it is missing."""
        place = (sample["split"], sample["index"])
        if place in self.uris:
            return True
        if place in self._broken or self.is_full or sample["bytes"] > _LARGEST:
            return False
        try:
            uri = self._make(*place, width, height)
        except Exception:  # a damaged image, of which the page tells elsewhere
            self._broken.add(place)
            return False
        if len(uri) > self._left:
            self.is_full = True
            return False
        self._left -= len(uri)
        self.uris[place] = uri
        return True

    def _make(self, split: str, number: int, width: int, height: int) -> str:
        image = stored_picture(self._splits[split], number, 2 * max(width, height))
        return jpeg_uri(thumbnail(image, width, height))
