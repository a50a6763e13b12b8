"""Checks of arguments that several transforms share; each error names the class, the argument and its value."""

import math
from collections.abc import Sequence

from gpuload.errors import ArgumentError

Range = float | tuple[float, float]
Fill = float | tuple[float, float, float] | None


def refuse(owner: object, argument: str, expected: str) -> ArgumentError:
    """The error to raise for an argument of a dataclass."""
    value = getattr(owner, argument)
    return ArgumentError(f"{type(owner).__name__}({argument}={value!r}): expected {expected}")


def is_number(value: object) -> bool:
    """Whether it is a finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object, low: int, high: int) -> bool:
    """Whether it is an int in low..high."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_probability(owner: object, argument: str = "p") -> None:
    """A number in 0..1."""
    value = getattr(owner, argument)
    if not is_number(value) or not 0 <= value <= 1:
        raise refuse(owner, argument, "a probability in 0..1")


def check_pair(owner: object, argument: str, low: float, high: float, expected: str) -> None:
    """Two numbers in ascending order, within low..high."""
    value = getattr(owner, argument)
    if not isinstance(value, Sequence) or len(value) != 2 or not all(is_number(number) for number in value):
        raise refuse(owner, argument, expected)
    if not low <= value[0] <= value[1] <= high:
        raise refuse(owner, argument, expected)


def check_range(owner: object, argument: str, low: float, high: float, expected: str) -> None:
    """One number within low..high, or a pair."""
    value = getattr(owner, argument)
    if not is_number(value):
        check_pair(owner, argument, low, high, expected)
    elif not low <= value <= high:
        raise refuse(owner, argument, expected)


def check_fill(owner: object, argument: str = "fill") -> None:
    """A level, three of them, or None."""
    value = getattr(owner, argument)
    levels = value if isinstance(value, Sequence) and len(value) == 3 else (0 if value is None else value,)
    if not all(is_number(level) and 0 <= level <= 255 for level in levels):
        raise refuse(owner, argument, "a level in 0..255, or three (R, G, B); None is black")


def fill_levels(fill: Fill) -> tuple[float, float, float]:
    """R, G and B where there is no pixel of the image."""
    if isinstance(fill, Sequence):
        return fill
    level = 0.0 if fill is None else float(fill)
    return level, level, level
