"""Indexes WebDataset shards that others packed, without repacking them; and adds seek points to an index.

The same files as the packer's, beside the shards or in a folder of their own: a `.idx` for each shard, `index.arrow`,
`manifest.json`, `_info.json` and `README.md`.

Each shard is read whole, once: its SHA-256, which names it in a loader's cache, needs all of its bytes, and reading
headers alone, with a range for each member, is slower unless the members are large (docs/lab/packing.md).
"""

import glob
import hashlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
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
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import POINTS_COLUMN
from gpuload.disk.manifest import (
    TIMM_NAME,
    dali_index_path,
    dali_index_text,
    is_shard_name,
    write_timm_info,
)
from gpuload.disk.tar import (
    BLOCK_BYTES,
    Member,
    group_members,
    read_members,
    split_name,
)
from gpuload.errors import (
    ArgumentError,
    DecodeError,
    FormatError,
    OutputError,
    ShardError,
    SourceError,
)
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import IMAGE, LABEL, Field
from gpuload.fields.images import POINTS, is_raw, picture_columns
from gpuload.fields.picture_lists import (
    LISTS_OF_MASKS,
    PicturesKind,
    list_columns,
)
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import index_schema
from gpuload.fields.rows import flat, lengths_of
from gpuload.formats import Conversion, converted, open_file
from gpuload.formats.masks import has_indices
from gpuload.formats.modes import mode_by_header
from gpuload.headers import jpeg, png
from gpuload.headers.jpeg import upright_size
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.in_place import (
    PictureInPlace,
    PicturesOfSample,
    columns_of_pictures,
    fields_of_pictures,
    members_of_pictures,
    numbers_of_lists,
    pictures_in,
)
from gpuload.packing.output import as_line, cannot_write, describe, write_lines
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.points import find_points
from gpuload.sources.files import is_text
from gpuload.sources.list_numbers import ListNumbers
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.numbering import read_classes
from gpuload.sources.tar_samples import SampleCheck
from gpuload.sources.tars import by_extension, numbered_picture
from gpuload.store.files import temporaries, write_atomically
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.network import background
from gpuload.store.objects import Objects, expand_url
from gpuload.store.schemes import readable_schemes
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL, as_location, refuse_urls, root_of, scheme_of
from gpuload.types import ClassNames

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp", "avif", "tif", "tiff")
CAPTION = Field("caption", "caption", "txt")
VALUE_FIELDS = (LABEL, CAPTION, Field("json", "json", "json"))

_WHOLE_SET_FILES = (
    index_file.FILE_NAME,
    NEXT_NAME,
    TIMM_NAME,
    manifest_file.FILE_NAME,
    REJECTED_NAME,
)
_GIVE = "Give tars, for instance 'shards/train-{000..127}.tar'"

_DOTS = (
    "Pack the tars with `python -m gpuload pack --from tar`, where --option key_dot=last ends keys at the last dot and "
    "key_dot=first leaves such members out"
)

Missing = Literal["fail", "skip"]


class IndexedSample(NamedTuple):
    """A sample of a shard.

    Attributes:
        members: All of its files, in stored order.
        row: Its columns of the index, without those of VALUE_FIELDS that it lacks, and of pictures.
        image: The member that is its image; None where it has no picture.
        pictures: Those that are its further pictures, by name.
    """

    members: list[Member]
    row: dict[str, Any]
    image: Member | None
    pictures: PicturesOfSample


@dataclass(frozen=True)
class ScannedShard:
    """The content of a shard.

    Attributes:
        path: Where it is.
        samples: In stored order.
        sha256: Of the file.
        bytes: Size of the file.
        passed_over: Counts of members that are not indexed, by extension.
        without_end: JPEGs that were cut short.
        rejected: Samples that are left out.
    """

    path: Path | URL
    samples: list[IndexedSample]
    sha256: str
    bytes: int
    passed_over: Counter[str]
    without_end: int = 0
    rejected: Sequence[Rejection] = ()


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
            scanned.append(_scan_url(shard, names))
        watch(len(scanned), len(shards))
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
        passed_over.subtract(_extension(member) for member in indexed)
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
    return replace(shard, samples=complete, rejected=rejected)


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


def _scan_url(url: URL, classes: ClassNames) -> ScannedShard:
    """As `scan_shard`, for a shard at a URL, which is downloaded into a temporary folder.

    Raises:
        ShardError: as `scan_shard`. RemoteError: it cannot be read. OutputError: the temporary folder is full.
    """
    objects = Objects(URL(url.text.rpartition("/")[0]))
    advice = "Shards lie there while they are scanned: free some space, or set TMPDIR"
    with (
        cannot_write(advice),
        tempfile.TemporaryDirectory(prefix="gpuload-index-") as scratch,
    ):
        path = Path(scratch, url.name)
        background().wait(fetch_file(objects, url.name, path))
        try:
            return replace(scan_shard(path, classes), path=url)
        except ShardError as error:
            raise ShardError(str(error).replace(str(path), str(url))) from None


def scan_shard(path: Path, classes: ClassNames) -> ScannedShard:
    """Reads a shard: its checksum, its samples, the size of each image, classes and texts.

    Raises:
        ShardError: it is damaged, or holds a sample that cannot be indexed; names the sample.
    """
    other_entries: list[tuple[str, str]] = []
    members = list(read_members(path, other_entries))
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        digest = hashlib.sha256(content).hexdigest()
        size = len(content)
        samples = _samples_of(path, members, content, classes)
        without_end = sum(_lacks_end(sample.image, content) for sample in samples)
    if not samples:
        raise ShardError(f"{path}: holds no sample. Leave it out")
    passed_over = _count_passed_over(members, samples)
    passed_over.update(kind for _, kind in other_entries)
    return ScannedShard(path, samples, digest, size, passed_over, without_end)


def _samples_of(
    path: Path, members: Iterable[Member], content: mmap.mmap, classes: ClassNames
) -> list[IndexedSample]:
    """The samples of a shard.

    Args:
        members: All in it.
        content: Its bytes.
    """
    samples = []
    for key, members_of_sample, by_end in _grouped(path, members):
        image = _image_member(by_end)
        row = _row(path, key, image, members_of_sample[0], content)
        row |= _values(path, by_end, content, classes)
        pictures = _pictures_of(by_end, image, content)
        samples.append(IndexedSample(members_of_sample, row, image, pictures))
    return samples


def _grouped(
    path: Path, members: Iterable[Member]
) -> list[tuple[str, list[Member], dict[str, Member]]]:
    """Key and members of each sample of a shard, in stored order and by extension.

    Raises:
        ShardError: a name cannot be indexed, or samples are not as the rule of WebDataset divides them.
    """
    check = SampleCheck(str(path), unique=True, advice=_DOTS)
    samples = []
    for key, members_of_sample in group_members(members):
        _check_names(path, members_of_sample)
        by_end = by_extension(path, key, members_of_sample, fold=True)
        check.add(key, by_end)
        samples.append((key, members_of_sample, by_end))
    check.refuse_dots()
    return samples


def _lacks_end(image: Member | None, content: mmap.mmap) -> bool:
    """Whether a JPEG was cut short, or filled up with zeros: its end marker is missing. Of a PNG, its size told it.

    Args:
        image: Its member; None of a sample without one.
        content: Of the shard.
    """
    if image is None:
        return False
    data = _bytes_of(image, content)
    return data.startswith(jpeg.START) and jpeg.read_header(data).oddity == jpeg.NO_END


def _count_passed_over(
    members: Iterable[Member], samples: Iterable[IndexedSample]
) -> Counter[str]:
    """Counts the members that are not indexed, by what `_extension` calls them."""
    columns = [field.offset_column for field in (IMAGE, *VALUE_FIELDS)]
    offsets = {sample.row.get(column) for sample in samples for column in columns}
    return Counter(
        _extension(member) for member in members if member.offset not in offsets
    )


def _image_member(by_end: Mapping[str, Member]) -> Member | None:
    """The image of a sample, given by the extensions of its members; None where it has no picture."""
    for extension in IMAGE_MEMBERS:
        if extension in by_end:
            return by_end[extension]
    single, lists = members_of_pictures(by_end, None, IMAGE_MEMBERS)
    firsts = [*single.values(), *(members[0] for members in lists.values())]
    return min(firsts, key=lambda member: member.offset, default=None)


def _pictures_of(
    by_end: Mapping[str, Member], image: Member | None, content: mmap.mmap
) -> PicturesOfSample:
    """The pictures of a sample besides its image, by the extensions of its members.

    Args:
        content: Of the shard.
    """
    single, lists = members_of_pictures(by_end, image, IMAGE_MEMBERS)
    return PicturesOfSample(
        {name: _picture_in_place(member, content) for name, member in single.items()},
        {
            name: [
                _picture_in_place(member, content, name in LISTS_OF_MASKS)
                for member in members
            ]
            for name, members in lists.items()
        },
    )


def _picture_in_place(
    member: Member, content: mmap.mmap, is_mask: bool = False
) -> PictureInPlace:
    """A picture besides the image, of no mode where it cannot be read; its field is not indexed then.

    Args:
        member: Of the picture.
        content: Of the shard.
        is_mask: Whether it holds class numbers: those of a palette, or of fewer than 8 bits, a loader does not read.
    """
    data = _bytes_of(member, content)
    if is_mask and has_indices(data):
        return PictureInPlace(member, 0, 0, "")
    try:
        width, height = _upright_size(data)
        mode = mode_by_header(data)
    except Exception:  # Pillow's parsers may raise anything
        return PictureInPlace(member, 0, 0, "")
    return PictureInPlace(member, width, height, mode)


def _bytes_of(member: Member, shard: mmap.mmap) -> bytes:
    return shard[member.offset : member.offset + member.size]


def _extension(member: Member) -> str:
    """The name under which a member that is not indexed is counted."""
    key, extension = split_name(member.name)
    if not extension or not key or key.endswith("/"):
        return "without a name or an extension"
    return f".{extension}"


def _check_names(path: Path, members: Sequence[Member]) -> None:
    """Raises ShardError if DALI's index cannot hold a name."""
    for member in members:
        if not is_text(member.name) or any(
            character.isspace() or character == "\0" for character in member.name
        ):
            raise ShardError(
                f"{path}: the name {member.name!r} holds white space, at which DALI's index splits, or is not UTF-8. "
                "Rename its file and pack the shard again"
            )


def _row(
    path: Path, key: str, image: Member | None, first: Member, data: mmap.mmap
) -> dict[str, Any]:
    """The columns of a sample that every set has.

    Args:
        image: Its image; None where it has no picture.
        first: Its first member.
        data: Of the shard.
    """
    shown = first if image is None else image
    row: dict[str, Any] = {"key": key, "source": f"{path.name}/{shown.name}"}
    if image is None:
        start = first.offset - BLOCK_BYTES
        empty = {IMAGE.offset_column: start, IMAGE.bytes_column: 0}
        return {**row, "width": 1, "height": 1, **empty}
    width, height = _image_size(path, image, data)
    row |= {"width": width, "height": height}
    row |= {IMAGE.offset_column: image.offset, IMAGE.bytes_column: image.size}
    return row


def _values(
    path: Path, by_end: Mapping[str, Member], data: mmap.mmap, classes: ClassNames
) -> dict[str, Any]:
    """The columns of VALUE_FIELDS that a sample has."""
    row = dict[str, Any]()
    for field in VALUE_FIELDS:
        if (member := by_end.get(field.member)) is not None:
            row |= {field.offset_column: member.offset, field.bytes_column: member.size}
            row[field.name] = _value(path, member, field, data, classes)
    return row


def _image_size(path: Path, member: Member, data: mmap.mmap) -> tuple[int, int]:
    """The size of an image, as `_upright_size` gives it.

    Raises:
        ShardError: it cannot be read, or not in one way alone.
    """
    try:
        return _upright_size(_bytes_of(member, data))
    except DecodeError as error:
        raise ShardError(
            f"{path}: {member.name!r} {error}. In place it has one meaning, so pack the set with `python -m gpuload "
            "pack --from tar`"
        ) from None
    except Exception as error:
        raise ShardError(
            f"{path}: {member.name!r} is not an image that Pillow reads ({type(error).__name__}). A sample cannot be "
            "left out in place: pack the set again without it, with `python -m gpuload pack`"
        ) from None


def _upright_size(content: bytes) -> tuple[int, int]:
    """Width and height of the upright image, as Exif and XMP say; Pillow turns a TIFF before it tells the size."""
    conversion = Conversion(codecs=False)
    opened = open_file(content, conversion)
    if not opened.exact:
        converted(opened.load(), conversion)
    # To tell the Exif data of a PNG, Pillow decodes its pixels.
    is_plain_png = content.startswith(png.START) and png.read_header(content).alike
    if opened.name == "tiff" or is_plain_png or opened.image is None:
        return opened.size
    return upright_size(opened.size, opened.image.getexif())


def _value(
    path: Path, member: Member, field: Field, data: mmap.mmap, classes: ClassNames
) -> int | str:
    is_class = field.kind == "class"
    content = _bytes_of(member, data)
    try:
        if not is_class:
            return content.decode()
        number = int(content)
        if number not in range(2**63 if classes is None else len(classes)):
            raise ValueError
    except ValueError:
        expected = "UTF-8 text"
        if is_class:
            expected = "a class number from 0"
            if classes is not None:
                expected += f" to {len(classes) - 1}, as --classes names them"
        raise ShardError(
            f"{path}: {member.name!r} holds {content[:40]!r}, expected {expected}. Pack the set again with such"
        ) from None
    return number


def _opened(shard: Path) -> BinaryIO:
    """A shard, opened for reading.

    Raises:
        ShardError: it cannot be.
    """
    try:
        return open_regular(shard)
    except OSError as error:
        raise ShardError(
            f"{shard}: cannot be read ({error.strerror}). Copy the folder again"
        ) from None


def add_points(
    folder: str | Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Manifest, int]:
    """Rewrites the index and the manifest of a folder with the seek points of its images; shards are not changed.

    A run that is interrupted leaves a set that can be opened, with the old index or the new one; running it again
    completes it. Returns the manifest and the number of images that have points.

    Args:
        folder: Of the packed set.
        watch: Called with the number of shards done and of all.

    Raises:
        ArgumentError: its shards lie at URLs. FormatError, ShardError: as `Dataset`. OutputError: the index cannot be
            written.
    """
    dataset = Dataset(folder)
    has_points = list[bool]()
    image = dataset.manifest.image
    shards = len(dataset.shard_paths)
    further = [field for field in dataset.fields.values() if not is_raw(field)]
    pictures = [field for field in further if field.kind == PictureKind.name]
    lists = [field for field in further if field.kind == PicturesKind.name]

    def rows_of(number: int, shard: Path | URL) -> pa.RecordBatch:
        if not isinstance(shard, Path):
            raise ArgumentError(
                f"{shard}: lies at a URL. Copy the set with `python -m gpuload fetch`"
            )
        rows = dataset.index.shard(number)
        with (
            _opened(shard) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):

            def find(offset: int, size: int, width: int, height: int) -> bytes:
                return find_points(data[offset : offset + size], width, height) or b""

            def find_lists(field: Field) -> pa.Array:
                names = list_columns(field.name)
                lists = [rows.column(name) for name in names[:4]]
                numbers = (flat(column).tolist() for column in lists)
                points = array_of(list(pool.map(find, *numbers)), POINTS_COLUMN.type)
                ends = np.cumsum([0, *lengths_of(lists[0])])
                return pa.ListArray.from_arrays(array_of(ends, pa.int32()), points)

            def find_all(field: Field, width: str, height: str) -> pa.Array:
                names = field.offset_column, field.bytes_column, width, height
                columns = (rows.column(name).to_pylist() for name in names)
                return array_of(list(pool.map(find, *columns)), POINTS_COLUMN.type)

            points = find_all(image, "width", "height")
            of_pictures = {
                picture_columns(field.name)[2]: find_all(
                    field, *picture_columns(field.name)[:2]
                )
                for field in pictures
            }
            of_pictures |= {
                list_columns(field.name).points: find_lists(field) for field in lists
            }
        has_points.extend(map(bool, points.to_pylist()))
        watch(number + 1, shards)
        for column, values in of_pictures.items():
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, rows.schema.field(place), values)
        rows = rows.drop_columns([POINTS]) if POINTS in rows.schema.names else rows
        return rows.append_column(POINTS_COLUMN, points)

    with (
        cannot_write("Free some space", folder),
        ThreadPoolExecutor(count_cores()) as pool,
    ):
        settle(Path(folder))
        rows = (rows_of(*pair) for pair in enumerate(dataset.shard_paths))
        manifest = describe(Path(folder), dataset.manifest, rows, points=True)
    return manifest, sum(has_points)
