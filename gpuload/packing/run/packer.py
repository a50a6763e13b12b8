"""Packs a source into shards: lists and plans the samples, has workers pack them, then describes each split."""

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.checks import check
from gpuload.counted import counted
from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.disk.index import class_numbers, notes_on_numbers
from gpuload.errors import OutputError, RemoteError, SourceError
from gpuload.machine.fork_server import sigint_deferred
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import PackOptions
from gpuload.packing.run.output import Output
from gpuload.packing.run.plan import (
    OWN_SPLITS,
    REJECTED_NAME,
    PlannedSplit,
    RunState,
    read_lines,
    recorded_settings,
    refuse_change,
)
from gpuload.packing.run.prepare import check_packages, choose_resizer, plan_run, settings_of
from gpuload.packing.run.shard import LostWorkers, ShardJob, ShardReport, modules_to_preload, pack_shard
from gpuload.packing.run.split_files import rejected_in_split, write_split_files
from gpuload.packing.run.workers import Workers, prepare_source, read_position, start_server
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.rows import Source
from gpuload.store.url import LOCATION, URL

__all__ = ["REJECTED_NAME", "PackReport", "Progress", "pack"]


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
    split (see `rejected_in_split`). notes: sentences for the user. labels: smallest and largest class number of each
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
    source: Source,
    out: str | Path | URL,
    options: PackOptions = PackOptions(),  # noqa: B008 -- frozen
    watch: Callable[[Progress], None] = lambda progress: None,
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
            manifests = {split.name: run.finish(split) for split in run.state.splits if split.shards}
            output.publish([*manifests])
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
        manifests = {name: manifests.get(name) or Manifest.read(at) for name, at in output.packed_splits().items()}
        rejected = tuple(run.all_rejected())
    manifests = {
        split.name: manifests.pop(split.name) for split in run.state.splits if split.name in manifests
    } | manifests
    labels = {name: (min(numbers), max(numbers)) for name, numbers in run.numbers.items() if numbers}
    remarks = (sentence.format(f"{count:,}") for sentence, count in sorted(run.counts("remarks").items()))
    notes = *run.state.notes, *remarks, *notes_on_numbers(run.numbers, next(iter(manifests.values())))
    elapsed_s = time.monotonic() - started
    return PackReport(output.where, manifests, run.counts("kinds"), rejected, notes, labels, run.packed_now, elapsed_s)


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
        now = settings_of(source, options)
        refuse_change(
            f"the interrupted run in {output.where}",
            {**state.settings, "resizer": state.resizer},
            {**now, "resizer": options.encoding.resizer},
            sorted({*state.settings, *now, "resizer"}),
            "Give the same, or delete the folder and pack again",
        )
        source = prepare_source(source, output.scratch)
    options = replace(options, encoding=replace(options.encoding, mode=state.mode))
    return _PackingRun(source, state, options, output, watch)


def _open_output(out: str | Path | URL, options: PackOptions, stack: ExitStack) -> Output:
    """The output, entered: leaving `stack` leaves it, also where Ctrl-C comes meanwhile."""
    where = check("pack", "out", out, LOCATION)
    if isinstance(where, URL):
        from gpuload.packing.run.remote_output import RemoteOutput  # asyncio and obstore

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
        from gpuload.packing.run.ray_engine import RayWorkers

        return RayWorkers(options.workers, options.address)
    preload = modules_to_preload(options.encoding)
    start_server(preload)  # it imports the workers' modules while this process lists the samples
    need_main = type(source).__module__ == "__main__"
    return Workers[ShardJob, ShardReport](options.worker_count, pack_shard, need_main, preload)


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
        self._reports: dict[str, dict[int, ShardReport]] = {split.name: {} for split in state.splits}
        self._progress = Progress(0, 0, state.samples, state.bytes)
        self._done = replace(self._progress)  # of finished shards
        folders = {split.name: output.split_folder(split.name) for split in state.splits if split.shards}
        self.jobs = {
            split.name: [
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
                for number in range(split.shards)
            ]
            for split in state.splits
        }

    def pack_shards(self, engine: Any) -> None:
        """Packs the shards of all splits that an earlier run did not finish."""
        waiting = []
        for job in (job for jobs in self.jobs.values() for job in jobs):
            if self.output.resumed and (report := job.read_report()) is not None:
                self._take(job, report)
            else:
                job.position.unlink(missing_ok=True)  # where the worker of an earlier run was
                waiting.append(job)
        try:
            for job, report in engine.run(waiting, LostWorkers(), self._report_progress):
                self._take(job, report)
                self.packed_now += sum(report.kinds.values())
        finally:
            # When this process is stopped, a worker may have finished a shard whose report has not arrived.
            self.output.keep = self.output.keep or any(job.note("done").exists() for job in waiting)

    def _take(self, job: ShardJob, report: ShardReport) -> None:
        self.output.keep = True
        self.output.take(job)
        self._reports[job.folder.name][job.number] = report
        images = self._done.images + sum(report.kinds.values()) + len(report.rejected)
        self._done = replace(self._done, images=images, bytes=self._done.bytes + report.read_bytes)

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
            rejected = rejected_in_split(self.state, split, self._shards(split))
            if split.shards and not any(shard.info for shard in self._shards(split)):
                self.output.keep = False
                raise SourceError(
                    f"no readable image for {split.name!r}: all {len(rejected):,} were rejected "
                    f"{_reasons(rejected)}. Is this the right folder?"
                )
        faults = [rejection for rejection in self.all_rejected() if not rejection.asked]
        listed = self.state.samples + sum(not rejection.asked for rejection in self.state.rejected)
        if len(faults) > self.options.max_rejected * listed:
            raise SourceError(
                f"{len(faults):,} of {listed:,} images were rejected, more than --max-rejected "
                f"{self.options.max_rejected:.4g} {_reasons(faults)}. Correct them and pack again, or continue with "
                "--resume and a higher --max-rejected"
            )

    def finish(self, split: PlannedSplit) -> Manifest:
        manifest = write_split_files(self.state, split, self.jobs[split.name], self._shards(split), self.options)
        index = Index(self.jobs[split.name][0].folder / index_file.FILE_NAME, manifest.fields)
        rows = map(index.shard, range(len(index)))
        for name, numbers in class_numbers(manifest.fields, rows).items():
            self.numbers.setdefault(name, set()).update(numbers)
        return manifest

    def counts(self, name: str) -> Counter[str]:
        """The counts of all shards by this name of `ShardReport`."""
        reports = [report for split in self._reports.values() for report in split.values()]
        return sum((Counter(getattr(report, name)) for report in reports), Counter[str]())

    def _shards(self, split: PlannedSplit) -> list[ShardReport]:
        return [report for _, report in sorted(self._reports[split.name].items())]

    def all_rejected(self) -> list[Rejection]:
        return [
            rejection
            for split in self.state.splits
            for rejection in rejected_in_split(self.state, split, self._shards(split))
        ]


def _report_finished(output: Output, source: Source, options: PackOptions, started: float) -> PackReport:
    """The report of a run that is resumed although it was complete.

    Raises:
        ArgumentError: it was packed with other settings.
    """
    output.keep = True
    manifests = {name: Manifest.read(folder) for name, folder in output.packed_splits().items()}
    for manifest in manifests.values():
        recorded = manifest.packing
        drawn = options.val or options.splits
        kept = source.own_splits and recorded.get("splits") == OWN_SPLITS and not drawn
        now = recorded_settings(options, kept, not source.own_splits)
        advice = "Pack it again with --overwrite, or choose another folder"
        advice = "Pack to another URL" if isinstance(output.where, URL) else advice
        refuse_change(f"the complete set in {output.where}", recorded, now, [*now, "options"], advice)
    lines = [line for name in manifests for line in read_lines(output.path / name / REJECTED_NAME)]
    rejected = tuple(Rejection(**json.loads(line)) for line in lines)
    kinds: Counter[str] = Counter()
    for manifest in manifests.values():
        kinds += Counter({KEPT: manifest.packing["kept"], **manifest.packing["stored_anew"]})
    notes, elapsed_s = ("the set was complete already",), time.monotonic() - started
    return PackReport(output.where, manifests, kinds, rejected, notes, {}, 0, elapsed_s)


def _reasons(rejected: Sequence[Rejection]) -> str:
    """The most common reasons, and some names."""
    counts = Counter(rejection.reason for rejection in rejected).most_common(3)
    such = some_of([rejection.source for rejection in rejected])
    return f"({', '.join(f'{count:,} × {reason}' for reason, count in counts)}), such as {such}"
