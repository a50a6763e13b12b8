"""What is drawn for a function of the user's: the key of each sample's generator."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuload.draws import FUNCTION, each_key, make_key, random_bits
from gpuload.types import I32, I64, U64

if TYPE_CHECKING:
    from gpuload.augment.augment import Augment
    from gpuload.augment.crops import Crops

_WORD = 0xFFFFFFFFFFFFFFFF


class PlannedFunction(NamedTuple):
    """A function that is to be called for each of N images of a view.

    augment: whose function it is. view: the number of the view. keys: uint64 (N, 2), the key of each sample's
    generator.
    origin: uint64 (N, 3), the seed, the epoch and the repeat that the view was drawn with.
    """

    augment: "Augment"
    view: int
    keys: U64
    origin: U64

    def select(self, rows: I64 | slice) -> "PlannedFunction":
        """The same for some of the images."""
        return PlannedFunction(self.augment, self.view, self.keys[rows], self.origin[rows])

    def crop(self, row: int, sample: int, height: int, width: int) -> "Crops":
        """The crop and flips of one image, as they are drawn for an image of this size: N = 1."""
        seed, epoch, repeat = self.origin[row].tolist()
        sides = np.array([width, height], np.int32)
        widths: I32 = sides[:1]
        drawn = self.augment.only_crops.draw(
            seed, epoch, np.array([sample]), widths, sides[1:], self.view, np.array([repeat], np.int64)
        )
        return drawn.crops


def plan_function(
    augment: "Augment", seed: int, epoch: int, samples: I64, view: int, repeats: I64 | None
) -> PlannedFunction:
    """The arguments are those of `Augment.draw`."""
    key = np.asarray(each_key(make_key(seed, epoch, FUNCTION, view), repeats), np.uint64)
    keys = random_bits(key[..., None] if key.ndim else int(key), 2 * samples[:, None] + np.arange(2))
    origin = np.empty((len(samples), 3), np.uint64)
    origin[:] = seed & _WORD, epoch & _WORD, 0
    if repeats is not None:
        origin[:, 2] = repeats
    return PlannedFunction(augment, view, keys, origin)
