"""Any store of shards gives the same epochs; the reader tells it what will be needed."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from loaders import drain, load

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.store import FolderStore, Lease


class Fake(FolderStore):
    """Shards in memory. Of those that are planned, the next few are ready."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths)
        self.planned, self.opened, self.closed, self.begun = list[int](), list[int](), 0, 0

    def begin(self) -> None:
        self.begun += 1

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        self.planned = [int(number) for number in numbers]

    def ready(self, number: int) -> bool:
        return number in self.planned[:4]

    def open(self, number: int) -> Lease:
        self.opened.append(number)
        handle = os.memfd_create("shard")
        os.write(handle, super().open(number).path.read_bytes())
        return Lease(Path(f"/proc/self/fd/{handle}"))

    def close(self) -> None:
        self.closed += 1


def test_an_epoch_from_a_store(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(packed, 8, drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        expected = [drain([loader]), drain([loader])]
    store = Fake(gpuload.Dataset(packed).shard_paths)  # type: ignore[arg-type]
    monkeypatch.setattr(gpuload.Dataset, "open_store", lambda dataset, trusts: store)
    with load(packed, 8, drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        assert [drain([loader]), drain([loader])] == expected
        assert sorted(set(store.opened)) == list(range(10))
        sizes = loader.dataset.shard_sizes
    # The 97 samples of an epoch are read at once: all of its shards were planned, and those of the next.
    orders = [EpochOrder(sizes, seed=0, epoch=epoch, window=3) for epoch in (1, 2)]
    assert store.planned == [shard for order in orders for window in range(4) for shard in order.window_shards(window)]
    assert (store.begun, store.closed) == (2, 1)
