"""Stages in torch: the last one for a GPU, and those of two decoders that share each batch.

    SplitParts ─► stages of DALI's part, stages of the CPU's part ─► Join

On a host with many cores the CPU decoder is about as fast as a GPU's JPEG engines, so idle cores add throughput. Each
sample has exactly the pixels of the decoder that it is assigned to. A sample that replaces one that does not decode
(`gpuload.decode.faults`) is assigned by its own number. So its decoder depends on (seed, epoch, sample), not on the
sample that it replaces.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpuload.augment import Form, View
from gpuload.decode.device import Device, as_tensor
from gpuload.decode.interface import NUMPY_DTYPES, Decoded, Fault, PictureForm
from gpuload.decode.postprocess import Postprocess
from gpuload.decode.runner import Job, Stage
from gpuload.draws import SHARE, random_bits, uniform
from gpuload.read.batch import Batch
from gpuload.transforms.apply import on_device
from gpuload.types import Bools

DALI, NATIVE = range(2)  # the parts of a batch


def is_for_cpu(batch: Batch, cpu_share: float) -> Bools:
    """Whether the CPU decodes each sample, bool (N,).

    A pure function of (seed, epoch, sample) and the share, independent of the batch: a larger share moves samples from
    DALI to the CPU, and none back.

    Args:
        batch: N samples with the keys of their passes.
        cpu_share: The share of samples that the CPU decodes, 0..1.
    """
    key = random_bits(batch.keys, np.full(len(batch), SHARE, np.uint64))
    chosen: Bools = uniform(key, batch.samples) < cpu_share
    return chosen


def divide(cpu_share: float, job: Job) -> tuple[Job, Job]:
    """The samples that DALI decodes, and those that the CPU decodes, with what a decoder needs of them."""
    batch = job.batch
    to_cpu = is_for_cpu(job.batch, cpu_share)
    needed = replace(batch, columns={}, members={}, fields={})
    dali_rows = np.flatnonzero(~to_cpu)
    native_rows = np.flatnonzero(to_cpu)
    dali = Job(needed.take(dali_rows), job, dali_rows)
    native = Job(needed.take(native_rows), job, native_rows)
    return dali, native


class Join(Stage):
    """Joins the parts to torch tensors, or passes on the output of the only decoder that had samples."""

    name = "join"

    @torch.no_grad()
    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        parts = [part for part in job.parts if len(part.batch)]
        rows = [part.rows for part in parts]
        pictures = {}
        for name in parts[0].decoded.pictures:
            views = zip(*(part.decoded.pictures[name] for part in parts), strict=True)
            pictures[name] = tuple(_join_rows(arrays, rows) for arrays in views)
        joined = Decoded(job.batch, job.batch, pictures)
        faults: dict[int, Fault] = {}
        for part in parts:
            job.held.append(part.decoded)
            faults |= part.in_whole(part.decoded.faults)
            # NaN, since DALI does not report it.
            joined.work_s += part.decoded.work_s
            joined.queue_depth += part.decoded.queue_depth
        joined.faults = faults
        job.decoded = joined


def _join_rows(parts: Sequence[Any], rows: Sequence[Any]) -> Any:
    """Merges arrays; the entries of part i go to rows[i]. Not copied if one part has all rows."""
    if len(parts) == 1:
        return parts[0]
    tensors = [as_tensor(part) for part in parts]
    joined = torch.empty(
        (sum(map(len, rows)), *tensors[0].shape[1:]),
        dtype=tensors[0].dtype,
        device=tensors[0].device,
    )
    for tensor, indices in zip(tensors, rows, strict=True):
        joined.index_copy_(0, on_device(joined.device, indices), tensor)
    return joined


class Finish(Stage):
    """Copies batches to the device, and computes the values of images that a decoder delivers as levels
    (N, C, height, width).

    Args:
        pictures: What is made of each picture; masks and maps are complete.
        device: None for the CPU.
        levels: Whether the decoder delivers all images as levels. Otherwise it is DALI, which delivers levels for forms
            that are not plain.
    """

    name = "finish"

    def __init__(
        self,
        pictures: Sequence[PictureForm],
        device: Device | None,
        *,
        levels: bool,
    ) -> None:
        self._pictures = tuple(pictures)
        self._device = device
        place = "cpu" if device is None else device.name
        self._postprocess = {
            picture.name: [
                Postprocess(form, place, picture.stored.pixels)
                if picture.is_image and (levels or not form.is_plain)
                else None
                for form in picture.forms
            ]
            for picture in pictures
        }

    @torch.no_grad()  # not inference_mode, whose tensors a training step cannot save for its backward pass
    def begin(self, job: Job) -> None:
        """As `Stage.begin`: torch's tensors on the device."""
        decoded = job.decoded
        if self._device is not None:
            job.held.append(decoded)
            decoded = decoded.map(self._device.upload)
        finished = {
            picture.name: tuple(
                map(
                    self._values,
                    self._postprocess[picture.name],
                    picture.forms,
                    decoded.pictures[picture.name],
                    job.batch.views_of(picture.name),
                )
            )
            for picture in self._pictures
        }
        job.decoded = replace(decoded, pictures={**decoded.pictures, **finished})

    def _values(
        self, postprocess: Postprocess | None, form: Form, pixels: Any, view: View
    ) -> Any:
        if postprocess is None:
            return pixels
        images = as_tensor(pixels)
        count, channels, height, width = images.shape
        is_planar = form.layout == "NCHW"
        shape = (
            (count, channels, height, width)
            if is_planar
            else (count, height, width, channels)
        )
        out = torch.empty(
            shape, dtype=getattr(torch, NUMPY_DTYPES[form.dtype]), device=images.device
        )
        postprocess(images, out if is_planar else out.permute(0, 3, 1, 2), view)
        return out
