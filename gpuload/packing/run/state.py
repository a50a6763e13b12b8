"""What a run of the packer has decided before it packs, on disk, so that a later run can go on after any end.

In the scratch folder: a plan for each split (`plan.py`), then `state.json`, then a `.done` for each finished shard. A
run that finds no `state.json` has nothing to go on with.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuload.disk import Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.errors import ArgumentError
from gpuload.fields.field import Field
from gpuload.packing.run.shard import write_json
from gpuload.sources import Rejection

FILE_NAME = "state.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"

# What is kept of a set to which shards are added, until they are.
_BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME, DUPLICATES_NAME)


@dataclass(frozen=True)
class PlannedSplit:
    """One split of the plan: `shards` new ones, whose files are numbered from `first_shard`."""

    name: str
    shards: int
    samples: int
    first_shard: int = 0


@dataclass(frozen=True)
class RunState:
    """The plan without its rows.

    settings: what must be the same for a run to go on. rejected: while listing, and as copies, with their split.
    first_row: samples listed for the set before this run. duplicates: source, the same image, split.
    own_splits: whether the splits are the source's own.
    """

    settings: dict[str, Any]
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]
    rejected: tuple[tuple[str, Rejection], ...]
    duplicates: tuple[tuple[str, str, str], ...]
    splits: tuple[PlannedSplit, ...]
    samples: int
    bytes: int
    first_row: int = 0
    own_splits: bool = False

    def write(self, scratch: Path) -> None:
        write_json(scratch / FILE_NAME, asdict(self))

    @classmethod
    def read(cls, scratch: Path) -> "RunState | None":
        """What was decided, or None if the run came to its end before that."""
        try:
            found = json.loads((scratch / FILE_NAME).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(
            **{
                **found,
                "fields": tuple(Field.from_json(entry) for entry in found["fields"]),
                "classes": None if found["classes"] is None else tuple(found["classes"]),
                "notes": tuple(found["notes"]),
                "rejected": tuple((split, Rejection(**entry)) for split, entry in found["rejected"]),
                "duplicates": tuple(tuple(entry) for entry in found["duplicates"]),
                "splits": tuple(PlannedSplit(**entry) for entry in found["splits"]),
            }
        )

    def check_same(self, settings: dict[str, Any], out: Path) -> None:
        """Raises ArgumentError where this run was told something else than the one that was broken off."""
        now = json.loads(json.dumps(settings))
        for name in sorted({*self.settings, *now}):
            before, given = self.settings.get(name), now.get(name)
            if before != given:
                raise ArgumentError(
                    f"--resume: the run that was broken off in {out} had {name} {before!r}, this one has {given!r}. "
                    "Give the same, or delete the folder and pack again"
                )


def keep_base(scratch: Path, folder: Path) -> None:
    """Keeps what describes a split before shards are added to it."""
    base = base_folder(scratch, folder.name)
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    for name in _BASE_FILES:
        if (folder / name).exists():
            os.link(folder / name, base / name)


def base_folder(scratch: Path, split: str) -> Path:
    return scratch / f"{split}.base"


def read_base(scratch: Path, split: str) -> Manifest | None:
    """The manifest of a split before shards are added to it; None for a new split."""
    folder = base_folder(scratch, split)
    return Manifest.read(folder) if folder.exists() and (folder / manifest_file.FILE_NAME).exists() else None


def read_lines(path: Path) -> list[str]:
    """The lines of a file that may be missing, each with its end."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def write_lines(path: Path, entries: Sequence[dict[str, Any]], before: Sequence[str] = ()) -> None:
    """JSON, one line an entry, after lines that were there before."""
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    temporary = path.with_name(f"{path.name}.tmp")  # not in place: what is there may be linked to what is kept
    temporary.write_text("".join([*before, *lines]), encoding="utf-8")
    temporary.replace(path)
