"""One run of the packer: its shards are packed by workers, then each split is described."""

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL

from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk.card import write_card
from gpuload.disk.index import class_numbers, notes_on_numbers
from gpuload.disk.manifest import TIMM_NAME, JoinedFile, write_timm_info
from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.fields.images import has_seek_points
from gpuload.fields.picture_lists import PicturesKind, any_member
from gpuload.fields.pictures import PictureKind
from gpuload.formats.masks import FEW_BITS, MANY_BITS
from gpuload.packing.extend_joined import extend_joined, notes_on_empty
from gpuload.packing.image import KEPT, MISSING
from gpuload.packing.options import PackOptions
from gpuload.packing.output import Output, as_line, describe, write_lines
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.plan import OWN_SPLITS, PlannedSplit, RunState, recorded_settings
from gpuload.packing.shard import ShardJob, ShardReport, StoringCost
from gpuload.packing.spread import rounded, spread_of
from gpuload.packing.workers import Blame, read_position
from gpuload.sources.columns import open_batches
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.source import FilesSource, Source
from gpuload.store.files import temporaries
from gpuload.store.url import URL

if TYPE_CHECKING:
    pass


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


class PackingRun:
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
                is_folder = isinstance(self.source, FilesSource)
                raise SourceError(
                    f"no readable image for {split.name!r}: all {len(rejected):,} were rejected "
                    f"{_reasons(rejected)}. {'Is this the right folder?' if is_folder else 'Correct them'}"
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
        base = self.output.base_folder(split.name)
        before = [base / index_file.FILE_NAME] if old.shards else []
        new_rows = self._files_of_rows(split)
        opened = list(map(open_batches, [*before, *new_rows]))
        points = any(has_seek_points(schema) for schema, _ in opened)
        rows = chain.from_iterable(batches for _, batches in opened)
        manifest = self._summary(split, old)
        if old.joined:
            joined = self._extended_joined(split, old, new_rows)
            manifest = replace(manifest, joined=joined)
        manifest = describe(folder, manifest, rows, points)
        _remove_replaced(folder, old.joined, manifest.joined)
        return manifest

    def _files_of_rows(self, split: PlannedSplit) -> list[Path]:
        """The files in which workers have left the rows of the new shards."""
        folder = self.output.path / split.name
        packed = {info["name"] for info in self.totals[split.name].shards}
        return [
            job.note("rows")
            for job in self.jobs
            if job.folder == folder and job.path.name in packed
        ]

    def _extended_joined(
        self, split: PlannedSplit, old: Manifest, new_rows: Sequence[Path]
    ) -> tuple[JoinedFile, ...]:
        """Writes the columns that were added by key anew, with values for new shards.

        Args:
            split: Of the shards.
            old: Its shards from before this run.
            new_rows: Files with the rows of the new shards.
        """
        folder = self.output.path / split.name
        base = self.output.base_folder(split.name)
        new_shards = [batch for file in new_rows for batch in open_batches(file)[1]]
        given = (*self.state.fields, *self.state.joined)
        samples = sum(map(len, new_shards))
        self.notes_on_joined += notes_on_empty(split.name, old, given, samples)
        return extend_joined(folder, base, old, new_shards, given)

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
            manifests: Of all splits.
            kept: Notes of the output on what it left where it is.
            elapsed_s: How long the run took, in seconds.
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


def _remove_replaced(
    folder: Path, before: Iterable[JoinedFile], now: Iterable[JoinedFile]
) -> None:
    """Removes the files of joined columns that a manifest does not name any more."""
    for name in {file.name for file in before} - {file.name for file in now}:
        (folder / name).unlink(missing_ok=True)


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
