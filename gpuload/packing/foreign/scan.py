"""One WebDataset shard that somebody else packed, read once from end to end; and such shards at URLs.

Each shard is read whole, once: its SHA-256, which names it in a loader's cache, needs all of its bytes, and reading
headers alone, with a range for each member, is slower unless the members are large (docs/lab/packing.md).
"""

import hashlib
import io
import mmap
import os
import tempfile
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, OutputError, ShardError, SourceError
from gpuload.fields.field import IMAGE, LABEL, Field
from gpuload.headers.jpeg import upright_size
from gpuload.sources.files import COMPRESSED_TARS, is_text
from gpuload.sources.listing import Rejection
from gpuload.sources.tars import by_extension
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.network import background
from gpuload.store.objects import Objects, expand_url
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL, as_location, root_of

IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp", "avif", "tif", "tiff")
CAPTION = Field("caption", "caption", "txt")
VALUE_FIELDS = (LABEL, CAPTION, Field("json", "json", "json"))

_CHUNK_BYTES = 1 << 24

_AHEAD = 2  # shards that are downloaded while one is scanned


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

    rejected: damaged parts, and samples beside one that have lost their image.
    passed_over: counts of members that are not indexed, by extension.
    """

    path: Path | URL
    samples: list[IndexedSample]
    rejected: list[Rejection]
    sha256: str
    bytes: int
    passed_over: Counter[str]


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
        for key, members in _samples(path, stored):
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
                ends = ", ".join("." + split_name(member.name)[1] for member in members)
                raise ShardError(
                    f"{path}: sample {key!r} has no image (found: {ends}; wanted one of {', '.join(IMAGE_MEMBERS)}). "
                    "Pack its images with `python -m gpuload pack`"
                )
    if not samples and not rejected:
        raise ShardError(f"{path}: holds no sample. Leave it out")
    passed_over = Counter(_extension(member) for member in stored if member not in used)
    passed_over.update(kind for _, kind in others)
    return ScannedShard(path, samples, rejected, digest.hexdigest(), size, passed_over)


def _row(path: Path, key: str, image: Member, by_end: Mapping[str, Member], data: mmap.mmap) -> dict[str, Any]:
    width, height = _image_size(path, image, data)
    row: dict[str, Any] = {"key": key, "source": f"{path.name}/{image.name}", "width": width, "height": height}
    row |= {IMAGE.offset_column: image.offset, IMAGE.bytes_column: image.size}
    for field in VALUE_FIELDS:
        member = by_end.get(field.member)
        # A missing text is stored as an empty one at the start of the image.
        row[field.offset_column] = (member or image).offset
        row[field.bytes_column] = member.size if member else 0
        row[field.name] = _value(path, member, field, data) if member else None
    return row


def _beside(members: Sequence[Member], damage: Sequence[Damage]) -> set[Member]:
    """The members before and behind each damaged part, whose samples may have lost some."""
    begins = [member.offset for member in members]
    places = [bisect_left(begins, part.start) for part in damage]
    return {member for place in places for member in members[max(0, place - 1) : place + 1]}


def _extension(member: Member) -> str:
    """The name under which a member that is not indexed is counted."""
    key, extension = split_name(member.name)
    return f".{extension}" if extension and key and not key.endswith("/") else "without a name or an extension"


def _samples(path: Path, members: Iterable[Member]) -> Iterator[tuple[str, list[Member]]]:
    """As `group_members`.

    Raises:
        ShardError: a name holds white space, or a key comes again later.
    """
    seen: set[str] = set()
    for key, sample in group_members(members):
        for member in sample:
            if not is_text(member.name) or "\0" in member.name:
                raise ShardError(
                    f"{path}: the name {member.name!r} is not UTF-8. Rename its file and pack the shard again"
                )
            if any(character.isspace() for character in member.name):
                raise ShardError(
                    f"{path}: the name {member.name!r} holds white space, at which DALI's index splits. "
                    "Rename its file and pack the shard again"
                )
        if key in seen:
            raise ShardError(
                f"{path}: key {key!r} comes again after other samples. Members of a sample must lie together: "
                "sort the names when packing, as in `tar --sort=name`, and keep keys unique"
            )
        seen.add(key)
        yield key, sample


def _image_size(path: Path, member: Member, data: mmap.mmap) -> tuple[int, int]:
    """Width and height as DALI decodes: upright as EXIF says (JPEG, PNG and WebP alike, DALI 2.4), ignoring XMP."""
    try:
        image = Image.open(io.BytesIO(data[member.offset : member.offset + member.size]))
        exif = Image.Exif()
        exif.load(image.info.get("exif", b""))
        return upright_size(image.size, exif)
    except Exception as error:
        what = "is empty" if not member.size else f"is not an image that Pillow reads ({type(error).__name__})"
        raise ShardError(
            f"{path}: {member.name!r} {what}. A sample cannot be left out in place: "
            "pack the set again without it, with `python -m gpuload pack`"
        ) from None


def _value(path: Path, member: Member, field: Field, data: mmap.mmap) -> int | str:
    content = data[member.offset : member.offset + member.size]
    if field.kind == "class":
        try:
            return int(content)
        except ValueError:
            raise ShardError(
                f"{path}: {member.name!r} holds {content[:40]!r}; a .cls member is a class number, such as 17. "
                "Pack the set again with numbers"
            ) from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ShardError(f"{path}: {member.name!r} is not UTF-8 text. Pack the set again with UTF-8") from None


def find_shards(name: str, commits: dict[str, str]) -> list[URL]:
    """The tars that a URL means, without braces: itself, or those that fit its wildcards.

    commits: those of the repositories of the Hub that were asked before, so that each is asked once.

    Raises:
        SourceError: there is none. ArgumentError, RemoteError: as `expand_url`.
    """
    url = as_location(name)
    assert isinstance(url, URL)
    if not is_pinned(url):
        place = place_of(url)
        repository = place._replace(path="").url
        if repository.text not in commits:
            commits[repository.text] = place_of(pinned(repository)).revision or ""
        url = place._replace(revision=commits[repository.text]).url
    found = expand_url(url)
    if not found:
        raise SourceError(f"{url}: fits no object there. Give tars, for instance 's3://bucket/train-{{000..127}}.tar'")
    for one in found:
        if one.text.lower().endswith(COMPRESSED_TARS):
            raise SourceError(
                f"{one}: is compressed, but only plain tars can be read where they lie. Unpack the compression, as "
                "with gunzip"
            )
        if not one.text.lower().endswith(".tar"):
            raise SourceError(f"{one}: is no tar by its name. Give tars, for instance '{one.text.rstrip('/')}/*.tar'")
    return found


def common_root(shards: Sequence[URL]) -> URL:
    """The folder below which all shards lie.

    Raises:
        ArgumentError: they lie in several buckets, or on several hosts.
    """
    root = root_of(shards)
    if root is None:
        raise ArgumentError(
            f"the shards lie in several places, as {shards[0]} and {shards[-1]}. Index those of each bucket by "
            "themselves, and mix the sets"
        )
    return root


def scan_shards(shards: Sequence[URL], skip_damaged: bool = False) -> Iterator[ScannedShard]:
    """What the shards hold, in their order.

    Raises:
        ShardError: as `scan_shard`. RemoteError: one cannot be read. OutputError: the temporary folder is full.
    """
    waiting = deque(shards)
    with tempfile.TemporaryDirectory(prefix="gpuload-index-") as scratch:
        coming: deque[tuple[URL, Path, Future[None]]] = deque()
        try:
            for number in range(len(shards)):
                while waiting and len(coming) <= _AHEAD:
                    url = waiting.popleft()
                    path = Path(scratch, str(number + len(coming)), url.name)
                    path.parent.mkdir()
                    objects = Objects(URL(url.text.rpartition("/")[0]))
                    coming.append((url, path, background().start(fetch_file(objects, url.name, path))))
                url, path, future = coming.popleft()
                yield _scan(url, path, future, skip_damaged)
                os.unlink(path)
        except OSError as error:
            raise OutputError(
                f"{scratch}: cannot be written ({error.strerror}), and shards lie there while they are scanned. Free "
                "some space, or set TMPDIR"
            ) from None
        finally:
            for _, _, future in coming:
                future.cancel()


def _scan(url: URL, path: Path, future: "Future[None]", skip_damaged: bool) -> ScannedShard:
    future.result()
    try:
        return replace(scan_shard(path, skip_damaged), path=url)
    except ShardError as error:
        raise ShardError(str(error).replace(str(path), str(url))) from None


# The first of a sample's members in this order is its image.
