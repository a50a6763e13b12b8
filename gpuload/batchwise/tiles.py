"""Joins tiles into images."""

from importlib import import_module
from typing import Any

from gpuload.checks import SIDE, Rule, checked, several
from gpuload.errors import ArgumentError


def _as_tiles(value: Any) -> Any:
    if not hasattr(value, "shape") or len(value.shape) < 3:
        raise TypeError
    return import_module("torch").as_tensor(value)


def _as_corners(value: Any) -> Any:
    torch = import_module("torch")
    try:
        corners = torch.as_tensor(value)
    except (ValueError, RuntimeError):
        raise TypeError from None
    if corners.ndim != 2 or corners.shape[1] != 2 or corners.dtype not in (torch.int64, torch.int32):
        raise TypeError
    return corners


_TILES = Rule("a tensor or an array (N, …, height, width)", _as_tiles)
_CORNERS = Rule("top and left of each tile, whole numbers (N, 2)", _as_corners)
_SIZE = several(SIDE, "(height, width) of the image in pixels", count=2)


@checked("join_tiles", tiles=_TILES, corners=_CORNERS, size=_SIZE)
def join_tiles(tiles: Any, corners: Any, size: tuple[int, int]) -> Any:
    """Assembles an image from its tiles, or from a model's output for each tile; overlaps are averaged.

    tiles: (N, …, height, width), such as pixels (N, 3, height, width) or scores (N, classes, height, width), tensors or
        arrays of NumPy.
    corners: whole numbers (N, 2), top and left of each tile in the image: the field "crop_top_left". Parts outside the
        image, such as padding, are ignored.
    size: (height, width) of the image, a row of the field "original_size".

    Returns a tensor (…, height, width) on the device of the tiles, of their dtype, or float32 for integer tiles.

    Raises:
        ArgumentError: the numbers of tiles and corners differ, or no tile covers some pixel.
    """
    if len(tiles) != len(corners):
        raise ArgumentError(f"join_tiles: expected a corner for each tile, found {len(tiles)} and {len(corners)}")
    torch = import_module("torch")
    dtype = tiles.dtype if tiles.is_floating_point() else torch.float32
    image = torch.zeros((*tiles.shape[1:-2], *size), dtype=dtype, device=tiles.device)
    shown = torch.zeros(size, dtype=dtype, device=tiles.device)
    for tile, place in zip(tiles, corners.tolist(), strict=True):
        ranges = [
            (max(at, 0), min(at + side, whole)) for at, side, whole in zip(place, tile.shape[-2:], size, strict=True)
        ]
        inside = ..., *(slice(low, max(low, high)) for low, high in ranges)
        own = ..., *(slice(low - at, max(low, high) - at) for at, (low, high) in zip(place, ranges, strict=True))
        image[inside] += tile[own]
        shown[inside] += 1
    if not shown.all():
        row, column = torch.nonzero(shown == 0)[0].tolist()
        raise ArgumentError(
            f"join_tiles: no tile shows the pixel at row {row}, column {column} of {size[0]} × {size[1]}"
        )
    return image / shown
