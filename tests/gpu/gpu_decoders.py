"""The decoders under test, the reference, and what tests need of a GPU."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gpuload

Load = Callable[..., gpuload.DaliIterator]

REFERENCE = {"device": "cpu", "decoder": "dali"}
# By name: options of DaliIterator. On a GPU, hw_decoder_load shares the images between the engines and CUDA's cores.
DECODERS: dict[str, dict[str, Any]] = {
    "native": {"device": "cpu", "decoder": "native"},
    "cuda": {"device": "cuda", "decoder": gpuload.Dali(hardware=0.0)},
    "hardware": {"device": "cuda", "decoder": gpuload.Dali(hardware=1.0)},
    "default": {"device": "cuda", "decoder": "dali"},
    "copied": {"device": "cuda", "decoder": "native"},
    "both": {"device": "cuda", "decoder": gpuload.Both(cpu=0.5)},
}


def deterministic(name: str) -> dict[str, Any]:
    """The options of a decoder, with one unit for all images that DALI decodes."""
    decoder = DECODERS[name]["decoder"]
    one = decoder if isinstance(decoder, str) else dataclasses.replace(decoder, deterministic=True)
    return {**DECODERS[name], "decoder": one}


def params(*names: str) -> list[Any]:
    return [name if name == "native" else pytest.param(name, marks=pytest.mark.gpu) for name in names]


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def delay(device: str) -> None:
    """Keeps the current stream of a GPU busy for some milliseconds, so that what follows comes late."""
    if device == "cuda":
        torch.cuda._sleep(10_000_000)  # clock cycles; torch's own tests of streams do the same
