"""What a training loop may expect of a loader: one contract, for torch's DataLoader, torchdata's and gpuload's.

That the same checks pass for all of them is what "replaces a DataLoader" means.
"""

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import load
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import Stateful, StatefulDataLoader
from tqdm import tqdm

import gpuload

# torchdata 0.11 calls it in its constructor; newer versions of torch deprecate it.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SAMPLES, SIZE = 97, 12
Make = Callable[..., Any]  # (batch_size, shuffle, drop_last) -> a loader of (images, index)


def make_torch(cls: type[DataLoader[Any]], _: Path) -> Make:
    data = TensorDataset(torch.zeros(SAMPLES, 3, SIZE, SIZE), torch.arange(SAMPLES))
    return lambda batch_size, shuffle, drop_last: cls(
        data, batch_size, shuffle, drop_last=drop_last, generator=torch.Generator().manual_seed(0)
    )


def make_gpuload(decoder: Any, packed: Path) -> Make:
    options: dict[str, Any] = {"decoder": decoder, "augment": gpuload.Augment(SIZE), "fields": ("image", "index")}
    return lambda batch_size, shuffle, drop_last: load(
        packed, batch_size, shuffle=shuffle, drop_last=drop_last, **options
    )


LOADERS: dict[str, Callable[[Path], Make]] = {
    "DataLoader": partial(make_torch, DataLoader),
    "StatefulDataLoader": partial(make_torch, StatefulDataLoader),
    "gpuload-dali": partial(make_gpuload, "dali"),
    "gpuload-turbo": partial(make_gpuload, "native"),
    "gpuload-both": partial(make_gpuload, "both"),
}


def seen(batches: Any) -> list[int]:
    return [int(i) for _, index in batches for i in index]


def check_epochs(make: Make) -> None:
    """Length, sizes, order, and what a batch is; the same in each epoch."""
    for batch_size, drop_last, sizes in (
        (16, True, [16] * 6),
        (16, False, [16] * 6 + [1]),
        (97, True, [97]),
        (97, False, [97]),
        (100, False, [97]),
        (1, True, [1] * 97),
    ):
        loader = make(batch_size, False, drop_last)
        assert (loader.batch_size, loader.drop_last, len(loader.dataset)) == (batch_size, drop_last, SAMPLES)
        assert hasattr(loader, "sampler") and hasattr(loader, "batch_sampler")  # which training loops ask for
        for _ in range(2):
            assert len(loader) == len(sizes)
            batches = list(loader)
            assert [len(index) for _, index in batches] == sizes
            assert seen(batches) == list(range(sum(sizes)))
            for batch in batches:
                images, index = batch
                assert len(batch) == 2
                assert images.shape == (len(index), 3, SIZE, SIZE) and images.dtype == torch.float32
                assert index.shape == (len(index),) and index.dtype == torch.int64
                assert images.device == index.device == torch.device("cpu")


def check_shuffle(make: Make) -> None:
    """Each epoch holds each sample once, in an order of its own; an equal loader repeats them."""
    loader, again = make(16, True, False), make(16, True, False)
    orders = [seen(loader) for _ in range(3)]
    assert all(sorted(order) == list(range(SAMPLES)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(SAMPLES)]}) == 4
    assert [seen(again) for _ in range(3)] == orders


def check_loops(make: Make) -> None:
    """Leaving one early, counting its batches, iter() without a batch: what follows is a whole epoch."""
    loader = make(16, False, False)
    for _ in loader:
        break
    assert seen(loader) == list(range(SAMPLES))
    for _ in range(2):
        assert seen(batch for _, batch in zip(range(len(loader)), loader, strict=False)) == list(range(SAMPLES))
    iter(loader), iter(loader)
    assert seen(loader) == list(range(SAMPLES))
    iterator = iter(loader)
    assert iter(iterator) is iterator
    assert len(list(iterator)) == 7
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert seen(tqdm(loader, disable=True)) == list(range(SAMPLES))
    assert tqdm(loader, disable=None).total == 7


def check_batches_are_ones_own(make: Make) -> None:
    """Kept batches are not written over by later ones, and one may write into them."""
    loader = make(8, True, True)
    kept = [(images, images.clone()) for images, _ in loader]
    list(loader)
    assert all(torch.equal(images, copy) for images, copy in kept)
    for images, _ in loader:
        images.mul_(2)


def check_resume(make: Make) -> None:
    """A loader that loads a state resumes after the last batch; then a whole epoch follows."""
    for shuffle in (False, True):
        for batches in (1, 3, 6):
            loader, fresh = make(16, shuffle, False), make(16, shuffle, False)
            assert isinstance(loader, Stateful)
            whole = seen(make(16, shuffle, False))
            iterator = iter(loader)
            first = seen(next(iterator) for _ in range(batches))
            state = loader.state_dict()
            assert first + seen(iterator) == whole
            fresh.load_state_dict(state)
            assert seen(fresh) == whole[16 * batches :]
            assert sorted(seen(fresh)) == list(range(SAMPLES))
    loader, fresh = make(16, True, False), make(16, True, False)
    seen(loader)
    fresh.load_state_dict(loader.state_dict())  # taken between two epochs
    assert len(seen(fresh)) == SAMPLES


def check_end(make: Make) -> None:
    """A loader that was left in mid-epoch and is no longer used goes, with its threads."""
    before = set(threading.enumerate())
    loader = make(16, True, True)
    images, _ = next(iter(loader))
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    for thread in set(threading.enumerate()) - before:  # a pool's threads end on their own
        thread.join(600)  # the first loader on a machine compiles meanwhile
        assert not thread.is_alive()
    assert images.isfinite().all()  # a batch outlives its loader


CHECKS = [check_epochs, check_shuffle, check_loops, check_batches_are_ones_own, check_end, check_resume]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", LOADERS)
def test_contract(packed: Path, name: str, check: Callable[[Make], None]) -> None:
    if check is not check_resume or name != "DataLoader":  # which has no state
        check(LOADERS[name](packed))
