"""Single samples, decoded by Pillow; and lists of samples that a loader leaves out."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from gpuload.checks import as_text, as_whole
from gpuload.errors import ArgumentError, DecodeError, RemoteError, ShardError
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels
from gpuload.fields.registry import kind_of
from gpuload.pictures import decode_image, for_eyes
from gpuload.store import Lease


class StoredSample:
    """The members of one sample.

    Args:
        where: What messages call it.
        row: Of the index, its columns by name.
        open_shard: Opens the shard that it is in.
    """

    def __init__(
        self, where: str, row: dict[str, Any], open_shard: Callable[[], Lease]
    ) -> None:
        self.where = where
        self.row = row
        self._open_shard = open_shard

    def look(self, field: Field) -> dict[str, Any]:
        """As `Kind.look`.

        Raises:
            ShardError, RemoteError: as `read`. DecodeError: its value is damaged.
        """
        try:
            return kind_of(field).look(field, self.row, lambda: self.read(field))
        except (ShardError, RemoteError):
            raise
        except Exception as error:  # Pillow's decoders raise many kinds
            reason = str(error).split(" <")[0] or type(error).__name__
            owner = "" if field.kind in ("image", "raw") else f"its {field.name!r} "
            raise DecodeError(
                f"{self.where}: {owner}does not decode: {reason}. `python -m gpuload verify` lists all"
            ) from None

    def picture(self, image: Field, most_px: int | None = None) -> Image.Image:
        """Its image as a person looks at it: RGB, upright.

        Args:
            image: The field of the picture.
            most_px: As of `decode_image`.

        Raises:
            ShardError: as `read`. Exception: of many kinds, by Pillow, where it does not decode.
        """
        if image.kind == "raw":
            return for_eyes(self.look(image)[image.name])
        conversion = Pixels.of_field(image).conversion
        return for_eyes(decode_image(self.read(image), conversion, most_px))

    def read(self, field: Field) -> bytes:
        """The bytes that its columns span: a file, or the pixels of a raw image.

        Raises:
            ShardError: the shard cannot be read, or ends before. RemoteError: it cannot be downloaded.
        """
        offset = int(self.row[field.offset_column])
        size = int(self.row[field.bytes_column])
        content = b""
        try:
            lease = self._open_shard()
            with lease.open() as file:
                if 0 <= size <= os.fstat(file.fileno()).st_size and offset >= 0:
                    content = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ShardError(
                f"{self.where}: cannot be read ({error.strerror}). Check the disk, or copy it"
            ) from None
        if len(content) != size:
            raise ShardError(
                f"{self.where}: its {field.name!r} does not lie within the shard, which was truncated, or is not that "
                "of the index. Copy the folder again"
            )
        return content


class Quarantined(NamedTuple):
    """A sample, identified by its key and by where its image lies in its shard: a list may span several splits, and
    does not match a set that was packed again.

    Attributes:
        key: Of the sample.
        shard: Name of the file.
        offset: Of the image in the shard, in bytes.
        bytes: Size of the image.
        reason: Why it is left out.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    reason: str


def write_quarantine(path: str | Path, samples: Iterable[Quarantined]) -> None:
    """Writes a list, which may be empty: a line of JSON for each sample."""
    lines = [
        json.dumps(sample._asdict(), ensure_ascii=False) + "\n" for sample in samples
    ]
    Path(path).write_text("".join(lines), encoding="utf-8")


def read_quarantine(path: str | Path) -> set[tuple[str, str, int, int]]:
    """The samples of a list: shard, key, offset and bytes of each.

    Raises:
        ArgumentError: it cannot be read, or a line of it is no such sample.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"{path}: cannot be read as a quarantine list ({error}). Is it the right file?"
        ) from None
    samples = set()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            shard = as_text(entry["shard"])
            key = as_text(entry["key"])
            samples.add(
                (shard, key, as_whole(entry["offset"]), as_whole(entry["bytes"]))
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ArgumentError(
                f"{path}: line {number} is no sample of a quarantine list. Write it with `python -m gpuload verify "
                "--quarantine`, or give exclude a list of keys"
            ) from None
    return samples
