"""The state of a run of the packer on disk, from which a later run can continue wherever it was interrupted.

The scratch folder holds a plan for each split (`plan.py`), then `state.json`, then a `.done` for each finished shard.
Without a `state.json` there is nothing to continue.
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
from gpuload.store.url import URL

FILE_NAME = "state.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"

# The files of a split that are saved while shards are appended to it.
BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME, DUPLICATES_NAME)


@dataclass(frozen=True)
class PlannedSplit:
    """One split of the plan: its name, and its new shards, whose files are numbered from `first_shard`."""

    name: str
    shards: int
    samples: int
    first_shard: int = 0


@dataclass(frozen=True)
class RunState:
    """The decisions of a run, apart from the rows of its plan.

    settings: those that must be the same in a run that resumes this one. notes: from listing, for the user.
    rejected: samples rejected while listing or skipped as duplicates, each with the name of the split that reports it.
    duplicates: name of each duplicate, name of the first sample with the same image, and split of the duplicate.
    samples, bytes: number of listed samples, and size of their images. first_row: samples listed by earlier runs.
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
        """The state, or None if the run was interrupted before it was written."""
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

    def check_same(self, settings: dict[str, Any], out: Path | URL) -> None:
        """Raises ArgumentError if a setting of this run differs from the interrupted run's."""
        now = json.loads(json.dumps(settings))
        for name in sorted({*self.settings, *now}):
            before, given = self.settings.get(name), now.get(name)
            if before != given:
                raise ArgumentError(
                    f"--resume: the interrupted run in {out} had {name} {before!r}, this one has {given!r}. "
                    "Give the same, or delete the folder and pack again"
                )


def save_base(scratch: Path, folder: Path) -> None:
    """Saves hard links to the files that describe a split, before shards are appended to it."""
    base = base_folder(scratch, folder.name)
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    for name in BASE_FILES:
        if (folder / name).exists():
            os.link(folder / name, base / name)


def base_folder(scratch: Path, split: str) -> Path:
    """Where `save_base` saves the files of a split."""
    return scratch / f"{split}.base"


def read_base(scratch: Path, split: str) -> Manifest | None:
    """The saved manifest of a split to which shards are appended; None for a new split."""
    folder = base_folder(scratch, split)
    return Manifest.read(folder) if folder.exists() and (folder / manifest_file.FILE_NAME).exists() else None


def read_lines(path: Path) -> list[str]:
    """The lines of a file, each with its line end; none if the file does not exist."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def write_lines(path: Path, entries: Sequence[dict[str, Any]], before: Sequence[str] = ()) -> None:
    """Writes the lines `before`, then each entry as one line of JSON."""
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    temporary = path.with_name(f"{path.name}.tmp")  # never in place: `save_base` may have linked the existing file
    temporary.write_text("".join([*before, *lines]), encoding="utf-8")
    temporary.replace(path)
