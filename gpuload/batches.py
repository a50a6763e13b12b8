"""Batches before decoding: where order, reader and augmentation meet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.augment import Augment, Crops
from gpuload.dataset import I64, Dataset
from gpuload.reader import Bytes, EncodedBatch, Reader
from gpuload.stream import Stream


@dataclass(frozen=True)
class Batch:
    """N samples with what is to be done to them.

    sources: int64 (N,), which data set each is from. stop: the position in the stream behind this global batch.
    """

    encoded: EncodedBatch
    crops: Crops
    sources: I64
    stop: int

    @property
    def images(self) -> list[Bytes]:
        return self.encoded.images


class BatchReader:
    """Reads any part of a stream.

    columns: names of index columns to deliver, such as "label".
    """

    def __init__(self, datasets: tuple[Dataset, ...], stream: Stream, augment: Augment, columns: Sequence[str]) -> None:
        self._readers = [Reader(dataset, columns) for dataset in datasets]
        self._stream, self._augment = stream, augment

    def read(self, first: int, end: int, stop: int) -> Batch:
        """The samples at positions first..end-1 of the stream, a rank's part of a global batch that ends at `stop`."""
        runs = self._stream.runs(first, end)
        encoded = [self._readers[run.source].read(run.order, run.start, run.stop) for run in runs]
        crops = [
            self._augment.draw(run.seed, run.epoch, part.samples, part.widths, part.heights)
            for run, part in zip(runs, encoded, strict=True)
        ]
        if len(runs) == 1:  # most batches: no copies
            return Batch(encoded[0], crops[0], np.full(len(encoded[0]), runs[0].source), stop)
        places = [run.places for run in runs]
        sources = [np.full(len(part), run.source) for run, part in zip(runs, encoded, strict=True)]
        merged = EncodedBatch(
            samples=_place([part.samples for part in encoded], places),
            images=_place([part.images for part in encoded], places),
            widths=_place([part.widths for part in encoded], places),
            heights=_place([part.heights for part in encoded], places),
            columns={name: _place([part.columns[name] for part in encoded], places) for name in encoded[0].columns},
        )
        return Batch(
            merged, Crops(*(_place(parts, places) for parts in zip(*crops, strict=True))), _place(sources, places), stop
        )

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


def _place(parts: Sequence[Any], places: Sequence[I64]) -> Any:
    """One array or list out of parts, whose values go to these places."""
    if isinstance(parts[0], list):
        values = dict(zip(np.concatenate(places).tolist(), (value for part in parts for value in part), strict=True))
        return [values[place] for place in range(len(values))]
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for part, place in zip(parts, places, strict=True):
        whole[place] = part
    return whole
