"""Writes the files that describe a split once its shards are packed: index, rejected images, and last the manifest."""

import json
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
from gpuload.errors import ArgumentError
from gpuload.fields.field import IMAGE, Field
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import KEEP, Encoding, PackOptions
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
from gpuload.store.url import URL

# Settings of `Encoding` that affect the shards and that a manifest records only where they differ from the defaults.
_OTHERS = ("enlarge", "quality", "lossless", "check", "drop_gray", "min_size", "max_pixels", "mode", "keep")


def rejected_in_split(state: RunState, split: PlannedSplit, packed: Sequence[ShardReport]) -> list[Rejection]:
    """The rejected and skipped samples that a split reports.

    First come those that never got a split, since listing rejected them or they are duplicates; the first split reports
    them. The others follow in the order of the listing.
    """
    in_shards = sorted(entry for shard in packed for entry in shard.rejected)
    listed = [rejection for name, rejection in state.rejected if name == split.name]
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
    lines = [{"source": r.source, "reason": r.reason, **({"asked": True} if r.asked else {})} for r in rejected]
    write_lines(folder / REJECTED_NAME, lines, read_lines(old / REJECTED_NAME))
    if options.dedup == "report":
        duplicates = [
            {"source": source, "same_as": first} for source, first, name in state.duplicates if name == split.name
        ]
        write_lines(folder / DUPLICATES_NAME, duplicates, read_lines(old / DUPLICATES_NAME))
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
        packing=_packing_record(options, kinds, rejected, state),
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


_OWN_SPLITS = "the source's own"


def recorded_settings(options: PackOptions, own_splits: bool, no_splits: bool) -> dict[str, Any]:
    """The settings that a manifest records, by their names there; "options" holds others if not the defaults.

    own_splits: whether the splits are the source's own. no_splits: whether such splits are ignored.
    """
    encoding, usual = options.encoding, Encoding()
    others = {name: getattr(encoding, name) for name in _OTHERS if getattr(encoding, name) != getattr(usual, name)}
    if encoding.is_strict:
        others["mode"] = KEEP
    if options.dedup != "no":
        others["dedup"] = options.dedup
    if no_splits:
        others["no_splits"] = True
    return {
        "splits": _OWN_SPLITS if own_splits else dict(options.shares),
        "shuffle": options.shuffle,
        "seed": options.seed,
        "maxcount": options.maxcount,
        "maxsize": options.maxsize,
        "encode": encoding.encode,
        "size": encoding.size,
        "fit": encoding.fit if encoding.size else None,
        **({"options": others} if others else {}),
    }


def refuse_other_settings(out: Path | URL, manifest: Manifest, options: PackOptions, own_splits: bool) -> None:
    """Raises ArgumentError if the complete set in `out` was packed with other settings than these.

    own_splits: whether splits of the source's own, if it has any, are kept.
    """
    recorded = manifest.packing
    kept = own_splits and recorded.get("splits") == _OWN_SPLITS and not (options.val or options.splits)
    given = json.loads(json.dumps(recorded_settings(options, kept, not own_splits)))
    replaced = "Pack it again with --overwrite, or choose another folder"
    remedy = "Pack to another URL" if isinstance(out, URL) else replaced
    for name in (*given, "options"):
        if recorded.get(name) != given.get(name):
            raise ArgumentError(
                f"--resume: the set in {out} is complete and was packed with {name} {recorded.get(name)!r}, not "
                f"{given.get(name)!r}. {remedy}"
            )


def _packing_record(
    options: PackOptions, kinds: Counter[str], rejected: Sequence[Rejection], state: RunState
) -> dict[str, Any]:
    """The settings and counts for `Manifest.packing`."""
    encoding = options.encoding
    asked = Counter(rejection.asked for rejection in rejected)
    return {
        **recorded_settings(options, state.own_splits, bool(state.settings.get("--no-splits"))),
        "pillow": PIL.__version__,
        "resizer": encoding.resizer if encoding.shrinks_jpegs else None,
        "kept": kinds[KEPT],
        "stored_anew": {kind: count for kind, count in sorted(kinds.items()) if kind != KEPT},
        "rejected": asked[False],
        "left_out": asked[True],
        "listed": state.first_row + state.samples,
    }


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
    histogram: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
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
