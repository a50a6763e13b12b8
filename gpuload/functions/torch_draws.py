"""torch's random numbers from a generator of the calling thread's, in place of the one that all threads share.

torch's default generator is one for the process, so that threads which seed and use it in turn change each other's
numbers. A mode for torch's functions belongs to one thread, and hands each of them that draws a generator of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What draws, and takes a generator.
_DRAWING = {
    getattr(owner, name)
    for owner, names in (
        (torch, ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson")),
        (
            torch.Tensor,
            (
                "bernoulli",
                "bernoulli_",
                "cauchy_",
                "exponential_",
                "geometric_",
                "log_normal_",
                "multinomial",
                "normal_",
                "random_",
                "uniform_",
            ),
        ),
    )
    for name in names
}
_LIKE: dict[Any, Callable[..., Any]] = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}


class _Draws(TorchFunctionMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _LIKE:
            like = args[0]
            given = {"dtype": like.dtype, "device": like.device, "generator": self._generator, **given}
            given.pop("memory_format", None)
            return _LIKE[func](like.shape, **given)
        if func in _DRAWING and given.get("generator") is None:
            given["generator"] = self._generator
        return func(*args, **given)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it, what torch's functions draw in this thread, on the CPU, is a pure function of the seed."""
    with _Draws(torch.Generator().manual_seed(seed)):
        yield
