"""gpuload: `state_dict` of any rank; it names the epoch, too."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import SAMPLES, SHARDS, samples
from gpuload import Augment, DaliIterator, pack


class GpuloadLoader(Loader):
    DISTRIBUTION = "gpuload"
    MEANS = "`state_dict` of any rank"

    @staticmethod
    def prepare(folder: Path) -> None:
        rows = ({"image": jpeg, "label": number} for number, jpeg in samples())
        pack(
            rows,
            folder,
            maxcount=SAMPLES // SHARDS,
            shuffle=False,
            workers=1,
            progress=False,
        )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loader = DaliIterator(
            place.folder / "train",
            place.batch_size,
            augment=Augment(16),
            fields=["image", "label"],
            seed=SEED,
            num_threads=WORKERS,
            device="cpu",
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        if (
            self._loader.state_dict()["epoch"] > number
        ):  # the state was saved after the last batch of this epoch
            return
        for _, labels in self._loader:
            yield labels.tolist()

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(states[0])
