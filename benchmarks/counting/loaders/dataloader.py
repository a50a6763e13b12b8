"""torch's DataLoader, which has no state, and torchdata's StatefulDataLoader, both with torch's DistributedSampler."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import samples


class Files(Dataset):
    """A folder of numbered JPEGs; an item is its number."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> int:
        path = self._paths[index]
        path.read_bytes()
        return int(path.stem)


class DataLoaderLoader(Loader):
    DISTRIBUTION = "torch"

    @staticmethod
    def prepare(folder: Path) -> None:
        for number, jpeg in samples():
            (folder / f"{number:06d}.jpg").write_bytes(jpeg)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        dataset = Files(place.folder)
        self._sampler = DistributedSampler(
            dataset, place.world_size, place.rank, seed=SEED
        )
        self._loader = self.open(dataset, self._sampler)

    def open(self, dataset: Dataset, sampler: DistributedSampler) -> Any:
        return DataLoader(
            dataset, self.place.batch_size, sampler=sampler, num_workers=WORKERS
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        self._sampler.set_epoch(number)
        for numbers in self._loader:
            yield numbers.tolist()


class StatefulLoader(DataLoaderLoader):
    DISTRIBUTION = "torchdata"
    MEANS = "`state_dict` of each rank"

    def open(self, dataset: Dataset, sampler: DistributedSampler) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(
            dataset, self.place.batch_size, sampler=sampler, num_workers=WORKERS
        )

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(self.own_or_any(states))
