"""Masks: a class number for each pixel of the image, stored as a gray PNG."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import settings, whole
from gpuload.errors import DecodeError
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, FieldSpec, Kind, Member, Parsed
from gpuload.fields.motion import Placement
from gpuload.fields.rows import DatasetView, PixelField
from gpuload.headers import png
from gpuload.types import Array, ClassNames, WidthHeight

_MEMBERS = ("mask.png", "seg.png", "mask")  # extensions in shards packed by other tools
_MODES = ("L", "P", "1", "I", "I;16", "I;16B")  # Pillow's modes with one number per pixel
_GRAY = 0  # PNG colour type


@settings
class Mask(FieldSpec):
    """A class number per pixel, uint8 (N, height, width), cropped, resized (nearest pixel) and flipped as its image.

    name: of the packed field.
    fill: the class number of pixels outside the image, where it is padded or rotated.

    Raises:
        ArgumentError: fill is not in 0..255.
    """

    name: Annotated[str, NAME] = "mask"
    fill: Annotated[int, whole(0, 255, "a class number, in 0..255")] = 0

    kind = "mask"


class MaskKind(Kind):
    """Class numbers 0..255, a gray 8-bit PNG of the image's size; the loader's decoder crops it as it does images."""

    name = "mask"
    specs = (Mask,)
    stays_in_shard = True
    keys = ("mask",)
    usual_names = ("mask", "mask_path")
    in_tables = True
    lies_beneath = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {}

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        return Field(name, self.name, f"{name}.png"), [pa.array(values, pa.large_string())]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """Resizes it as its image, by nearest neighbour; a plain gray PNG that needs no resizing is kept byte for byte.

        Class numbers are the indices of a palette (as in Pascal VOC), or gray values of 8 or 16 bits up to 255.

        Raises:
            DecodeError: it cannot be decoded, has a different size from its image, or has colours or numbers above 255.
        """
        numbers, is_plain = _class_numbers(value, placement.source)
        if numbers.size and (numbers.min() < 0 or numbers.max() > 255):
            raise DecodeError(f"a mask's class numbers must be in 0..255; found {numbers.min()}..{numbers.max()}")
        if is_plain and not placement.changes:
            return Member(value, 0, {})
        moved = placement.resample(Image.fromarray(numbers.astype(np.uint8)), Image.Resampling.NEAREST)
        file = io.BytesIO()
        moved.save(file, "PNG")
        return Member(file.getvalue(), 0, {})

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {}

    def guess(self, member: str, content: Any) -> Field | None:
        return Field(self.name, self.name, member) if member in _MEMBERS else None

    def find_fault(self, field: Field, row: Mapping[str, Any], content: bytes, header: int, image_size: Any) -> str:
        with Image.open(io.BytesIO(content)) as image:
            if image.size != (row["width"], row["height"]):
                return f"is {image.width} x {image.height}, its image {row['width']} x {row['height']}"
            image.load()
        return ""

    def look(self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]) -> dict[str, Any]:
        with Image.open(io.BytesIO(read())) as mask:
            return {field.name: mask.convert("L") if mask.mode not in ("L", "P") else mask.copy()}

    def look_at_batch(self, field: Field, spec: Any, value: Any, row: int, size: WidthHeight) -> dict[str, Any]:
        return {field.name: value[row]}

    def draw(self, field: Field, picture: Image.Image, found: Mapping[str, Any]) -> Image.Image:
        from gpuload.pictures import draw_mask  # Pillow's fonts

        numbers = np.asarray(found[field.name], np.uint8)
        return draw_mask(picture, numbers) if numbers.shape[::-1] == picture.size else picture

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> PixelField:
        wanted = spec if isinstance(spec, Mask) else Mask(field.name)
        return PixelField(wanted.name, "mask", wanted.fill)


def _class_numbers(value: bytes | Array, size: WidthHeight) -> tuple[Array, bool]:
    """The numbers (height, width), and whether the value is a PNG that can be stored as it is.

    Raises:
        DecodeError: as `MaskKind.store`, before anything of another size is decoded.
    """

    def check(shape: tuple[int, ...]) -> None:
        if shape != size:
            raise DecodeError(f"the mask has {' x '.join(map(str, shape[:2]))} pixels, its image {size[0]} x {size[1]}")

    if isinstance(value, np.ndarray):
        numbers = value[..., 0] if value.ndim == 3 and value.shape[-1] == 1 else value
        check(numbers.shape[1::-1] + numbers.shape[2:])
        return numbers, False
    try:
        is_plain = value.startswith(png.START) and value[25] == _GRAY and png.read_header(value).plain
        image = Image.open(io.BytesIO(value))
        if image.mode not in _MODES:
            raise DecodeError(f"a mask must hold one class number per pixel; found colours (mode {image.mode})")
        check(image.size)
        return np.asarray(image), is_plain
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(f"the mask cannot be decoded: {str(error).split(' <')[0] or type(error).__name__}") from None
