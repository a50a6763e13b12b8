"""Upper limits of this machine: the rates of decoding and reading alone."""

import contextlib
import importlib.util
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from timing.page_cache import cached_share, data_files, evict
from timing.stored import is_jpeg, stored_arrays, stored_images
from timing.work import MEAN, STD, Work

_SAMPLES = 512  # decoded in a turn: the first of the set


class Ceiling:
    """The rate of decoding alone, from images in memory. Measured in turn with the loaders.

    Images are decoded whole, in as many threads as the loaders have: JPEGs by libjpeg-turbo into reused memory, others
    by Pillow. Raw pixels: NumPy gathers and normalises batches, one per thread.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rates: list[float] = []
        if work.raw:
            self.what = "NumPy gather + normalise"
            self._pixels = np.stack(
                [
                    image
                    for image, _ in itertools.islice(
                        stored_arrays(work.folder), 4 * _SAMPLES
                    )
                ]
            )
            return
        self._encoded = list(itertools.islice(stored_images(work.folder), _SAMPLES))
        if importlib.util.find_spec("simplejpeg") is None:
            self.what = "whole images decoded by Pillow, as simplejpeg is not installed"
        elif all(map(is_jpeg, self._encoded)):
            self.what = "whole JPEGs decoded by simplejpeg"
        else:
            self.what = "whole images decoded, JPEGs by simplejpeg and others by Pillow"

    def measure(self) -> None:
        """Measures one turn."""
        share = self._gather if self._work.raw else self._decode
        self._rates.append(in_threads(self._work.threads, share))

    @property
    def images_per_s(self) -> float:
        return median(self._rates)

    def _decode(self, places: Iterable[int]) -> int:
        buffer = np.empty(1 << 20, np.uint8)
        done = 0
        for place in places:
            if place >= len(self._encoded):
                break
            buffer = decode_whole(self._encoded[place], buffer)
            done += 1
        return done

    def _gather(self, places: Iterable[int]) -> int:
        batch = min(self._work.batch_size, len(self._pixels))
        mean = np.array(MEAN, np.float32) * 255
        factor = 1 / (np.array(STD, np.float32) * 255)
        chosen = np.random.default_rng(0).permutation(len(self._pixels))[:batch]
        out = np.empty((batch, *self._pixels.shape[1:]), np.float32)
        done = 0
        for _ in itertools.takewhile(
            lambda place: place < 32 * self._work.threads, places
        ):
            np.subtract(self._pixels[chosen], mean, out=out)
            np.multiply(out, factor, out=out)
            done += batch
        return done


def decode_whole(encoded: bytes, buffer: np.ndarray) -> np.ndarray:
    """Decodes an image as RGB. Returns the buffer, or a larger one where it was too small.

    What simplejpeg does not decode, such as CMYK, Pillow does.
    """
    if is_jpeg(encoded):
        with contextlib.suppress(ImportError, ValueError):
            import simplejpeg

            height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
            if len(buffer) < 3 * height * width:
                buffer = np.empty(3 * height * width, np.uint8)
            simplejpeg.decode_jpeg(encoded, buffer=buffer)
            return buffer
    Image.open(io.BytesIO(encoded)).convert("RGB")
    return buffer


def disk_rate(folder: Path, threads: int) -> tuple[float, float]:
    """(bytes/s that all threads read of the folder's files after evicting them, the share that stayed cached)."""
    files = data_files(folder)
    evict(files)
    cached = cached_share(files)

    def read(places: Iterable[int]) -> int:
        buffer = bytearray(1 << 20)
        done = 0
        for place in places:
            if place >= len(files):
                break
            with files[place].open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    done += count
        return done

    return in_threads(threads, read), cached


def in_threads(threads: int, share: Callable[[Iterable[int]], int]) -> float:
    """Units per second of `share`, run in each thread; the threads take numbers from one counter."""
    places: Any = itertools.count()
    start = threading.Barrier(threads + 1)

    def run() -> int:
        start.wait()
        return share(places)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(run) for _ in range(threads)]
        start.wait()
        started = time.perf_counter()
        units = sum(future.result() for future in futures)
        return units / (time.perf_counter() - started)
