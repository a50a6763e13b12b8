"""Prepares a run: lists samples, finds duplicates, checks fields, and decides which sample goes into which shard.

The plan is a pure function of the listing and a seed, which reads no images. It is stored as one Arrow file per split
with one record batch per shard, so that workers share its pages and read their shard's part without the parent sending
it; what else a run decides is `RunState`, so that a later run can continue it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.disk import manifest as manifest_file
from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES
from gpuload.draws import MEASURE, SHUFFLE, SPLIT, make_key, permutation, random_bits
from gpuload.errors import ArgumentError, DecodeError, OutputError, SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import POINTS, Pixels, is_raw
from gpuload.fields.picture_lists import PicturesKind, any_member
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.formats.modes import common_mode, mode_of
from gpuload.lists import bounds_of, places_of
from gpuload.machine.installed import require
from gpuload.packing.class_numbers import values_of_picture
from gpuload.packing.extend_joined import (
    check_extendable,
    have_one_form,
    joined_fields,
)
from gpuload.packing.following import mode_of_set, with_mode
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.output import Output, write_json
from gpuload.packing.own_files import DESCRIPTIONS, STATE_NAME, shard_files
from gpuload.packing.resized import resizing_of
from gpuload.packing.workers import Workers
from gpuload.sources.listing import (
    BESIDE,
    BYTES,
    DRAWN_HEIGHT,
    DRAWN_WIDTH,
    NAME,
    NO_IMAGE,
    WHERE,
    Listing,
    Rejection,
    addresses,
)
from gpuload.sources.numbering import renumbered
from gpuload.sources.source import Source
from gpuload.types import I64, Bools, ClassNames

ROW = "row"
MEASURED = "measured"

OWN_SPLITS = "the source's own"
_RECORDED_ALONE = (
    "encode",
    "size",
    "fit",
)  # by a manifest; other settings of `Encoding` if not the default

_BATCH_ROWS = 1024
_MEASURED = 4096  # images from which mean and std are computed, about

# Names of the columns that every index, listing and plan has, and of the fields that every batch can have.
_RESERVED = (
    "key",
    "source",
    "width",
    "height",
    "index",
    "dataset",
    POINTS,
    NAME,
    BYTES,
    BESIDE,
    WHERE,
    DRAWN_WIDTH,
    DRAWN_HEIGHT,
    ROW,
    MEASURED,
)

_LOOKED_AT = 16  # pictures of a field, for their mode
_MOST_CHARACTERS = 4096  # of a text in a manifest


@dataclass(frozen=True)
class SplitPlan:
    """One split: its samples in stored order, and where its shards end.

    Attributes:
        name: Such as "train".
        rows: int64 (N,), rows of the listing.
        ends: int64 (shards,); shard s holds rows[ends[s-1]:ends[s]].
        measured: bool (N,), whether mean and std include the image's pixels.
    """

    name: str
    rows: I64
    ends: I64
    measured: Bools


@dataclass(frozen=True)
class PlannedSplit:
    """One split of the plan.

    Attributes:
        name: Such as "train".
        shards: The new ones.
        first_shard: The number of the first of them.
    """

    name: str
    shards: int
    first_shard: int = 0

    def files(self, appended: bool) -> list[str]:
        """The names of the files that the run writes into the split's folder.

        Args:
            appended: Whether to leave out the files that describe the split, which were there before.
        """
        names = shard_files(
            shard_name(self.first_shard + number) for number in range(self.shards)
        )
        return [*names, *(() if appended else DESCRIPTIONS)]


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


@dataclass(frozen=True)
class RunState:
    """The decisions of a run, apart from the rows of its plan.

    Attributes:
        settings: Those that must be the same in a run that resumes this one, by the names that messages use.
        fields: What each sample has.
        classes: Name of each class by its number; None if unknown.
        notes: From listing, for the user.
        rejected: Samples rejected while listing or skipped as duplicates; the first split reports them.
        splits: Each with its new shards.
        samples: Number of listed samples.
        bytes: Size of their images.
        first_row: Number of samples that earlier runs listed.
        own_splits: Whether the splits are the source's own.
        image: The name of the first picture.
        mode: Of the set, see `following.mode_of_set`; RGB in states of before 2026-11-29.
        joined: What each sample has besides, see `Listing.joined`.
    """

    settings: dict[str, Any]
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    notes: list[str]
    rejected: list[Rejection]
    splits: list[PlannedSplit]
    samples: int
    bytes: int
    first_row: int
    own_splits: bool
    image: str = "image"
    mode: str = "RGB"
    joined: tuple[Field, ...] = ()

    @classmethod
    def read(cls, scratch: Path) -> "RunState | None":
        """The state, or None if the run was interrupted before it was written.

        Raises:
            OutputError: it is of another version, or damaged.
        """
        path = scratch / STATE_NAME
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            for name in ("fields", "joined"):
                state[name] = tuple(map(Field.from_json, state.get(name, ())))
            if state["classes"] is not None:
                state["classes"] = tuple(state["classes"])
            state["rejected"] = [Rejection(**entry) for entry in state["rejected"]]
            state["splits"] = [PlannedSplit(**entry) for entry in state["splits"]]
            state.pop("duplicates", None)  # written until 2026-11
            return cls(**state)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise OutputError(
                f"{path}: is of another version of gpuload, or damaged. Delete the output folder and pack again"
            ) from None


def recorded_settings(source: Source, options: PackOptions) -> dict[str, Any]:
    """The settings that a manifest records, by their names there; "options" holds others if not the defaults."""
    others = dict[str, Any]()
    for field in fields(Encoding):
        setting = getattr(options, field.name)
        if setting != field.default and field.name not in _RECORDED_ALONE:
            others[field.name] = setting
    if options.dedup:
        others["dedup"] = "drop"  # as when there was another answer
    if not source.options.own_splits:
        others["no_splits"] = True
    settings: dict[str, Any] = {"splits": dict(options.shares)}
    for name in ("shuffle", "seed", "maxcount", "maxsize", "encode", "size"):
        settings[name] = getattr(options, name)
    settings["fit"] = options.fit if options.size else None
    if others:
        settings["options"] = others
    return settings


def settings_of(source: Source, options: PackOptions) -> dict[str, Any]:
    """All settings that affect the bytes of the shards, by the names that messages use."""
    alone = {"the source": source.identity, "append": options.append}
    return {**alone, **recorded_settings(source, options)}


def refuse_change(
    subject: str, before: Mapping[str, Any], now: Mapping[str, Any], advice: str
) -> None:
    """Raises ArgumentError if a run is resumed with another setting.

    Args:
        subject: What was run before, the beginning of the message.
        before: Its settings.
        now: Those of this run.
        advice: What to do instead, the end of the message.
    """
    now = json.loads(json.dumps(now))
    for name in sorted({*now, "options"}):
        if before.get(name) != now.get(name):
            raise ArgumentError(
                f"--resume: {subject} had {name} {before.get(name)!r}, this run has {now.get(name)!r}. {advice}"
            )


def check_packages(options: PackOptions) -> None:
    """Raises MissingPackageError if an option needs a package that cannot be used; called before anything is
    written."""
    if options.engine == "ray":
        require("--engine ray", "ray")
    if options.jpeg != "keep":
        require("--jpeg baseline", "jpeglib")


def plan_run(source: Source, options: PackOptions, output: Output) -> RunState:
    """Lists the samples, plans their shards, and writes the plan and the state of the run to the scratch folder."""
    listing = source.list_samples()
    check_names(listing.fields, listing.classes, listing.image)
    listing = fit_pictures(source, listing, options)
    _check_splits(listing, options)
    base = read_manifests(output)
    if not base:
        _refuse_without_pictures(source, listing)
    mode, notes_on_mode = mode_of_set(source, listing, options, base)
    options = with_mode(options, mode)
    listing = _match_listing(listing, base, options)
    firsts = _find_firsts(source, options, listing)
    skipped = (firsts != np.arange(len(listing))) & options.dedup
    splits = make_plan(listing, options, firsts, skipped)
    planned = [
        _write_split_plan(split, listing, options, output, base.get(split.name))
        for split in splits
    ]
    dropped = _dropped(listing, firsts, skipped)
    notes = [*notes_on_mode, *_planning_notes(listing, len(dropped))]
    notes += _note_on_shared(source, options, listing)
    others = sorted(set(base) - {split.name for split in splits})
    if others and not _drawing_option(options) and listing.splits is None:
        notes.append(
            f"all samples went to {splits[0].name!r}; the set has {some_of(others)}, too: --val 0.1 puts a tenth there"
        )
    state = RunState(
        settings=settings_of(source, options),
        fields=listing.fields,
        classes=listing.classes,
        notes=notes,
        rejected=[*listing.rejected, *dropped],
        splits=planned,
        samples=len(listing),
        bytes=int(np.sum(numbers_of(listing.samples.column(BYTES)))),
        first_row=max(map(_count_listed, base.values()), default=0),
        own_splits=listing.splits is not None,
        image=listing.image,
        mode=mode,
        joined=listing.joined,
    )
    write_json(output.scratch / STATE_NAME, asdict(state))
    return state


def _refuse_without_pictures(source: Source, listing: Listing) -> None:
    """Raises SourceError if no sample has a picture: there is no mode then, and nothing to decode."""
    lists = [field.name for field in listing.fields if field.kind == PicturesKind.name]
    if not lists or numbers_of(listing.samples.column(BYTES)).any():
        return
    if set(addresses(listing.samples).to_pylist()) != {NO_IMAGE}:
        return
    if not any(any(listing.samples.column(name).to_pylist()) for name in lists):
        raise SourceError(
            f"{source.title}: no sample has a picture in {some_of(lists)}. A set without any is a table: read it as "
            "such, or pack its samples together with some that have pictures"
        )


def read_manifests(output: Output) -> dict[str, Manifest]:
    """The manifest of each split that is there already, by name."""
    folders = output.packed_splits()
    return {name: Manifest.read(folder) for name, folder in folders.items()}


def _planning_notes(listing: Listing, dropped: int) -> list[str]:
    """What the user should know of the listing.

    Args:
        dropped: The number of duplicates that are skipped.
    """
    notes = list[str]()
    if listing.splits is not None:
        notes.append(listing.splits.summary())
    notes += listing.notes
    if dropped:
        notes.append(
            f"{counted(dropped, 'image has', 'images have')} the same bytes as earlier ones; skipped"
        )
    return notes


def _count_listed(manifest: Manifest) -> int:
    """The number of samples that the runs before listed, packed or not."""
    return int(manifest.packing.get("listed", manifest.samples))


def _drawing_option(options: PackOptions) -> str:
    """The option that draws splits; "" where none does."""
    if options.val:
        return "--val"
    return "--splits" if options.splits else ""


def _check_splits(listing: Listing, options: PackOptions) -> None:
    """Raises ArgumentError if the source has splits of its own, and others are to be drawn."""
    option = _drawing_option(options)
    if not option or listing.splits is None:
        return
    source_splits = f"({', '.join(listing.splits.names)}, {listing.splits.origin})"
    if len(options.shares) == 1:
        raise ArgumentError(
            f"all samples are to go to {options.shares[0][0]!r}, but the source has its own splits {source_splits}. "
            "Give the folder of the whole set as OUT to keep these, or --no-splits to ignore them"
        )
    raise ArgumentError(
        f"{option} draws splits, but the source has its own {source_splits}. Leave out {option} to keep these, or give "
        "--no-splits to ignore them"
    )


def _dropped(listing: Listing, firsts: I64, skipped: Bools) -> list[Rejection]:
    """The duplicates that are skipped, each with the name of the first sample with its image."""
    rows = np.flatnonzero(skipped)
    names = listing.samples.column(NAME)
    dropped_names = names.take(array_of(rows)).to_pylist()
    first_names = names.take(array_of(firsts[rows])).to_pylist()
    return [
        Rejection(name, f"has the same bytes as {first!r}", True)
        for name, first in zip(dropped_names, first_names, strict=True)
    ]


def fit_pictures(source: Source, listing: Listing, options: Encoding) -> Listing:
    """The listing with the mode of each further picture, which some of its files tell.

    Raises:
        ArgumentError: the options resize images, and do not say what becomes of a picture of numbers, or say it of
            one that is not there.
        SourceError: its pictures have different modes.
    """
    kinds = (PictureKind.name, PicturesKind.name)
    names = [field.name for field in listing.fields if field.kind in kinds]
    resized = [entry.partition("=")[0] for entry in options.resize]
    for option, asked in (
        ("resize", resized),
        ("class-numbers", options.class_numbers),
    ):
        strangers = sorted(set(asked) - set(names))
        if strangers:
            raise ArgumentError(
                f"--{option} {strangers[0]}: is no further picture; there are {some_of(names) or 'none'}"
            )
    fields = tuple(
        _with_mode(source, listing, field, options) if field.name in names else field
        for field in listing.fields
    )
    if options.size is not None:
        for field in fields:
            if field.name in names:
                resizing_of(field, options)
    return replace(listing, fields=fields)


def _with_mode(
    source: Source, listing: Listing, field: Field, options: Encoding
) -> Field:
    modes = _modes_of_some(source, listing, field, options)
    mode = common_mode(modes)
    if modes and not mode:
        raise SourceError(
            f"field {field.name!r}: its pictures have different modes ({some_of(sorted(set(modes)))}), and a field has "
            "one. Convert them, or pack them under different names"
        )
    pixels = Pixels.of_mode(mode or "RGB")
    is_encoded = pixels.mode in ("RGB", "L", "RGBA", "I;16")
    extension = "png" if is_encoded else "npy"
    is_list = field.kind == PicturesKind.name
    member = any_member(field.name, extension) if is_list else extension
    return replace(field, member=member, **pixels.in_field())


def _modes_of_some(
    source: Source, listing: Listing, field: Field, options: Encoding
) -> list[str]:
    """The modes of a few pictures; those that cannot be read are rejected later, with their reasons."""
    rows = np.unique(np.linspace(0, len(listing) - 1, _LOOKED_AT).astype(np.int64))
    places = listing.samples.column(field.name).take(array_of(rows)).to_pylist()
    if field.kind == PicturesKind.name:
        places = [place for of_sample in places for place in of_sample[:_LOOKED_AT]]
    source.expect(places)
    modes = []
    for place in places:
        source.wait(place)
        try:
            values = values_of_picture(source.read(place), field, options)
            modes.append(mode_of(values.data))
        except Exception:  # Pillow's parsers may raise anything
            continue
    return modes


def check_names(
    fields: Sequence[Field], classes: ClassNames = None, image: str = "image"
) -> None:
    """Raises SourceError if two fields, or a field and the index, would have columns of the same name; or if the name
    of a class is longer than a manifest may have it."""
    for name, names in [
        ("label", classes),
        *((field.name, field.classes) for field in fields),
    ]:
        long = [text for text in names or () if len(text) > _MOST_CHARACTERS]
        if long:
            raise SourceError(
                f"field {name!r}: the class {long[0][:40]!r}… has a name of {len(long[0]):,} characters, more than "
                f"{_MOST_CHARACTERS:,}. Shorten it; texts are captions, not classes"
            )
    owners = dict.fromkeys(_RESERVED, "gpuload reserves for every set")
    for field in (replace(IMAGE, name=image), *fields):
        columns = {
            field.name,
            field.offset_column,
            field.bytes_column,
            *kind_of(field).columns(field),
        }
        for name in sorted(columns & set(owners)):
            problem = (
                "has a name"
                if name == field.name
                else f"needs a column {name!r}, a name"
            )
            raise SourceError(
                f"field {field.name!r}: {problem} that {owners[name]}. Rename the field"
            )
        owners |= dict.fromkeys(columns, f"field {field.name!r} uses already")


def hash_images(task: tuple[Source, pa.RecordBatch]) -> list[tuple[int, bytes]]:
    """Row and BLAKE2 hash of each of these images, given by their rows and addresses, except for those that cannot be
    read."""
    source, images = task
    rows, addresses = (column.to_pylist() for column in images.columns)
    hashes = []
    source.expect(addresses)
    for row, address in zip(rows, addresses, strict=True):
        try:
            data = source.read(address)
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
    firsts = np.arange(len(listing))
    if not options.dedup and len(options.shares) == 1:
        return firsts
    first_of = dict[bytes, int]()
    for row, digest in _hash(source, options, listing, _of_one_size(listing)):
        firsts[row] = first_of.setdefault(digest, row)
    return firsts


def _hash(
    source: Source, options: PackOptions, listing: Listing, rows: I64
) -> list[tuple[int, bytes]]:
    """Row and digest of the images of these rows, in order, without those that cannot be read."""
    if not len(rows):
        return []
    columns = {"row": rows, "address": addresses(listing.samples).take(array_of(rows))}
    images = pa.table(columns).combine_chunks()
    # A slice is pickled with the whole of its table, what is taken from it is not.
    tasks = [
        (source, batch.take(array_of(np.arange(len(batch)))))
        for batch in images.to_batches(_BATCH_ROWS)
    ]
    count = min(options.worker_count, len(tasks))
    hashes = list[tuple[int, bytes]]()
    with Workers[Any, list[tuple[int, bytes]]](count, hash_images) as workers:
        # Where an image killed the worker, none of its batch are compared.
        results = workers.run(tasks, died=lambda task, _: (task[0], task[1][:0]))
        for _, hashes_of_batch in results:
            hashes += hashes_of_batch
    return sorted(hashes)


def _of_one_size(listing: Listing) -> I64:
    """The rows whose images have as many bytes as another one; a sample without an image has none."""
    sizes = numbers_of(listing.samples.column(BYTES))
    _, number, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    return np.flatnonzero((counts[number] > 1) & (sizes > 0))


def _note_on_shared(
    source: Source, options: PackOptions, listing: Listing
) -> list[str]:
    """A sentence on images that lie in several of the source's own splits: a validation with them says too much."""
    if listing.splits is None or options.dedup:
        return []
    split_of = listing.splits.numbers
    first_of = dict[bytes, int]()
    shared = list[int]()
    for row, digest in _hash(source, options, listing, _under_one_name(listing)):
        first = first_of.setdefault(digest, row)
        if split_of[first] != split_of[row]:
            shared.append(row)
    if not shared:
        return []
    names = listing.samples.column(NAME).take(array_of(np.array(shared))).to_pylist()
    are = counted(len(shared), "image lies", "images lie")
    return [
        f"{are} in another split, too: {some_of(names)}. --dedup packs each once; `python -m gpuload report` finds "
        "those of other names"
    ]


def _under_one_name(listing: Listing) -> I64:
    """The rows whose files have the name and the size of one in another split. Only these are read to be compared."""
    assert listing.splits is not None
    rows = _of_one_size(listing)
    names = listing.samples.column(NAME).take(array_of(rows)).to_pylist()
    sizes = numbers_of(listing.samples.column(BYTES))[rows].tolist()
    base_names = [name.rpartition("/")[2] for name in names]
    files = list(zip(base_names, sizes, strict=True))
    splits_of_file = dict[tuple[str, int], set[int]]()
    numbers = listing.splits.numbers[rows].tolist()
    for file, split in zip(files, numbers, strict=True):
        splits_of_file.setdefault(file, set()).add(split)
    is_shared = [len(splits_of_file[file]) > 1 for file in files]
    return rows[np.array(is_shared, bool)]


def _write_split_plan(
    split: SplitPlan,
    listing: Listing,
    options: PackOptions,
    output: Output,
    base: Manifest | None,
) -> PlannedSplit:
    """Writes the plan of one split.

    Args:
        base: The manifest of the split to which shards are appended.

    Raises:
        ArgumentError: the split would be empty. OutputError: a file of no set has the name of a new shard.
    """
    if not len(split.rows) and not (base or options.append):
        drawn = f"--val {options.val}" if options.val else "--splits"
        option = "--dedup" if listing.splits else drawn
        raise ArgumentError(
            f"{option}: no image of {len(listing):,} is left for {split.name!r}. Change {option.split()[0]}, or leave "
            "it out"
        )
    first_shard = 0
    if base is not None:
        first_shard = 1 + max(
            int(shard.name.rpartition("-")[2].removesuffix(".tar"))
            for shard in base.shards
        )
        output.save_base(split.name)
    write_plan(output.scratch, split, listing.samples)
    planned = PlannedSplit(split.name, len(split.ends), first_shard)
    folder = output.path / split.name
    for name in planned.files(appended=True):
        if (folder / name).exists():
            raise OutputError(
                f"{folder / name}: is not in {manifest_file.FILE_NAME}, and --append would replace it. Move it away"
            )
    return planned


def _match_listing(
    listing: Listing, base: Mapping[str, Manifest], options: PackOptions
) -> Listing:
    """The listing, with the class numbers of the set to which it is appended, and its joined fields apart.

    Args:
        base: Manifest of each split of the set, by name.

    Raises:
        SourceError: its fields differ from those of the set, only one of the two names its classes, or splits number
            them differently.
    """
    names = [name for name, _ in options.shares]
    if listing.splits is not None:
        names = [*listing.splits.names]
    extended = {name: base[name] for name in names if name in base}
    listing = _with_joined_apart(listing, extended)
    for split, manifest in base.items():
        _check_appendable(split, manifest, listing, options)
    for split, manifest in extended.items():
        check_extendable(split, manifest, (*listing.fields, *listing.joined))
    # The classes of splits that get no sample have a part in it unless they contradict those of the others.
    for splits in (base, extended):
        matched = listing
        for manifest in splits.values():
            matched = _merge_fields(matched, manifest)
        if all(_keeps_numbers(matched, manifest) for manifest in extended.values()):
            return matched
    raise SourceError(
        f"--append: {some_of([*extended])} number their classes differently, as after a join to one of them. Append to "
        "each alone, such as OUT/train"
    )


def _with_joined_apart(listing: Listing, extended: Mapping[str, Manifest]) -> Listing:
    """The listing, whose fields that were joined to the set are apart from those in shards.

    Args:
        extended: Manifest of each split that gets samples, by name.

    Raises:
        SourceError: a field was joined to only some of these splits, or has another form there.
    """
    apart = dict[str, Field]()
    for manifest in extended.values():
        packed = {field.name for field in manifest.fields}
        names = joined_fields(manifest).keys() - packed
        apart |= {field.name: field for field in listing.fields if field.name in names}
    for split, manifest in extended.items():
        joined = joined_fields(manifest)
        for name, field in apart.items():
            there = joined.get(name)
            if there is None:
                raise SourceError(
                    f"--append: {name!r} was joined to other splits of the set, and not to {split}. Join it there, "
                    "too, or append to each split alone, such as OUT/train"
                )
            if not have_one_form(field, there):
                raise SourceError(
                    f"--append: the joined field {name!r} of {split} is {_values_of(there)}, and that of the new "
                    f"samples {_values_of(field)}. Give such values, or leave it out and join it afterwards"
                )
    return replace(
        listing,
        fields=tuple(field for field in listing.fields if field.name not in apart),
        joined=(*apart.values(),),
    )


def _values_of(field: Field) -> str:
    """The kind of a field, and how many values it has, for messages."""
    return f"{field.kind} of {field.size}" if field.size else field.kind


def _keeps_numbers(listing: Listing, manifest: Manifest) -> bool:
    """Whether each class has the number that it has in a split."""
    pairs = [(listing.classes, manifest.classes)]
    for field in (*listing.fields, *listing.joined):
        there = _field_in(manifest, field)
        if there is not None:
            pairs.append((field.classes, there.classes))
    return all(
        now is None or now[: len(old or ())] == (old or ()) for now, old in pairs
    )


def _field_in(manifest: Manifest, field: Field) -> Field | None:
    """The field of a split that holds such values: the joined one, if it is of the same form, or the packed one."""
    joined = joined_fields(manifest).get(field.name)
    if joined is not None and have_one_form(field, joined):
        return joined
    packed = {packed.name: packed for packed in manifest.fields[1:]}
    return packed.get(field.name)


def _check_appendable(
    split: str, manifest: Manifest, listing: Listing, encoding: Encoding
) -> None:
    """Raises SourceError if the samples cannot be appended to a split, which has this manifest."""
    if not manifest.upright:
        raise SourceError(
            f"--append: {split} is an index of shards that others packed, whose images a loader turns as Exif "
            "says. Pack the new samples into a folder of their own, and mix the sets"
        )
    if manifest.image.name != listing.image:
        raise SourceError(
            f"--append: the first picture of {split} is {manifest.image.name!r}, that of the new samples "
            f"{listing.image!r}. Append samples with the same fields, or pack them into another folder"
        )
    kind = "raw" if manifest.is_raw else "image"
    before = _described(kind, manifest.pixels.mode, manifest.fields[1:])
    new_kind = "raw" if encoding.encode == "raw" else "image"
    now = _described(new_kind, encoding.pixels.mode, listing.fields)
    if before != now:
        raise SourceError(
            f"--append: {split} has the fields {before}, the new samples have {now}. Append samples with the same "
            "fields, or pack them into another folder"
        )


def _merge_fields(listing: Listing, manifest: Manifest) -> Listing:
    """The listing, with the class numbers of a split to which it is appended.

    Raises:
        SourceError: only one of the two names its classes, or gives them COCO's numbers.
    """
    samples = listing.samples
    classes = listing.classes
    fields = []
    for field in (*listing.fields, *listing.joined):
        old_field = _field_in(manifest, field)
        if old_field is None:
            fields.append(field)
            continue
        if kind_of(field).names_set_classes:
            classes, samples = _merge_classes(samples, field, manifest.classes, classes)
        else:
            names, samples = _merge_classes(
                samples, field, old_field.classes, field.classes
            )
            category_ids = _merge_ids(names, field, old_field)
            field = replace(field, classes=names, category_ids=category_ids)
        fields.append(replace(field, instances_of=old_field.instances_of))
    in_shards = len(listing.fields)
    return replace(
        listing,
        samples=samples,
        fields=tuple(fields[:in_shards]),
        joined=tuple(fields[in_shards:]),
        classes=classes,
    )


def _described(image: str, mode: str, fields: Iterable[Field]) -> str:
    """Fields in a message; the same only for those that can be appended to each other."""
    texts = [f"image ({image} {mode})"]
    texts += [f"{field.name} ({_form_of(field)})" for field in fields]
    return ", ".join(texts)


def _form_of(field: Field) -> str:
    """The kind of a field, and what tells its values from those of others of this kind."""
    parts = (field.kind, _described_member(field), field.size, field.dtype)
    return " ".join(str(part) for part in parts if part)


def _described_member(field: Field) -> str:
    """The extension of its members; of pictures, where it follows from each file, whether they are pixels."""
    if field.kind not in (PictureKind.name, PicturesKind.name):
        return field.member
    return "npy" if is_raw(field) else ""


def _merge_classes(
    samples: pa.Table, field: Field, old: ClassNames, new: ClassNames
) -> tuple[ClassNames, pa.Table]:
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
    values = renumbered(pa.concat_arrays(samples.column(column).chunks), mapping)
    position = samples.column_names.index(column)
    return merged, samples.set_column(position, samples.schema.field(position), values)


def _merge_ids(names: ClassNames, field: Field, old: Field) -> tuple[int, ...] | None:
    """COCO's numbers of all classes; None where the set has none.

    Args:
        names: Of the classes of both.
        field: Of the new samples.
        old: Of the set.

    Raises:
        SourceError: a class has no number, or another one than in the set.
    """
    if old.category_ids is None:
        return None
    before = dict(zip(old.classes or (), old.category_ids, strict=True))
    new = dict(zip(field.classes or (), field.category_ids or (), strict=False))
    for name in new.keys() & before.keys():
        if new[name] != before[name]:
            fault = f"has the id {before[name]} in the set, and {new[name]} in the new samples"
            raise SourceError(
                f"--append: the category {name!r} of {field.name!r} {fault}. Correct one of them"
            )
    added = (names or ())[len(old.category_ids) :]
    if lacking := [name for name in added if name not in new]:
        fault = f"has classes without an id ({some_of(lacking)}), those of the set have one of COCO's"
        raise SourceError(
            f"--append: {field.name!r} {fault}. Append from COCO's JSON, or pack into another folder"
        )
    return old.category_ids + tuple(new[name] for name in added)


def make_plan(
    listing: Listing,
    options: PackOptions,
    firsts: I64 | None = None,
    skipped: Bools | None = None,
) -> tuple[SplitPlan, ...]:
    """The splits: the source's own if the listing has any, else in the order of `options.shares`.

    Args:
        listing: All samples of the source.
        options: Of the run: shares, seed, and the sizes of shards.
        firsts: int64 (N,), for each sample the row of the first one with the same image, into whose split it goes,
            unless the splits are the source's own.
        skipped: bool (N,), samples that are not packed.
    """
    spans = _sample_spans(listing)
    # The size must depend only on the data, never on the machine, so that the same input gives the same shards
    # everywhere. Small sets get enough shards to distribute over workers.
    usual_size = min(max(int(spans.sum()) // 16, 16_000_000), 1_000_000_000)
    maxsize = options.maxsize or usual_size
    order = np.arange(len(listing))
    if options.shuffle:
        order = permutation(make_key(options.seed, SHUFFLE), len(listing))
    names, split_of = _assign_splits(listing, options, firsts)
    if skipped is not None:
        split_of[skipped] = -1
    splits = []
    for number, name in enumerate(names):
        rows = order[split_of[order] == number]
        ends = _cut_shards(spans[rows], options.maxcount, maxsize)
        measured = _choose_measured(len(rows), make_key(options.seed, MEASURE, number))
        splits.append(SplitPlan(name, rows, ends, measured))
    return tuple(splits)


def _assign_splits(
    listing: Listing, options: PackOptions, firsts: I64 | None
) -> tuple[Sequence[str], I64]:
    """The names of the splits, and int64 (N,): the number of each sample's one."""
    if listing.splits is not None:
        return listing.splits.names, listing.splits.numbers.copy()
    names = [name for name, _ in options.shares]
    shares = [share for _, share in options.shares]
    return names, _draw_splits(listing, shares, options.seed, firsts)


def _sample_spans(listing: Listing) -> I64:
    """int64 (N,): bytes that each sample takes in a tar if its image is kept.

    Exact for classes and texts; other fields are small compared with an image and are estimated.
    """
    images: I64 = numbers_of(listing.samples.column(BYTES))
    members = [
        images,
        *(
            kind_of(field).estimate_bytes(field, listing.samples)
            for field in listing.fields
        ),
    ]
    if BESIDE in listing.samples.column_names:
        members.append(numbers_of(listing.samples.column(BESIDE)))
    sizes = np.array(members, np.int64)
    spans: I64 = np.sum(BLOCK_BYTES + -(-sizes // BLOCK_BYTES) * BLOCK_BYTES, axis=0)
    return spans


def _draw_splits(
    listing: Listing, shares: Sequence[float], seed: int, firsts: I64 | None
) -> I64:
    """int64 (N,): number of each sample's split. Each split but the first gets its share of every class.

    Args:
        shares: Of the splits, which add up to 1; the first split gets the rest.
    """
    count = len(listing)
    labels = (
        numbers_of(listing.samples.column("label"))
        if "label" in listing.samples.column_names
        else None
    )
    if labels is None or labels.dtype.kind != "i":
        labels = np.zeros(count, np.int64)
    firsts = np.arange(count) if firsts is None else firsts
    split_of = np.zeros(count, np.int64)
    rest = np.unique(firsts)
    rest_share = 1.0
    for number in range(1, len(shares)):
        # The second split has the key of a lone --val; in the keys of further splits the number is a separate word.
        key = make_key(seed, SPLIT) if number == 1 else make_key(seed, SPLIT, number)
        chosen = _choose_val(labels[rest], shares[number] / rest_share, key)
        split_of[rest[chosen]] = number
        rest = rest[~chosen]
        rest_share -= shares[number]
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
    may_grow = by_remainder[
        (remainders[by_remainder] > 0) & (quota[by_remainder] < sizes[by_remainder] - 1)
    ]
    quota[may_grow[: max(missing, 0)]] += 1
    by_class = np.lexsort((random_bits(make_key(key), np.arange(len(labels))), number))
    chosen[by_class] = places_of(sizes) < quota[number[by_class]]
    return chosen


def _cut_shards(spans: I64, maxcount: int, maxsize: int) -> I64:
    """int64 (shards,): the end of each shard, as late as both limits allow.

    A shard's tar, including its end marker, has at most `maxsize` bytes; a larger sample gets a shard of its own.

    For example spans 512 512 512 with maxcount 2 give ends 2 3.
    """
    # An archive ends with two zero blocks, and its size is a multiple of the record size.
    room = maxsize // RECORD_BYTES * RECORD_BYTES - 2 * BLOCK_BYTES
    total = bounds_of(spans)
    ends = []
    start = 0
    while start < len(spans):
        fitting = int(np.searchsorted(total, total[start] + room, side="right")) - 1
        start = max(start + 1, min(start + maxcount, fitting))
        ends.append(start)
    return np.array(ends, np.int64)


def _choose_measured(count: int, key: int) -> Bools:
    """bool (count,): which samples are measured: all of a small split, a random part of a large one.

    Measuring requires a decode to full RGB, so a sixteenth of the samples is measured, but at least 512 and at most
    4096.
    """
    chosen = np.zeros(count, bool)
    chosen[
        permutation(key, count)[: min(_MEASURED, max(_MEASURED // 8, count // 16))]
    ] = True
    return chosen


def write_plan(scratch: Path, split: SplitPlan, samples: pa.Table) -> None:
    """Writes one batch per shard: `row` (number in the listing), `measured`, and the columns of the listing."""
    columns = [
        pa.field(ROW, pa.int64()),
        pa.field(MEASURED, pa.bool_()),
        *samples.schema,
    ]
    schema = pa.schema(columns)
    with (
        pa.OSFile(str(plan_path(scratch, split.name)), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        start = 0
        for end in split.ends.tolist():
            rows = array_of(split.rows[start:end])
            measured = array_of(split.measured[start:end])
            flat = [
                column.chunk(0)
                for column in samples.take(rows).combine_chunks().columns
            ]
            writer.write_batch(pa.record_batch([rows, measured, *flat], schema=schema))
            start = end


def plan_path(scratch: Path, split: str) -> Path:
    return scratch / f"{split}.plan"


def read_plan(scratch: Path, split: str, shard: int) -> pa.RecordBatch:
    """The samples of one shard; the columns are views of the memory-mapped file."""
    return pa.ipc.open_file(
        pa.memory_map(str(plan_path(scratch, split)), "r")
    ).get_batch(shard)
