"""Calls user functions for the batches of a decoder.

    after the crop    decoder ─► levels, cropped, not flipped ─► function ─► flips ─► transforms, normalisation
    before the crop   stored bytes ─► whole image ─► function ─► crop, resize, flips ─► transforms, normalisation

Both run in separate threads, some batches ahead of training; one thread processes a sample from beginning to end, so
its pixels stay in the cache. The function's boxes and keypoints travel with the batch (`Decoded.changed`). The function
is not called for samples that do not decode.
"""

import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment.views import PlannedFunction
from gpuload.decode.buffers import Buffers
from gpuload.decode.function.views import AfterCrop, BeforeCrop, FunctionView, Setting, unflipped
from gpuload.decode.interface import NUMPY_DTYPES, Changed, Fault
from gpuload.decode.postprocess import level_dtype
from gpuload.decode.runner import Job, Stage, Work
from gpuload.errors import FunctionError
from gpuload.functions.interface import Caller, CallFailedError, Sample, WrongResultError, name_of
from gpuload.read.batch import Batch
from gpuload.types import Array


class Inner(Stage):
    """Selects the decoder's work for each batch as its single part: the views without a function before the crop; for
    views with a function after the crop, only the crop.

    numbers: of these views. settings: of the views with a function, by their numbers.
    """

    name = "read"

    def __init__(self, numbers: Sequence[int], settings: Mapping[int, Setting]) -> None:
        self._numbers, self._settings = numbers, settings

    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        views = [unflipped(view) if n in self._settings else view for n, view in enumerate(job.batch.views)]
        job.parts = (Job(replace(job.batch, views=tuple(views[n] for n in self._numbers))),)


class CallFunctions(Stage):
    """Calls the functions for each batch, whose single part has the decoded views. Results are NumPy arrays; views
    without a function keep the decoder's arrays.

    inner, settings: as for `Inner`; decoded views with a function are levels (N, height, width, channels).
    whole: decodes whole images, `WholeImages`; None if no function needs them.
    functions: all functions. name_of_sample: its shard and key, for messages. caller: calls them by number.
        make_buffers: makes the memory for batches of a dtype.
    """

    name = "function"

    def __init__(
        self,
        inner: Sequence[int],
        settings: Mapping[int, Setting],
        whole: Any,
        functions: Sequence[Any],
        name_of_sample: Callable[[Batch, int], str],
        caller: Caller,
        make_buffers: Callable[[str], Buffers],
    ) -> None:
        self.threads = caller.threads
        self._inner, self._settings, self._whole, self._caller = inner, settings, whole, caller
        self._numbers = {id(function): number for number, function in enumerate(functions)}
        self._functions, self._name_of_sample = functions, name_of_sample  # functions: keeps their ids valid
        self._buffers = {number: make_buffers(_dtype_of(one)) for number, one in settings.items()}
        self._stop = Stop(self, caller.close)  # made last, so it runs first at the interpreter's exit

    def begin(self, job: Job) -> Work:
        """As `Stage.begin`."""
        batch, decoded = job.batch, job.parts[0].decoded
        calls = _Calls(self._numbers, self._caller, dict(decoded.broken))
        for number, images, masks in zip(self._inner, decoded.images, decoded.masks, strict=True):
            if (setting := self._settings.get(number)) is None:
                calls.plain[number] = self._plain(images), tuple(map(self._plain, masks))
                continue
            levels, *cropped = (np.asarray(_in_host_memory(array)) for array in (images, *masks))
            calls.views[number] = AfterCrop(setting, batch, self._room(number, batch), levels, cropped)
        for number, setting in self._settings.items():
            if number not in calls.views:
                calls.views[number] = BeforeCrop(setting, batch, self._room(number, batch))
        plan = None if self._whole is None else self._whole.plan(batch)
        job.state = calls
        rows = count()  # its `next` is atomic

        def work() -> None:
            """One thread's share: takes the next free row until none is left."""
            for row in rows:
                is_over = row >= len(batch) or row > min(calls.failed, default=row)
                if is_over or job.is_abandoned or self._stop.is_set:
                    return
                if row not in calls.broken and row not in batch.placeholders:
                    self._make(calls, batch, row, plan)

        return work

    def end(self, job: Job) -> None:
        """As `Stage.end`.

        Raises:
            FunctionError: a function raised an exception or returned an invalid result.
        """
        calls, job.state, inner = job.state, None, job.parts[0].decoded
        if calls.failed:
            raise self._explain(calls, job.batch)
        while self._caller.notices:
            warnings.warn(self._caller.notices.popleft(), stacklevel=2)
        made = [calls.of_view(number) for number in range(len(job.batch.views))]
        images, masks, changed = zip(*made, strict=True)
        seconds = sum(calls.seconds)
        job.decoded = inner._replace(
            images=images,
            masks=masks,
            work_s=inner.work_s - seconds,
            broken=calls.broken,
            changed=changed,
            function_s=seconds,
        )

    def close(self) -> None:
        """Stops the processes and the threads."""
        self._stop.is_set = True
        self._caller.close()

    def _plain(self, array: Any) -> Any:
        """What the decoder made, in a form of which rows can be replaced; for a copy to a GPU NumPy's."""
        array = _in_host_memory(array)
        return np.asarray(array) if any(one.values is None for one in self._settings.values()) else array

    def _room(self, number: int, batch: Batch) -> npt.NDArray[Any]:
        setting, (height, width) = self._settings[number], batch.views[number].size
        is_plain, channels = setting.values is None or setting.form.layout == "NCHW", setting.pixels.channels
        shape = (channels, height, width) if is_plain else (height, width, channels)
        return self._buffers[number].take(len(batch), shape)

    def _make(self, calls: "_Calls", batch: Batch, row: int, plan: Any) -> None:
        whole: Any = None
        if plan is not None:
            whole, fault = self._whole.decode(plan, batch, row)
            if fault is not None:
                calls.broken[row] = fault
                return
        try:
            for view in calls.views.values():
                if isinstance(view, BeforeCrop):
                    view.make(row, calls.call, whole, self._whole.cut)
                elif isinstance(view, AfterCrop):
                    view.make(row, calls.call)
        except _FailedError as failed:
            calls.failed[row] = failed

    def _explain(self, calls: "_Calls", batch: Batch) -> FunctionError:
        """The error for the user, for the first failed sample of the batch."""
        row = min(calls.failed)
        error, function = calls.failed[row].error, calls.failed[row].function
        is_ours = isinstance(error, WrongResultError | CallFailedError)
        what = str(error) if is_ours else f"raised {type(error).__name__}: {error}"
        name = self._name_of_sample(batch, row)
        found = FunctionError(f"{name}: the function {name_of(function)} {what}")
        found.__cause__ = None if is_ours else error
        return found


def _dtype_of(setting: Setting) -> str:
    """The dtype of a view's batches: of levels, or of the user's values."""
    return level_dtype(setting.pixels) if setting.values is None else NUMPY_DTYPES[setting.form.dtype]


def _in_host_memory(array: Any) -> Any:
    """A NumPy array as it is; DALI's as a tensor."""
    return array if isinstance(array, np.ndarray) else import_module("gpuload.decode.device").as_tensor(array)


class _Calls:
    """The calls for one batch.

    plain: images and masks of the views without a function. views: those with one. broken: by row, undecodable samples.
    failed: by row, errors of functions. seconds: of each call.
    """

    def __init__(self, numbers: Mapping[int, int], caller: Caller, broken: dict[int, Fault]) -> None:
        self._numbers, self._caller = numbers, caller
        self.plain: dict[int, tuple[Any, Any]] = {}
        self.views: dict[int, FunctionView] = {}
        self.broken = broken
        self.failed: dict[int, _FailedError] = {}
        self.seconds: list[float] = []

    def call(self, planned: PlannedFunction, row: int, sample: Sample) -> Mapping[str, Array]:
        """The image and all entries after the function."""
        begun = time.perf_counter()
        own, (first, second) = planned.function, planned.keys[row].tolist()
        try:
            return self._caller.call(
                self._numbers[id(own.function)], (first, second), sample, keeps_size=not own.before_crop
            )
        except Exception as error:
            raise _FailedError(error, own.function) from error
        finally:
            self.seconds.append(time.perf_counter() - begun)

    def of_view(self, number: int) -> tuple[Any, tuple[Any, ...], Changed | None]:
        """Images and masks of a view, and its function's results."""
        if number in self.plain:
            return *self.plain[number], None
        view = self.views[number]
        return view.images, tuple(view.masks), view.changed()


class _FailedError(Exception):
    """A call failed; errors of gpuload's own code reach the loop unchanged."""

    def __init__(self, error: Exception, function: Any) -> None:
        super().__init__(str(error))
        self.error, self.function = error, function


class Stop:
    """Is set when its owner is garbage collected or the interpreter exits: threads then take no further samples.

    end: called at that moment, for example to end processes; not in a forked child, which has none of them.
    """

    def __init__(self, owner: object, end: Callable[[], None]) -> None:
        self.is_set = False
        weakref.finalize(owner, _stop, weakref.ref(self), end, os.getpid())


def _stop(stop: "weakref.ref[Stop]", end: Callable[[], None], process: int) -> None:
    if os.getpid() != process:
        return
    if (found := stop()) is not None:
        found.is_set = True
    end()
