"""Which samples of a batch the CPU decodes where two decoders share it, and the batch of either half."""

import io
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from gpuload.augment import View
from gpuload.augment.crops import whole_images
from gpuload.decode.guard import FindFaults
from gpuload.decode.interface import Fault, Stored
from gpuload.decode.placeholder import black_png
from gpuload.draws import SHARE, random_bits, uniform
from gpuload.fields.pixels import GRAY, RGB
from gpuload.read.batch import Batch, EncodedBatch
from gpuload.types import I64, U8, Bools

_SIDE = 8  # pixels of the stand-in


class Halves(NamedTuple):
    """A batch divided: rows of each half, int64, ascending; together 0..N-1."""

    batch: Batch
    dali: I64
    native: I64


def divide(batch: Batch, cpu_share: float) -> Halves:
    """A pure function of (seed, epoch, sample) and the share, whatever the batch: a larger share moves samples from
    DALI to the CPU, and none back.
    """
    to_cpu = is_for_cpu(batch, cpu_share)
    return Halves(batch, np.flatnonzero(~to_cpu), np.flatnonzero(to_cpu))


def is_for_cpu(batch: Batch, cpu_share: float) -> Bools:
    """bool (N,): whether the CPU decodes each sample."""
    key = random_bits(batch.keys, np.full(len(batch), SHARE, np.uint64))
    chosen: Bools = uniform(key, batch.encoded.samples) < cpu_share
    return chosen


def select(batch: Batch, rows: I64) -> Batch:
    """What a decoder needs of some samples: bytes, sizes, masks and views, without the other fields."""
    return replace(batch, encoded=replace(batch.encoded, columns={}, members={}), prepared={}).take(rows)


def find_dalis_faults(find_faults: FindFaults, cpu_share: float, batch: Batch) -> dict[int, Fault]:
    """What `find_faults` finds of the samples that are for DALI, by their rows in the whole batch.

    The CPU decoder takes anything, and tells afterwards what did not decode.
    """
    rows = divide(batch, cpu_share).dali
    found = find_faults(select(batch, rows)) if len(rows) else {}
    return {int(rows[row]): fault for row, fault in found.items()}


def stand_in(batch: Batch, stored: Stored) -> Batch:
    """A batch of one gray image in place of none: DALI cannot be fed an empty batch, and every batch has its turn."""
    if stored.raw:
        image = np.zeros(_SIDE * _SIDE * stored.source.bytes, np.uint8)
    else:
        image = _encoded("RGB", "JPEG") if stored.source in (RGB, GRAY) else black_png((_SIDE, _SIDE), stored.source)
    side = np.full(1, _SIDE, np.int32)
    span = np.array([(image.ctypes.data, image.nbytes)], np.int64)
    zero = np.zeros(1, np.int64)
    crops = whole_images(side.astype(np.float64), side.astype(np.float64))
    return Batch(
        EncodedBatch(zero, [image], span, np.array([stored.raw]), side, side, {}, {}),
        tuple([_encoded("L", "PNG")] for _ in batch.masks),
        tuple(View(view.size, crops, None, None) for view in batch.views),
        zero,
        np.zeros(1, np.uint64),
        batch.stop,
        0.0,
    )


@cache
def _encoded(mode: str, form: str) -> U8:
    file = io.BytesIO()
    Image.new(mode, (_SIDE, _SIDE)).save(file, form)
    return np.frombuffer(file.getvalue(), np.uint8)
