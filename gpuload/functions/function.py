"""`Function`: a user function among the transforms of an `Augment`."""

import inspect
from typing import Annotated, Any

from gpuload.checks import FLAG, Rule, settings, whole
from gpuload.errors import ArgumentError
from gpuload.functions.adapters import Albumentations, Torchvision
from gpuload.functions.interface import SampleFunction, name_of

_ADAPTERS: dict[str, type[Any]] = {"albumentations": Albumentations, "torchvision": Torchvision}


def _as_function(value: Any) -> SampleFunction:
    """The function itself, or an adapter for a transform of a known library.

    Raises:
        ArgumentError: it does not take two arguments. TypeError: it cannot be called.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError
    if isinstance(value, Albumentations | Torchvision):
        return value
    adapter = _ADAPTERS.get(type(value).__module__.partition(".")[0])
    if adapter is not None:
        adapted: SampleFunction = adapter(value)
        return adapted
    try:
        inspect.signature(value).bind({}, None)
    except TypeError:
        raise ArgumentError(
            f"Function(function): {name_of(value)} must accept (sample, rng), but takes "
            f"{inspect.signature(value)}. Give it these two arguments"
        ) from None
    except ValueError:  # no signature, as some built-in functions
        pass
    function: SampleFunction = value
    return function


_FUNCTION = Rule("a function f(sample, rng), or a transform of torchvision or Albumentations", _as_function)


@settings
class Function:
    """Your own function in `Augment(transforms=[Function(f), …])`, called on the CPU for each sample.

    An `Augment` has at most one, first in the list, since flips and all other transforms follow it.

    function: f(sample, rng), or a transform of torchvision's v2 or of Albumentations. It gets a dict with the image, of
        the set's type, boxes, masks and keypoints, and returns the image or a dict of the changed entries (see
        `gpuload.functions`).
    before_crop: if False, it gets the cropped and resized image and must keep its size. If True, it gets the whole
        decoded image and may change its size; crop and resize follow.
    processes: the number of processes that call it, for a function that holds the GIL. It must then be picklable, such
        as a function of a module. 0: the loader's num_threads threads call it. All functions of a loader have the same
        number.

    Raises:
        ArgumentError: it cannot be called with (sample, rng).
    """

    function: Annotated[SampleFunction, _FUNCTION]
    before_crop: Annotated[bool, FLAG] = False
    processes: Annotated[int, whole(0, 4096)] = 0
