"""FFCV, which has no state."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ffcv.fields import BytesField, IntField
from ffcv.fields.decoders import IntDecoder
from ffcv.loader import Loader as BetonLoader
from ffcv.loader import OrderOption
from ffcv.transforms import Squeeze, ToTensor
from ffcv.writer import DatasetWriter

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import samples


class FfcvLoader(Loader):
    DISTRIBUTION = "ffcv"

    @staticmethod
    def prepare(folder: Path) -> None:
        rows = [(np.frombuffer(jpeg, np.uint8), number) for number, jpeg in samples()]
        writer = DatasetWriter(
            str(folder / "set.beton"),
            {"image": BytesField(), "number": IntField()},
            num_workers=1,
        )
        writer.from_indexed_dataset(rows)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loader = BetonLoader(
            str(place.folder / "set.beton"),
            batch_size=place.batch_size,
            num_workers=WORKERS,
            order=OrderOption.RANDOM,
            seed=SEED,
            distributed=place.world_size > 1,
            drop_last=False,
            pipelines={"image": None, "number": [IntDecoder(), ToTensor(), Squeeze()]},
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._loader.next_epoch = number
        for (numbers,) in self._loader:
            yield numbers.flatten().tolist()
