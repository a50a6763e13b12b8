"""Two decoders at work on each batch: DALI decodes one part of its samples, the CPU decoder the other.

On a host with many cores the CPU decoder's rate is of the order of a GPU's JPEG engines, and idle cores can add theirs.
Each sample has exactly the pixels of the decoder that it is given to. Both run ahead of the training, each on its own
part of the batches to come, so that neither waits for the other within a batch.

A sample that takes the place of another one, which does not decode (`gpuload.decode.guard`), goes where its own number
sends it. So which decoder it has depends on (seed, epoch, sample) here, too, and not on what it replaces.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from gpuload.decode.interface import BatchDecodeError, Decoded, Decoder, Fault, Stored
from gpuload.decode.postprocess import as_tensor
from gpuload.decode.share import Halves, divide, select, stand_in
from gpuload.read.batch import Batch
from gpuload.transforms.noise import on_device
from gpuload.types import I64

_DALI, _NATIVE = range(2)


class BothDecoder:
    """Decodes batches in order, each by two decoders.

    dali, native: their batches are on the same device, of the same forms. cpu_share: of the samples, those that
    `native` decodes.
    """

    def __init__(self, dali: Decoder, native: Decoder, stored: Stored, cpu_share: float) -> None:
        self._decoders, self._stored, self._cpu_share = (dali, native), stored, cpu_share
        self._source: _Divided | None = None

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: torch's tensors, or what the one decoder made that had it all."""
        self._end()
        self._source = source = _Divided(batches, self._stored, self._cpu_share)
        dali, native = (decoder.decode(source.half(number)) for number, decoder in enumerate(self._decoders))
        try:
            for found in zip(dali, native, strict=True):
                batch, rows = source.taken()
                whole = _join([decoded for _, decoded in found], rows)
                del found  # whoever waits must not keep a batch alive
                yield batch, whole
                del batch, whole
        except BatchDecodeError as error:
            raise source.whole_error(error, native) from error

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self._end()
        for decoder in self._decoders:
            decoder.close()

    def _end(self) -> None:
        """Ends the call before: one decoder must not read for it while the other reads for the next."""
        if self._source is not None:
            self._source.end()


class _Divided:
    """Divides batches, for two decoders that ask for their halves at different times and in different threads."""

    def __init__(self, batches: Iterator[Batch], stored: Stored, cpu_share: float) -> None:
        self._batches, self._stored, self._cpu_share = batches, stored, cpu_share
        self._lock = threading.Lock()
        self._parts: tuple[deque[Batch], deque[Batch]] = (deque(), deque())
        self._halves: deque[tuple[Halves, tuple[Batch, Batch]]] = deque()  # divided, and the parts
        self._error: BaseException | None = None

    def half(self, number: int) -> Iterator[Batch]:
        """The batches of one decoder; raises what the whole ones raise."""
        while True:
            with self._lock:
                if not self._parts[number] and not self._divide_next():
                    return
                part = self._parts[number].popleft()
            yield part

    def taken(self) -> tuple[Batch, tuple[I64, I64]]:
        """The next batch, both of whose halves have been decoded, and the rows of either half."""
        halves, _ = self._halves.popleft()
        return halves.batch, (halves.dali, halves.native)

    def whole_error(self, error: BatchDecodeError, native: Iterator[tuple[Batch, Decoded]]) -> BatchDecodeError:
        """DALI's error of its half, as one of the whole batch."""
        for number, (halves, parts) in enumerate(self._halves.copy()):  # another thread may append
            if parts[_DALI] is not error.batch:
                continue
            faults = _renumbered(error.faults, halves.dali)
            if number == 0:  # the other decoder is at the same batch, and what it found there is told at once
                for _, decoded in islice(native, 1):
                    faults |= _renumbered(decoded.broken, halves.native)
            return BatchDecodeError(halves.batch, faults)
        return error

    def end(self) -> None:
        """Waits until no batch is being read; from now on there are none."""
        with self._lock:
            self._batches = iter(())
            for parts in self._parts:
                parts.clear()

    def _divide_next(self) -> bool:
        if self._error is not None:
            raise self._error
        try:
            batch = next(self._batches, None)
        except BaseException as error:  # for the other decoder, too
            self._error = error
            raise
        if batch is None:
            return False
        halves = divide(batch, self._cpu_share)
        dali = select(batch, halves.dali) if len(halves.dali) else stand_in(batch, self._stored)
        native = select(batch, halves.native)
        self._halves.append((halves, (dali, native)))
        self._parts[_DALI].append(dali)
        self._parts[_NATIVE].append(native)
        return True


def _join(decoded: Sequence[Decoded], rows: Sequence[I64]) -> Decoded:
    images = tuple(_join_rows(parts, rows) for parts in zip(*(one.images for one in decoded), strict=True))
    views = zip(*(one.masks for one in decoded), strict=True)
    masks = tuple(tuple(_join_rows(parts, rows) for parts in zip(*view, strict=True)) for view in views)
    broken = {}
    for one, at in zip(decoded, rows, strict=True):
        broken.update(_renumbered(one.broken, at))
    return Decoded(
        images,
        masks,
        max(one.seconds for one in decoded),
        sum(one.work_s for one in decoded),  # NaN, since DALI does not tell; so is the next but one
        sum(one.read_wait_s for one in decoded),  # one is waited for after the other
        sum(one.queue_depth for one in decoded),
        broken,
    )


def _renumbered(faults: Mapping[int, Fault], rows: I64) -> dict[int, Fault]:
    """By rows of the whole batch, for those of a half."""
    return {int(rows[row]): fault for row, fault in faults.items()}


@torch.no_grad()
def _join_rows(parts: Sequence[Any], rows: Sequence[I64]) -> Any:
    """One array out of two; the entries of part i go to rows[i]. Without a copy where one part is all of it."""
    held = [(part, at) for part, at in zip(parts, rows, strict=True) if len(at)]
    if len(held) < 2:
        return held[0][0] if held else parts[_NATIVE]
    tensors = [as_tensor(part) for part, _ in held]
    whole = torch.empty((sum(map(len, rows)), *tensors[0].shape[1:]), dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor, (_, at) in zip(tensors, held, strict=True):
        whole.index_copy_(0, on_device(whole.device, at), tensor)
    return whole
