"""webdataset, which has no state."""

from collections.abc import Iterator
from pathlib import Path

import webdataset as wds

from counting.loaders import BUFFER, SEED, WORKERS, Loader
from counting.samples import tars, write_tars


class WebdatasetLoader(Loader):
    DISTRIBUTION = "webdataset"

    @staticmethod
    def prepare(folder: Path) -> None:
        write_tars(folder)

    def epoch(self, number: int) -> Iterator[list[int]]:
        dataset = (
            wds.WebDataset(
                tars(self.place.folder),
                nodesplitter=wds.split_by_node,
                shardshuffle=100,
                seed=SEED + number,
            )
            .shuffle(BUFFER)
            .to_tuple("cls")
            .batched(self.place.batch_size)
        )
        for (numbers,) in wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS):
            yield [int(text) for text in numbers]
