"""Connects reader, decoder and collation into the batches of an epoch; checks, counts and times them."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from gpuload.augment import Augment
from gpuload.decode.faults import FaultHandler, HandledBatch
from gpuload.decode.interface import BatchDecodeError, Decoded
from gpuload.errors import GpuloadError, ShardError
from gpuload.loader.corrupt import CorruptSamples
from gpuload.monitor.metrics import Meter, annotate
from gpuload.order.stream import Part, Position
from gpuload.read.batch import Batch
from gpuload.read.batches import BatchReader, read_alone


class Timing(NamedTuple):
    """Times of a batch, in seconds.

    read_s: locating its samples in the shards, waiting for downloads, and drawing its augmentation; its share if
        several small batches are read at once. Reading ahead from the disk is not included.
    decode_s: from the start of its decoding until it was ready; batches are decoded concurrently. DALI does not report
        when a batch is ready, so with DALI it ends when the batch is taken.
    wait_s: the training loop's wait for it.
    download_s: the part of read_s spent waiting for downloads.
    """

    read_s: float
    decode_s: float
    wait_s: float
    download_s: float = 0.0


class TrainingBatch(NamedTuple):
    """A batch for the training loop, and the position after it."""

    fields: Any
    position: Position
    timing: Timing


def check_current(is_current: bool) -> None:
    """Raises GpuloadError in a loop that is not the loader's current one."""
    if not is_current:
        raise GpuloadError(
            "this loop was ended by a later one over the same DaliIterator, or by close(). "
            "To run two loops at once, construct two loaders"
        ) from None


class Pipeline:
    """Makes batches from the parts of an epoch: connects the reader, the decoder and the collation of fields.

    open_reader: opens another reader of the same stream. make_fields: makes the user's fields from a batch, its pixels,
    and `broken`, the rows that do not decode. no_pixels: the pixels of a batch without samples.
    """

    def __init__(
        self,
        open_reader: Callable[[], BatchReader],
        reader: BatchReader,
        decoder: FaultHandler,
        make_fields: Callable[..., Any],
        no_pixels: Callable[[Batch], Decoded],
        corrupt: CorruptSamples,
        meter: Meter,
    ) -> None:
        self._open_reader, self._reader, self._decoder = open_reader, reader, decoder
        self._make_fields, self._no_pixels = make_fields, no_pixels
        self._corrupt, self._meter = corrupt, meter

    def epoch(
        self,
        start: Position,
        parts: Iterator[Part],
        empty: Sequence[Part],
        augments: Sequence[Augment],
        is_current: Callable[[], bool],
    ) -> Iterator[TrainingBatch]:
        """Yields the batches of an epoch, or of the rest of one.

        start: its first position. parts, empty: this rank's parts of the global batches, and the following parts
            without samples.
        is_current: False if another loop or `close` ended this one, possibly in another thread.

        Raises:
            ShardError, DecodeError: as `DaliIterator`.
        """
        self._corrupt.start_epoch()
        self._reader.interrupt()  # for an earlier loop, which the decoder ends
        try:
            self._meter.start()
            asked = time.perf_counter()
            # After the reader has begun, which then no longer knows that it was interrupted.
            current = takewhile(lambda _: is_current(), parts)
            read_spare = partial(read_alone, self._open_reader, augments)
            decoding = self._decoder.decode(self._reader.batches(current, augments), read_spare)
            while True:
                with annotate("wait"):
                    handled = next(decoding, None)
                if handled is None:
                    break
                made = [self._finish(handled, start, asked, is_current)]
                del handled
                yield made.pop()  # not from a variable: a suspended generator would keep the batch alive
                asked = self._meter.ask()
            check_current(is_current())  # a decoder that was closed ends
            self._reader.check(look=True)
        except BaseException as error:
            if is_current():
                self._reader.interrupt()  # a thread may be waiting for a download
            if not isinstance(error, Exception):
                raise
            check_current(is_current())  # a concurrent `close` causes many kinds of errors
            # An unreadable shard looks like undecodable images, or like a mismatch with its index.
            self._reader.check(look=not isinstance(error, ShardError))
            if isinstance(error, BatchDecodeError):
                raise self._corrupt.explain(error) from None
            raise
        for part in empty:
            asked = time.perf_counter()
            (last,) = self._reader.read([part], augments)
            yield self._finish(HandledBatch(last, self._no_pixels(last), last, {}), start, asked, is_current)
            self._meter.ask()

    def _finish(
        self, handled: HandledBatch, start: Position, asked: float, is_current: Callable[[], bool]
    ) -> TrainingBatch:
        ready = time.perf_counter()
        check_current(is_current())
        self._reader.check()
        batch, decoded = handled.batch, handled.decoded
        if handled.faults:
            self._corrupt.add(handled, start.epoch)
            self._meter.bad_samples += len(handled.faults)
        with annotate("hand over"):
            fields = self._make_fields(batch, decoded, broken=tuple(handled.faults))
        at = start._replace(samples=batch.stop - start.begin)
        waited_s = self._meter.hand_over(batch, decoded, asked, ready, (at.epoch, at.samples))
        return TrainingBatch(fields, at, Timing(batch.read_s, decoded.seconds, waited_s, batch.download_s))


@contextmanager
def followed(loader: Any) -> Iterator[None]:
    """Registers the loader with Accelerate, if this process uses it, so that Accelerate can ask whether a batch is the
    last: `accumulate` then updates, and `gather_for_metrics` drops repeated samples. Accelerate has no protocol for
    this but its own list of loaders."""
    module = sys.modules.get("accelerate.state")
    if module is None:
        yield
        return
    state = module.GradientState()
    state._add_dataloader(loader)
    try:
        yield
    finally:
        if state.initialized:  # and not reset meanwhile
            state._remove_dataloader(loader)
