"""Grain on ArrayRecord: the state of its ElasticIterator, which is the same on each rank."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from grain.experimental import ElasticIterator

from counting.loaders import GLOBAL_BATCH, SEED, WORKERS, Loader, Place
from counting.samples import samples


class GrainLoader(Loader):
    DISTRIBUTION = "grain"
    MEANS = "`ElasticIterator.get_state` of any rank"

    @staticmethod
    def prepare(folder: Path) -> None:
        writer = ArrayRecordWriter(str(folder / "samples.array_record"), "group_size:1")
        for number, jpeg in samples():
            writer.write(number.to_bytes(4, "little") + jpeg)
        writer.close()

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._source = grain.sources.ArrayRecordDataSource(
            str(place.folder / "samples.array_record")
        )
        self._state: Any = None
        self._batches: Any = None

    def epoch(self, number: int) -> Iterator[list[int]]:
        dataset = (
            grain.MapDataset.source(self._source)
            .seed(SEED + number)
            .shuffle()
            .map(_number)
        )
        shard = grain.sharding.ShardOptions(self.place.rank, self.place.world_size)
        reading = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=64)
        self._batches = iter(
            ElasticIterator(dataset, GLOBAL_BATCH, shard, read_options=reading)
        )
        if self._state is not None:
            self._batches.set_state(self._state)
            self._state = None
        for numbers in self._batches:
            yield numbers.tolist()

    def state(self) -> Any:
        return self._batches.get_state()

    def load(self, states: Sequence[Any]) -> None:
        self._state = states[0]


def _number(record: bytes) -> int:
    return int.from_bytes(record[:4], "little")
