"""A batch as pictures: what training gets, with normalisation undone, and boxes, masks, keypoints and classes drawn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpuload.augment import Form
from gpuload.fields.boxes import Boxes
from gpuload.fields.class_numbers import BACKGROUND, OneHot
from gpuload.fields.field import Field
from gpuload.fields.keypoints import Keypoints
from gpuload.fields.kind import FieldSpec
from gpuload.output.collate import CORRUPT
from gpuload.pictures.as_rgb import as_rgb, stretched
from gpuload.pictures.marks import draw_boxes, draw_keypoints, draw_mask, name_of
from gpuload.pictures.sheet import Cell
from gpuload.types import F64, U8, Array, ClassNames

_SEPARATOR = " · "
_MOST_NAMES, _LEAST_WEIGHT = 3, 0.05  # classes under a picture, and the weight in a mixed label from which one counts


class BatchDrawing:
    """Draws batches of one loader.

    forms: of its views. specs: the fields that were asked for, by name. fields, classes: of its data set.
    """

    def __init__(
        self,
        forms: Sequence[Form],
        specs: Sequence[str | FieldSpec],
        fields: Mapping[str, Field],
        classes: ClassNames,
    ) -> None:
        self._forms, self._fields, self._classes = tuple(forms), fields, classes
        self._specs = {spec if isinstance(spec, str) else spec.name: spec for spec in specs}

    def cells(self, batch: Mapping[str, Any], count: int) -> list[Cell]:
        """The first samples of a batch, given by the names of its fields; with several views one cell for each."""
        images = batch["image"] if isinstance(batch["image"], tuple) else (batch["image"],)
        number = min(count, len(images[0]))
        kept = {name: _first(value, number) for name, value in batch.items()}
        views = kept["image"] if isinstance(kept["image"], tuple) else (kept["image"],)
        stored = self._fields.get("image")
        floats = stored is not None and stored.dtype == "<f4"
        pixels = [undo_normalize(images, form, floats) for images, form in zip(views, self._forms, strict=True)]
        found = []
        for row in range(number):
            caption = self._caption(kept, row)
            for view, levels in enumerate(pixels):
                picture = self._draw(Image.fromarray(levels[row]), kept, row, view)
                many = f"view {view}{_SEPARATOR}" if len(pixels) > 1 else ""
                found.append(Cell(picture, many + caption))
        return found

    def _draw(self, picture: Image.Image, batch: Mapping[str, Any], row: int, view: int) -> Image.Image:
        size = np.array(picture.size * 2, np.float64)
        for name, value in batch.items():
            field = self._fields.get(name)
            kind = field.kind if field is not None else ""
            if kind == "mask":
                picture = draw_mask(picture, _of_view(value, view)[row])
        for name, value in batch.items():
            field = self._fields.get(name)
            if field is None or field.kind not in ("boxes", "keypoints"):
                continue
            found, spec = _of_view(value, view), self._specs.get(name)
            count = int(found.counts[row])
            if field.kind == "boxes":
                boxes = _corners(found.boxes[row][:count].astype(np.float64), spec, size)
                draw_boxes(picture, boxes, found.labels[row][:count].tolist(), field.classes)
            else:
                points = found.keypoints[row][:count].astype(np.float64)
                if isinstance(spec, Keypoints) and spec.normalized:
                    points[..., :2] *= size[:2]
                draw_keypoints(picture, points)
        return picture

    def _caption(self, batch: Mapping[str, Any], row: int) -> str:
        if CORRUPT in batch and batch[CORRUPT][row]:
            return "does not decode"
        texts = []
        for name, value in batch.items():
            field = self._fields.get(name)
            if field is None or field.kind not in ("class", "labels", "caption", "target"):
                continue
            value = _of_view(value, 0)
            if field.kind == "class":
                texts.append(_names(value[row], self._columns(name), self._classes))
            elif field.kind == "labels":
                texts.append(_names(value[row], field.classes, field.classes))
            elif field.kind == "caption":
                texts.append(str(value[row]))
            else:
                numbers = np.atleast_1d(value[row])[:_MOST_NAMES]
                texts.append(f"{name} {', '.join(f'{number:.3g}' for number in numbers)}")
        return _SEPARATOR.join(text for text in texts if text)

    def _columns(self, name: str) -> ClassNames:
        """The names of the columns of one-hot labels; see `OneHot`, which moves the background's."""
        spec = self._specs.get(name)
        if self._classes is None or not isinstance(spec, OneHot):
            return self._classes
        others = tuple(known for known in self._classes if known != BACKGROUND)
        return (BACKGROUND, *others) if spec.background else others


def undo_normalize(images: Any, form: Form, floats: bool = False) -> U8:
    """uint8 (N, height, width, 3) from a batch (N, C, height, width), by the mean and std that it was normalised with.

    Where each image was normalised by its own, or the set's pixels are floats, the smallest value of an image becomes 0
    and its largest 255.
    """
    values = _as_numpy(images).transpose(0, 2, 3, 1)
    if values.dtype == np.uint8:
        return as_rgb(values)
    levels = values.astype(np.float32)
    if form.normalize != "image":
        levels = levels * np.array(form.std, np.float32) + np.array(form.mean, np.float32)
    levels = stretched(levels) if floats or form.normalize == "image" else np.clip(np.nan_to_num(levels), 0, 1)
    return as_rgb(np.rint(levels * 255).astype(np.uint8))


def _first(value: Any, count: int) -> Any:
    """The first samples of a field's value, as NumPy arrays; tuples keep their type."""
    if isinstance(value, tuple):
        parts = [_first(part, count) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return value[:count]
    return _as_numpy(value[:count])


def _as_numpy(value: Any) -> Array:
    """Of torch's, CuPy's and NumPy's arrays; torch's bfloat16, which NumPy lacks, becomes float32."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    return np.asarray(value.get() if hasattr(value, "get") else value)


def _of_view(value: Any, view: int) -> Any:
    """The value for one view: a field that depends on the view is a plain tuple of one for each."""
    return value[view] if isinstance(value, tuple) and not hasattr(value, "_fields") else value


def _corners(boxes: F64, spec: Any, size: F64) -> F64:
    """x0, y0, x1, y1 in pixels, from boxes in the format that was asked for."""
    if isinstance(spec, Boxes):
        if spec.normalized:
            boxes = boxes * size
        if spec.format != "xyxy":
            low = boxes[:, :2] - (boxes[:, 2:] / 2 if spec.format == "cxcywh" else 0)
            boxes = np.concatenate([low, low + boxes[:, 2:]], axis=1)
    return boxes


def _names(value: Any, columns: ClassNames, classes: ClassNames) -> str:
    """The class of a number, or those of a row of weights, the largest first."""
    if np.ndim(value) == 0:
        return name_of(int(value), classes)
    weights = np.asarray(value, np.float64)
    order = [int(n) for n in np.argsort(-weights, kind="stable")[:_MOST_NAMES] if weights[n] >= _LEAST_WEIGHT]
    whole = all(weights[n] > 0.99 for n in order)
    return ", ".join(name_of(n, columns) + ("" if whole else f" {weights[n]:.2f}") for n in order)
