"""Prepares a run: lists samples, finds duplicates, checks fields, and plans the shards of each split.

What a run decides besides the plans of its splits is `RunState`, so that a later run can continue it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.disk import manifest as manifest_file
from gpuload.errors import ArgumentError, OutputError, SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import POINTS, Pixels
from gpuload.fields.picture_lists import PicturesKind, any_member
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.formats.modes import common_mode, mode_of
from gpuload.machine.installed import require
from gpuload.packing.appending import match_listing
from gpuload.packing.class_numbers import values_of_picture
from gpuload.packing.duplicates import find_firsts, note_on_shared, rejected_duplicates
from gpuload.packing.following import mode_of_set, with_mode
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.output import Output, write_json
from gpuload.packing.own_files import (
    DESCRIPTIONS,
    STATE_NAME,
    shard_files,
    shard_name,
    shard_number,
)
from gpuload.packing.resized import resizing_of
from gpuload.packing.split_plan import MEASURED, ROW, SplitPlan, make_plan, write_plan
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
from gpuload.sources.source import Source
from gpuload.types import ClassNames

OWN_SPLITS = "the source's own"
_RECORDED_ALONE = (
    "encode",
    "size",
    "fit",
)  # by a manifest; other settings of `Encoding` if not the default


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
            # Without `joined`: written until 2026-11.
            text = path.read_text(encoding="utf-8")
            state: dict[str, Any] = {"joined": (), **json.loads(text)}
            for name in ("fields", "joined"):
                state[name] = tuple(map(Field.from_json, state[name]))
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
    listing = match_listing(listing, base, options)
    firsts = find_firsts(source, options, listing)
    skipped = (firsts != np.arange(len(listing))) & options.dedup
    splits = make_plan(listing, options, firsts, skipped)
    planned = [
        _write_split_plan(split, listing, options, output, base.get(split.name))
        for split in splits
    ]
    dropped = rejected_duplicates(listing, firsts, skipped)
    notes = [*notes_on_mode, *_planning_notes(listing, len(dropped))]
    notes += note_on_shared(source, options, listing)
    if listing.splits is None and not _drawing_option(options):
        notes += _note_on_other_splits(splits[0], base)
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


def _note_on_other_splits(split: SplitPlan, base: Mapping[str, Manifest]) -> list[str]:
    """A note if a set gets samples that all go to one of its splits."""
    others = sorted(set(base) - {split.name})
    if not others:
        return []
    return [
        f"all samples went to {split.name!r}; the set has {some_of(others)}, too: --val 0.1 puts a tenth there"
    ]


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
        first_shard = 1 + max(shard_number(shard.name) for shard in base.shards)
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
