"""Decodes single images as `DaliIterator` does, for `verify`.

The functions are importable by name, since they run in worker processes, which a decoder may crash.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gpuload.decode.interface import Stored
from gpuload.decode.pillow import UndecodableError, decode_upright
from gpuload.headers import jpeg
from gpuload.headers.encodings import is_avif, is_tiff
from gpuload.read.batch import EncodedBatch
from gpuload.types import U8

OTHER_SIZE = "is not of the size that the index says"


def find_dali_fault(content: bytes, height: int, width: int) -> str | None:
    """Why DALI's CPU decoder does not decode an image; None if it does."""
    from gpuload.decode.dali.screen import Trial

    view = memoryview(content)
    if is_avif(view) or is_tiff(view):  # a loader decodes these by Pillow, see `transcode`
        return _find_pillow_fault(content, height, width, "DALI")
    found = _kept(Trial).decoded_size(np.frombuffer(content, np.uint8))
    if found is None:
        return "is not decoded by DALI"
    return None if found == (height, width) else OTHER_SIZE


def find_native_fault(content: bytes, height: int, width: int) -> str | None:
    """Why the native decoder does not decode an image; None if it does."""
    from gpuload.decode.native.images import DecodePlan, ImageDecoder

    if not content.startswith(jpeg.START):
        return _find_pillow_fault(content, height, width, "the native decoder")
    data = np.frombuffer(content, np.uint8)
    plan = DecodePlan(_batch_of(data, height, width), np.array([[0, 0, height, width]], np.int64), np.ones(1, np.int64))
    _owners, broken = _kept(_open_native, ImageDecoder).decode(plan, 0)
    if broken:
        return f"is not decoded by the native decoder: {broken[0].reason}"
    return None if plan.pictures[0, 1:3].tolist() == [height, width] else OTHER_SIZE


def _find_pillow_fault(content: bytes, height: int, width: int, decoder: str) -> str | None:
    """The same for Pillow, in any mode."""
    data = np.frombuffer(content, np.uint8)
    try:
        size = decode_upright(data, (height, width)).size
    except UndecodableError as error:
        return f"is not decoded by {decoder}: {error}"
    return None if size == (width, height) else OTHER_SIZE


@cache
def _kept(make: Callable[..., Any], *args: Any) -> Any:
    """A decoder that all images of this process share."""
    return make(*args)


def _open_native(decoder: Callable[[Stored], Any]) -> Any:
    return decoder(Stored())


def _batch_of(data: U8, height: int, width: int) -> EncodedBatch:
    size = np.array([height], np.int32), np.array([width], np.int32)
    spans = np.array([[data.ctypes.data, data.nbytes]], np.int64)
    return EncodedBatch(np.zeros(1, np.int64), [data], spans, np.zeros(1, np.bool_), size[1], size[0], {}, {})
