"""`manifest.json`: what a packed folder holds."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuload.disk.manifest_check import OPTIONAL, check_field, checked_values
from gpuload.errors import FormatError, some_of
from gpuload.fields.field import Field
from gpuload.fields.pixels import RGB, Pixels
from gpuload.headers.json_text import parse_json
from gpuload.installed import upgrade_command

FILE_NAME = "manifest.json"
FORMAT = "gpuload"
# 1 (2026-11): first version. It covers the order of an epoch too: a change to that in gpuload.order.epoch raises it.
# 2 (2026-11): images that are not 8-bit RGB, or are stored in other encodings than version 1 had. A set that is as
# version 1 had them is written as version 1, so that older versions of gpuload read it.
VERSION = 2
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
    index_sha256: of `index.arrow`; None in sets that were packed before 2026-12.
    index_parts: SHA-256s of the record batch of each shard in `index.arrow`, and of what follows the last one; None in
        sets that were packed before 2026-12.
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

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    @property
    def upright(self) -> bool:
        """Whether every image is stored upright; in shards packed by other tools EXIF data may rotate it."""
        return "indexed" not in self.packing

    @property
    def is_raw(self) -> bool:
        """Whether images are stored as pixels, and not encoded."""
        return next(field.kind for field in self.fields if field.name == "image") == "raw"

    @property
    def pixels(self) -> Pixels:
        """What every image decodes to."""
        return Pixels.of_field(next(field for field in self.fields if field.name == "image"))

    @property
    def has_others(self) -> bool:
        """Whether images may be stored in other encodings than JPEG and PNG."""
        image = next(field for field in self.fields if field.name == "image")
        return not {member.lower() for member in image.member.split(";")} <= _FIRST_ENCODINGS

    @property
    def version(self) -> int:
        """The first version of the format that has what this set holds."""
        image = next((field for field in self.fields if field.name == "image"), None)
        if image is None:  # in the middle of being made, as by tests
            return 1
        return 1 if Pixels.of_field(image) == RGB and not self.has_others else 2

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
    def read(cls, folder: Path) -> "Manifest":
        """Reads and checks the file.

        Raises:
            FormatError: it is missing, is not a manifest, has an unsupported version, or was edited.
        """
        path = folder / FILE_NAME
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FormatError(
                f"{folder}: no {FILE_NAME}, so this is not a packed folder. Pack images with `python -m gpuload pack`, "
                "or index WebDataset shards with `python -m gpuload index`"
            ) from None
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: cannot be read ({error}). Copy the folder again") from None
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
        if manifest.fingerprint != found.get("fingerprint"):
            raise FormatError(
                f"{path}: its shards do not match its fingerprint; it was edited or damaged. Copy it again"
            )
        if manifest.index_parts is not None and len(manifest.index_parts) != len(shards) + 1:
            raise FormatError(
                f"{path}: is damaged: index_parts has {len(manifest.index_parts):,} entries, expected "
                f"{len(shards) + 1:,}. Copy the folder again"
            )
        return manifest
