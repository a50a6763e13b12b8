"""Existing WebDataset tars, taken apart: to pack them in other shards, in another order or encoding."""

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.disk.tar import Member, group_members, read_members, split_name
from gpuload.errors import DecodeError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.registry import KINDS, kind_of
from gpuload.headers import npy
from gpuload.sources.copies import Copies, fits
from gpuload.sources.files import ELSEWHERE, IMAGE_EXTENSIONS, Files, Folder, is_text, printable
from gpuload.sources.files.base import ReadAhead
from gpuload.sources.listing import Listing, Rejection, Source, listing_schema, some_of
from gpuload.sources.splits import SourceSplits, files_of_splits, splits_of_files
from gpuload.store.url import URL, as_location, why_not_local, without_secrets
from gpuload.types import Array


class TarsSource(Source):
    """WebDataset shards, by their paths, wildcards or a folder of them: those in it, or else in its folders that are
    called as splits are (see `splits`).

    Shards of several splits, by their names or those of their folders, are the splits of the set. In a folder that
    gpuload packed, fields and classes are those of its manifest. Else `cls` is the label, `txt` the caption, `json`
    JSON, `mask.png` or `seg.png` a mask and `npy` an array. A sample without what the first has is left out with that
    reason. Samples are in stored order; a key that comes twice is two samples.
    """

    def __init__(self, paths: str | Path | URL | Sequence[str | Path | URL]) -> None:
        given = [paths] if isinstance(paths, (str, Path, URL)) else paths
        self.copies: Copies | None = None
        if len(given) == 1 and isinstance(url := as_location(given[0]), URL):
            self.copies = Copies(url, (".tar",))
            self._folder, self.paths = None, list[Path]()
            return
        for one in given:
            if fault := why_not_local(one):
                raise SourceError(f"{without_secrets(one)}: {fault}. {ELSEWHERE}")
        self.paths = [path for one in given for path in _expand(Path(str(one)))]
        self._folder = Path(str(given[0])) if len(given) == 1 and Path(str(given[0])).is_dir() else None

    @property
    def identity(self) -> str:
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        copies = given.pop("copies")
        return self.describe(given if copies is None else {**given, "paths": copies})

    def prepare(self, scratch: Path) -> None:
        if self.copies is not None:
            path = self.copies.fetch(scratch)
            self.paths = [scratch / "copies" / name for name in self.copies.names]
            self._folder = path if self.copies.is_folder else None

    @staticmethod
    def fits(files: Files) -> bool:
        """Whether a container is a folder of tars."""
        if isinstance(files, ReadAhead):
            return fits(files.all_names(), (".tar",))
        return isinstance(files, Folder) and bool(files_of_splits(files.path, "*.tar"))

    def list_samples(self) -> Listing:
        """Every sample of every shard; only small members are read.

        Raises:
            SourceError: no such file, or no sample in them. ShardError: a tar is damaged.
        """
        image, fields, classes = self._known()
        if self.images_alone:
            fields, classes = (), None
        splits = self._splits()
        split_of: list[str] = []
        tally = _Tally()
        rows: list[dict[str, Any]] = []
        rejected: list[Rejection] = []
        for number, path in enumerate(self.paths):
            with path.open("rb") as file:
                for key, members in group_members(read_members(path)):
                    found = {split_name(member.name)[1]: member for member in members}
                    picture = next((m for end, m in found.items() if _is_image(end, image)), None)
                    name = f"{self._title(path)}/{picture.name if picture else key}"
                    if fields is None and picture is not None:
                        fields = _guess(found, picture, file)
                    lacking = [f.member for f in fields or () if f.member not in found]
                    if not is_text(name):
                        rejected.append(Rejection(printable(name), "its name is not UTF-8"))
                        continue
                    if picture is None or lacking:
                        what = f"no .{lacking[0]}, which the first has" if picture else "no image"
                        rejected.append(Rejection(name, f"has {what}"))
                        continue
                    tally.add(found, picture, fields or ())
                    row = {"name": name, "bytes": picture.size, "where": _place(number, picture)}
                    for field in fields or ():
                        member = found[field.member]
                        if kind_of(field).stays_in_shard:
                            row[field.name] = _place(number, member)
                        else:
                            row.update(_value(path, field, member, os.pread(file.fileno(), member.size, member.offset)))
                    rows.append(row)
                    split_of += splits[number : number + 1]
        if not rows:
            raise SourceError(f"{self.paths[0]}: no sample with an image in {counted(len(self.paths), 'tar')}")
        fields = fields or ()
        table = pa.Table.from_pylist(rows, schema=listing_schema(fields, where=True))
        own = SourceSplits.of(split_of, "by the names of its tars or their folders") if splits else None
        return Listing(
            table, fields, classes, tuple(rejected), tuple(tally.notes(bool(fields) or self.images_alone)), own
        )

    def _title(self, path: Path) -> str:
        return path.name if self._folder is None else path.relative_to(self._folder).as_posix()

    def _splits(self) -> list[str]:
        """The split of each tar; [] where they are of one, or given one by one."""
        if not self.own_splits or self._folder is None:
            return []
        found = splits_of_files(str(self._folder), [path.relative_to(self._folder).as_posix() for path in self.paths])
        return [] if set(found) <= {"train"} else found

    def _known(self) -> tuple[Field | None, tuple[Field, ...] | None, tuple[str, ...] | None]:
        """Image, fields and classes where all tars lie in folders that gpuload packed.

        Raises:
            SourceError: these folders have different fields or classes.
        """
        folders = list(dict.fromkeys(path.parent for path in self.paths))
        if not all((folder / "manifest.json").exists() for folder in folders):
            return None, None, None
        first, *others = [Manifest.read(folder) for folder in folders]
        for folder, other in zip(folders[1:], others, strict=True):
            if _described(other) != _described(first):
                raise SourceError(
                    f"{folder}: has other fields or classes than {folders[0]}. Pack each of them by itself"
                )
        extensions = {extension for one in (first, *others) for extension in one.fields[0].member.split(";")}
        return replace(first.fields[0], member=";".join(sorted(extensions))), first.fields[1:], first.classes

    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        number, offset, size = map(int, where.split(":"))
        descriptor = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
        if not data.startswith(npy.START):
            return data
        try:
            return npy.read_array(data)
        except ValueError as error:
            raise DecodeError(f"cannot be read as .npy: {error}") from None

    def read_field(self, field: Field, row: int, where: str) -> bytes | Array:
        return self.read(row, field.name, where)


@dataclass
class _Tally:
    """What a user should know of the samples: folders in the tars, and members that no field takes, by extension."""

    folders: set[str] = field(default_factory=set)
    unused: Counter[str] = field(default_factory=Counter)

    def add(self, found: Mapping[str, Member], picture: Member, fields: Sequence[Field]) -> None:
        wanted = {field.member for field in fields}
        self.unused.update(end for end, member in found.items() if member != picture and end not in wanted)
        self.folders.add(picture.name.rpartition("/")[0])

    def notes(self, has_fields: bool) -> list[str]:
        notes = []
        if self.unused:
            counts = ", ".join(f"{count:,} × .{extension}" for extension, count in sorted(self.unused.items()))
            notes.append(
                f"members that are not packed, by extension: {counts}; the fields are those of the first sample"
            )
        if not has_fields:
            notes.append("no sample has more than its image, so that the set has no labels")
            if len(self.folders) > 1:
                notes.append(f"if the folders in the tar ({some_of(sorted(self.folders))}) are classes, unpack it")
        return notes


def _described(manifest: Manifest) -> tuple[object, ...]:
    return manifest.fields[0].kind, manifest.fields[1:], manifest.classes


def _expand(given: Path) -> list[Path]:
    if given.is_dir():
        found = files_of_splits(given, "*.tar")
    elif given.exists():
        found = [given]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(given)))]
    if not found:
        raise SourceError(
            f"{given}: {'holds no .tar' if given.is_dir() else 'no such tar'}. Give WebDataset shards, or their folder"
        )
    return found


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
