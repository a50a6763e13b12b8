"""Decoded copies of packed sets: what their manifests say of the set that they were made of.

A copy has the order, keys and fields of that set, sample by sample, so it has its fingerprint, too: a state of the one
is a state of the other. `gpuload.decoded_copies` makes them.
"""

import hashlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuload.disk.manifest import Manifest
from gpuload.errors import FormatError
from gpuload.machine.untrusted import open_regular
from gpuload.store.url import URL
from gpuload.types import I64

ENTRY = "decoded_copy"  # in `Manifest.packing`
SELECTION_NAME = "selected.npy"
_FINGERPRINT = re.compile("[0-9a-f]{16}")


class CopiedFrom(NamedTuple):
    """What a decoded copy was made of.

    Attributes:
        fingerprint: Of the whole set.
        resized: How its images were resized, such as "256 shortest"; "" where they have their own size.
        selection: The SHA-256 of the file with the numbers of the samples that were copied; None where all were.
    """

    fingerprint: str
    resized: str
    selection: str | None


def copied_from(manifest: Manifest) -> CopiedFrom | None:
    """What a set is a decoded copy of; None where it is none.

    Raises:
        FormatError: what the manifest says of that cannot be.
    """
    entry: Any = manifest.packing.get(ENTRY)
    if entry is None:
        return None
    try:
        copied = CopiedFrom(**entry)
        texts = (copied.fingerprint, copied.resized, copied.selection or "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
        if _FINGERPRINT.fullmatch(copied.fingerprint) is None:
            raise ValueError
    except (TypeError, ValueError):
        raise FormatError(
            f"manifest.json: {ENTRY} is not what gpuload.decoded writes. Delete the copy, and make it again"
        ) from None
    return copied


def write_selection(folder: Path, selected: I64) -> str:
    """Writes the numbers of the samples that a copy holds, and returns the SHA-256 of the file."""
    file = io.BytesIO()
    np.save(file, selected)
    (folder / SELECTION_NAME).write_bytes(file.getvalue())
    return hashlib.sha256(file.getvalue()).hexdigest()


def read_selection(folder: Path | URL, copied: CopiedFrom, samples: int) -> I64 | None:
    """int64 (n,), ascending: the numbers of the samples that a copy holds; None where it holds all.

    Args:
        folder: Of the copy.
        copied: What its manifest says.
        samples: How many the set has.

    Raises:
        FormatError: the file is missing, or is not that of the manifest.
    """
    if copied.selection is None:
        return None
    if isinstance(folder, URL):
        raise FormatError(
            f"{folder}: is a decoded copy of a selection, which is read where it was made. Open the set itself"
        )
    try:
        with open_regular(folder / SELECTION_NAME) as file:
            content = file.read()
    except OSError as error:
        raise FormatError(
            f"{folder / SELECTION_NAME}: cannot be read ({error.strerror}). Delete the copy, and make it again"
        ) from None
    if hashlib.sha256(content).hexdigest() == copied.selection:
        selected = np.load(io.BytesIO(content), allow_pickle=False)
        is_ascending = len(selected) and (np.diff(selected) > 0).all()
        if is_ascending and selected[0] >= 0 and selected[-1] < samples:
            return selected.astype(np.int64)
    raise FormatError(
        f"{folder / SELECTION_NAME}: is damaged. Delete the copy, and make it again"
    )
