"""Prepares a run: lists samples, finds duplicates, checks fields, plans shards, and writes that down."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import ArgumentError, DecodeError, MissingPackageError, SourceError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import kind_of
from gpuload.machine.installed import remedy, require
from gpuload.packing.options import Encoding, PackOptions, Resizer
from gpuload.packing.output import Output
from gpuload.packing.plan import (
    MEASURED,
    ROW,
    PlannedSplit,
    RunState,
    Split,
    make_plan,
    recorded_settings,
    save_base,
    write_plan,
)
from gpuload.packing.workers import Workers
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Rejection, addresses
from gpuload.sources.rows import Source
from gpuload.types import I64, ClassNames

_BATCH_ROWS = 1024

_TORCH_NEEDS = ("simplejpeg", "torch")

# Names of the columns that every index, listing and plan has, and of the fields that every batch can have.
_RESERVED = ("key", "source", "width", "height", "index", "dataset", POINTS, NAME, BYTES, WHERE, ROW, MEASURED)

_MOST_CHARACTERS = 4096  # of a text in a manifest


def check_packages(options: PackOptions) -> None:
    """Raises MissingPackageError if an option needs a package that cannot be used; called before anything is
    written."""
    if options.engine == "ray":
        require("--engine ray", "ray")
    if options.encoding.jpeg != "keep":
        require(f"--jpeg {options.encoding.jpeg}", "jpeglib")
    if options.encoding.resizer == "torch":
        choose_resizer(options.encoding, None)


def choose_resizer(encoding: Encoding, before: Resizer | None) -> Encoding:
    """The encoding with the resizer "auto" replaced: by `before`, that of the run to resume, else by what is installed.

    Raises:
        MissingPackageError: the resizer is torch, which is not installed.
    """
    missing = " and ".join(name for name in _TORCH_NEEDS if find_spec(name) is None)
    resizer = encoding.resizer
    if resizer == "auto":
        resizer = before or ("torch" if encoding.shrinks_jpegs and not missing else "pillow")
    if resizer == "torch" and missing:
        subject = "--resume: the interrupted run had --resizer torch, which" if before else "--resizer torch"
        raise MissingPackageError(f"{subject} needs {missing}, not installed here. {remedy('torch')}")
    return replace(encoding, resizer=resizer)


def settings_of(source: Source, options: PackOptions) -> dict[str, Any]:
    """All settings that affect the bytes of the shards, by the names that messages use."""
    return {
        "the source": source.identity,
        "append": options.append,
        "measure": options.measure,
        **recorded_settings(options, False, not source.own_splits),
    }


def plan_run(source: Source, options: PackOptions, output: Output) -> RunState:
    """Lists the samples, plans their shards, and writes the plan and the state of the run to the scratch folder."""
    listing = source.list_samples()
    check_names(listing.fields, listing.classes)
    drawn = "--val" if options.val else "--splits" if options.splits else ""
    if drawn and listing.splits is not None:
        raise ArgumentError(
            f"{drawn} draws splits, but the source has its own ({', '.join(listing.splits.names)}, "
            f"{listing.splits.origin}). Leave out {drawn} to keep these, or give --no-splits to ignore them"
        )
    base = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()} if options.append else {}
    listing = _match_listing(listing, base, options.encoding)
    firsts = _find_firsts(source, options, listing)
    copies = np.flatnonzero(firsts != np.arange(len(listing)))
    is_dropped = options.dedup == "drop"
    splits = make_plan(listing, options, firsts, np.isin(np.arange(len(listing)), copies) if is_dropped else None)
    planned = [_write_split_plan(split, listing, options, output, base.get(split.name)) for split in splits]
    duplicates = _name_copies(listing, firsts, copies, splits)
    dropped = [
        Rejection(name, f"has the same bytes as {first!r}", True) for name, first, split in duplicates if not split
    ]
    notes = [*([listing.splits.summary()] if listing.splits else []), *listing.notes]
    if len(copies) and options.dedup != "no":
        outcome = "skipped" if is_dropped else "--dedup drop skips them"
        notes.append(f"{counted(len(copies), 'image has', 'images have')} the same bytes as earlier ones; {outcome}")
    listed = (int(manifest.packing.get("listed", manifest.samples)) for manifest in base.values())
    state = RunState(
        settings=settings_of(source, options),
        resizer=options.encoding.resizer,
        fields=listing.fields,
        classes=listing.classes,
        notes=notes,
        rejected=[*listing.rejected, *dropped],
        duplicates=duplicates,
        splits=planned,
        samples=len(listing),
        bytes=int(np.sum(listing.samples.column(BYTES).to_numpy())),
        first_row=max(listed, default=0),
        own_splits=listing.splits is not None,
    )
    state.write(output.scratch)
    return state


def check_names(fields: Sequence[Field], classes: ClassNames = None) -> None:
    """Raises SourceError if two fields, or a field and the index, would have columns of the same name; or if the name
    of a class is longer than a manifest may have it."""
    for name, names in [("label", classes), *((field.name, field.classes) for field in fields)]:
        if long := [one for one in names or () if len(one) > _MOST_CHARACTERS]:
            raise SourceError(
                f"field {name!r}: the class {long[0][:40]!r}… has a name of {len(long[0]):,} characters, more than "
                f"{_MOST_CHARACTERS:,}. Shorten it; texts are captions, not classes"
            )
    owners = dict.fromkeys(_RESERVED, "gpuload reserves for every set")
    for field in (IMAGE, *fields):
        columns = {field.name, field.offset_column, field.bytes_column, *kind_of(field).columns(field)}
        for name in sorted(columns & set(owners)):
            problem = "has a name" if name == field.name else f"needs a column {name!r}, a name"
            raise SourceError(f"field {field.name!r}: {problem} that {owners[name]}. Rename the field")
        owners |= dict.fromkeys(columns, f"field {field.name!r} uses already")


@dataclass(frozen=True)
class HashJob:
    """Hashes images, by their rows and addresses. skipped: not at all, since one of them killed a worker."""

    source: Source
    images: pa.RecordBatch
    skipped: bool = False


def hash_images(job: HashJob) -> list[tuple[int, bytes]]:
    """Row and BLAKE2 hash of each image, except for those that cannot be read."""
    if job.skipped:
        return []
    rows, images = (column.to_pylist() for column in job.images.columns)
    hashes, parent = [], os.getppid()
    job.source.expect(images)
    for row, address in zip(rows, images, strict=True):
        if os.getppid() != parent:
            os._exit(1)  # the packer has died
        try:
            data = job.source.read(address)
        except (OSError, DecodeError, MemoryError):
            continue
        if isinstance(data, np.ndarray):
            data = str(data.shape).encode() + data.tobytes()
        if data:
            hashes.append((row, hashlib.blake2b(data, digest_size=16).digest()))
    return hashes


def _find_firsts(source: Source, options: PackOptions, listing: Listing) -> I64:
    """int64 (N,): for each sample the row of the first one with the same image, usually its own.

    Images are compared if the options ask for it, or if duplicates could go into different splits.
    """
    firsts, first_of = np.arange(len(listing)), dict[bytes, int]()
    if options.dedup == "no" and len(options.shares) == 1:
        return firsts
    # Only images of equal size can be duplicates.
    _, number, counts = np.unique(listing.samples.column(BYTES).to_numpy(), return_inverse=True, return_counts=True)
    rows = pa.array(np.flatnonzero(counts[number] > 1))
    images = pa.table({"row": rows, "address": addresses(listing.samples).take(rows)}).combine_chunks()
    # A slice is pickled with the whole of its table, what is taken from it is not.
    jobs = [HashJob(source, batch.take(np.arange(len(batch)))) for batch in images.to_batches(_BATCH_ROWS)]
    with Workers[HashJob, list[tuple[int, bytes]]](min(options.worker_count, len(jobs)), hash_images) as workers:
        results = workers.run(jobs, died=lambda job, _: replace(job, skipped=True))
        for row, digest in sorted(hashed for _, batch in results for hashed in batch):
            firsts[row] = first_of.setdefault(digest, row)
    return firsts


def _name_copies(listing: Listing, firsts: I64, copies: I64, splits: Sequence[Split]) -> list[tuple[str, str, str]]:
    """Name of each duplicate, name of the sample that it duplicates, and its split, or "" if it is skipped."""
    names = listing.samples.column(NAME)
    split_of = {row: split.name for split in splits for row in np.intersect1d(split.rows, copies).tolist()}
    pairs = zip(copies.tolist(), firsts[copies].tolist(), strict=True)
    return [(names[row].as_py(), names[first].as_py(), split_of.get(row, "")) for row, first in pairs]


def _write_split_plan(
    split: Split, listing: Listing, options: PackOptions, output: Output, base: Manifest | None
) -> PlannedSplit:
    """Writes the plan of one split. base: the manifest of the split to which shards are appended.

    Raises:
        ArgumentError: the split would be empty.
    """
    if not len(split.rows) and not (base or options.append):
        drawn = f"--val {options.val}" if options.val else "--splits"
        what = "--dedup drop" if listing.splits else drawn
        raise ArgumentError(
            f"{what}: no image of {len(listing):,} is left for {split.name!r}. Change {what.split()[0]}, or leave it "
            "out"
        )
    first_shard = 0
    if base is not None:
        first_shard = 1 + max(int(shard.name.rpartition("-")[2].removesuffix(".tar")) for shard in base.shards)
        save_base(output.scratch, output.path / split.name)
    write_plan(output.scratch, split, listing.samples)
    return PlannedSplit(split.name, len(split.ends), first_shard)


def _match_listing(listing: Listing, base: Mapping[str, Manifest], encoding: Encoding) -> Listing:
    """The listing, with the class numbers of the set to which it is appended.

    base: manifest of each split of the set, by name.

    Raises:
        SourceError: its fields differ from those of the set, or only one of the two names its classes.
    """
    samples, fields, classes = listing.samples, listing.fields, listing.classes
    for split, manifest in base.items():
        old, kind = manifest.fields[1:], "raw" if manifest.is_raw else "image"
        before = _described(kind, manifest.pixels.mode, old)
        now = _described("raw" if encoding.encode == "raw" else "image", encoding.pixels.mode, fields)
        if before != now:
            raise SourceError(
                f"--append: {split} has the fields {before}, the new samples have {now}. Append samples with the same "
                "fields, or pack them into another folder"
            )
        merged = []
        for field, old_field in zip(fields, old, strict=True):
            if kind_of(field).names_set_classes:
                classes, samples = _merge_classes(samples, field, manifest.classes, classes)
            else:
                names, samples = _merge_classes(samples, field, old_field.classes, field.classes)
                field = replace(field, classes=names)
            merged.append(field)
        fields = tuple(merged)
    return replace(listing, samples=samples, fields=fields, classes=classes)


def _described(image: str, mode: str, fields: Iterable[Field]) -> str:
    """Fields in a message; the same only for those that can be appended to each other."""
    parts = ((f.name, (f.kind, f.member, f.size, f.dtype)) for f in fields)
    others = (f"{name} ({' '.join(str(part) for part in described if part)})" for name, described in parts)
    return ", ".join([f"image ({image} {mode})", *others])


def _merge_classes(samples: pa.Table, field: Field, old: ClassNames, new: ClassNames) -> tuple[ClassNames, pa.Table]:
    """The names of both, old ones first, and the samples with the field's class numbers changed accordingly."""
    column = kind_of(field).class_column(field)
    if (old is None) != (new is None) or (column is None and old != new):
        raise SourceError(
            f"--append: {field.name!r} has the names {shown(old)} in the set, and {shown(new)} in the new samples. "
            "Give names in both, or numbers in both; points in the same order"
        )
    if old is None or new is None or column is None:
        return old, samples
    merged = old + tuple(name for name in new if name not in set(old))
    number_of = {name: number for number, name in enumerate(merged)}
    mapping = np.array([number_of[name] for name in new], np.int64)
    values = pa.concat_arrays(samples.column(column).chunks)
    if pa.types.is_list(values.type):
        renumbered = pa.ListArray.from_arrays(values.offsets, pa.array(mapping[values.values.to_numpy()]))
    else:
        renumbered = pa.array(mapping[values.to_numpy()])
    position = samples.column_names.index(column)
    return merged, samples.set_column(position, samples.schema.field(position), renumbered)
