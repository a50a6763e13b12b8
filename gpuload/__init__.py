"""gpuload: packs images into WebDataset shards and feeds training from them, decoded and cropped on the GPU.

    python -m gpuload pack photos shards --val 0.1

    for images, labels in gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224)):
        ...

Importing gpuload loads neither DALI nor torch nor CuPy; `DaliIterator` does when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuload.augment import Augment
from gpuload.dataset import Dataset
from gpuload.errors import (
    ArgumentError,
    DecodeError,
    DeviceError,
    FormatError,
    GpuloadError,
    MissingPackageError,
    OutputError,
    ShardError,
    SourceError,
    StateError,
)
from gpuload.mixture import Mixture, mix

if TYPE_CHECKING:
    from gpuload.iterator import DaliIterator

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Augment",
    "DaliIterator",
    "Dataset",
    "DecodeError",
    "DeviceError",
    "FormatError",
    "GpuloadError",
    "MissingPackageError",
    "Mixture",
    "OutputError",
    "ShardError",
    "SourceError",
    "StateError",
    "mix",
]


def __getattr__(name: str) -> Any:
    if name == "DaliIterator":
        return import_module("gpuload.iterator").DaliIterator
    raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
