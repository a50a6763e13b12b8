"""Finds images that DALI would not decode before DALI sees them: DALI 2.4 may crash the process instead of raising.

A strict reader checks each image's headers (`gpuload.headers.jpeg`, `png`). An image that passes does not
make DALI raise; one that fails is tried alone (`Trial`), so that no image that DALI decodes is refused. The readers
take 3 µs for a JPEG of 76 kB, compiled by numba; without numba 65 µs, 3 % of DALI's decoding time on a CPU (2 cores,
2026-11).
"""

import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from gpuload.decode.dali.graph import fn, open_pipeline
from gpuload.decode.interface import Fault, Stored
from gpuload.decode.pillow import OTHER_SIZE, UndecodableError, decode_pixels
from gpuload.decode.threads import Threads
from gpuload.fields.images import GRAY, RGB
from gpuload.headers import encodings, jpeg, png
from gpuload.headers.encodings import is_avif, is_tiff, is_webp
from gpuload.machine.installed import fault_of
from gpuload.read.batch import Batch, EncodedBatch
from gpuload.types import I8, I32, I64, U8, HeightWidth

_MOST_KEPT_BYTES = 1 << 28
_GONE = "the thread that decodes it was stopped"

_LOG = logging.getLogger(__name__)

OTHER_SIZE_THAN_INDEX = "it is not of the size that the index says"
_REASONS = {
    jpeg.NO_JPEG: "it is no image that DALI decodes",
    jpeg.BAD_HEADER: "its header is damaged",
    jpeg.NO_END: "it is truncated",
    jpeg.OTHER_SIZE: OTHER_SIZE_THAN_INDEX,
}
_MOST_REMEMBERED = 65_536  # tried samples: a trial takes 0.5 ms or more, and each epoch would repeat it


class Transcoder:
    """Decodes such images in threads when a batch is checked for faults, and keeps them until `take`.

    Batches are checked where they are read, and images taken where DALI is fed, in one thread or in two.
    """

    def __init__(self, stored: Stored, num_threads: int) -> None:
        self._pixels = stored.source
        self._threads = Threads(num_threads, "gpuload-transcode")
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], U8] = OrderedDict()
        self._kept_bytes = 0

    def takes(self, data: U8) -> bool:
        """Whether Pillow decodes this image in place of DALI."""
        view = data.data
        return is_avif(view) or is_tiff(view) or (self._pixels != RGB and is_webp(view))

    def find_faults(self, batch: Batch, rows: Sequence[int]) -> tuple[dict[int, Fault], list[int]]:
        """Faults among the rows that it takes, by row, and the rows that it does not take."""
        mine = [row for row in rows if self.takes(batch.encoded.images[row])]
        taken = set(mine)
        faults = {}
        tasks = [(row, self._threads.submit(partial(self._transcode_row, batch, row))) for row in mine]
        for row, task in tasks:
            found = task.result()
            if isinstance(found, np.ndarray):
                self._keep(_place(batch, row), found)
            else:
                faults[row] = Fault(found or _GONE)
        return faults, [row for row in rows if row not in taken]

    def fault_of(self, data: U8, size: HeightWidth) -> str | None:
        """Why one image does not decode to the size in the index; None if it does."""
        found = self._transcode(data, size)
        return found if isinstance(found, str) else None

    def take(self, batch: Batch) -> list[U8]:
        """The images of a batch in encodings that DALI decodes: as stored, or others of the same pixels."""
        images = list(batch.encoded.images)
        missing = []
        for row, data in enumerate(images):
            if self.takes(data):
                with self._lock:
                    kept = self._kept.get(_place(batch, row))
                if kept is None:
                    missing.append((row, self._threads.submit(partial(self._transcode_row, batch, row))))
                else:
                    images[row] = kept
        for row, task in missing:
            found = task.result()
            if isinstance(found, np.ndarray):  # else DALI will find it
                images[row] = found
        with self._lock:
            for row in range(len(images)):
                if (kept := self._kept.pop(_place(batch, row), None)) is not None:
                    self._kept_bytes -= kept.nbytes
        return images

    def close(self) -> None:
        """Stops the threads."""
        self._threads.close()

    def _keep(self, place: tuple[int, int], image: U8) -> None:
        with self._lock:
            if (before := self._kept.pop(place, None)) is not None:
                self._kept_bytes -= before.nbytes
            self._kept[place] = image
            self._kept_bytes += image.nbytes
            while self._kept_bytes > _MOST_KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes

    def _transcode_row(self, batch: Batch, row: int) -> U8 | str:
        size = batch.encoded.size(row)
        return self._transcode(batch.encoded.images[row], size)

    def _transcode(self, data: U8, size: HeightWidth) -> U8 | str:
        """uint8 (bytes,), or why the image does not decode."""
        try:
            pixels = decode_pixels(data, size, self._pixels)
        except UndecodableError as error:
            return str(error)
        if pixels.shape[:2] != size:
            return encodings.OTHER_SIZE
        if self._pixels in (RGB, GRAY):  # PNM: a header of a line, then the pixels
            header = b"P%d %d %d 255\n" % (6 if self._pixels == RGB else 5, size[1], size[0])
            return np.frombuffer(header + pixels.tobytes(), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(file, "PNG", compress_level=0)
        return np.frombuffer(file.getvalue(), np.uint8)


def _place(batch: Batch, row: int) -> tuple[int, int]:
    return int(batch.sources[row]), int(batch.encoded.samples[row])


class Screen:
    """Finds images and masks that DALI does not decode, or not to the size in the index."""

    def __init__(self, stored: Stored, transcoder: Transcoder | None = None) -> None:
        self._raw, self._check, self._transcoder = stored.raw, _Check(), transcoder
        self._trial = Trial()
        self._tried: dict[tuple[int, int, int | None], Fault | None] = {}

    def find_faults(self, batch: Batch) -> dict[int, Fault]:
        """Faults by row of the batch."""
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
                fault = self._look_at(batch, row, mask, data, jpeg.NO_JPEG)
                if fault is not None:
                    faults.setdefault(row, fault)
        return faults

    def find_after_failure(self, batches: Sequence[Batch]) -> tuple[Batch, dict[int, Fault]] | None:
        """The first of these batches with an image or mask that DALI does not decode, and its faults; called after DALI
        raised, so that everything is tried alone, even if it passed the check."""
        for batch in batches:
            faults: dict[int, Fault] = {}
            fields: list[tuple[int | None, Sequence[U8]]] = [*enumerate(batch.masks)]
            for mask, field in fields if self._raw else [(None, batch.encoded.images), *fields]:
                for row, data in enumerate(field):
                    fault = self._try(data, batch.encoded.size(row), mask, "DALI does not decode it")
                    if fault is not None:
                        faults.setdefault(row, fault)
            if faults:
                return batch, faults
        return None

    def _look_at(self, batch: Batch, row: int, mask: int | None, data: U8, found: int) -> Fault | None:
        """mask: number of the mask field, or None of the image. found: by the check for JPEGs."""
        size, reason = batch.encoded.size(row), _REASONS[found]
        if data[: len(png.START)].tobytes() == png.START:
            if (fault := png.find_fault(data.data, size)) is None:
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


_plain_check = jpeg.make_check(lambda function: function, jpeg.next_marker)


class _Check:
    """Checks each image of a batch by `headers.jpeg.make_check`, int8 (N,): compiled if numba is usable, once that is
    done."""

    def __init__(self) -> None:
        self._compiled: Callable[[I64, I32, I32], I8] | None = None
        if (fault := fault_of("gpuload.decode.native.sound")) is not None:
            _LOG.info("headers are checked in Python, before DALI gets an image: %s", fault.reason)
            return
        from gpuload.decode.native.compiled import BackgroundCompilation

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


class Trial:
    """Decodes one image at a time on the CPU, for any thread, by a pipeline that is rebuilt after a failure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # threads check images while they read ahead, the loop does so after a failure
        self._data: list[U8] = []
        self._pipeline: Any = None

    def decoded_size(self, data: U8) -> HeightWidth | None:
        """(height, width) to which DALI's CPU decoder decodes this image; None if it does not."""
        if not len(data):
            return None
        with self._lock:
            return self._decode(data)

    def _decode(self, data: U8) -> HeightWidth | None:
        self._data[:] = [data]
        if self._pipeline is None:
            self._pipeline = open_pipeline(
                _decode_one,
                lambda: list(self._data),
                batch_size=1,
                num_threads=1,
                device_id=None,
                prefetch_queue_depth=1,
            )
        try:
            (images,) = self._pipeline.run()
        except RuntimeError:
            self._pipeline = None
            return None
        finally:
            self._data.clear()
        height, width, _ = images.at(0).shape
        return height, width


def _decode_one(source: Any) -> Any:
    return fn.decoders.image(fn.external_source(source=source, batch=True), device="cpu")
