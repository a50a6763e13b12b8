"""One WebDataset shard that somebody else packed, read once from end to end."""

import hashlib
import io
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from gpuload.disk.tar import Member, group_members, read_members, split_name
from gpuload.errors import ShardError
from gpuload.fields.field import LABEL, Field
from gpuload.headers.exif import ORIENTATION
from gpuload.sources.files import is_text
from gpuload.store.url import URL

# The first of a sample's members in this order is its image.
IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp", "avif", "tif", "tiff")
VALUE_FIELDS = (LABEL, Field("caption", "caption", "txt"), Field("json", "json", "json"))

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class ScannedShard:
    """What a shard holds. path: where it lies.

    samples: members of each sample. columns: a value a sample for each column of the index that was found.
    lacking: for each extension of VALUE_FIELDS, the first sample that has no such member, and what it has instead.
    passed_over: how many members are of no use here, by extension.
    """

    path: Path | URL
    samples: list[list[Member]]
    columns: dict[str, list[int | str]]
    image_extensions: set[str]
    lacking: dict[str, str]
    sha256: str
    bytes: int
    passed_over: Counter[str]


def scan_shard(path: Path) -> ScannedShard:
    """Reads a shard: its checksum, its samples, the size of each image, classes and texts.

    Raises:
        ShardError: it is damaged, or holds a sample that cannot be indexed; names the sample.
    """
    links: list[str] = []
    stored = list(read_members(path, links))
    samples = list(_samples(path, stored))
    if not samples:
        raise ShardError(f"{path}: holds no sample. Leave it out")
    used: set[Member] = set()
    columns: dict[str, list[int | str]] = {}
    extensions: set[str] = set()
    lacking: dict[str, str] = {}

    def add(name: str, value: int | str) -> None:
        columns.setdefault(name, []).append(value)

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest = hashlib.sha256()
        for start in range(0, len(data), _CHUNK_BYTES):
            digest.update(data[start : start + _CHUNK_BYTES])
        for key, members in samples:
            by_extension = {split_name(member.name)[1].lower(): member for member in members}
            image = next((by_extension[name] for name in IMAGE_MEMBERS if name in by_extension), None)
            found = ", ".join("." + split_name(member.name)[1] for member in members)
            if image is None:
                raise ShardError(
                    f"{path}: sample {key!r} has no image (found: {found}; "
                    f"wanted one of {', '.join(IMAGE_MEMBERS)}). "
                    "Pack its images with `python -m gpuload pack`"
                )
            used.add(image)
            extensions.add(split_name(image.name)[1])
            width, height = _image_size(path, image, data)
            record: dict[str, int | str] = {
                "key": key,
                "source": f"{path.name}/{image.name}",
                "width": width,
                "height": height,
            }
            for name, value in record.items():
                add(name, value)
            add("image_offset", image.offset)
            add("image_bytes", image.size)
            for field in VALUE_FIELDS:
                if (member := by_extension.get(field.member)) is None:
                    lacking.setdefault(field.member, f"{key!r} (found: {found})")
                    continue
                used.add(member)
                add(field.offset_column, member.offset)
                add(field.bytes_column, member.size)
                add(field.name, _value(path, member, field, data))
        size = len(data)
    passed_over = Counter(_extension(member) for member in stored if member not in used)
    passed_over.update({"link": len(links)} if links else {})
    grouped = [members for _, members in samples]
    return ScannedShard(path, grouped, columns, extensions, lacking, digest.hexdigest(), size, passed_over)


def _extension(member: Member) -> str:
    """What a member is called that is of no use."""
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
        turned = exif.get(ORIENTATION, 1) in (5, 6, 7, 8)
    except Exception as error:
        what = "is empty" if not member.size else f"is not an image that Pillow reads ({type(error).__name__})"
        raise ShardError(
            f"{path}: {member.name!r} {what}. A sample cannot be left out in place: "
            "pack the set again without it, with `python -m gpuload pack`"
        ) from None
    return (image.height, image.width) if turned else image.size


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
