"""Packs a source into shards: lists and plans the samples, has workers pack them, then describes each split."""

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pyarrow as pa

from gpuload.checks import FLAG, check
from gpuload.counted import counted, progress_bar
from gpuload.disk import Index, Manifest, ShardInfo, write_index
from gpuload.disk import index as index_file
from gpuload.disk.index import IndexDigests, class_numbers, notes_on_numbers
from gpuload.disk.manifest import write_timm_info
from gpuload.errors import ArgumentError, OutputError, RemoteError, SourceError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import has_points
from gpuload.machine.fork_server import sigint_deferred
from gpuload.packing.image import KEPT
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.output import Output
from gpuload.packing.plan import (
    DUPLICATES_NAME,
    OWN_SPLITS,
    REJECTED_NAME,
    PlannedSplit,
    RunState,
    base_folder,
    read_base,
    read_lines,
    recorded_settings,
    refuse_change,
    write_lines,
    write_rejections,
)
from gpuload.packing.prepare import check_packages, choose_resizer, plan_run, settings_of
from gpuload.packing.shard import ShardJob, ShardReport, modules_to_preload, pack_shard
from gpuload.packing.workers import Blame, Workers, prepare_source, read_position, start_server
from gpuload.sources.columns import IterableSource
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.rows import Source
from gpuload.store.files import replaced
from gpuload.store.url import LOCATION, URL


@dataclass(frozen=True)
class Progress:
    """The progress of a run: images and bytes read so far, and in total."""

    images: int
    bytes: int
    total_images: int
    total_bytes: int


@dataclass(frozen=True, repr=False)
class PackReport:
    """The result of a run of the packer.

    folder: the output. manifests: by split, with the shards that were there before. kinds: number of images
    by `StoredImage.kind`, "kept" or what a re-encoded image was before. rejected: the rejected and skipped samples, by
    split. notes: sentences for the user. labels: smallest and largest class number of each
    field that has any. packed: images that this run has packed itself, without those of a set that it extended or a
    run that it resumed. elapsed_s: the time for that.
    """

    folder: Path | URL

    manifests: dict[str, Manifest]
    kinds: Counter[str]
    rejected: tuple[Rejection, ...]
    notes: tuple[str, ...]
    labels: dict[str, tuple[int, int]]
    packed: int
    elapsed_s: float

    @property
    def images(self) -> int:
        """Samples in all splits."""
        return sum(manifest.samples for manifest in self.manifests.values())

    def __repr__(self) -> str:
        splits = ", ".join(
            f"{name} {counted(one.samples, 'sample')} in {counted(len(one.shards), 'shard')}"
            for name, one in self.manifests.items()
        )
        asked = sum(rejection.asked for rejection in self.rejected)
        return (
            f"PackReport({str(self.folder)!r}: {splits}; {len(self.rejected) - asked:,} rejected, {asked:,} left out; "
            f"{self.packed:,} packed in {self.elapsed_s:.1f} s)"
        )


def pack(
    samples: Iterable[Any] | Source,
    out: str | Path,
    *,
    watch: Callable[[Progress], None] = lambda progress: None,
    progress: bool = True,
    own_splits: bool = True,
    **settings: Any,
) -> PackReport:
    """Packs samples given as dicts, one per sample, as `python -m gpuload pack` packs files.

    samples: dicts such as {"image": bytes, "label": "cat"}; `sources.rows.Source` says what they may hold.
        They are iterated once, in order. Or a data set of Hugging Face, a table of pandas, Polars or Arrow, a dict
        with one of these for each split, or a source.
    out: an empty or new folder, or a URL such as "s3://bucket/set"; it gets train/, and val/ or test/ where there are
        such splits.
    own_splits: whether the splits that the samples themselves have ("split": "train", or a source's folders) are kept.
    watch: called a few times a second with the progress.
    progress: whether a bar is shown on stderr, where that is a terminal; elsewhere nothing is printed in any case.
    settings: those of `PackOptions` and `Encoding`, by name: val=0.1, maxsize="1GB", encode="raw", size=64.

    It starts processes: call it under `if __name__ == "__main__"`.

    Raises:
        SourceError, OutputError, RemoteError: as `pack_source`.
        ArgumentError: a setting is unknown or invalid.
    """
    encoding = {field.name for field in fields(Encoding)}
    known = {field.name for field in fields(PackOptions)} - {"encoding"} | encoding
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ArgumentError(f"pack() has no setting {unknown[0]!r}; its settings are {', '.join(sorted(known))}")
    progress = check("pack", "progress", progress, FLAG)
    own_splits = check("pack", "own_splits", own_splits, FLAG)
    images = Encoding(**{name: value for name, value in settings.items() if name in encoding})
    rest = {name: value for name, value in settings.items() if name not in encoding}
    if isinstance(samples, str | Path):
        raise ArgumentError(
            f"pack(samples={str(samples)!r}): expected dicts, one per sample, or a source. Files are packed by "
            f"`python -m gpuload pack {samples} {out}`, or give gpuload.sources.open_source({str(samples)!r})"
        )
    source = samples if isinstance(samples, Source) else IterableSource(samples)
    if not own_splits:
        source.own_splits = False
    options = PackOptions(**rest, encoding=images)
    with progress_bar("packing", "images", progress) as bar:

        def show(found: Progress) -> None:
            bar(found.images, found.total_images, found.bytes)
            watch(found)

        return pack_source(source, out, options, show)


def pack_source(
    source: Source,
    out: str | Path | URL,
    options: PackOptions,
    watch: Callable[[Progress], None],
) -> PackReport:
    """Packs every image of a source into one folder per split, such as `out/train`, or to a URL.

    It starts worker processes that import the caller's main module: call it under `if __name__ == "__main__"`.

    watch: called a few times a second with the progress.

    Raises:
        SourceError: no image of a split can be read, or more than `options.max_rejected` of all images are rejected.
        OutputError: `out` is in use or cannot be written. If no shard was finished, nothing is left in it; else a run
            with `options.resume` continues.
        RemoteError: `out` is a URL that cannot be read or written; the same holds for finished shards.
        ArgumentError: a split would have no sample, or a run is resumed with different settings.
        MissingPackageError: a package that the options ask for cannot be used.
    """
    started = time.monotonic()
    check_packages(options)
    with sigint_deferred():  # Arrow imports dateutil to infer its first type, and swallows a Ctrl-C during that
        pa.array([None])
    with ExitStack() as stack:
        output = _open_output(out, options, stack)
        if output.finished:
            return _report_finished(output, source, options, started)
        source.leave_out(output.final)
        try:
            with _engine(source, options) as engine:
                run = _begin(source, options, output, watch)
                run.pack_shards(engine)
            run.check_rejected()
            written = {split.name: run.finish(split) for split in run.state.splits if split.shards}
            output.publish([*written])
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if error.filename is not None and not is_full and not _lies_in(error.filename, output.path):
                raise SourceError(f"{error.filename}: cannot be read ({error.strerror}). Check the source") from None
            raise OutputError(
                f"{output.path}: cannot be written ({error.strerror or error}). "
                f"Free some space{_resume_hint(output)}, or choose another folder"
            ) from None
        except (OutputError, RemoteError) as error:
            raise type(error)(f"{error}{_resume_hint(output)}") from None
        # In the order of the plan, then those of a set that was extended by other splits.
        folders = output.packed_splits()
        names = dict.fromkeys([*(split.name for split in run.state.splits if split.name in folders), *folders])
        manifests = {name: written.get(name) or Manifest.read(folders[name]) for name in names}
    return run.report(manifests, time.monotonic() - started)


def _open_output(out: str | Path | URL, options: PackOptions, stack: ExitStack) -> Output:
    """The output, entered: leaving `stack` leaves it, also where Ctrl-C comes meanwhile."""
    where = check("pack", "out", out, LOCATION)
    if isinstance(where, URL):
        from gpuload.packing.remote_output import RemoteOutput  # asyncio and obstore

        return stack.enter_context(RemoteOutput(where, options))
    with sigint_deferred():
        return stack.enter_context(
            Output(where, resume=options.resume, append=options.append, overwrite=options.overwrite)
        )


def _lies_in(name: str | bytes, folder: Path) -> bool:
    return Path(os.fsdecode(name)).absolute().is_relative_to(folder.absolute())


def _resume_hint(output: Output) -> str:
    return "; finished shards are kept: continue with --resume" if output.keep else ""


def _engine(source: Source, options: PackOptions) -> Any:  # `Workers`, or its equivalent on a cluster
    if options.engine == "ray":
        from gpuload.packing.ray_engine import RayWorkers

        return RayWorkers(options.workers, options.address)
    preload = modules_to_preload(options.encoding)
    start_server(preload)  # it imports the workers' modules while this process lists the samples
    need_main = type(source).__module__ == "__main__"
    return Workers[ShardJob, ShardReport](options.worker_count, pack_shard, need_main, preload)


def _begin(source: Source, options: PackOptions, output: Output, watch: Callable[[Progress], None]) -> "_PackingRun":
    """The run that was interrupted, or a new one once it is planned."""
    output.keep = output.resumed  # even if the interrupted run cannot be continued
    state = RunState.read(output.scratch) if output.resumed else None
    output.keep = state is not None
    source.as_stored = options.encoding.mode != "RGB"
    options = replace(options, encoding=choose_resizer(options.encoding, state.resizer if state else None))
    if state is None:
        output.clear_scratch()
        source = prepare_source(source, output.scratch)
        state = plan_run(source, options, output)
    else:
        before = {**state.settings, "resizer": state.resizer}
        now = {**settings_of(source, options), "resizer": options.encoding.resizer}
        advice = "Give the same, or delete the folder and pack again"
        refuse_change(f"the interrupted run in {output.where}", before, now, sorted({*before, *now}), advice)
        source = prepare_source(source, output.scratch)
    return _PackingRun(source, state, options, output, watch)


class _PackingRun:
    """One run: hands shards to workers and collects their reports."""

    def __init__(
        self,
        source: Source,
        state: RunState,
        options: PackOptions,
        output: Output,
        watch: Callable[[Progress], None],
    ) -> None:
        self.state, self.options, self.output, self.watch = state, options, output, watch
        self.numbers: dict[str, set[int]] = {}  # class numbers that samples have, by field
        self.packed_now = 0  # images, but for those of the run that this one resumes
        self._reports: dict[Path, ShardReport] = {}
        self._progress = self._done = Progress(0, 0, state.samples, state.bytes)  # now, and of finished shards
        folders = {split.name: output.split_folder(split.name) for split in state.splits if split.shards}
        self.jobs = [
            ShardJob(
                source=source,
                fields=state.fields,
                encoding=options.encoding,
                number=number,
                folder=folders[split.name],
                scratch=output.scratch,
                position=output.scratch / f"{split.name}-{number:06d}.position",
                time_limit_s=options.time_limit_s,
                first_shard=split.first_shard,
                first_row=state.first_row,
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
                job.position.unlink(missing_ok=True)  # where the worker of an earlier run was
                waiting.append(job)
        try:
            for job, report in engine.run(waiting, Blame(), self._report_progress):
                self._take(job, report)
                self.packed_now += sum(report.kinds.values())
        finally:
            # When this process is stopped, a worker may have finished a shard whose report has not arrived.
            self.output.keep = self.output.keep or any(job.note("done").exists() for job in waiting)

    def _take(self, job: ShardJob, report: ShardReport) -> None:
        self.output.keep = True
        self.output.take(job)
        self._reports[job.path] = report
        done = self._done
        self._done = replace(done, images=done.images + report.images, bytes=done.bytes + report.read_bytes)

    def _report_progress(self, jobs: list[ShardJob]) -> None:
        positions = [read_position(job.position) for job in jobs]
        images = self._done.images + sum(max(position, 0) for position, _ in positions)
        read_bytes = self._done.bytes + sum(read for _, read in positions)
        # A shard whose worker died starts again, and progress must not go backwards.
        before = self._progress
        self._progress = replace(before, images=max(images, before.images), bytes=max(read_bytes, before.bytes))
        self.watch(self._progress)

    def check_rejected(self) -> None:
        """Raises SourceError if a split is empty, or more than `max_rejected` of all images were rejected."""
        for split in self.state.splits:
            if split.shards and not any(shard.info for shard in self._shards(split)):
                self.output.keep = False
                rejected = self._rejected(split)
                raise SourceError(
                    f"no readable image for {split.name!r}: all {len(rejected):,} were rejected "
                    f"{_reasons(rejected)}. Is this the right folder?"
                )
        faults = [rejection for rejection in self._rejected(*self.state.splits) if not rejection.asked]
        listed = self.state.samples + sum(not rejection.asked for rejection in self.state.rejected)
        if len(faults) > self.options.max_rejected * listed:
            raise SourceError(
                f"{len(faults):,} of {listed:,} images were rejected, more than --max-rejected "
                f"{self.options.max_rejected:.4g} {_reasons(faults)}. Correct them and pack again, or continue with "
                "--resume and a higher --max-rejected"
            )

    def finish(self, split: PlannedSplit) -> Manifest:
        """Writes the files that describe a split, the manifest last. May be repeated after an interruption."""
        state, options, packed = self.state, self.options, self._shards(split)
        folder, scratch = self.output.path / split.name, self.output.scratch
        base, old = read_base(scratch, split.name), base_folder(scratch, split.name)
        for temporary in folder.glob("*.tmp"):
            temporary.unlink()
        fields = (_image_field(packed, base, options.encoding), *state.fields)
        files = [old / index_file.FILE_NAME] if base else []
        files += [job.note("rows") for job in self._jobs(split) if self._reports[job.path].info]
        largest = _write_index(folder, files, fields)
        write_rejections(folder / REJECTED_NAME, self._rejected(split), read_lines(old / REJECTED_NAME))
        if options.dedup == "report":
            copies = ((source, first) for source, first, name in state.duplicates if name == split.name)
            lines = ({"source": source, "same_as": first} for source, first in copies)
            write_lines(folder / DUPLICATES_NAME, lines, read_lines(old / DUPLICATES_NAME))
        manifest = self._manifest(split, fields, largest, index_file.index_digests(folder / index_file.FILE_NAME))
        if base is not None:
            manifest = _join(base, manifest)
        write_timm_info(folder, manifest)
        _sync(folder)
        manifest.write(folder)
        _sync(folder)
        index = Index(folder / index_file.FILE_NAME, fields)
        for name, numbers in class_numbers(fields, map(index.shard, range(len(index)))).items():
            self.numbers.setdefault(name, set()).update(numbers)
        return manifest

    def _manifest(
        self, split: PlannedSplit, fields: tuple[Field, ...], largest: Mapping[str, int], digests: IndexDigests
    ) -> Manifest:
        """The manifest of the shards that this run and those before it packed."""
        state, options, packed, rejected = self.state, self.options, self._shards(split), self._rejected(split)
        mean, std = _mean_and_std(np.sum([shard.histogram for shard in packed], axis=0))
        kinds = sum((Counter(shard.kinds) for shard in packed), Counter[str]())
        return Manifest(
            shards=tuple(ShardInfo(**shard.info) for shard in packed if shard.info),
            fields=fields,
            classes=state.classes,
            width=largest["width"],
            height=largest["height"],
            image_bytes=largest["image_bytes"],
            mean=mean,
            std=std,
            pixels_from=sum(shard.measured for shard in packed),
            packing={
                **recorded_settings(
                    options, state.own_splits, bool(state.settings.get("options", {}).get("no_splits"))
                ),
                "pillow": PIL.__version__,
                "resizer": options.encoding.resizer if options.encoding.shrinks_jpegs else None,
                "kept": kinds[KEPT],
                "stored_anew": {kind: count for kind, count in sorted(kinds.items()) if kind != KEPT},
                "rejected": sum(not rejection.asked for rejection in rejected),
                "left_out": sum(rejection.asked for rejection in rejected),
                "listed": state.first_row + state.samples,
            },
            **digests._asdict(),
        )

    def report(self, manifests: dict[str, Manifest], elapsed_s: float) -> PackReport:
        shards = [report for split in self.state.splits for report in self._shards(split)]
        kinds = sum((Counter(report.kinds) for report in shards), Counter[str]())
        counts = sum((Counter(report.remarks) for report in shards), Counter[str]())
        remarks = (sentence.format(f"{count:,}") for sentence, count in sorted(counts.items()))
        first = next(iter(manifests.values()))
        on_numbers = notes_on_numbers(self.numbers, first.fields, first.classes)
        notes = *self.state.notes, *remarks, *on_numbers
        labels = {name: (min(numbers), max(numbers)) for name, numbers in self.numbers.items() if numbers}
        rejected, where = tuple(self._rejected(*self.state.splits)), self.output.where
        return PackReport(where, manifests, kinds, rejected, notes, labels, self.packed_now, elapsed_s)

    def _jobs(self, split: PlannedSplit) -> list[ShardJob]:
        return [job for job in self.jobs if job.folder.name == split.name]

    def _shards(self, split: PlannedSplit) -> list[ShardReport]:
        return [self._reports[job.path] for job in self._jobs(split)]

    def _rejected(self, *splits: PlannedSplit) -> list[Rejection]:
        """The rejected and skipped samples that splits report.

        First come those that never got a split, since listing rejected them or they are duplicates; the first split
        reports them. The others follow in the order of the listing.
        """
        found: list[Rejection] = []
        for split in splits:
            in_shards = sorted(entry for shard in self._shards(split) for entry in shard.rejected)
            found += self.state.rejected if split == self.state.splits[0] else []
            found += [Rejection(name, reason, asked) for _, name, reason, asked in in_shards]
        return found


def _report_finished(output: Output, source: Source, options: PackOptions, started: float) -> PackReport:
    """The report of a run that is resumed although it was complete.

    Raises:
        ArgumentError: it was packed with other settings.
    """
    output.keep = True
    manifests = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()}
    kinds: Counter[str] = Counter()
    for manifest in manifests.values():
        recorded = manifest.packing
        drawn = options.val or options.splits
        kept = source.own_splits and recorded.get("splits") == OWN_SPLITS and not drawn
        now = recorded_settings(options, kept, not source.own_splits)
        advice = "Pack it again with --overwrite, or choose another folder"
        advice = "Pack to another URL" if isinstance(output.where, URL) else advice
        refuse_change(f"the complete set in {output.where}", recorded, now, [*now, "options"], advice)
        kinds += Counter({KEPT: recorded["kept"], **recorded["stored_anew"]})
    lines = [line for name in manifests for line in read_lines(output.path / name / REJECTED_NAME)]
    rejected = tuple(Rejection(**json.loads(line)) for line in lines)
    notes, elapsed_s = ("the set was complete already",), time.monotonic() - started
    return PackReport(output.where, manifests, kinds, rejected, notes, {}, 0, elapsed_s)


def _reasons(rejected: Sequence[Rejection]) -> str:
    """The most common reasons, and some names."""
    counts = Counter(rejection.reason for rejection in rejected).most_common(3)
    such = some_of([rejection.source for rejection in rejected])
    return f"({', '.join(f'{count:,} × {reason}' for reason, count in counts)}), such as {such}"


def _image_field(packed: Sequence[ShardReport], base: Manifest | None, encoding: Encoding) -> Field:
    members = {name for shard in packed for name in shard.members}
    if base is not None:
        members |= set(base.fields[0].member.split(";"))
    kind = "raw" if members == {"npy"} else "image"
    return replace(IMAGE, kind=kind, member=";".join(sorted(members)), **encoding.pixels.in_field())


def _write_index(folder: Path, files: Sequence[Path], fields: tuple[Field, ...]) -> dict[str, int]:
    """Joins files of rows in order of their shards: those of the old ones, if any, and those that the workers wrote.

    Returns the largest width, height and image_bytes.
    """
    path, largest = folder / index_file.FILE_NAME, dict.fromkeys(("width", "height", "image_bytes"), 0)
    readers = [pa.ipc.open_file(pa.memory_map(str(rows), "r")) for rows in files]
    points = any(has_points(reader.schema) for reader in readers)
    with replaced(path) as temporary, write_index(temporary, fields, points) as write:
        for reader in readers:
            for rows in map(reader.get_batch, range(reader.num_record_batches)):
                write(rows)
                for name, most in largest.items():
                    largest[name] = max(most, int(rows.column(name).to_numpy().max()))
    return largest


def _join(old: Manifest, new: Manifest) -> Manifest:
    """One manifest for the shards of both; mean and std are weighted by the numbers of measured images."""
    packing = dict(new.packing)
    for name in ("kept", "rejected", "left_out"):
        packing[name] += old.packing.get(name, 0)
    re_encoded = Counter(old.packing.get("stored_anew", {})) + Counter(packing["stored_anew"])
    packing["stored_anew"] = dict(sorted(re_encoded.items()))
    parts = [one for one in (old, new) if one.mean is not None and one.std is not None]
    mean = std = None
    if parts:
        weights = np.array([one.pixels_from for one in parts]) / sum(one.pixels_from for one in parts)
        means, stds = np.array([one.mean for one in parts]), np.array([one.std for one in parts])
        joint = weights @ means
        mean = tuple(joint.round(6).tolist())
        std = tuple(np.sqrt(np.maximum(weights @ (stds**2 + means**2) - joint**2, 0)).round(6).tolist())
    measured = old.pixels_from + new.pixels_from
    return replace(new, shards=old.shards + new.shards, mean=mean, std=std, pixels_from=measured, packing=packing)


def _mean_and_std(
    histogram: npt.NDArray[np.int64],
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and std of each channel, with pixels in 0..1; None and None if there are no pixels.

    histogram: int64 (256 C,), exact counts of the 256 values of each of C channels; (0,) where none are counted. The
    sums are integers up to the final division, so the result does not depend on how the images were distributed over
    shards.
    """
    mean, std = [], []
    for counts in histogram.reshape(-1, 256).tolist():
        pixels = sum(counts)
        if not pixels:
            return None, None
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        mean.append(round(total / (255 * pixels), 6))
        std.append(round((max(0, pixels * squares - total * total) / (255 * pixels) ** 2) ** 0.5, 6))
    return (tuple(mean), tuple(std)) if mean else (None, None)


def _sync(folder: Path) -> None:
    """Syncs the files that describe a split, and their folder, to disk."""
    for path in (*folder.glob("*.arrow"), *folder.glob("*.json*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
