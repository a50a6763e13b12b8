"""The errors that gpuload raises.

    GpuloadError
    ├── ArgumentError        an invalid argument (also a ValueError)
    │   └── CallError        a call that does not exist: an unknown or missing argument, or an operation that an object
    │                        does not have (also a TypeError)
    ├── SourceError          the images or labels given to the packer are missing or unreadable
    ├── OutputError          the packer's output folder is in use or cannot be written
    ├── FormatError          a manifest or index cannot be read, or has an unsupported version
    │   └── ShardError       a shard and its index disagree, or the shard is truncated
    ├── DecodeError          a sample cannot be decoded
    ├── FunctionError        a user function raised an exception or returned an invalid result
    ├── DeviceError          the requested device does not exist
    ├── RemoteError          a URL cannot be read: no connection, no access, or no such object
    ├── MissingPackageError  a package of an extra is not installed (also an ImportError)
    └── StateError           a state_dict, or a pickled Dataset, belongs to another data set or version

Each message is one line: the subject, the expected and the actual value, and the remedy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class GpuloadError(Exception):
    """Base class of all errors that gpuload raises on purpose.

    Text from files may contain line breaks and control characters, which a terminal would obey; messages escape them,
    and omit possible secrets in URLs.
    """

    def __init__(self, *args: str) -> None:
        super().__init__(*(printable(without_secrets(text)) for text in args))


@contextmanager
def naming(originals: Mapping[Path, object]) -> Iterator[None]:
    """Errors of the block name what the user gave, and not the place of a copy of it, which may be gone by then.

    Args:
        originals: What was given, by the path of its copy, or of the folder of its copies.
    """
    try:
        yield
    except GpuloadError as error:
        text = str(error)
        for copy, original in originals.items():
            text = text.replace(str(copy), str(original))
        if text == str(error):
            raise
        raise type(error)(text) from None


class ArgumentError(GpuloadError, ValueError):
    """An argument is out of range or contradicts another one."""


class CallError(ArgumentError, TypeError):
    """A call that does not exist: an unknown or missing argument, or an operation that the object does not have."""


class SourceError(GpuloadError):
    """Images or labels given to the packer are missing or unreadable."""


class OutputError(GpuloadError):
    """The packer's output folder is in use or cannot be written."""


class FormatError(GpuloadError):
    """A manifest or index is missing, damaged, or has a version that this gpuload does not support."""


class ShardError(FormatError):
    """A shard is missing, truncated, or does not match its index."""


class DecodeError(GpuloadError):
    """A stored sample cannot be decoded."""


class FunctionError(GpuloadError):
    """A user function raised an exception, which is the cause, or returned an invalid result."""


class DeviceError(GpuloadError):
    """The requested device does not exist on this machine."""


class RemoteError(GpuloadError):
    """A URL cannot be read: there is no connection, no access or no such object."""


class MissingPackageError(GpuloadError, ImportError):
    """A package that this part of gpuload needs is not installed."""


class StateError(GpuloadError):
    """A state_dict or a pickled Dataset belongs to another data set, or to another version of gpuload."""


# A URL's user ends at the last "@": a secret may contain others, slashes, and, after a colon that begins no port,
# spaces. A quote before a letter or digit is part of it. pathlib leaves one of two slashes.
_INSIDE = r"['\"](?=\w|['\"]\w)"
_USER = re.compile(
    r"(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]+:/{1,2})(?!/)"
    rf"([^\s'\"/:@]*:(?!\d*[/\s]|\s)(?:[^'\"]|{_INSIDE})*|(?:[^\s'\"]|{_INSIDE})*)@"
)
_QUERY = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^\s'\"?#]*)[?#][^\s'\"]*?[^\s'\":.,;)](?=[:.,;)]*(?:[\s'\"]|$))"
)


def without_secrets(text: str) -> str:
    """Removes from each URL in a text its user and password, and its query, which may be a signature.

    The user is everything before the last "@", if the part before the first slash has an "@" or a colon: paths may have
    an "@", too, as in `hf://datasets/OWNER/NAME@REVISION`.
    """
    return _QUERY.sub(r"\1?…", _USER.sub(_without_user, text)) if ":/" in text else text


def _without_user(found: re.Match[str]) -> str:
    host = re.split("[/?#]", found[2] + "@", maxsplit=1)[0]
    return f"{found[1]}…@" if ":" in host or "@" in host else found[0]


def printable(text: str) -> str:
    """Escapes control characters, line breaks and characters that change the direction of writing."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in text
    )


def some_of(names: Sequence[str | int], count: int = 3) -> str:
    """The first of some quoted names, or numbers, for a message: `'a', 'b', 'c' and 4 more`.

    Args:
        names: At least one.
        count: How many are written out.
    """
    shown = ", ".join(map(repr, names[:count]))
    return shown if len(names) <= count else f"{shown} and {len(names) - count:,} more"
