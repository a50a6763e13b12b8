"""Packs a source into shards: lists and plans the samples, has workers pack them, then describes each split."""

import dataclasses
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import PIL

from gpuload.checks import FLAG, Rule, as_items, as_text, check, nearest
from gpuload.counted import counted, progress_bar
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk.card import write_card
from gpuload.disk.index import class_numbers, notes_on_numbers
from gpuload.disk.manifest import TIMM_NAME, write_timm_info
from gpuload.disk.places import FILE_NAME
from gpuload.errors import ArgumentError, OutputError, RemoteError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.images import has_seek_points
from gpuload.fields.picture_lists import PicturesKind, any_member
from gpuload.fields.pictures import PictureKind
from gpuload.formats.masks import FEW_BITS, MANY_BITS
from gpuload.machine.fork_server import sigint_deferred
from gpuload.packing.extend_joined import extend_joined, notes_on_empty
from gpuload.packing.following import with_mode
from gpuload.packing.image import KEPT, MISSING
from gpuload.packing.options import AUTO, PackOptions
from gpuload.packing.output import Output, as_line, cannot_write, describe, write_lines
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.plan import (
    OWN_SPLITS,
    PlannedSplit,
    RunState,
    check_packages,
    plan_run,
    read_manifests,
    recorded_settings,
    refuse_change,
    settings_of,
)
from gpuload.packing.shard import ShardJob, ShardReport, StoringCost, pack_shard
from gpuload.packing.spread import rounded, spread_of
from gpuload.packing.workers import (
    Blame,
    Workers,
    prepare_source,
    read_position,
    start_server,
)
from gpuload.sources.beside import PicturesBeside
from gpuload.sources.columns import IterableSource, open_batches
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.matched import are_patterns
from gpuload.sources.matched_files import open_matched
from gpuload.sources.registry import open_source
from gpuload.sources.source import Source
from gpuload.store.files import temporaries
from gpuload.store.url import LOCATION, URL

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpuload.packing.settings import PackSettings

_Levels = tuple[float, ...] | None  # of each channel, where they were measured


@dataclass(frozen=True)
class PackProgress:
    """The progress of a run: images and bytes read so far, and in total."""

    images: int
    bytes: int
    total_images: int
    total_bytes: int


Watch = Callable[[PackProgress], None]


@dataclass(frozen=True, repr=False)
class PackReport:
    """The result of a run of the packer.

    Attributes:
        folder: Where the set is.
        manifests: One for each split, with the shards that were there before.
        kinds: Number of images by `StoredImage.kind`, "kept" or what a re-encoded image was before.
        rejected: The rejected and skipped samples, by split.
        notes: Sentences for the user.
        packed: Images that this run has packed itself, without those of a set that it extended or a run that it
            resumed.
        elapsed_s: How long the run took, in seconds.
        packing_s: The part of it in which shards were packed, without listing the samples and starting the workers.
        costs: What images have cost that are stored in another encoding, by the change, such as "tiff → .npy"; without
            those of a set that was extended.
    """

    folder: Path | URL
    manifests: dict[str, Manifest]
    kinds: Counter[str]
    rejected: tuple[Rejection, ...]
    notes: tuple[str, ...]
    packed: int
    elapsed_s: float
    packing_s: float = 0.0
    costs: Mapping[str, StoringCost] = dataclasses.field(default_factory=dict)

    @property
    def images(self) -> int:
        """Samples in all splits."""
        return sum(manifest.samples for manifest in self.manifests.values())

    def __repr__(self) -> str:
        asked = sum(rejection.asked for rejection in self.rejected)
        images = f"{counted(self.images, 'image')}, {self.packed:,} packed now"
        others = f"{len(self.rejected) - asked:,} rejected, {asked:,} left out"
        return f"PackReport({str(self.folder)!r}: {images}; {others})"


def pack(
    samples: Iterable[Any] | Source | str | Path | URL,
    out: str | Path | URL,
    *,
    from_: str | None = None,
    labels: str | Path | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    no_labels: bool = False,
    source_options: Mapping[str, Any] | None = None,
    watch: Watch = lambda progress: None,
    progress: bool = True,
    own_splits: bool = True,
    pictures: Sequence[str] | Mapping[str, str | Path | URL] = (),
    **settings: "Unpack[PackSettings]",
) -> PackReport:
    """Packs samples given as dicts, one per sample, or the files at a path, as `python -m gpuload pack` does.

    It starts processes: call it under `if __name__ == "__main__"`.

    Args:
        samples: Dicts such as {"image": bytes, "label": "cat"}; `gpuload.Source` says what they may hold. They are
            iterated once, in order. Or a data set of Hugging Face, a table of pandas, Polars or Arrow, a dict with one
            of these for each split, a source; or a path or URL.
        out: An empty or new folder, or a URL such as "s3://bucket/set"; it gets train/, and val/ or test/ where there
            are such splits.
        from_: For a path, the name of its source, as `--from` on the command line; None: recognised.
        labels: For a path, a table or COCO's JSON.
        columns: For a path, the names of columns by what they hold, such as {"label": "species"}.
        no_labels: For a path, whether images are packed alone.
        source_options: For a path, other options of the source by name.
        watch: Called a few times a second with the progress.
        progress: Whether a bar is shown on stderr, where that is a terminal; elsewhere nothing is printed in any case.
        own_splits: Whether the splits that the samples themselves have ("split": "train", or a source's folders) are
            kept.
        pictures: Names of entries that are further pictures although their values do not tell, such as arrays of depth.
            Paths (`pathlib.Path`), PIL images and the bytes of images are such by themselves. For a path, a dict of
            folders with further pictures by their names, whose files are called as the images are; `samples` may be
            such a dict of folders, too, of which the first has the images. Or patterns of files below the path, the
            first of the images: {"left": "image_2/*_10.png", "right": "image_3/*_10.png"}, see docs/pictures.md.
        **settings: Those of `PackOptions`, by name: val=0.1, maxsize="1GB", encode="raw", size=64.

    Raises:
        SourceError: no image of a split can be read, or more than `max_rejected` of all images are rejected.
        OutputError: `out` is in use or cannot be written. If no shard was finished, nothing is left in it; else a run
            with `resume` continues.
        RemoteError: `out` is a URL that cannot be read or written; the same holds for finished shards.
        ArgumentError: a setting is unknown or invalid, a split would have no sample, or a run is resumed with different
            settings.
        MissingPackageError: a package that the settings ask for cannot be used.
    """
    started = time.monotonic()
    _check_setting_names(settings)
    progress = check("pack", "progress", progress, FLAG)
    own_splits = check("pack", "own_splits", own_splits, FLAG)
    # Its rules read more types than it holds.
    options = PackOptions(**cast("dict[str, Any]", settings))
    path_options = {
        "from_": from_,
        "labels": labels,
        "columns": columns,
        "no_labels": no_labels,
        "source_options": source_options,
    }
    source = _source_of(samples, out, pictures, path_options)
    out, options = _whole_set(out, options)
    source = source.with_options(
        own_splits=own_splits and source.options.own_splits,
        as_stored=options.keeps_arrays,
        conversion=options.conversion,
        follows=options.mode == AUTO,
    )
    check_packages(options)
    with progress_bar("packing", "images", progress) as bar, ExitStack() as stack:

        def show(now: PackProgress) -> None:
            bar(now.images, now.total_images, now.bytes)
            watch(now)

        output = _open_output(out, source, options, stack)
        if output.finished:
            return _report_finished(output, source, options, started)
        source.leave_out(output.final)
        run = _run(source, options, output, show)
        manifests = run.all_manifests()
    return run.report(manifests, output.notes, time.monotonic() - started)


def _check_setting_names(settings: Mapping[str, Any]) -> None:
    """Raises ArgumentError if one is not a setting of `PackOptions`."""
    names = {field.name for field in fields(PackOptions)}
    unknown = sorted(set(settings) - names)
    if not unknown:
        return
    similar = nearest(unknown[0], names)
    advice = f"Its settings are {', '.join(sorted(names))}"
    if similar:
        advice = f"Did you mean {similar}?"
    raise ArgumentError(f"pack() has no setting {unknown[0]!r}. {advice}")


def _source_of(
    samples: Any,
    out: str | Path | URL,
    pictures: Sequence[str] | Mapping[str, str | Path | URL],
    path_options: Mapping[str, Any],
) -> Source:
    """The source that the arguments of `pack` describe.

    Args:
        samples: As `pack` takes them.
        out: The folder or URL to pack to.
        pictures: As `pack` takes them.
        path_options: The arguments of `pack` that say what lies at a path.

    Raises:
        ArgumentError: there are such arguments, and the samples are no path; or no source fits.
    """
    image = "image"
    if _is_of_folders(samples):
        folders_of_pictures = dict(samples)
        image = next(iter(folders_of_pictures))
        samples = folders_of_pictures.pop(image)
        pictures = folders_of_pictures
    if isinstance(samples, str | Path | URL):
        if not pictures:
            return _open_path(samples, out, path_options)
        places = check("pack", "pictures", pictures, FOLDERS)
        if are_patterns(places):
            others = {
                f"pack({name}=…)": value
                for name, value in path_options.items()
                if name not in ("labels", "columns")
            }
            return open_matched(
                samples,
                places,
                others,
                labels=path_options["labels"],
                columns=_columns_by_role(path_options["columns"]),
            )
        source = _open_path(samples, out, path_options)
        return PicturesBeside(source, places, image)
    unused = [name for name, option in path_options.items() if option]
    if unused:
        raise ArgumentError(
            f"pack({unused[0]}=…) says what the files at a path are, and the samples are a {type(samples).__name__}. "
            "Leave it out"
        )
    if isinstance(samples, Source):
        return samples
    further = check("pack", "pictures", pictures, PICTURES)
    return IterableSource(samples, further)


def _open_path(
    path: str | Path | URL, out: str | Path | URL, path_options: Mapping[str, Any]
) -> Source:
    """The source at a path.

    Args:
        path_options: The arguments of `pack` that say what it is.
    """
    columns = _columns_by_role(path_options["columns"])
    where = check("pack", "out", out, LOCATION)
    return open_source(
        path,
        path_options["labels"],
        columns,
        path_options["from_"],
        path_options["no_labels"],
        out=None if isinstance(where, URL) else where,
        options=path_options["source_options"],
    )


def _columns_by_role(
    columns: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, tuple[str, ...]]:
    """The names of columns by what they hold, each as a tuple."""
    return {
        role: (names,) if isinstance(names, str) else tuple(names)
        for role, names in (columns or {}).items()
    }


def _whole_set(
    out: str | Path | URL, options: PackOptions
) -> tuple[str | Path | URL, PackOptions]:
    """Where and how to pack. OUT may be a split of a set, such as shards/train, to which --append adds all samples.

    Raises:
        ArgumentError: splits are to be drawn of what goes into one.
    """
    where = check("pack", "out", out, LOCATION)
    if (
        not options.append
        or isinstance(where, URL)
        or not (Path(where) / FILE_NAME).exists()
    ):
        return out, options
    split = Path(where) if Path(where).name not in ("", "..") else Path(where).resolve()
    if options.val or options.splits:
        drawn = "--val" if options.val else "--splits"
        raise ArgumentError(
            f"{drawn} draws splits, but OUT {where} is one. Give the folder above it, {split.parent}"
        )
    return split.parent, replace(options, splits=((split.name, 1.0),))


def _open_output(
    out: str | Path | URL, source: Source, options: PackOptions, stack: ExitStack
) -> Output:
    """The output, entered: leaving `stack` leaves it, also where Ctrl-C comes meanwhile."""
    where = check("pack", "out", out, LOCATION)
    if isinstance(where, URL):
        from gpuload.packing.remote_output import RemoteOutput  # asyncio and obstore

        return stack.enter_context(RemoteOutput(where, options))

    def settings(mode: str) -> Mapping[str, Any]:
        return settings_of(source, with_mode(options, mode))

    with sigint_deferred():
        return stack.enter_context(Output(Path(where), options, settings=settings))


def _engine(
    source: Source, options: PackOptions
) -> Any:  # `Workers`, or its equivalent on a cluster
    need_main = type(source).__module__ == "__main__"
    if options.engine == "ray":
        if need_main:
            raise ArgumentError(
                f"--engine ray: {type(source).__name__} is a class of the script that runs, which other machines "
                "cannot import. Move it into a module that is installed on all of them"
            )
        from gpuload.packing.ray_engine import RayWorkers

        return RayWorkers(options.workers, options.address)
    start_server()  # it imports the workers' modules while this process lists the samples
    return Workers[ShardJob, ShardReport](options.worker_count, pack_shard, need_main)


def _run(
    source: Source, options: PackOptions, output: Output, watch: Watch
) -> "_PackingRun":
    """Packs all samples and describes the splits. An error says whether what is finished is kept."""
    try:
        with (
            cannot_write("Free some space, or choose another folder", output.path),
            _engine(source, options) as engine,
        ):
            run = _begin(source, options, output, watch)
            run.pack_shards(engine)
            run.check_rejected()
            run.check_masks()
            run.describe_splits()
    except (OutputError, RemoteError, KeyboardInterrupt) as error:
        sentences = [str(error)] if str(error) else []
        if output.keep:
            sentences.append("finished shards are kept: continue with --resume")
        raise type(error)("; ".join(sentences)) from None
    return run


def _begin(
    source: Source, options: PackOptions, output: Output, watch: Watch
) -> "_PackingRun":
    """The run that was interrupted, or a new one once it is planned."""
    state = RunState.read(output.scratch) if output.resumed else None
    output.keep = state is not None
    if state is None:
        output.clear_scratch()
    else:
        options = with_mode(options, state.mode)
        advice = "Give the same, or delete the folder and pack again"
        refuse_change(
            f"the interrupted run in {output.where}",
            state.settings,
            settings_of(source, options),
            advice,
        )
    try:
        source = prepare_source(_as_in_base(source, options, output), output.scratch)
        if options.engine == "ray":
            source.share(output.scratch)
        state = state or plan_run(source, options, output)
    except OSError as error:
        # What is written lies in the output.
        if error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(
            output.path
        ):
            raise
        raise SourceError(
            f"{error.filename}: cannot be read ({error.strerror}). Check the source"
        ) from None
    options = with_mode(options, state.mode)
    source = source.with_options(conversion=options.conversion, follows=False)
    return _PackingRun(source, state, options, output, watch)


def _as_in_base(source: Source, options: PackOptions, output: Output) -> Source:
    """The source with what the set that is extended tells: its mode, by which loaded PIL images are refused, and the
    kinds of joined fields."""
    base = read_manifests(output)
    kinds = {
        field.name: field.kind
        for manifest in base.values()
        for file in manifest.joined
        for field in file.fields
    }
    for manifest in base.values():
        known = with_mode(options, manifest.pixels.mode)
        return source.with_options(conversion=known.conversion, kinds=kinds)
    return source


def _is_of_folders(samples: Any) -> TypeGuard[Mapping[str, str | Path | URL]]:
    """Whether samples are given by their folders, each of one picture, and not by splits or as dicts."""
    return (
        isinstance(samples, Mapping)
        and len(samples) > 0
        and all(isinstance(value, str | Path | URL) for value in samples.values())
    )


FOLDERS: Rule[dict[str, Any]] = Rule(
    "a dict of folders by the name of the picture, such as {'depth': 'depths'}",
    lambda value: {
        as_text(name): LOCATION.read(root) for name, root in dict(value).items()
    },
)
PICTURES: Rule[tuple[str, ...]] = Rule(
    "names of entries, such as ('depth', 'flow')",
    lambda value: tuple(map(as_text, as_items(value))),
)


class _PackingRun:
    """One run: hands shards to workers and collects their reports, by split."""

    def __init__(
        self,
        source: Source,
        state: RunState,
        options: PackOptions,
        output: Output,
        watch: Watch,
    ) -> None:
        self.source = source
        self.state = state
        self.options = options
        self.output = output
        self.watch = watch
        # Class numbers that samples have, by field.
        self.numbers: dict[str, set[int]] = {}
        self.manifests: dict[str, Manifest] = {}  # of the splits that it has described
        self.notes_on_joined = list[str]()
        self.packed_now = 0  # images, but for those of the run that this one resumes
        self.packing_s = 0.0
        self.totals = {split.name: ShardReport() for split in state.splits}
        self._progress = PackProgress(0, 0, state.samples, state.bytes)
        for split in state.splits:
            output.own(split.name, split.files(output.base_folder(split.name).exists()))
        self.jobs = [
            ShardJob(
                source=source,
                fields=state.fields,
                encoding=options,
                number=number,
                folder=output.path / split.name,
                scratch=output.scratch,
                position=output.scratch / f"{split.name}-{number:06d}.position",
                time_limit_s=options.time_limit_s,
                first_shard=split.first_shard,
                first_row=state.first_row,
                image=state.image,
                joined=state.joined,
            )
            for split in state.splits
            for number in range(split.shards)
        ]

    def pack_shards(self, engine: Any) -> None:
        """Packs the shards of all splits that an earlier run did not finish."""
        waiting = []
        for job in self.jobs:
            if self.output.resumed and (report := job.read_report()) is not None:
                self._take(job, report)
            else:
                job.position.unlink(
                    missing_ok=True
                )  # where the worker of an earlier run was
                waiting.append(job)
        began = math.inf
        try:
            for job, report in engine.run(waiting, Blame(), self._report_progress):
                self._take(job, report)
                self.packed_now += sum(report.kinds.values())
                now = time.monotonic()
                began = min(began, now - report.seconds)
                self.packing_s = now - began
        finally:
            # When this process is stopped, a worker may have finished a shard whose report has not arrived.
            self.output.keep = self.output.keep or any(
                job.note("done").exists() for job in waiting
            )

    def _take(self, job: ShardJob, report: ShardReport) -> None:
        self.output.keep = True
        self.output.take(job.path, job.note("uploaded"))
        self.totals[job.folder.name].add(report)

    def _report_progress(self, jobs: list[ShardJob]) -> None:
        images = 0
        read_bytes = 0
        for total in self.totals.values():
            images += total.kinds.total() + len(total.rejected)
            read_bytes += total.read_bytes
        for job in jobs:
            position, bytes_of_shard = read_position(job.position)
            images += max(position, 0)
            read_bytes += bytes_of_shard
        # A shard whose worker died starts again, and progress must not go backwards.
        before = self._progress
        self._progress = replace(
            before,
            images=max(images, before.images),
            bytes=max(read_bytes, before.bytes),
        )
        self.watch(self._progress)

    def check_rejected(self) -> None:
        """Raises SourceError if a split is empty, or more than `max_rejected` of all images were rejected."""
        for split in self.state.splits:
            if split.shards and not self.totals[split.name].shards:
                self.output.keep = False
                rejected = self._rejected(split)
                raise SourceError(
                    f"no readable image for {split.name!r}: all {len(rejected):,} were rejected "
                    f"{_reasons(rejected)}. Is this the right folder?"
                )
        faults = [
            rejection
            for rejection in self._rejected(*self.state.splits)
            if not rejection.asked
        ]
        listed = self.state.samples + sum(
            not rejection.asked for rejection in self.state.rejected
        )
        if len(faults) > self.options.max_rejected * listed:
            raise SourceError(
                f"{len(faults):,} of {listed:,} images were rejected, more than --max-rejected "
                f"{self.options.max_rejected:.4g} {_reasons(faults)}. Correct them and pack again, or continue with "
                "--resume and a higher --max-rejected"
            )

    def check_masks(self) -> None:
        """Raises SourceError if masks of few bits lie beside others, so that nobody knows what their 1 means."""
        scales = sum((total.scales for total in self.totals.values()), Counter[str]())
        for field in self.state.fields:
            few = scales[f"{field.name}: {FEW_BITS}"]
            many = scales[f"{field.name}: {MANY_BITS}"]
            if few and many:
                self.output.keep = False
                raise SourceError(
                    f"field {field.name!r}: {few:,} masks hold fewer than 8 bits, whose largest number is shown white, "
                    f"and {many:,} hold 8: tools that make PNGs smaller turn 255 into 1. Give --masks levels if white "
                    "is 255 in all of them, or --masks stored if 1 is class 1"
                )

    def describe_splits(self) -> None:
        """Writes the files that describe each split with new shards, then those that describe the whole set."""
        for split in self.state.splits:
            if split.shards:
                self.manifests[split.name] = self.finish(split)
        self.output.publish([*self.manifests])

    def all_manifests(self) -> dict[str, Manifest]:
        """By split: in the order of the plan, then those of a set that was extended by other splits."""
        folders = self.output.packed_splits()
        planned = [split.name for split in self.state.splits if split.name in folders]
        names = dict.fromkeys([*planned, *folders])
        return {
            name: self.manifests.get(name) or Manifest.read(folders[name])
            for name in names
        }

    def finish(self, split: PlannedSplit) -> Manifest:
        """Writes the files that describe a split, the manifest last. May be repeated after an interruption."""
        folder = self.output.path / split.name
        base = self.output.base_folder(split.name)
        for temporary in temporaries(folder, split.files(appended=False)):
            temporary.unlink(missing_ok=True)
        rejected = map(as_line, self._rejected(split))
        write_lines(folder / REJECTED_NAME, rejected, base / REJECTED_NAME)
        manifest = self._write_index(split)
        write_card(folder, {folder: manifest})
        if (folder / TIMM_NAME).exists():  # of a set that an older version packed
            write_timm_info(folder, {folder: manifest})
        self._note_class_numbers(folder, manifest)
        return manifest

    def _write_index(self, split: PlannedSplit) -> Manifest:
        """Writes index and manifest of a split: of the rows that were there, and those of the new shards."""
        folder = self.output.path / split.name
        old = self.output.read_base(split.name)
        files = []
        if old.shards:
            files.append(self.output.base_folder(split.name) / index_file.FILE_NAME)
        packed = {info["name"] for info in self.totals[split.name].shards}
        files += [
            job.note("rows")
            for job in self.jobs
            if job.folder == folder and job.path.name in packed
        ]
        opened = [open_batches(file) for file in files]
        points = any(has_seek_points(schema) for schema, _ in opened)
        rows = chain.from_iterable(batches for _, batches in opened)
        manifest = self._summary(split, old)
        if old.joined:
            base = self.output.base_folder(split.name)
            new_shards = [
                batch for file in files[1:] for batch in open_batches(file)[1]
            ]
            given = (*self.state.fields, *self.state.joined)
            joined = extend_joined(folder, base, old, new_shards, given)
            manifest = replace(manifest, joined=joined)
            self.notes_on_joined += notes_on_empty(
                split.name, old, given, sum(map(len, new_shards))
            )
        manifest = describe(folder, manifest, rows, points)
        named = {file.name for file in manifest.joined}
        for file in old.joined:
            if file.name not in named:
                (folder / file.name).unlink(missing_ok=True)
        return manifest

    def _note_class_numbers(self, folder: Path, manifest: Manifest) -> None:
        """Adds the class numbers that the samples of a split have."""
        index = Index(folder / index_file.FILE_NAME, manifest.fields)
        shards = map(index.shard, range(len(index)))
        for name, numbers in class_numbers(manifest.fields, shards).items():
            self.numbers.setdefault(name, set()).update(numbers)

    def _summary(self, split: PlannedSplit, old: Manifest) -> Manifest:
        """The manifest of a split, without what its index says.

        Args:
            old: Its shards from before this run.
        """
        total = self.totals[split.name]
        infos = [ShardInfo(**info) for info in total.shards]
        infos.sort(key=lambda info: (len(info.name), info.name))
        with_ends = (
            _with_ends(field, total.extensions, old) for field in self.state.fields
        )
        others = [_with_counts(field, total.counts, old) for field in with_ends]
        spread = spread_of(total.spread, self.options.pixels.peak)
        measured = spread or _mean_and_std(total.histogram)
        mean, std = _joint(
            [
                (old.mean, old.std, old.pixels_from),
                (measured[0], measured[1], total.measured),
            ],
            is_deep=spread is not None,
        )
        percentiles = spread.percentiles if spread and not old.shards else None
        return Manifest(
            shards=(*old.shards, *infos),
            fields=(self._image_field(total, old), *others),
            classes=self.state.classes,
            mean=mean,
            std=std,
            pixels_from=old.pixels_from + total.measured,
            percentiles=percentiles,
            packing=self._packing_facts(split, old),
        )

    def _image_field(self, total: ShardReport, old: Manifest) -> Field:
        """The field of the first picture, with all extensions that its members have."""
        pixels = self.options.pixels.in_field()
        members = set(total.members)
        if old.fields:
            members |= set(old.image.member.split(";"))
        if not members:  # no sample of the split has an image
            members = {"npy" if self.options.encode == "raw" else "png"}
        is_raw = {extension.rpartition(".")[2] for extension in members} == {"npy"}
        kind = "raw" if is_raw else "image"
        name = self.state.image
        field = Field(name, kind, ";".join(sorted(members)), **pixels)
        was_missing = bool(old.fields) and old.image.counts is not None
        if was_missing or total.kinds[MISSING]:
            return replace(field, counts=(0, 1))
        return field

    def _packing_facts(self, split: PlannedSplit, old: Manifest) -> dict[str, Any]:
        """How a split was packed, as its manifest records it: the settings of this run, and counts of all runs."""
        before = old.packing
        facts = recorded_settings(self.source, self.options)
        if self.state.own_splits:
            facts["splits"] = OWN_SPLITS
        facts["pillow"] = PIL.__version__
        kinds = Counter(self.totals[split.name].kinds)
        facts["kept"] = before.get("kept", 0) + kinds.pop(KEPT, 0)
        missing = before.get("without_image", 0) + kinds.pop(MISSING, 0)
        if missing:
            facts["without_image"] = missing
        stored_anew = Counter(before.get("stored_anew", {})) + kinds
        facts["stored_anew"] = dict(sorted(stored_anew.items()))
        rejected = self._rejected(split)
        left_out = sum(rejection.asked for rejection in rejected)
        faulty = len(rejected) - left_out
        facts["rejected"] = before.get("rejected", 0) + faulty
        facts["left_out"] = before.get("left_out", 0) + left_out
        facts["listed"] = self.state.first_row + self.state.samples
        return facts

    def report(
        self, manifests: dict[str, Manifest], kept: Sequence[str], elapsed_s: float
    ) -> PackReport:
        """The report of the run.

        Args:
            kept: Notes of the output on what it left where it is.
        """
        total = ShardReport()
        for of_split in self.totals.values():
            total.add(of_split)
        remarks = (
            sentence.format(f"{count:,}")
            for sentence, count in sorted(total.remarks.items())
        )
        first = next(iter(manifests.values()))
        on_numbers = notes_on_numbers(self.numbers, first.fields, first.classes)
        on_encodings = notes_on_encodings(manifests.values())
        return PackReport(
            self.output.where,
            manifests,
            total.kinds,
            rejected=tuple(self._rejected(*self.state.splits)),
            notes=(
                *self.state.notes,
                *remarks,
                *self.notes_on_joined,
                *on_numbers,
                *on_encodings,
                *kept,
            ),
            packed=self.packed_now,
            elapsed_s=elapsed_s,
            packing_s=self.packing_s,
            costs={name: StoringCost(*cost) for name, cost in total.costs.items()},
        )

    def _rejected(self, *splits: PlannedSplit) -> list[Rejection]:
        """The rejected and skipped samples that splits report.

        First come those that never got a split, since listing rejected them or they are duplicates; the first split
        reports them. The others follow in the order of the listing.
        """
        rejections = list[Rejection]()
        for split in splits:
            if split == self.state.splits[0]:
                rejections += self.state.rejected
            in_order = sorted(self.totals[split.name].rejected)
            rejections += [Rejection(*rejection) for _, *rejection in in_order]
        return rejections


def _with_ends(field: Field, extensions: Mapping[str, int], old: Manifest) -> Field:
    """A field with the extensions of its members; of pictures these are `NAME.png` and such.

    Args:
        field: Of the set.
        extensions: Counts of pictures, by field and extension.
        old: The manifest of the split to which shards are appended.
    """
    if field.kind not in (PictureKind.name, PicturesKind.name):
        return field
    name = field.name
    if field.kind == PicturesKind.name:
        name = any_member(name, "").removesuffix(".")
    ends = {end for end in extensions if end.rpartition(".")[0] == name}
    for before in old.fields:
        if before.name == field.name:
            ends |= set(before.member.split(";"))
    return replace(field, member=";".join(sorted(ends)) or field.member)


def _with_counts(
    field: Field, counts: Mapping[str, Sequence[int]], old: Manifest
) -> Field:
    """A field with the least and the most pictures that a sample has in it, if it is a list.

    Args:
        field: Of the set.
        counts: Of the samples that were packed now, by field.
        old: As of `_with_ends`.
    """
    if field.kind != PicturesKind.name:
        return field
    all_counts = list(counts.get(field.name, ()))
    for before in old.fields:
        if before.name == field.name:
            all_counts += before.counts or ()
    return replace(
        field, counts=(min(all_counts, default=0), max(all_counts, default=0))
    )


def _report_finished(
    output: Output, source: Source, options: PackOptions, started: float
) -> PackReport:
    """The report of a run that is resumed although it was complete.

    Raises:
        ArgumentError: it was packed with other settings.
    """
    output.keep = True
    folders = output.packed_splits()
    manifests = {name: Manifest.read(folder) for name, folder in folders.items()}
    advice = "Pack it again with --overwrite, or choose another folder"
    if isinstance(output.where, URL):
        advice = "Pack to another URL"
    keeps_splits = source.options.own_splits and not (options.val or options.splits)
    kinds = Counter[str]()
    for manifest in manifests.values():
        before = manifest.packing
        now = recorded_settings(source, with_mode(options, manifest.pixels.mode))
        if keeps_splits and before.get("splits") == OWN_SPLITS:
            now["splits"] = OWN_SPLITS
        refuse_change(f"the complete set in {output.where}", before, now, advice)
        missing = before.get("without_image", 0)
        counts = {KEPT: before["kept"], MISSING: missing, **before["stored_anew"]}
        kinds += Counter(counts)
    return PackReport(
        output.where,
        manifests,
        kinds,
        rejected=tuple(_read_rejected(folders.values())),
        notes=("the set was complete already",),
        packed=0,
        elapsed_s=time.monotonic() - started,
    )


def _read_rejected(folders: Iterable[Path]) -> Iterator[Rejection]:
    """The rejected samples that these splits name."""
    for folder in folders:
        file = folder / REJECTED_NAME
        if file.exists():
            for line in file.read_bytes().splitlines():
                yield Rejection(**json.loads(line))


def _reasons(rejected: Sequence[Rejection]) -> str:
    """The most common reasons, and some names."""
    counts = Counter(rejection.reason for rejection in rejected).most_common(3)
    such = some_of([rejection.source for rejection in rejected])
    return f"({', '.join(f'{count:,} × {reason}' for reason, count in counts)}), such as {such}"


def notes_on_encodings(manifests: Iterable[Manifest]) -> Sequence[str]:
    """A note where images have several encodings, whose members are columns of their own to some readers."""
    ends = sorted(
        {
            f".{end}"
            for manifest in manifests
            for end in manifest.image.member.split(";")
        }
    )
    if len(ends) == 1:
        return ()
    stored = f"images are stored as {', '.join(ends[:-1])} and {ends[-1]}"
    return (
        f"{stored}, and Ray Data and Daft read one encoding alone: for them, --encode jpeg",
    )


def _mean_and_std(histogram: Sequence[int]) -> tuple[_Levels, _Levels]:
    """Mean and std of each channel, with pixels in 0..1; None and None if there are no pixels.

    Args:
        histogram: (256 C,), exact counts of the 256 values of each of C channels; () where none are counted. The sums
            are Python's integers up to the final division, so the result does not depend on how the images were
            distributed over shards.
    """
    counts = np.array(histogram, object).reshape(-1, 256)
    pixels = counts.sum(axis=1)
    if not pixels.all() or not len(pixels):
        return None, None
    levels = np.arange(256).astype(object)
    total = counts @ levels
    squares = counts @ levels**2
    means = total / (255 * pixels)
    variances = (pixels * squares - total**2) / (255 * pixels) ** 2
    mean = tuple(round(level, 6) for level in means)
    std = tuple(round(variance**0.5, 6) for variance in variances)
    return mean, std


def _joint(
    parts: Sequence[tuple[_Levels, _Levels, int]], is_deep: bool
) -> tuple[_Levels, _Levels]:
    """Mean and std of sets, given by theirs and the numbers of measured images, by which they are weighted.

    Args:
        is_deep: Whether pixels are not uint8, so that they may be of any size and not only in 0..1.
    """
    parts = [part for part in parts if None not in part[:2]]
    if len(parts) < 2:
        return parts[0][:2] if parts else (None, None)
    means, stds, counts = (np.array(values) for values in zip(*parts, strict=True))
    weights = counts / sum(counts)
    joint = weights @ means
    std = np.sqrt(np.maximum(weights @ (stds**2 + means**2) - joint**2, 0))
    if is_deep:
        return tuple(map(rounded, joint.tolist())), tuple(map(rounded, std.tolist()))
    return tuple(joint.round(6).tolist()), tuple(std.round(6).tolist())
