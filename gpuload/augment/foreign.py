"""Whose objects are read: classes of libraries that are known, and functions that are known by their code.

A class of another library may do something else than the class of torchvision's whose name it has. A function does what
its code says: it is known if its code is the same, instruction by instruction, as that of one of the functions here.
"""

from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import cache
from inspect import CO_NESTED
from types import CodeType, FunctionType
from typing import Any

from gpuload.errors import ArgumentError

_LIBRARIES = (
    "torchvision.",
    "timm.data.",
    "open_clip.transform",
    "dinov2.data.",
    "lightly.transforms.",
    "torch.nn.modules.container.Sequential",
)
# Of some classes, the name that torchvision has for the same.
_ALIASES = {
    "MaybeToTensor": "ToTensor",
    "MaybePILToTensor": "PILToTensor",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
}
WAY_OUT = (
    "Leave it out, give what it holds in `transforms`, or give it to gpuload as a function of a sample, "
    "transforms.Function(...)"
)


def error(message: str) -> ArgumentError:
    """What `Augment.torchvision` raises."""
    return ArgumentError(f"Augment.torchvision: {message}")


def name_of(step: Any) -> str:
    """Of its class, by which torchvision calls what it does; with the library's where it has a step of its own."""
    kind = type(step)
    library = kind.__module__.partition(".")[0]
    if kind.__name__ == "GaussianBlur" and library == "dinov2":
        return "RandomApply"  # of a GaussianBlur of torchvision's
    if kind.__name__ in _ALIASES:
        return _ALIASES[kind.__name__]
    if library in ("timm", "lightly") and kind.__name__ != "RandomErasing":
        return f"{library}'s {kind.__name__}"
    return kind.__name__


def check_known(step: Any) -> None:
    """Raises ArgumentError for an object that is none of the known libraries', whatever its name is."""
    kind = type(step)
    if f"{kind.__module__}.{kind.__name__}".startswith(_LIBRARIES):
        return
    name = getattr(step, "__qualname__", kind.__name__)
    module = getattr(step, "__module__", None) or kind.__module__
    raise error(
        f"{module}.{name} is not an object of torchvision's own classes, and may do something else. {WAY_OUT}"
    )


def converts_to_rgb(step: Any) -> bool:
    """Whether it is a function, or a Lambda of one, that converts to RGB and does nothing else."""
    is_lambda = type(step).__name__ == "Lambda" and type(step).__module__.startswith(
        "torchvision."
    )
    return _code_of(getattr(step, "lambd", None) if is_lambda else step) in _CONVERSIONS


def applied_by(step: Any) -> Any:
    """The transform that an object holds, where it does no more than to apply it; else None."""
    attribute = _HOLDERS.get(_code_of(type(step).__call__) or ())
    # An attribute of the class may be a property, which gives something else each time.
    return (
        None
        if attribute is None or hasattr(type(step), attribute)
        else vars(step).get(attribute)
    )


Code = tuple[Any, ...]


def _code_of(function: Any) -> Code | None:
    """The instructions of a function, and its arguments, whatever their names are; None if it is none of Python's, or
    depends on more than its arguments."""
    if (
        not isinstance(function, FunctionType)
        or function.__closure__
        or function.__defaults__
    ):
        return None
    return _instructions_of(function.__code__)


@cache
def _instructions_of(code: CodeType) -> Code:
    # Variables are numbered, so that their names do not matter.
    instructions = [
        (
            instruction.opname,
            instruction.arg if "FAST" in instruction.opname else instruction.argval,
        )
        for instruction in get_instructions(code)
    ]
    return (
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_flags & ~CO_NESTED,
        *instructions,
    )


def _if_needed(image: Any) -> Any:
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


def _unless_rgb(image: Any) -> Any:
    if image.mode == "RGB":
        return image
    return image.convert("RGB")


def _named_before_return(self: Any, image: Any) -> Any:
    transformed = self.transform(image)
    return transformed  # noqa: RET504 -- bytecode of functions that are written so


def _codes(functions: Iterable[Callable[..., Any]]) -> set[Code]:
    return {code for function in functions if (code := _code_of(function)) is not None}


_CONVERSIONS = _codes(
    [
        lambda image: image.convert("RGB"),
        lambda image: image.convert(mode="RGB"),
        lambda image: image.convert("RGB") if image.mode != "RGB" else image,
        lambda image: image if image.mode == "RGB" else image.convert("RGB"),
        _if_needed,
        _unless_rgb,
    ]
)
# By the code of their `__call__`, the attribute of classes that apply what they hold.
_APPLY: dict[str, list[Callable[..., Any]]] = {
    "transform": [
        lambda self, image: self.transform(image),
        lambda self, *args, **kwargs: self.transform(*args, **kwargs),
        lambda self, image, target: self.transform(image, target),
        lambda self, image: [self.transform(image)],  # of one view
        _named_before_return,
    ],
    "transforms": [
        lambda self, image: self.transforms(image),
        lambda self, image, target: self.transforms(image, target),
    ],
}
_HOLDERS = {
    code: attribute
    for attribute, functions in _APPLY.items()
    for code in _codes(functions)
}
