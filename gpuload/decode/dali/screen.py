"""Finds what DALI would not decode before it sees it: DALI 2.4 may end the process there, instead of raising.

Each image is looked at by a strict reader of headers (`gpuload.headers.sound_jpeg`, `sound_png`). What passes does not
make DALI raise; whatever does not is tried alone (`Trial`), so that no image is refused that DALI decodes. The readers
take 3 µs for a JPEG of 76 kB, compiled by numba; without numba 65 µs, 3 % of the time that DALI takes to decode it on a
CPU (2 cores, 2026-11).
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from gpuload.decode.dali.transcode import Transcoder
from gpuload.decode.dali.trial import Trial
from gpuload.decode.interface import Fault, Stored
from gpuload.decode.masks import OTHER_SIZE
from gpuload.headers import png, sound_jpeg, sound_png
from gpuload.installed import fault_of
from gpuload.read.batch import Batch, EncodedBatch
from gpuload.types import I8, I32, I64, U8, HeightWidth

_LOG = logging.getLogger(__name__)

OTHER_SIZE_THAN_INDEX = "it is not of the size that the index says"
_REASONS = {
    sound_jpeg.NO_JPEG: "it is no image that DALI decodes",
    sound_jpeg.BAD_HEADER: "its header is damaged",
    sound_jpeg.NO_END: "it is truncated",
    sound_jpeg.OTHER_SIZE: OTHER_SIZE_THAN_INDEX,
}
_MOST_REMEMBERED = 65_536  # samples that were tried alone: a trial takes 0.5 ms or more, and each epoch would repeat it


class Screen:
    """Finds the images and masks of batches that DALI does not decode, or not to the size that the index says."""

    def __init__(self, stored: Stored, transcoder: Transcoder | None = None) -> None:
        self._raw, self._check, self._transcoder = stored.raw, _Check(), transcoder
        self._trial = Trial()
        self._tried: dict[tuple[int, int, int | None], Fault | None] = {}

    def find_faults(self, batch: Batch) -> dict[int, Fault]:
        """By their rows in the batch."""
        faults: dict[int, Fault] = {}
        if not self._raw:
            found = self._check(batch.encoded)
            rows = np.flatnonzero(found).tolist()
            if self._transcoder is not None:
                faults, rows = self._transcoder.find_faults(batch, rows)
            for row in rows:
                fault = self._look_at(batch, row, None, batch.encoded.images[row], int(found[row]))
                if fault is not None:
                    faults[row] = fault
        for mask, field in enumerate(batch.masks):
            for row, data in enumerate(field):
                fault = self._look_at(batch, row, mask, data, sound_jpeg.NO_JPEG)
                if fault is not None:
                    faults.setdefault(row, fault)
        return faults

    def find_after_failure(self, batches: Sequence[Batch]) -> tuple[Batch, dict[int, Fault]] | None:
        """The first of these batches that holds something that DALI does not decode, after it raised: whatever passed
        the check is tried alone, too."""
        for batch in batches:
            faults: dict[int, Fault] = {}
            fields: list[tuple[int | None, Sequence[U8]]] = [*enumerate(batch.masks)]
            for mask, field in fields if self._raw else [(None, batch.encoded.images), *fields]:
                for row, data in enumerate(field):
                    fault = self._try(data, _size_of(batch, row), mask, "DALI does not decode it")
                    if fault is not None:
                        faults.setdefault(row, fault)
            if faults:
                return batch, faults
        return None

    def _look_at(self, batch: Batch, row: int, mask: int | None, data: U8, found: int) -> Fault | None:
        """mask: number of the mask field, or None of the image. found: by the check for JPEGs."""
        size, reason = _size_of(batch, row), _REASONS[found]
        if data[: len(png.START)].tobytes() == png.START:
            if (fault := sound_png.find_fault(data.data, size)) is None:
                return None
            reason = fault
        sample = int(batch.sources[row]), int(batch.encoded.samples[row]), mask
        if sample not in self._tried:
            if len(self._tried) >= _MOST_REMEMBERED:
                self._tried.clear()
            self._tried[sample] = self._try(data, size, mask, reason)
        return self._tried[sample]

    def _try(self, data: U8, size: HeightWidth, mask: int | None, reason: str) -> Fault | None:
        if mask is None and self._transcoder is not None and self._transcoder.takes(data):
            fault = self._transcoder.fault_of(data, size)
            return None if fault is None else Fault(fault)
        found = self._trial.decoded_size(data)
        if found == size:
            return None
        other = OTHER_SIZE_THAN_INDEX if mask is None else OTHER_SIZE
        return Fault(reason if found is None else other, mask)


def _size_of(batch: Batch, row: int) -> HeightWidth:
    return int(batch.encoded.heights[row]), int(batch.encoded.widths[row])


_plain_check = sound_jpeg.make_check(lambda function: function, sound_jpeg.next_marker)


class _Check:
    """What `sound_jpeg` finds of each image of a batch, int8 (N,): compiled where numba can be used, and once it is."""

    def __init__(self) -> None:
        self._compiled: Callable[[I64, I32, I32], I8] | None = None
        if (fault := fault_of("gpuload.decode.native.sound")) is not None:
            _LOG.info("headers are checked in Python, before DALI gets an image: %s", fault.reason)
            return
        from gpuload.decode.native.background import BackgroundCompilation

        self._compilation = BackgroundCompilation(self._load)
        self._compilation.start()

    def _load(self) -> None:
        from gpuload.decode.native.sound import check_jpegs, load_compiled

        try:
            load_compiled()
        except Exception as error:  # numba that compiles nothing, as with NUMBA_DISABLE_JIT
            _LOG.info("headers are checked in Python, before DALI gets an image: %s", error)
        else:
            self._compiled = check_jpegs

    def __call__(self, encoded: EncodedBatch) -> I8:
        if self._compiled is not None:
            return self._compiled(encoded.spans, encoded.heights, encoded.widths)
        files = zip(encoded.images, encoded.heights.tolist(), encoded.widths.tolist(), strict=True)
        found = [_plain_check(data.tobytes(), 0, len(data), height, width) for data, height, width in files]
        return np.array(found, np.int8)
