"""The packed sets of a report: references to their samples, the images that the packer rejected, and samples as
training sees them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuload.augment import Augment
from gpuload.disk.dataset import Dataset, stored_sample
from gpuload.disk.places import packed_locations
from gpuload.errors import ArgumentError
from gpuload.machine.untrusted import open_regular, parse_json
from gpuload.pictures import jpeg_uri, name_of, thumbnail
from gpuload.report.pixels import quiet_loader
from gpuload.store.url import URL

_DRAWN = (
    "class",
    "labels",
    "caption",
    "boxes",
    "instances",
    "keypoints",
    "mask",
    "target",
)
_SHOWN = 16  # samples of a batch
_SHEET_PX = 1_400  # the sides of their picture
_WIDTH = 168  # of a thumbnail, in pixels
_HEIGHT = 112
_LARGEST = 40_000_000  # bytes of a file that is decoded for a thumbnail
_TEXT = 300  # characters of a key or source
_REJECTED = "rejected.jsonl"
_MOST_LISTED = 500
_MOST_BYTES = 40_000_000  # of the list


@dataclass(frozen=True)
class ReportSplit:
    """A packed set of a report.

    Attributes:
        name: Of its folder.
        given: The path or URL as it was given, all that a page tells of the place.
        dataset: Opened.
    """

    name: str
    given: str
    dataset: Dataset


def open_splits(given: Sequence[str]) -> list[ReportSplit]:
    """Opens packed folders, folders that hold several, and URLs.

    Raises:
        ArgumentError: one is there twice.
        FormatError, ShardError, RemoteError: as `Dataset`.
    """
    locations: list[str] = []
    for text in given:
        locations += map(str, packed_locations(text))
    if len(set(locations)) < len(locations):
        raise ArgumentError(
            f"report: a packed set is there twice ({', '.join(locations)}). Name each once"
        )
    names = [
        location.rstrip("/").rpartition("/")[2] or location for location in locations
    ]
    shown = [
        name if names.count(name) == 1 else location
        for name, location in zip(names, locations, strict=True)
    ]
    return [
        ReportSplit(name, location, Dataset(location))
        for name, location in zip(shown, locations, strict=True)
    ]


def training_split(splits: Sequence[ReportSplit]) -> ReportSplit:
    """The one called train, else the largest."""
    return next(
        (s for s in splits if s.name == "train"),
        max(splits, key=lambda split: len(split.dataset)),
    )


def describe(split: ReportSplit, number: int, value: str = "") -> dict[str, Any]:
    """What a page and its JSON tell of a sample.

    Args:
        split: The packed set.
        number: Of the sample in its whole set.
        value: Why it is shown.
    """
    row = split.dataset.row(number).to_pylist()[0]
    label = row.get("label") if "label" in split.dataset.fields else None
    return {
        "split": split.name,
        "index": number,
        "key": str(row["key"])[:_TEXT],
        "source": str(row["source"])[:_TEXT],
        "width": row["width"],
        "height": row["height"],
        "bytes": row[split.dataset.manifest.image.bytes_column],
        "label": None if label is None else name_of(label, split.dataset.classes),
        "value": value,
    }


class Thumbnails:
    """The thumbnails of a page, each made once, as long as they fit into so many bytes; the first ones asked for.

    uris: by split and number; "" of an image that does not decode.
    """

    def __init__(self, splits: Sequence[ReportSplit], most_bytes: int) -> None:
        self._splits = {split.name: split.dataset for split in splits}
        self._left = most_bytes
        self.uris: dict[tuple[str, int], str] = {}

    def want(
        self, sample: dict[str, Any], width: int = _WIDTH, height: int = _HEIGHT
    ) -> None:
        """Makes the thumbnail of a sample as `describe` gives it, where it is missing."""
        place = (sample["split"], sample["index"])
        if place in self.uris or self._left <= 0 or sample["bytes"] > _LARGEST:
            return
        try:
            dataset = self._splits[place[0]]
            image = stored_sample(dataset, place[1]).picture(
                dataset.manifest.image, 2 * max(width, height)
            )
            uri = jpeg_uri(thumbnail(image, width, height))
        except Exception:  # a damaged image, of which the page tells elsewhere
            uri = ""
        self._left -= len(uri)
        if self._left >= 0:
            self.uris[place] = uri


def read_rejected(split: ReportSplit) -> dict[str, Any]:
    """The number of images that were rejected, and left out on request; reasons with their counts; the first 500."""
    samples: list[dict[str, Any]] = []
    reasons = Counter[tuple[str, bool]]()
    for line in _rejected_lines(split.dataset.folder):
        try:
            entry = parse_json(line)
            name = str(entry["source"])
            reason = str(entry["reason"])[:_TEXT]
            asked = bool(entry.get("asked"))
        except (ValueError, KeyError, TypeError, AttributeError):
            name = ""
            reason = "a line of the list that cannot be read"
            asked = False
        if len(reasons) < 1000 or (reason, asked) in reasons:
            reasons[reason, asked] += 1
        if len(samples) < _MOST_LISTED:
            samples.append({"source": name[:_TEXT], "reason": reason, "asked": asked})
    left_out = sum(count for (_, asked), count in reasons.items() if asked)
    listed = [
        {"reason": reason, "asked": asked, "count": count}
        for (reason, asked), count in reasons.most_common(50)
    ]
    rejected = reasons.total() - left_out
    return {
        "split": split.name,
        "rejected": rejected,
        "left_out": left_out,
        "reasons": listed,
        "samples": samples,
    }


def _rejected_lines(folder: Path | URL) -> list[bytes]:
    try:
        if isinstance(folder, URL):
            return []
        with open_regular(folder / _REJECTED) as file:
            return file.read(_MOST_BYTES).splitlines()
    except OSError:  # shards that were only indexed have none
        return []


def training_batch(dataset: Dataset, augment: Augment) -> dict[str, Any]:
    """A picture of the first samples of epoch 0, with all fields that are drawn; of large crops, fewer."""
    height, width = augment.output_size
    fields = [
        dataset.manifest.image.name,
        *(field.name for field in dataset.fields.values() if field.kind in _DRAWN),
    ]
    if not dataset.manifest.pixels.is_rgb:  # the constants are for RGB
        augment = replace(augment, normalize=None)
    with quiet_loader(dataset, augment, _SHOWN, fields) as loader:
        sheet = loader.preview(
            min(_SHOWN, max(1, _SHEET_PX // max(height, width)) ** 2)
        )
        shown = thumbnail(sheet, _SHEET_PX, _SHEET_PX)
        picture = {
            "picture": jpeg_uri(shown, 78),
            "width": shown.width,
            "height": shown.height,
        }
        return {"size": [height, width], "fields": list(loader.fields), **picture}
