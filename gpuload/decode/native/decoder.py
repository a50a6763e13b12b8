"""The CPU decoder: a compiled JPEG decoder and resize, in threads, into memory that is used again.

On a CPU it replaces DALI's operators, whose resize takes longer than its decoder: 0.58 ms an image for a random crop of
500×375 to 224×224, this one's 0.1 ms and normalised, the same pixels within rounding (2 cores, 2026-11). The threads
hold Python's lock only between calls.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment import Form, View
from gpuload.decode.interface import NUMPY_DTYPES, BatchDecodeError, Decoded, Stored
from gpuload.decode.masks import OTHER_SIZE, decode_mask, show_mask
from gpuload.decode.native.buffers import Buffers
from gpuload.decode.native.threads import Task, Threads
from gpuload.errors import MissingPackageError
from gpuload.read.batch import Batch
from gpuload.types import I64

try:
    import torch

    from gpuload.decode.native.cuts import Cuts, load_compiled
    from gpuload.decode.native.images import ImageDecoder, Plan
    from gpuload.decode.postprocess import Finish
    from gpuload.transforms.apply import warp_masks
except ImportError as error:
    raise MissingPackageError(
        f"decoder='native': {error.name} is not installed. `pip install 'gpuload[cpu]'` brings it, or use decoder='dali'"
    ) from None

# Of decoded pixels, what a thread takes at a time: they stay in its cache until they are resized, and for small images
# the calls into compiled code, and the waiting for Python's lock, are shared out among some of them. Half of it makes
# 8 % fewer images of 64×64 a second and 7 % fewer of 500×375; twice as much, as many (2 cores, 2026-11).
_BLOCK_BYTES = 800_000

_ZEROS, _ONES = np.zeros(3, np.float32), np.ones(3, np.float32)


class NativeDecoder:
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    num_threads: that decode.
    """

    def __init__(
        self, forms: Sequence[Form], stored: Stored, *, batch_size: int, num_threads: int, prefetch: int
    ) -> None:
        self._forms, self._fills = tuple(forms), stored.mask_fills
        self._num_threads, self._prefetch = num_threads, prefetch
        self._images = ImageDecoder(stored)
        self._finishes = [Finish(form, "cpu") for form in forms]
        for form, finish in zip(forms, self._finishes, strict=True):
            is_direct = finish.linear and not form.transforms
            first = np.empty((0, 1, 1, 3) if form.layout == "channels_last" else (0, 3, 1, 1), NUMPY_DTYPES[form.dtype])
            load_compiled(form, _as_nchw(form, first) if is_direct else np.empty((0, 3, 1, 1), np.uint8))
        kept = prefetch + 3
        self._buffers = [Buffers(batch_size, NUMPY_DTYPES[form.dtype], kept) for form in forms]
        # Batches are begun by a thread of their own, while the one that asks for them computes: reading one, its crops
        # and what they take of each image are 0.3 ms of Python.
        self._in_flight: deque[Task[_Work | None]] = deque()
        self._beginner = Threads(1, "gpuload-begin")
        # torch keeps the number of threads that compute for each thread that asks, but for threads still to come, and
        # for MKL, in the whole process: so, when all of ours have begun, the number is the user's again.
        torch_threads = torch.get_num_threads()
        begun = threading.Barrier(num_threads + 1)
        self._pool = Threads(num_threads, "gpuload-decode", partial(_compute_alone, begun))
        begun.wait()
        torch.set_num_threads(torch_threads)

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: NumPy arrays."""
        self._abandon()
        while True:
            while len(self._in_flight) <= self._prefetch:
                self._in_flight.append(self._beginner.submit(partial(self._begin, batches)))
            work = self._in_flight.popleft().result()
            if work is None:
                return
            for task in work.tasks:
                task.result()
            if work.broken:
                self._abandon()
                what = min(work.broken.values())
                rows = sorted(row for row, broken in work.broken.items() if broken == what)
                raise BatchDecodeError(work.batch, rows, *what)
            yield work.batch, Decoded(tuple(work.images), tuple(work.masks), work.ended - work.begun)

    def close(self) -> None:
        """Stops the threads; batches handed out stay valid."""
        self._abandon()
        self._beginner.close()
        self._pool.close()

    def _begin(self, batches: Iterator[Batch]) -> "_Work | None":
        """Hands the next batch to the threads; None is the end."""
        batch = next(batches, None)
        if batch is None:
            return None
        images, masks, cuts = [], [], []
        number = len(batch)
        for form, view, buffers in zip(self._forms, batch.views, self._buffers, strict=True):
            height, width = view.size
            shape = (3, height, width) if form.layout == "NCHW" else (height, width, 3)
            images.append(buffers.take(number, shape))
            masks.append(tuple(np.empty((number, height, width), np.uint8) for _ in self._fills))
            cuts.append(Cuts(form, view, batch.encoded.heights, batch.encoded.widths))
        work = _Work(batch, images, masks, cuts)
        work.block = max(1, min(_BLOCK_BYTES // work.plan.largest_bytes, -(-number // self._num_threads)))
        work.blocks = count(0, work.block)
        work.tasks = [self._pool.submit(partial(self._share, work)) for _ in range(self._num_threads)]
        return work

    def _abandon(self) -> None:
        """Ends work that nobody waits for any more."""
        begun = list(self._in_flight)
        self._in_flight.clear()
        for task in begun:
            task.cancelled = True
        for task in begun:
            task.wait()
        works = [task.value for task in begun if task.value is not None]
        for work in works:
            work.abandoned = True
        for work in works:
            for share in work.tasks:
                share.wait()

    @torch.inference_mode()
    def _share(self, work: "_Work") -> None:
        """What one thread does of a batch: the next block that no other has begun, until none is left."""
        number = len(work.batch)
        for begin in work.blocks:
            if begin >= number or work.abandoned:
                work.ended = time.perf_counter()
                return
            work.begun = min(work.begun, time.perf_counter())
            rows = slice(begin, min(begin + work.block, number))
            _kept, broken = self._images.decode(work.plan, rows)
            work.broken.update((row, ("image",)) for row in broken)
            for part in zip(self._forms, work.batch.views, work.cuts, self._finishes, work.images, strict=True):
                _show(work.plan.pictures[rows], rows, *part)
            if self._fills:
                for row in range(rows.start, rows.stop):
                    self._show_masks(work, row)

    def _show_masks(self, work: "_Work", row: int) -> None:
        batch, size = work.batch, (work.batch.encoded.heights[row], work.batch.encoded.widths[row])
        for number, fill in enumerate(self._fills):
            try:
                mask = decode_mask(batch.masks[number][row])
            except Exception:  # Pillow's decoders raise many kinds
                work.broken[row] = ("mask",)
                continue
            if mask.shape != size:
                work.broken[row] = ("mask", OTHER_SIZE)
                continue
            for view, shown in zip(batch.views, work.masks, strict=True):
                shown[number][row] = show_mask(mask, view, row, fill)
                if view.steps is not None:
                    moved = torch.from_numpy(shown[number][row : row + 1])
                    moved.copy_(warp_masks(moved, view.steps.select(slice(row, row + 1)), fill))


@dataclass
class _Work:
    """A batch in the hands of the threads.

    block: images that a thread takes at a time.
    broken: by row, what of a sample does not decode, and why.
    """

    batch: Batch
    images: list[npt.NDArray[Any]]
    masks: list[tuple[npt.NDArray[np.uint8], ...]]
    cuts: list[Cuts]
    block: int = 1
    blocks: Iterator[int] = field(default_factory=count)  # whose `next` is atomic
    tasks: "list[Task[None]]" = field(default_factory=list)
    broken: dict[int, tuple[str, ...]] = field(default_factory=dict)
    abandoned: bool = False
    begun: float = math.inf
    ended: float = 0.0

    def __post_init__(self) -> None:
        windows, factors = self.cuts[0].windows, self.cuts[0].factors
        for cuts in self.cuts[1:]:  # what all views need
            low, high = np.minimum(windows, cuts.windows)[:, :2], np.maximum(windows, cuts.windows)[:, 2:]
            windows, factors = np.concatenate([low, high], axis=1), np.minimum(factors, cuts.factors)
        self.plan = Plan(self.batch.encoded, windows, factors)


def _show(
    pictures: I64, rows: slice, form: Form, view: View, cuts: Cuts, finish: Finish, images: npt.NDArray[Any]
) -> None:
    """What a view shows of the pictures, into these rows of its batch."""
    out = _as_nchw(form, images)[rows]
    if finish.is_linear(view):
        cuts.show(pictures, rows, out, finish.mean, finish.factor)
        if view.erased is not None:
            finish.erase(torch.from_numpy(out), view.select(rows))
        return
    block = np.empty((len(out), 3, *view.size), np.uint8)
    cuts.show(pictures, rows, block, _ZEROS, _ONES)
    finish(torch.from_numpy(block), torch.from_numpy(out), view.select(rows))


def _as_nchw(form: Form, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return images if form.layout == "NCHW" else images.transpose(0, 3, 1, 2)


def _compute_alone(begun: threading.Barrier) -> None:
    """The calling thread's computations are not shared out to others: it is one of many already."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread takes the number over at its first use of it, which must not come later
    begun.wait()
