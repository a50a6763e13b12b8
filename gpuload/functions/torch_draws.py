"""Gives torch's random functions a generator of the calling thread in place of the shared one.

torch's default generator belongs to the process, so threads that seed and use it would change each other's numbers. A
torch function mode belongs to one thread and passes a generator to each function that draws.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Functions that draw and take a generator.
_OF_TENSORS = (
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
    "bernoulli_",
)
_OF_TORCH = ("rand", "randn", "randint", "randperm", "normal", "poisson")
_OF_BOTH = ("bernoulli", "multinomial")
_DRAWING = {getattr(torch.Tensor, name) for name in _OF_TENSORS + _OF_BOTH}
_DRAWING |= {getattr(torch, name) for name in _OF_TORCH + _OF_BOTH}
_LIKE: dict[Any, Callable[..., Any]] = {
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
}


class _Draws(TorchFunctionMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _LIKE:
            like = args[0]
            options = {
                "dtype": like.dtype,
                "device": like.device,
                "generator": self._generator,
                **options,
            }
            options.pop("memory_format", None)
            return _LIKE[func](like.shape, **options)
        if func in _DRAWING and options.get("generator") is None:
            options["generator"] = self._generator
        return func(*args, **options)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which torch's CPU draws in this thread are a pure function of the seed."""
    with _Draws(torch.Generator().manual_seed(seed)):
        yield
