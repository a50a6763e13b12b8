"""`manifest.json`: what a packed folder holds."""

import dataclasses
import hashlib
import json
import mmap
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from gpuload.checks import (
    Rule,
    as_items,
    as_text,
    fitting,
    instance,
    number,
    optional,
    rules_of,
    several,
    shown,
    whole,
)
from gpuload.counted import counted
from gpuload.disk.index import Span
from gpuload.disk.places import FILE_NAME as FILE_NAME
from gpuload.disk.places import why_no_set
from gpuload.disk.tar import Member, split_name
from gpuload.errors import FormatError, some_of
from gpuload.fields.field import CLASS_NAMES, IMAGE, STORED_TEXT, UNPRINTABLE, Field
from gpuload.fields.images import RGB, Pixels
from gpuload.fields.registry import kind_of
from gpuload.machine.untrusted import open_regular, parse_json
from gpuload.store.files import write_atomically
from gpuload.store.url import URL

FORMAT = "gpuload"
# 1 (2026-11): first version. It covers the order of an epoch too: a change to that in gpuload.order.epoch raises it.
# 2 (2026-11): images that are not 8-bit RGB, or are stored in other encodings than version 1 had. A set that is as
# version 1 had them is written as version 1, so that older versions of gpuload read it.
# 3 (2026-11): further pictures, lists of pictures, an image of another name.
# 4 (2026-11): samples without an image.
VERSION = 4
# Bounds of what is parsed: bytes, lists and objects, and entries of these. Each shard that is listed adds to them.
_MOST_BYTES = 1 << 30
_SCANNED = 1 << 20  # bytes, at a time
_FREE_BYTES = 64 << 20
_FREE_CONTAINERS = 100_000
_FREE_ENTRIES = 4_000_000
_SHARD = re.compile(rb'"sha256":\s?"[0-9a-f]{64}"')
JOINED_NAME = re.compile(r"joined-[0-9a-f]{16}\.arrow")
_FIRST_ENCODINGS = frozenset(("jpg", "jpeg", "png", "npy"))


_SIDE = whole(0, 2**31 - 1)
_BYTES = whole(0, 2**62)
_LARGEST = 3.5e38  # of a float32
_NUMBERS = several(number(-_LARGEST, _LARGEST, ""), "numbers, one for each channel")
_LEVELS = optional(_NUMBERS)


def _as_percentiles(value: Any) -> dict[str, tuple[float, ...]]:
    if not isinstance(value, dict):
        raise TypeError
    return {as_text(name): _NUMBERS.read(numbers) for name, numbers in value.items()}


_PERCENTILES = optional(
    Rule("an object of numbers for each channel, by percentiles", _as_percentiles)
)
# The cache names files by it.
_SHA256 = fitting(
    "64 hexadecimal digits",
    as_text,
    lambda text: re.fullmatch("[0-9a-f]{64}", text) is not None,
)
_DIGESTS = optional(several(_SHA256, "a list of 64 hexadecimal digits each"))
_OFFSETS = optional(several(_BYTES, "a list of whole numbers"))
_LIST = Rule("a list", as_items)


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its path relative to the manifest's folder, number of samples, and size and SHA-256 of the file."""

    name: Annotated[str, STORED_TEXT]
    samples: Annotated[int, whole(0, 2**40)]
    bytes: Annotated[int, _BYTES]
    sha256: Annotated[str, _SHA256]


@dataclass(frozen=True)
class JoinedFile:
    """A file beside the index with columns that were added by key: `gpuload index --join`.

    Args:
        name: Of the file, with the begin of its SHA-256.
        fields: Those whose columns it has. One with the name of a packed field takes its place.
        sha256: Of the file.
        parts: As `index_parts`, of this file.
        offsets: As `index_offsets`, of this file.
    """

    name: Annotated[str, STORED_TEXT]
    fields: Annotated[tuple[Field, ...], _LIST]
    sha256: Annotated[str, _SHA256]
    parts: Annotated[tuple[str, ...], several(_SHA256, "a list of SHA-256s")]
    offsets: Annotated[tuple[int, ...], several(_BYTES, "a list of whole numbers")]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Each shard's record batch, and what follows them."""
        return tuple(map(Span, self.offsets, self.offsets[1:], self.parts))

    def fault(self, shards: int, most_bytes: int) -> str:
        """Why it cannot be a file of a set; "" if it can.

        Args:
            shards: The number of the set's shards.
            most_bytes: How large it can be.
        """
        if JOINED_NAME.fullmatch(self.name) is None:
            return f"the joined file {self.name!r} has another name than {JOINED_NAME.pattern}"
        sizes_fit = len(self.parts) == shards + 1 and len(self.offsets) == shards + 2
        is_rising = list(self.offsets) == sorted(self.offsets)
        if not sizes_fit or not is_rising or self.offsets[-1] > most_bytes:
            return f"the parts of {self.name!r} are not those of a file for {counted(shards, 'shard')}"
        for field in self.fields:
            if kind_of(field).stays_in_shard:
                return f"the joined field {field.name!r} of kind {field.kind!r} would lie in shards"
        return ""


@dataclass(frozen=True)
class Manifest:
    """What a packed folder holds.

    Attributes:
        shards: In the order of their samples.
        fields: What each sample has, its pictures among them.
        classes: Name of each class by its number, or None if the packer was not given names.
        width: The largest of any stored image in pixels; DALI preallocates by it.
        height: The largest of any stored image in pixels.
        image_bytes: The largest of any stored image, as encoded.
        mean: Of each channel over `pixels_from` images, of pixels in 0..1, floats as they are; None if not measured.
        std: Of each channel, as `mean`.
        pixels_from: How many images were measured.
        percentiles: By their numbers as texts ("0", "0.1", …, "100"), of each channel over the same images, as stored;
            to 8 bits, but for the smallest and the largest value. None for 8 bits, and for sets that were appended to.
        packing: The settings that it was packed with and counts of what became of the images, for people who read the
            file.
        index_sha256: Of `index.arrow`; None where it is unknown.
        index_parts: The SHA-256 of each shard's rows there, and of what follows the last ones; None where they are
            unknown.
        index_offsets: Where each of these parts begins, in bytes, and the size of the file; None where that is unknown.
        joined: Files with further columns of the index.
    """

    shards: Annotated[tuple[ShardInfo, ...], _LIST]
    fields: Annotated[tuple[Field, ...], _LIST]
    classes: Annotated[tuple[str, ...] | None, CLASS_NAMES] = None
    width: Annotated[int, _SIDE] = 0
    height: Annotated[int, _SIDE] = 0
    image_bytes: Annotated[int, _BYTES] = 0
    mean: Annotated[tuple[float, ...] | None, _LEVELS] = None
    std: Annotated[tuple[float, ...] | None, _LEVELS] = None
    pixels_from: Annotated[int, _BYTES] = 0
    percentiles: Annotated[dict[str, tuple[float, ...]] | None, _PERCENTILES] = None
    packing: Annotated[dict[str, Any], instance("an object", dict)] = dataclasses.field(
        default_factory=dict
    )
    index_sha256: Annotated[str | None, optional(_SHA256)] = None
    index_parts: Annotated[tuple[str, ...] | None, _DIGESTS] = None
    index_offsets: Annotated[tuple[int, ...] | None, _OFFSETS] = None
    joined: Annotated[tuple[JoinedFile, ...], _LIST] = ()

    @property
    def all_fields(self) -> tuple[Field, ...]:
        """The packed fields and the joined ones, which take the place of packed ones with their names."""
        joined = [field for file in self.joined for field in file.fields]
        names = {field.name for field in joined}
        packed = [field for field in self.fields if field.name not in names]
        return (*packed, *joined)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    @property
    def most_beside(self) -> int:
        """Bytes that the index, or another file beside the shards, can have: the tars hold most of it, too."""
        return 2 * self.bytes + _FREE_BYTES

    @property
    def index_spans(self) -> tuple[Span, ...]:
        """Each shard's record batch in the index, and what follows them, unless it tells of the whole file alone."""
        if self.index_parts is None or self.index_offsets is None:
            return (
                () if self.index_sha256 is None else (Span(0, None, self.index_sha256),)
            )
        return tuple(
            map(Span, self.index_offsets, self.index_offsets[1:], self.index_parts)
        )

    @property
    def upright(self) -> bool:
        """Whether every image is stored upright; in shards packed by other tools EXIF data may rotate it."""
        return "indexed" not in self.packing

    @property
    def image(self) -> Field:
        """The field of the first picture of each sample, whose size is in the columns "width" and "height"."""
        images = (field for field in self.fields if field.kind in ("image", "raw"))
        return next(images, IMAGE)  # tests make some without

    @property
    def is_raw(self) -> bool:
        """Whether images are stored as pixels, and not encoded."""
        return self.image.kind == "raw"

    @property
    def pixels(self) -> Pixels:
        """What every image decodes to."""
        return Pixels.of_field(self.image)

    @property
    def version(self) -> int:
        """The first version of the format that has what this set holds."""
        if self.image.counts is not None:
            return 4
        several = ("picture", "pictures")
        has_pictures = any(field.kind in several for field in self.fields)
        if has_pictures or self.image.name != IMAGE.name:
            return 3
        encodings = {member.lower() for member in self.image.member.split(";")}
        return 1 if self.pixels == RGB and encodings <= _FIRST_ENCODINGS else 2

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when any stored sample or the stored order changes."""
        shards = [(shard.samples, shard.bytes, shard.sha256) for shard in self.shards]
        content: list[Any] = [self.version, shards]
        if self.version > 1:
            content.append(self.pixels.mode)
        packed = {field.name for field in self.fields}
        content += [
            file.sha256
            for file in self.joined
            if any(field.name in packed for field in file.fields)
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Writes the file under a temporary name and renames it once it is complete and on disk."""
        head = {
            "format": FORMAT,
            "version": self.version,
            "samples": self.samples,
            "bytes": self.bytes,
        }
        values = {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in OPTIONAL
        }
        values["fields"] = [field.as_json() for field in self.fields]
        values["joined"] = [_joined_as_json(file) for file in self.joined]
        if not self.joined:
            del values["joined"]  # older versions did not write it
        text = json.dumps(
            {**head, "fingerprint": self.fingerprint, **values},
            indent=1,
            ensure_ascii=False,
        )
        write_atomically(folder / FILE_NAME, (text + "\n").encode())

    @staticmethod
    def read(folder: Path, url: URL | None = None) -> "Manifest":
        """Reads and checks the file.

        Args:
            folder: That holds the file.
            url: Where the folder was copied from: then no shard lies outside of that URL, indexed or not. None: it was
                not.

        Raises:
            FormatError: it is missing, is not a manifest, has an unsupported version, was edited, or names files that
                are none of its shards.
        """
        path = folder / FILE_NAME
        try:
            with (
                open_regular(path) as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                check_length(content)
                text = content[:]
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(why_no_set(folder)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FormatError(
                f"{path}: cannot be read ({reason}). Copy the folder again"
            ) from None
        return parse_manifest(text, path, url is None)

    def check(self) -> None:
        """Raises ValueError where values do not fit each other."""
        for shard in self.shards:
            if 512 * shard.samples > shard.bytes:  # a member's header alone takes that
                raise ValueError(
                    f"{shard.name!r} cannot hold {shard.samples:,} samples in {shard.bytes:,} bytes"
                )
        for file in self.joined:
            if fault := file.fault(len(self.shards), self.most_beside):
                raise ValueError(fault)
        for field in self.all_fields:
            self._check_field(field)
        names = [field.name for field in self.all_fields]
        images = [field for field in self.fields if field.kind in ("image", "raw")]
        if len(set(names)) < len(names) or len(images) != 1:
            raise ValueError(
                f"a set has one field of kind image or raw, and no two of one name; found {some_of(names, 8)}"
            )
        self._check_levels()
        self._check_index_parts()

    def _check_levels(self) -> None:
        """Raises ValueError where what was measured cannot be of such pixels."""
        pixels = self.pixels
        levels = (*(self.mean or ()), *(self.std or ()))
        if pixels.dtype != "float32" and not all(0 <= level <= 1 for level in levels):
            raise ValueError("mean and std are not of pixels in 0..1")
        for percentile, values in (self.percentiles or {}).items():
            if len(values) != pixels.channels:
                counts = f"{len(values)} for {pixels.channels} channels"
                raise ValueError(
                    f"percentile {percentile!r} has other values: {counts}"
                )

    def _check_field(self, field: Field) -> None:
        """Raises ValueError where a field does not fit its kind, or the others."""
        fault = kind_of(field).field_fault(field)
        if fault:
            raise ValueError(f"field {field.name!r} of kind {field.kind!r}: {fault}")
        classes = kind_of(field).class_names(field, self.classes) or ()
        if field.category_ids is not None and len(field.category_ids) != len(classes):
            ids = counted(len(field.category_ids), "id")
            raise ValueError(
                f"field {field.name!r} has {ids} of categories for {len(classes)} classes"
            )
        boxes = {
            other.name
            for other in self.all_fields
            if other.kind in ("boxes", "instances")
        }
        if field.instances_of is not None and field.instances_of not in boxes:
            raise ValueError(
                f"field {field.name!r} has the instances of {field.instances_of!r}, which are no boxes"
            )

    def _check_index_parts(self) -> None:
        """Raises ValueError where the parts cannot be those of an index with a record batch for each shard."""
        count = len(self.shards)
        parts = self.index_parts or ()
        offsets = self.index_offsets or ()
        sizes_fit = len(parts) in (0, count + 1) and len(offsets) in (0, count + 2)
        is_rising = list(offsets) == sorted(offsets)
        if not sizes_fit or not is_rising or max(offsets, default=0) > self.most_beside:
            raise ValueError(
                f"index_parts and index_offsets are not those of an index of {counted(count, 'shard')}"
            )


def _joined_as_json(file: JoinedFile) -> dict[str, Any]:
    return {**asdict(file), "fields": [field.as_json() for field in file.fields]}


def parse_manifest(text: bytes, where: Path | URL, is_local: bool) -> Manifest:
    """Checks the text of the file.

    Args:
        text: Its content, UTF-8.
        where: Its place, for messages.
        is_local: Whether it was not copied from a URL, so that shards may lie elsewhere.

    Raises:
        FormatError: as `Manifest.read`.
    """
    try:
        document = parse_json(text.decode("utf-8"))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"it is not a gpuload manifest, with 'format' {FORMAT!r}")
        version = document.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise FormatError(
                f"{where}: has version {version!r}, this gpuload reads versions 1 to {VERSION}. "
                "Upgrade gpuload, or pack again"
            )
        values = _checked("", document, Manifest)
        for name, kind in (("shards", ShardInfo), ("fields", Field)):
            values[name] = tuple(
                kind(**_checked(f"{name}[{number}].", entry, kind))
                for number, entry in enumerate(values[name])
            )
        values["joined"] = tuple(map(_joined_file, values.get("joined", ())))
        manifest = Manifest(**values)
        manifest.check()
        if manifest.fingerprint != document.get("fingerprint"):
            raise ValueError("its shards do not match its fingerprint: it was edited")
    except (TypeError, ValueError) as error:
        # TypeError: a field without a name, a kind or a member.
        raise FormatError(
            f"{where}: is damaged: {error}. {'Copy' if is_local else 'Upload'} the folder again"
        ) from None
    for shard in manifest.shards:
        if not is_shard_name(shard.name, not manifest.upright and is_local):
            raise FormatError(
                f"{where}: its shard {shard.name!r} is not below the folder of the manifest, where shards lie unless "
                "`python -m gpuload index` has written it. Do not use this set"
            )
    return manifest


def _joined_file(entry: Any) -> JoinedFile:
    values = _checked("joined.", entry, JoinedFile)
    fields = tuple(
        Field(**_checked("joined.fields.", entry, Field)) for entry in values["fields"]
    )
    return JoinedFile(**{**values, "fields": fields})


def check_length(text: bytes | bytearray | mmap.mmap) -> None:
    """Raises ValueError where a manifest, or its beginning, holds more than its number of shards explains.

    Parsed, a list of two bytes takes 64 bytes of memory, so that its lists, objects and entries are bounded, too.
    """
    size = len(text)
    if size > _MOST_BYTES:
        raise ValueError(f"{size:,} bytes are too many for a manifest")
    containers = entries = 0
    for offset in range(0, size, _SCANNED):
        piece = text[offset : offset + _SCANNED]
        containers += piece.count(b"[") + piece.count(b"{")
        entries += piece.count(b",")
    counts = (
        (size, _FREE_BYTES, 1024, "bytes"),
        (containers, _FREE_CONTAINERS, 1, "lists and objects"),
        (entries, _FREE_ENTRIES, 8, "entries"),
    )
    if any(count > free for count, free, _, _ in counts):
        shards = sum(1 for _ in _SHARD.finditer(text))
        for count, free, each, unit in counts:
            if count > free + each * shards:
                raise ValueError(
                    f"{count:,} {unit} are too many for the manifest of {counted(shards, 'shard')}"
                )


_DALI_VERSION = "v1.2"  # of DALI's index, which DALI's own reader and `wds2idx` use
TIMM_NAME = (
    "_info.json"  # with which timm's `create_dataset("wds/", folder)` reads the shards
)
CARD_NAME = "README.md"  # see gpuload.disk.card
ROOT_FILES = (
    TIMM_NAME,
    CARD_NAME,
)  # what lies beside the splits in the folder of a set


def dali_index_text(samples: Iterable[Sequence[Member]]) -> str:
    """A line with version and sample count, then one line per sample: extension, offset, size, name of each member.

    Names must not contain white space, at which DALI splits the lines.
    """
    lines = []
    for members in samples:
        parts = [
            f"{split_name(name)[1]} {offset} {size} {name}"
            for name, offset, size in members
        ]
        lines.append(" ".join(parts))
    return "\n".join([f"{_DALI_VERSION} {len(lines)}", *lines]) + "\n"


def dali_index_path(shard: Path) -> Path:
    """Path of a shard's index: beside the shard, with the extension `.idx`."""
    return shard.with_suffix(".idx")


def write_timm_info(folder: Path, manifests: Mapping[Path, Manifest]) -> None:
    """Writes the description of splits with the keys that timm's `reader_wds.py` reads.

    A split "val" is also described as "validation", as timm's programs call it.

    Args:
        folder: The one that timm will open.
        manifests: Those of the splits, by their folders: `folder` itself, or folders in it.
    """
    splits = {}
    for split, manifest in manifests.items():
        prefix = "" if split == folder else f"{split.relative_to(folder).as_posix()}/"
        splits[split.name] = {
            "name": split.name,
            "num_samples": manifest.samples,
            "filenames": [prefix + shard.name for shard in manifest.shards],
            "shard_lengths": [shard.samples for shard in manifest.shards],
        }
    if "val" in splits:
        splits.setdefault("validation", splits["val"])
    write_atomically(
        folder / TIMM_NAME, (json.dumps({"splits": splits}, indent=1) + "\n").encode()
    )


# Before the path of a shard that `gpuload index` left where it is: a host without a user, or folders up. The path has
# no signature.
_ELSEWHERE = re.compile(
    r"(?:https?|s3|gs|az|hf)://(?!\.{1,2}/)[^/?#@]+/(?=[^?#]+$)|(?:\.\./)+"
)
_DRIVE_OR_SCHEME = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:"
)  # of Windows, and of webdataset, as in pipe:
# What lies beside the shards: a copy of a set must not let a shard take its place.
_OWN_FILES = (
    FILE_NAME,
    "index.arrow",
    "index.next.arrow",
    "rejected.jsonl",
    *ROOT_FILES,
)
# What older sets lack.
OPTIONAL = ("index_sha256", "index_parts", "index_offsets", "joined", "percentiles")


def is_shard_name(name: str, may_be_elsewhere: bool) -> bool:
    """Whether a shard can have a name: the path of a file below the folder of the manifest.

    Args:
        name: As the manifest has it.
        may_be_elsewhere: Whether it may be a URL, or lead out of the folder by leading "..", as `gpuload index` names
            the shards that it leaves where they are.
    """
    place = _ELSEWHERE.match(name) if may_be_elsewhere else None
    parts = name[place.end() if place else 0 :].split("/")
    if UNPRINTABLE.search(name) or (place is None and _DRIVE_OR_SCHEME.match(name)):
        return False
    is_own = parts[-1] in _OWN_FILES or JOINED_NAME.fullmatch(parts[-1]) is not None
    if is_own or not {"", ".", ".."}.isdisjoint(parts):
        return False
    return may_be_elsewhere or not any(part.startswith(".") for part in parts)


_RULES: dict[type, Mapping[str, Rule[Any]]] = {
    kind: rules_of(kind) for kind in (Manifest, ShardInfo, Field, JoinedFile)
}


def _checked(where: str, found: Any, kind: type) -> dict[str, Any]:
    """The values of an object's fields, as the rules of `kind` read them.

    Args:
        where: Where the object stands in the manifest, for the message.

    Raises:
        ValueError: one is missing, or is not of its type or in its range.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{where.rstrip('.')} is {shown(found)}")
    values = {}
    for name, rule in _RULES[kind].items():
        if name not in found and kind is not Field and name not in OPTIONAL:
            raise ValueError(f"{where}{name} is missing")
        if name in found:
            try:
                values[name] = rule.read(found[name])
            except (TypeError, ValueError, OverflowError):
                raise ValueError(
                    f"{where}{name} is {shown(found[name])}, expected {rule.expected}"
                ) from None
    return values
