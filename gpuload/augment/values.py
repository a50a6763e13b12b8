"""Which values images have at a place of a pipeline: their class, dtype and range."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from gpuload.augment.foreign import error
from gpuload.augment.views import DType, Normalize

TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage")
TO_DTYPE = ("ToDtype", "ConvertImageDtype")
CONVERSIONS = (*TO_TENSOR, *TO_DTYPE, "ToPILImage", "ToPureTensor")

Kind = Literal["given", "pil", "image", "tensor"]


class Values:
    """The class, dtype and range of the images before the next step of a pipeline.

    Attributes:
        kind: "given": no step has said yet what they are, Pillow's or tensors. "pil": Pillow's. "image": torchvision's
            `tv_tensors.Image`. "tensor": plain tensors.
        dtype: By torch's name, of tensors.
        unit: The levels of 0..255 to which a value of 1 corresponds: 255 for floats in 0..1, else 1.
        constants: What they were normalised with, in these units; None before Normalize.
        is_erased: Whether there may be erased rectangles, whose values no conversion may change.
    """

    def __init__(self) -> None:
        self.kind: Kind = "given"
        self.dtype = "uint8"
        self.unit = 1
        self.constants: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self.is_erased = False

    @property
    def are_tensors(self) -> bool:
        """Whether they are known to be tensors, of either class."""
        return self.kind in ("image", "tensor")

    @property
    def in_words(self) -> str:
        """For messages."""
        if self.constants is not None:
            return "normalised floats"
        return (
            self.dtype
            if self.dtype == "uint8"
            else f"{self.dtype} in 0..{255 // self.unit}"
        )

    def convert(self, step: Any, name: str) -> None:
        """Does what a conversion does.

        Args:
            step: One of the classes in `CONVERSIONS`.
            name: Its name.

        Raises:
            ArgumentError: the result has values that `Augment` does not make, or depends on what the images are.
        """
        if name == "ToPureTensor":
            self.kind = "tensor" if self.kind == "image" else self.kind
            return
        if self.is_erased and not (name in TO_DTYPE and self.dtype != "uint8"):
            raise error(
                f"{name} comes after RandomErasing, whose values it would change. Put it before"
            )
        if name in TO_TENSOR:
            self.become_tensors(name)
        elif name == "ToPILImage":
            self._cast("uint8", True, name)
            self.kind = "pil"
        elif self.kind == "pil":
            raise error(
                f"{name} has no effect on Pillow's images. Put ToImage() before it"
            )
        else:
            self._convert_dtype(step, name)

    def _convert_dtype(self, step: Any, name: str) -> None:
        """Does what one of `TO_DTYPE` does."""
        dtype = self._dtype_of(step.dtype, name) or self.dtype
        scale = name == "ConvertImageDtype" or bool(step.scale)
        if self.kind == "given" and dtype != self.dtype and not scale:
            raise error(
                f"{name}({dtype}) gives tensors a range of 0..255, Pillow's images none. Put ToImage() before"
            )
        option = ", scale=True" if scale else ""
        self._cast(dtype, scale, f"{name}({dtype}{option})")

    def become_tensors(self, name: str) -> None:
        """Does what one of `TO_TENSOR` does."""
        if self.kind == "given" and self.dtype != "uint8":
            raise error(
                f"{name} comes after what has no effect on Pillow's images. Put it first"
            )
        if not self.are_tensors:
            self._cast("float32" if name == "ToTensor" else self.dtype, True, name)
            self.kind = "image" if name == "ToImage" else "tensor"
        elif name == "ToImage":
            self.kind = "image"

    def become_floats(self, name: str) -> None:
        """For a step that needs floats: without any conversion before it, they are in 0..1."""
        if self.kind == "given" and self.dtype == "uint8":
            self.dtype = "float32"
            self.unit = 255
        elif self.dtype == "uint8":
            raise error(
                f"{name} gets {self.in_words}; expected floats. Put ToDtype(torch.float32, scale=True) before"
            )

    def normalize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalize:
        """Does what Normalize does, and returns its constants for pixels in 0..1.

        Raises:
            ArgumentError: they are no floats, or have been normalised already.
        """
        if self.constants is not None:
            raise error(
                "Normalize comes twice; here it is done once. Join both into one"
            )
        self.become_floats("Normalize")
        self.constants = mean, std
        share = self.unit / 255
        return Normalize(
            tuple(value * share for value in mean),
            tuple(value * share for value in std),
        )

    def levels(self, fill: Any, name: str) -> Any:
        """A fill in levels of 0..255: one for all channels, or three; None, which is black, stays None.

        Args:
            fill: In units of the images, as torchvision stores it: one number, three, or such by the class of images.
            name: Of the step that has it.

        Raises:
            ArgumentError: it is below or above all levels.
        """
        stored = plain(self._of_class(fill))
        fill = stored
        if self.constants is not None:
            mean, std = self.constants
            values = fill if isinstance(fill, tuple) else (fill or 0.0,) * 3
            fill = tuple(
                value * one_std + one_mean
                for value, one_mean, one_std in zip(values, mean, std, strict=True)
            )
        if fill is None:
            return None
        levels = (
            tuple(level * self.unit for level in fill)
            if isinstance(fill, tuple)
            else fill * self.unit
        )
        if not 0 <= np.min(levels) <= np.max(levels) <= 255:
            raise error(
                f"{name}(fill={stored!r}) of {self.in_words}: is no level of an image. Put it before Normalize"
            )
        return levels

    @property
    def output(self) -> tuple[str, Normalize | None]:
        """The dtype of the batch, and how it is normalised where no Normalize says it: Pillow's images become what
        ToTensor makes of them."""
        if self.constants is not None:
            return self.dtype, None
        if self.kind == "pil" or (self.kind == "given" and self.dtype == "uint8"):
            return "float32", None
        if self.dtype != "uint8" and self.unit == 1:
            return self.dtype, Normalize((0.0,) * 3, (1 / 255,) * 3)
        return self.dtype, None

    def _cast(self, dtype: str, scale: bool, name: str) -> None:
        if dtype == self.dtype:
            return
        if dtype not in get_args(DType):
            raise error(
                f"{name}: expected one of {', '.join(get_args(DType))}, which batches may have"
            )
        if dtype == "uint8":
            if self.constants is not None or not scale or self.unit == 1:
                raise error(
                    f"{name} gets {self.in_words}; expected scale=True and floats in 0..1. Leave it out"
                )
            self.unit = 1
        elif self.dtype == "uint8":
            self.unit = 255 if scale else 1
        self.dtype = dtype

    def _dtype_of(self, dtype: Any, name: str) -> str | None:
        """By torch's name; None: that of the images.

        Raises:
            ArgumentError: it differs between the classes that the images may be of.
        """
        chosen = {
            self._of_kind(dtype, kind)
            for kind in (("image", "tensor") if self.kind == "given" else (self.kind,))
        }
        chosen = chosen - {_NONE} if len(chosen) > 1 else chosen
        if len(chosen) > 1 or _NONE in chosen:
            raise error(
                f"{name}({dtype!r}): depends on the class of the images. Give one dtype, or put ToImage() before"
            )
        (only,) = chosen
        return None if only is None else str(only).removeprefix("torch.")

    def _of_class(self, value: Any) -> Any:
        """What a value by the class of images is for these; others stay as they are."""
        chosen = self._of_kind(value, "pil" if self.kind == "given" else self.kind)
        return None if chosen is _NONE else chosen

    def _of_kind(self, value: Any, kind: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        named = {
            _KINDS.get(_full_name(key), key): chosen for key, chosen in value.items()
        }
        return named.get(kind, named.get("others", _NONE))


_NONE: Any = object()  # where a mapping says nothing of a class
_KINDS = {
    "PIL.Image.Image": "pil",
    "torchvision.tv_tensors._image.Image": "image",
    "torch.Tensor": "tensor",
}


def _full_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', kind)}"


def plain(value: Any) -> Any:
    """torchvision stores tuples as lists, v2 also single numbers, and a policy as an enum."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else tuple(value)
    return getattr(value, "value", value)
