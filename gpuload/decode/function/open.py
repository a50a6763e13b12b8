"""Opens a decoder around which functions of the user's are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuload.augment import Form
from gpuload.augment.schedule import Schedule
from gpuload.decode.interface import Decoder, NoDecoder, Stored
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.fields.moving import MovingField
from gpuload.functions.interface import Entries
from gpuload.read.batch import Batch


@dataclass(frozen=True)
class Functions:
    """What is known of a loader's functions, and of the samples that they get.

    all: those of all epochs and views. processes: in which they are called; 0: in threads. masks, moving: names of the
    mask fields, and the fields that move. entries: the same, by name. name_of_sample: for messages.
    """

    all: Sequence[Any]
    processes: int
    masks: Sequence[str]
    moving: Sequence[MovingField]
    entries: Entries
    name_of_sample: Callable[[Batch, int], str]


def find_functions(
    schedule: Schedule,
    masks: Sequence[str],
    moving: Sequence[MovingField],
    datasets: Sequence[Dataset],
    processes: int,
) -> Functions | None:
    """Those of all views and epochs; None where there are none.

    Raises:
        ArgumentError: processes, and no function to be called in them.
    """
    each = {id(augment.function): augment.function for augment in schedule.all_augments()}
    found = [function for function in each.values() if function is not None]
    if not found:
        if processes:
            raise ArgumentError(
                f"function_processes={processes}: there is no function to be called in them. Give "
                "augment=Augment(..., function=...), or leave it out"
            )
        return None
    boxes = tuple(field.name for field in moving if not field.points)
    keypoints = tuple((field.name, field.points) for field in moving if field.points)
    entries = Entries(boxes, tuple(masks), keypoints)
    return Functions(found, processes, masks, moving, entries, partial(_name_of_sample, datasets))


def _name_of_sample(datasets: Sequence[Dataset], batch: Batch, row: int) -> str:
    dataset, sample = datasets[int(batch.sources[row])], int(batch.encoded.samples[row])
    shard = int(np.searchsorted(dataset.first_samples, sample, side="right")) - 1
    return f"{dataset.shard_paths[shard]}: sample {batch.encoded.columns['key'][row].as_py()!r}"


def on_gpu(device_id: int | None) -> bool:
    """Whether batches go to a GPU. Tests pretend so without one; then everything is done, but nothing is pinned."""
    return device_id is not None


def inner_forms(forms: Sequence[Form], stored: Stored, device_id: int | None) -> tuple[Form, ...]:
    """What the decoder makes of the views whose function does not come before the crop: where there is one, levels, and
    for a GPU all levels."""
    inner = []
    for form in forms:
        if form.function == "after_crop":
            inner.append(form.levels(stored.pixels)._replace(layout="channels_last", flips_vertically=False))
        elif not form.function:
            inner.append(form.levels(stored.pixels) if on_gpu(device_id) else form)
    return tuple(inner)


def open_functions(
    decoder: Decoder | None,
    functions: Functions,
    forms: Sequence[Form],
    stored: Stored,
    device_id: int | None,
    *,
    batch_size: int,
    num_threads: int,
    prefetch: int,
) -> Decoder:
    """A decoder of batches that are on the device.

    decoder: on the CPU, of `inner_forms`; None where there are none.
    """
    from gpuload.decode.function.decoder import FunctionDecoder
    from gpuload.decode.function.views import Setting
    from gpuload.decode.postprocess import Postprocess, PostprocessingDecoder
    from gpuload.functions.callers import Caller, InThreads

    before = [form for form in forms if form.function == "before_crop"]
    whole: Any = None
    if before:
        from gpuload.decode.function.whole import WholeImages

        whole = WholeImages([form.levels(stored.pixels) for form in before], stored)
    settings = {
        number: Setting(
            number,
            form,
            functions.masks,
            stored.mask_fills,
            functions.moving,
            None if on_gpu(device_id) else Postprocess(form, "cpu", stored.pixels),
            stored.pixels,
        )
        for number, form in enumerate(forms)
        if form.function
    }
    allocate: dict[str, Any] = {}
    if on_gpu(device_id):
        from gpuload.decode.upload import allocator

        allocate["allocate"] = allocator(device_id)
    caller: Caller
    if functions.processes:
        from gpuload.functions.processes import InProcesses

        caller = InProcesses(functions.all, functions.entries, functions.processes)
    else:
        caller = InThreads(functions.all, functions.entries, num_threads)
    made = FunctionDecoder(
        NoDecoder() if decoder is None else decoder,
        settings,
        len(forms),
        whole,
        functions.all,
        caller,
        functions.name_of_sample,
        batch_size=batch_size,
        prefetch=prefetch,
        **allocate,
    )
    if not on_gpu(device_id):
        return made
    from gpuload.decode.upload import UploadingDecoder

    return PostprocessingDecoder(UploadingDecoder(made, device_id), tuple(forms), stored, device_id, levels=True)
