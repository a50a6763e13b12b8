"""What lies beside the shards for other readers: DALI's index of each, and timm's description of the split."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuload.disk.manifest import Manifest
from gpuload.disk.tar import Member, split_name

VERSION = "v1.2"  # of DALI's index, which DALI's own reader and `wds2idx` use
TIMM_NAME = "_info.json"  # with which timm's `create_dataset("wds/", folder)` reads the shards


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


def write_timm_info(folder: Path, manifest: Manifest) -> None:
    """Writes the description of one split, named after the folder, with the keys that timm's `reader_wds.py` reads."""
    split = {
        "name": folder.name,
        "num_samples": manifest.samples,
        "filenames": [shard.name for shard in manifest.shards],
        "shard_lengths": [shard.samples for shard in manifest.shards],
    }
    (folder / TIMM_NAME).write_text(json.dumps({"splits": {folder.name: split}}, indent=1) + "\n", encoding="utf-8")
