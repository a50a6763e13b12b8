"""Prepares a run: lists the samples, checks their fields, plans the shards, and writes that to the scratch folder."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import ArgumentError, DecodeError, MissingPackageError, SourceError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.registry import kind_of
from gpuload.installed import remedy, require
from gpuload.packing.image.modes import pixels_of
from gpuload.packing.options import KEEP, Encoding, PackOptions, Resizer
from gpuload.packing.run.append import match_listing
from gpuload.packing.run.dedup import Duplicates
from gpuload.packing.run.output import Output
from gpuload.packing.run.plan import MEASURED, ROW, Split, make_plan, write_plan
from gpuload.packing.run.state import PlannedSplit, RunState, save_base
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Rejection, Source

_TORCH_NEEDS = ("simplejpeg", "torch")


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
    """Raises MissingPackageError where options ask for a package that cannot be used: before anything is written."""
    if options.engine == "ray":
        require("--engine ray", "ray")
    if options.encoding.resizer == "torch":
        choose_resizer(options.encoding)


# Names of the columns that every index, listing and plan has, and of the fields that every batch can have.
_RESERVED = ("key", "source", "width", "height", "index", "dataset", NAME, BYTES, WHERE, ROW, MEASURED)


def check_names(fields: Sequence[Field]) -> None:
    """Raises SourceError if two fields, or a field and the index, would have columns of the same name."""
    owners = dict.fromkeys(_RESERVED, "gpuload reserves for every set")
    for field in (IMAGE, *fields):
        columns = {field.name, field.offset_column, field.bytes_column, *kind_of(field).columns(field)}
        for name in sorted(columns & set(owners)):
            problem = "has a name" if name == field.name else f"needs a column {name!r}, a name"
            raise SourceError(f"field {field.name!r}: {problem} that {owners[name]}. Rename the field")
        owners |= dict.fromkeys(columns, f"field {field.name!r} uses already")


def settings_of(source: Source, options: PackOptions) -> dict[str, Any]:
    """All settings that affect the bytes of the shards, by the names that messages use."""
    encoding, usual = options.encoding, Encoding()
    # Interrupted runs of versions without these options are resumed, too.
    encoded = {
        name: value
        for name, value in vars(encoding).items()
        if name not in ("mode", "keep") or value != getattr(usual, name)
    }
    return {
        "the source": source.identity,
        "--no-splits": not source.own_splits,
        "splits": [list(pair) for pair in options.shares],
        "--seed": options.seed,
        "shuffle": options.shuffle,
        "--maxcount": options.maxcount,
        "--maxsize": options.maxsize,
        "--dedup": options.dedup,
        "--append": options.append,
        "measure": options.measure,
        **{f"--{name.replace('_', '-')}": value for name, value in encoded.items()},
    }


_MOST_LOOKED_AT = 100  # images that may be broken before one decides the mode


def decide_mode(encoding: Encoding, source: Source, listing: Listing, base: Iterable[Manifest]) -> Encoding:
    """The encoding with the mode "keep" replaced: by that of the set to which is appended, or by the first image's.

    Raises:
        SourceError: none of the first images can be read. ArgumentError: its mode does not go with the encoding.
    """
    if encoding.mode != KEEP:
        return encoding
    pixels = next((manifest.pixels for manifest in base), None)
    reason = "there is none"
    columns = [name for name in (NAME, WHERE) if name in listing.samples.column_names]
    for row, sample in enumerate(listing.samples.slice(0, _MOST_LOOKED_AT).select(columns).to_pylist()):
        if pixels is not None:
            break
        try:
            pixels = pixels_of(source.read(row, sample[NAME], sample.get(WHERE) or ""))
        except (DecodeError, OSError) as error:
            reason = str(error)
    if pixels is None:
        raise SourceError(f"--mode keep: no mode can be told from the first images ({reason}). Name it, as in --mode L")
    return replace(encoding, mode=f"{KEEP}={pixels.mode}")


def check_splits(listing: Listing, options: PackOptions) -> None:
    """Raises ArgumentError where splits are to be drawn from a source that has its own."""
    drawn = "--val" if options.val else "--splits" if options.splits else ""
    if drawn and listing.splits is not None:
        raise ArgumentError(
            f"{drawn} draws splits, but the source has its own ({', '.join(listing.splits.names)}, "
            f"{listing.splits.origin}). Leave out {drawn} to keep these, give --no-splits to ignore "
            "them, or pack a part of the source"
        )


def plan_run(source: Source, options: PackOptions, output: Output, settings: dict[str, Any]) -> RunState:
    """Lists the samples, plans their shards, and writes the plan and the state of the run to the scratch folder."""
    listing = source.list_samples()
    check_names(listing.fields)
    check_splits(listing, options)
    base = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()} if options.append else {}
    encoding = decide_mode(options.encoding, source, listing, base.values())
    if encoding != options.encoding:
        settings = {**settings, "--mode": encoding.mode}
    first_row = 0
    if base:
        listing = match_listing(listing, base.items(), encoding)
        first_row = max(int(manifest.packing.get("listed", manifest.samples)) for manifest in base.values())
    duplicates = Duplicates.find(source, options, output, listing)
    splits = make_plan(
        listing,
        shares=options.shares,
        shuffle=options.shuffle,
        seed=options.seed,
        maxcount=options.maxcount,
        maxsize=options.maxsize,
        measure=options.measure,
        firsts=duplicates.firsts,
        skipped=duplicates.mask(len(listing)) if options.dedup == "drop" else None,
    )
    planned = [_write_split_plan(split, listing, options, output, base.get(split.name)) for split in splits]
    named = duplicates.with_names(listing, splits)
    rejected = [(planned[0].name, rejection) for rejection in listing.rejected]
    if options.dedup == "drop":
        rejected += [
            (planned[0].name, Rejection(name, f"has the same bytes as {first!r}", True)) for name, first, _ in named
        ]
    notes = [*([listing.splits.summary()] if listing.splits else []), *listing.notes]
    if len(duplicates.rows) and options.dedup != "no":
        outcome = "; skipped" if options.dedup == "drop" else "; --dedup drop skips them"
        notes.append(
            f"{counted(len(duplicates.rows), 'image has', 'images have')} the same bytes as earlier ones{outcome}"
        )
    state = RunState(
        settings=settings,
        fields=listing.fields,
        classes=listing.classes,
        notes=tuple(notes),
        rejected=tuple(rejected),
        duplicates=tuple(named),
        splits=tuple(planned),
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
    write_plan(output.scratch / f"{split.name}.plan", split, listing.samples)
    return PlannedSplit(split.name, len(split.ends), len(split.rows), first_shard)
