"""Reads shards that others packed: their samples, and what an index says of each.

A shard is read whole, once: its SHA-256, which names it in a loader's cache, needs all of its bytes, and reading
headers alone, with a range for each member, is slower unless the members are large (docs/lab/packing.md)."""

import hashlib
import mmap
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.disk.tar import (
    BLOCK_BYTES,
    Member,
    group_members,
    read_members,
    split_name,
)
from gpuload.errors import DecodeError, ShardError
from gpuload.fields.field import IMAGE, LABEL, Field
from gpuload.fields.picture_lists import LISTS_OF_MASKS
from gpuload.formats import Conversion, converted, open_file
from gpuload.formats.masks import has_indices
from gpuload.formats.modes import mode_by_header
from gpuload.headers import jpeg, png
from gpuload.headers.jpeg import upright_size
from gpuload.packing.in_place import (
    PictureInPlace,
    PicturesOfSample,
    members_of_pictures,
)
from gpuload.packing.output import cannot_write
from gpuload.sources.files import is_text
from gpuload.sources.listing import Rejection
from gpuload.sources.tar_samples import SampleCheck
from gpuload.sources.tars import by_extension
from gpuload.store.network import background
from gpuload.store.objects import Objects
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL
from gpuload.types import ClassNames

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp", "avif", "tif", "tiff")
CAPTION = Field("caption", "caption", "txt")
VALUE_FIELDS = (LABEL, CAPTION, Field("json", "json", "json"))
_DOTS = (
    "Pack the tars with `python -m gpuload pack --from tar`, where --option key_dot=last ends keys at the last dot and "
    "key_dot=first leaves such members out"
)


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


def scan_url(url: URL, classes: ClassNames) -> ScannedShard:
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
    """Counts the members that are not indexed, by what `counted_as` calls them."""
    columns = [field.offset_column for field in (IMAGE, *VALUE_FIELDS)]
    offsets = {sample.row.get(column) for sample in samples for column in columns}
    return Counter(
        counted_as(member) for member in members if member.offset not in offsets
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


def counted_as(member: Member) -> str:
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
    except Exception as error:  # Pillow's parsers may raise anything
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
