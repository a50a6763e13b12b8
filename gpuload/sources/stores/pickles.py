"""Values in pickles that hold plain data, without running them.

A pickle is a program, which could run anything. Most of those in stores only build tuples, lists, dicts, numbers, texts
and bytes, or arrays of NumPy: these are read by an unpickler that imports nothing, and whose only calls are those of
NumPy's pickles, done here. Any other pickle is refused, unless the user trusts the store; then Python runs it, in the
process that reads the source and nothing else (`Source.needs_process`).
"""

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuload.sources.source import ColumnOptions
from gpuload.sources.stores.pieces import Pieces

_TRUST = (
    "it could run anything: if you trust who wrote it, give --option trust_pickles=true"
)
_MOST_VALUES = 1_000_000  # in one pickle
_MOST_DEPTH = 16
_PLAIN = (bool, int, float, str, bytes, bytearray, np.ndarray)


@dataclass(frozen=True)
class PickleOptions(ColumnOptions):
    """The options of a store that may hold pickles.

    Args:
        trust_pickles: Whether pickles that hold more than plain data are run.
    """

    trust_pickles: bool = False

    def decode(self, pieces: Pieces) -> Any:
        """The value in a pickle, see `read_pickle`."""
        return read_pickle(pieces.rest(), self.trust_pickles)


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
        unpickler = _PlainUnpickler(io.BytesIO(data))
        return unpickler.finished(unpickler.load())
    except _NotPlainError as error:
        if not is_trusted:
            raise ValueError(f"a pickle with {error}, and {_TRUST}") from None
    except Exception as error:  # of any kind, by whatever bytes are damaged
        raise ValueError(f"a pickle that is damaged ({error!r})") from None
    try:
        return pickle.loads(data)
    except Exception as error:  # of any kind, by whatever it runs
        raise ValueError(
            f"a pickle that raised {type(error).__name__}: {error}"
        ) from None


class _NotPlainError(Exception):
    """A pickle holds something else than plain data; the message says what."""


class _DType:
    """A dtype of NumPy that is being built, since its byte order comes last."""

    def __init__(self, code: object, *_: object) -> None:
        self._code = str(code)
        self._order = ""

    def __setstate__(self, state: Sequence[Any]) -> None:
        self._order = state[1] if state[1] in ("<", ">") else ""

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

    def __init__(self, *_: object) -> None:
        self.values: Any = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _values(data, dtype, shape, is_fortran)


def _refused(*_: object) -> Any:
    raise _NotPlainError("an array that is made in another way than NumPy's")


def _scalar(dtype: _DType, data: bytes) -> Any:
    return _values(data, dtype, ()).item()


def _of_buffer(buffer: bytes, dtype: _DType, shape: Sequence[int], order: str) -> Any:
    return _values(buffer, dtype, shape, order == "F")


def _latin(text: str, encoding: str) -> bytes:
    """What pickles of bytes call in the protocols before Python 3."""
    if encoding != "latin1":
        raise _NotPlainError(f"a text in {encoding[:20]}")
    return text.encode(encoding)


def _values(
    data: bytes, dtype: _DType, shape: Sequence[int], is_fortran: bool = False
) -> Any:
    """An array, whose bytes are all there."""
    kind = dtype.plain()
    if not isinstance(data, bytes | bytearray):
        raise _NotPlainError("an array of other values than bytes")
    pieces = Pieces(bytes(data))
    if is_fortran:
        return pieces.array(kind, tuple(shape)[::-1]).T
    return pieces.array(kind, tuple(shape))


class _Substitute:
    """In place of what a pickle would import: it can be called, and is nothing else.

    Args:
        function: That is called.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _NotPlainError("the state of an object")


# What NumPy's pickles call, by its names there; that of the class of arrays is an argument alone.
_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy.core.multiarray scalar": _scalar,
    "numpy.core.numeric _frombuffer": _of_buffer,
    "numpy ndarray": _refused,
    "numpy dtype": _DType,
    "_codecs encode": _latin,
}


class _PlainUnpickler(pickle._Unpickler):
    """Builds plain data, and nothing that a pickle would import.

    It is the unpickler that is written in Python: the one in C takes as much memory as a number in the pickle says.
    """

    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    _count = 0  # of finished values

    def find_class(self, module: str, name: str) -> _Substitute:
        function = _CALLS.get(f"{module.replace('numpy._core', 'numpy.core')} {name}")
        if function is None:
            raise _NotPlainError(f"an object of {module}.{name}"[:80])
        return _Substitute(function)

    def load_bytearray8(self) -> None:
        """Takes no more bytes than there are, whatever it claims."""
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }

    def finished(self, value: Any, depth: int = 0) -> Any:
        """A value with finished arrays in place of those that are being built.

        Raises:
            _NotPlainError: it holds itself, is nested more deeply or more often than data are, or is something else.
        """
        self._count += 1
        if depth > _MOST_DEPTH or self._count > _MOST_VALUES:
            raise _NotPlainError("values that are nested too deeply")
        if isinstance(value, _Array) and value.values is not None:
            return value.values
        if isinstance(value, list | tuple):
            return type(value)(self.finished(entry, depth + 1) for entry in value)
        if isinstance(value, dict):
            entries = self.finished(list(value.items()), depth)
            return dict(entries)
        if value is None or isinstance(value, _PLAIN):
            return value
        raise _NotPlainError(f"a value of type {type(value).__name__}")
