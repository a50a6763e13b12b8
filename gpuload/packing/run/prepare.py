"""Prepares a run: lists samples, finds duplicates, checks fields, plans shards, and writes that down."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import ArgumentError, DecodeError, MissingPackageError, SourceError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import kind_of
from gpuload.machine.installed import remedy, require
from gpuload.packing.image.modes import pixels_of
from gpuload.packing.options import KEEP, Encoding, PackOptions, Resizer
from gpuload.packing.run.output import Output
from gpuload.packing.run.plan import (
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
from gpuload.packing.run.workers import Workers
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Rejection, addresses
from gpuload.sources.rows import Source
from gpuload.types import I64, Bools, ClassNames

_BATCH_ROWS = 1024

_TORCH_NEEDS = ("simplejpeg", "torch")

# Names of the columns that every index, listing and plan has, and of the fields that every batch can have.
_RESERVED = ("key", "source", "width", "height", "index", "dataset", POINTS, NAME, BYTES, WHERE, ROW, MEASURED)

_MOST_CHARACTERS = 4096  # of a text in a manifest

_MOST_LOOKED_AT = 100  # images that may be broken before one decides the mode


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


@dataclass(frozen=True)
class Duplicates:
    """The samples of a listing that have the same image as an earlier one.

    firsts: int64 (N,), for each sample the row of the first one with the same image, usually its own; None if the
        options do not require a search. rows: int64 (duplicates,), the rows of the duplicates.
    """

    firsts: I64 | None
    rows: I64

    @classmethod
    def find(cls, source: Source, options: PackOptions, listing: Listing) -> "Duplicates":
        """Searches if the options ask for it, or if duplicates could go into different splits."""
        if options.dedup == "no" and len(options.shares) == 1:
            return cls(None, np.array([], np.int64))
        # Only images of equal size can be duplicates.
        _, number, counts = np.unique(listing.samples.column(BYTES).to_numpy(), return_inverse=True, return_counts=True)
        rows = pa.array(np.flatnonzero(counts[number] > 1))
        images = pa.table({"row": rows, "address": addresses(listing.samples).take(rows)}).combine_chunks()
        # A slice is pickled with the whole of its table, what is taken from it is not.
        jobs = [HashJob(source, batch.take(np.arange(len(batch)))) for batch in images.to_batches(_BATCH_ROWS)]
        firsts, first_of = np.arange(len(listing)), dict[bytes, int]()
        with Workers[HashJob, list[tuple[int, bytes]]](min(options.worker_count, len(jobs)), hash_images) as workers:
            results = workers.run(jobs, died=lambda job, _: replace(job, skipped=True))
            for row, digest in sorted(hashed for _, batch in results for hashed in batch):
                firsts[row] = first_of.setdefault(digest, row)
        return cls(firsts, np.flatnonzero(firsts != np.arange(len(listing))))

    def mask(self, count: int) -> Bools:
        """bool (count,): whether each of `count` samples is a duplicate."""
        mask = np.zeros(count, np.bool_)
        mask[self.rows] = True
        return mask

    def with_names(self, listing: Listing, splits: Sequence[Split]) -> list[tuple[str, str, str]]:
        """Name of each duplicate, name of the sample that it duplicates, and its split, or "" if it is skipped."""
        if self.firsts is None:
            return []
        split_of: dict[int, str] = {}
        for split in splits:
            split_of.update(dict.fromkeys(np.intersect1d(split.rows, self.rows).tolist(), split.name))
        names = listing.samples.column(NAME)
        pairs = zip(self.rows.tolist(), self.firsts[self.rows].tolist(), strict=True)
        return [(names[row].as_py(), names[first].as_py(), split_of.get(row, "")) for row, first in pairs]


def choose_resizer(encoding: Encoding, before: Resizer | None = None) -> Encoding:
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


def check_packages(options: PackOptions) -> None:
    """Raises MissingPackageError if an option needs a package that cannot be used; called before anything is
    written."""
    if options.engine == "ray":
        require("--engine ray", "ray")
    if options.encoding.jpeg != "keep":
        require(f"--jpeg {options.encoding.jpeg}", "jpeglib")
    if options.encoding.resizer == "torch":
        choose_resizer(options.encoding)


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


def settings_of(source: Source, options: PackOptions) -> dict[str, Any]:
    """All settings that affect the bytes of the shards, by the names that messages use."""
    return {
        "the source": source.identity,
        "append": options.append,
        "measure": options.measure,
        **recorded_settings(options, False, not source.own_splits),
    }


def decide_mode(encoding: Encoding, source: Source, listing: Listing, base: Iterable[Manifest]) -> Encoding:
    """The encoding with the mode "keep" replaced: by that of the set to which is appended, or by the first image's.

    Raises:
        SourceError: none of the first images can be read. ArgumentError: its mode does not go with the encoding.
    """
    if encoding.mode != KEEP:
        return encoding
    pixels = next((manifest.pixels for manifest in base), None)
    reason = "there are none"
    for address in addresses(listing.samples.slice(0, _MOST_LOOKED_AT)).to_pylist():
        if pixels is not None:
            break
        try:
            pixels = pixels_of(source.read(address))
        except (DecodeError, OSError) as error:
            reason = str(error)
    if pixels is None:
        raise SourceError(f"--mode keep: the first images do not tell a mode ({reason}). Name it, as in --mode L")
    return replace(encoding, mode=f"{KEEP}={pixels.mode}")


def check_splits(listing: Listing, options: PackOptions) -> None:
    """Raises ArgumentError if splits are to be drawn although the source has its own."""
    drawn = "--val" if options.val else "--splits" if options.splits else ""
    if drawn and listing.splits is not None:
        raise ArgumentError(
            f"{drawn} draws splits, but the source has its own ({', '.join(listing.splits.names)}, "
            f"{listing.splits.origin}). Leave out {drawn} to keep these, give --no-splits to ignore "
            "them, or pack a part of the source"
        )


def plan_run(source: Source, options: PackOptions, output: Output) -> RunState:
    """Lists the samples, plans their shards, and writes the plan and the state of the run to the scratch folder."""
    listing = source.list_samples()
    check_names(listing.fields, listing.classes)
    check_splits(listing, options)
    base = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()} if options.append else {}
    encoding = decide_mode(options.encoding, source, listing, base.values())
    first_row = 0
    if base:
        listing = _match_listing(listing, base.items(), encoding)
        first_row = max(int(manifest.packing.get("listed", manifest.samples)) for manifest in base.values())
    duplicates = Duplicates.find(source, options, listing)
    skipped = duplicates.mask(len(listing)) if options.dedup == "drop" else None
    splits = make_plan(listing, options, duplicates.firsts, skipped)
    planned = [_write_split_plan(split, listing, options, output, base.get(split.name)) for split in splits]
    named = duplicates.with_names(listing, splits)
    dropped = named if options.dedup == "drop" else []
    copies = [Rejection(name, f"has the same bytes as {first!r}", True) for name, first, _ in dropped]
    notes = [*([listing.splits.summary()] if listing.splits else []), *listing.notes]
    if len(duplicates.rows) and options.dedup != "no":
        outcome = "; skipped" if options.dedup == "drop" else "; --dedup drop skips them"
        notes.append(
            f"{counted(len(duplicates.rows), 'image has', 'images have')} the same bytes as earlier ones{outcome}"
        )
    state = RunState(
        settings=settings_of(source, options),
        mode=encoding.mode,
        resizer=encoding.resizer,
        fields=listing.fields,
        classes=listing.classes,
        notes=notes,
        rejected=[*listing.rejected, *copies],
        duplicates=named,
        splits=planned,
        samples=len(listing),
        bytes=int(np.sum(listing.samples.column(BYTES).to_numpy())),
        first_row=first_row,
        own_splits=listing.splits is not None,
    )
    state.write(output.scratch)
    return state


def _write_split_plan(
    split: Split, listing: Listing, options: PackOptions, output: Output, base: Manifest | None
) -> PlannedSplit:
    """Writes the plan of one split. base: the manifest of the split to which shards are appended.

    Raises:
        ArgumentError: the split would be empty.
    """
    if not len(split.rows) and not (base or options.append):
        if listing.splits is not None:
            raise ArgumentError(
                f"--dedup drop leaves no image for the source's split {split.name!r}: all are copies of others. Give "
                "--dedup report, or leave that split out of the source"
            )
        share = f"--val {options.val}" if options.val else "--splits"
        raise ArgumentError(
            f"{share}: no image of {len(listing):,} is left for {split.name!r}. Change {share.split()[0]}, or leave it "
            "out"
        )
    first_shard = 0
    if base is not None:
        first_shard = 1 + max(int(shard.name.rpartition("-")[2].removesuffix(".tar")) for shard in base.shards)
        save_base(output.scratch, output.path / split.name)
    write_plan(output.scratch, split, listing.samples)
    return PlannedSplit(split.name, len(split.ends), len(split.rows), first_shard)


def _match_listing(listing: Listing, base: Iterable[tuple[str, Manifest]], encoding: Encoding) -> Listing:
    """The listing, with the class numbers of the set to which it is appended.

    base: name and manifest of each split of the set.

    Raises:
        SourceError: its fields differ from those of the set, or only one of the two names its classes.
    """
    samples, fields, classes = listing.samples, listing.fields, listing.classes
    for split, manifest in base:
        image, *old = manifest.fields
        old_fields, new_fields = ([(f.name, f.kind, f.member, f.size, f.dtype) for f in fs] for fs in (old, fields))
        if manifest.pixels != encoding.pixels:
            raise SourceError(
                f"--append: {split} holds images of mode {manifest.pixels.mode}, and --mode is {encoding.pixels.mode}. "
                f"Give --mode {manifest.pixels.mode}, or pack them into another folder"
            )
        if old_fields != new_fields or (image.kind == "raw") != (encoding.encode == "raw"):
            raise SourceError(
                f"--append: {split} has the fields {_names((image, *old))}, the new samples have "
                f"{_names((Field('image', 'raw' if encoding.encode == 'raw' else 'image', ''), *fields))}. "
                "Append samples with the same fields, or pack them into another folder"
            )
        merged = []
        for field, old_field in zip(fields, old, strict=True):
            kind = kind_of(field)
            if (column := kind.class_column(field)) is None:
                if field.classes != old_field.classes:
                    raise SourceError(
                        f"--append: {field.name!r} has the names {old_field.classes} in {split}, and {field.classes} "
                        "in the new samples. Append samples with the same names in the same order"
                    )
            elif kind.names_set_classes:
                classes, samples = _merge_classes(samples, column, manifest.classes, classes)
            else:
                names, samples = _merge_classes(samples, column, old_field.classes, field.classes)
                field = replace(field, classes=names)
            merged.append(field)
        fields = tuple(merged)
    return replace(listing, samples=samples, fields=fields, classes=classes)


def _merge_classes(samples: pa.Table, column: str, old: ClassNames, new: ClassNames) -> tuple[ClassNames, pa.Table]:
    """The names of both, old ones first, and the samples with the numbers of `column` changed accordingly."""
    if (old is None) != (new is None):
        named = "the set" if new is None else "the new samples"
        raise SourceError(
            f"--append: the classes of {column!r} have names only in {named}. Give names in both, or numbers in both"
        )
    if old is None or new is None:
        return None, samples
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


def _names(fields: Iterable[Field]) -> str:
    return ", ".join(f"{field.name} ({field.kind})" for field in fields)
