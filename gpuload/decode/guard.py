"""What becomes of samples that do not decode: the one place for all decoders.

    batches ─► find_faults ─► repair ─► decoder ─► repair ─► batches, in the same order
               (DALI's screen)   ▲         │ fails
                                 └─────────┘ all batches that it had in flight, again

A repaired batch is a function of the batch and of which of its samples do not decode, so it depends on neither threads
nor timing, nor on when a fault was found: a sample that does not decode is replaced by the next one of its batch that
does, counting from the last to the first again. Where none does, it is the first that does of those that follow the
global batch in the stream.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuload.decode.interface import BatchDecodeError, Decoded, Decoder, Fault
from gpuload.decode.placeholder import with_placeholders
from gpuload.errors import DecodeError
from gpuload.fields.pixels import RGB, Pixels
from gpuload.read.batch import Batch
from gpuload.types import I64

OnCorrupt = Literal["raise", "skip", "mark"]

FindFaults = Callable[[Batch], dict[int, Fault]]
ReadSpare = Callable[[int], Batch]

_MOST_SPARES = 1000  # samples that are tried in place of a batch of which no sample decodes


class Guarded(NamedTuple):
    """A batch as it is handed out.

    batch: with "skip" the replacements in place of what does not decode, else as it was asked for. asked: as it was
    asked for. faults: its samples that do not decode, by their rows.
    """

    batch: Batch
    decoded: Decoded
    asked: Batch
    faults: dict[int, Fault]


@dataclass
class _InFlight:
    """A batch on its way through the decoder.

    given: what the decoder gets. rows: int64 (N,), the row of `asked` that each row of `given` shows; None if all show
    a spare sample. spares: how many of these were taken so far.
    """

    asked: Batch
    given: Batch
    rows: I64 | None
    faults: dict[int, Fault] = field(default_factory=dict)
    spares: int = 0


class Guard:
    """Guards a decoder.

    find_faults: finds what must not be given to the decoder; None where it takes anything. pixels: of the images.
    """

    def __init__(
        self,
        decoder: Decoder,
        on_corrupt: OnCorrupt = "raise",
        find_faults: FindFaults | None = None,
        pixels: Pixels = RGB,
    ) -> None:
        self._decoder, self._on_corrupt, self._find_faults, self._pixels = decoder, on_corrupt, find_faults, pixels

    def decode(self, batches: Iterator[Batch], read_spare: ReadSpare) -> Iterator[Guarded]:
        """Each batch with its pixels, in order. Only one call is active at a time; a new one ends the one before.

        read_spare: gives a batch of the one sample at this position of the stream.

        Raises:
            BatchDecodeError: with "raise": samples of the next batch do not decode.
            DecodeError: with "skip": no sample of a batch decodes, nor any of the next 1,000.
        """
        feed = _Feed(self, batches, read_spare)
        while True:
            try:
                for _, decoded in self._decoder.decode(feed.batches()):
                    flight = feed.in_flight[0]
                    mended = self._mend(flight, decoded, read_spare) if decoded.broken else decoded
                    if mended is None:
                        break
                    feed.in_flight.popleft()
                    batch = flight.given if self._on_corrupt == "skip" else flight.asked
                    yield Guarded(batch, mended, flight.asked, flight.faults)
                else:
                    if feed.refused is not None:
                        raise feed.refused
                    return
            except BatchDecodeError as error:
                if error is feed.refused or self._on_corrupt == "raise":
                    raise
                # A copy: the decoder may read further batches in a thread of its own meanwhile.
                flight = next(flight for flight in feed.in_flight.copy() if flight.given is error.batch)
                if not _note(flight, error.faults):
                    raise
                self._repair(flight, read_spare)

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self._decoder.close()

    def begin(self, batch: Batch, read_spare: ReadSpare) -> _InFlight:
        """The batch as the decoder is to get it.

        Raises:
            BatchDecodeError, DecodeError: as `decode`.
        """
        flight = _InFlight(batch, batch, _each_row(len(batch)))
        if self._find_faults is not None and (faults := self._find_faults(batch)):
            if self._on_corrupt == "raise":
                raise BatchDecodeError(batch, faults)
            _note(flight, faults)
            self._repair(flight, read_spare)
        return flight

    def _mend(self, flight: _InFlight, decoded: Decoded, read_spare: ReadSpare) -> Decoded | None:
        """Completes a decoded batch of which some samples are broken; None if it must be decoded again."""
        if self._on_corrupt == "raise":
            raise BatchDecodeError(flight.asked, decoded.broken)
        is_spare = flight.rows is None
        if not _note(flight, decoded.broken):
            raise BatchDecodeError(flight.asked, decoded.broken)
        if self._on_corrupt == "mark":
            return decoded
        self._repair(flight, read_spare)
        if is_spare or flight.rows is None:
            return None
        # Copied, since a batch that is decoded again takes those after it with it.
        rows = sorted(decoded.broken)
        sources = flight.rows[rows].tolist()
        for arrays in (decoded.images, *decoded.masks):
            for array in arrays:
                array[rows] = array[sources]
        if not decoded.changed:
            return decoded
        at = np.arange(len(flight.asked))
        at[rows] = sources
        return decoded._replace(changed=tuple(None if one is None else one.take(at) for one in decoded.changed))

    def _repair(self, flight: _InFlight, read_spare: ReadSpare) -> None:
        """Gives the decoder what takes the place of the samples that do not decode."""
        if self._on_corrupt == "mark":
            flight.given = with_placeholders(flight.asked, flight.faults, self._pixels)
            return
        flight.rows = _neighbours(len(flight.asked), flight.faults)
        if flight.rows is not None:
            flight.given = flight.asked.take(flight.rows)
            return
        while flight.spares < _MOST_SPARES:
            spare = read_spare(flight.asked.stop + flight.spares)
            flight.spares += 1
            if self._find_faults is None or not self._find_faults(spare):
                everywhere = spare.take(np.zeros(len(flight.asked), np.int64))
                flight.given = replace(everywhere, stop=flight.asked.stop, read_s=flight.asked.read_s)
                return
        raise DecodeError(
            f"no sample of a batch decodes, nor any of the {_MOST_SPARES:,} after it. Check the set with "
            "`python -m gpuload verify`"
        )


class _Feed:
    """Gives a decoder its batches, and keeps those that it has not returned yet, for another attempt.

    refused: the error of the batch before which the feed ended; those before it are decoded first.
    """

    def __init__(self, guard: Guard, batches: Iterator[Batch], read_spare: ReadSpare) -> None:
        self._guard, self._batches, self._read_spare = guard, batches, read_spare
        self.in_flight: deque[_InFlight] = deque()
        self.refused: BatchDecodeError | None = None
        self._error: BaseException | None = None

    def batches(self) -> Iterator[Batch]:
        """All batches that are in flight, then the next ones. The decoder must have ended the attempt before."""
        waiting, self.in_flight = self.in_flight, deque()
        while waiting:
            flight = waiting.popleft()
            self.in_flight.append(flight)
            yield flight.given
        while (begun := self._next()) is not None:
            self.in_flight.append(begun)
            yield begun.given

    def _next(self) -> _InFlight | None:
        if self._error is not None:  # the attempt before met it, behind the batch that made it end
            raise self._error
        if self.refused is not None:
            return None
        try:
            batch = next(self._batches, None)
            return None if batch is None else self._guard.begin(batch, self._read_spare)
        except BatchDecodeError as error:
            self.refused = error
            return None
        except BaseException as error:
            self._error = error
            raise


@lru_cache(maxsize=8)
def _each_row(count: int) -> I64:
    """Of all batches of this size. To make it for each cost the thread that starts batches 9 µs: NumPy gives up
    Python's lock for it, which other threads then have."""
    rows = np.arange(count)
    rows.flags.writeable = False
    return rows


def _note(flight: _InFlight, found: Any) -> bool:
    """Adds faults, given by rows of what the decoder got; False if none of them is new."""
    if flight.rows is None:
        return True  # of the spare sample; the next one follows
    rows = {int(flight.rows[row]): fault for row, fault in found.items()}
    new = {row: fault for row, fault in rows.items() if row not in flight.faults}
    flight.faults.update(new)
    return bool(new)


def _neighbours(count: int, broken: Any) -> I64 | None:
    """int64 (count,): each row, or in place of a broken one the next that is not, after the last one the first."""
    good = np.setdiff1d(np.arange(count), np.fromiter(broken, np.int64, len(broken)))
    if not len(good):
        return None
    return good[np.searchsorted(good, np.arange(count)) % len(good)]
