"""How a packed field is asked for, where its name alone does not say it."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from gpuload.errors import ArgumentError
from gpuload.fields.field import Kind

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]  # as torchvision.ops.box_convert names them


@dataclass(frozen=True)
class OneHot:
    """A class as float32 (N, num_classes): 1 in the column of the sample's class, else 0.

    A class named "background" (which packing from XML gives to images without an object) has no column by default, and
    its samples are rows of zeros; the others keep their sequence. With `background` column 0 is its, or that of
    negative labels, and the others follow, so that there are as many columns as classes, and one more where no class
    has that name.

    num_classes: columns in all; by default as many as the named classes need.

    Raises:
        ArgumentError: num_classes is below 1. When bound: smaller than the classes need, or not known.
    """

    name: str = "label"
    num_classes: int | None = None
    background: bool = False

    kind: ClassVar[Kind] = "class"

    def __post_init__(self) -> None:
        _check_at_least(self, "num_classes", self.num_classes, 1)


@dataclass(frozen=True)
class MultiHot:
    """Several labels as float32 (N, num_classes): 1 in the column of each class that a sample has, else 0.

    num_classes: columns; by default as many as the field has named classes.

    Raises:
        ArgumentError: num_classes is below 1. When bound: smaller than the named classes, or not known.
    """

    name: str = "labels"
    num_classes: int | None = None

    kind: ClassVar[Kind] = "labels"

    def __post_init__(self) -> None:
        _check_at_least(self, "num_classes", self.num_classes, 1)


@dataclass(frozen=True)
class Target:
    """Numbers to be predicted, float32 (N,) or (N, D).

    negate_on_flip: whether the sign turns where the image is flipped left to right, as that of a steering angle does;
        one bool for all of the D numbers, or one each.

    Raises:
        ArgumentError: negate_on_flip is neither. When bound: it is not one bool for each number.
    """

    name: str
    negate_on_flip: bool | tuple[bool, ...] = False

    kind: ClassVar[Kind] = "target"

    def __post_init__(self) -> None:
        turns = self.negate_on_flip
        if not all(isinstance(turn, bool) for turn in (turns if isinstance(turns, tuple) else (turns,))):
            raise ArgumentError(
                f"Target({self.name!r}, negate_on_flip={turns!r}): expected True, False or a tuple of these, one for "
                "each number of the target"
            )


@dataclass(frozen=True)
class Tokens:
    """Arrays of whole numbers, one dimension and any length, as `PaddedTokens` of int64.

    pad: what stands behind the end of the shorter ones.
    max_length: the length of every batch, and longer arrays lose their end; by default that of the batch's longest.

    Raises:
        ArgumentError: max_length is below 1. When bound: the arrays are not of whole numbers, or of more dimensions.
    """

    name: str = "tokens"
    pad: int = 0
    max_length: int | None = None

    kind: ClassVar[Kind] = "array"

    def __post_init__(self) -> None:
        _check_at_least(self, "max_length", self.max_length, 1)


@dataclass(frozen=True)
class Boxes:
    """Boxes as `PaddedBoxes`, in pixels of the batch's images: moved with crop, resize and flips, and clipped.

    format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width, height).
        Sides lie between pixels: the box of a whole image is 0, 0, width, height.
    normalized: divided by the width and height of the batch's images, so that all is in 0..1.
    min_visible: a box of which a smaller share of its area remains in the image is left out; so is one of which nothing
        remains, always.
    max_boxes: M of every batch; of more boxes the first ones stay. By default that of the batch's fullest image.

    Raises:
        ArgumentError: a format that is not one of these, a share outside of 0..1, max_boxes below 1.
    """

    name: str = "boxes"
    format: BoxFormat = "xyxy"
    normalized: bool = False
    min_visible: float = 0.1
    max_boxes: int | None = None

    kind: ClassVar[Kind] = "boxes"

    def __post_init__(self) -> None:
        if self.format not in get_args(BoxFormat):
            raise ArgumentError(
                f"Boxes({self.name!r}, format={self.format!r}): expected one of "
                f"{', '.join(map(repr, get_args(BoxFormat)))}"
            )
        if not 0 <= self.min_visible <= 1:
            raise ArgumentError(
                f"Boxes({self.name!r}, min_visible={self.min_visible!r}): expected a share of the box's area, in 0..1"
            )
        _check_at_least(self, "max_boxes", self.max_boxes, 1)


@dataclass(frozen=True)
class Mask:
    """A class number a pixel, uint8 (N, height, width), cropped, resized (by nearest pixel) and flipped as its image.

    fill: the number of pixels where there is no image, as where it is padded or rotated.

    Raises:
        ArgumentError: fill is not in 0..255.
    """

    name: str = "mask"
    fill: int = 0

    kind: ClassVar[Kind] = "mask"

    def __post_init__(self) -> None:
        if not 0 <= self.fill <= 255:
            raise ArgumentError(f"Mask({self.name!r}, fill={self.fill!r}): expected a class number, in 0..255")


FieldSpec = OneHot | MultiHot | Target | Tokens | Boxes | Mask


def describe(spec: str | FieldSpec) -> str:
    """What messages call it: 'caption', Boxes('boxes')."""
    return repr(spec) if isinstance(spec, str) else f"{type(spec).__name__}({spec.name!r})"


def _check_at_least(spec: FieldSpec, argument: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ArgumentError(f"{describe(spec)[:-1]}, {argument}={value!r}): expected at least {least}")
