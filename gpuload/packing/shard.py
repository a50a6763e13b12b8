"""Packs one shard in one process: reads and checks its samples; writes the tar, its DALI index and its index rows."""

import dataclasses
import hashlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from gpuload.disk import ShardInfo
from gpuload.disk.index import POINTS_COLUMN
from gpuload.disk.joined import joined_schema
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.tar import Member, TarWriter
from gpuload.errors import DecodeError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.images import POINTS, MaskKind, Pixels, is_raw, picture_columns
from gpuload.fields.kind import Kind, StoredMember
from gpuload.fields.motion import Placement, place
from gpuload.fields.picture_lists import (
    PicturesKind,
    any_member,
    list_columns,
    member_of,
)
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import index_schema, kind_of
from gpuload.packing.annotations import fit_annotations
from gpuload.packing.class_numbers import values_of_picture
from gpuload.packing.image import (
    KEPT,
    MISSING,
    StoredImage,
    missing_image,
    prepare_image,
    store_picture,
)
from gpuload.packing.options import Encoding
from gpuload.packing.output import cannot_write
from gpuload.packing.own_files import shard_name
from gpuload.packing.resized import is_jpeg, resized_picture, resizing_of
from gpuload.packing.split_plan import MEASURED, ROW, read_plan
from gpuload.packing.spread import Spread
from gpuload.packing.workers import NOWHERE, Blamable, noted_position
from gpuload.sources.listing import DRAWN_HEIGHT, DRAWN_WIDTH, NAME, NO_IMAGE, addresses
from gpuload.sources.source import Source
from gpuload.store.files import start_writeback, temporaries, write_atomically

# A remark, see `Kind.remarks`, by the name of the field.
COLOURS_OF_PALETTES = (
    "pictures in {0!r} with a palette or fewer than 8 bits: {{}}, packed as they are shown; --class-numbers {0} packs "
    "their numbers, for masks and ids"
)
OVER_WHITE_IN = (
    "pictures in {0!r} with transparency: {{}}, laid over white, as others have none"
)
_NO_SLUG = re.compile(r"[^A-Za-z0-9_]+")
_WRITE_BACK_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class ShardJob(Blamable):
    """A worker's task: to pack a batch of the plan into a shard.

    Attributes:
        source: Reads the images.
        fields: All except the image.
        encoding: How images are stored.
        number: Of the batch in the plan.
        folder: Where the shard is written.
        scratch: Where its index rows, its report and the worker's position are written.
        first_shard: Added to its number when shards are appended to a set.
        first_row: Added to the numbers of its samples when shards are appended to a set.
        image: The name of the field of the image.
        joined: Fields of the samples that the shard does not hold; its index rows have their columns.
    """

    source: Source
    fields: tuple[Field, ...]
    encoding: Encoding
    number: int
    folder: Path
    scratch: Path
    first_shard: int = 0
    first_row: int = 0
    image: str = "image"
    joined: tuple[Field, ...] = ()

    @property
    def path(self) -> Path:
        return self.folder / shard_name(self.first_shard + self.number)

    def note(self, kind: str) -> Path:
        """A file about this shard: "rows" of the index; "done", its report; "uploaded", once the shard is at the URL
        and no longer in `folder`."""
        return self.scratch / f"{self.folder.name}-{self.number:06d}.{kind}"

    def read_report(self) -> "ShardReport | None":
        """The report of an earlier run; None unless that run finished the shard and its files still exist."""
        try:
            report = ShardReport(**json.loads(self.note("done").read_text()))
            if self.note("uploaded").exists():
                return report
            for info in report.shards:
                is_whole = self.path.stat().st_size == info["bytes"]
                has_rows = self.note("rows").stat().st_size > 0
                has_index = dali_index_path(self.path).exists()
                if not (is_whole and has_rows and has_index):
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return report


class StoringCost(NamedTuple):
    """What images have cost that are stored in another encoding.

    Attributes:
        images: Their number.
        read_bytes: Their size before.
        stored_bytes: Their size after.
        seconds: Time of one core for decoding and encoding them.
    """

    images: float = 0
    read_bytes: float = 0
    stored_bytes: float = 0
    seconds: float = 0.0


@dataclass
class ShardReport:
    """The content of a shard, filled while it is packed, or of several. As JSON it outlives the process that packed the
    shard.

    Attributes:
        shards: `ShardInfo`s as dicts; none if every sample was rejected, in which case there is no file.
        rejected: Of each rejected sample its row in the listing, its name and the reason.
        kinds: Number of images by `StoredImage.kind`.
        members: Number of images by the extensions of their members.
        histogram: 256 C exact counts of the values of each of C channels over the `measured` images; [] where these are
            not uint8.
        spread: How the values of measured images are distributed where these are not uint8, as `Spread.as_json` gives
            it, a part for each shard.
        measured: Number of images whose pixels were measured.
        read_bytes: Bytes of the images read from the source.
        remarks: Counts by a sentence for the user, see `Kind.remarks`.
        seconds: How long packing it took.
        scales: Counts of masks by field and scale, see `StoredMember`.
        extensions: Number of further pictures by field and extension, as in "depth.png" or "frames.*.jpg".
        counts: Of lists of pictures, the least and the most of a sample, by field.
        costs: What images have cost that are stored in another encoding, by the change, such as "tiff → .npy".
    """

    shards: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    rejected: list[list[Any]] = dataclasses.field(default_factory=list)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    members: Counter[str] = dataclasses.field(default_factory=Counter)
    histogram: list[int] = dataclasses.field(default_factory=list)
    spread: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    measured: int = 0
    read_bytes: int = 0
    remarks: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0
    scales: Counter[str] = dataclasses.field(default_factory=Counter)
    extensions: Counter[str] = dataclasses.field(default_factory=Counter)
    counts: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    costs: dict[str, Sequence[float]] = dataclasses.field(default_factory=dict)

    def add(self, other: "ShardReport") -> None:
        """Adds what another one says."""
        self.shards += other.shards
        self.rejected += other.rejected
        self.kinds += other.kinds
        self.members += other.members
        self.histogram = [
            sum(counts)
            for counts in zip_longest(self.histogram, other.histogram, fillvalue=0)
        ]
        self.spread += other.spread
        self.measured += other.measured
        self.read_bytes += other.read_bytes
        self.remarks += other.remarks
        self.seconds += other.seconds
        self.scales += other.scales
        self.extensions += other.extensions
        for name, counts in other.counts.items():
            self.count(name, *counts)
        for change, cost in other.costs.items():
            self.add_cost(change, cost)

    def add_cost(self, change: str, cost: Sequence[float]) -> None:
        """Adds what a change of encoding has cost.

        Args:
            change: Such as "tiff → .npy".
            cost: A `StoringCost`, or what JSON makes of it.
        """
        before = self.costs.get(change, StoringCost())
        self.costs[change] = StoringCost(*map(sum, zip(before, cost, strict=True)))

    def count(self, name: str, *pictures: int) -> None:
        """Notes how many pictures samples have in a list."""
        all_counts = [*self.counts.get(name, ()), *pictures]
        self.counts[name] = [min(all_counts), max(all_counts)]


def pack_shard(job: ShardJob) -> ShardReport:
    """Packs one shard. Its tar and `.idx` get their final names once they are complete and on disk.

    The last file written, "done", marks the shard as finished, so that a resumed run keeps it.

    Raises:
        OutputError: the disk is full, or cannot be written.
    """
    started = time.monotonic()
    # The name contains the process number: a worker that outlives its killed packer must not write into the file of
    # the next run.
    temporary = job.path.with_name(f"{job.path.name}.{os.getpid()}.tmp")
    with cannot_write("Free some space, or choose another output folder", job.path):
        job.folder.mkdir(exist_ok=True)
        for unfinished in temporaries(
            job.folder, [job.path.name]
        ):  # by a worker that died
            unfinished.unlink(missing_ok=True)
        with temporary.open("wb") as file, noted_position(job.position) as note:
            hashed = HashedFile(file)
            packed = _Packing(job, hashed)
            packed.run(note)
            packed.tar.finish()
            file.flush()
            os.fsync(file.fileno())
        if packed.members:
            write_atomically(
                dali_index_path(job.path),
                dali_index_text(packed.members).encode("ascii"),
            )
            write_atomically(job.note("rows"), packed.index_rows())
            temporary.replace(job.path)
            digest = hashed.hash.hexdigest()
            info = ShardInfo(
                job.path.name, len(packed.members), packed.tar.size, digest
            )
            packed.report.shards.append(asdict(info))
        else:
            temporary.unlink()
        packed.report.histogram = packed.histogram.tolist()
        if packed.spread is not None:
            packed.report.spread = [packed.spread.as_json()]
        packed.report.seconds = time.monotonic() - started
        write_atomically(job.note("done"), json.dumps(vars(packed.report)).encode())
    return packed.report


def sample_key(number: int, name: str) -> str:
    """A key for a sample of any name: the number makes it unique, a part of the name's stem makes it readable.

    >>> sample_key(7, "cats/Élan vital.v2.JPG")\n    '00000007-lan-vital-v2'

    Args:
        number: Of the sample in the listing.
        name: Of the sample in the source.
    """
    stem = name.rpartition("/")[2].rpartition(".")[0]
    slug = _NO_SLUG.sub("-", stem).strip("-")[:40].rstrip("-")
    return f"{number:08d}-{slug}" if slug else f"{number:08d}"


class StoredList(NamedTuple):
    """A list of pictures as they are stored."""

    pictures: list[StoredMember]

    def begins_with(self, image: StoredImage) -> bool:
        """Whether the first picture is the image, byte for byte, which is then stored once."""
        return bool(self.pictures) and self.pictures[0].content == image.data

    def columns(
        self, field: Field, places: Sequence[tuple[int, int]]
    ) -> dict[str, list[Any]]:
        """The columns of the field in the index.

        Args:
            field: The list of pictures.
            places: The offset and the size of each picture in the shard, in bytes.
        """
        names = list_columns(field.name)
        width, height, points = picture_columns(field.name)
        return {
            names.offsets: [offset for offset, _ in places],
            names.sizes: [size for _, size in places],
            names.widths: [picture.values[width] for picture in self.pictures],
            names.heights: [picture.values[height] for picture in self.pictures],
            names.points: [picture.values[points] for picture in self.pictures],
        }


Stored = StoredMember | StoredList


class _Sample(NamedTuple):
    """A sample while it is written: its key, its row of the index, and its members so far."""

    key: str
    row: dict[str, Any]
    members: list[Member]


def _is_on_image(field: Field, values: dict[str, Any]) -> bool:
    """Whether a sample has values of a field that are places in its image, such as boxes."""
    moves = type(kind_of(field)).move is not Kind.move
    return moves and bool(values[field.name])


def _places(of_sample: Sequence[Any]) -> list[str]:
    """The addresses of all that is read of a sample, some of which are lists of several."""
    places = list[str]()
    for entry in of_sample:
        if isinstance(entry, list):
            places += entry
        elif entry != NO_IMAGE:
            places.append(entry)
    return places


class HashedFile:
    """Hashes what is written to a file, and lets the kernel write it to the disk meanwhile, so that the sync at the end
    has little to wait for."""

    def __init__(self, file: BinaryIO) -> None:
        self.hash = hashlib.sha256()
        self._file = file
        self._size = self._written_back = 0

    def write(self, data: bytes) -> None:
        self.hash.update(data)
        self._file.write(data)
        self._size += len(data)
        if self._size - self._written_back >= _WRITE_BACK_BYTES:
            self._file.flush()
            start_writeback(
                self._file.fileno(), self._written_back, self._size - self._written_back
            )
            self._written_back = self._size


class _Packing:
    """A shard while it is being packed."""

    def __init__(self, job: ShardJob, file: HashedFile) -> None:
        self.job = job
        self.samples = read_plan(job.scratch, job.folder.name, job.number)
        self.rows: list[dict[str, Any]] = []
        self.members: list[list[Member]] = []
        self.tar = TarWriter(file)
        self.fields = (replace(IMAGE, name=job.image), *job.fields)
        self.report = ShardReport()
        pixels = job.encoding.pixels
        self.histogram = np.zeros(
            256 * pixels.channels if pixels.dtype == "uint8" else 0, np.int64
        )
        self.spread: Spread | None = None  # none where nothing is measured

    def run(self, note: Callable[[int, int], None]) -> None:
        """Packs all samples of the shard, in order."""
        source = self.job.source
        images = addresses(self.samples).to_pylist()
        reads = self._addresses_to_read(images)
        source.expect(list(chain.from_iterable(reads)))
        for position, values in enumerate(self.samples.to_pylist()):
            note(position, self.report.read_bytes)
            for address in reads[position]:
                source.wait(address)
            try:
                if reason := self.job.known_bad.get(position):
                    raise DecodeError(reason)
                image, stored = self._read(images[position], values)
            except DecodeError as error:
                self.report.rejected.append([values[ROW], values[NAME], str(error)])
            else:
                self._add(values, image, stored)
        note(NOWHERE, self.report.read_bytes)

    def _addresses_to_read(self, images: Sequence[str]) -> list[list[str]]:
        """Of each sample, the addresses of its image and of what else stays as its source has it.

        Args:
            images: The addresses of all images.
        """
        columns = [
            self.samples.column(field.name).to_pylist()
            for field in self.job.fields
            if kind_of(field).stays_in_shard
        ]
        return list(map(_places, zip(images, *columns, strict=True)))

    def _read(
        self, address: str, values: dict[str, Any]
    ) -> "tuple[StoredImage, list[Stored]]":
        """Reads and checks one sample: returns its image, and the member or members of each other field, joined ones
        last."""
        # SIGALRM's default action ends the process even if C code never returns to Python.
        signal.setitimer(signal.ITIMER_REAL, self.job.time_limit_s)
        try:
            cost = StoringCost()
            image = self._no_image(values) if address == NO_IMAGE else None
            if image is None:
                image, cost = self._read_image(address, values)
            stored = list[Stored]()
            for field in (*self.job.fields, *self.job.joined):
                if image.kind == MISSING and _is_on_image(field, values):
                    raise DecodeError(f"has {field.name!r} and no picture")
                part = self._read_field(field, values, image.placement)
                is_filled = isinstance(part, StoredList) and bool(part.pictures)
                if is_filled and values[field.name][0] == address:
                    assert isinstance(part, StoredList)
                    image = self._as_picture(image, field, part.pictures[0])
                stored.append(part)
        except OSError as error:
            raise DecodeError(f"cannot be read: {error.strerror or error}") from None
        except MemoryError:
            raise DecodeError("does not fit into memory") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if image.kind not in (KEPT, MISSING):
            change = f"{image.kind} → .{image.member}"
            self.report.add_cost(change, cost._replace(stored_bytes=len(image.data)))
        return image, stored

    def _read_image(
        self, address: str, values: dict[str, Any]
    ) -> tuple[StoredImage, StoringCost]:
        """The image of a sample, and what it has cost to store it, but for its size."""
        data = self.job.source.read(address)
        size = len(data) if isinstance(data, bytes) else data.nbytes
        self.report.read_bytes += size
        begin = time.process_time()
        image = prepare_image(data, values[MEASURED], self.job.encoding)
        seconds = time.process_time() - begin
        drawn_on = (values.get(DRAWN_WIDTH, 0), values.get(DRAWN_HEIGHT, 0))
        image = fit_annotations(image, data, drawn_on)
        return image, StoringCost(1, size, 0, seconds)

    def _no_image(self, values: dict[str, Any]) -> StoredImage:
        """What stands for the image of a sample that has none: of the size of its first further picture, or one pixel.

        Raises:
            DecodeError: the sample has no member at all, or what is drawn on an image.
        """
        encoding = self.job.encoding
        for field in self.job.fields:
            places = values[field.name] if kind_of(field).stays_in_shard else None
            if isinstance(places, str) and field.kind == PictureKind.name:
                places = [places]
            if places and field.kind in (PictureKind.name, PicturesKind.name):
                data = self.job.source.read(places[0])
                first = store_picture(data, field, encoding)
                width, height, _ = picture_columns(field.name)
                size = first.values[width], first.values[height]
                return missing_image(
                    place(size, encoding.size, encoding.fit, encoding.enlarge)
                )
        if all(field.kind == PicturesKind.name for field in self.job.fields):
            raise DecodeError("has no picture, and nothing else")
        return missing_image(Placement((1, 1), (1, 1), (0, 0), (1, 1)))

    def _read_field(
        self, field: Field, values: dict[str, Any], of_image: Placement
    ) -> Stored:
        """The member or members of a field besides the image.

        Args:
            field: Of the sample.
            values: Of the sample in the listing.
            of_image: Where the image is placed.
        """
        kind = kind_of(field)
        if isinstance(kind, PicturesKind):
            return StoredList(self._read_list(field, values[field.name], of_image))
        value: Any
        if kind.stays_in_shard:
            value = self.job.source.read(values[field.name])
        else:
            value = {column: values[column] for column in kind.columns(field)}
            if field.instances_of is not None:
                value[field.instances_of] = values[field.instances_of]
        if isinstance(kind, PictureKind):
            self.report.read_bytes += len(value)
            return self._store_picture(field, value, of_image)
        if isinstance(kind, MaskKind):
            return kind.store(field, value, of_image, self.job.encoding.mask_rules)
        return kind.store(field, value, of_image)

    def _read_list(
        self, field: Field, places: Sequence[str], of_image: Placement
    ) -> list[StoredMember]:
        pictures = []
        for address in places:
            data = self.job.source.read(address)
            self.report.read_bytes += len(data)
            pictures.append(self._store_picture(field, data, of_image))
        return pictures

    def _as_picture(
        self, image: StoredImage, field: Field, picture: StoredMember
    ) -> StoredImage:
        """The image, which is the first picture of a list, as that is stored: nothing is lost then, and there is one
        copy. Itself, where it is to be stored in another way."""
        encoding = self.job.encoding
        width, height, points = picture_columns(field.name)
        is_alike = encoding.encode == "keep"
        if encoding.size is not None:
            how = resizing_of(field, encoding)
            is_alike = how in ("smooth", "own") and is_jpeg(field, encoding)
        if not is_alike or is_raw(field) or encoding.pixels != Pixels.of_field(field):
            return image
        return replace(
            image,
            data=picture.content,
            width=picture.values[width],
            height=picture.values[height],
            points=picture.values[points],
            member=picture.extension,
        )

    def _store_picture(
        self, field: Field, value: Any, of_image: Placement
    ) -> StoredMember:
        encoding = self.job.encoding
        try:
            values = values_of_picture(value, field, encoding)
            stored = store_picture(values.data, field, encoding)
            is_over_white = stored.is_over_white
            if encoding.size is not None:
                stored = resized_picture(stored, field, encoding, of_image)
        except DecodeError as error:
            raise DecodeError(f"its {field.name!r} {error}") from None
        if is_over_white:
            self._remark(OVER_WHITE_IN, field)
        if values.lost_indices:
            self._remark(COLOURS_OF_PALETTES, field)
        if values.scale:
            self.report.scales[f"{field.name}: {values.scale}"] += 1
        return stored

    def _remark(self, sentence: str, field: Field) -> None:
        """Counts a picture of a field for a sentence with its name."""
        name = field.name.replace("{", "{{").replace("}", "}}")
        self.report.remarks[sentence.format(name)] += 1

    def _add(
        self, values: dict[str, Any], image: StoredImage, stored: "list[Stored]"
    ) -> None:
        key = sample_key(self.job.first_row + values[ROW], values[NAME])
        row: dict[str, Any] = {
            "key": key,
            "source": values[NAME],
            "width": image.width,
            "height": image.height,
            POINTS: image.points or b"",
        }
        for joined in stored[len(self.job.fields) :]:
            assert isinstance(joined, StoredMember)
            row.update(joined.values)
        members = stored[: len(self.job.fields)]
        holder = self._list_of_image(image, members)
        sample = _Sample(key, row, [])
        self._add_image(sample, image, holder)
        for field, part in zip(self.job.fields, members, strict=True):
            if isinstance(part, StoredList):
                self._add_list(sample, field, part, field.name == holder)
                continue
            own_end = f"{field.name}.{part.extension}" if part.extension else ""
            self._add_member(sample, field, part, own_end or field.member)
            if own_end:
                self.report.extensions[own_end] += 1
            if part.scale:
                self.report.scales[f"{field.name}: {part.scale}"] += 1
        self.rows.append(row)
        self.members.append(sample.members)
        self.report.kinds[image.kind] += 1
        self.report.remarks.update(image.remarks)
        for field in (*self.job.fields, *self.job.joined):
            self.report.remarks.update(
                kind_of(field).remarks(field, values, image.placement)
            )
        if image.histogram is not None:
            self.histogram += image.histogram
            self.report.measured += 1
        if image.measured is not None:
            if self.spread is None:
                self.spread = Spread(image.measured.shape[2])
            self.spread.add(image.measured)
            self.report.measured += 1

    def _add_image(self, sample: "_Sample", image: StoredImage, holder: str) -> None:
        """Appends the image of a sample, if it has one.

        Args:
            holder: The list that begins with it; "" for none.
        """
        field = self.fields[0]
        if image.kind == MISSING:
            sample.row[field.offset_column] = self.tar.size
            sample.row[field.bytes_column] = 0
            return
        own_name = "" if self.job.image == "image" else f"{self.job.image}."
        end = f"{own_name}{image.member}"
        if holder:
            end = member_of(holder, 0, image.member)
        first = StoredMember(image.data, image.header, {})
        self._add_member(sample, field, first, end)
        self.report.members[end] += 1

    def _add_member(
        self, sample: "_Sample", field: Field, part: StoredMember, extension: str
    ) -> None:
        """Appends the member of a field, and notes it in the sample's row."""
        member = self.tar.append(f"{sample.key}.{extension}", part.content)
        sample.members.append(member)
        sample.row[field.offset_column] = member.offset + part.header
        sample.row[field.bytes_column] = member.size - part.header
        sample.row.update(part.values)  # the field's other index columns

    def _list_of_image(self, image: StoredImage, stored: "list[Stored]") -> str:
        """The name of the first list that begins with the image; "" where none does."""
        for field, part in zip(self.job.fields, stored, strict=True):
            if isinstance(part, StoredList) and part.begins_with(image):
                return field.name
        return ""

    def _add_list(
        self, sample: "_Sample", field: Field, part: "StoredList", has_image: bool
    ) -> None:
        """Appends the members of a list of pictures.

        Args:
            has_image: Whether the image is the first, and there already.
        """
        image = self.fields[0]
        row = sample.row
        places = []
        for number, picture in enumerate(part.pictures):
            if number == 0 and has_image:
                place = row[image.offset_column], row[image.bytes_column]
            else:
                place = self._add_numbered(sample, field, number, picture)
            places.append(place)
            self.report.extensions[any_member(field.name, picture.extension)] += 1
        row.update(part.columns(field, places))
        start = min((offset for offset, _ in places), default=row[image.offset_column])
        end = max((offset + size for offset, size in places), default=start)
        row[field.offset_column] = start
        row[field.bytes_column] = end - start
        self.report.count(field.name, len(places))

    def _add_numbered(
        self, sample: "_Sample", field: Field, number: int, picture: StoredMember
    ) -> tuple[int, int]:
        """Appends the member of a picture in a list; returns the offset and the size of its data."""
        extension = member_of(field.name, number, picture.extension)
        member = self.tar.append(f"{sample.key}.{extension}", picture.content)
        sample.members.append(member)
        return member.offset + picture.header, member.size - picture.header

    def index_rows(self) -> bytes:
        """The rows of the index, as an Arrow file of one batch, with the columns of joined fields."""
        schema = index_schema(self.fields)
        for column in joined_schema(self.job.joined):
            schema = schema.append(column)
        if any(row[POINTS] for row in self.rows):
            schema = schema.append(POINTS_COLUMN)
        columns = [
            array_of([row[column.name] for row in self.rows], column.type)
            for column in schema
        ]
        batch = pa.record_batch(columns, schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())
