"""Indexes WebDataset shards that others packed, without repacking them.

The same files as the packer's, beside the shards or in a folder of their own: a `.idx` for each shard, `index.arrow`,
`manifest.json` and `_info.json`.
"""

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
from braceexpand import braceexpand

from gpuload.checks import check_option, choice
from gpuload.counted import counted
from gpuload.disk import Manifest, ShardInfo, write_index
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.manifest import TIMM_NAME, dali_index_path, dali_index_text, write_timm_info
from gpuload.disk.tar import split_name
from gpuload.errors import ArgumentError, OutputError, ShardError, SourceError
from gpuload.fields.field import LABEL, Field
from gpuload.fields.registry import index_schema
from gpuload.packing.foreign.scan import CAPTION, IMAGE_MEMBERS, VALUE_FIELDS, ScannedShard, scan_shard
from gpuload.packing.run.plan import REJECTED_NAME, write_rejections
from gpuload.sources.annotations import are_boxes, no_captions
from gpuload.sources.files import COMPRESSED_TARS
from gpuload.sources.listing import Rejection, some_of
from gpuload.store.files import replaced
from gpuload.store.url import SCHEMES, URL, refuse_urls, scheme_of

_LOOKED_INTO = 8  # texts of a shard that tell whether they are captions
_NUMBERED = re.compile(r"(\d+)[\s,;:=]+\S")

Missing = Literal["fail", "skip", "empty", "drop"]


def index_shards(
    patterns: Sequence[str],
    out: str | Path | None = None,
    classes: str | Path | None = None,
    overwrite: bool = False,
    watch: Callable[[int, int], None] = lambda done, total: None,
    *,
    missing: Missing = "fail",
    skip_damaged: bool = False,
) -> tuple[Path, Manifest]:
    """Indexes shards; returns the folder of the index, which can be opened like a packed one, and its manifest.

    patterns: paths or URLs of tars, with braces ("{000..127}") or the shell's wildcards; they are read in this order.
        Tars at URLs stay there: the index names them, and a loader downloads them into its cache.
    out: folder for the index; None: beside the shards, which must then be in one local folder.
    classes: text file with the name of a class in each line, in order of their numbers.
    overwrite: whether index files that are there already are replaced.
    watch: called with shards done and shards in all.
    missing: what becomes of a sample that lacks a member that others have: "fail" raises ShardError, "skip" leaves the
        sample out, "empty" gives it an empty caption, and "drop" indexes no such member of any sample.
    skip_damaged: whether damaged parts of a shard are left out; else the first is an error.

    A sample is a run of members with one key, as WebDataset and DALI have it. Its fields are the image (`jpg`, `jpeg`
    or `png`), `label` from `cls`, `caption` from `txt`, `json` from `json`. Whatever is left out is listed in
    `rejected.jsonl` and counted in the manifest under `packing`, as are all other members.

    Raises:
        SourceError: a pattern fits no file, or no plain tar. ArgumentError: the shards are in several folders and `out`
            is None; or `classes` are given and no sample has one.
        OutputError: there is an index already. ShardError: a shard is damaged, or holds what cannot be indexed.
    """
    check_option("--missing", missing, choice(*get_args(Missing)))
    refuse_urls("--out", out, "Give a local folder")
    refuse_urls("--classes", classes, "Give a local file")
    shards = expand_shards(patterns)
    folder = _output_folder(shards, out)
    names = _read_classes(classes)
    indexes = _index_paths(shards, folder)
    _refuse_existing(folder, [*indexes, *(folder / name for name in _WHOLE_SET_FILES)], overwrite)
    scanned = []
    for shard in _scan(shards, skip_damaged):
        scanned.append(shard)
        watch(len(scanned), len(shards))
    fields, scanned = _common_fields(scanned, missing)
    if CAPTION in fields:
        _check_captions(scanned)
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


_WHOLE_SET_FILES = (index_file.FILE_NAME, TIMM_NAME, manifest_file.FILE_NAME, REJECTED_NAME)


def _scan(shards: Sequence[Path | URL], skip_damaged: bool) -> Iterable[ScannedShard]:
    if any(isinstance(shard, URL) for shard in shards):
        from gpuload.packing.foreign.scan import scan_shards

        return scan_shards([shard for shard in shards if isinstance(shard, URL)], skip_damaged)
    return (scan_shard(shard, skip_damaged) for shard in shards if isinstance(shard, Path))


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
                from gpuload.packing.foreign.scan import find_shards  # asyncio

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
    """Why this cannot be the path of a shard, and what to do; "" if it may be one."""
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
        from gpuload.packing.foreign.scan import common_root

        root = f"{common_root(urls)}/"
        below = [Path(url.text.removeprefix(root)) for url in urls]
    else:
        local = [shard.absolute() for shard in shards if isinstance(shard, Path)]
        common = os.path.commonpath([shard.parent for shard in local])
        below = [shard.relative_to(common) for shard in local]
    paths = [dali_index_path(folder / name) for name in below]
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
    return _check_class_names(Path(path), [line.strip() for line in lines])


def _check_class_names(path: Path, lines: list[str]) -> tuple[str, ...]:
    """The names, out of the lines of the file without spaces around them.

    Raises:
        SourceError: a line between others is empty, a name comes twice, or the file is of another kind.
    """
    while lines and not lines[-1]:
        lines = lines[:-1]
    if not lines:
        raise SourceError(f"{path}: names no class. --classes takes a text file, a class name in each line")
    if lines[0].startswith(("{", "[")):
        raise SourceError(f"{path}: looks like JSON. --classes takes a text file, a class name in each line")
    if "" in lines:
        raise SourceError(
            f"{path}: line {lines.index('') + 1} is empty, which shifts the numbers of the classes after it. Remove it"
        )
    numbers = [match.group(1) for line in lines if (match := _NUMBERED.match(line))]
    if [int(number) for number in numbers] in (list(range(len(lines))), list(range(1, len(lines) + 1))):
        raise SourceError(
            f"{path}: its lines hold numbers, too, as in {lines[0]!r}. Write names alone, class 0 in the first line"
        )
    twice = sorted({line for line in lines if lines.count(line) > 1})
    if twice:
        raise SourceError(f"{path}: names {some_of(twice)} more than once. Give each class a name of its own")
    return tuple(lines)


def _common_fields(scanned: list[ScannedShard], missing: Missing) -> tuple[tuple[Field, ...], list[ScannedShard]]:
    """The image and what every sample has besides; and the shards with the samples that have all of it.

    Raises:
        ShardError: some samples lack what others have, and it is not said what to do; or no sample of a shard is left.
    """
    samples = [sample for shard in scanned for sample in shard.samples]
    extensions = {sample.image for sample in samples}
    order = sorted(extensions, key=lambda name: (IMAGE_MEMBERS.index(name.lower()), name))
    fields = [Field("image", "image", ";".join(order))]
    for field in VALUE_FIELDS:
        if all(sample.lacks(field) for sample in samples):
            continue
        # A sample beside damage may have lost it, and is left out in any case.
        if any(sample.lacks(field) and not sample.damaged for sample in samples):
            if missing == "drop":
                continue
            if missing == "fail" or (missing == "empty" and field != CAPTION):
                raise _about_missing(field, scanned)
        fields.append(field)
    return tuple(fields), [_with_all(shard, fields, missing == "empty") for shard in scanned]


def _with_all(shard: ScannedShard, fields: Sequence[Field], keeps_empty: bool) -> ScannedShard:
    """The shard with the samples that have all fields. keeps_empty: whether a caption may be lacking."""
    whole, rejected = [], list(shard.rejected)
    for sample in shard.samples:
        lacking = [
            one for one in fields[1:] if sample.lacks(one) and (sample.damaged or not keeps_empty or one != CAPTION)
        ]
        if lacking:
            why = "lies beside a damaged part, and " if sample.damaged else ""
            rejected.append(Rejection(sample.row["source"], f"{why}has no .{lacking[0].member}"))
        else:
            whole.append(sample)
    if not whole:
        raise ShardError(f"{shard.path}: no sample has all of {', '.join(f.member for f in fields)}. Leave it out")
    return replace(shard, samples=whole, rejected=rejected)


def _about_missing(field: Field, scanned: list[ScannedShard]) -> ShardError:
    every = [(shard, sample) for shard in scanned for sample in shard.samples]
    lacking = [(shard, sample) for shard, sample in every if sample.lacks(field) and not sample.damaged]
    shard, sample = lacking[0]
    ends = ", ".join(f".{split_name(member.name)[1]}" for member in sample.members)
    empty = "'empty' gives them an empty caption, " if field == CAPTION else ""
    return ShardError(
        f"{shard.path}: sample {sample.row['key']!r} (found: {ends}) has no .{field.member}, as {len(lacking):,} of "
        f"{counted(len(every), 'sample')}. Say with --missing what to do: 'skip' leaves them out, {empty}'drop' leaves "
        f"out .{field.member} of all"
    )


def _check_captions(scanned: list[ScannedShard]) -> None:
    texts = [sample.row[CAPTION.name] or "" for shard in scanned for sample in shard.samples[:_LOOKED_INTO]]
    if are_boxes(texts):
        advice = "Unpack the tars, and pack the folder with `python -m gpuload pack --from yolo`"
        raise no_captions(str(scanned[0].path), next(filter(str.strip, texts)), advice)


def _check_labels(scanned: list[ScannedShard], classes: tuple[str, ...] | None) -> None:
    known = f"--classes names {len(classes)}, numbered from 0" if classes else "classes are numbered from 0"
    for shard in scanned:
        for label, key in ((sample.row[LABEL.name], sample.row["key"]) for sample in shard.samples):
            if label < 0 or (classes is not None and label >= len(classes)):
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
    for name in (manifest_file.FILE_NAME, REJECTED_NAME):
        (folder / name).unlink(missing_ok=True)
    infos, schema, path = [], index_schema(fields), folder / index_file.FILE_NAME
    with replaced(path) as temporary, write_index(temporary, fields) as write:
        for shard, dali_path in zip(scanned, indexes, strict=True):
            # A missing caption is stored as an empty one, as its member is.
            rows = [{name: sample.row[name] for name in schema.names} for sample in shard.samples]
            full = [{name: "" if value is None else value for name, value in row.items()} for row in rows]
            write(pa.RecordBatch.from_pylist(full, schema=schema))
            dali_path.parent.mkdir(parents=True, exist_ok=True)
            text = dali_index_text(sample.members for sample in shard.samples)
            dali_path.write_text(text, encoding="utf-8")
            infos.append(ShardInfo(_relative(shard.path, folder), len(shard.samples), shard.bytes, shard.sha256))
    rejected = [rejection for shard in scanned for rejection in shard.rejected]
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
            **({"rejected": len(rejected)} if rejected else {}),
        },
        **index_file.index_digests(path)._asdict(),
    )
    if rejected:
        write_rejections(folder / REJECTED_NAME, rejected)
    write_timm_info(folder, manifest)
    manifest.write(folder)
    return manifest


def _partial(scanned: list[ScannedShard], fields: tuple[Field, ...]) -> dict[str, int]:
    """How many samples have a member that others lack, by its extension."""
    left = [field for field in VALUE_FIELDS if field not in fields]
    counts = {one.member: sum(not s.lacks(one) for shard in scanned for s in shard.samples) for one in left}
    return {member: count for member, count in counts.items() if count}


def _relative(shard: Path | URL, folder: Path) -> str:
    if isinstance(shard, URL):
        return shard.text
    return os.path.relpath(shard.absolute(), folder.absolute())


def _largest(scanned: list[ScannedShard], column: str) -> int:
    return max(int(sample.row[column]) for shard in scanned for sample in shard.samples)
