"""Indexes WebDataset shards that others packed, without repacking them; and adds seek points to an index.

The same files as the packer's, beside the shards or in a folder of their own: a `.idx` for each shard, `index.arrow`,
`manifest.json` and `_info.json`.

Each shard is read whole, once: its SHA-256, which names it in a loader's cache, needs all of its bytes, and reading
headers alone, with a range for each member, is slower unless the members are large (docs/lab/packing.md).
"""

import glob
import hashlib
import io
import mmap
import os
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
from braceexpand import braceexpand
from PIL import Image

from gpuload.checks import check_option, choice
from gpuload.counted import counted
from gpuload.disk import Manifest, ShardInfo, write_index
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import POINTS_COLUMN
from gpuload.disk.manifest import TIMM_NAME, dali_index_path, dali_index_text, write_timm_info
from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, OutputError, ShardError, SourceError
from gpuload.fields.field import IMAGE, LABEL, Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import index_schema
from gpuload.headers.jpeg import upright_size
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.jpegs import find_points
from gpuload.packing.plan import REJECTED_NAME, write_rejections
from gpuload.sources.files import is_text
from gpuload.sources.listing import Rejection, some_of
from gpuload.sources.tars import by_extension
from gpuload.store.files import replaced
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.network import background
from gpuload.store.objects import Objects, expand_url
from gpuload.store.transfer import fetch_file
from gpuload.store.url import SCHEMES, URL, as_location, refuse_urls, root_of, scheme_of

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp", "avif", "tif", "tiff")
CAPTION = Field("caption", "caption", "txt")
VALUE_FIELDS = (LABEL, CAPTION, Field("json", "json", "json"))

_CHUNK_BYTES = 1 << 24
_WHOLE_SET_FILES = (index_file.FILE_NAME, TIMM_NAME, manifest_file.FILE_NAME, REJECTED_NAME)
_GIVE = "Give tars, for instance 'shards/train-{000..127}.tar'"

Missing = Literal["fail", "skip", "empty", "drop"]


class IndexedSample(NamedTuple):
    """A sample of a shard.

    members: in stored order. image: the extension of its image. row: of the index; None in the columns of VALUE_FIELDS
    where it has no such member. damaged: whether it is next to a damaged part of the shard.
    """

    members: list[Member]
    image: str
    row: dict[str, Any]
    damaged: bool

    def lacks(self, field: Field) -> bool:
        return self.row[field.name] is None


@dataclass(frozen=True)
class ScannedShard:
    """The content of a shard. path: its location.

    rejected: damaged parts, and samples that are left out.
    passed_over: counts of members that are not indexed, by extension.
    """

    path: Path | URL
    samples: list[IndexedSample]
    rejected: list[Rejection]
    sha256: str
    bytes: int
    passed_over: Counter[str]


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
    folder, indexes = _places(shards, out)
    names = None if classes is None else _read_classes(classes)
    found = [path for path in (*indexes, *(folder / name for name in _WHOLE_SET_FILES)) if path.exists()]
    if found and not overwrite:
        raise OutputError(
            f"{folder}: holds index files already ({some_of([path.name for path in found])}). "
            "Give --overwrite to replace them, or another folder with --out"
        )
    scanned = []
    for shard in shards:
        scan = scan_shard(shard, skip_damaged) if isinstance(shard, Path) else _scan_url(shard, skip_damaged)
        scanned.append(scan)
        watch(len(scanned), len(shards))
    fields = _common_fields(scanned, missing)
    scanned = [_with_all(shard, fields[1:], missing == "empty") for shard in scanned]
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


def expand_shards(patterns: Sequence[str]) -> list[Path] | list[URL]:
    """The files that these patterns name, each once, in order; wildcards in sorted order.

    Raises:
        SourceError: one names no tar. ArgumentError: some lie here and others at URLs.
    """
    shards: dict[Path | URL, None] = {}
    pin = cache(pinned)
    for pattern in patterns:
        for name in _expand_braces(pattern):
            found = _at_url(name, pin) if scheme_of(name) in SCHEMES else _here(name)
            shards.update(dict.fromkeys(found))
    urls = [shard for shard in shards if isinstance(shard, URL)]
    paths = [shard for shard in shards if isinstance(shard, Path)]
    if not shards:
        raise SourceError(f"no shards given. {_GIVE}")
    if urls and paths:
        raise ArgumentError("some shards are local files and others lie at URLs. Index them by themselves")
    return urls or paths


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern or os.path.exists(pattern):
        return [pattern]
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise SourceError(f"{pattern}: its braces do not match ({error}). {_GIVE}") from None


def _here(name: str) -> list[Path]:
    found = sorted(glob.glob(name)) if not os.path.exists(name) and glob.has_magic(name) else [name]
    for path in found or [name]:
        if os.path.isdir(path):
            raise SourceError(f"{path}: is a folder. Give the tars in it: '{os.path.join(path, '*.tar')}'")
        if not os.path.isfile(path):
            raise SourceError(f"{path}: no such file. {_GIVE}")
    return [Path(path) for path in found]


def _at_url(name: str, pin: Callable[[URL], URL]) -> list[URL]:
    """The tars that a URL means: itself, or those that fit its wildcards; on the Hub those of one commit.

    pin: asks for the commit of a repository once.
    """
    url = as_location(name)
    assert isinstance(url, URL)
    if not is_pinned(url):
        place = place_of(url)
        url = place._replace(revision=place_of(pin(place._replace(path="").url)).revision).url
    found = expand_url(url)
    if not found:
        raise SourceError(f"{url}: fits no object there. Give tars, for instance 's3://bucket/train-{{000..127}}.tar'")
    for one in found:
        if not one.text.lower().endswith(".tar"):
            raise SourceError(f"{one}: is no plain .tar by its name, which alone can be read in place. {_GIVE}")
    return found


def _places(shards: Sequence[Path] | Sequence[URL], out: str | Path | None) -> tuple[Path, list[Path]]:
    """The folder of the index, and the `.idx` of each shard: beside it, or in the same place below that folder."""
    urls = [shard for shard in shards if isinstance(shard, URL)]
    local = [shard.absolute() for shard in shards if isinstance(shard, Path)]
    folders = list(dict.fromkeys(shard.parent for shard in local))
    if out is None and len(folders) != 1:
        where = f"{shards[0]} lies at a URL" if urls else f"the shards lie in {len(folders)} folders"
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
        raise ArgumentError("two shards differ only in their extension, so both have one .idx. Rename one")
    return folder, indexes


def _read_classes(path: str | Path) -> tuple[str, ...]:
    """The names of the classes, one in each line.

    Raises:
        SourceError: it cannot be read, a line between others is empty, or a name comes twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read ({error}). Give a text file, a class name in each line") from None
    names = [line.strip() for line in text.rstrip().splitlines()]
    if not names or "" in names or len(set(names)) < len(names):
        what = "names no class" if not names else "has an empty line" if "" in names else "names a class twice"
        raise SourceError(f"{path}: {what}. Give each class a line with a name of its own, class 0 in the first")
    return tuple(names)


def _common_fields(scanned: Sequence[ScannedShard], missing: Missing) -> tuple[Field, ...]:
    """The image, and what samples have besides.

    Raises:
        ShardError: some samples lack what others have, and it is not said what to do.
    """
    every = [(shard, sample) for shard in scanned for sample in shard.samples]
    extensions = {sample.image for _, sample in every}
    order = sorted(extensions, key=lambda name: (IMAGE_MEMBERS.index(name.lower()), name))
    fields = [Field("image", "image", ";".join(order))]
    for field in VALUE_FIELDS:
        # A sample beside damage may have lost it, and is left out in any case.
        lacking = [pair for pair in every if pair[1].lacks(field) and not pair[1].damaged]
        if all(sample.lacks(field) for _, sample in every) or (lacking and missing == "drop"):
            continue
        if lacking and (missing == "fail" or (missing == "empty" and field != CAPTION)):
            shard, sample = lacking[0]
            empty = ", 'empty' gives them an empty caption" if field == CAPTION else ""
            raise ShardError(
                f"{shard.path}: sample {sample.row['key']!r} has no .{field.member}, as {len(lacking):,} of "
                f"{counted(len(every), 'sample')}. Say with --missing what to do: 'skip' leaves them out{empty}, "
                f"'drop' leaves out .{field.member} of all"
            )
        fields.append(field)
    return tuple(fields)


def _with_all(shard: ScannedShard, fields: Sequence[Field], keeps_empty: bool) -> ScannedShard:
    """The shard with the samples that have all fields. keeps_empty: whether a caption may be lacking."""
    whole, rejected = [], list(shard.rejected)
    for sample in shard.samples:
        lacking = [one for one in fields if sample.lacks(one) and (sample.damaged or not keeps_empty or one != CAPTION)]
        if lacking:
            why = "lies beside a damaged part, and " if sample.damaged else ""
            rejected.append(Rejection(sample.row["source"], f"{why}has no .{lacking[0].member}"))
        else:
            whole.append(sample)
    if not whole:
        raise ShardError(f"{shard.path}: no sample has all of {', '.join(['an image', *(f.member for f in fields)])}")
    return replace(shard, samples=whole, rejected=rejected)


def _check_labels(scanned: Sequence[ScannedShard], classes: tuple[str, ...] | None) -> None:
    known = f"--classes names {len(classes)}, numbered from 0" if classes else "classes are numbered from 0"
    for shard in scanned:
        for label, key in ((sample.row[LABEL.name], sample.row["key"]) for sample in shard.samples):
            if label < 0 or (classes is not None and label >= len(classes)):
                raise ShardError(
                    f"{shard.path}: sample {key!r} is of class {label}, but {known}. Correct one or the other"
                )


def _write(
    folder: Path,
    scanned: Sequence[ScannedShard],
    indexes: Sequence[Path],
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
            dali_path.write_text(dali_index_text(sample.members for sample in shard.samples), encoding="utf-8")
            is_url = isinstance(shard.path, URL)
            name = str(shard.path) if is_url else os.path.relpath(Path(str(shard.path)).absolute(), folder.absolute())
            infos.append(ShardInfo(name, len(shard.samples), shard.bytes, shard.sha256))
    samples = [sample for shard in scanned for sample in shard.samples]
    rejected = [rejection for shard in scanned for rejection in shard.rejected]
    passed_over = sum((shard.passed_over for shard in scanned), Counter[str]())
    left = {one.member: sum(not sample.lacks(one) for sample in samples) for one in VALUE_FIELDS if one not in fields}
    width, height, image_bytes = (max(s.row[name] for s in samples) for name in ("width", "height", "image_bytes"))
    manifest = Manifest(
        shards=tuple(infos),
        fields=fields,
        classes=classes,
        width=width,
        height=height,
        image_bytes=image_bytes,
        packing={
            "indexed": "shards packed by others",
            "not_indexed": {member: count for member, count in left.items() if count},
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


def _scan_url(url: URL, skip_damaged: bool) -> ScannedShard:
    """As `scan_shard`, for a shard at a URL, which is downloaded into a temporary folder.

    Raises:
        ShardError: as `scan_shard`. RemoteError: it cannot be read. OutputError: the temporary folder is full.
    """
    objects = Objects(URL(url.text.rpartition("/")[0]))
    try:
        with tempfile.TemporaryDirectory(prefix="gpuload-index-") as scratch:
            path = Path(scratch, url.name)
            background().wait(fetch_file(objects, url.name, path))
            try:
                return replace(scan_shard(path, skip_damaged), path=url)
            except ShardError as error:
                raise ShardError(str(error).replace(str(path), str(url))) from None
    except OSError as error:
        raise OutputError(
            f"{error.filename or tempfile.gettempdir()}: cannot be written ({error.strerror}), and shards lie there "
            "while they are scanned. Free some space, or set TMPDIR"
        ) from None


def scan_shard(path: Path, skip_damaged: bool = False) -> ScannedShard:
    """Reads a shard: its checksum, its samples, the size of each image, classes and texts.

    skip_damaged: whether damaged parts are left out; else the first is an error.

    Raises:
        ShardError: it is damaged, or holds a sample that cannot be indexed; names the sample.
    """
    others: list[tuple[str, str]] = []
    damage: list[Damage] = []
    stored = list(read_members(path, others, damage if skip_damaged else None))
    beside, used = _beside(stored, damage), set[Member]()
    rejected = [
        Rejection(f"{path.name}, bytes {part.start:,} to {part.end:,}", f"is damaged: {part.fault}") for part in damage
    ]
    samples = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest, size = hashlib.sha256(), len(data)
        for start in range(0, size, _CHUNK_BYTES):
            digest.update(data[start : start + _CHUNK_BYTES])
        _check_names(path, stored)
        for key, members in group_members(stored):
            damaged = not beside.isdisjoint(members)
            by_end = by_extension(path, key, members, fold=True)
            image = next((by_end[name] for name in IMAGE_MEMBERS if name in by_end), None)
            if image is not None:
                used |= {image, *(by_end[field.member] for field in VALUE_FIELDS if field.member in by_end)}
                row = _row(path, key, image, by_end, data)
                samples.append(IndexedSample(members, split_name(image.name)[1], row, damaged))
            elif damaged:
                rejected.append(Rejection(f"{path.name}/{key}", "lies beside a damaged part, and has no image"))
            else:
                raise ShardError(
                    f"{path}: sample {key!r} has no image (wanted one of {', '.join(IMAGE_MEMBERS)}). Pack its images "
                    "with `python -m gpuload pack`"
                )
    if not samples and not rejected:
        raise ShardError(f"{path}: holds no sample. Leave it out")
    passed_over = Counter(_extension(member) for member in stored if member not in used)
    passed_over.update(kind for _, kind in others)
    return ScannedShard(path, samples, rejected, digest.hexdigest(), size, passed_over)


def _beside(members: Sequence[Member], damage: Sequence[Damage]) -> set[Member]:
    """The members before and behind each damaged part, whose samples may have lost some."""
    begins = [member.offset for member in members]
    places = [bisect_left(begins, part.start) for part in damage]
    return {member for place in places for member in members[max(0, place - 1) : place + 1]}


def _extension(member: Member) -> str:
    """The name under which a member that is not indexed is counted."""
    key, extension = split_name(member.name)
    return f".{extension}" if extension and key and not key.endswith("/") else "without a name or an extension"


def _check_names(path: Path, members: Sequence[Member]) -> None:
    """Raises ShardError if DALI's index cannot hold a name, or a key comes again later."""
    seen: set[str] = set()
    for key, sample in group_members(members):
        for member in sample:
            if not is_text(member.name) or any(character.isspace() or character == "\0" for character in member.name):
                raise ShardError(
                    f"{path}: the name {member.name!r} holds white space, at which DALI's index splits, or is not "
                    "UTF-8. Rename its file and pack the shard again"
                )
        if key in seen:
            raise ShardError(
                f"{path}: key {key!r} comes again after other samples. Members of a sample must lie together: "
                "sort the names when packing, as in `tar --sort=name`, and keep keys unique"
            )
        seen.add(key)


def _row(path: Path, key: str, image: Member, by_end: Mapping[str, Member], data: mmap.mmap) -> dict[str, Any]:
    def content(member: Member) -> bytes:
        return data[member.offset : member.offset + member.size]

    width, height = _image_size(path, image, content(image))
    row: dict[str, Any] = {"key": key, "source": f"{path.name}/{image.name}", "width": width, "height": height}
    row |= {IMAGE.offset_column: image.offset, IMAGE.bytes_column: image.size}
    for field in VALUE_FIELDS:
        member = by_end.get(field.member)
        # A missing text is stored as an empty one at the start of the image.
        row[field.offset_column] = (member or image).offset
        row[field.bytes_column] = member.size if member else 0
        row[field.name] = _value(path, member, field, content(member)) if member else None
    return row


def _image_size(path: Path, member: Member, content: bytes) -> tuple[int, int]:
    """Width and height as DALI decodes: upright as EXIF says (JPEG, PNG and WebP alike, DALI 2.4), ignoring XMP."""
    try:
        image = Image.open(io.BytesIO(content))
        exif = Image.Exif()
        exif.load(image.info.get("exif", b""))
        return upright_size(image.size, exif)
    except Exception as error:
        raise ShardError(
            f"{path}: {member.name!r} is not an image that Pillow reads ({type(error).__name__}). A sample cannot be "
            "left out in place: pack the set again without it, with `python -m gpuload pack`"
        ) from None


def _value(path: Path, member: Member, field: Field, content: bytes) -> int | str:
    is_class = field.kind == "class"
    try:
        return int(content) if is_class else content.decode()
    except ValueError:
        expected = "a class number, such as 17" if is_class else "UTF-8 text"
        raise ShardError(
            f"{path}: {member.name!r} holds {content[:40]!r}, expected {expected}. Pack the set again with such"
        ) from None


def add_points(
    folder: str | Path, watch: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Manifest, int]:
    """Rewrites the index and the manifest of a folder with the seek points of its JPEGs; shards are not changed.

    watch: called with shards done and shards in all. Returns the manifest and the number of images that have points.

    Raises:
        ArgumentError: its shards lie at URLs. FormatError, ShardError: as `Dataset`.
    """
    dataset, found = Dataset(folder), 0
    image, path = dataset.fields["image"], Path(folder) / index_file.FILE_NAME
    names = image.offset_column, image.bytes_column, "width", "height"
    with (
        ThreadPoolExecutor(count_cores()) as pool,
        replaced(path) as temporary,
        write_index(temporary, dataset.manifest.fields, points=True) as write,
    ):
        for number, shard in enumerate(dataset.shard_paths):
            if not isinstance(shard, Path):
                raise ArgumentError(f"{shard}: lies at a URL. Copy the set with `python -m gpuload fetch`")
            rows = dataset.rows(number)
            with open_regular(shard) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:

                def find(offset: int, size: int, width: int, height: int, data: mmap.mmap = data) -> bytes:
                    return find_points(data[offset : offset + size], width, height) or b""

                points = list(pool.map(find, *(rows.column(name).to_pylist() for name in names)))
            if POINTS in rows.schema.names:
                rows = rows.drop_columns([POINTS])
            write(rows.append_column(POINTS_COLUMN, pa.array(points, POINTS_COLUMN.type)))
            found += sum(map(bool, points))
            watch(number + 1, len(dataset.shard_paths))
    manifest = replace(dataset.manifest, **index_file.index_digests(path)._asdict())
    manifest.write(Path(folder))
    return manifest, found
