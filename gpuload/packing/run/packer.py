"""Packs a source into shards: lists and plans the samples, has workers pack them, then describes each split."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gpuload.checks import check
from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import OutputError, RemoteError, SourceError
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import KEEP, PackOptions
from gpuload.packing.run.lost_workers import LostWorkers
from gpuload.packing.run.output import Output
from gpuload.packing.run.prepare import check_packages, choose_resizer, plan_run, settings_of
from gpuload.packing.run.prepare_source import prepare_source
from gpuload.packing.run.shard import ShardJob, modules_to_preload, pack_shard, read_finished_shard
from gpuload.packing.run.shard_report import ShardReport
from gpuload.packing.run.split_files import refuse_other_settings, rejected_in_split, write_split_files
from gpuload.packing.run.state import REJECTED_NAME, PlannedSplit, RunState, read_lines
from gpuload.packing.run.worker_position import read_position
from gpuload.packing.run.workers import Workers
from gpuload.sources.listing import Rejection, Source, some_of
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

    folder: what was packed into. manifests: by split, with the shards that were there before. kinds: number of images
    by `StoredImage.kind`, "kept" or what a re-encoded image was before. rejected: the rejected and skipped samples, by
    split (see `rejected_in_split`). notes: sentences for the user. packed: images that this run has packed itself, not
    those of the set to which they were appended, nor of the run that it resumed. elapsed_s: what that took.
    """

    folder: Path | URL

    manifests: dict[str, Manifest]
    kinds: Counter[str]
    rejected: tuple[Rejection, ...]
    notes: tuple[str, ...]
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


class Engine(Protocol):
    """Runs shard jobs in processes: `Workers`, or its equivalent on a cluster."""

    def start(self) -> None: ...

    def run(
        self,
        tasks: Iterable[ShardJob],
        done: Callable[[ShardJob, ShardReport], None],
        died: Callable[[ShardJob, int], ShardJob],
        watch: Callable[[list[ShardJob]], None],
    ) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


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
    with _open_output(out, options) as output:
        if output.finished:
            return _report_finished(output, source, options, started)
        source.leave_out(output.final)
        try:
            with _engine(source, options) as engine:
                engine.start()
                state = RunState.read(output.scratch) if output.resumed else None
                source.as_stored = options.encoding.mode != "RGB"
                before = state.settings.get("--resizer") if state else None
                options = replace(options, encoding=choose_resizer(options.encoding, before))
                if state is not None:
                    options = _with_mode(options, state)
                settings = settings_of(source, options)
                if state is None:
                    output.clear_scratch()
                    source = prepare_source(source, output.scratch)
                    state = plan_run(source, options, output, settings)
                    options = _with_mode(options, state)
                else:
                    output.keep = True
                    state.check_same(settings, output.where)
                    source = prepare_source(source, output.scratch)
                run = _PackingRun(source, state, options, output, watch)
                run.pack_shards(engine)
            run.check_rejected()
            manifests = {split.name: run.finish(split) for split in state.splits if split.shards}
            output.publish([*manifests])
        except OSError as error:
            raise OutputError(
                f"{output.path}: cannot be written ({error.strerror or error}). "
                f"Free some space{_resume_hint(output)}, or choose another folder"
            ) from None
        except (OutputError, RemoteError) as error:
            raise type(error)(f"{error}{_resume_hint(output)}") from None
        manifests = {name: manifests.get(name) or Manifest.read(at) for name, at in output.packed_splits().items()}
        rejected = tuple(run.all_rejected())
    order = {split.name: number for number, split in enumerate(state.splits)}
    manifests = dict(sorted(manifests.items(), key=lambda item: order.get(item[0], len(order))))
    notes, elapsed_s = (*state.notes, *run.notes()), time.monotonic() - started
    return PackReport(output.where, manifests, run.kinds, rejected, notes, run.packed_now, elapsed_s)


def _open_output(out: str | Path | URL, options: PackOptions) -> Output:
    where = check("pack", "out", out, LOCATION)
    if isinstance(where, URL):
        from gpuload.packing.run.remote_output import RemoteOutput  # asyncio and obstore

        return RemoteOutput(where, options)
    return Output(where, resume=options.resume, append=options.append, overwrite=options.overwrite)


def _with_mode(options: PackOptions, state: RunState) -> PackOptions:
    """The options with the mode "keep" replaced by what the run has decided."""
    if options.encoding.mode != KEEP:
        return options
    return replace(options, encoding=replace(options.encoding, mode=state.settings.get("--mode", KEEP)))


def _resume_hint(output: Output) -> str:
    return "; finished shards are kept: continue with --resume" if output.keep else ""


def _engine(source: Source, options: PackOptions) -> Engine:
    if options.engine == "ray":
        from gpuload.packing.run.ray_engine import RayWorkers

        return RayWorkers(options.workers, options.address)
    need_main = type(source).__module__ == "__main__"
    preload = modules_to_preload(options.encoding)
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
        self.state = state
        self.options = options
        self.output = output
        self.watch = watch
        self.kinds: Counter[str] = Counter()
        self.packed: dict[str, dict[int, ShardReport]] = {split.name: {} for split in state.splits}
        self.packed_now = 0  # images, but for those of the run that this one resumes
        self._done_images = 0
        self._done_bytes = 0
        folders = {split.name: output.split_folder(split.name) for split in state.splits if split.shards}
        self.jobs = {
            split.name: [
                ShardJob(
                    source=source,
                    fields=state.fields,
                    plan=output.scratch / f"{split.name}.plan",
                    number=number,
                    folder=folders[split.name],
                    scratch=output.scratch,
                    time_limit_s=options.time_limit_s,
                    known_bad={},
                    encoding=options.encoding,
                    first_shard=split.first_shard,
                    first_row=state.first_row,
                )
                for number in range(split.shards)
            ]
            for split in state.splits
        }

    def pack_shards(self, engine: Engine) -> None:
        """Packs the shards of all splits that an earlier run did not finish."""
        waiting = []
        for job in (job for jobs in self.jobs.values() for job in jobs):
            if self.output.resumed and (packed := read_finished_shard(job)) is not None:
                self._done(job, packed)
            else:
                waiting.append(job)
        before = self.kinds.total()
        try:
            engine.run(waiting, self._done, LostWorkers(), self._report_progress)
        finally:
            # When this process is stopped, a worker may have finished a shard whose report has not arrived.
            self.output.keep = self.output.keep or any(job.done_path.exists() for job in waiting)
        self.packed_now = self.kinds.total() - before

    def _done(self, job: ShardJob, packed: ShardReport) -> None:
        self.output.keep = True
        self.output.take(job)
        self.packed[job.folder.name][job.number] = packed
        self.kinds += packed.kinds
        self._done_images += sum(packed.kinds.values()) + len(packed.rejected)
        self._done_bytes += packed.read_bytes

    def _report_progress(self, jobs: list[ShardJob]) -> None:
        positions = [read_position(job.position_path) for job in jobs]
        images = self._done_images + sum(max(position, 0) for position, _ in positions)
        read_bytes = self._done_bytes + sum(read for _, read in positions)
        self.watch(Progress(images, read_bytes, self.state.samples, self.state.bytes))

    def check_rejected(self) -> None:
        """Raises SourceError if a split is empty, or more than `max_rejected` of all images were rejected."""
        for split in self.state.splits:
            rejected = rejected_in_split(self.state, split, self._shards(split))
            if split.shards and not any(shard.info for shard in self._shards(split)):
                self.output.keep = False
                reasons = Counter(rejection.reason for rejection in rejected)
                raise SourceError(
                    f"no readable image for {split.name!r}: all {len(rejected):,} were rejected "
                    f"({_most_common(reasons)}), such as {some_of([rejection.source for rejection in rejected])}. "
                    "Is this the right folder?"
                )
        faults = [rejection for rejection in self.all_rejected() if not rejection.asked]
        listed = self.state.samples + len([entry for _, entry in self.state.rejected if not entry.asked])
        if len(faults) > self.options.max_rejected * listed:
            reasons = Counter(rejection.reason for rejection in faults)
            raise SourceError(
                f"{len(faults):,} of {listed:,} images were rejected, more than --max-rejected "
                f"{self.options.max_rejected:.4g} ({_most_common(reasons)}), such as "
                f"{some_of([rejection.source for rejection in faults])}. Correct them and pack again, or continue with "
                "--resume and a higher --max-rejected"
            )

    def finish(self, split: PlannedSplit) -> Manifest:
        return write_split_files(self.state, split, self.jobs[split.name], self._shards(split), self.options)

    def notes(self) -> list[str]:
        """What the packing of fields found that the user should know."""
        shards = [shard for split in self.packed.values() for shard in split.values()]
        remarks = sum((shard.remarks for shard in shards), Counter[str]())
        return [sentence.format(f"{count:,}") for sentence, count in sorted(remarks.items())]

    def _shards(self, split: PlannedSplit) -> list[ShardReport]:
        return [packed for _, packed in sorted(self.packed[split.name].items())]

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
        refuse_other_settings(output.where, manifest, options, source.own_splits)
    lines = [line for name in manifests for line in read_lines(output.path / name / REJECTED_NAME)]
    rejected = tuple(Rejection(**json.loads(line)) for line in lines)
    kinds: Counter[str] = Counter()
    for manifest in manifests.values():
        kinds += Counter({KEPT: manifest.packing["kept"], **manifest.packing["stored_anew"]})
    notes, elapsed_s = ("the set was complete already",), time.monotonic() - started
    return PackReport(output.where, manifests, kinds, rejected, notes, 0, elapsed_s)


def _most_common(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common(3))
