"""What training loops find under the name of a DataLoader's sampler."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from gpuload import checks
from gpuload.checks import whole


class Sampler:
    """The part of a DataLoader's sampler that training loops use.

    The length is a rank's share of an epoch's samples, rounded up as by a `DistributedSampler`.

    Args:
        move_on: Makes an epoch the loader's next one, unless the loader is there or beyond, or a position was loaded.
        samples: The length.
    """

    def __init__(self, move_on: Callable[[int], None], samples: int) -> None:
        self._move_on = move_on
        self._samples = samples

    @checks.checked("DaliIterator.sampler.set_epoch", epoch=whole(0, 10**9))
    def set_epoch(self, epoch: int) -> None:
        """Tells the loader which epoch of the training loop comes next.

        Args:
            epoch: Its number, from 0.
        """
        self._move_on(epoch)

    def __len__(self) -> int:
        return self._samples


def make_sampler(
    move_on: Callable[[int], None], samples: int, shuffle: bool
) -> Sampler:
    """The sampler of a loader. Without shuffling it is a `SequentialSampler` of torch, too, if torch is imported: by
    that Lightning's `overfit_batches` knows that each epoch begins with the same batches."""
    if shuffle or "torch" not in sys.modules:
        return Sampler(move_on, samples)
    return _sequential_type()(move_on, samples)


@cache
def _sequential_type() -> type[Sampler]:
    from torch.utils.data import SequentialSampler

    class StoredOrder(Sampler, SequentialSampler):
        def __iter__(self) -> Iterator[Any]:
            return iter(range(len(self)))

    return StoredOrder
