"""Connects reader, decoder and collation into the batches of an epoch; checks, counts and times them, and counts and
lists samples that do not decode."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.augment import Augment
from gpuload.counted import counted
from gpuload.decode.arguments import OnCorrupt
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import BatchDecodeError, Decoded, Fault
from gpuload.disk.dataset import Dataset
from gpuload.errors import DecodeError, GpuloadError, ShardError
from gpuload.fields.field import Field
from gpuload.machine.apart import Apart, uninterrupted
from gpuload.monitor import Meter, annotate
from gpuload.order.stream import Epochs, Position
from gpuload.read.batch import Batch
from gpuload.read.batches import BatchReader, read_alone
from gpuload.store.url import URL

_MOST_LISTED = 1000  # samples in a report, about 0.5 MB


@dataclass(frozen=True)
class CorruptSample:
    """A sample that did not decode.

    Attributes:
        key: Of the sample.
        shard: Path of its shard.
        offset: Position in the shard of its image, or of the mask that does not decode.
        bytes: Size of that image or mask.
        reason: The decoder's message.
        index: Its number in the stored order of its data set.
        dataset: The number of its data set in a mixture.
        epoch: Of its first occurrence.
        times: Number of occurrences.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    reason: str
    index: int
    dataset: int
    epoch: int
    times: int = 1


class Report(NamedTuple):
    """The undecodable samples of a loader on this rank since construction.

    Attributes:
        corrupt: The number of samples replaced or marked, counted in every epoch.
        samples: The first 1,000 distinct ones.
    """

    corrupt: int
    samples: tuple[CorruptSample, ...]


class CorruptSamples:
    """Counts and lists undecodable samples.

    Args:
        datasets: Those of the loader, which know keys and shards of samples.
        on_corrupt: How many are allowed; None if the first one raises.
        epoch_samples: This rank's samples in an epoch.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        on_corrupt: OnCorrupt | None,
        epoch_samples: float,
    ) -> None:
        self._datasets = datasets
        self._epoch_samples = epoch_samples
        self._allowed = (on_corrupt or OnCorrupt("skip")).most
        self._most = (
            self._allowed
            if isinstance(self._allowed, int)
            else self._allowed * math.ceil(epoch_samples)
        )
        self._count = 0
        self._in_epoch = 0
        self._listed: dict[tuple[int, int], CorruptSample] = {}

    def start_epoch(self) -> None:
        """Resets the count for `OnCorrupt.most`, which limits one epoch, or the rest of one after a resume."""
        self._in_epoch = 0

    def add(self, decoded: Decoded, epoch: int) -> None:
        """Records the faults of a batch.

        Raises:
            DecodeError: there are more than `OnCorrupt.most` in this epoch.
        """
        for row, fault in sorted(decoded.faults.items()):
            corrupt = self._identify(decoded.asked, row, fault, epoch)
            self._count += 1
            self._in_epoch += 1
            place = corrupt.dataset, corrupt.index
            if place in self._listed or len(self._listed) < _MOST_LISTED:
                listed = self._listed.get(place, replace(corrupt, times=0))
                self._listed[place] = replace(listed, times=listed.times + 1)
            if self._in_epoch > self._most:
                raise DecodeError(
                    f"epoch {epoch}: {counted(self._in_epoch, 'corrupt sample')} of this rank's "
                    f"{self._epoch_samples:,.0f}, more than OnCorrupt(most={self._allowed}) allows; the last one "
                    f"is {corrupt.key!r} in {corrupt.shard}: {corrupt.reason}. `python -m gpuload verify --quarantine "
                    "FILE` finds them all, for gpuload.Dataset(exclude=FILE); or raise most"
                )

    def report(self) -> Report:
        """The undecodable samples so far."""
        return Report(self._count, tuple(self._listed.values()))

    def explain(self, error: BatchDecodeError) -> DecodeError:
        """The user's error for a decoder's."""
        row, fault = next(iter(error.faults.items()))
        corrupt = self._identify(error.batch, row, fault, 0)
        field = self._field(error.batch, row, fault)
        subject = "sample"
        if field.kind not in ("image", "raw"):
            subject = f"the {field.kind} {field.name!r} of sample"
        others = (
            f" (one of {len(error.faults)} in its batch)"
            if len(error.faults) > 1
            else ""
        )
        return DecodeError(
            f"{corrupt.shard}: {subject} {corrupt.key!r} does not decode (byte {corrupt.offset:,}): "
            f"{corrupt.reason}{others}. Pack it again: `python -m gpuload pack` rejects and lists undecodable images; "
            "or use on_corrupt='skip'"
        )

    def _field(self, batch: Batch, row: int, fault: Fault) -> Field:
        """The field of a picture that does not decode."""
        dataset = self._datasets[int(batch.sources[row])]
        image = dataset.manifest.image
        return dataset.fields[fault.picture or image.name]

    def _identify(
        self, batch: Batch, row: int, fault: Fault, epoch: int
    ) -> CorruptSample:
        source = int(batch.sources[row])
        sample = int(batch.samples[row])
        dataset = self._datasets[source]
        stored = dataset.row(sample).to_pylist()[0]
        field = self._field(batch, row, fault)
        offset = stored[field.offset_column]
        size = stored[field.bytes_column]
        path = str(dataset.shard_paths[int(dataset.shards_of(sample))])
        return CorruptSample(
            stored["key"], path, offset, size, fault.reason, sample, source, epoch
        )


# A batch for the training loop, and the position after it.
PlacedFields = tuple[Any, Position]


def check_current(is_current: bool) -> None:
    """Raises GpuloadError in a loop that is not the loader's current one."""
    if not is_current:
        raise GpuloadError(
            "this loop was ended by a later one over the same DaliIterator, or by close(). "
            "To run two loops at once, construct two loaders"
        ) from None


class Pipeline:
    """Makes batches from the parts of an epoch: connects the reader, the decoder and the collation of fields.

    Args:
        open_reader: Opens a reader of the stream.
        decoder: Makes the pixels, and handles samples that do not decode.
        make_fields: Makes the user's fields of a decoded batch.
        no_pixels: The pixels of a batch without samples.
        corrupt: Counts these samples.
        folder: Of the data, for messages.
    """

    def __init__(
        self,
        open_reader: Callable[[], BatchReader],
        decoder: FaultHandler,
        make_fields: Callable[..., Any],
        no_pixels: Callable[[Batch], Decoded],
        corrupt: CorruptSamples,
        folder: Path | URL | str,
    ) -> None:
        self._open_reader = open_reader
        self.reader = open_reader()
        self.decoder = decoder
        self._make_fields = make_fields
        self._no_pixels = no_pixels
        self.corrupt = corrupt
        self.meter = Meter(self.reader.disk_s, folder)
        self._closing = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Stops the threads and frees the memory; batches already returned stay valid.

        Ctrl-C ends the waiting alone; a further call waits again. One of the threads, as in a user's function, does not
        wait: they end after it.
        """
        if self.is_at_work_here():
            Apart(self._close)
        else:
            uninterrupted(self._close)

    def is_at_work_here(self) -> bool:
        """Whether the current thread is one of this pipeline's own, which it cannot wait for."""
        return self.decoder.decoder.is_at_work_here()

    def _close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self.reader.interrupt()
            self.decoder.close()
            self.reader.close()
            self._is_closed = True

    def epoch(
        self,
        start: Position,
        epochs: Epochs,
        augments: Sequence[Augment],
        is_current: Callable[[], bool],
    ) -> Iterator[PlacedFields]:
        """Yields the batches of an epoch, or of the rest of one.

        Args:
            start: Its first position.
            epochs: This rank's parts of the global batches.
            augments: One of each view of this epoch.
            is_current: False if another loop or `close` ended this one, possibly in another thread.

        Raises:
            ShardError, DecodeError: as `DaliIterator`.
        """
        self.corrupt.start_epoch()
        self.reader.interrupt()  # for an earlier loop, which the decoder ends
        try:
            asked = time.perf_counter()
            # After the reader has begun, which then no longer knows that it was interrupted.
            current = takewhile(lambda _: is_current(), epochs.parts(start))
            read_spare = partial(read_alone, self._open_reader, augments)
            decoding = self.decoder.decode(
                self.reader.batches(current, augments), read_spare
            )
            while True:
                with annotate("wait"):
                    decoded = next(decoding, None)
                if decoded is None:
                    break
                handover = [self._finish(decoded, start, asked, is_current)]
                del decoded
                yield handover.pop()  # not from a variable: a suspended generator would keep the batch alive
                asked = self.meter.ask()
            check_current(is_current())  # a decoder that was closed ends
            self.reader.check(look=True)
        except BaseException as error:  # a signal, too, must end the threads' waiting
            if is_current():
                self.reader.interrupt()  # a thread may be waiting for a download
            if not isinstance(error, Exception):
                raise
            # A concurrent `close` causes many kinds of errors.
            check_current(is_current())
            # An unreadable shard looks like undecodable images, or like a mismatch with its index.
            self.reader.check(look=not isinstance(error, ShardError))
            if isinstance(error, BatchDecodeError):
                raise self.corrupt.explain(error) from None
            raise
        for part in epochs.empty_parts(start):
            asked = time.perf_counter()
            (last,) = self.reader.read([part], augments)
            yield self._finish(self._no_pixels(last), start, asked, is_current)
            self.meter.ask()

    def _finish(
        self,
        decoded: Decoded,
        start: Position,
        asked: float,
        is_current: Callable[[], bool],
    ) -> PlacedFields:
        ready = time.perf_counter()
        check_current(is_current())
        self.reader.check()
        if decoded.faults:
            self.corrupt.add(decoded, start.epoch)
            self.meter.bad_samples += len(decoded.faults)
        with annotate("hand over"):
            fields = self._make_fields(decoded)
        position = start._replace(samples=decoded.batch.stop - start.begin)
        place = position.epoch, position.samples
        self.meter.hand_over(decoded, asked, ready, place)
        return fields, position


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
