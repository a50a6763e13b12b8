"""Untrusted files and JSON: opening a pipe would block until its other end opens, and a device may have no end."""

import json
import os
import stat
from typing import Any, BinaryIO


class NotRegularError(OSError):
    """It is a folder, a pipe, a socket or a device."""


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Opens a file for reading; links are followed.

    Args:
        path: Where the file is.
        buffering: As of `open`.

    Raises:
        NotRegularError: it is not a regular file. OSError: it cannot be opened.
    """
    handle = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK
    )  # by O_NONBLOCK, opening a pipe returns at once
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegularError(None, "is not a regular file")
    return open(handle, "rb", buffering)


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`.

    Raises:
        ValueError: it is not JSON, not in a UTF encoding, or nested more deeply than Python's parser goes.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None
