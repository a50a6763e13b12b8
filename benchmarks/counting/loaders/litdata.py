"""LitData: `state_dict` of the StreamingDataLoader."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import litdata

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import SAMPLES, SHARDS, samples


def _rows(_: int) -> Iterator[dict[str, Any]]:
    for number, jpeg in samples():
        yield {"number": number, "image": jpeg}


class LitDataLoader(Loader):
    DISTRIBUTION = "litdata"
    MEANS = "`state_dict` of each rank"

    @staticmethod
    def prepare(folder: Path) -> None:
        litdata.optimize(
            fn=_rows,
            inputs=[0],
            output_dir=str(folder),
            chunk_size=SAMPLES // SHARDS,
            num_workers=1,
            start_method="fork",
        )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        dataset = litdata.StreamingDataset(
            str(place.folder),
            shuffle=True,
            seed=SEED,
            drop_last=True,
            transform=itemgetter("number"),
        )
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=place.batch_size, num_workers=WORKERS
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch.tolist()

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(self.own_or_any(states))
