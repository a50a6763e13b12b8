"""Batches before decoding: where order, reader and augmentation meet."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.augment import Augment, View
from gpuload.disk.dataset import Dataset
from gpuload.draws import make_key, uniform
from gpuload.order.epoch import BATCH
from gpuload.order.stream import Stream
from gpuload.read.reader import EncodedBatch, MemberViews, Reader
from gpuload.types import I64, U8, U64

# Random numbers that each sample owns, an epoch, for batch transforms and for DALI operators of the user's.
_DRAWS = 1 << 14


@dataclass(frozen=True)
class Batch:
    """N samples with what is to be done to them.

    sources: int64 (N,), which data set each is from. keys: uint64 (N,), for their random numbers.
    stop: the position in the stream behind this global batch. read_s: seconds that reading took.
    """

    encoded: EncodedBatch
    masks: tuple[list[U8], ...]
    views: tuple[View, ...]
    sources: I64
    keys: U64
    stop: int
    read_s: float

    @property
    def images(self) -> Sequence[U8]:
        return self.encoded.images

    @property
    def spans(self) -> I64:
        return self.encoded.spans

    @property
    def raw(self) -> npt.NDArray[np.bool_]:
        return self.encoded.raw

    @property
    def widths(self) -> npt.NDArray[np.int32]:
        return self.encoded.widths

    @property
    def heights(self) -> npt.NDArray[np.int32]:
        return self.encoded.heights

    def draws(self, number: int) -> npt.NDArray[np.float64]:
        """A random number in [0, 1) for each sample: a pure function of seed, epoch, sample and `number`."""
        return uniform(self.keys, self.encoded.samples * _DRAWS + number)


class BatchReader:
    """Reads any part of a stream.

    columns: names of index columns to deliver, such as "label". members: names of fields that stay in the shard.
    masks: those of them that are masks.
    """

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        stream: Stream,
        columns: Sequence[str],
        members: Sequence[str],
        masks: Sequence[str],
    ) -> None:
        self._readers = [Reader(dataset, columns, [*members, *masks]) for dataset in datasets]
        self._stream, self._masks = stream, masks

    def read(self, parts: Sequence[tuple[int, int, int]], augments: Sequence[Augment]) -> list[Batch]:
        """A batch for each (first, end, stop): the samples at positions first..end-1 of the stream, a rank's part of a
        global batch that ends at `stop`.

        Parts that follow one another are read at once, and cut after that. augments: each makes a view of a batch.
        """
        begun = time.perf_counter()
        batches: list[Batch] = []
        while len(batches) < len(parts):
            adjoining = [parts[len(batches)]]
            for part in parts[len(batches) + 1 :]:
                if part[0] != adjoining[-1][1]:
                    break
                adjoining.append(part)
            batches += self._read_adjoining(adjoining, augments)
        each_s = (time.perf_counter() - begun) / len(batches)
        return [replace(batch, read_s=each_s) for batch in batches]

    def _read_adjoining(self, parts: Sequence[tuple[int, int, int]], augments: Sequence[Augment]) -> Iterator[Batch]:
        begin, end = parts[0][0], parts[-1][1]
        runs = self._stream.runs(begin, end)
        found = []
        for run in runs:
            encoded = self._readers[run.source].read(run.order, run.start, run.stop)
            views = tuple(
                augment.draw(run.seed, run.epoch, encoded.samples, encoded.widths, encoded.heights, number)
                for number, augment in enumerate(augments)
            )
            key = np.full(len(encoded), make_key(run.seed, run.epoch, BATCH), np.uint64)
            found.append((encoded, views, np.full(len(encoded), run.source), key))
        # Most have one run: no copies.
        merged = found[0] if len(found) == 1 else _place(found, [run.places for run in runs])
        for first, last, stop in parts:
            encoded, views, sources, keys = merged
            if len(parts) > 1:
                rows = slice(first - begin, last - begin)
                encoded, views = encoded.select(rows), tuple(view.select(rows) for view in views)
                sources, keys = sources[rows], keys[rows]
            masks = tuple(encoded.members[name] for name in self._masks)
            yield Batch(encoded, masks, views, sources, keys, stop, 0.0)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


def _place(parts: Sequence[Any], places: Sequence[I64]) -> Any:
    """One whole out of parts of the same structure: the values of their arrays and lists go to these places."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        whole = np.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part
        return whole
    if isinstance(first, list | MemberViews):
        values = dict(zip(np.concatenate(places).tolist(), (value for part in parts for value in part), strict=True))
        return [values[place] for place in range(len(values))]
    if isinstance(first, pa.Array):
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))
    if isinstance(first, dict):
        return {name: _place([part[name] for part in parts], places) for name in first}
    if isinstance(first, EncodedBatch):
        return EncodedBatch(**{name: _place([vars(part)[name] for part in parts], places) for name in vars(first)})
    if isinstance(first, View):
        return View(first.size, *(_place(values, places) for values in list(zip(*parts, strict=True))[1:]))
    if isinstance(first, tuple):
        placed = [_place(values, places) for values in zip(*parts, strict=True)]
        return type(first)(*placed) if hasattr(first, "_fields") else tuple(placed)
    return first  # None: nothing was drawn
