"""TurboLoader: `state_dict` of each rank."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import turboloader

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import write_tars


class TurboLoader(Loader):
    DISTRIBUTION = "turboloader"
    MEANS = "`state_dict` of each rank"

    @staticmethod
    def prepare(folder: Path) -> None:
        write_tars(folder, shards=1)  # its loader takes one file

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loader = turboloader.DataLoader(
            str(place.folder / "shard-000000.tar"),
            batch_size=place.batch_size,
            num_workers=WORKERS,
            shuffle=True,
            seed=SEED,
            image_size=16,
            output_format="pytorch",
            enable_distributed=True,
            world_rank=place.rank,
            world_size=place.world_size,
            drop_last=False,
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._loader.set_epoch(number)
        for _, facts in self._loader:
            yield [int(index) for index in facts["indices"]]

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(self.own_or_any(states))
