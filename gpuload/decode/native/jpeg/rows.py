"""Rows of the planes of a part to rows of RGB."""

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.jpeg.colors import PIXELS, between_four, between_two, gray, repeated, same
from gpuload.decode.native.jpeg.frame import Frame
from gpuload.decode.native.jpeg.part import Part, Plane
from gpuload.decode.native.pointers import bytes_at

SPARE_PIXELS = PIXELS  # that may be written after the last one


@inlined
def ready_rows(frame: Frame, part: Part, row: int) -> int:
    """How many rows of pixels are complete once the planes hold this row of MCUs."""
    if row == part.end_row - 1:
        return part.height
    # The last row needs the chroma below it.
    rows = (row + 1) * frame.down * part.luma.size - (1 if part.down == 2 else 0)
    return min(max(rows - part.top, 0), part.height)


@inlined
def convert_rows(frame: Frame, part: Part, begin: int, end: int, address: int) -> None:
    """Rows begin..end-1 of the part to RGB. address: of the pixels of the part."""
    luma, blue, red = part.luma, part.blue, part.red
    smooth = blue.width > 2 and luma.size > 1  # as libjpeg does it
    for y in range(begin, end):
        luma_at = _row(luma, part.top + y) + part.left - luma.left
        rgb = address + 3 * part.width * y
        if frame.components == 1:
            for x in range(0, part.width, PIXELS):
                gray(luma_at + x, rgb + 3 * x)
            continue
        near = (part.top + y) // part.down
        far = near if part.down == 1 else min(max(near - 1 + 2 * ((part.top + y) & 1), 0), blue.height - 1)
        skip = part.left // part.across - blue.left
        blue_near, blue_far = _row(blue, near) + skip, _row(blue, far) + skip
        red_near, red_far = _row(red, near) + skip, _row(red, far) + skip
        for x in range(0, part.width, PIXELS):
            c = x // part.across
            if part.across == 1:
                same(luma_at + x, blue_near + c, blue_far + c, red_near + c, red_far + c, rgb + 3 * x)
            elif not smooth:
                repeated(luma_at + x, blue_near + c, blue_far + c, red_near + c, red_far + c, rgb + 3 * x)
            elif part.down == 1:
                between_two(luma_at + x, blue_near + c, blue_far + c, red_near + c, red_far + c, rgb + 3 * x)
            else:
                between_four(luma_at + x, blue_near + c, blue_far + c, red_near + c, red_far + c, rgb + 3 * x)


@inlined
def _row(plane: Plane, y: int) -> int:
    """The address of a row of the component."""
    return plane.address + ((y - plane.top) & (plane.rows - 1)) * plane.stride


@inlined
def repeat_edges(frame: Frame, part: Part, row: int) -> None:
    """Repeats the first and the last chroma sample of each line in a row of MCUs, where it is at the image's edge."""
    if part.across == 1:
        return
    for plane in (part.blue, part.red):
        for y in range(row * plane.size, (row + 1) * plane.size):
            levels = bytes_at(_row(plane, y) - 1)
            if part.first_column == 0:
                levels[0] = levels[1]
            if part.end_column == frame.columns:
                end = plane.width - plane.left
                levels[end + 1] = levels[end]
