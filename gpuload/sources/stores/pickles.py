"""Values in pickles that hold plain data, without running them.

A pickle is a program, which could run anything. Most of those in stores only build tuples, lists, dicts, numbers, texts
and bytes, or arrays of NumPy: these are read here by an interpreter that knows nothing else, calls nothing and imports
nothing. Any other pickle is refused, unless the user trusts the store; then Python runs it, in the process that reads
the source and nothing else (`Source.needs_process`).
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.sources.source import ColumnOptions
from gpuload.sources.stores.pieces import Pieces

_TRUST = (
    "it could run anything: if you trust who wrote it, give --option trust_pickles=true"
)
_MOST_VALUES = 1_000_000  # in one pickle
_MOST_DEPTH = 16
_MARK = object()

# What NumPy's pickles call; here they are names alone.
_RECONSTRUCT = {
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
}
_SCALAR = {"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"}
_OF_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
_NAMES = {
    *_RECONSTRUCT,
    *_SCALAR,
    *_OF_BUFFER,
    "numpy ndarray",
    "numpy dtype",
    "_codecs encode",
}


@dataclass(frozen=True)
class PickleOptions(ColumnOptions):
    """The options of a store that may hold pickles.

    Args:
        trust_pickles: Whether pickles that hold more than plain data are run.
    """

    trust_pickles: bool = False


def is_pickle(data: bytes) -> bool:
    """Whether bytes begin as every binary pickle does since 2003."""
    return data[:1] == b"\x80" and len(data) > 1 and data[1] in range(2, 6)


def read_pickle(data: bytes, is_trusted: bool = False) -> Any:
    """The value in a pickle.

    Args:
        data: The pickle.
        is_trusted: Whether Python may run it, where it is more than plain data.

    Raises:
        ValueError: it is damaged, or is more than plain data and not trusted.
    """
    try:
        return _Machine().run(data)
    except _NotPlainError as error:
        if not is_trusted:
            raise ValueError(f"a pickle with {error}, and {_TRUST}") from None
    except (IndexError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"a pickle that is damaged ({error})") from None
    try:
        return pickle.loads(data)
    except Exception as error:  # of any kind, by whatever it runs
        raise ValueError(
            f"a pickle that raised {type(error).__name__}: {error}"
        ) from None


class _NotPlainError(Exception):
    """A pickle holds something else than plain data; the message says what."""


class _Name(str):
    """What a pickle would import, as a text."""

    __slots__ = ()


class _DType:
    """A dtype of NumPy that is being built, since its byte order comes last."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._order = ""

    def order(self, order: str) -> None:
        self._order = order if order in ("<", ">") else ""

    def plain(self) -> Any:
        """The dtype of numbers.

        Raises:
            _NotPlainError: it is another.
        """
        if self._code[:1] not in "biufS" or not self._code[1:].isdecimal():
            raise _NotPlainError(f"an array of dtype {self._code[:20]!r}")
        return np.dtype(self._order + self._code)


class _Array:
    """An array of NumPy that is being built: its state comes after it."""

    def __init__(self) -> None:
        self.values: Any = None


class _Machine:
    """The stack and memory of a pickle, and what its operations do to plain data."""

    def __init__(self) -> None:
        self._stack = list[Any]()
        self._memory = dict[int, Any]()
        self._count = 0

    def run(self, data: bytes) -> Any:
        """Raises _NotPlainError, ValueError and whatever comes of a damaged pickle."""
        import pickletools  # takes 10 ms, which recognition is spared

        for operation, argument, _ in pickletools.genops(data):
            name = operation.name
            self._count += 1
            if self._count > _MOST_VALUES:
                raise _NotPlainError("more than a million values")
            if name == "STOP":
                return self.finished(self._stack.pop(), 0)
            if name in _PUSHES:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in _IGNORED:
                raise _NotPlainError(f"the operation {name}")
        raise ValueError("a pickle that does not end")

    def finished(self, value: Any, depth: int) -> Any:
        """A value with finished arrays in place of those that are being built.

        Raises:
            _NotPlainError: it holds itself, or is nested more deeply or more often than data are.
        """
        self._count += 1
        if depth > _MOST_DEPTH or self._count > _MOST_VALUES:
            raise _NotPlainError("values that are nested too deeply")
        if isinstance(value, _Array):
            return value.values
        if isinstance(value, list | tuple):
            return type(value)(self.finished(entry, depth + 1) for entry in value)
        if isinstance(value, dict):
            return {
                key: self.finished(entry, depth + 1) for key, entry in value.items()
            }
        if isinstance(value, _Name | _DType):
            raise _NotPlainError("a class")
        return value

    def remember(self, number: Any) -> None:
        self._memory[len(self._memory) if number is None else number] = self._stack[-1]

    def recall(self, number: Any) -> None:
        self._stack.append(self._memory[number])

    def since_mark(self) -> list[Any]:
        """Takes what lies above the last mark."""
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                values = self._stack[place + 1 :]
                del self._stack[place:]
                return values
        raise ValueError("a pickle that is damaged (no mark)")

    def tuple_of(self, count: int | None) -> None:
        """Replaces the last values, or those since the mark, by their tuple."""
        if count is None:
            values = self.since_mark()
        else:
            values = self._stack[-count:]
            del self._stack[-count:]
        self._stack.append(tuple(values))

    def pushed(self, make: Callable[[list[Any]], Any]) -> None:
        """Pushes what is made of the values since the mark."""
        values = self.since_mark()
        self._stack.append(make(values))

    def extend(self, values: Sequence[Any]) -> None:
        self._stack[-1].extend(values)

    def set_items(self, values: Sequence[Any]) -> None:
        self._stack[-1].update(_pairs(values))

    def import_name(self, argument: Any) -> None:
        """Pushes a name, which is imported by nobody."""
        if argument is None:
            name = self._stack.pop()
            argument = f"{self._stack.pop()} {name}"
        if argument not in _NAMES:
            raise _NotPlainError(f"an object of {str(argument)[:60].replace(' ', '.')}")
        self._stack.append(_Name(argument))

    def call(self, _: Any) -> None:
        """Does what the calls in NumPy's pickles would do."""
        arguments = self._stack.pop()
        name = self._stack.pop()
        if not isinstance(name, _Name):
            raise _NotPlainError("a call of what is no name")
        if name in _RECONSTRUCT:
            self._stack.append(_Array())
        elif name in _SCALAR:
            self._stack.append(_values(arguments[1], arguments[0].plain(), ()).item())
        elif name in _OF_BUFFER:
            buffer, dtype, shape, order = arguments
            self._stack.append(_values(buffer, dtype.plain(), shape, order == "F"))
        elif name == "numpy dtype":
            self._stack.append(_DType(str(arguments[0])))
        elif name == "_codecs encode" and arguments[1] == "latin1":
            self._stack.append(arguments[0].encode("latin-1"))
        else:
            raise _NotPlainError(f"a call of {name}")

    def build(self, _: Any) -> None:
        """Gives an array or a dtype its state."""
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, _DType):
            target.order(state[1])
        elif isinstance(target, _Array):
            _, shape, dtype, is_fortran, data = state
            target.values = _values(data, dtype.plain(), shape, is_fortran)
        else:
            raise _NotPlainError("the state of an object")


def _pairs(values: Sequence[Any]) -> Mapping[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _values(
    data: bytes, dtype: Any, shape: Sequence[int], is_fortran: bool = False
) -> Any:
    """An array, whose bytes are all there."""
    if is_fortran:
        return Pieces(bytes(data)).array(dtype, tuple(shape)[::-1]).T
    return Pieces(bytes(data)).array(dtype, tuple(shape))


_IGNORED = {"PROTO", "FRAME"}
_PUSHES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MEMOIZE": _Machine.remember,
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "PUT": _Machine.remember,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GET": _Machine.recall,
    "TUPLE": lambda machine, _: machine.tuple_of(None),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": lambda machine, _: machine.pushed(list),
    "DICT": lambda machine, _: machine.pushed(_pairs),
    "APPEND": lambda machine, _: machine.extend([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(
        [machine._stack.pop(-2), machine._stack.pop()]
    ),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "GLOBAL": _Machine.import_name,
    "STACK_GLOBAL": _Machine.import_name,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
