"""Two decoders at work on each batch: DALI decodes one part of its samples, the CPU decoder the other.

On a host with many cores the CPU decoder's rate is of the order of a GPU's JPEG engines, and idle cores can add theirs.
Each sample has exactly the pixels of the decoder that it is given to. Both run ahead of the training, each on its own
part of the batches to come, so that neither waits for the other within a batch.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gpuload.decode.interface import BatchDecodeError, Decoded, Decoder, Stored
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
        running = [decoder.decode(source.half(number)) for number, decoder in enumerate(self._decoders)]
        while True:
            found = [_next(half) for half in running]
            if None in found:
                return
            halves = source.taken()
            if errors := [(part, one) for part, one in enumerate(found) if isinstance(one, BatchDecodeError)]:
                raise _join_errors(halves, errors)
            yield halves.batch, _join(halves, [one for one in found if isinstance(one, Decoded)])

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
        self._halves: deque[Halves] = deque()
        self._error: BaseException | None = None

    def half(self, number: int) -> Iterator[Batch]:
        """The batches of one decoder; raises what the whole ones raise."""
        while True:
            with self._lock:
                if not self._parts[number] and not self._divide_next():
                    return
                part = self._parts[number].popleft()
            yield part

    def taken(self) -> Halves:
        """The next batch, both of whose halves have been decoded."""
        return self._halves.popleft()

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
        self._parts[_DALI].append(select(batch, halves.dali) if len(halves.dali) else stand_in(batch, self._stored))
        self._parts[_NATIVE].append(select(batch, halves.native))
        self._halves.append(halves)
        return True


def _next(half: Iterator[tuple[Batch, Decoded]]) -> Decoded | BatchDecodeError | None:
    """What a decoder makes of its next batch; None at the end."""
    try:
        found = next(half, None)
    except BatchDecodeError as error:
        return error
    return None if found is None else found[1]


def _join_errors(halves: Halves, errors: Sequence[tuple[int, BatchDecodeError]]) -> BatchDecodeError:
    """One error of the whole batch: of both halves where they say the same."""
    (_, first), rows = errors[0], [halves.dali, halves.native]
    alike = [(part, one) for part, one in errors if (one.what, one.reason) == (first.what, first.reason)]
    broken = sorted(int(rows[part][row]) for part, one in alike for row in one.rows)
    return BatchDecodeError(halves.batch, broken, first.what, first.reason)


def _join(halves: Halves, decoded: Sequence[Decoded]) -> Decoded:
    rows = (halves.dali, halves.native)
    images = tuple(_join_rows(parts, rows) for parts in zip(*(one.images for one in decoded), strict=True))
    views = zip(*(one.masks for one in decoded), strict=True)
    masks = tuple(tuple(_join_rows(parts, rows) for parts in zip(*view, strict=True)) for view in views)
    return Decoded(images, masks, max(one.seconds for one in decoded))


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
