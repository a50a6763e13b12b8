"""Packs a source into shards: list, plan, workers, and at the end what describes the whole."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import PIL
import pyarrow as pa

from gpuload.disk import IndexWriter, Manifest
from gpuload.disk import index as index_file
from gpuload.disk.fields import IMAGE, Field
from gpuload.disk.timm_info import write_timm_info
from gpuload.errors import ArgumentError, GpuloadError, OutputError, SourceError
from gpuload.packing.image import KEPT
from gpuload.packing.options import PackOptions
from gpuload.packing.output import Output
from gpuload.packing.plan import Split, make_plan, write_plan
from gpuload.packing.shard import NOWHERE, PackedShard, ShardJob, pack_shard, read_note
from gpuload.packing.workers import Workers
from gpuload.sources import Listing, Rejection, Source
from gpuload.sources.listing import BYTES, some_of

REJECTED_NAME = "rejected.jsonl"

_MOST_DEATHS = 100  # of workers, without one image to blame: then something is wrong with the machine or the caller


@dataclass(frozen=True)
class Progress:
    """How far a run is: images and bytes read, of how many."""

    images: int
    bytes: int
    total_images: int
    total_bytes: int


@dataclass(frozen=True)
class PackReport:
    """What a run of the packer made: a manifest for each split, and what it left out.

    kinds: images that were kept or stored anew, by kind. rejected: what was left out, in order of the listing.
    """

    manifests: dict[str, Manifest]
    kinds: Counter[str]
    rejected: tuple[Rejection, ...]
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def images(self) -> int:
        return sum(manifest.samples for manifest in self.manifests.values())


def pack(
    source: Source,
    out: str | Path,
    options: PackOptions = PackOptions(),  # noqa: B008 -- frozen
    watch: Callable[[Progress], None] = lambda progress: None,
) -> PackReport:
    """Packs every image of a source into `out/train` and, with `options.val`, `out/val`.

    It starts worker processes that import the caller's main module: call it under `if __name__ == "__main__"`.
    `watch` is called a few times a second.

    Raises:
        SourceError: the source holds no image that can be read.
        OutputError: `out` is in use or cannot be written. Nothing is left in it after an error.
        ArgumentError: `options.val` leaves one split without a sample.
    """
    started = time.monotonic()
    with Output(out) as output:
        listing = source.list_samples()
        splits = make_plan(
            listing,
            val=options.val,
            shuffle=options.shuffle,
            seed=options.seed,
            maxcount=options.maxcount,
            maxsize=options.maxsize,
            measure=options.measure,
        )
        for split in splits:
            if not len(split.rows):
                raise ArgumentError(
                    f"--val {options.val} of {len(listing):,} images leaves none for {split.name!r}. "
                    "Change --val, or leave it out"
                )
        try:
            run = _Run(source, listing, options, output, splits, watch)
            run.pack_shards()
            manifests = {split.name: run.finish_split(split) for split in splits}
        except OSError as error:
            raise OutputError(
                f"{output.path}: cannot be written ({error.strerror or error}). "
                "Free some space, or choose another folder"
            ) from None
    return PackReport(manifests, run.kinds, tuple(run.all_rejected()), listing.notes, time.monotonic() - started)


@dataclass
class _SplitState:
    """What has become of the shards of a split so far."""

    folder: Path
    plan: Path
    packed: dict[int, PackedShard] = field(default_factory=dict)


class _Run:
    """One run: hands shards to workers and collects what they report."""

    def __init__(
        self,
        source: Source,
        listing: Listing,
        options: PackOptions,
        output: Output,
        splits: tuple[Split, ...],
        watch: Callable[[Progress], None],
    ) -> None:
        self.source = source
        self.listing = listing
        self.options = options
        self.output = output
        self.splits = splits
        self.watch = watch
        self.kinds: Counter[str] = Counter()
        self.states: dict[str, _SplitState] = {}
        self._killed: Counter[tuple[str, int, int]] = Counter()
        self._deaths = 0
        self._done_images = 0
        self._done_bytes = 0
        self._total_bytes = int(np.sum(listing.samples.column(BYTES).to_numpy()))

    def pack_shards(self) -> None:
        """Packs the shards of all splits."""
        jobs = []
        for split in self.splits:
            plan = self.output.scratch / f"{split.name}.plan"
            write_plan(plan, split, self.listing.samples)
            state = _SplitState(self.output.make_split(split.name), plan)
            self.states[split.name] = state
            jobs += [self._job(state, number) for number in range(len(split.ends))]
        with Workers[ShardJob, PackedShard](min(self.options.worker_count, len(jobs)), pack_shard) as workers:
            workers.run(jobs, self._done, self._died, self._look)

    def _job(self, state: _SplitState, number: int) -> ShardJob:
        scratch, limit = self.output.scratch, self.options.time_limit_s
        return ShardJob(self.source, self.listing.fields, state.plan, number, state.folder, scratch, limit, {})

    def _done(self, job: ShardJob, packed: PackedShard) -> None:
        self.states[job.folder.name].packed[job.number] = packed
        self.kinds += packed.kinds
        self._done_images += sum(packed.kinds.values()) + len(packed.rejected)
        self._done_bytes += packed.read_bytes

    def _died(self, job: ShardJob, code: int) -> ShardJob:
        """The job to run again: with the image that brought the worker down left out, if one is to blame."""
        position, _ = read_note(job.note_path)
        job.note_path.unlink(missing_ok=True)
        place = (job.folder.name, job.number, position)
        self._deaths += 1
        if position != NOWHERE:
            self._killed[place] += 1
            # SIGKILL may be the kernel's, short of memory, and no fault of this image: it gets a second chance.
            if code != -signal.SIGKILL or self._killed[place] > 1:
                self._deaths -= 1
                return replace(job, known_bad={**job.known_bad, position: self._reason(code)})
        if self._deaths > _MOST_DEATHS:
            raise GpuloadError(
                f"workers died {self._deaths} times with no image to blame, at last with {_exit_name(code)}. Is memory "
                'short? Try fewer --workers. From Python, call pack() under `if __name__ == "__main__":`'
            )
        return job

    def _reason(self, code: int) -> str:
        if code == -signal.SIGALRM:
            return f"took longer than {self.options.time_limit_s:g} s"
        if code == -signal.SIGKILL:
            return "the decoder was killed (SIGKILL) twice; out of memory?"
        return f"the decoder died: {_exit_name(code)}"

    def _look(self, jobs: list[ShardJob]) -> None:
        notes = [read_note(job.note_path) for job in jobs]
        images = self._done_images + sum(max(position, 0) for position, _ in notes)
        self.watch(
            Progress(images, self._done_bytes + sum(read for _, read in notes), len(self.listing), self._total_bytes)
        )

    def finish_split(self, split: Split) -> Manifest:
        """Writes what describes a split; its manifest last."""
        state = self.states[split.name]
        packed = [state.packed[number] for number in sorted(state.packed)]
        rejected = self.rejected_of(split)
        if not any(shard.info for shard in packed):
            reasons = Counter(rejection.reason for rejection in rejected)
            raise SourceError(
                f"no readable image for {split.name!r}: all {len(rejected):,} were rejected ({_counted(reasons)}), "
                f"such as {some_of([rejection.source for rejection in rejected])}. Is this the right folder?"
            )
        fields = (IMAGE, *self.listing.fields)
        self._write_index(state, fields)
        lines = [json.dumps({"source": r.source, "reason": r.reason}, ensure_ascii=False) + "\n" for r in rejected]
        (state.folder / REJECTED_NAME).write_text("".join(lines), encoding="utf-8")
        mean, std = mean_and_std(np.sum([shard.histogram for shard in packed], axis=0))
        kinds = sum((shard.kinds for shard in packed), Counter[str]())
        manifest = Manifest(
            shards=tuple(shard.info for shard in packed if shard.info),
            fields=fields,
            classes=self.listing.classes,
            width=max(shard.width for shard in packed),
            height=max(shard.height for shard in packed),
            image_bytes=max(shard.image_bytes for shard in packed),
            mean=mean,
            std=std,
            pixels_from=sum(shard.measured for shard in packed),
            packing=self._settings(kinds, len(rejected)),
        )
        write_timm_info(state.folder, manifest)
        _sync(state.folder)
        manifest.write(state.folder)
        _sync(state.folder)
        return manifest

    def rejected_of(self, split: Split) -> list[Rejection]:
        """What was left out of a split, in order of the listing; what was no sample at all counts to the first."""
        found = sorted(entry for shard in self.states[split.name].packed.values() for entry in shard.rejected)
        listed = list(self.listing.rejected) if split is self.splits[0] else []
        return listed + [Rejection(name, reason) for _, name, reason in found]

    def all_rejected(self) -> list[Rejection]:
        return [rejection for split in self.splits for rejection in self.rejected_of(split)]

    def _write_index(self, state: _SplitState, fields: tuple[Field, ...]) -> None:
        """Joins the rows that the workers left, in order of the shards."""
        path = state.folder / index_file.FILE_NAME
        temporary = path.with_suffix(".arrow.tmp")
        with IndexWriter(temporary, fields) as writer:
            for number in sorted(state.packed):
                if state.packed[number].info:
                    rows = self._job(state, number).rows_path
                    with pa.memory_map(str(rows), "r") as file:
                        writer.append(pa.ipc.open_file(file).get_batch(0))
        temporary.replace(path)

    def _settings(self, kinds: Counter[str], rejected: int) -> dict[str, object]:
        settings = self.options
        return {
            "val": settings.val,
            "shuffle": settings.shuffle,
            "seed": settings.seed,
            "maxcount": settings.maxcount,
            "maxsize": settings.maxsize,
            "pillow": PIL.__version__,
            "kept": kinds[KEPT],
            "stored_anew": {kind: count for kind, count in sorted(kinds.items()) if kind != KEPT},
            "rejected": rejected,
        }


Channels = tuple[float, float, float]


def mean_and_std(
    histogram: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
) -> tuple[Channels | None, Channels | None]:
    """Of each channel, with pixels in 0..1, from exact counts: 256 for R, then G, then B. None without a pixel.

    Whole numbers up to the last division, so that it does not matter who counted what.
    """
    mean, std = [], []
    for counts in histogram.reshape(3, 256).tolist():
        pixels = sum(counts)
        if not pixels:
            return None, None
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        mean.append(round(total / (255 * pixels), 6))
        std.append(round((max(0, pixels * squares - total * total) / (255 * pixels) ** 2) ** 0.5, 6))
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common(3))


def _exit_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def _sync(folder: Path) -> None:
    """Puts the files of a folder, and their names, on the disk."""
    for path in (*folder.glob("*.arrow"), *folder.glob("*.json*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
