"""Normal noise on any device: a pure function of a key and a counter, as the numbers of `gpuload.draws`."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# SplitMix64's constants (see gpuload/draws.py), as int64, since torch has no uint64 arithmetic.
_GAMMA, _MIX_1, _MIX_2 = (
    int(np.uint64(constant).astype(np.int64))
    for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def on_device(device: torch.device, numbers: npt.NDArray[Any]) -> torch.Tensor:
    """The same numbers on the device, copied through pinned memory, since other copies would wait for the GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type != "cuda":
        return tensor
    with torch.cuda.device(device):  # else pinning would make a context on GPU 0, in every rank
        return tensor.pin_memory().to(device, non_blocking=True)


def random_bits(key: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """int64, in the common shape of both: the bits of `gpuload.draws.random_bits`. int64 overflows as uint64 does."""
    bits = (counters + 1).mul_(_GAMMA).add_(key)
    bits = bits.bitwise_xor_(_shifted(bits, 30)).mul_(_MIX_1)
    bits = bits.bitwise_xor_(_shifted(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shifted(bits, 31))


def normal_noise(keys: npt.NDArray[np.uint64], sizes: npt.NDArray[np.integer], device: torch.device) -> torch.Tensor:
    """float32 (3, sum of sizes), of mean 0 and variance 1: for each channel `sizes[i]` numbers of key i, then the next.

    keys: (n,). A hash of 64 bits gives 21 bits for each channel, which choose a quantile of the normal distribution, at
    most 5 sigmas.
    """
    total = int(sizes.sum())
    begins = np.cumsum(sizes) - sizes
    key, begin, size = on_device(device, np.stack([keys.view(np.int64), begins, sizes]).astype(np.int64))
    counters = torch.arange(total, device=device)
    if len(sizes) > 1:  # a single one is broadcast
        key, begin = (numbers.repeat_interleave(size, output_size=total) for numbers in (key, begin))
    bits = random_bits(key, counters.sub_(begin))
    parts = torch.stack([_shifted(bits, 43), _shifted(bits, 22) & 0x1FFFFF, _shifted(bits, 1) & 0x1FFFFF])
    centred = (2 * parts + 1 - (1 << 21)).float().mul_(2.0**-21)  # the centre of each of 2**21 parts of -1..1
    return centred.erfinv_().mul_(math.sqrt(2))


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shifted right by so many bits, filled with zeros, as unsigned numbers are."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)
