"""MosaicML Streaming: `state_dict` of the loader of rank 0, which every rank loads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

try:
    import torchvision  # noqa: F401
except (
    RuntimeError
):  # PyPI's CUDA build beside a CPU build of torch; none of its operators is used
    import torchvision_anywhere  # noqa: F401
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from counting.loaders import SEED, WORKERS, Loader, Place
from counting.samples import SHARDS, samples


class StreamingLoader(Loader):
    DISTRIBUTION = "mosaicml-streaming"
    MEANS = "`state_dict` of rank 0"

    @staticmethod
    def prepare(folder: Path) -> None:
        columns = {"number": "int", "image": "bytes"}
        limit = sum(len(jpeg) + 64 for _, jpeg in samples()) // SHARDS
        with MDSWriter(
            out=str(folder), columns=columns, size_limit=limit, progress_bar=False
        ) as writer:
            for number, jpeg in samples():
                writer.write({"number": number, "image": jpeg})

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        clean_stale_shared_memory()  # left by processes that were killed
        dataset = StreamingDataset(
            local=str(place.folder),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=place.batch_size,
        )
        self._loader = StreamingDataLoader(
            dataset, batch_size=place.batch_size, num_workers=WORKERS
        )

    def epoch(self, number: int) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch["number"].tolist()

    def state(self) -> Any:
        return self._loader.state_dict()

    def load(self, states: Sequence[Any]) -> None:
        self._loader.load_state_dict(states[0])
