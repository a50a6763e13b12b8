"""DALI's index of one shard, `shard-000000.idx`, in format v1.2, which DALI's own reader and `wds2idx` use."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuload.disk.tar import Member, split_name

VERSION = "v1.2"


def dali_index_text(samples: Iterable[Sequence[Member]]) -> str:
    """A line with version and sample count, then one line per sample: extension, offset, size, name of each member.

    Names must not contain white space, at which DALI splits the lines.
    """
    lines = [
        " ".join(f"{split_name(name)[1]} {offset} {size} {name}" for name, offset, size in members)
        for members in samples
    ]
    return "\n".join([f"{VERSION} {len(lines)}", *lines]) + "\n"


def dali_index_path(shard: Path) -> Path:
    """Path of a shard's index: beside the shard, with the extension `.idx`."""
    return shard.with_suffix(".idx")
