"""What a user gives as a function, as one of (sample, rng)."""

import inspect
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.functions.albumentations import Albumentations
from gpuload.functions.interface import SampleFunction, name_of
from gpuload.functions.torchvision import Torchvision

_ADAPTERS: dict[str, type[Any]] = {"albumentations": Albumentations, "torchvision": Torchvision}


def as_function(value: Any) -> SampleFunction:
    """A function as it is; a transform of a known library in its adapter.

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
            f"Augment(function): {name_of(value)} is to be called with (sample, rng), and takes "
            f"{inspect.signature(value)}. Give it these two arguments"
        ) from None
    except ValueError:  # no signature, as some built-in functions
        pass
    function: SampleFunction = value
    return function
