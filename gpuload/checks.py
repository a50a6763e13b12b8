"""Checks of arguments by declared rules, with one-line error messages.

A `Rule` defines the valid values of an argument. `checked` applies rules to the arguments of a function, `settings`
makes a frozen dataclass whose fields are annotated with their rules:

    @checked("DaliIterator.set_epoch", epoch=whole(0))
    def set_epoch(self, epoch): ...

    ArgumentError: DaliIterator.set_epoch(epoch='3'): expected a whole number of at least 0

    @settings
    class Shuffle:
        window: Annotated[int, COUNT] = 8

NumPy's numbers, bools and one-dimensional arrays are accepted in place of Python's numbers, bools and tuples, and are
converted to them. A bool is not a number.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from gpuload.errors import ArgumentError, CallError, without_secrets

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: bool) -> Any:
        """As typing's, which Python 3.10 does not have."""
        return lambda decorator: decorator


T = TypeVar("T")
Word = TypeVar("Word", bound=str)
P = ParamSpec("P")
C = TypeVar("C", bound=type[Any])

_SHOWN = 80  # characters of a value in a message
_NO_ADVICE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Rule(Generic[T]):
    """The valid values of an argument.

    Attributes:
        expected: The words of the message after "expected".
        read: Returns the value in Python's own types; raises TypeError, ValueError or OverflowError if it is invalid.
        words: Those that are valid, of which the message names the one that is spelt most like an invalid one.
    """

    expected: str
    read: Callable[[Any], T]
    words: tuple[str, ...] = ()

    def meant(self, value: Any) -> str:
        """The end of a message on a value that is invalid: the word that was meant, if one is similar."""
        word = nearest(value, self.words)
        return "" if word is None else f". Did you mean {word!r}?"


def nearest(word: Any, words: Iterable[str]) -> str | None:
    """The word that is spelt most like another one; None where none is similar.

    Args:
        word: What the user wrote, of any type.
        words: The words that are known.
    """
    close = get_close_matches(word, [*words], 1) if isinstance(word, str) else []
    return close[0] if close else None


def check(subject: str, name: str, value: Any, rule: Rule[T]) -> T:
    """The value, in Python's own types.

    Args:
        subject: The owner of the argument `name`.
        name: Of the argument, for the message.
        value: What the user gave.
        rule: What it must be.

    Raises:
        ArgumentError: it is not what the rule expects.
    """
    try:
        return rule.read(value)
    except ArgumentError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise refuse(subject, name, value, rule.expected + rule.meant(value)) from None


def refuse(subject: str, name: str, value: Any, expected: str) -> ArgumentError:
    """The error to raise for an argument."""
    return ArgumentError(f"{subject}({name}={shown(value)}): expected {expected}")


def shown(value: Any) -> str:
    """A value for a message: its repr, on one line of limited length and without secrets."""
    try:
        text = without_secrets(" ".join(repr(value).split()))
    except Exception:  # whatever a user's `__repr__` raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def check_fields(owner: object, **rules: Rule[Any]) -> None:
    """Checks fields of a dataclass, even a frozen one, and sets them to the values that the rules return.

    Raises:
        ArgumentError: a field is not what its rule expects.
    """
    for name, rule in rules.items():
        object.__setattr__(
            owner, name, check(type(owner).__name__, name, getattr(owner, name), rule)
        )


def checked(
    subject: str, advice: Mapping[str, str] = _NO_ADVICE, /, **rules: Rule[Any]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that checks the arguments of a function or method. Each argument must have a rule; defaults are not
    checked.

    The function raises:
        ArgumentError: an argument is not what its rule expects.
        CallError: an unknown or a missing argument.

    Args:
        subject: What the arguments are for, the beginning of messages.
        advice: Replacements for arguments that people may expect but the function does not have.
        **rules: By the name of the argument.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        names = [name for name in signature.parameters if name not in ("self", "cls")]
        assert names == list(rules), (
            f"{subject}: arguments {names}, rules {list(rules)}"
        )

        @wraps(function)
        def with_checks(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in rules:
                    raise CallError(
                        f"{subject}: has no argument {name!r}. {_instead(name, names, advice)}"
                    )
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise CallError(
                    f"{subject}: {error}. Its arguments are {', '.join(names)}"
                ) from None
            for name, rule in rules.items():
                if name in bound.arguments:
                    bound.arguments[name] = check(
                        subject, name, bound.arguments[name], rule
                    )
            return function(*bound.args, **bound.kwargs)

        return with_checks

    return decorate


def _instead(name: str, names: Sequence[str], advice: Mapping[str, str]) -> str:
    if name in advice:
        return advice[name]
    if similar := nearest(name, names):
        return f"Did you mean {similar}?"
    return f"Its arguments are {', '.join(names)}"


@dataclass_transform(frozen_default=True)
def settings(made: C) -> C:
    """A decorator that turns a class of settings into a frozen dataclass. Each field that is `Annotated` with a `Rule`
    is checked and set to the value that the rule returns, before `__post_init__` checks combinations of fields.

    Constructing an object raises:
        ArgumentError: a field is not what its rule expects.
        CallError: an unknown or a missing argument.
    """
    name = made.__name__
    rules = rules_of(made)
    together = getattr(made, "__post_init__", None)

    def check_all(self: Any) -> None:
        check_fields(self, **rules)
        if together is not None:
            together(self)

    made.__post_init__ = check_all
    frozen: Any = dataclass(frozen=True)(made)
    construct = checked(
        name, **dict.fromkeys(inspect.signature(frozen).parameters, ANYTHING)
    )
    frozen.__init__ = construct(frozen.__init__)
    return frozen


def rules_of(made: type) -> Mapping[str, Rule[Any]]:
    """The rules that the annotations of a class, and of its bases, give its fields."""
    annotations = dict[str, Any]()
    for owner in reversed(made.__mro__):
        annotations |= inspect.get_annotations(owner)
    return {
        field: kind.__metadata__[0]
        for field, kind in annotations.items()
        if hasattr(kind, "__metadata__")
    }


def check_option(option: str, value: Any, rule: Rule[Any]) -> None:
    """Checks an option of a command, which argparse has converted to its type."""
    try:
        rule.read(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            f"{option} {value}: expected {rule.expected}{rule.meant(value)}"
        ) from None


# Readers, from which `Rule.read` is built.


def as_whole(value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(
        value, bool | np.timedelta64
    ):
        raise TypeError
    return int(value)


def as_number(value: Any) -> float:
    """An int or float that is finite."""
    number = float(value) if isinstance(value, float | np.floating) else as_whole(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def as_flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def as_items(value: Any) -> tuple[Any, ...]:
    """The entries of a list, a tuple or a one-dimensional array."""
    if not (
        isinstance(value, list | tuple)
        or (isinstance(value, np.ndarray) and value.ndim == 1)
    ):
        raise TypeError
    return tuple(value)


def as_numbers(value: Any) -> npt.NDArray[Any]:
    """An array (n,) of bools or integers."""
    if isinstance(value, bytes | bytearray | memoryview):  # arrays of uint8, to NumPy
        raise TypeError
    try:
        numbers = np.asarray(value)
    except Exception:  # lists of unequal length, tensors on a GPU
        raise TypeError from None
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "biu"):
        raise TypeError
    return numbers if numbers.dtype == bool else numbers.astype(np.int64)


def _as_path(value: Any) -> Any:
    """The path unchanged, since messages quote it."""
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError
    return value


_UNITS = {
    "": 1,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


def parse_size(text: str) -> int:
    """The number of bytes of a size such as "1GB", "256 MiB", "1e9" or "500000".

    Raises:
        ValueError, OverflowError: it is not a size.
    """
    upper = text.strip().upper()
    digits = upper.rstrip("BKMGTI ")
    return int(
        float(digits)
        * _UNITS.get(upper[len(digits) :].strip().removesuffix("B"), math.nan)
    )


# Rules

# The function checks it with its own message.
ANYTHING: Rule[Any] = Rule("", lambda value: value)


def fitting(
    expected: str, read: Callable[[Any], T], fits: Callable[[T], bool]
) -> Rule[T]:
    """A rule for values that a function can read.

    Args:
        expected: What messages say is expected.
        read: Converts what the user gave, and raises ValueError or TypeError for what it cannot convert.
        fits: Whether the converted value is allowed.
    """

    def checked_read(value: Any) -> T:
        checked_value = read(value)
        if not fits(checked_value):
            raise ValueError
        return checked_value

    return Rule(expected, checked_read)


def whole(
    least: int | None = None, most: int | None = None, expected: str = ""
) -> Rule[int]:
    """A whole number in least..most."""
    limits = ""
    if least is not None:
        limits = f" of at least {least}" if most is None else f" in {least}..{most}"
    low = -math.inf if least is None else least
    high = math.inf if most is None else most
    return fitting(
        expected or f"a whole number{limits}",
        as_whole,
        lambda number: low <= number <= high,
    )


def number(low: float, high: float, expected: str) -> Rule[float]:
    """A finite number in low..high."""
    return fitting(expected, as_number, lambda number: low <= number <= high)


def choice(*words: Word) -> Rule[Word]:
    """One of these words, such as `choice(*get_args(SomeLiteral))`."""

    def read(value: Any) -> Word:
        return words[words.index(as_text(value))]

    return Rule(f"one of {', '.join(map(repr, words))}", read, words)


def member(*words: str) -> Rule[str]:
    """One of these words, or its equivalent in NumPy, torch, Pillow or torchvision: np.float32, torch.float32,
    torch.channels_last, Image.Resampling.BICUBIC, InterpolationMode.BICUBIC."""
    plain = choice(*words)

    def read(value: Any) -> str:
        if isinstance(value, Enum):
            value = value.name.lower()
        elif type(value).__module__ == "torch":  # a dtype or a memory format
            value = str(value).removeprefix("torch.")
        elif isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            value = np.dtype(value).name
        return plain.read(value)

    return Rule(plain.expected, read, words)


def text(expected: str) -> Rule[str]:
    """A non-empty text."""
    return fitting(expected, as_text, bool)


def optional(rule: Rule[T]) -> Rule[T | None]:
    """A value that fits the rule, or None."""
    return Rule(
        f"{rule.expected}, or None",
        lambda value: None if value is None else rule.read(value),
        rule.words,
    )


def either(expected: str, *rules: Rule[Any]) -> Rule[Any]:
    """A value that fits one of these rules; the first one reads it."""

    def read(value: Any) -> Any:
        for rule in rules[:-1]:
            try:
                return rule.read(value)
            except (TypeError, ValueError, OverflowError):
                continue
        return rules[-1].read(value)

    return Rule(expected, read, tuple(word for rule in rules for word in rule.words))


def several(
    rule: Rule[T], expected: str, count: int | None = None
) -> Rule[tuple[T, ...]]:
    """A rule for tuples whose values each fit another rule.

    Args:
        rule: For each value.
        expected: What messages say is expected.
        count: How many values; None: at least one.
    """

    def read(value: Any) -> tuple[T, ...]:
        return tuple(map(rule.read, as_items(value)))

    return fitting(
        expected,
        read,
        lambda found: len(found) == count if count is not None else bool(found),
    )


def ascending(low: float, high: float, expected: str) -> Rule[tuple[float, ...]]:
    """Two numbers in low..high, the second at least as large as the first."""
    return fitting(
        expected,
        several(number(low, high, ""), "", count=2).read,
        lambda pair: pair[0] <= pair[1],
    )


def instance(expected: str, *classes: type) -> Rule[Any]:
    """An object of one of these classes."""
    return fitting(expected, ANYTHING.read, lambda value: isinstance(value, classes))


def function(expected: str) -> Rule[Any]:
    """A callable, but not a class, which is usually an instance without its parentheses."""
    return fitting(
        expected,
        ANYTHING.read,
        lambda value: callable(value) and not isinstance(value, type),
    )


POSITIVE = math.nextafter(0, 1)  # the lower bound of numbers above 0
LARGEST = 1e6  # of numbers used to compute pixels: far below the limits of float32, far above any use
FLAG = Rule("True or False", as_flag)
PROBABILITY = number(0, 1, "a probability in 0..1")
COUNT = whole(1)
# A JPEG's sides are 65,535 pixels at most.
SIDE = whole(1, 65_535, "pixels in 1..65,535")
SIDES = either(
    "a positive side in pixels, or (height, width)", SIDE, several(SIDE, "", count=2)
)
PATH: Rule[str | Path] = Rule("a path", _as_path)
