"""What can go wrong, as a tree.

    GpuloadError
    ├── ArgumentError        an argument that cannot be (also a ValueError)
    ├── SourceError          the images or labels given to the packer
    ├── OutputError          the folder that the packer was told to fill
    ├── FormatError          a manifest or index that cannot be read, or of another version
    │   └── ShardError       a shard and its index disagree, or the shard is cut short
    ├── DecodeError          a sample that does not decode
    ├── DeviceError          a device that is not there
    ├── MissingPackageError  a package of an extra that is not installed (also an ImportError)
    └── StateError           a state_dict of another data set or version

Each message is one line: what it is about, what was expected and found, and the next step.
"""

__all__ = [
    "ArgumentError",
    "DecodeError",
    "DeviceError",
    "FormatError",
    "GpuloadError",
    "MissingPackageError",
    "OutputError",
    "ShardError",
    "SourceError",
    "StateError",
    "some_of",
]


class GpuloadError(Exception):
    """Base of all that gpuload raises on purpose."""


class ArgumentError(GpuloadError, ValueError):
    """An argument out of range or in contradiction to another."""


class SourceError(GpuloadError):
    """Images or labels given to the packer are missing or unreadable."""


class OutputError(GpuloadError):
    """The packer's output folder is in use or cannot be written."""


class FormatError(GpuloadError):
    """A manifest or index is missing, damaged or of a version this gpuload does not know."""


class ShardError(FormatError):
    """A shard is missing, cut short, or does not match its index."""


class DecodeError(GpuloadError):
    """A stored image does not decode."""


class DeviceError(GpuloadError):
    """The device asked for does not exist here."""


class MissingPackageError(GpuloadError, ImportError):
    """A package that this part of gpuload needs is not installed."""


class StateError(GpuloadError):
    """A state_dict belongs to another data set, or to another version of gpuload."""


def some_of(names: list[str], count: int = 3) -> str:
    """The first few of these, quoted, for a message: `'a', 'b', 'c' and 4 more`."""
    shown = ", ".join(map(repr, names[:count]))
    return shown if len(names) <= count else f"{shown} and {len(names) - count:,} more"
