"""Draws a batch as training sees it: normalisation undone, with its boxes, masks, keypoints and classes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpuload.augment import Form
from gpuload.fields.field import Field
from gpuload.fields.kind import FieldSpec
from gpuload.fields.picture_lists import PackedPictures, PaddedPictures, PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import draw_fields, kind_of
from gpuload.fields.rows import map_tree, take
from gpuload.output.names import CORRUPT
from gpuload.pictures import Cell, as_picture, as_rgb, side_by_side, stretched
from gpuload.types import ClassNames

_SEPARATOR = " · "
_FURTHER = (PictureKind.name, PicturesKind.name)


class BatchDrawing:
    """Draws batches of one loader.

    Args:
        forms: Of its views.
        specs: The requested fields, by name.
        fields: Of its data set, by name.
        classes: Names of the classes of its data set; None without names.
        image: The name of the image.
    """

    def __init__(
        self,
        forms: Sequence[Form],
        specs: Sequence[str | FieldSpec],
        fields: Mapping[str, Field],
        classes: ClassNames,
        image: str = "image",
    ) -> None:
        self._image = image
        self._forms = tuple(forms)
        self._fields = fields
        self._classes = classes
        self._specs = {
            spec if isinstance(spec, str) else spec.name: spec for spec in specs
        }

    @property
    def cells_of_sample(self) -> int:
        """How many cells `cells` gives for each sample."""
        has_image = self._image in self._specs
        return len(self._forms) * (has_image + len(self._further_names))

    @property
    def _further_names(self) -> list[str]:
        """The requested further pictures and lists of pictures."""
        return [
            name
            for name in self._specs
            if name in self._fields and self._fields[name].kind in _FURTHER
        ]

    def cells(self, batch: Any, count: int) -> list[Cell]:
        """The first samples of a batch, a named tuple or a dict of its fields; with several views, one cell for each
        view. Without the image, the first of its further pictures has the caption."""
        fields = batch if isinstance(batch, Mapping) else batch._asdict()
        by_sample = {name: _by_sample(value) for name, value in fields.items()}
        has_image = self._image in self._specs
        leading = self._image if has_image else self._further_names[0]
        samples = min(count, len(_of_view(by_sample[leading], 0)))
        drawn: dict[str, Any] = map_tree(_as_numpy, take(by_sample, slice(samples)))
        views = self._levels(drawn) if has_image else [None] * len(self._forms)
        return [
            cell
            for row in range(samples)
            for cell in self._cells_of_sample(drawn, views, row)
        ]

    def _cells_of_sample(
        self, batch: Mapping[str, Any], views: Sequence[Any], row: int
    ) -> Iterator[Cell]:
        """The cells of a sample, view after view.

        Args:
            batch: Its fields.
            views: What `_levels` gives for each view; None for each without the image.
            row: Of the sample in the batch.
        """
        caption = self._caption(batch, row)
        if self._image not in self._specs:
            leading = self._further_names[0]
            caption = _SEPARATOR.join(filter(None, (leading, caption)))
        for view, levels in enumerate(views):
            cells = self._further(batch, row, view)
            if levels is not None:
                shown = Image.fromarray(levels[row])
                cells.insert(0, Cell(self._draw(shown, batch, row, view), ""))
            prefix = f"view {view}{_SEPARATOR}" if len(views) > 1 else ""
            yield cells[0]._replace(caption=prefix + caption)
            yield from cells[1:]

    def _levels(self, batch: Mapping[str, Any]) -> list[Any]:
        """As `undo_normalize`, of each view of the image."""
        stored = self._fields.get(self._image)
        is_deep = stored is not None and stored.dtype in ("<u2", "<f4")
        views = _views_of(batch[self._image])
        return [
            undo_normalize(images, form, is_deep)
            for images, form in zip(views, self._forms, strict=True)
        ]

    def _further(self, batch: Mapping[str, Any], row: int, view: int) -> list[Cell]:
        """The further pictures of a sample, each stretched from its smallest value to its largest."""
        cells = []
        for name, value in batch.items():
            field = self._fields.get(name)
            if field is None or field.kind not in _FURTHER:
                continue
            shown = _of_view(value, view)[row]
            if field.kind == PictureKind.name:
                cells.append(Cell(_stretched(shown), name))
            else:
                cells.append(Cell(side_by_side(list(map(_stretched, shown))), name))
        return cells

    def _draw(
        self, picture: Image.Image, batch: Mapping[str, Any], row: int, view: int
    ) -> Image.Image:
        def look(field: Field) -> dict[str, Any]:
            spec = self._specs.get(field.name)
            value = _of_view(batch[field.name], view)
            return kind_of(field).look_at_batch(field, spec, value, row)

        return draw_fields(
            picture,
            [self._fields[name] for name in batch if name in self._fields],
            look,
        )

    def _caption(self, batch: Mapping[str, Any], row: int) -> str:
        if CORRUPT in batch and batch[CORRUPT][row]:
            return "does not decode"
        texts = []
        for name, value in batch.items():
            field = self._fields.get(name)
            if field is None or kind_of(field).stays_in_shard:
                continue
            first_view = _of_view(value, 0)
            if isinstance(first_view, tuple | dict):  # padded, or tokens
                continue
            kind = kind_of(field)
            classes = kind.class_names(field, self._classes)
            texts.append(
                kind.caption(field, self._specs.get(name), first_view[row], classes)
            )
        return _SEPARATOR.join(text for text in texts if text)


def _by_sample(value: Any) -> Any:
    """The pictures of each sample, where a field holds lists of them; any other field as it is."""
    if isinstance(value, PackedPictures):
        return value.split()
    if isinstance(value, PaddedPictures):
        pairs = zip(value.pixels, value.counts.tolist(), strict=True)
        return [pictures[:count] for pictures, count in pairs]
    if type(value) is tuple:
        return tuple(map(_by_sample, value))
    return value


def _stretched(values: Any) -> Image.Image:
    """A picture of values (C, height, width) or (height, width), from the smallest to the largest."""
    numbers = np.asarray(values, np.float32)
    planes = numbers if numbers.ndim == 3 else numbers[None]
    return as_picture(np.moveaxis(planes, 0, 2))


def _views_of(images: Any) -> tuple[Any, ...]:
    return images if isinstance(images, tuple) else (images,)


def undo_normalize(images: Any, form: Form, is_deep: bool = False) -> Any:
    """uint8 (N, height, width, 3) from a batch (N, C, height, width) and the constants of its normalisation; a list
    from a list of images.

    If each image was normalised by its own constants, the smallest value of an image becomes 0 and its largest 255.

    Args:
        images: The batch.
        form: Of its view.
        is_deep: Whether the set's pixels are of 16 bits or floats, which are stretched as `as_rgb` does it.
    """
    if isinstance(images, list):  # each of its own size
        return [undo_normalize(image[None], form, is_deep)[0] for image in images]
    values = _as_numpy(images).transpose(0, 2, 3, 1)
    if values.dtype == np.uint8:
        return as_rgb(values)
    levels = values.astype(np.float32)
    if form.normalize != "image":
        levels = levels * np.array(form.std, np.float32) + np.array(
            form.mean, np.float32
        )
    if is_deep:
        return as_rgb(levels)
    levels = (
        stretched(levels)
        if form.normalize == "image"
        else np.clip(np.nan_to_num(levels), 0, 1)
    )
    return as_rgb(np.rint(levels * 255).astype(np.uint8))


def _as_numpy(value: Any) -> Any:
    """Converts torch, CuPy and NumPy arrays, also in lists; torch's bfloat16, which NumPy lacks, becomes float32."""
    if isinstance(value, list):
        return [
            map_tree(
                lambda leaf: _as_numpy(leaf) if hasattr(leaf, "shape") else leaf, row
            )
            for row in value
        ]
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    return np.asarray(value.get() if hasattr(value, "get") else value)


def _of_view(value: Any, view: int) -> Any:
    """The value for one view: a field that depends on the view is a plain tuple with one value for each."""
    return (
        value[view]
        if isinstance(value, tuple) and not hasattr(value, "_fields")
        else value
    )
