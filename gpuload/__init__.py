"""gpuload: packs images into WebDataset shards and feeds training from them, decoded and cropped on the GPU.

    python -m gpuload pack photos shards --val 0.1

    for images, labels in gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224)):
        ...

Importing gpuload loads neither DALI nor torch nor CuPy; `DaliIterator` does when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from gpuload.augment import Augment
    from gpuload.dataset import Dataset
    from gpuload.iterator import DaliIterator
    from gpuload.mixture import Mixture, mix
    from gpuload.packing.api import pack

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
    "pack",
]

# Imported when they are first used: a worker of the packer waits for none of them.
_LATER = {
    "Augment": "augment",
    "DaliIterator": "iterator",
    "Dataset": "dataset",
    "Mixture": "mixture",
    "mix": "mixture",
    "pack": "packing.api",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"gpuload.{_LATER[name]}"), name)
    raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
