"""The decisions of a packing run, on disk, from which a later run continues.

The scratch folder holds a plan for each split (`plan.py`), then `state.json`, then a `.done` for each finished shard.
Without `state.json` there is nothing to continue.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuload.disk import Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.errors import ArgumentError, OutputError
from gpuload.fields.field import Field
from gpuload.packing.options import KEEP, Encoding, PackOptions, Resizer
from gpuload.sources import Rejection
from gpuload.store.files import write_atomically

FILE_NAME = "state.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"

# The files of a split that are saved while shards are appended to it.
BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME, DUPLICATES_NAME)

# Settings of `Encoding` that affect the shards and that a manifest records only where they differ from the defaults.
_OTHERS = ("enlarge", "quality", "lossless", "check", "drop_gray", "min_size", "max_pixels", "mode", "keep")
OWN_SPLITS = "the source's own"


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

    settings: those that must be the same in a run that resumes this one. mode, resizer: those of `Encoding`, decided.
    notes: from listing, for the user.
    rejected: samples rejected while listing or skipped as duplicates; the first split reports them.
    duplicates: name of each duplicate, name of the first sample with the same image, and split of the duplicate.
    samples, bytes: number of listed samples, and size of their images. first_row: samples listed by earlier runs.
    own_splits: whether the splits are the source's own.
    """

    settings: dict[str, Any]
    mode: str
    resizer: Resizer
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    notes: list[str]
    rejected: list[Rejection]
    duplicates: list[tuple[str, str, str]]
    splits: list[PlannedSplit]
    samples: int
    bytes: int
    first_row: int
    own_splits: bool

    def write(self, scratch: Path) -> None:
        write_json(scratch / FILE_NAME, asdict(self))

    @classmethod
    def read(cls, scratch: Path) -> "RunState | None":
        """The state, or None if the run was interrupted before it was written.

        Raises:
            OutputError: it is of another version, or damaged.
        """
        path = scratch / FILE_NAME
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found["fields"] = tuple(map(Field.from_json, found["fields"]))
            found["classes"] = None if found["classes"] is None else tuple(found["classes"])
            found["rejected"] = [Rejection(**entry) for entry in found["rejected"]]
            found["splits"] = [PlannedSplit(**entry) for entry in found["splits"]]
            return cls(**found)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise OutputError(
                f"{path}: is of another version of gpuload, or damaged. Delete the output folder and pack again"
            ) from None


def recorded_settings(options: PackOptions, own_splits: bool, no_splits: bool) -> dict[str, Any]:
    """The settings that a manifest records, by their names there; "options" holds others if not the defaults.

    own_splits: whether the splits are the source's own. no_splits: whether such splits are ignored.
    """
    encoding, usual = options.encoding, Encoding()
    others = {name: getattr(encoding, name) for name in _OTHERS if getattr(encoding, name) != getattr(usual, name)}
    if encoding.is_strict:
        others["mode"] = KEEP
    if options.dedup != "no":
        others["dedup"] = options.dedup
    if no_splits:
        others["no_splits"] = True
    return {
        "splits": OWN_SPLITS if own_splits else dict(options.shares),
        **{name: getattr(options, name) for name in ("shuffle", "seed", "maxcount", "maxsize")},
        "encode": encoding.encode,
        "size": encoding.size,
        "fit": encoding.fit if encoding.size else None,
        **({"options": others} if others else {}),
    }


def refuse_change(
    subject: str, before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str], advice: str
) -> None:
    """Raises ArgumentError if a run is resumed with another setting. subject: what had those `before`."""
    now = json.loads(json.dumps(now))
    for name in names:
        if before.get(name) != now.get(name):
            raise ArgumentError(
                f"--resume: {subject} had {name} {before.get(name)!r}, this run has {now.get(name)!r}. {advice}"
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
    return Manifest.read(folder) if (folder / manifest_file.FILE_NAME).exists() else None


def write_json(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_lines(path: Path) -> list[str]:
    """The lines of a file, each with its line end; none if the file does not exist."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]], before: Sequence[str] = ()) -> None:
    """Writes the lines `before`, then each entry as one line of JSON."""
    # Never in place: `save_base` may have linked the existing file.
    write_atomically(
        path, "".join([*before, *(json.dumps(one, ensure_ascii=False) + "\n" for one in entries)]).encode()
    )


def write_rejections(path: Path, rejected: Iterable[Rejection], before: Sequence[str] = ()) -> None:
    """Writes samples that were left out, one a line, behind the lines `before`."""
    lines = ({"source": r.source, "reason": r.reason, **({"asked": True} if r.asked else {})} for r in rejected)
    write_lines(path, lines, before)
