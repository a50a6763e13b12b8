"""`manifest.json`: what a packed folder holds."""

import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuload.checks import Rule, as_items, as_text, number, optional, several, shown, whole
from gpuload.counted import counted
from gpuload.disk.index import IndexDigests
from gpuload.disk.tar import Member, split_name
from gpuload.errors import FormatError, some_of
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.registry import kind_of
from gpuload.machine.installed import upgrade_command
from gpuload.machine.untrusted import open_regular, parse_json
from gpuload.store.url import URL

FILE_NAME = "manifest.json"
FORMAT = "gpuload"
# 1 (2026-11): first version. It covers the order of an epoch too: a change to that in gpuload.order.epoch raises it.
# 2 (2026-11): images that are not 8-bit RGB, or are stored in other encodings than version 1 had. A set that is as
# version 1 had them is written as version 1, so that older versions of gpuload read it.
VERSION = 2
# A longer file has more than 1 KiB for each of its shards: parsed, it would take many times its size.
_FREE_BYTES, _SHARD_BYTES, _MOST_BYTES = 64 << 20, 1024, 1 << 30
_FIRST_ENCODINGS = frozenset(("jpg", "jpeg", "png", "npy"))


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its path relative to the manifest's folder, number of samples, and size and SHA-256 of the file."""

    name: str
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a packed folder holds.

    classes: name of each class by its number, or None if the packer was not given names.
    width, height, image_bytes: the largest of any stored image, in pixels and bytes; DALI preallocates by them.
    mean, std: of each channel over `pixels_from` images, with pixels in 0..1; None if not measured.
    packing: the settings it was packed with and counts of what became of the images, for people who read the file.
    index_sha256, index_parts, index_offsets: of `index.arrow`, see `IndexDigests`; None in sets that were packed before
        2026-12.
    """

    shards: tuple[ShardInfo, ...]
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None = None
    width: int = 0
    height: int = 0
    image_bytes: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    pixels_from: int = 0
    packing: dict[str, Any] = field(default_factory=dict)
    index_sha256: str | None = None
    index_parts: tuple[str, ...] | None = None
    index_offsets: tuple[int, ...] | None = None

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
    def index_digests(self) -> IndexDigests:
        """What it tells of the index; of parts nothing unless it also tells where they lie."""
        known = self.index_parts is not None and self.index_offsets is not None
        return IndexDigests(
            self.index_sha256, self.index_parts if known else None, self.index_offsets if known else None
        )

    @property
    def upright(self) -> bool:
        """Whether every image is stored upright; in shards packed by other tools EXIF data may rotate it."""
        return "indexed" not in self.packing

    @property
    def image(self) -> Field:
        return next((field for field in self.fields if field.name == "image"), IMAGE)  # tests make some without

    @property
    def is_raw(self) -> bool:
        """Whether images are stored as pixels, and not encoded."""
        return self.image.kind == "raw"

    @property
    def pixels(self) -> Pixels:
        """What every image decodes to."""
        return Pixels.of_field(self.image)

    @property
    def has_others(self) -> bool:
        """Whether images may be stored in other encodings than JPEG and PNG."""
        return not {member.lower() for member in self.image.member.split(";")} <= _FIRST_ENCODINGS

    @property
    def version(self) -> int:
        """The first version of the format that has what this set holds."""
        return 1 if self.pixels == RGB and not self.has_others else 2

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when any stored sample or the stored order changes."""
        content: list[Any] = [self.version, [(shard.samples, shard.bytes, shard.sha256) for shard in self.shards]]
        if self.version > 1:
            content.append(self.pixels.mode)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Writes the file under a temporary name and renames it once it is complete."""
        path = folder / FILE_NAME
        head = {"format": FORMAT, "version": self.version, "samples": self.samples, "bytes": self.bytes}
        values = asdict(self)
        for name in OPTIONAL:
            if values[name] is None:
                del values[name]
        text = json.dumps({**head, "fingerprint": self.fingerprint, **values}, indent=1, ensure_ascii=False)
        temporary = path.with_suffix(".json.tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def read(cls, folder: Path, url: URL | None = None) -> "Manifest":
        """Reads and checks the file.

        url: where it was copied from: then no shard lies outside of that folder, indexed or not.

        Raises:
            FormatError: it is missing, is not a manifest, has an unsupported version, was edited, or names files that
                are none of its shards.
        """
        path = folder / FILE_NAME
        try:
            found = parse_json(_read_text(path))
        except FileNotFoundError:
            raise FormatError(
                f"{folder}: no {FILE_NAME}, so this is not a packed folder. Pack images with `python -m gpuload pack`, "
                "or index WebDataset shards with `python -m gpuload index`"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FormatError(f"{path}: cannot be read ({reason}). Copy the folder again") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise FormatError(f"{path}: is not a gpuload manifest (its 'format' is not {FORMAT!r})")
        if type(found.get("version")) is not int or not 1 <= found["version"] <= VERSION:
            raise FormatError(
                f"{path}: has version {found.get('version')!r}, this gpuload reads versions 1 to {VERSION}. "
                f"Upgrade with `{upgrade_command()}`, or pack again"
            )
        try:
            values = checked_values(found)
            shards = tuple(ShardInfo(**shard) for shard in values.pop("shards"))
            fields = tuple(Field(**entry) for entry in values.pop("fields"))
            manifest = cls(shards, fields, **values)
        except (TypeError, ValueError) as error:  # TypeError: a field without a name, a kind or a member
            raise FormatError(f"{path}: is damaged (missing or unexpected: {error}). Copy the folder again") from None
        for field_ in manifest.fields:
            check_field(field_)
        names = [field_.name for field_ in manifest.fields]
        images = [field_.name for field_ in manifest.fields if field_.kind in ("image", "raw")]
        if len(set(names)) < len(names) or images != ["image"]:
            raise FormatError(
                f"{path}: is damaged: a set has one field 'image' of kind image or raw, and no two of one name; found "
                f"{some_of(names, 8)}. Copy the folder again"
            )
        for shard in shards:
            if fault := shard_name_fault(shard.name, "indexed" in manifest.packing and url is None):
                raise FormatError(
                    f"{path}: its shard {shard.name!r} {fault}. Shards lie in the folder of their manifest, unless "
                    "`python -m gpuload index` has written it. Do not use this one"
                )
        if manifest.fingerprint != found.get("fingerprint"):
            raise FormatError(
                f"{path}: its shards do not match its fingerprint; it was edited or damaged. Copy it again"
            )
        parts, offsets = manifest.index_parts or (), manifest.index_offsets or ()
        if (parts and len(parts) != len(shards) + 1) or (offsets and len(offsets) != len(shards) + 2):
            raise FormatError(
                f"{path}: is damaged: index_parts has {len(parts):,} entries and index_offsets {len(offsets):,}, "
                f"expected {len(shards) + 1:,} and {len(shards) + 2:,}. Copy the folder again"
            )
        if list(offsets) != sorted(offsets) or (offsets and offsets[-1] > manifest.most_beside):
            raise FormatError(
                f"{path}: is damaged: index_offsets, where the parts of the index begin, do not grow, or are larger "
                "than the set. Copy the folder again"
            )
        return manifest


def _read_text(path: Path) -> str:
    """The file's text.

    Raises:
        ValueError: as `check_length`, or it is no text. OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _FREE_BYTES:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                check_length(content)
        return file.read(size).decode("utf-8")


def check_length(text: bytes | bytearray | mmap.mmap) -> None:
    """Raises ValueError where a manifest, or its beginning, is longer than its number of shards explains."""
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{len(text):,} bytes are too many for a manifest")
    if len(text) > _FREE_BYTES:
        shards = sum(1 for _ in re.finditer(b'"sha256"', text))
        if len(text) > _FREE_BYTES + _SHARD_BYTES * shards:
            raise ValueError(f"{len(text):,} bytes are too many for the manifest of {counted(shards, 'shard')}")


_DALI_VERSION = "v1.2"  # of DALI's index, which DALI's own reader and `wds2idx` use
TIMM_NAME = "_info.json"  # with which timm's `create_dataset("wds/", folder)` reads the shards


def dali_index_text(samples: Iterable[Sequence[Member]]) -> str:
    """A line with version and sample count, then one line per sample: extension, offset, size, name of each member.

    Names must not contain white space, at which DALI splits the lines.
    """
    lines = [
        " ".join(f"{split_name(name)[1]} {offset} {size} {name}" for name, offset, size in members)
        for members in samples
    ]
    return "\n".join([f"{_DALI_VERSION} {len(lines)}", *lines]) + "\n"


def dali_index_path(shard: Path) -> Path:
    """Path of a shard's index: beside the shard, with the extension `.idx`."""
    return shard.with_suffix(".idx")


def write_timm_info(folder: Path, manifest: Manifest) -> None:
    """Writes the description of one split, named after the folder, with the keys that timm's `reader_wds.py` reads."""
    split = {
        "name": folder.name,
        "num_samples": manifest.samples,
        "filenames": [shard.name for shard in manifest.shards],
        "shard_lengths": [shard.samples for shard in manifest.shards],
    }
    (folder / TIMM_NAME).write_text(json.dumps({"splits": {folder.name: split}}, indent=1) + "\n", encoding="utf-8")


_MOST_TEXT = 4096
_MOST_SIDE = 2**31 - 1
_NOT_IN_NAMES = re.compile(r"[\\\x00-\x1f\x7f-\x9f]")  # a backslash separates folders on Windows
_URL_PATH = re.compile(r"(?:https?|s3|gs|az|hf)://[^/?#@]+/[^?#]+")  # without a user or a signature
_DRIVE_OR_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # of Windows, and of webdataset, as in pipe:


def _as_name(value: Any) -> str:
    name = as_text(value)
    name.encode()  # JSON can hold halves of surrogate pairs, which are no text
    if "\0" in name or len(name) > _MOST_TEXT:
        raise ValueError
    return name


def _as_sha256(value: Any) -> str:
    digest = as_text(value)  # the cache names files by it
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError
    return digest


def _as_member(value: Any) -> str:
    member = _as_name(value)  # a part of the names in tars that are packed from this set
    if _NOT_IN_NAMES.search(member) or "/" in member:
        raise ValueError
    return member


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


_NAME = Rule(f"a text of up to {_MOST_TEXT:,} characters", _as_name)
_NAMES = optional(Rule("a list of texts", lambda value: tuple(map(_as_name, as_items(value)))))
_SIDE = whole(0, _MOST_SIDE)
_LEVELS = optional(several(number(0, 1, ""), "numbers in 0..1, one for each channel"))
_SHA256 = Rule("64 hexadecimal digits", _as_sha256)
_SHARD: Mapping[str, Rule[Any]] = {
    "name": _NAME,
    "samples": whole(0, 2**40),
    "bytes": whole(0, 2**62),
    "sha256": _SHA256,
}
_FIELD: Mapping[str, Rule[Any]] = {
    "name": _NAME,
    "kind": _NAME,
    "member": Rule("extensions of file names", _as_member),
    "classes": _NAMES,
    "size": whole(0, 1_000_000),
    "dtype": optional(_NAME),
}
_SET: Mapping[str, Rule[Any]] = {
    "shards": Rule("a list", as_items),
    "fields": Rule("a list", as_items),
    "classes": _NAMES,
    "width": _SIDE,
    "height": _SIDE,
    "image_bytes": whole(0, 2**62),
    "mean": _LEVELS,
    "std": _LEVELS,
    "pixels_from": whole(0, 2**62),
    "packing": Rule("an object", _as_object),
    "index_sha256": optional(_SHA256),
    "index_parts": optional(several(_SHA256, "a list of 64 hexadecimal digits each")),
    "index_offsets": optional(several(whole(0, 2**62), "a list of whole numbers")),
}
# What lies beside the shards: a copy of a set must not let a shard take its place.
_OWN_FILES = ("manifest.json", "index.arrow", "rejected.jsonl", "duplicates.jsonl", "_info.json")
OPTIONAL = ("index_sha256", "index_parts", "index_offsets")  # what older sets lack


def checked_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a manifest in Python's types; "shards" and "fields" are lists of dicts of these.

    Raises:
        ValueError: one is missing, or is not of its type or in its range.
    """
    values = _checked("", found, _SET)
    values["shards"] = [_checked(f"shards[{n}].", one, _SHARD) for n, one in enumerate(values["shards"])]
    values["fields"] = [_checked(f"fields[{n}].", one, _FIELD) for n, one in enumerate(values["fields"])]
    for shard in values["shards"]:
        if 512 * shard["samples"] > shard["bytes"]:  # a member's header alone takes that
            raise ValueError(f"{shard['name']!r} cannot hold {shard['samples']:,} samples in {shard['bytes']:,} bytes")
    return values


def shard_name_fault(name: str, may_be_elsewhere: bool) -> str:
    """Why a shard cannot have this name; "" where it can.

    may_be_elsewhere: whether it may be a URL, or lead out of the folder by leading "..", as `gpuload index` names the
    shards that it leaves where they are. All other shards lie below their manifest.
    """
    if _NOT_IN_NAMES.search(name):
        return "has a backslash or a control character"
    if may_be_elsewhere and _URL_PATH.fullmatch(name):
        rest = name.partition("://")[2].split("/")
    else:
        if name.startswith("/") or _DRIVE_OR_SCHEME.match(name):
            return "is not a relative path"
        rest = name.split("/")
        while may_be_elsewhere and rest[:1] == [".."]:
            rest = rest[1:]
    if ".." in rest:
        return "leads out of the folder"
    if not rest or not {"", "."}.isdisjoint(rest):
        return "is not the path of a file"
    if rest[-1] in _OWN_FILES or (not may_be_elsewhere and any(part.startswith(".") for part in rest)):
        return "is a name that gpuload uses for other files"
    return ""


def check_field(field: Field) -> None:
    """Raises FormatError for a field whose kind this version does not know, or whose description is impossible."""
    if fault := kind_of(field).field_fault(field):
        raise FormatError(f"field {field.name!r} of kind {field.kind!r}: {fault}. Copy the folder again")


def _checked(where: str, found: Any, rules: Mapping[str, Rule[Any]]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where.rstrip('.')} is {shown(found)}")
    values = {}
    for name, rule in rules.items():
        if name not in found and rules is not _FIELD and name not in OPTIONAL:
            raise ValueError(f"{where}{name} is missing")
        if name in found:
            try:
                values[name] = rule.read(found[name])
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{where}{name} is {shown(found[name])}, expected {rule.expected}") from None
    return values
