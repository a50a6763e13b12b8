"""Indexes WebDataset shards that others packed, without repacking them.

The same files as the packer's, beside the shards or in a folder of their own: a `.idx` for each shard, `index.arrow`,
`manifest.json`, `_info.json` and `README.md`.
"""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from braceexpand import braceexpand

from gpuload.checks import (
    ANYTHING,
    FLAG,
    PATH,
    check_option,
    checked,
    choice,
    either,
    function,
    optional,
    several,
)
from gpuload.disk import Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.card import write_card
from gpuload.disk.commit import NEXT_NAME, settle
from gpuload.disk.manifest import (
    TIMM_NAME,
    dali_index_path,
    dali_index_text,
    is_shard_name,
    write_timm_info,
)
from gpuload.disk.tar import split_name
from gpuload.errors import (
    ArgumentError,
    FormatError,
    OutputError,
    ShardError,
    SourceError,
)
from gpuload.fields.field import IMAGE, LABEL, Field
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.registry import index_schema
from gpuload.packing.in_place import (
    columns_of_pictures,
    fields_of_pictures,
    numbers_of_lists,
    pictures_in,
)
from gpuload.packing.options import Missing
from gpuload.packing.output import as_line, cannot_write, describe, write_lines
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.scan import (
    IMAGE_MEMBERS,
    VALUE_FIELDS,
    ScannedShard,
    counted_as,
    scan_shard,
    scan_url,
)
from gpuload.sources.known_samples import LOST, KnownFolder
from gpuload.sources.list_numbers import ListLengths, ListNumbers
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.numbering import read_classes
from gpuload.sources.tars import counts_of_lists, numbered_picture
from gpuload.store.files import temporaries, write_atomically
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.objects import expand_url
from gpuload.store.schemes import readable_schemes
from gpuload.store.url import URL, as_location, refuse_urls, root_of, scheme_of
from gpuload.types import ClassNames

_WHOLE_SET_FILES = (
    index_file.FILE_NAME,
    NEXT_NAME,
    TIMM_NAME,
    manifest_file.FILE_NAME,
    REJECTED_NAME,
)
_GIVE = "Give tars, for instance 'shards/train-{000..127}.tar'"


@checked(
    "index",
    patterns=either("a path or URL of tars, or several", PATH, several(PATH, "")),
    out=optional(PATH),
    classes=optional(PATH),
    overwrite=FLAG,
    watch=function("a function of two numbers"),
    missing=ANYTHING,
)
def index_shards(
    patterns: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    classes: str | Path | None = None,
    overwrite: bool = False,
    watch: Callable[[int, int], None] = lambda done, total: None,
    *,
    missing: Missing = "fail",
) -> tuple[Path, Manifest]:
    """Indexes WebDataset shards that others packed where they are, as `python -m gpuload index` does.

    A sample is a run of members with one key, as WebDataset and DALI have it. Its fields are the image (`jpg`, `jpeg`
    or `png`), `label` from `cls`, `caption` from `txt`, `json` from `json`, and further pictures: `right` from
    `right.png`, where all samples have one of the same mode, and a list `frames` from `frames.0.jpg`, `frames.1.jpg`.
    Without an image called after the key alone, the first picture is the image. Whatever is left out is listed in
    `rejected.jsonl` and counted in the manifest under `packing`, as are all other members.

    Args:
        patterns: Paths or URLs of tars, one or several, with braces ("{000..127}") or the shell's wildcards; they are
            read in this order. Tars at URLs stay there: the index names them, and a loader downloads them into its
            cache.
        out: Folder for the index; None: beside the shards, which must then be in one local folder.
        classes: Text file with the name of a class in each line, in order of their numbers.
        overwrite: Whether index files that are there already are replaced.
        watch: Called with the number of shards done and the number of all.
        missing: What becomes of a sample that lacks a member that others have, or a number in a list of pictures:
            "fail" raises ShardError, "skip" leaves the sample out.

    Returns:
        The folder of the index, which can be opened like a packed one, and its manifest.

    Raises:
        SourceError: a pattern fits no file, or no plain tar.
        ArgumentError: the shards are in several folders and `out` is None; or `classes` are given and no sample has
            one.
        OutputError: there is an index already.
        ShardError: a shard is damaged, or holds what cannot be indexed.
    """
    check_option("--missing", missing, choice(*get_args(Missing)))
    if isinstance(patterns, str | Path):
        patterns = [patterns]
    refuse_urls("--out", out, "Give a local folder")
    refuse_urls("--classes", classes, "Give a local file")
    shards = expand_shards([str(pattern) for pattern in patterns])
    folder, indexes = _places(shards, out)
    names = None if classes is None else read_classes(classes)
    if not overwrite:
        _refuse_existing(folder, indexes)
    scanned = []
    for shard in shards:
        if isinstance(shard, Path):
            scanned.append(scan_shard(shard, names))
        else:
            scanned.append(scan_url(shard, names))
        watch(len(scanned), len(shards))
    scanned = [_with_known(shard, missing) for shard in scanned]
    _refuse_missing_images(scanned)
    fields = _fields(scanned)
    scanned = [_with_all(shard, fields[1:], missing) for shard in scanned]
    scanned = _with_whole_lists(scanned, missing)
    samples = [sample for shard in scanned for sample in shard.samples]
    pictures = fields_of_pictures([sample.pictures for sample in samples])
    scanned = [_with_pictures(shard, pictures) for shard in scanned]
    fields = (*fields, *pictures)
    if LABEL not in fields and names is not None:
        raise ArgumentError(
            f"--classes: no sample has a .cls, so {classes} names classes of nothing. Leave it out"
        )
    with cannot_write("Give another folder with --out", folder):
        return folder, _write(folder, scanned, indexes, fields, names)


def _refuse_existing(folder: Path, indexes: Sequence[Path]) -> None:
    """Raises OutputError if the folder holds an index, or one of these files exists."""
    files = (*indexes, *(folder / name for name in _WHOLE_SET_FILES))
    names = [path.name for path in files if path.exists()]
    if names:
        raise OutputError(
            f"{folder}: holds index files already ({some_of(names)}). "
            "Give --overwrite to replace them, or another folder with --out"
        )


def expand_shards(patterns: Sequence[str]) -> list[Path] | list[URL]:
    """The files that these patterns name, each once, in order; wildcards in sorted order.

    Raises:
        SourceError: one names no tar. ArgumentError: some lie here and others at URLs.
    """
    shards: dict[Path | URL, None] = {}
    pin = cache(pinned)
    for pattern in patterns:
        for name in _expand_braces(pattern):
            is_url = scheme_of(name) in readable_schemes()
            files = _at_url(name, pin) if is_url else _here(name)
            shards.update(dict.fromkeys(files))
    urls = [shard for shard in shards if isinstance(shard, URL)]
    paths = [shard for shard in shards if isinstance(shard, Path)]
    if not shards:
        raise SourceError(f"no shards given. {_GIVE}")
    if urls and paths:
        raise ArgumentError(
            "some shards are local files and others lie at URLs. Index them by themselves"
        )
    return urls or paths


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern or os.path.exists(pattern):
        return [pattern]
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise SourceError(
            f"{pattern}: its braces do not match ({error}). {_GIVE}"
        ) from None


def _here(name: str) -> list[Path]:
    paths = [name]
    if not os.path.exists(name) and glob.has_magic(name):
        paths = sorted(glob.glob(name)) or [name]
    for path in paths:
        if not os.path.isfile(path):
            raise SourceError(f"{path}: is no file. {_GIVE}")
    return [Path(path) for path in paths]


def _at_url(name: str, pin: Callable[[URL], URL]) -> list[URL]:
    """The tars that a URL means: itself, or those that fit its wildcards; on the Hub those of one commit.

    Args:
        pin: Asks for the commit of a repository once.
    """
    url = as_location(name)
    assert isinstance(url, URL)
    if not is_pinned(url):
        place = place_of(url)
        url = place._replace(
            revision=place_of(pin(place._replace(path="").url)).revision
        ).url
    tars = expand_url(url)
    if not tars:
        raise SourceError(
            f"{url}: fits no object there. Give tars, for instance 's3://bucket/train-{{000..127}}.tar'"
        )
    for tar in tars:
        if not tar.text.lower().endswith(".tar"):
            raise SourceError(
                f"{tar}: is no plain .tar by its name, which alone can be read in place. {_GIVE}"
            )
    return tars


def _places(
    shards: Sequence[Path] | Sequence[URL], out: str | Path | None
) -> tuple[Path, list[Path]]:
    """The folder of the index, and the `.idx` of each shard: beside it, or in the same place below that folder."""
    urls = [shard for shard in shards if isinstance(shard, URL)]
    local = [shard.absolute() for shard in shards if isinstance(shard, Path)]
    folders = list(dict.fromkeys(shard.parent for shard in local))
    if out is None and len(folders) != 1:
        where = (
            f"{shards[0]} lies at a URL"
            if urls
            else f"the shards lie in {len(folders)} folders"
        )
        raise ArgumentError(f"{where}. Say with --out where the index goes")
    folder = folders[0] if out is None else Path(out)
    if local:
        common = os.path.commonpath(folders)
        below = [shard.relative_to(common) for shard in local]
    elif (root := root_of(urls)) is not None:
        below = [Path(url.text.removeprefix(f"{root}/")) for url in urls]
    else:
        raise ArgumentError(
            f"the shards lie in several places, as {urls[0]} and {urls[-1]}. Index those of each bucket by "
            "themselves, and mix the sets"
        )
    indexes = [dali_index_path(folder / name) for name in below]
    if len(set(indexes)) < len(indexes):
        raise ArgumentError(
            "two shards differ only in their extension, so both have one .idx. Rename one"
        )
    return folder, indexes


def _refuse_missing_images(scanned: Sequence[ScannedShard]) -> None:
    """Raises ShardError if a sample has no picture, unless the pictures of all others lie in lists, of which it has
    none."""
    missing = [
        (shard.path, sample.row["key"])
        for shard in scanned
        for sample in shard.samples
        if sample.image is None
    ]
    images = [sample.image for shard in scanned for sample in shard.samples]
    ends = [split_name(image.name)[1] for image in images if image is not None]
    are_lists = bool(ends) and all(
        numbered_picture(end.lower()) is not None for end in ends
    )
    if missing and not are_lists:
        path, key = missing[0]
        raise ShardError(
            f"{path}: sample {key!r} has no image (wanted one of {', '.join(IMAGE_MEMBERS)}). Pack its images "
            "with `python -m gpuload pack`"
        )


def _fields(scanned: Sequence[ScannedShard]) -> tuple[Field, ...]:
    """The image, and what samples have besides."""
    every = [sample for shard in scanned for sample in shard.samples]
    images = [sample.image for sample in every if sample.image is not None]
    ends = {split_name(image.name)[1] for image in images}
    member = ";".join(sorted(ends, key=_place_of))
    names = {name for sample in every for name in sample.row}
    counts = None if len(images) == len(every) else (0, 1)
    image = Field("image", "image", member, counts=counts)
    return (image, *(field for field in VALUE_FIELDS if field.name in names))


def _place_of(extension: str) -> tuple[int, str]:
    """The place of an image's extension among those of a field."""
    encoding = extension.rpartition(".")[2]
    return IMAGE_MEMBERS.index(encoding.lower()), extension


def _with_pictures(shard: ScannedShard, fields: Sequence[Field]) -> ScannedShard:
    """The shard with the columns of these fields of pictures in its rows."""
    passed_over = shard.passed_over.copy()
    for sample in shard.samples:
        somewhere = sample.row[IMAGE.offset_column]
        columns = columns_of_pictures(fields, sample.pictures, somewhere)
        sample.row.update(columns)
        indexed = set(pictures_in(fields, sample.pictures)) - {sample.image}
        passed_over.subtract(counted_as(member) for member in indexed)
    return replace(shard, passed_over=+passed_over)


def _with_all(
    shard: ScannedShard, fields: Sequence[Field], missing: Missing
) -> ScannedShard:
    """The shard with the samples that have all fields.

    Raises:
        ShardError: a sample lacks what others have, and such samples are not to be left out; or none is left.
    """
    complete = []
    rejected = []
    for sample in shard.samples:
        lacking = [field.member for field in fields if field.name not in sample.row]
        if not lacking:
            complete.append(sample)
        elif missing == "skip":
            rejected.append(Rejection(sample.row["source"], f"has no .{lacking[0]}"))
        else:
            raise ShardError(
                f"{shard.path}: sample {sample.row['key']!r} has no .{lacking[0]}, which others have. `--missing skip` "
                "leaves such samples out"
            )
    if not complete:
        names = ["an image", *(field.member for field in fields)]
        raise ShardError(f"{shard.path}: no sample has all of {', '.join(names)}")
    return replace(shard, samples=complete, rejected=[*shard.rejected, *rejected])


def _with_whole_lists(
    scanned: Sequence[ScannedShard], missing: Missing
) -> list[ScannedShard]:
    """The shards with the samples whose lists of pictures lack no number.

    Raises:
        ShardError: as `_with_all`.
    """
    expected = ListNumbers()
    for shard in scanned:
        for sample in shard.samples:
            for numbers in numbers_of_lists(sample.pictures).values():
                expected.add(numbers)
    checked_shards = []
    for shard in scanned:
        whole = []
        rejected = list(shard.rejected)
        for sample in shard.samples:
            lists = numbers_of_lists(sample.pictures)
            faults = (expected.fault(*numbers) for numbers in lists.items())
            fault = next(filter(None, faults), "")
            if not fault:
                whole.append(sample)
            elif missing == "skip":
                rejected.append(Rejection(sample.row["source"], fault))
            else:
                raise ShardError(
                    f"{shard.path}: sample {sample.row['key']!r} {fault}. `--missing skip` leaves such samples out"
                )
        if not whole:
            raise ShardError(
                f"{shard.path}: no sample is left; the last one {rejected[-1].reason}"
            )
        checked_shards.append(replace(shard, samples=whole, rejected=rejected))
    return checked_shards


def _with_known(shard: ScannedShard, missing: Missing) -> ScannedShard:
    """The shard with the samples that have all pictures which they had when gpuload packed it, if it did.

    Raises:
        ShardError: as `_with_all`.
    """
    if not isinstance(shard.path, Path):
        return shard
    known = KnownFolder(shard.path.parent).shard(shard.path.name)
    whole = []
    lost = []
    for sample in shard.samples:
        ends = (split_name(member.name)[1] for member in sample.members)
        fault = known.fault(sample.row["key"], counts_of_lists(ends))
        if fault:
            lost.append(Rejection(sample.row["source"], fault))
        else:
            whole.append(sample)
    keys = known.lost(sample.row["key"] for sample in shard.samples)
    lost += [Rejection(f"{shard.path.name}/{key}", LOST) for key in keys]
    if lost and missing == "fail":
        raise ShardError(
            f"{shard.path}: {lost[0].source!r} {lost[0].reason}. `--missing skip` leaves such samples out"
        )
    return replace(shard, samples=whole, rejected=[*shard.rejected, *lost])


def _notes_on_lists(
    scanned: Sequence[ScannedShard], fields: Iterable[Field]
) -> list[str]:
    """As `ListLengths.notes`, of the lists among the fields."""
    lengths = ListLengths()
    for shard in scanned:
        for sample in shard.samples:
            for name, pictures in sample.pictures.lists.items():
                lengths.add(name, len(pictures), sample.row["source"])
    return lengths.notes(
        field.name for field in fields if field.kind == PicturesKind.name
    )


def _write(
    folder: Path,
    scanned: Sequence[ScannedShard],
    indexes: Sequence[Path],
    fields: tuple[Field, ...],
    classes: ClassNames,
) -> Manifest:
    """Writes everything, the manifest last; an index that is there opens until the new one replaces it."""
    folder.mkdir(parents=True, exist_ok=True)
    _begin_replacement(folder)
    for shard, dali_path in zip(scanned, indexes, strict=True):
        _write_dali_index(dali_path, shard)
    rejected = [rejection for shard in scanned for rejection in shard.rejected]
    if rejected:
        write_lines(folder / REJECTED_NAME, map(as_line, rejected))
    else:
        (folder / REJECTED_NAME).unlink(missing_ok=True)
    passed_over = sum((shard.passed_over for shard in scanned), Counter[str]())
    packing: dict[str, Any] = {"indexed": "shards packed by others"}
    if passed_over:
        packing["passed_over"] = dict(sorted(passed_over.items()))
    without_end = sum(shard.without_end for shard in scanned)
    if without_end:
        packing["without_end"] = without_end
    if rejected:
        packing["rejected"] = len(rejected)
    if notes := _notes_on_lists(scanned, fields):
        packing["notes"] = notes
    infos = tuple(_shard_info(shard, folder) for shard in scanned)
    manifest = Manifest(infos, fields, classes, packing=packing)
    write_timm_info(folder, {folder: manifest})
    if all(is_shard_name(info.name, may_be_elsewhere=False) for info in infos):
        write_card(folder, {folder: manifest})
    return describe(folder, manifest, _index_rows(scanned, index_schema(fields)))


def _write_dali_index(path: Path, shard: ScannedShard) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for unfinished in temporaries(path.parent, [path.name]):
        unfinished.unlink(missing_ok=True)  # of a run that was killed
    text = dali_index_text(sample.members for sample in shard.samples)
    write_atomically(path, text.encode())


def _shard_info(shard: ScannedShard, folder: Path) -> ShardInfo:
    """What the manifest in a folder says of a shard; its name leads from there to the tar."""
    name = str(shard.path)
    if isinstance(shard.path, Path):
        name = os.path.relpath(shard.path.absolute(), folder.absolute())
    return ShardInfo(name, len(shard.samples), shard.bytes, shard.sha256)


def _index_rows(
    scanned: Iterable[ScannedShard], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for shard in scanned:
        rows = [sample.row for sample in shard.samples]
        yield pa.RecordBatch.from_pylist(rows, schema)


def _begin_replacement(folder: Path) -> None:
    """Ends what an interrupted run had begun in the folder, and removes a manifest that cannot be read."""
    try:
        Manifest.read(folder)
    except FormatError:
        (folder / manifest_file.FILE_NAME).unlink(missing_ok=True)
        (folder / NEXT_NAME).unlink(missing_ok=True)
    else:
        settle(folder)
