"""What describes a split once its shards are packed: index, rejected images, and its manifest, written last."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pyarrow as pa

from gpuload.disk import IndexWriter, Manifest
from gpuload.disk import index as index_file
from gpuload.disk.timm_info import write_timm_info
from gpuload.fields.field import IMAGE, Field
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import PackOptions
from gpuload.packing.run.shard import ShardJob
from gpuload.packing.run.shard_report import ShardReport
from gpuload.packing.run.state import (
    DUPLICATES_NAME,
    REJECTED_NAME,
    PlannedSplit,
    RunState,
    base_folder,
    read_base,
    read_lines,
    write_lines,
)
from gpuload.sources import Rejection


def rejected_of(state: RunState, split: PlannedSplit, packed: Sequence[ShardReport]) -> list[Rejection]:
    """What was left out of a split, in order of the listing; what was no sample at all counts to the first."""
    found = sorted(entry for shard in packed for entry in shard.rejected)
    listed = [rejection for name, rejection in state.rejected if name == split.name]
    return listed + [Rejection(name, reason, asked) for _, name, reason, asked in found]


def finish_split(
    state: RunState, split: PlannedSplit, jobs: Sequence[ShardJob], packed: Sequence[ShardReport], options: PackOptions
) -> Manifest:
    """Writes what describes a split; its manifest last. May be done again and again."""
    folder, scratch = jobs[0].folder, jobs[0].scratch
    base, old = read_base(scratch, split.name), base_folder(scratch, split.name)
    rejected = rejected_of(state, split, packed)
    fields = (_image_field(packed, base), *state.fields)
    for temporary in folder.glob("*.tmp"):
        temporary.unlink()
    _write_index(folder, old if base else None, jobs, packed, fields)
    lines = [{"source": r.source, "reason": r.reason} for r in rejected]
    write_lines(folder / REJECTED_NAME, lines, read_lines(old / REJECTED_NAME))
    if options.dedup == "report":
        copies = [
            {"source": source, "same_as": first} for source, first, name in state.duplicates if name == split.name
        ]
        write_lines(folder / DUPLICATES_NAME, copies, read_lines(old / DUPLICATES_NAME))
    mean, std = mean_and_std(np.sum([shard.histogram for shard in packed], axis=0))
    kinds = sum((shard.kinds for shard in packed), Counter[str]())
    manifest = Manifest(
        shards=tuple(shard.info for shard in packed if shard.info),
        fields=fields,
        classes=state.classes,
        width=max(shard.width for shard in packed),
        height=max(shard.height for shard in packed),
        image_bytes=max(shard.image_bytes for shard in packed),
        mean=mean,
        std=std,
        pixels_from=sum(shard.measured for shard in packed),
        packing=_settings(options, kinds, rejected, state),
    )
    if base is not None:
        manifest = _joined(base, manifest)
    write_timm_info(folder, manifest)
    _sync(folder)
    manifest.write(folder)
    _sync(folder)
    return manifest


def _image_field(packed: Sequence[ShardReport], base: Manifest | None) -> Field:
    extensions = {name for shard in packed for name in shard.extensions}
    if base is not None:
        extensions |= set(base.fields[0].member.split(";"))
    kind: Any = "raw" if extensions == {"npy"} else "image"
    return replace(IMAGE, kind=kind, member=";".join(sorted(extensions)))


def _write_index(
    folder: Path,
    old: Path | None,
    jobs: Sequence[ShardJob],
    packed: Sequence[ShardReport],
    fields: tuple[Field, ...],
) -> None:
    """Joins the rows that were there and those that the workers left, in order of the shards."""
    path = folder / index_file.FILE_NAME
    temporary = path.with_suffix(".arrow.tmp")
    with IndexWriter(temporary, fields) as writer:
        files = [] if old is None else [old / index_file.FILE_NAME]
        files += [job.rows_path for job, shard in zip(jobs, packed, strict=True) if shard.info]
        for rows in files:
            with pa.memory_map(str(rows), "r") as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    writer.append(reader.get_batch(number))
    temporary.replace(path)


def _settings(
    options: PackOptions, kinds: Counter[str], rejected: Sequence[Rejection], state: RunState
) -> dict[str, Any]:
    encoding = options.encoding
    asked = Counter(rejection.asked for rejection in rejected)
    return {
        "splits": "the source's own" if state.own_splits else dict(options.shares),
        "shuffle": options.shuffle,
        "seed": options.seed,
        "maxcount": options.maxcount,
        "maxsize": options.maxsize,
        "encode": encoding.encode,
        "size": encoding.size,
        "fit": encoding.fit if encoding.size else None,
        "pillow": PIL.__version__,
        "resizer": encoding.resizer if encoding.makes_jpegs_smaller else None,
        "kept": kinds[KEPT],
        "stored_anew": {kind: count for kind, count in sorted(kinds.items()) if kind != KEPT},
        "rejected": asked[False],
        "left_out": asked[True],
        "listed": state.first_row + state.samples,
    }


def _joined(old: Manifest, new: Manifest) -> Manifest:
    """One manifest for the shards of two; mean and std are weighed by the images that they are from."""
    packing = dict(new.packing)
    for name in ("kept", "rejected", "left_out"):
        packing[name] += old.packing.get(name, 0)
    anew = Counter(old.packing.get("stored_anew", {})) + Counter(packing["stored_anew"])
    packing["stored_anew"] = dict(sorted(anew.items()))
    mean, std = old.mean, old.std
    if old.mean is None or old.std is None:
        mean, std = new.mean, new.std
    elif new.mean is not None and new.std is not None:
        weights = np.array([old.pixels_from, new.pixels_from]) / (old.pixels_from + new.pixels_from)
        means, stds = np.array([old.mean, new.mean]), np.array([old.std, new.std])
        both = weights @ means
        spread = np.sqrt(np.maximum(weights @ (stds**2 + means**2) - both**2, 0))
        (r, g, b), (x, y, z) = both.round(6).tolist(), spread.round(6).tolist()
        mean, std = (r, g, b), (x, y, z)
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


def _sync(folder: Path) -> None:
    """Puts the files of a folder, and their names, on the disk."""
    for path in (*folder.glob("*.arrow"), *folder.glob("*.json*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
