"""DALI: the checkpoint of a pipeline with its reader of webdataset."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from counting.loaders import BUFFER, SEED, WORKERS, Loader, Place
from counting.samples import tars, write_tars


@pipeline_def
def _graph(place: Place) -> Any:
    _, digits = fn.readers.webdataset(
        paths=tars(place.folder),
        ext=["jpg", "cls"],
        random_shuffle=True,
        initial_fill=BUFFER,
        shard_id=place.rank,
        num_shards=place.world_size,
        name="reader",
    )
    return fn.pad(digits, fill_value=ord(" "))


class DaliLoader(Loader):
    DISTRIBUTION = "nvidia-dali-cuda130"
    MEANS = "`checkpoints` of each rank"

    @staticmethod
    def prepare(folder: Path) -> None:
        write_tars(folder)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._batches = self._open(None)

    def _open(self, checkpoint: Any) -> Any:
        pipeline = _graph(
            self.place,
            batch_size=self.place.batch_size,
            num_threads=WORKERS,
            device_id=None,
            seed=SEED,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        return DALIGenericIterator(
            pipeline,
            ["digits"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.PARTIAL,
            auto_reset=True,
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        for (batch,) in self._batches:
            yield [int(bytes(digits)) for digits in batch["digits"].numpy()]

    def state(self) -> Any:
        return self._batches.checkpoints()[0]

    def load(self, states: Sequence[Any]) -> None:
        self._batches = self._open(self.own_or_any(states))
