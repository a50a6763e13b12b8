"""SPDL, which has no state: a pipeline of threads, of its own distributed sampler."""

from collections.abc import Iterator
from pathlib import Path

from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import samples


class SpdlLoader(Loader):
    DISTRIBUTION = "spdl"

    @staticmethod
    def prepare(folder: Path) -> None:
        for number, jpeg in samples():
            (folder / f"{number:06d}.jpg").write_bytes(jpeg)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._paths = sorted(place.folder.glob("*.jpg"))
        self._sampler = DistributedRandomSampler(
            len(self._paths), rank=place.rank, world_size=place.world_size, seed=SEED
        )

    def _read(self, index: int) -> int:
        path = self._paths[index]
        path.read_bytes()
        return int(path.stem)

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._sampler.shuffle(seed=SEED + number)
        builder = (
            PipelineBuilder()
            .add_source(self._sampler)
            .pipe(self._read, concurrency=WORKERS)
        )
        pipeline = (
            builder.aggregate(self.place.batch_size)
            .add_sink(2)
            .build(num_threads=WORKERS)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)
