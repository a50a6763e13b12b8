"""Facts that only a loader can show: batches as training sees them, and how well they are mixed."""

from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gpuload.augment import Augment
from gpuload.disk.dataset import Dataset
from gpuload.order.mixedness import measure_mixing, smallest_good_window
from gpuload.output.collate import make_dict
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures.marks import color_of
from gpuload.pictures.shown import Cell, jpeg_uri, thumbnail
from gpuload.report.pixels import quiet_loader

_DRAWN = ("class", "labels", "caption", "boxes", "instances", "keypoints", "mask", "target")
_SHOWN, _EPOCHS = 16, 8
_SHOWN_PX = 176  # side of the pictures on the page


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
