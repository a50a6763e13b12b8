"""Contact sheets: many pictures as one, in a grid, each with a line of text."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from gpuload.pictures.marks import font_of, shorten

_GAP_PX, _FONT_PX = 8, 13
_PAPER, _INK = (255, 255, 255), (40, 40, 45)
_MOST_COLUMNS, _WIDTH_PX = 8, 1_400


class Cell(NamedTuple):
    """A picture and what is written under it."""

    picture: Image.Image
    caption: str


def draw_sheet(cells: Sequence[Cell], columns: int | None = None) -> Image.Image:
    """All pictures in rows, RGB; a sheet of nothing is a small white picture.

    columns: pictures in a row; by default as many as make the sheet about as wide as high, and at most 1,400 pixels.
    """
    if not cells:
        return Image.new("RGB", (2 * _GAP_PX, 2 * _GAP_PX), _PAPER)
    width = max(cell.picture.width for cell in cells)
    height = max(cell.picture.height for cell in cells)
    if columns is None:
        fitting = max(1, (_WIDTH_PX - _GAP_PX) // (width + _GAP_PX))
        columns = min(_MOST_COLUMNS, fitting, max(1, round((len(cells) * height / width) ** 0.5 + 0.49)))
    columns = min(columns, len(cells))
    cell_width, cell_height = width + _GAP_PX, height + _FONT_PX + 2 * _GAP_PX
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * cell_width + _GAP_PX, rows * cell_height + _GAP_PX), _PAPER)
    draw, font = ImageDraw.Draw(sheet), font_of(_FONT_PX)
    for number, (picture, caption) in enumerate(cells):
        left = _GAP_PX + number % columns * cell_width + (width - picture.width) // 2
        top = _GAP_PX + number // columns * cell_height
        sheet.paste(picture, (left, top + height - picture.height))
        text = shorten(caption, width, font)
        middle = _GAP_PX + number % columns * cell_width + width / 2
        draw.text((middle, top + height + 2), text, fill=_INK, font=font, anchor="ma")
    return sheet
