"""Writes the files that describe a split once its shards are packed: index, rejected images, and last the manifest."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pyarrow as pa

from gpuload.disk import Manifest, ShardInfo, write_index
from gpuload.disk import index as index_file
from gpuload.disk.manifest import write_timm_info
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import has_points
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.run.plan import (
    DUPLICATES_NAME,
    REJECTED_NAME,
    PlannedSplit,
    RunState,
    base_folder,
    read_base,
    read_lines,
    recorded_settings,
    write_lines,
    write_rejections,
)
from gpuload.packing.run.shard import ShardJob, ShardReport
from gpuload.sources import Rejection
from gpuload.store.files import replaced


def rejected_in_split(state: RunState, split: PlannedSplit, packed: Sequence[ShardReport]) -> list[Rejection]:
    """The rejected and skipped samples that a split reports.

    First come those that never got a split, since listing rejected them or they are duplicates; the first split reports
    them. The others follow in the order of the listing.
    """
    in_shards = sorted(entry for shard in packed for entry in shard.rejected)
    listed = state.rejected if split == state.splits[0] else []
    return listed + [Rejection(name, reason, asked) for _, name, reason, asked in in_shards]


def write_split_files(
    state: RunState, split: PlannedSplit, jobs: Sequence[ShardJob], packed: Sequence[ShardReport], options: PackOptions
) -> Manifest:
    """Writes the files that describe a split, the manifest last. May be repeated after an interruption."""
    folder, scratch = jobs[0].folder, jobs[0].scratch
    base, old = read_base(scratch, split.name), base_folder(scratch, split.name)
    rejected = rejected_in_split(state, split, packed)
    fields = (_image_field(packed, base, options.encoding), *state.fields)
    for temporary in folder.glob("*.tmp"):
        temporary.unlink()
    _write_index(folder, old if base else None, jobs, packed, fields)
    write_rejections(folder / REJECTED_NAME, rejected, read_lines(old / REJECTED_NAME))
    if options.dedup == "report":
        duplicates = [
            {"source": source, "same_as": first} for source, first, name in state.duplicates if name == split.name
        ]
        write_lines(folder / DUPLICATES_NAME, duplicates, read_lines(old / DUPLICATES_NAME))
    mean, std = mean_and_std(np.sum([shard.histogram for shard in packed], axis=0))
    kinds = sum((Counter(shard.kinds) for shard in packed), Counter[str]())
    manifest = Manifest(
        shards=tuple(ShardInfo(**shard.info) for shard in packed if shard.info),
        fields=fields,
        classes=state.classes,
        width=max(shard.width for shard in packed),
        height=max(shard.height for shard in packed),
        image_bytes=max(shard.image_bytes for shard in packed),
        mean=mean,
        std=std,
        pixels_from=sum(shard.measured for shard in packed),
        packing={
            **recorded_settings(options, state.own_splits, bool(state.settings.get("options", {}).get("no_splits"))),
            "pillow": PIL.__version__,
            "resizer": options.encoding.resizer if options.encoding.shrinks_jpegs else None,
            "kept": kinds[KEPT],
            "stored_anew": {kind: count for kind, count in sorted(kinds.items()) if kind != KEPT},
            "rejected": sum(not rejection.asked for rejection in rejected),
            "left_out": sum(rejection.asked for rejection in rejected),
            "listed": state.first_row + state.samples,
        },
        **index_file.index_digests(folder / index_file.FILE_NAME)._asdict(),
    )
    if base is not None:
        manifest = _join(base, manifest)
    write_timm_info(folder, manifest)
    _sync(folder)
    manifest.write(folder)
    _sync(folder)
    return manifest


def _image_field(packed: Sequence[ShardReport], base: Manifest | None, encoding: Encoding) -> Field:
    extensions = {name for shard in packed for name in shard.extensions}
    if base is not None:
        extensions |= set(base.fields[0].member.split(";"))
    kind: Any = "raw" if extensions == {"npy"} else "image"
    return replace(IMAGE, kind=kind, member=";".join(sorted(extensions)), **encoding.pixels.in_field())


def _write_index(
    folder: Path,
    old: Path | None,
    jobs: Sequence[ShardJob],
    packed: Sequence[ShardReport],
    fields: tuple[Field, ...],
) -> None:
    """Writes the rows of the old shards, if any, and those that the workers wrote, in order of the shards."""
    path = folder / index_file.FILE_NAME
    files = [] if old is None else [old / index_file.FILE_NAME]
    files += [job.note("rows") for job, shard in zip(jobs, packed, strict=True) if shard.info]
    readers = [pa.ipc.open_file(pa.memory_map(str(rows), "r")) for rows in files]
    points = any(has_points(reader.schema) for reader in readers)
    with replaced(path) as temporary, write_index(temporary, fields, points) as write:
        for reader in readers:
            for number in range(reader.num_record_batches):
                write(reader.get_batch(number))


def _join(old: Manifest, new: Manifest) -> Manifest:
    """One manifest for the shards of both; mean and std are weighted by the numbers of measured images."""
    packing = dict(new.packing)
    for name in ("kept", "rejected", "left_out"):
        packing[name] += old.packing.get(name, 0)
    re_encoded = Counter(old.packing.get("stored_anew", {})) + Counter(packing["stored_anew"])
    packing["stored_anew"] = dict(sorted(re_encoded.items()))
    mean, std = old.mean, old.std
    if old.mean is None or old.std is None:
        mean, std = new.mean, new.std
    elif new.mean is not None and new.std is not None:
        weights = np.array([old.pixels_from, new.pixels_from]) / (old.pixels_from + new.pixels_from)
        means, stds = np.array([old.mean, new.mean]), np.array([old.std, new.std])
        joint_mean = weights @ means
        joint_std = np.sqrt(np.maximum(weights @ (stds**2 + means**2) - joint_mean**2, 0))
        mean, std = tuple(joint_mean.round(6).tolist()), tuple(joint_std.round(6).tolist())
    return replace(
        new,
        shards=old.shards + new.shards,
        width=max(old.width, new.width),
        height=max(old.height, new.height),
        image_bytes=max(old.image_bytes, new.image_bytes),
        mean=mean,
        std=std,
        pixels_from=old.pixels_from + new.pixels_from,
        packing=packing,
    )


def mean_and_std(
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
