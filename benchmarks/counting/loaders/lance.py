"""LanceDB: the states of all ranks, merged. Its threads read ahead; a DataLoader without workers collates."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lancedb
from lancedb.streaming import StreamingDataset
from torch.utils.data import DataLoader

from counting.loaders import GLOBAL_BATCH, SEED, Loader, Place
from counting.samples import samples


class LanceLoader(Loader):
    DISTRIBUTION = "lancedb"
    MEANS = "`merge_state_dicts` of all ranks"

    @staticmethod
    def prepare(folder: Path) -> None:
        rows = [{"number": number, "image": jpeg} for number, jpeg in samples()]
        lancedb.connect(folder).create_table("samples", rows)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._table = lancedb.connect(place.folder).open_table("samples")
        self._dataset: Any = None
        self._state: Any = None

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._dataset = StreamingDataset(
            self._table,
            num_splits=GLOBAL_BATCH,  # so that a state may be saved after each step
            shuffle_seed=SEED,
            epoch=number,
            rank=self.place.rank,
            world_size=self.place.world_size,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        for batch in DataLoader(self._dataset, batch_size=self.place.batch_size):
            yield batch["number"].tolist()

    def state(self) -> Any:
        return self._dataset.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._state = StreamingDataset.merge_state_dicts(list(states))
