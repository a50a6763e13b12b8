"""What a wrong argument is told. tests/test_arguments.py tries values for every public argument."""

from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import ArgumentError
from gpuload.checks import checked, whole


def test_a_checked_function_gets_pythons_own_types() -> None:
    @checked("f", count=whole(1, 9))
    def f(count: int = 0) -> int:
        """Doc."""
        return count

    assert type(f(np.int8(3))) is int and f(3) == 3  # type: ignore[arg-type]
    assert f() == 0  # a default is not checked
    assert (f.__doc__, f.__name__) == ("Doc.", "f")
    with pytest.raises(AssertionError, match="g: arguments"):  # a mistake of ours
        checked("g", a=whole())(lambda a, b: None)


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpuload.Boxes(min_visible=10**400), r"Boxes\(min_visible=1000.*\): expected a fraction of"),
        (lambda: gpuload.Shuffle("a\nb"), r"Shuffle\(window='a\\nb'\): expected"),
        (lambda: gpuload.Shuffle(Broken()), r"Shuffle\(window=<Broken>\): expected"),
        (lambda: gpuload.Shuffle(list(range(999))), r"^Shuffle\(window=.{79}…\): expected"),
        (lambda: gpuload.Shuffle(windw=3), "Shuffle: has no argument 'windw'. Did you mean window?"),
        (lambda: gpuload.mix(sets=1), "mix: has no argument 'sets'. Its arguments are parts, batches"),
        (lambda: gpuload.DaliIterator(shuffel=1), "DaliIterator: has no argument 'shuffel'. Did you mean shuffle?"),
        (lambda: gpuload.mix(), "mix: missing a required argument: 'parts'. Its arguments are parts, batches"),
        (lambda: gpuload.mix([], 3, 4), "mix: too many positional arguments. Its arguments are parts, batches"),
    ],
)  # fmt: skip
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)
