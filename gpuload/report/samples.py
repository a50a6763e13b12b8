"""The packed sets of a report: references to their samples, the images that the packer rejected, batches as training
sees them, and how well these are mixed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gpuload.augment import Augment
from gpuload.disk.dataset import Dataset
from gpuload.disk.opening import packed_folders
from gpuload.disk.sample import stored_picture
from gpuload.errors import ArgumentError
from gpuload.machine.untrusted import open_regular, parse_json
from gpuload.order.mixedness import measure_mixing, smallest_good_window
from gpuload.output.collate import make_dict
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures import Cell, color_of, jpeg_uri, name_of, thumbnail
from gpuload.report.pixels import quiet_loader
from gpuload.store.url import LOCATION, URL

_MOST = 16  # splits on a page

_DRAWN = ("class", "labels", "caption", "boxes", "instances", "keypoints", "mask", "target")
_SHOWN, _EPOCHS = 16, 8
_SHOWN_PX = 176  # side of the pictures on the page


@dataclass(frozen=True)
class Split:
    """A packed set of a report. name: its folder's. given: the path or URL as it was given, all that a page tells."""

    name: str
    given: str
    dataset: Dataset


def open_splits(given: Sequence[str]) -> list[Split]:
    """Opens packed folders, folders that hold several, and URLs.

    Raises:
        ArgumentError: one is there twice, or there are more than 16.
        FormatError, ShardError, RemoteError: as `Dataset`.
    """
    locations: list[str] = []
    for text in given:
        is_url = isinstance(LOCATION.read(text), URL)
        locations += [text] if is_url else map(str, packed_folders(Path(text)))
    if len(locations) > _MOST:
        raise ArgumentError(f"report: {len(locations)} packed sets, expected at most {_MOST}. Name fewer")
    if len(set(locations)) < len(locations):
        raise ArgumentError(f"report: a packed set is there twice ({', '.join(locations)}). Name each once")
    names = [location.rstrip("/").rpartition("/")[2] or location for location in locations]
    shown = [name if names.count(name) == 1 else location for name, location in zip(names, locations, strict=True)]
    return [Split(name, location, Dataset(location)) for name, location in zip(shown, locations, strict=True)]


def training_split(splits: Sequence[Split]) -> Split:
    """The one called train, else the largest."""
    return next((s for s in splits if s.name == "train"), max(splits, key=lambda split: len(split.dataset)))


_WIDTH, _HEIGHT = 168, 112  # of a thumbnail, in pixels
_LARGEST = 40_000_000  # bytes of a file that is decoded for a thumbnail
_TEXT = 300  # characters of a key or source


def describe(split: Split, number: int, value: str = "") -> dict[str, Any]:
    """What a page and its JSON tell of a sample, given by its number in its whole set. value: why it is shown."""
    row = split.dataset.row(number).to_pylist()[0]
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


_REJECTED, _MOST_LISTED = "rejected.jsonl", 500
_MOST_BYTES = 40_000_000  # of the list


def read_rejected(split: Split) -> dict[str, Any]:
    """The number of images that were rejected, and left out on request; reasons with their counts; the first 500."""
    found: dict[str, Any] = {"split": split.name, "rejected": 0, "left_out": 0, "reasons": [], "samples": []}
    folder = split.dataset.folder
    if isinstance(folder, URL):
        return found
    reasons = Counter[tuple[str, bool]]()
    try:
        with open_regular(folder / _REJECTED) as file:
            for line in file.read(_MOST_BYTES).splitlines():
                _add(line, reasons, found["samples"])
    except OSError:  # shards that were only indexed have none
        return found
    for (_, asked), count in reasons.items():
        found["left_out" if asked else "rejected"] += count
    found["reasons"] = [
        {"reason": reason, "asked": asked, "count": count} for (reason, asked), count in reasons.most_common(50)
    ]
    return found


def _add(line: bytes, reasons: "Counter[tuple[str, bool]]", samples: list[dict[str, Any]]) -> None:
    try:
        entry = parse_json(line)
        name, reason, asked = str(entry["source"]), str(entry["reason"])[:_TEXT], bool(entry.get("asked"))
    except (ValueError, KeyError, TypeError, AttributeError):
        name, reason, asked = "", "a line of the list that cannot be read", False
    if len(reasons) < 1000 or (reason, asked) in reasons:
        reasons[reason, asked] += 1
    if len(samples) < _MOST_LISTED:
        samples.append({"source": name[:_TEXT], "reason": reason, "asked": asked})


def training_batch(dataset: Dataset, augment: Augment) -> dict[str, Any]:
    """Pictures of the first samples of epoch 0, and of one sample in several epochs."""
    augment = fitted(augment, dataset)
    fields = ["image", *(field.name for field in dataset.fields.values() if field.kind in _DRAWN)]
    with quiet_loader(dataset, augment, _SHOWN, [*fields, "index"]) as loader:
        drawing = BatchDrawing([augment.form], fields, dataset.fields, dataset.classes)
        batch: Any = make_dict(next(iter(loader)))
        cells = drawing.cells(batch, _SHOWN)
    chosen = int(batch["index"][0])
    found: dict[str, Any] = {
        "size": list(augment.output_size),
        "crop": repr(augment.crop),
        "fields": fields,
        "samples": [_picture(cell) for cell in cells],
        "key": dataset.keys([chosen])[0],
        "epochs": [],
        "original": None,
    }
    try:
        found["original"], found["epochs"] = _epochs(dataset, augment, chosen, fields)
    except Exception:  # the sample is damaged, of which the page tells elsewhere
        found["epochs"] = []
    return found


def fitted(augment: Augment, dataset: Dataset) -> Augment:
    """Without constants, which are for RGB, where a set is of other images."""
    pixels = dataset.manifest.pixels
    return augment if pixels.is_rgb else replace(augment, mode=pixels.mode, normalize=None)


def epoch_cells(dataset: Dataset, augment: Augment, number: int, epochs: int) -> list[Cell]:
    """One sample, by its number in the whole set, as training sees it in several epochs."""
    augment = fitted(augment, dataset)
    fields = ["image", *(field.name for field in dataset.fields.values() if field.kind in _DRAWN)]
    place = int(np.searchsorted(dataset.stored_samples(np.arange(len(dataset))), number))
    alone = dataset.subset([place])
    drawing = BatchDrawing([augment.form], fields, dataset.fields, dataset.classes)
    cells = []
    with quiet_loader(alone, augment, 1, fields) as loader:
        for epoch in range(epochs):
            for batch in map(make_dict, loader):
                cells += [Cell(cell.picture, f"epoch {epoch}") for cell in drawing.cells(batch, 1)]
    return cells


def _epochs(dataset: Dataset, augment: Augment, number: int, fields: list[str]) -> tuple[Any, list[Any]]:
    place = int(np.searchsorted(dataset.stored_samples(np.arange(len(dataset))), number))
    image = dataset[place]["image"]
    scale = 2 * _SHOWN_PX / max(image.size)  # small images are enlarged, so that the outlines stay thin
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    shown = image.resize(size, Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(shown)
    for epoch in range(_EPOCHS):
        width, height = (np.array([side], np.int32) for side in (image.width, image.height))
        crops = augment.draw(0, epoch, np.array([number]), width, height).crops
        (top, left), (down, right) = crops.start[0].tolist(), (crops.start + crops.shape)[0].tolist()
        box = [left * scale, top * scale, right * scale - 1, down * scale - 1]
        draw.rectangle(box, outline=color_of(epoch), width=3)
    pictures = []
    for epoch, cell in enumerate(epoch_cells(dataset, augment, number, _EPOCHS)):
        color = "#{:02x}{:02x}{:02x}".format(*color_of(epoch))
        pictures.append({**_picture(cell), "color": color})
    return {"picture": jpeg_uri(shown, 80), "width": shown.width, "height": shown.height}, pictures


def _picture(cell: Cell) -> dict[str, Any]:
    small = thumbnail(cell.picture, _SHOWN_PX, _SHOWN_PX)
    return {"picture": jpeg_uri(small, 78), "caption": cell.caption, "width": small.width, "height": small.height}


def mixing(dataset: Dataset, window: int, batch_size: int) -> dict[str, Any]:
    """How well a window of shards mixes."""
    found = measure_mixing(dataset, window, batch_size)
    return {
        "window": min(window, len(dataset.shard_paths)),
        "shards": len(dataset.shard_paths),
        "batch_size": found.batch_size,
        "distance": found.distance,
        "classes_in_batch": found.classes,
        "expected_classes": found.expected_classes,
        "is_poor": found.is_poor,
        "good_window": smallest_good_window(dataset, batch_size) if found.is_poor else None,
    }
