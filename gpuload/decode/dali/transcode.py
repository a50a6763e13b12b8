"""Images that DALI does not decode, or not to Pillow's pixels: Pillow decodes them, and DALI gets the same pixels in an
encoding that is nearly free to read.

DALI 2.4 decodes no AVIF, and of TIFF only some kinds. WebP it decodes as Pillow does, to RGB.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image

from gpuload.decode.interface import Fault, Stored
from gpuload.decode.pillow import UndecodableError, decode_pixels
from gpuload.decode.threads import Threads
from gpuload.fields.pixels import GRAY, RGB
from gpuload.headers.encodings import OTHER_SIZE, is_avif, is_tiff, is_webp
from gpuload.read.batch import Batch
from gpuload.types import U8, HeightWidth

_MOST_KEPT_BYTES = 1 << 28
_GONE = "the thread that decodes it was stopped"


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
        size = int(batch.encoded.heights[row]), int(batch.encoded.widths[row])
        return self._transcode(batch.encoded.images[row], size)

    def _transcode(self, data: U8, size: HeightWidth) -> U8 | str:
        """uint8 (bytes,), or why the image does not decode."""
        try:
            pixels = decode_pixels(data, size, self._pixels)
        except UndecodableError as error:
            return str(error)
        if pixels.shape[:2] != size:
            return OTHER_SIZE
        if self._pixels in (RGB, GRAY):  # PNM: a header of a line, then the pixels
            header = b"P%d %d %d 255\n" % (6 if self._pixels == RGB else 5, size[1], size[0])
            return np.frombuffer(header + pixels.tobytes(), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(file, "PNG", compress_level=0)
        return np.frombuffer(file.getvalue(), np.uint8)


def _place(batch: Batch, row: int) -> tuple[int, int]:
    return int(batch.sources[row]), int(batch.encoded.samples[row])
