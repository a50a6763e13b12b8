"""Handles samples that do not decode, for all decoders.

    batches ─► screen ─► repair ─► decoder ─► repair ─► batches, in the same order
                           ▲          │ fails
                           └──────────┘ all batches in flight, again

A repaired batch depends only on the batch and on which of its samples do not decode, not on threads, timing or when a
fault was found. A sample that does not decode is replaced by the next one of its batch that does, wrapping around at
the end. If none does, the replacement is the first good sample that follows the global batch in the stream.
"""

import io
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from PIL import Image

from gpuload.decode.interface import (
    BatchDecodeError,
    Decoded,
    Fault,
    Place,
    with_stored,
)
from gpuload.decode.runner import Runner
from gpuload.errors import DecodeError
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.fields.rows import Ragged, take
from gpuload.read.batch import Batch
from gpuload.types import I64, U8, HeightWidth

OnCorrupt = Literal["raise", "skip", "mark"]

# Of a batch: the same as the decoder takes it, and the samples that it must not get.
Screening = Callable[[Batch], tuple[Batch, dict[int, Fault]]]
ReadSpare = Callable[[int], Batch]

_MOST_SPARES = 1000  # samples tried in place of a batch without any good sample


@dataclass
class _InFlight:
    """A batch on its way through the decoder.

    Attributes:
        asked: As requested, and screened.
        batch: What is decoded, where others stand in for samples that do not decode.
        rows: int64 (N,), the row of `asked` that each row of `batch` shows; None if all show a spare sample, or there
            are none.
        faults: The samples that do not decode, by row of `asked`.
        spares: Spare samples tried so far.
    """

    asked: Batch
    batch: Batch
    rows: I64 | None = None
    faults: dict[int, Fault] = field(default_factory=dict)
    spares: int = 0


class FaultHandler:
    """Runs a decoder, and handles the samples that do not decode.

    Args:
        decoder: Decodes batches in order.
        on_corrupt: What to do with a sample that does not decode: "raise", "skip" or "mark".
        screen: Gives a batch as the decoder takes it, and the samples that it must not get; None if it takes anything.
        pixels: The stored pixels of each picture that is decoded, by its name.
    """

    def __init__(
        self,
        decoder: Runner,
        on_corrupt: OnCorrupt = "raise",
        screen: Screening | None = None,
        pixels: Mapping[str, Pixels] | None = None,
    ) -> None:
        self.decoder = decoder
        self.on_corrupt = on_corrupt
        self.pixels = pixels or {}
        self.screen: Screening = screen or (lambda batch: (batch, {}))

    def decode(
        self, batches: Iterator[Batch], read_spare: ReadSpare
    ) -> Iterator[Decoded]:
        """Each batch with its pixels, in order. Only one call is active at a time; a new call ends the one before.

        Args:
            batches: Batches with their views, as the reader makes them.
            read_spare: Gives a batch of the one sample at this position of the stream.

        Raises:
            BatchDecodeError: with "raise": samples of the next batch do not decode.
            DecodeError: with "skip": no sample of a batch decodes, nor any of the next 1,000.
        """
        return _Call(self, batches, read_spare).results()

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self.decoder.close()


class _Call:
    """One call of `FaultHandler.decode`, which keeps the batches that the decoder has not returned yet.

    The decoder makes one attempt after another: it starts again with these batches when one of them has to be repaired.

    Args:
        handler: Whose call it is.
        batches: As of `FaultHandler.decode`.
        read_spare: As of `FaultHandler.decode`.
    """

    def __init__(
        self, handler: FaultHandler, batches: Iterator[Batch], read_spare: ReadSpare
    ) -> None:
        self._handler = handler
        self._batches = batches
        self._read_spare = read_spare
        # What this attempt has got.
        self._in_flight: deque[_InFlight] = deque()
        # What earlier attempts have got, which comes after it: an attempt may end before it has got all again.
        self._again: deque[_InFlight] = deque()
        # At which the input ended; the batches before it are decoded first.
        self._error: BaseException | None = None
        self._is_complete = False

    def results(self) -> Iterator[Decoded]:
        """As `FaultHandler.decode`."""
        # A local name: where the interpreter ends, a generator is closed after the module's names have gone.
        of_samples = BatchDecodeError
        while not self._is_complete:
            try:
                yield from self._attempt()
            except of_samples as error:
                if error is self._error or self._handler.on_corrupt == "raise":
                    raise
                # A copy: the decoder may read further batches in a thread of its own meanwhile.
                faulty = next(
                    waiting
                    for waiting in self._in_flight.copy()
                    if waiting.batch is error.batch
                )
                if not _note(faulty, error.faults):
                    raise
                self._repair(faulty)

    def _attempt(self) -> Iterator[Decoded]:
        """The next batches, up to one that has to be decoded again."""
        decoding = self._handler.decoder.decode(self._input())
        while (decoded := next(decoding, None)) is not None:
            handed_over = self._hand_over(decoded)
            if handed_over is None:
                return
            handover = [handed_over]
            del (
                decoded,
                handed_over,
            )  # a suspended generator must not keep a batch alive
            yield handover.pop()
        if self._error is not None:
            raise self._error
        self._is_complete = True

    def _hand_over(self, decoded: Decoded) -> Decoded | None:
        """The first batch in flight with these pixels; None if it must be decoded again."""
        first = self._in_flight[0]
        mended = self._mend(first, decoded) if decoded.faults else decoded
        if mended is None:
            return None
        self._in_flight.popleft()
        is_replaced = self._handler.on_corrupt == "skip"
        mended.batch = first.batch if is_replaced else first.asked
        mended.asked = first.asked
        mended.faults = first.faults
        return mended

    def _input(self) -> Iterator[Batch]:
        """All batches in flight, then the next ones. The decoder must have ended its previous attempt."""
        self._again.extendleft(reversed(self._in_flight))
        self._in_flight = deque()
        while self._again:
            self._in_flight.append(self._again.popleft())
            yield self._in_flight[-1].batch
        while self._error is None:
            try:
                if (batch := next(self._batches, None)) is None:
                    return
                self._in_flight.append(self._begin(batch))
            except BaseException as error:  # raised after the batches in flight
                self._error = error
                return
            del batch  # no variable keeps it while the next one is read
            yield self._in_flight[-1].batch

    def _begin(self, batch: Batch) -> _InFlight:
        screened, faults = self._handler.screen(batch)
        waiting = _InFlight(screened, screened, np.arange(len(batch)))
        if faults:
            if self._handler.on_corrupt == "raise":
                raise BatchDecodeError(batch, faults)
            _note(waiting, faults)
            self._repair(waiting)
        return waiting

    def _mend(self, waiting: _InFlight, decoded: Decoded) -> Decoded | None:
        """Repairs a decoded batch with broken samples; None if it must be decoded again."""
        is_spare = waiting.rows is None
        on_corrupt = self._handler.on_corrupt
        if on_corrupt == "raise" or not _note(waiting, decoded.faults):
            raise BatchDecodeError(waiting.asked, decoded.faults)
        if on_corrupt == "mark":
            return decoded
        self._repair(waiting)
        pictures_of_names = waiting.asked.pictures.values()
        has_lists = any(isinstance(pictures, Ragged) for pictures in pictures_of_names)
        if is_spare or waiting.rows is None or has_lists:
            return None
        # Copied: to decode it again would mean to decode the batches after it again, too.
        rows = sorted(decoded.faults)
        sources = waiting.rows[rows].tolist()
        for views in decoded.pictures.values():
            for array in views:
                array[rows] = array[sources]
        if not decoded.changed:
            return decoded
        sources_of_rows = np.arange(len(waiting.asked))
        sources_of_rows[rows] = sources
        return replace(decoded, changed=take(decoded.changed, sources_of_rows))

    def _repair(self, waiting: _InFlight) -> None:
        """Replaces the samples that do not decode in the decoder's input."""
        asked = waiting.asked
        if self._handler.on_corrupt == "mark":
            waiting.batch = _with_placeholders(
                asked, waiting.faults, self._handler.pixels
            )
            return
        waiting.rows = _neighbours(len(asked), waiting.faults)
        if waiting.rows is not None:
            waiting.batch = asked.take(waiting.rows)
            return
        while waiting.spares < _MOST_SPARES:
            position = asked.stop + waiting.spares
            spare, faults = self._handler.screen(self._read_spare(position))
            waiting.spares += 1
            if not faults:
                everywhere = spare.take(np.zeros(len(asked), np.int64))
                waiting.batch = replace(
                    everywhere, stop=asked.stop, read_s=asked.read_s
                )
                return
        raise DecodeError(
            f"no sample of a batch decodes, nor any of the {_MOST_SPARES:,} after it. Check the set with "
            "`python -m gpuload verify`"
        )


def _note(waiting: _InFlight, faults: Mapping[int, Fault]) -> bool:
    """Records faults, by rows of the decoder's input; False if none of them is new."""
    if waiting.rows is None:
        return True  # of the spare sample; the next one follows
    in_asked = {int(waiting.rows[row]): fault for row, fault in faults.items()}
    new = {row: fault for row, fault in in_asked.items() if row not in waiting.faults}
    waiting.faults.update(new)
    return bool(new)


def _neighbours(count: int, broken: Any) -> I64 | None:
    """int64 (count,): each row, or for a broken one the next good row, wrapping around."""
    good = np.setdiff1d(np.arange(count), np.fromiter(broken, np.int64, len(broken)))
    if not len(good):
        return None
    return good[np.searchsorted(good, np.arange(count)) % len(good)]


def _with_placeholders(
    batch: Batch, rows: Collection[int], pixels: Mapping[str, Pixels]
) -> Batch:
    """The batch with black pictures at these rows, of the sizes in the index, so that crops stay valid.

    Args:
        pixels: Of the pictures, by name.
    """
    black: dict[Place, U8] = {}
    for name, of_picture in pixels.items():
        stored = batch.stored(name)
        pictures = batch.pictures[name]
        samples = np.array(sorted(rows), np.int64)
        black_rows = (
            pictures.rows_of(samples) if isinstance(pictures, Ragged) else samples
        )
        for row in black_rows.tolist():
            height, width = stored.size(row)
            if stored.raw[row]:
                black[row, name] = np.zeros(height * width * of_picture.bytes, np.uint8)
            else:
                shown = GRAY if of_picture == RGB else of_picture
                black[row, name] = _black_png((height, width), shown)
    return replace(with_stored(batch, black), placeholders=frozenset(rows))


def _black_png(size: HeightWidth, pixels: Pixels) -> U8:
    """uint8 (bytes,): a black PNG of these pixels, which PNG must be able to hold."""
    file = io.BytesIO()
    Image.new(pixels.mode, size[::-1]).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)
