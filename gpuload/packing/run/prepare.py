"""Before anything is packed: what there is, what it is like, and which sample goes where, put on the disk."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpuload.disk import Manifest
from gpuload.errors import ArgumentError, MissingPackageError, SourceError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.registry import kind_of
from gpuload.packing.options import Encoding, PackOptions, Resizer
from gpuload.packing.run.append import fit_listing
from gpuload.packing.run.dedup import Duplicates
from gpuload.packing.run.output import Output
from gpuload.packing.run.plan import MEASURED, ROW, Split, make_plan, write_plan
from gpuload.packing.run.state import PlannedSplit, RunState, keep_base
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Rejection, Source

_TORCH_NEEDS = ("simplejpeg", "torch")


def choose_resizer(encoding: Encoding, before: Resizer | None = None) -> Encoding:
    """The encoding with "auto" decided: as `before`, by a run that is resumed, else by what is installed.

    Raises:
        MissingPackageError: it is to be torch, which is not installed.
    """
    missing = " and ".join(name for name in _TORCH_NEEDS if find_spec(name) is None)
    resizer = encoding.resizer
    if resizer == "auto":
        resizer = before or ("torch" if encoding.makes_jpegs_smaller and not missing else "pillow")
    if resizer == "torch" and missing:
        who = "--resume: the run that was broken off had --resizer torch, which" if before else "--resizer torch"
        raise MissingPackageError(f"{who} needs {missing}; not installed here: pip install 'gpuload[cpu]'")
    return replace(encoding, resizer=resizer)


# Names of the columns that every index, listing and plan has, and of what every batch has.
_TAKEN = ("key", "source", "width", "height", "index", "dataset", NAME, BYTES, WHERE, ROW, MEASURED)


def check_names(fields: Sequence[Field]) -> None:
    """Raises SourceError where two fields, or a field and the index, would have columns of the same name."""
    owner = dict.fromkeys(_TAKEN, "every set has one of its own")
    for field in (IMAGE, *fields):
        columns = {field.name, field.offset_column, field.bytes_column, *kind_of(field).columns(field)}
        for name in sorted(columns & set(owner)):
            of = "" if name == field.name else f" needs a column {name!r}, and"
            raise SourceError(f"field {field.name!r}:{of or ' the name is taken:'} {owner[name]}. Rename the field")
        owner |= dict.fromkeys(columns, f"field {field.name!r} has it already")


def identity(source: Source, options: PackOptions) -> dict[str, Any]:
    """What decides which bytes come out, in what a person would call it."""
    encoding = options.encoding
    return {
        "the source": source.identity,
        "splits": [list(pair) for pair in options.shares],
        "--seed": options.seed,
        "shuffle": options.shuffle,
        "--maxcount": options.maxcount,
        "--maxsize": options.maxsize,
        "--dedup": options.dedup,
        "--append": options.append,
        "measure": options.measure,
        **{f"--{name.replace('_', '-')}": value for name, value in vars(encoding).items()},
    }


def check_splits(listing: Listing, options: PackOptions) -> None:
    """Raises ArgumentError where splits are to be drawn from a source that has its own."""
    drawn = "--val" if options.val else "--splits" if options.splits else ""
    if drawn and listing.splits is not None:
        raise ArgumentError(
            f"{drawn} draws splits, but the source has its own ({', '.join(listing.splits.names)}, "
            f"{listing.splits.origin}). Leave out {drawn} to keep these, give --no-splits to ignore "
            "them, or pack a part of the source"
        )


def lay_out(source: Source, options: PackOptions, output: Output, settings: dict[str, Any]) -> RunState:
    """Lists the samples, decides what goes where, and writes that to the scratch folder."""
    listing = source.list_samples()
    check_names(listing.fields)
    check_splits(listing, options)
    base = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()} if options.append else {}
    first_row = 0
    if base:
        listing = fit_listing(listing, base.items(), options.encoding)
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
        first_of=duplicates.firsts,
        left_out=duplicates.mask(len(listing)) if options.dedup == "drop" else None,
    )
    planned = [_write_split(split, listing, options, output, base.get(split.name)) for split in splits]
    same = duplicates.named(listing, splits)
    rejected = [(planned[0].name, rejection) for rejection in listing.rejected]
    if options.dedup == "drop":
        rejected += [(planned[0].name, Rejection(name, f"has the same bytes as {of!r}", True)) for name, of, _ in same]
    notes = [*([listing.splits.summary()] if listing.splits else []), *listing.notes]
    if len(duplicates.rows) and options.dedup != "no":
        done = " and are left out" if options.dedup == "drop" else "; --dedup drop leaves them out"
        notes.append(f"{len(duplicates.rows):,} images have the same bytes as others{done}")
    state = RunState(
        settings=settings,
        fields=listing.fields,
        classes=listing.classes,
        notes=tuple(notes),
        rejected=tuple(rejected),
        duplicates=tuple(same),
        splits=tuple(planned),
        samples=len(listing),
        bytes=int(np.sum(listing.samples.column(BYTES).to_numpy())),
        first_row=first_row,
        own_splits=listing.splits is not None,
    )
    state.write(output.scratch)
    return state


def _write_split(
    split: Split, listing: Listing, options: PackOptions, output: Output, base: Manifest | None
) -> PlannedSplit:
    """Writes the plan of one split. base: what the split holds already, where shards are appended.

    Raises:
        ArgumentError: it would be empty.
    """
    if not len(split.rows) and not (base or options.append):
        if listing.splits is not None:
            raise ArgumentError(
                f"--dedup drop leaves no image for the source's split {split.name!r}: all are copies of others. Give "
                "--dedup report, or leave that split out of the source"
            )
        share = f"--val {options.val}" if options.val else "--splits"
        raise ArgumentError(
            f"{share} of {len(listing):,} images leaves none for {split.name!r}. Change {share.split()[0]}, or "
            "leave it out"
        )
    first_shard = 0
    if base is not None:
        first_shard = 1 + max(int(shard.name.rpartition("-")[2].removesuffix(".tar")) for shard in base.shards)
        keep_base(output.scratch, output.path / split.name)
    write_plan(output.scratch / f"{split.name}.plan", split, listing.samples)
    return PlannedSplit(split.name, len(split.ends), len(split.rows), first_shard)
