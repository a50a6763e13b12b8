"""Finds images that DALI would not decode before DALI sees them: DALI 2.4 may crash the process instead of raising.

Strict readers check the headers of each JPEG and PNG (`gpuload.kernels.jpeg.check_jpegs`, `gpuload.headers.png`). An
image that passes does not make DALI raise, and DALI shows it as Pillow does. Pillow decodes all others, in threads:
either the image does not decode, or DALI gets Pillow's pixels.
The reader of JPEGs takes 3 µs for a file of 76 kB (2 cores, 2026-11).
"""

import io
from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image

from gpuload.decode.interface import (
    BatchDecodeError,
    Fault,
    PictureForm,
    Place,
    faults_by_sample,
    with_stored,
)
from gpuload.decode.pillow import UndecodableError, decode_pixels
from gpuload.decode.runner import Job, Threads
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.fields.rows import Ragged
from gpuload.headers import png
from gpuload.kernels.jpeg import SOUND, check_jpegs
from gpuload.read.batch import Batch
from gpuload.types import I64, U8, HeightWidth

# Bit depths and colour types of PNGs that hold certain pixels.
_PNG = {
    RGB: ((8, 0), (8, 2)),
    GRAY: ((8, 0),),
    Pixels(4): ((8, 6),),
    Pixels(1, "uint16"): ((16, 0),),
}
_STOPPED = "the thread that decodes it was stopped"


class Screen:
    """Finds images that DALI does not decode, or not to the size in the index.

    Args:
        pictures: What is made of them.
        num_threads: For Pillow.
    """

    def __init__(self, pictures: Sequence[PictureForm], num_threads: int) -> None:
        self._encoded = [picture for picture in pictures if not picture.stored.raw]
        self._threads = Threads(num_threads, "gpuload-transcode")

    def screened(self, batch: Batch, samples: I64) -> tuple[Batch, dict[int, Fault]]:
        """The batch in encodings that DALI takes, and the faults among these samples, which it must not get."""
        faults: dict[int, Fault] = {}
        for picture in self._encoded:
            odd = _odd_rows(picture, batch, samples)
            if odd:
                batch, of_picture = self._transcode(picture, batch, odd)
                faults = {**of_picture, **faults}
        return batch, faults

    def explain_failure(self, jobs: Sequence[Job]) -> BatchDecodeError | None:
        """The error for the first of these batches with an image that does not decode; called after DALI raised, so
        that everything is tried, even if it passed the check."""
        for job in jobs:
            faults: dict[int, Fault] = {}
            for picture in self._encoded:
                rows = range(len(job.batch.stored(picture.name)))
                _, of_picture = self._transcode(picture, job.batch, rows)
                faults = {**of_picture, **faults}
            if faults:
                return job.error_of(faults)
        return None

    def close(self) -> None:
        """Stops the threads."""
        self._threads.close()

    def _transcode(
        self, picture: PictureForm, batch: Batch, rows: Sequence[int]
    ) -> tuple[Batch, dict[int, Fault]]:
        """The batch with Pillow's pixels at these rows of a picture, and the samples that do not decode."""
        stored = batch.stored(picture.name)
        pixels = picture.stored.source
        tasks = [
            self._threads.submit(
                partial(_transcoded, stored.contents[row], stored.size(row), pixels)
            )
            for row in rows
        ]
        files: dict[Place, U8] = {}
        reasons: dict[int, str] = {}
        for row, task in zip(rows, tasks, strict=True):
            result = task.result()
            if isinstance(result, np.ndarray):
                files[row, picture.name] = result
            else:
                reasons[row] = result or _STOPPED
        faults = faults_by_sample(batch, picture.name, reasons)
        return with_stored(batch, files), faults


def _odd_rows(picture: PictureForm, batch: Batch, samples: I64) -> list[int]:
    """The rows of a picture, in these samples, that Pillow has to decode."""
    stored = batch.stored(picture.name)
    pictures = batch.pictures[picture.name]
    rows = pictures.rows_of(samples) if isinstance(pictures, Ragged) else samples
    results = check_jpegs(stored.spans[rows], stored.heights[rows], stored.widths[rows])
    pixels = picture.stored.source
    return [
        row
        for row in rows[results != SOUND].tolist()
        if not _is_plain_png(stored.contents[row], stored.size(row), pixels)
    ]


def _is_plain_png(data: U8, size: HeightWidth, pixels: Pixels) -> bool:
    """Whether a PNG is sound and holds these pixels as they are, so that nothing has to be converted."""
    if (
        data[: len(png.START)].tobytes() != png.START
        or png.find_fault(data.data, size) is not None
    ):
        return False
    header = png.read_header(data.tobytes())
    return header.alike and (header.depth, header.color) in _PNG.get(pixels, ())


def _transcoded(data: U8, size: HeightWidth, pixels: Pixels) -> U8 | str:
    """uint8 (bytes,): an image of these pixels, as DALI decodes it; or why it does not decode."""
    try:
        decoded = decode_pixels(data, size, pixels)
    except UndecodableError as error:
        return str(error)
    if pixels in (RGB, GRAY):  # PNM: a header of a line, then the pixels
        header = b"P%d %d %d 255\n" % (6 if pixels == RGB else 5, size[1], size[0])
        return np.frombuffer(header + decoded.tobytes(), np.uint8)
    file = io.BytesIO()
    Image.fromarray(decoded.squeeze(2) if decoded.shape[2] == 1 else decoded).save(
        file, "PNG", compress_level=0
    )
    return np.frombuffer(file.getvalue(), np.uint8)
