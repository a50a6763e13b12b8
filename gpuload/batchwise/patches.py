"""Parts of images: the centre cut out of each, for inpainting, and tiles joined into an image."""

from importlib import import_module
from typing import Annotated, Any

import numpy as np

from gpuload.batchwise.transforms import BatchForm, FieldBatch, require_fields
from gpuload.checks import (
    LARGEST,
    SIDE,
    SIDES,
    Rule,
    checked,
    number,
    settings,
    several,
    text,
)
from gpuload.errors import ArgumentError
from gpuload.types import HeightWidth


@settings
class CenterHole:
    """The inpainting task: moves the centre of each image to a separate field and leaves a hole in the image.

    Args:
        size: Of the hole in pixels, or (height, width). If the number of remaining pixels is odd, there is one more
            below and to the right of the hole.
        fill: Value in the hole, in units of the batch: 0 is the mean of a normalised image; for uint8, the units are
            0..255 and 0 is black.
        target: Name of the added field: (N, 3, height, width) of the hole, of the image's dtype.

    Raises:
        ArgumentError: a size that is not positive.
    """

    size: Annotated[int | tuple[int, int], SIDES] = 32
    fill: Annotated[float, number(-LARGEST, LARGEST, "a number in -1e6..1e6")] = 0.0
    target: Annotated[str, text("the name of the field that is added")] = "middle"

    @property
    def adds(self) -> tuple[str, ...]:
        """As `BatchTransform`."""
        return (self.target,)

    @property
    def _hole(self) -> HeightWidth:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def check(self, form: BatchForm) -> None:
        """Raises ArgumentError if the hole does not fit into images of this form, or its fill into their dtype."""
        require_fields(self, form, "image")
        height, width = form.image_size
        if self._hole[0] > height or self._hole[1] > width:
            raise ArgumentError(
                f"{self}: the hole is larger than the image, {height}×{width} pixels (height×width)"
            )
        if form.dtype == "uint8" and self.fill not in range(256):
            raise ArgumentError(
                f"{self}: the images are uint8; fill must be a whole number in 0..255"
            )

    def __call__(self, batch: FieldBatch) -> None:
        self.check(batch.form)
        images = batch.fields["image"]
        height, width = self._hole
        top = (images.shape[-2] - height) // 2
        left = (images.shape[-1] - width) // 2
        middle = images[..., top : top + height, left : left + width]
        batch.fields[self.target] = middle.copy()
        middle[...] = self.fill


def _as_tiles(value: Any) -> Any:
    if not hasattr(value, "shape") or len(value.shape) < 3:
        raise TypeError
    return import_module("torch").as_tensor(value)


def _as_corners(value: Any) -> Any:
    corners = np.asarray(value.tolist() if hasattr(value, "tolist") else value)
    if corners.ndim != 2 or corners.shape[1] != 2 or corners.dtype.kind != "i":
        raise TypeError
    return corners


_TILES = Rule("a tensor or an array (N, …, height, width)", _as_tiles)
_CORNERS = Rule("top and left of each tile, whole numbers (N, 2)", _as_corners)
_SIZE = several(SIDE, "(height, width) of the image in pixels", count=2)


@checked("join_tiles", tiles=_TILES, corners=_CORNERS, size=_SIZE)
def join_tiles(tiles: Any, corners: Any, size: tuple[int, int]) -> Any:
    """Assembles an image from its tiles, or from a model's output for each tile; overlaps are averaged.

    Args:
        tiles: (N, …, height, width), such as pixels (N, 3, height, width) or scores (N, classes, height, width),
            tensors or arrays of NumPy.
        corners: Whole numbers (N, 2), top and left of each tile in the image: the field "crop_top_left". Parts outside
            the image, such as padding, are ignored.
        size: (height, width) of the image, a row of the field "original_size".

    Returns a tensor (…, height, width) on the device of the tiles, of their dtype, or float32 for integer tiles.

    Raises:
        ArgumentError: the numbers of tiles and corners differ, or no tile covers some pixel.
    """
    if len(tiles) != len(corners):
        raise ArgumentError(
            f"join_tiles: expected a corner for each tile, found {len(tiles)} and {len(corners)}"
        )
    torch = import_module("torch")
    dtype = tiles.dtype if tiles.is_floating_point() else torch.float32
    image = torch.zeros((*tiles.shape[1:-2], *size), dtype=dtype, device=tiles.device)
    shown = torch.zeros(size, dtype=dtype, device=tiles.device)
    for tile, (top, left) in zip(tiles, corners.tolist(), strict=True):
        rows = slice(max(top, 0), max(top + tile.shape[-2], 0))
        columns = slice(max(left, 0), max(left + tile.shape[-1], 0))
        part = image[..., rows, columns]
        part += tile[..., max(-top, 0) :, max(-left, 0) :][
            ..., : part.shape[-2], : part.shape[-1]
        ]
        shown[rows, columns] += 1
    if not shown.all():
        row, column = torch.nonzero(shown == 0)[0].tolist()
        raise ArgumentError(
            f"join_tiles: no tile shows the pixel at row {row}, column {column} of {size[0]} × {size[1]}"
        )
    return image / shown
