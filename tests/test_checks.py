"""The rules for arguments, and what they say."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gpuload import ArgumentError
from gpuload.checks import (
    FLAG,
    Rule,
    as_number,
    as_whole,
    check,
    check_fields,
    checked,
    either,
    optional,
    several,
    shown,
    whole,
)


@checked("f", {"size": "Use count"}, count=whole(1, 9), names=several(optional(FLAG), "some flags"))
def f(count: int, *, names: Any = ()) -> tuple[int, Any]:
    """Doc."""
    return count, names


def test_a_checked_function_gets_pythons_own_types() -> None:
    count, names = f(np.int8(3), names=[np.True_, None])
    assert (count, names) == (3, (True, None)) and type(count) is int and type(names[0]) is bool
    assert f(3) == (3, ())  # a default is not checked
    assert f.__doc__ == "Doc." and f.__name__ == "f"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: f(0), r"f\(count=0\): expected a whole number in 1..9"),
        (lambda: f(count=2.0), r"f\(count=2.0\): expected a whole number in 1..9"),
        (lambda: f(1, names=[1]), r"f\(names=\[1\]\): expected some flags"),
        (lambda: f(1, size=3), "f: has no argument 'size'. Use count"),
        (lambda: f(1, name=3), "f: has no argument 'name'. Did you mean names?"),
        (lambda: f(), r"f: missing a required argument: 'count'. Its arguments are count, names"),
        (lambda: f(1, 2), "f: too many positional arguments. Its arguments are count, names"),
    ],
)
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_an_argument_without_a_rule_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="g: arguments"):

        @checked("g", a=whole())
        def g(a: int, b: int) -> None: ...


def test_a_frozen_dataclass_gets_pythons_own_types() -> None:
    @dataclass(frozen=True)
    class One:
        number: int
        side: Any = None

        def __post_init__(self) -> None:
            check_fields(
                self, number=whole(0), side=optional(either("one or two", whole(), several(whole(), "", count=2)))
            )

    assert One(np.uint8(4), [1, np.int64(2)]) == One(4, (1, 2))
    assert type(One(np.uint8(4)).number) is int
    with pytest.raises(ArgumentError, match=r"One\(side=\(1, 2, 3\)\): expected one or two, or None"):
        One(1, (1, 2, 3))


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, np.timedelta64(1, "s"), np.array(1), Fraction(1)])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(TypeError):
        as_whole(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32(math.nan), 10**400])
def test_numbers_are_finite(value: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a number"):
        check("f", "x", value, Rule("a number", as_number))


def test_a_rules_own_error_is_kept() -> None:
    def read(value: Any) -> Any:
        raise ArgumentError("in words of its own")

    with pytest.raises(ArgumentError, match="^in words of its own$"):
        check("f", "x", 1, Rule("something", read))


def test_a_value_is_shown_in_one_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert "\n" not in shown(np.zeros((9, 9))) and len(shown(list(range(999)))) == 80

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert shown(Broken()) == "<Broken>"
