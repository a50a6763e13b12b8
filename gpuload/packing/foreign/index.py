"""Indexes WebDataset shards that others packed, without repacking them.

The same files as the packer's, beside the shards or in a folder of their own: a `.idx` for each shard, `index.arrow`,
`manifest.json` and `_info.json`.
"""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from braceexpand import braceexpand

from gpuload.counted import counted
from gpuload.disk import IndexWriter, Manifest, ShardInfo, dali_index, timm_info
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.errors import ArgumentError, OutputError, ShardError, SourceError
from gpuload.fields.field import LABEL, Field
from gpuload.fields.registry import index_schema
from gpuload.packing.foreign.class_file import check_class_names
from gpuload.packing.foreign.scan import IMAGE_MEMBERS, VALUE_FIELDS, ScannedShard, scan_shard
from gpuload.sources.files import COMPRESSED_TARS
from gpuload.sources.listing import some_of
from gpuload.store.url import SCHEMES, URL, refuse_urls, scheme_of


def index_shards(
    patterns: Sequence[str],
    out: str | Path | None = None,
    classes: str | Path | None = None,
    overwrite: bool = False,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, Manifest]:
    """Indexes shards and says where; the folder can be opened like one that gpuload packed.

    patterns: paths or URLs of tars, with braces ("{000..127}") or the shell's wildcards; they are read in this order.
        What lies at URLs stays there: the index names it, and a loader downloads it into its cache.
    out: folder for the index; None: beside the shards, which must then be in one local folder.
    classes: text file with the name of a class in each line, in order of their numbers.
    overwrite: whether index files that are there already are replaced.
    watch: called with shards done and shards in all.

    A sample is a run of members with one key, as WebDataset and DALI have it. Fields are those that every sample has:
    the image (`jpg`, `jpeg` or `png`), `label` from `cls`, `caption` from `txt`, `json` from `json`.

    A text that only some samples have is not indexed; the manifest counts it under `packing`, and members that are none
    of these.

    Raises:
        SourceError: a pattern fits no file, or no plain tar. ArgumentError: the shards are in several folders and `out`
            is None; or `classes` are given and no sample has one.
        OutputError: there is an index already. ShardError: a shard is damaged, or holds what cannot be indexed.
    """
    refuse_urls("--out", out, "Give a local folder")
    refuse_urls("--classes", classes, "Give a local file")
    shards = expand_shards(patterns)
    folder = _output_folder(shards, out)
    names = _read_classes(classes)
    indexes = _index_paths(shards, folder)
    _refuse_existing(folder, [*indexes, *(folder / name for name in _WHOLE_SET_FILES)], overwrite)
    scanned = []
    for shard in _scan(shards):
        scanned.append(shard)
        watch(len(scanned), len(shards))
    fields = _common_fields(scanned)
    if LABEL in fields:
        _check_labels(scanned, names)
    elif names is not None:
        raise ArgumentError(f"--classes: no sample has a .cls, so {classes} names classes of nothing. Leave it out")
    try:
        manifest = _write(folder, scanned, indexes, fields, names)
    except OSError as error:
        raise OutputError(
            f"{folder}: the index cannot be written ({error.strerror or error}). Give another folder with --out"
        ) from None
    return folder, manifest


_WHOLE_SET_FILES = (index_file.FILE_NAME, timm_info.FILE_NAME, manifest_file.FILE_NAME)


def _scan(shards: Sequence[Path | URL]) -> Iterable[ScannedShard]:
    if any(isinstance(shard, URL) for shard in shards):
        from gpuload.packing.foreign.remote import scan_shards

        return scan_shards([shard for shard in shards if isinstance(shard, URL)])
    return (scan_shard(shard) for shard in shards if isinstance(shard, Path))


def expand_shards(patterns: Sequence[str]) -> list[Path | URL]:
    """The files that these patterns name, each once, in order; wildcards in sorted order.

    Raises:
        SourceError: one names no file. ArgumentError: some lie here and others at URLs.
    """
    shards: dict[Path | URL, None] = {}
    commits: dict[str, str] = {}
    for pattern in patterns:
        for name in _expand_braces(pattern):
            if scheme_of(name) in SCHEMES:
                from gpuload.packing.foreign.remote import find_shards  # asyncio

                shards.update(dict.fromkeys(find_shards(name, commits)))
                continue
            found = sorted(glob.glob(name)) if not os.path.exists(name) and glob.has_magic(name) else [name]
            for path in found or [name]:
                if fault := _why_no_shard(path):
                    more = f" (from {pattern!r})" if path != pattern else ""
                    raise SourceError(f"{path}{more}: {fault}")
            shards.update(dict.fromkeys(map(Path, found)))
    if not shards:
        raise SourceError("no shards given. Name them, for instance 'shards/train-{000..127}.tar'")
    if len({isinstance(shard, URL) for shard in shards}) > 1:
        raise ArgumentError("some shards are local files and others lie at URLs. Index them by themselves")
    return list(shards)


def _why_no_shard(path: str) -> str:
    """What is wrong with a path that should be that of a shard, and what to do; "" where it may be one."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, manifest_file.FILE_NAME)):
            return "is a folder that is packed or indexed already. Open it as it is"
        count = len(glob.glob(os.path.join(glob.escape(path), "*.tar")))
        if not count:
            return "is a folder without tars. Give tars, for instance 'shards/train-{000..127}.tar'"
        return f"is a folder. Give the {counted(count, 'tar')} in it: '{os.path.join(path, '*.tar')}'"
    if not os.path.isfile(path):
        if scheme_of(path) or path.startswith("pipe:"):
            return "is not read from here. Download the shards, or mount them"
        return "no such file. Give tars, for instance 'shards/train-{000..127}.tar'"
    if path.lower().endswith(COMPRESSED_TARS):
        return "is compressed, but only plain tars can be read in place. Unpack the compression, as with gunzip"
    return ""


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern or os.path.exists(pattern):
        return [pattern]
    try:
        return list(braceexpand(pattern))
    except ValueError:
        raise SourceError(
            f"{pattern}: has an opening brace without a closing one, or the reverse. Give tars, for instance "
            "'shards/train-{000..127}.tar'"
        ) from None


def _output_folder(shards: Sequence[Path | URL], out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(shards[0], URL):
        raise ArgumentError(f"{shards[0]}: lies at a URL, where no index is written. Say with --out where it goes")
    folders = list(dict.fromkeys(shard.parent for shard in shards if isinstance(shard, Path)))
    if len(folders) > 1:
        raise ArgumentError(
            f"the shards lie in {len(folders)} folders ({some_of([str(folder) for folder in folders])}); "
            "say with --out where their common index goes"
        )
    return folders[0]


def _index_paths(shards: Sequence[Path | URL], folder: Path) -> list[Path]:
    """A `.idx` for each shard: beside it, or in the same place below the output folder."""
    if urls := [shard for shard in shards if isinstance(shard, URL)]:
        from gpuload.packing.foreign.remote import common_root

        root = f"{common_root(urls)}/"
        below = [Path(url.text.removeprefix(root)) for url in urls]
    else:
        local = [shard.absolute() for shard in shards if isinstance(shard, Path)]
        common = os.path.commonpath([shard.parent for shard in local])
        below = [shard.relative_to(common) for shard in local]
    paths = [dali_index.dali_index_path(folder / name) for name in below]
    if len(set(paths)) < len(paths):
        raise ArgumentError(
            "two shards have names that differ only in their extension, so both have one .idx. Rename one"
        )
    return paths


def _refuse_existing(folder: Path, paths: Iterable[Path], overwrite: bool) -> None:
    found = [path for path in paths if path.exists()]
    if found and not overwrite:
        raise OutputError(
            f"{folder}: holds index files already ({some_of([path.name for path in found])}). "
            "Give --overwrite to replace them, or another folder with --out"
        )


def _read_classes(path: str | Path | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path}: cannot be read ({error}). --classes takes a text file, a class name in each line"
        ) from None
    return check_class_names(Path(path), [line.strip() for line in lines])


def _common_fields(scanned: list[ScannedShard]) -> tuple[Field, ...]:
    """The image, and what every sample has besides.

    Raises:
        ShardError: some samples have a class and some have none.
    """
    found = set().union(*(shard.image_extensions for shard in scanned))
    order = sorted(found, key=lambda name: (IMAGE_MEMBERS.index(name.lower()), name))
    fields = [Field("image", "image", ";".join(order))]
    for field in VALUE_FIELDS:
        lacking = [shard for shard in scanned if field.member in shard.lacking]
        if not lacking:
            fields.append(field)
        elif field == LABEL and any(LABEL.name in shard.columns for shard in scanned):
            raise ShardError(
                f"{lacking[0].path}: sample {lacking[0].lacking[LABEL.member]} has no .cls member, though others have. "
                "A set has a class for each sample or for none: pack it again"
            )
    return tuple(fields)


def _check_labels(scanned: list[ScannedShard], classes: tuple[str, ...] | None) -> None:
    for shard in scanned:
        for key, label in zip(shard.columns["key"], shard.columns[LABEL.name], strict=True):
            if not isinstance(label, int) or label < 0 or (classes is not None and label >= len(classes)):
                known = f"--classes names {len(classes)}, numbered from 0" if classes else "classes are numbered from 0"
                raise ShardError(
                    f"{shard.path}: sample {key!r} is of class {label}, but {known}. Correct one or the other"
                )


def _write(
    folder: Path,
    scanned: list[ScannedShard],
    indexes: list[Path],
    fields: tuple[Field, ...],
    classes: tuple[str, ...] | None,
) -> Manifest:
    """Removes an old manifest, then writes everything; the manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / manifest_file.FILE_NAME).unlink(missing_ok=True)
    infos = []
    path = folder / index_file.FILE_NAME
    temporary = path.with_suffix(".arrow.tmp")
    try:
        with IndexWriter(temporary, fields) as writer:
            for shard, dali_path in zip(scanned, indexes, strict=True):
                schema = index_schema(fields)
                writer.append(pa.record_batch([shard.columns[name] for name in schema.names], schema=schema))
                dali_path.parent.mkdir(parents=True, exist_ok=True)
                dali_path.write_text(dali_index.dali_index_text(shard.samples), encoding="utf-8")
                infos.append(ShardInfo(_relative(shard.path, folder), len(shard.samples), shard.bytes, shard.sha256))
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    passed_over = sum((shard.passed_over for shard in scanned), Counter[str]())
    manifest = Manifest(
        shards=tuple(infos),
        fields=fields,
        classes=classes,
        width=_largest(scanned, "width"),
        height=_largest(scanned, "height"),
        image_bytes=_largest(scanned, "image_bytes"),
        packing={
            "indexed": "shards packed by others",
            "not_indexed": _partial(scanned, fields),
            **({"passed_over": dict(sorted(passed_over.items()))} if passed_over else {}),
        },
        **index_file.index_digests(path)._asdict(),
    )
    timm_info.write_timm_info(folder, manifest)
    manifest.write(folder)
    return manifest


def _partial(scanned: list[ScannedShard], fields: tuple[Field, ...]) -> dict[str, int]:
    """How many samples have a member that others lack, by its extension."""
    left = {
        f.member: sum(len(shard.columns.get(f.name, ())) for shard in scanned) for f in VALUE_FIELDS if f not in fields
    }
    return {member: count for member, count in left.items() if count}


def _relative(shard: Path | URL, folder: Path) -> str:
    if isinstance(shard, URL):
        return shard.text
    return os.path.relpath(shard.absolute(), folder.absolute())


def _largest(scanned: list[ScannedShard], column: str) -> int:
    return max(int(value) for shard in scanned for value in shard.columns[column])
