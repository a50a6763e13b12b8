"""Existing WebDataset tars, taken apart: to pack them in other shards, in another order or encoding."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.disk import Manifest
from gpuload.disk.tar import Member, read_members, split_name
from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.fields.registry import KINDS, kind_of
from gpuload.sources.files import IMAGE_EXTENSIONS
from gpuload.sources.listing import Listing, Rejection, Source, listing_schema
from gpuload.types import Array


class TarsSource(Source):
    """WebDataset shards, by their paths, wildcards or a folder of them.

    In a folder that gpuload packed, fields and classes are those of its manifest. Else `cls` is the label, `txt` the
    caption, `json` JSON, `mask.png` or `seg.png` a mask and `npy` an array. A sample without what the first has is left
    out with that reason. Samples are in stored order; a key that comes twice is two samples.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        given = [paths] if isinstance(paths, (str, Path)) else paths
        self.paths = [path for one in given for path in _expand(Path(one))]

    def list_samples(self) -> Listing:
        """Every sample of every shard; only small members are read.

        Raises:
            SourceError: no such file, or no sample in them. ShardError: a tar is damaged.
        """
        image, fields, classes = self._known()
        rows: list[dict[str, Any]] = []
        rejected: list[Rejection] = []
        for number, path in enumerate(self.paths):
            with path.open("rb") as file:
                for key, members in _samples(path):
                    found = {split_name(member.name)[1]: member for member in members}
                    picture = next((m for end, m in found.items() if _is_image(end, image)), None)
                    name = f"{path.name}/{picture.name if picture else key}"
                    if fields is None and picture is not None:
                        fields = _guess(found, picture, file)
                    lacking = [f.member for f in fields or () if f.member not in found]
                    if picture is None or lacking:
                        what = f"no .{lacking[0]}, which the first has" if picture else "no image"
                        rejected.append(Rejection(name, f"has {what}"))
                        continue
                    row = {"name": name, "bytes": picture.size, "where": _place(number, picture)}
                    for field in fields or ():
                        member = found[field.member]
                        if kind_of(field).stays_in_shard:
                            row[field.name] = _place(number, member)
                        else:
                            row.update(_value(path, field, member, os.pread(file.fileno(), member.size, member.offset)))
                    rows.append(row)
        if not rows:
            raise SourceError(f"{self.paths[0]}: no sample with an image in {len(self.paths):,} tars")
        fields = fields or ()
        table = pa.Table.from_pylist(rows, schema=listing_schema(fields, where=True))
        return Listing(table, fields, classes, tuple(rejected))

    def _known(self) -> tuple[Field | None, tuple[Field, ...] | None, tuple[str, ...] | None]:
        folder = self.paths[0].parent
        if not (folder / "manifest.json").exists() or any(path.parent != folder for path in self.paths):
            return None, None, None
        manifest = Manifest.read(folder)
        return manifest.fields[0], manifest.fields[1:], manifest.classes

    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        number, offset, size = map(int, where.split(":"))
        descriptor = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
        return _array(data) if data.startswith(b"\x93NUMPY") else data

    def read_field(self, field: Field, row: int, where: str) -> bytes | Array:
        return self.read(row, field.name, where)


def _expand(given: Path) -> list[Path]:
    if given.is_dir():
        found = sorted(given.glob("*.tar"))
    elif given.exists():
        found = [given]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(given)))]
    if not found:
        raise SourceError(f"{given}: no such tar. Give WebDataset shards, or a folder of them")
    return found


def _samples(path: Path) -> Iterator[tuple[str, list[Member]]]:
    """Key and members of each sample: a run of members whose names agree up to the first dot."""
    current, sample = "", list[Member]()
    for member in read_members(path):
        key, extension = split_name(member.name)
        if not extension or not key or key.endswith("/"):
            continue
        if sample and key != current:
            yield current, sample
            sample = []
        current = key
        sample.append(member)
    if sample:
        yield current, sample


def _is_image(extension: str, image: Field | None) -> bool:
    return extension in image.member.split(";") if image else extension.lower() in IMAGE_EXTENSIONS


def _guess(found: dict[str, Member], picture: Member, file: Any) -> tuple[Field, ...]:
    """The fields of a foreign shard, by the extensions of its first sample."""
    fields = []
    for extension, member in found.items():
        if member == picture:
            continue

        def content(member: Member = member) -> bytes:
            return os.pread(file.fileno(), member.size, member.offset)

        fields += [field for kind in KINDS.values() if (field := kind.guess(extension, content)) is not None][:1]
    return tuple(fields)


def _value(path: Path, field: Field, member: Member, content: bytes) -> dict[str, Any]:
    try:
        return kind_of(field).load(field, content)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{path}: {member.name!r} is no {field.kind} ({error}). Correct it, or leave the shard out"
        ) from None


def _place(number: int, member: Member) -> str:
    return f"{number}:{member.offset}:{member.size}"


def _array(data: bytes) -> Array:
    import io

    array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array
