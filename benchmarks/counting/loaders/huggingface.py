"""Hugging Face datasets, streaming webdataset: torchdata's StatefulDataLoader, which its page on streaming names."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from counting.loaders import BUFFER, SEED, WORKERS, Loader, Place
from counting.samples import tars, write_tars


class HuggingFaceLoader(Loader):
    DISTRIBUTION = "datasets"
    MEANS = "`StatefulDataLoader.state_dict` of each rank"
    SHUFFLE: Mapping[str, int] = {}

    @staticmethod
    def prepare(folder: Path) -> None:
        write_tars(folder)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        files = tars(place.folder)
        streamed = load_dataset(
            "webdataset", data_files=files, split="train", streaming=True
        ).select_columns(["cls"])
        shuffled = streamed.shuffle(seed=SEED, buffer_size=BUFFER, **self.SHUFFLE)
        self._dataset = split_dataset_by_node(
            shuffled, rank=place.rank, world_size=place.world_size
        )
        self._loader = StatefulDataLoader(
            self._dataset, batch_size=place.batch_size, num_workers=WORKERS
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._dataset.set_epoch(number)
        for batch in self._loader:
            yield batch["cls"].tolist()

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(self.own_or_any(states))


class OneShardLoader(HuggingFaceLoader):
    """Its shuffle buffer takes samples of one shard after the other, not of ten at once."""

    SHUFFLE: Mapping[str, int] = {"max_buffer_input_shards": 1}
