"""Packed sets whose index is fetched in parts although it is small, and what is here of it.

As a program: python partial_sets.py URL CACHE LOOPS reads such a set again and again, without its shards.
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import gpuload
from gpuload.disk import fetch


def fetch_in_parts() -> None:
    """In this process, every index is large."""
    fetch.WHOLE_BYTES = 0


def here(dataset: gpuload.Dataset) -> set[int]:
    """The shards whose rows are here."""
    assert dataset.index.parts is not None
    return {number for number in range(len(dataset.shard_paths)) if dataset.index.parts.has(number)}


def older(folder: Path, to: Path, *lacking: str) -> Path:
    """A copy of a set as older versions of gpuload packed it, whose manifests lack some values."""
    to.mkdir()
    for file in folder.iterdir():
        if file.name != "manifest.json":
            (to / file.name).symlink_to(file)
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    for name in lacking:
        del found[name]
    (to / "manifest.json").write_text(json.dumps(found))
    return to


def all_rows(dataset: gpuload.Dataset) -> int:
    """A checksum of all rows, each shard's asked for by itself, and of all labels."""
    found = 0
    for shard in range(len(dataset.shard_paths)):
        found = zlib.crc32(repr(dataset.rows(shard).to_pylist()).encode(), found)
    return zlib.crc32(dataset.labels.tobytes(), found)


if __name__ == "__main__":
    url, cache, loops = sys.argv[1:]
    fetch_in_parts()
    for _ in range(int(loops)):
        print("begins", flush=True)
        print(all_rows(gpuload.Dataset(url, cache)), flush=True)
