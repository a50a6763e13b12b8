"""Two decoders share each batch: DALI decodes one part of its samples, the CPU decoder the other.

    Divide ─► stages of DALI's part, stages of the CPU's part ─► Join

On a host with many cores the CPU decoder is about as fast as a GPU's JPEG engines, so idle cores add throughput. Each
sample has exactly the pixels of the decoder that it is assigned to.

A sample that replaces one that does not decode (`gpuload.decode.faults`) is assigned by its own number. So its decoder
depends on (seed, epoch, sample), not on the sample that it replaces.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpuload.augment import View
from gpuload.augment.crops import whole_images
from gpuload.decode.device import as_tensor
from gpuload.decode.faults import FindFaults, black_png
from gpuload.decode.interface import Decoded, Fault, Stored
from gpuload.decode.runner import Job, Stage
from gpuload.draws import SHARE, random_bits, uniform
from gpuload.fields.images import GRAY, RGB
from gpuload.read.batch import Batch, EncodedBatch
from gpuload.transforms.apply import on_device
from gpuload.types import I64, U8, Bools

DALI, NATIVE = range(2)  # the parts of a batch
_SIDE = 8  # pixels of the stand-in


def is_for_cpu(batch: Batch, cpu_share: float) -> Bools:
    """bool (N,): whether the CPU decodes each sample.

    A pure function of (seed, epoch, sample) and the share, independent of the batch: a larger share moves samples from
    DALI to the CPU, and none back.
    """
    key = random_bits(batch.keys, np.full(len(batch), SHARE, np.uint64))
    chosen: Bools = uniform(key, batch.encoded.samples) < cpu_share
    return chosen


class Divide(Stage):
    """Splits each batch in two. cpu_share: the share of the samples that the CPU decodes."""

    name = "read"

    def __init__(self, stored: Stored, cpu_share: float) -> None:
        self._stored, self._cpu_share = stored, cpu_share

    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        batch, to_cpu = job.batch, is_for_cpu(job.batch, self._cpu_share)
        dali, native = np.flatnonzero(~to_cpu), np.flatnonzero(to_cpu)
        of_dali = _select(batch, dali) if len(dali) else stand_in(batch, self._stored)
        job.parts = (Job(of_dali, dali), Job(_select(batch, native), native))


class Join(Stage):
    """Joins the parts to torch tensors, or passes on the output of the only decoder that had samples."""

    name = "join"

    @torch.no_grad()
    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        decoded, rows = [part.decoded for part in job.parts], [part.rows for part in job.parts if part.rows is not None]
        job.held += decoded
        views = zip(*(one.masks for one in decoded), strict=True)
        job.decoded = Decoded(
            tuple(_join_rows(arrays, rows) for arrays in zip(*(one.images for one in decoded), strict=True)),
            tuple(tuple(_join_rows(arrays, rows) for arrays in zip(*view, strict=True)) for view in views),
            0.0,
            sum(one.work_s for one in decoded),  # NaN, since DALI does not report it; the next, too
            queue_depth=sum(one.queue_depth for one in decoded),
            broken={row: fault for part in job.parts for row, fault in part.in_whole(part.decoded.broken).items()},
        )


def find_dalis_faults(find_faults: FindFaults, cpu_share: float, batch: Batch) -> dict[int, Fault]:
    """The faults that `find_faults` finds in DALI's samples, by row of the whole batch.

    The CPU decoder takes anything, and reports afterwards what did not decode.
    """
    rows = np.flatnonzero(~is_for_cpu(batch, cpu_share))
    found = find_faults(_select(batch, rows)) if len(rows) else {}
    return {int(rows[row]): fault for row, fault in found.items()}


def _select(batch: Batch, rows: I64) -> Batch:
    """The part of a batch that a decoder needs for some samples: bytes, sizes, masks and views."""
    return replace(batch, encoded=replace(batch.encoded, columns={}, members={}), prepared={}).take(rows)


def _join_rows(parts: Sequence[Any], rows: Sequence[I64]) -> Any:
    """Merges two arrays; the entries of part i go to rows[i]. Not copied if one part has all rows."""
    held = [(part, at) for part, at in zip(parts, rows, strict=True) if len(at)]
    if len(held) < 2:
        return held[0][0] if held else parts[NATIVE]
    tensors = [as_tensor(part) for part, _ in held]
    whole = torch.empty((sum(map(len, rows)), *tensors[0].shape[1:]), dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor, (_, at) in zip(tensors, held, strict=True):
        whole.index_copy_(0, on_device(whole.device, at), tensor)
    return whole


def stand_in(batch: Batch, stored: Stored) -> Batch:
    """A batch of one gray image in place of an empty one, which DALI does not take: every batch needs its turn."""
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
        tuple(
            View(view.frame, crops, None, None, cubic=view.cubic if view.cubic is None else zero > 0)
            for view in batch.views
        ),
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
