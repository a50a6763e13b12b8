"""Calls functions of the user's for the batches of a decoder.

    after the crop    decoder ─► levels, cropped, not flipped ─► function ─► flips ─► transforms, normalisation
    before the crop   stored bytes ─► whole image ─► function ─► crop, resize, flips ─► transforms, normalisation

Both go on in threads of their own, some batches ahead of the training; a sample is done by one of them from beginning
to end, so that its pixels stay in the cache. What a function makes of boxes and keypoints goes on with the batch
(`Decoded.changed`). Samples that do not decode are not given to it.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment.planned import PlannedFunction
from gpuload.decode.flights import Flight, Flights
from gpuload.decode.function.stop import Stop
from gpuload.decode.function.views import AfterCrop, BeforeCrop, FunctionView, Setting, unflipped
from gpuload.decode.interface import NUMPY_DTYPES, BatchDecodeError, Decoded, Decoder, Fault
from gpuload.decode.native.buffers import Allocate, Buffers
from gpuload.decode.postprocess import as_tensor, level_dtype
from gpuload.errors import FunctionError
from gpuload.functions.callers import Caller
from gpuload.functions.interface import CallFailedError, Sample, WrongResultError, name_of
from gpuload.read.batch import Batch
from gpuload.types import Array

_SPARE = 3  # batches beside those ahead whose memory is kept


class FunctionDecoder:
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    decoder: makes the views whose function does not come before the crop, in their order: of those with a function
        levels (N, height, width, channels).
    settings: of the views with a function, by their numbers. views: how many views there are.
    whole: decodes whole images, `WholeImages`; None where no function needs them.
    functions: those that may be asked for, of which `caller` knows the numbers. name_of_sample: its shard and key, for
        messages. allocate: makes the memory of batches.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: Mapping[int, Setting],
        views: int,
        whole: Any,
        functions: Sequence[Any],
        caller: Caller,
        name_of_sample: Callable[[Batch, int], str],
        *,
        batch_size: int,
        prefetch: int,
        allocate: Allocate = np.empty,
    ) -> None:
        self._decoder, self._settings, self._views, self._whole = decoder, settings, views, whole
        self._inner = [n for n in range(views) if n not in settings or settings[n].form.function != "before_crop"]
        self._numbers = {id(function): number for number, function in enumerate(functions)}
        self._functions, self._caller, self._name_of_sample = functions, caller, name_of_sample
        kept = prefetch + _SPARE
        self._buffers = {
            number: Buffers(batch_size, _dtype_of(one), kept, allocate) for number, one in settings.items()
        }
        self._given: deque[tuple[Batch, Batch]] = deque()  # as asked for, and as the decoder got them
        self._flights: Flights[_Flight] = Flights(prefetch, caller.threads, "function")
        self._stop = Stop(self, caller.close)  # made last, so that it comes first where the interpreter ends

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: NumPy arrays; for views without a function, what `decoder` makes."""
        self._abandon()
        decoding = self._decoder.decode(self._give(batches))
        while (taken := self._flights.next(partial(self._start, decoding))) is not None:
            flight, read_wait_s, ready = taken
            if flight.failed:
                raise self._explain(flight)
            while self._caller.notices:
                warnings.warn(self._caller.notices.popleft(), stacklevel=2)
            decoded = flight.finish(min(read_wait_s, flight.decoded.read_wait_s), ready)
            batch = flight.batch
            del flight, taken  # whoever waits must not keep a batch alive
            yield batch, decoded
            del batch, decoded

    def close(self) -> None:
        """Stops the threads and processes; batches handed out stay valid."""
        self._stop.is_set = True
        self._caller.close()
        self._abandon()
        self._decoder.close()
        self._flights.close()

    def _give(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """What the decoder gets: the views that it makes, of those with a function only the crop."""
        for batch in batches:
            views = [unflipped(view) if n in self._settings else view for n, view in enumerate(batch.views)]
            given = replace(batch, views=tuple(views[n] for n in self._inner))
            self._given.append((batch, given))
            yield given

    def _start(self, decoding: Iterator[tuple[Batch, Decoded]]) -> "_Flight | None":
        """Hands the next batch to the threads; None where there are no more."""
        try:
            found = next(decoding, None)
        except BatchDecodeError as error:
            batch = next(asked for asked, given in self._given if given is error.batch)
            raise BatchDecodeError(batch, error.faults) from error
        if found is None:
            return None
        batch, _ = self._given.popleft()
        flight = _Flight(batch, found[1], started=time.perf_counter())
        for place, number in enumerate(self._inner):
            images, masks = found[1].images[place], found[1].masks[place]
            if (setting := self._settings.get(number)) is None:
                flight.plain[number] = self._plain(images), tuple(map(self._plain, masks))
                continue
            levels = as_tensor(images).numpy()
            cropped = [as_tensor(mask).numpy() for mask in masks]
            flight.views[number] = AfterCrop(setting, batch, self._room(number, batch), levels, cropped)
        for number, setting in self._settings.items():
            if number not in flight.views:
                flight.views[number] = BeforeCrop(setting, batch, self._room(number, batch))
        flight.plan = None if self._whole is None else self._whole.plan(batch)
        flight.broken = dict(found[1].broken)
        return self._flights.share(flight, self._work)

    def _plain(self, array: Any) -> Any:
        """What the decoder made, in a form of which rows can be replaced; for a copy to a GPU NumPy's."""
        if isinstance(array, np.ndarray):
            return array
        tensor = as_tensor(array)
        return tensor.numpy() if any(one.values is None for one in self._settings.values()) else tensor

    def _room(self, number: int, batch: Batch) -> npt.NDArray[Any]:
        setting, (height, width) = self._settings[number], batch.views[number].size
        is_plain, channels = setting.values is None or setting.form.layout == "NCHW", setting.pixels.channels
        shape = (channels, height, width) if is_plain else (height, width, channels)
        return self._buffers[number].take(len(batch), shape)

    def _work(self, flight: "_Flight") -> None:
        """One thread's share of a batch: the next row that no other thread has taken, until none is left."""
        begun = time.perf_counter()
        called = _Called(self._numbers, self._caller)
        for row in flight.rows:
            if (
                row >= len(flight.batch)
                or flight.abandoned
                or self._stop.is_set
                or row > min(flight.failed, default=row)
            ):
                break
            if row in flight.broken or row in flight.batch.placeholders:
                continue
            try:
                self._make(flight, row, called)
            except _FailedError as failed:
                flight.failed[row] = failed
        flight.ended = time.perf_counter()
        flight.function_s.append(called.seconds)
        flight.work_s.append(flight.ended - begun - called.seconds)

    def _make(self, flight: "_Flight", row: int, called: "_Called") -> None:
        whole: Any = None
        if flight.plan is not None:
            whole, fault = self._whole.decode(flight.plan, flight.batch, row)
            if fault is not None:
                flight.broken[row] = fault
                return
        for view in flight.views.values():
            if isinstance(view, BeforeCrop):
                view.make(row, called, whole, self._whole.cut)
            elif isinstance(view, AfterCrop):
                view.make(row, called)

    def _abandon(self) -> None:
        self._flights.abandon()
        self._given.clear()

    def _explain(self, flight: "_Flight") -> FunctionError:
        """The user's error for what a function raised, or returned, for the first sample of the batch."""
        row = min(flight.failed)
        error, function = flight.failed[row].error, flight.failed[row].function
        is_ours = isinstance(error, WrongResultError | CallFailedError)
        what = str(error) if is_ours else f"raised {type(error).__name__}: {error}"
        found = FunctionError(f"{self._name_of_sample(flight.batch, row)}: the function {name_of(function)} {what}")
        found.__cause__ = None if is_ours else error
        return found


def _dtype_of(setting: Setting) -> str:
    """Of a view's batches: of levels, or of the values that the user gets."""
    return level_dtype(setting.pixels) if setting.values is None else NUMPY_DTYPES[setting.form.dtype]


@dataclass
class _Flight(Flight):
    """A batch that the threads work on.

    plain: images and masks of the views without a function. views: those with one. rows: their `next` is atomic.
    broken: by row, what does not decode. failed: by row, why a function did.
    """

    batch: Batch
    decoded: Decoded
    views: dict[int, FunctionView] = field(default_factory=dict)
    plain: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    plan: Any = None
    rows: Iterator[int] = field(default_factory=count)
    broken: dict[int, Fault] = field(default_factory=dict)
    failed: "dict[int, _FailedError]" = field(default_factory=dict)
    function_s: list[float] = field(default_factory=list)

    def finish(self, read_wait_s: float, ready: int) -> Decoded:
        """The whole batch."""
        images, masks, changed = [], [], []
        for number in range(len(self.batch.views)):
            view = self.views.get(number)
            pixels, classes = self.plain[number] if view is None else (view.images, tuple(view.masks))
            images.append(pixels)
            masks.append(tuple(classes))
            changed.append(None if view is None else view.changed())
        return Decoded(
            tuple(images),
            tuple(masks),
            self.decoded.seconds + self.ended - self.started,
            self.decoded.work_s + sum(self.work_s),
            read_wait_s,
            ready,
            self.broken,
            tuple(changed),
            sum(self.function_s),
        )


class _Called:
    """Calls functions for one thread's share of a batch.

    seconds: how long they took.
    """

    def __init__(self, numbers: Mapping[int, int], caller: Caller) -> None:
        self._numbers, self._caller = numbers, caller
        self.seconds = 0.0

    def __call__(self, planned: PlannedFunction, row: int, sample: Sample) -> Mapping[str, Array]:
        begun = time.perf_counter()
        augment = planned.augment
        first, second = planned.keys[row].tolist()
        try:
            return self._caller.call(
                self._numbers[id(augment.function)], (first, second), sample, augment.function_at == "after_crop"
            )
        except Exception as error:
            raise _FailedError(error, augment.function) from error
        finally:
            self.seconds += time.perf_counter() - begun


class _FailedError(Exception):
    """A call failed; what fails in our own code reaches the loop as it is."""

    def __init__(self, error: Exception, function: Any) -> None:
        super().__init__(str(error))
        self.error, self.function = error, function
