"""gpuload packs images into WebDataset shards and loads them for training, decoded and cropped on the GPU.

    python -m gpuload pack photos shards --val 0.1

    for images, labels in gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224)):
        ...

`gpuload.sources` says what can be packed, `gpuload.formats` which files are images, and `gpuload.testing` tests what
others add to them.
`gpuload.transforms` holds augmentations of single images, `gpuload.batchwise` those of whole batches, and
`gpuload.functions` describes your own functions.

Importing gpuload imports neither DALI nor torch nor CuPy; `DaliIterator` imports them when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuload.errors import (
    ArgumentError,
    DecodeError,
    DeviceError,
    FormatError,
    FunctionError,
    GpuloadError,
)
from gpuload.errors import (
    MissingPackageError,
    OutputError,
    RemoteError,
    ShardError,
    SourceError,
    StateError,
)
from gpuload.machine.installed import paused_collector

if TYPE_CHECKING:
    from gpuload import batchwise, formats, functions, monitor, sources
    from gpuload import testing as testing
    from gpuload import transforms
    from gpuload.augment import (
        Augment,
        CenterCrop,
        Cover,
        Letterbox,
        Normalize,
        PadOrCrop,
        Patches,
        RandomCrop,
    )
    from gpuload.augment import RandomResizedCrop, Resize, ScaleJitter, Stretch, ZoomOut
    from gpuload.decode.arguments import Both, Dali, OnCorrupt
    from gpuload.decoded_copies.build import decoded
    from gpuload.disk.dataset import Dataset
    from gpuload.disk.fetch import fetch
    from gpuload.formats.codec import Codec
    from gpuload.fields.captions import Captions
    from gpuload.fields.images import Mask
    from gpuload.fields.maps import Depth, Disparity, Flow, InstanceMap, Matte
    from gpuload.fields.maps import Normals, Picture
    from gpuload.fields.picture_lists import Pictures
    from gpuload.fields.numbers import MultiHot, OneHot, Tokens
    from gpuload.fields.boxes import Boxes
    from gpuload.fields.keypoints import Keypoints
    from gpuload.fields.targets import Target
    from gpuload.loader.iterator import DaliIterator
    from gpuload.order.arguments import Balance, Buckets, Mixture, Repeated
    from gpuload.order.arguments import Shuffle, Weights, mix
    from gpuload.order.budget import Budget
    from gpuload.packing.index import index_shards as index
    from gpuload.packing.packer import pack
    from gpuload.packing.verify import verify
    from gpuload.sources.source import FilesSource, Sight, Source

__version__ = "0.1.0"

# Imported on first use, so that the packer's workers need not wait for them: names by their module below gpuload.
_LAZY = {
    "augment": "Augment CenterCrop Cover Letterbox Normalize PadOrCrop Patches RandomCrop RandomResizedCrop Resize "
    "ScaleJitter Stretch ZoomOut",
    "decode.arguments": "Both Dali OnCorrupt",
    "decoded_copies.build": "decoded",
    "disk.dataset": "Dataset",
    "disk.fetch": "fetch",
    "formats.codec": "Codec",
    "fields.captions": "Captions",
    "fields.images": "Mask",
    "fields.maps": "Depth Disparity Flow InstanceMap Matte Normals Picture",
    "fields.picture_lists": "Pictures",
    "fields.numbers": "MultiHot OneHot Tokens",
    "fields.boxes": "Boxes",
    "fields.keypoints": "Keypoints",
    "fields.targets": "Target",
    "loader.iterator": "DaliIterator",
    "order.budget": "Budget",
    "order.arguments": "Balance Buckets Mixture Repeated Shuffle Weights mix",
    "packing.index": "index",
    "packing.packer": "pack",
    "packing.verify": "verify",
    "sources.source": "FilesSource Sight Source",
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}

_LONGER_NAMES = {"index": "index_shards"}  # in their modules

__all__ = [
    "ArgumentError",
    "Augment",
    "Balance",
    "Both",
    "Boxes",
    "Buckets",
    "Budget",
    "Captions",
    "CenterCrop",
    "Codec",
    "Cover",
    "Dali",
    "DaliIterator",
    "Dataset",
    "DecodeError",
    "Depth",
    "DeviceError",
    "Disparity",
    "FilesSource",
    "Flow",
    "FormatError",
    "FunctionError",
    "GpuloadError",
    "InstanceMap",
    "Keypoints",
    "Letterbox",
    "Mask",
    "Matte",
    "MissingPackageError",
    "Mixture",
    "MultiHot",
    "Normalize",
    "Normals",
    "OnCorrupt",
    "OneHot",
    "OutputError",
    "PadOrCrop",
    "Patches",
    "Picture",
    "Pictures",
    "RandomCrop",
    "RandomResizedCrop",
    "RemoteError",
    "Repeated",
    "Resize",
    "ScaleJitter",
    "ShardError",
    "Shuffle",
    "Sight",
    "Source",
    "SourceError",
    "StateError",
    "Stretch",
    "Target",
    "Tokens",
    "Weights",
    "ZoomOut",
    "batchwise",
    "decoded",
    "fetch",
    "formats",
    "functions",
    "index",
    "mix",
    "monitor",
    "pack",
    "sources",
    "transforms",
    "verify",
]


def __getattr__(name: str) -> Any:
    # `testing` is no part of `from gpuload import *`: it needs pytest.
    if name not in __all__ and name != "testing":
        raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
    with paused_collector():
        module = import_module(f"gpuload.{_MODULES.get(name, name)}")
    if name not in _MODULES:
        return module
    return getattr(module, _LONGER_NAMES.get(name, name))
