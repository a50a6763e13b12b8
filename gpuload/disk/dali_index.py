"""DALI's index of one shard, `shard-000000.idx`, format v1.2: what DALI's own reader and `wds2idx` use."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuload.disk.tar import Member, split_name

VERSION = "v1.2"


def dali_index_text(samples: Iterable[Sequence[Member]]) -> str:
    """One line a sample: extension, offset, size and name of each member; above them version and count.

    Names may not contain white space: DALI splits the lines at it.
    """
    lines = [
        " ".join(f"{split_name(name)[1]} {offset} {size} {name}" for name, offset, size in members)
        for members in samples
    ]
    return "\n".join([f"{VERSION} {len(lines)}", *lines]) + "\n"


def dali_index_path(shard: Path) -> Path:
    """Where the index of a shard lies: beside it, under its name up to the last dot."""
    return shard.with_suffix(".idx")
