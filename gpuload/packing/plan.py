"""Decides which sample goes into which shard: a pure function of the listing and a seed, which reads no images. And
what a run writes down in its scratch folder, so that a later one can continue it.

A plan is stored as one Arrow file per split with one record batch per shard, so that workers share its pages and read
their shard's part without the parent sending it.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.disk import Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES
from gpuload.draws import MEASURE, SHUFFLE, SPLIT, make_key, permutation, random_bits
from gpuload.errors import ArgumentError, OutputError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.packing.options import Encoding, PackOptions, Resizer
from gpuload.sources import Rejection
from gpuload.sources.listing import BYTES, Listing
from gpuload.store.files import write_atomically
from gpuload.types import I64, Bools

ROW = "row"
MEASURED = "measured"

STATE_NAME = "state.json"
REJECTED_NAME = "rejected.jsonl"
DUPLICATES_NAME = "duplicates.jsonl"

# The files of a split that are saved while shards are appended to it.
BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME, DUPLICATES_NAME)

OWN_SPLITS = "the source's own"
_RECORDED_ALONE = ("encode", "size", "fit", "resizer")  # by a manifest; other settings of `Encoding` if not the default


@dataclass(frozen=True)
class Split:
    """One split: its samples in stored order, and where its shards end.

    rows: int64 (N,), rows of the listing. ends: int64 (shards,); shard s holds rows[ends[s-1]:ends[s]].
    measured: bool (N,), whether mean and std include the image's pixels.
    """

    name: str
    rows: I64
    ends: I64
    measured: Bools


def make_plan(
    listing: Listing, options: PackOptions, firsts: I64 | None = None, skipped: Bools | None = None
) -> tuple[Split, ...]:
    """The splits: the source's own if the listing has any, else in the order of `options.shares`.

    firsts: int64 (N,), for each sample the row of the first one with the same image, into whose split it goes,
        unless the splits are the source's own.
    skipped: bool (N,), samples that are not packed.
    """
    count = len(listing)
    spans = _sample_spans(listing)
    # The size must depend only on the data, never on the machine, so that the same input gives the same shards
    # everywhere. Small sets get enough shards to distribute over workers.
    maxsize = options.maxsize or min(max(int(spans.sum()) // 16, 16_000_000), 1_000_000_000)
    order = permutation(make_key(options.seed, SHUFFLE), count) if options.shuffle else np.arange(count)
    if listing.splits is not None:
        names, split_of = listing.splits.names, listing.splits.numbers.copy()
    else:
        names = tuple(name for name, _ in options.shares)
        split_of = _draw_splits(listing, [share for _, share in options.shares], options.seed, firsts)
    if skipped is not None:
        split_of[skipped] = -1
    splits = []
    for number, name in enumerate(names):
        rows = order[split_of[order] == number]
        measured = _choose_measured(len(rows), options.measure, make_key(options.seed, MEASURE, number))
        splits.append(Split(name, rows, _cut_shards(spans[rows], options.maxcount, maxsize), measured))
    return tuple(splits)


def _sample_spans(listing: Listing) -> I64:
    """int64 (N,): bytes that each sample takes in a tar if its image is kept.

    Exact for classes and texts; other fields are small compared with an image and are estimated.
    """
    images: I64 = listing.samples.column(BYTES).to_numpy()
    members = [images, *(kind_of(field).estimate_bytes(field, listing.samples) for field in listing.fields)]
    sizes = np.array(members, np.int64)
    spans: I64 = np.sum(BLOCK_BYTES + -(-sizes // BLOCK_BYTES) * BLOCK_BYTES, axis=0)
    return spans


def _draw_splits(listing: Listing, shares: Sequence[float], seed: int, firsts: I64 | None) -> I64:
    """int64 (N,): number of each sample's split. Each split but the first gets its share of every class.

    shares: of the splits, which add up to 1; the first split gets the rest.
    """
    count = len(listing)
    labels = listing.samples.column("label").to_numpy() if "label" in listing.samples.column_names else None
    if labels is None or labels.dtype.kind != "i":
        labels = np.zeros(count, np.int64)
    firsts = np.arange(count) if firsts is None else firsts
    split_of = np.zeros(count, np.int64)
    rest, share_left = np.unique(firsts), 1.0
    for number in range(1, len(shares)):
        # The second split has the key of a lone --val; in the keys of further splits the number is a separate word.
        key = make_key(seed, SPLIT) if number == 1 else make_key(seed, SPLIT, number)
        chosen = _choose_val(labels[rest], shares[number] / share_left, key)
        split_of[rest[chosen]] = number
        rest, share_left = rest[~chosen], share_left - shares[number]
    return split_of[firsts]


def _choose_val(labels: I64, share: float, key: int) -> Bools:
    """bool (N,): chooses round(share * N) random samples, from each class its share to within 1.

    At least one sample of each class is not chosen, so fewer may be chosen in all. For example 7 samples of class 0 and
    3 of class 1 with share 0.2 give 1 of each class.
    """
    chosen = np.zeros(len(labels), bool)
    classes, number, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.floor(share * sizes).astype(np.int64)
    remainders = share * sizes - quota
    missing = round(share * len(labels)) - int(quota.sum())
    # Largest remainders first; equal ones in random order, so that no class is preferred because of its number.
    by_remainder = np.lexsort((random_bits(key, classes), -remainders))
    may_grow = by_remainder[(remainders[by_remainder] > 0) & (quota[by_remainder] < sizes[by_remainder] - 1)]
    quota[may_grow[: max(missing, 0)]] += 1
    by_class = np.lexsort((random_bits(make_key(key), np.arange(len(labels))), number))
    rank_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen[by_class] = rank_in_class < quota[number[by_class]]
    return chosen


def _cut_shards(spans: I64, maxcount: int, maxsize: int) -> I64:
    """int64 (shards,): the end of each shard, as late as both limits allow.

    A shard's tar, including its end marker, has at most `maxsize` bytes; a larger sample gets a shard of its own.

    For example spans 512 512 512 with maxcount 2 give ends 2 3.
    """
    # An archive ends with two zero blocks, and its size is a multiple of the record size.
    room = maxsize // RECORD_BYTES * RECORD_BYTES - 2 * BLOCK_BYTES
    total = np.concatenate([[0], np.cumsum(spans)])
    ends, start = [], 0
    while start < len(spans):
        fitting = int(np.searchsorted(total, total[start] + room, side="right")) - 1
        start = max(start + 1, min(start + maxcount, fitting))
        ends.append(start)
    return np.array(ends, np.int64)


def _choose_measured(count: int, measure: int, key: int) -> Bools:
    """bool (count,): which samples are measured: all of a small split, a random part of a large one.

    Measuring requires a decode to full RGB, so a sixteenth of the samples is measured, but at least 1/8 of `measure`
    and at most `measure`.
    """
    chosen = np.zeros(count, bool)
    chosen[permutation(key, count)[: min(measure, max(measure // 8, count // 16))]] = True
    return chosen


def write_plan(scratch: Path, split: Split, samples: pa.Table) -> None:
    """Writes one batch per shard: `row` (number in the listing), `measured`, and the columns of the listing."""
    columns = [pa.field(ROW, pa.int64()), pa.field(MEASURED, pa.bool_()), *samples.schema]
    schema = pa.schema(columns)
    with pa.OSFile(str(plan_path(scratch, split.name)), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        start = 0
        for end in split.ends.tolist():
            rows, measured = pa.array(split.rows[start:end]), pa.array(split.measured[start:end])
            flat = [column.chunk(0) for column in samples.take(rows).combine_chunks().columns]
            writer.write_batch(pa.record_batch([rows, measured, *flat], schema=schema))
            start = end


def plan_path(scratch: Path, split: str) -> Path:
    return scratch / f"{split}.plan"


def read_plan(scratch: Path, split: str, shard: int) -> pa.RecordBatch:
    """The samples of one shard; the columns are views of the memory-mapped file."""
    return pa.ipc.open_file(pa.memory_map(str(plan_path(scratch, split)), "r")).get_batch(shard)


@dataclass(frozen=True)
class PlannedSplit:
    """One split of the plan: its name, and its new shards, whose files are numbered from `first_shard`."""

    name: str
    shards: int
    first_shard: int = 0


@dataclass(frozen=True)
class RunState:
    """The decisions of a run, apart from the rows of its plan.

    settings: those that must be the same in a run that resumes this one. resizer: that of `Encoding`, decided.
    notes: from listing, for the user.
    rejected: samples rejected while listing or skipped as duplicates; the first split reports them.
    duplicates: name of each duplicate, name of the first sample with the same image, and split of the duplicate.
    samples, bytes: number of listed samples, and size of their images. first_row: samples listed by earlier runs.
    own_splits: whether the splits are the source's own.
    """

    settings: dict[str, Any]
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
        write_json(scratch / STATE_NAME, asdict(self))

    @classmethod
    def read(cls, scratch: Path) -> "RunState | None":
        """The state, or None if the run was interrupted before it was written.

        Raises:
            OutputError: it is of another version, or damaged.
        """
        path = scratch / STATE_NAME
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
    encoding = options.encoding
    given = {one.name: (getattr(encoding, one.name), one.default) for one in fields(Encoding)}
    others = {name: now for name, (now, usual) in given.items() if now != usual and name not in _RECORDED_ALONE}
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
    return [f"{line}\n" for line in path.read_text(encoding="utf-8").split("\n")[:-1]] if path.exists() else []


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]], before: Sequence[str] = ()) -> None:
    """Writes the lines `before`, then each entry as one line of JSON."""
    # Never in place: `save_base` may have linked the existing file.
    lines = [*before, *(json.dumps(one, ensure_ascii=False) + "\n" for one in entries)]
    write_atomically(path, "".join(lines).encode())


def write_rejections(path: Path, rejected: Iterable[Rejection], before: Sequence[str] = ()) -> None:
    """Writes samples that were left out, one a line, behind the lines `before`."""
    lines = ({"source": r.source, "reason": r.reason, **({"asked": True} if r.asked else {})} for r in rejected)
    write_lines(path, lines, before)
