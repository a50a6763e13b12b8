"""Further pictures of a sample as a batch holds them: pictures that move alike, and maps of values by pixel.

A map has numbers in place of colours: depth, disparity, optical flow, normals, mattes, ids. They are taken as they are
stored, moved with their image, and some of them change with it: a flow to the right points to the left in a mirrored
image, and is twice as long in one of twice the width.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np

from gpuload.checks import (
    FLAG,
    POSITIVE,
    Rule,
    as_number,
    member,
    number,
    optional,
    settings,
    text,
    whole,
)
from gpuload.errors import ArgumentError
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels
from gpuload.fields.kind import NAME, FieldSpec
from gpuload.fields.motion import Motion
from gpuload.types import F32, Array, Bools

Interpolation = Literal["nearest", "bilinear"]
IdType = Literal["int32", "int64", "uint8"]

_INTERPOLATION = member(*get_args(Interpolation))
_LIKE = optional(text("the name of another picture"))
_SCALE = number(1 / 64, 64, "pixels for each pixel of the other picture, in 1/64..64")
_UNIT = number(POSITIVE, 1e30, "a factor above 0")
_KITTI_ZERO = 32_768  # 2**15
_KITTI_STEPS = 64


def _as_number_or_nan(value: Any) -> float:
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return math.nan if is_nan else as_number(value)


def _as_normalize(value: Any) -> Any:
    # Its class is in `gpuload.augment`, which imports the fields.
    is_one = all(hasattr(value, name) for name in ("mean", "std", "check_pixels"))
    if isinstance(value, type) or not is_one:
        raise TypeError
    return value


_NUMBER = Rule("a number, or NaN", _as_number_or_nan)
NORMALIZE = Rule("gpuload.Normalize(mean, std)", _as_normalize)


class MapValues(ABC):
    """What becomes of the stored values of a map.

    Args:
        field: Of the map.
        spec: With which it was requested.

    Attributes:
        channels: Of the result.
        dtype: Of the result, as NumPy names it.

    Raises:
        ArgumentError: The field's values cannot be such a map.
    """

    channels = 1
    dtype = "float32"

    def __init__(self, field: Field, spec: Any) -> None:
        self.pixels = Pixels.of_field(field)
        self.spec = spec
        if fault := self.fault():
            raise ArgumentError(
                f"{spec}: {fault}, and {field.name!r} holds {self.pixels.in_words} (mode {self.pixels.mode})"
            )

    def fault(self) -> str:
        """What is expected of the stored values, if they are not such; else ""."""
        return "" if self.pixels.channels == 1 else "expected one channel"

    @abstractmethod
    def read(self, stored: Array) -> tuple[F32, Bools | None]:
        """The numbers that stored values mean, and where there are any.

        Args:
            stored: (n, channels, height, width), of the field's type.

        Returns:
            float32 (n, `channels`, height, width), and bool (n, height, width), or None where all are valid.
        """

    def move(self, values: F32, motion: Motion) -> F32:
        """The values after the pixels have moved: by default the same.

        Args:
            values: float32 (n, `channels`, height, width), which may be changed.
            motion: Of the n pictures, from stored to output pixels.
        """
        return values

    def close(self, values: F32, valid: Bools) -> Array:
        """The result, of `dtype`: with the missing value where there is none."""
        np.copyto(values, np.float32(self.spec.missing), where=~valid[:, None])
        return values


class DepthValues(MapValues):
    """Of `Depth`: stored numbers times a unit."""

    def read(self, stored: Array) -> tuple[F32, Bools | None]:
        """As `MapValues.read`."""
        numbers = stored.astype(np.float32)
        invalid = self.spec.invalid
        # Of a PNG all numbers are finite, and an invalid 0 is 0 in every unit.
        is_whole = stored.dtype.kind == "u"
        shape = numbers[:, 0].shape
        valid: Bools = np.ones(shape, bool) if is_whole else np.isfinite(numbers[:, 0])
        if invalid is not None:
            valid &= numbers[:, 0] != np.float32(invalid)
        numbers *= np.float32(self.spec.unit)
        if not is_whole or invalid != 0:
            np.copyto(numbers, 0, where=~valid[:, None])
        return numbers, valid


class DisparityValues(DepthValues):
    """Of `Disparity`: numbers in pixels, which grow with the width."""

    def move(self, values: F32, motion: Motion) -> F32:
        """As `MapValues.move`.

        Raises:
            ArgumentError: The picture is turned or sheared, where points move along other lines than their partners.
        """
        if motion.affine is not None:
            raise ArgumentError(
                f"{self.spec}: disparities are not defined in images that are rotated or warped. Leave out such "
                "transforms"
            )
        return values * pixel_scales(motion)[:, 0][:, None, None, None]


class FlowValues(MapValues):
    """Of `Flow`: u and v, in pixels, moved as differences of points."""

    channels = 2

    def fault(self) -> str:
        """As `MapValues.fault`."""
        kinds = (Pixels(3, "uint16"), Pixels(2, "float32"))
        return "" if self.pixels in kinds else "expected u, v as floats, or KITTI's PNG"

    def read(self, stored: Array) -> tuple[F32, Bools | None]:
        """As `MapValues.read`.

        KITTI's PNGs hold 64 u + 2**15, 64 v + 2**15, and whether the pixel is valid (the development kit of KITTI's
        flow benchmark, 2015).
        """
        numbers = stored[:, :2].astype(np.float32)
        valid: Any
        if self.pixels.dtype == "uint16":
            valid = stored[:, 2].astype(np.bool_)
            numbers = (numbers - _KITTI_ZERO) / np.float32(_KITTI_STEPS)
        else:
            # Middlebury's .flo files hold numbers above 1e9 where the flow is unknown.
            valid = (np.abs(numbers) < 1e9).all(axis=1)
        np.copyto(numbers, 0, where=~valid[:, None])
        return numbers, valid

    def move(self, values: F32, motion: Motion) -> F32:
        """As `MapValues.move`: by the derivative of the map from stored to output pixels."""
        if motion.affine is not None and motion.affine.shape[1] == 3:
            raise ArgumentError(
                f"{self.spec}: is not moved by a perspective, which changes it from pixel to pixel. Leave it out"
            )
        factors = pixel_scales(motion) * np.where(motion.crops.flipped[:, ::-1], -1, 1)
        moved = values * factors.astype(np.float32)[:, :, None, None]
        if motion.affine is None:
            return moved
        turns = motion.affine[:, :2, :2].astype(np.float32)
        turned: F32 = np.einsum("nij,njhw->nihw", turns, moved)
        return turned


class NormalValues(MapValues):
    """Of `Normals`: unit vectors x, y, z, turned with the image."""

    channels = 3

    def fault(self) -> str:
        """As `MapValues.fault`."""
        return "" if self.pixels.channels == 3 else "expected three channels"

    def read(self, stored: Array) -> tuple[F32, Bools | None]:
        """As `MapValues.read`: whole numbers stand for -1..1."""
        numbers = stored.astype(np.float32)
        valid: Any
        if self.pixels.dtype == "float32":
            valid = np.isfinite(numbers).all(axis=1) & numbers.any(axis=1)
        else:
            valid = stored.any(axis=1)
            numbers = numbers * np.float32(2 / self.pixels.peak) - 1
        np.copyto(numbers, 0, where=~valid[:, None])
        return numbers, valid

    def move(self, values: F32, motion: Motion) -> F32:
        """As `MapValues.move`: x and y are mirrored and turned; stretching an image turns nothing."""
        signs = np.where(motion.crops.flipped[:, ::-1], -1, 1).astype(np.float32)
        values[:, :2] *= signs[:, :, None, None]
        if motion.affine is not None:
            values[:, :2] = _turned(values[:, :2], motion)
        length = np.sqrt((values * values).sum(axis=1, keepdims=True))
        unit: F32 = values / np.maximum(length, np.float32(1e-12))
        return unit


def _turned(vectors: F32, motion: Motion) -> F32:
    """The vectors (n, 2, height, width) after the rotation, or mirroring, that is nearest to each image's warp."""
    assert motion.affine is not None
    rotation_left, _, rotation_right = np.linalg.svd(motion.affine[:, :2, :2])
    turned: F32 = np.einsum(
        "nij,njhw->nihw", (rotation_left @ rotation_right).astype(np.float32), vectors
    )
    return turned


class MatteValues(MapValues):
    """Of `Matte`: shares in 0..1."""

    def read(self, stored: Array) -> tuple[F32, Bools | None]:
        """As `MapValues.read`."""
        numbers = stored.astype(np.float32)
        if self.pixels.dtype != "float32":
            return numbers / np.float32(self.pixels.peak), None
        return np.nan_to_num(numbers, copy=False, nan=0.0), None


class IdValues(MapValues):
    """Of `InstanceMap`: whole numbers, which no one adds up."""

    def __init__(self, field: Field, spec: Any) -> None:
        super().__init__(field, spec)
        self.dtype = spec.dtype

    def fault(self) -> str:
        """As `MapValues.fault`."""
        if self.pixels.dtype == "float32" or self.pixels.channels != 1:
            name = self.spec.name
            return f"expected whole numbers, as pack --class-numbers {name} takes them of palettes"
        if self.pixels.peak > np.iinfo(self.spec.dtype).max:
            return "expected 8 bits, or dtype='int32'"
        return ""

    def read(self, stored: Array) -> tuple[Any, Bools | None]:
        """As `MapValues.read`: the numbers themselves."""
        return stored, None

    def close(self, values: Any, valid: Bools) -> Array:
        """As `MapValues.close`."""
        ids: Array = values.astype(self.dtype)
        np.copyto(ids, self.spec.fill, where=~valid[:, None])
        return ids


def pixel_scales(motion: Motion) -> Array:
    """float64 (n, 2): pixels of the output for each stored pixel, along x and y."""
    begin, end = motion.crops.edges
    scales: Array = motion.crops.own_sizes(motion.size) / np.maximum(end - begin, 1e-6)
    return scales[:, ::-1]


class PictureSpec(FieldSpec):
    """Base class of the specs of further pictures.

    values: What becomes of a map's values; None for pictures of colours.
    """

    kind = "picture"
    other_kinds: ClassVar[tuple[str, ...]] = ("pictures",)
    values: ClassVar[type[MapValues] | None] = None
    like: str | None
    scale: float
    interpolation: Any = "nearest"


@settings
class Picture(PictureSpec):
    """A further picture of each sample, (N, C, height, width), such as a right view or a target of super-resolution.

    Attributes:
        name: Of the packed field.
        like: The picture with which it moves; None: the image.
        scale: Pixels of its output, along each side, for each pixel of the other one's: 4 for a target of four times
            the size. With a crop that scales nothing, it is cropped at whole pixels of the other picture.
        colors: Of the transforms, whether changes of colour are the "same" as those of the other picture, drawn for
            this one ("own"; they come before warps then), or left out ("none").
        interpolation: "bilinear", "bicubic" or "nearest"; None: that of the other picture.
        normalize: `Normalize(mean, std)`; None: that of the other picture.
        swapped: Whether it changes places with the other picture where that one is flipped left to right, as the views
            of a stereo camera do. Their sizes must be the same.

    Raises:
        ArgumentError: A value out of its range.
    """

    name: Annotated[str, NAME]
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    colors: Annotated[Literal["same", "own", "none"], member("same", "own", "none")] = (
        "same"
    )
    interpolation: Annotated[
        Literal["nearest", "bilinear", "bicubic"] | None,
        optional(member("nearest", "bilinear", "bicubic")),
    ] = None
    normalize: Annotated[Any, optional(NORMALIZE)] = None
    swapped: Annotated[bool, FLAG] = False

    other_kinds = ()


@settings
class Depth(PictureSpec):
    """A number for each pixel, float32 (N, 1, height, width), that moves with an image and stays what it is.

    Attributes:
        name: Of the packed field, of one channel.
        like: The picture with which it moves; None: the image.
        scale: As of `Picture`.
        unit: The value of a stored 1: 0.001 for millimetres to metres, 1 / 256 for KITTI's PNGs.
        invalid: The stored number that stands for no measurement, besides NaN and infinity; None: there is none.
        missing: What the batch holds where there is no measurement, and outside of the picture.
        interpolation: "nearest", or "bilinear", in which invalid neighbours have no weight; a pixel is invalid where
            they outweigh the others.

    Raises:
        ArgumentError: A value out of its range. From a loader: the field has several channels.
    """

    name: Annotated[str, NAME] = "depth"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    unit: Annotated[float, _UNIT] = 1.0
    invalid: Annotated[float | None, optional(_NUMBER)] = 0.0
    missing: Annotated[float, _NUMBER] = 0.0
    interpolation: Annotated[Interpolation, _INTERPOLATION] = "nearest"

    values = DepthValues


@settings
class Disparity(PictureSpec):
    """The offset of each pixel in a stereo pair, in pixels of the output: float32 (N, 1, height, width).

    It is multiplied where the width is resized. In a flipped pair the left view is the mirrored right one (`swapped` of
    `Picture`), and its disparity is another map: that of the right view, `swapped`, too. A set without it is flipped
    vertically alone.

    Attributes:
        name: Of the packed field, of one channel.
        like: As of `Depth`.
        scale: As of `Picture`.
        unit: Pixels of the stored picture for a stored 1: 1 / 256 for KITTI's PNGs.
        invalid: As of `Depth`.
        missing: As of `Depth`.
        interpolation: As of `Depth`.
        swapped: Whether it is the map of the right view, which changes places with that of the left view, `like`, where
            images are flipped left to right.

    Raises:
        ArgumentError: As of `Depth`; or images are rotated or warped; or the views change places, and the maps do not.
    """

    name: Annotated[str, NAME] = "disparity"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    unit: Annotated[float, _UNIT] = 1.0
    invalid: Annotated[float | None, optional(_NUMBER)] = 0.0
    missing: Annotated[float, _NUMBER] = 0.0
    interpolation: Annotated[Interpolation, _INTERPOLATION] = "nearest"
    swapped: Annotated[bool, FLAG] = False

    values = DisparityValues


@settings
class Flow(PictureSpec):
    """Optical flow: u and v of each pixel, in pixels of the output: float32 (N, 2, height, width).

    Both are scaled with the image, change their sign in flips, and are turned by rotations. The second frame must move
    as the first one does, as a `Picture`.

    Attributes:
        name: Of the packed field: float32x2, as of Middlebury's .flo files, or KITTI's PNGs of 16 bits.
        like: As of `Depth`.
        scale: As of `Picture`.
        missing: What the batch holds where the flow is not known, and outside of the picture.
        interpolation: As of `Depth`.

    Raises:
        ArgumentError: As of `Depth`; or images are warped by perspectives.
    """

    name: Annotated[str, NAME] = "flow"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    missing: Annotated[float, _NUMBER] = math.nan
    interpolation: Annotated[Interpolation, _INTERPOLATION] = "nearest"

    values = FlowValues


@settings
class Normals(PictureSpec):
    """Unit vectors x (to the right), y (down), z of surfaces: float32 (N, 3, height, width).

    x and y change their sign in flips and turn in rotations; a change of size leaves them.

    Attributes:
        name: Of the packed field: three channels of floats, or of whole numbers, whose range stands for -1..1.
        like: As of `Depth`.
        scale: As of `Picture`.
        missing: What the batch holds where all stored values are 0, and outside of the picture.
        interpolation: As of `Depth`.

    Raises:
        ArgumentError: As of `Depth`.
    """

    name: Annotated[str, NAME] = "normals"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    missing: Annotated[float, _NUMBER] = 0.0
    interpolation: Annotated[Interpolation, _INTERPOLATION] = "nearest"

    values = NormalValues


@settings
class Matte(PictureSpec):
    """A share in 0..1 of each pixel, such as an alpha matte: float32 (N, 1, height, width); 0 outside of the picture.

    Attributes:
        name: Of the packed field, of one channel: floats, or whole numbers, of which the largest is 1.
        like: As of `Depth`.
        scale: As of `Picture`.
        interpolation: "bilinear" or "nearest".

    Raises:
        ArgumentError: As of `Depth`.
    """

    name: Annotated[str, NAME] = "matte"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    interpolation: Annotated[Interpolation, _INTERPOLATION] = "bilinear"

    values = MatteValues
    missing: ClassVar[float] = 0.0


@settings
class InstanceMap(PictureSpec):
    """A whole number in 0..65,535 for each pixel, such as the id of an object: (N, height, width), the nearest pixel's.

    Attributes:
        name: Of the packed field, of one channel of 8 or 16 bits.
        like: As of `Depth`.
        scale: As of `Picture`.
        fill: The number outside of the picture.
        dtype: Of the batch: "int32" or "int64"; "uint8" for a field of 8 bits and a `fill` up to 255.

    Raises:
        ArgumentError: As of `Depth`.
    """

    name: Annotated[str, NAME] = "instances"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    fill: Annotated[int, whole(0, 65_535, "a whole number in 0..65,535")] = 0
    dtype: Annotated[IdType, member(*get_args(IdType))] = "int32"

    values = IdValues

    def __post_init__(self) -> None:
        if self.fill > np.iinfo(self.dtype).max:
            raise ArgumentError(
                f"InstanceMap(fill={self.fill}, dtype={self.dtype!r}): expected fill in 0..255, or dtype='int32'"
            )


SPECS: Sequence[type[PictureSpec]] = (
    Picture,
    Depth,
    Disparity,
    Flow,
    Normals,
    Matte,
    InstanceMap,
)
