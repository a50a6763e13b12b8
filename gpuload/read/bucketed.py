"""Reads batches of one bucket each, whose samples may be far apart.

A batch is complete when the current window contains its last sample; its other samples are in that window or in earlier
ones. They are copied before reading leaves a window: at most a batch of each bucket, so neither memory nor the shards
in use grow with the data set, however rare a bucket is. A resumed run fetches them first.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment import Augment
from gpuload.disk.dataset import Dataset
from gpuload.fields.rows import merge
from gpuload.order.buckets import BucketedStream, BucketPlan, Members, before
from gpuload.order.stream import Epochs, Part, Stream
from gpuload.read.batch import Batch, EncodedBatch
from gpuload.read.batches import BatchReader, draw_for
from gpuload.types import Bools

Front = tuple[int, int]  # a pass over a data set, and a window of it


class BucketedReader(BatchReader):
    """Reads any part of a stream divided by buckets. Parts must be read in ascending order.

    plan: the buckets. epochs: with them. The other arguments are those of `BatchReader`.
    """

    def __init__(
        self,
        plan: BucketPlan,
        epochs: Epochs,
        datasets: tuple[Dataset, ...],
        make_stream: Callable[[], Stream],
        *fields: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(datasets, make_stream, *fields, **options)
        self._bucketed, self._output_sizes = BucketedStream(self._stream, plan, epochs), plan.sizes
        self._fronts: dict[int, Front] = {}
        self._held: dict[int, EncodedBatch] = {}  # one sample each, by its position in the stream
        self._position = 0
        self._holds = self._is_first = False
        self._owners: list[object] = []
        self._sized: tuple[Sequence[Augment], dict[int, tuple[Augment, ...]]] = ((), {})

    def begin(self) -> None:
        super().begin()
        owners = [reader.owner for reader in self._readers]
        if owners != self._owners:
            self._held, self._owners = {}, owners
        self._holds = self._is_first = True

    def _is_downloaded(self, part: Part) -> bool:
        return False  # its windows are unknown before it is drawn

    def _read(self, parts: Sequence[Part], augments: Sequence[Augment]) -> Iterator[Batch]:
        return (self._read_part(part, augments) for part in parts)

    def _read_part(self, part: Part, augments: Sequence[Augment]) -> Batch:
        first, last, stop, _ = part
        batch = self._bucketed.batch_at(first if first < last else stop - 1)
        members = batch.members[first - batch.start : last - batch.start]
        if first < self._position:
            self._fronts = {}
        self._position = first
        sized = self._augments_of(augments, batch.bucket)
        guides = members if len(members) else batch.members[-1:]  # even an empty part needs a window
        passes, rows = [], []
        for source in _different(guides["source"]):
            self._advance(source, guides[guides["source"] == source])
            of_source = np.flatnonzero(members["source"] == source)
            for epoch in _different(members["epoch"][of_source]) or [0]:
                at = of_source[members["epoch"][of_source] == epoch]
                passes.append(self._read_pass(source, epoch, members[at], sized))
                rows.append(at)
        encoded, views, sources, keys = passes[0] if len(passes) == 1 else merge(passes, rows)
        masks = tuple(encoded.members[name] for name in self._masks)
        return Batch(
            encoded, masks, views, sources, keys, stop, 0.0, int(encoded.spans[:, 1].sum()), bucket=batch.bucket
        )

    def _read_pass(self, source: int, epoch: int, members: Members, augments: Sequence[Augment]) -> Any:
        """Samples of one pass over one data set, with their draws."""
        encoded = self._gather(source, members)
        self._sizes[source].check(encoded)
        seed, _ = self._bucketed.stream.order(source, epoch)
        return draw_for(encoded, augments, (source, seed, epoch), members["repeat"].astype(np.int64))

    def _gather(self, source: int, members: Members) -> EncodedBatch:
        """Samples from the window, or else from the copies."""
        is_here = self._is_here(source, members)
        here, copied = np.flatnonzero(is_here), np.flatnonzero(~is_here)
        encoded = self._readers[source].gather(members["sample"][here])
        if not len(copied):
            return encoded
        self._hold(source, members[copied])
        copies = [self._held.pop(position) for position in members["position"][copied].tolist()]
        whole: EncodedBatch = merge([encoded, *copies], [here, *copied[:, None]])
        return whole

    def _is_here(self, source: int, members: Members) -> Bools:
        """bool (n,): whether samples are in the current window."""
        if source not in self._fronts:
            return np.zeros(len(members), np.bool_)
        epoch, window = self._fronts[source]
        starts = self._bucketed.stream.order(source, epoch)[1].window_starts
        return before(members, epoch, starts[window + 1]) & ~before(members, epoch, starts[window])

    def _advance(self, source: int, members: Members) -> None:
        """Moves to the window of a batch's last sample, and copies samples that are needed later."""
        epoch, place = int(members["epoch"][-1]), int(members["place"][-1])
        order = self._bucketed.stream.order(source, epoch)[1]
        front = epoch, order.window_at(place)
        if front > self._fronts.get(source, (-1, -1)):
            if self._holds:
                waiting = self._bucketed.waiting()
                if self._is_first:  # not reached by an earlier loop
                    wanted = set(waiting["position"].tolist())
                    self._held = {position: one for position, one in self._held.items() if position in wanted}
                    self._is_first = False
                left = waiting[waiting["source"] == source]
                self._hold(source, left[before(left, epoch, int(order.window_starts[front[1]]))])
            self._fronts[source] = front
        epoch, window = self._fronts[source]
        self._readers[source].enter(self._bucketed.stream.order(source, epoch)[1], window, window)

    def _hold(self, source: int, members: Members) -> None:
        """Copies the samples that are not copied yet."""
        positions = members["position"].tolist()
        new = [row for row, position in enumerate(positions) if position not in self._held]
        if new:
            copies = self._readers[source].copy(members["sample"][new])
            self._held.update(zip((positions[row] for row in new), copies, strict=True))

    def _augments_of(self, augments: Sequence[Augment], bucket: int) -> tuple[Augment, ...]:
        """The views in a bucket's size."""
        if self._sized[0] is not augments:
            self._sized = augments, {}
        known = self._sized[1]
        if bucket not in known:
            known[bucket] = tuple(augment.for_size(self._output_sizes[bucket]) for augment in augments)
        return known[bucket]


def _different(numbers: npt.NDArray[np.integer]) -> list[int]:
    """The distinct numbers in ascending order; usually there is one."""
    alike = not len(numbers) or (numbers == numbers[0]).all()
    found: list[int] = (numbers[:1] if alike else np.unique(numbers)).tolist()
    return found
