"""How a loader orders and draws its samples, as its user says it."""

from typing import Annotated, Any

import numpy as np

from gpuload.checks import COUNT, FLAG, Rule, optional, settings, shown, text, whole
from gpuload.errors import ArgumentError
from gpuload.order.drawn import MOST_DRAWS

_DRAWS = optional(whole(1, MOST_DRAWS))


@settings
class Shuffle:
    """How the samples of a pass are mixed: `DaliIterator(shuffle=Shuffle(window=16))`.

    window: shards whose samples are mixed with one another at a time. More shards mix better and take more memory.
    lanes: for several nodes that read a set at a URL. The shards are divided among this many lanes, each mixed in
        windows of its own, and each batch of all ranks takes equally many samples of every lane. Where the number of
        ranks divides `lanes`, which divides the samples of a step over all ranks, each rank reads its own lanes alone;
        a rank's samples of a short last batch may then be up to lanes / world_size more than another's. The order does
        not depend on the ranks. Not for mixtures and not with `sampling`.

    Raises:
        ArgumentError: a value that is not a whole number of at least 1.
    """

    window: Annotated[int, COUNT] = 8
    lanes: Annotated[int, COUNT] = 1


@settings
class Balance:
    """Draws each class equally often: `DaliIterator(sampling=Balance("label"))`. A pass has as many samples of each
    class, or one more.

    field: the name of a field of classes.
    replacement: whether a sample may come several times in a pass, as with torch's `WeightedRandomSampler`. False needs
        num_samples.
    num_samples: samples in a pass over all ranks; by default as many as the data has.

    A sample that comes again in a pass has other crops. Order and counts do not depend on ranks and batch size, and
    mid-epoch resume is exact. A pass costs O(samples) once, and 4 bytes of memory for each sample.

    Raises:
        ArgumentError: a value out of its range; replacement=False without num_samples.
    """

    field: Annotated[str, text("the name of a field of classes, such as 'label'")]
    replacement: Annotated[bool, FLAG] = True
    num_samples: Annotated[int | None, _DRAWS] = None

    def __post_init__(self) -> None:
        _check_draws(self)


def _as_weights(value: Any) -> Any:
    """The name of a field, or an array, which is looked at with the data."""
    is_array = isinstance(value, list | tuple) or (hasattr(value, "__array__") and not isinstance(value, np.generic))
    if isinstance(value, type) or not (is_array or (isinstance(value, str) and value)):
        raise TypeError
    return value


@settings
class Weights:
    """Draws samples in proportion to weights: `DaliIterator(sampling=Weights("weight"))`. A sample of which 2.3 are
    expected in a pass comes 2 or 3 times.

    weights: the name of a field of numbers, or an array (len(data),), for a mixture of all its samples, one data set
        after another.
    replacement, num_samples: as for `Balance`. A pass takes 16 bytes of memory for each sample.

    Raises:
        ArgumentError: a value out of its range; replacement=False without num_samples.
    """

    weights: Annotated[Any, Rule("the name of a field of numbers, or one number for each sample", _as_weights)]
    replacement: Annotated[bool, FLAG] = True
    num_samples: Annotated[int | None, _DRAWS] = None

    def __post_init__(self) -> None:
        _check_draws(self)

    __eq__, __hash__ = object.__eq__, object.__hash__  # arrays have no truth value

    def __repr__(self) -> str:
        return f"Weights({shown(self.weights)}, replacement={self.replacement}, num_samples={self.num_samples})"


@settings
class Repeated:
    """Shows each sample several times in a row, with other crops, on other ranks: `DaliIterator(sampling=Repeated(3))`.

    times: how often, on as many ranks where there are as many, as DeiT's and torchvision's `RASampler` does.

    An epoch still has as many samples as the data, so that it holds a part of them, and the next epochs the others:
    with 3, each comes thrice in three epochs. Order and crops do not depend on ranks and batch size, and mid-epoch
    resume is exact. Not for mixtures, buckets, lanes and drop_last="even".

    Raises:
        ArgumentError: a value that is not in 2..64.
    """

    times: Annotated[int, whole(2, 64)] = 3

    num_samples = None  # in an epoch: as many as the data has


Sampled = Balance | Weights


def _check_draws(sampling: Sampled) -> None:
    if not sampling.replacement and sampling.num_samples is None:
        raise ArgumentError(
            f"{type(sampling).__name__}(replacement=False): draws each sample once at most, and so needs num_samples, "
            "the number of samples in a pass"
        )
