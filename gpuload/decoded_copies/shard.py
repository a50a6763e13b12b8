"""Makes one shard of a decoded copy: its images as pixels, all else as it was, or moved with resized images."""

import ctypes
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpuload.decode.native.images import DecodePlan, ImageDecoder
from gpuload.decode.open import find_stored
from gpuload.disk import ShardInfo
from gpuload.disk.dataset import Dataset, refuse_large
from gpuload.disk.manifest import dali_index_text
from gpuload.disk.tar import Member, TarWriter, read_members, split_name
from gpuload.errors import DecodeError, ShardError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import (
    GRAY,
    RGB,
    MaskKind,
    MaskRules,
    Pixels,
    is_missing,
)
from gpuload.fields.kind import StoredMember
from gpuload.fields.motion import Placement, place
from gpuload.fields.picture_lists import PicturesKind, list_columns
from gpuload.fields.registry import index_schema, kind_of
from gpuload.packing.image import StoredImage, prepare_image, store_raw
from gpuload.packing.options import Encoding
from gpuload.packing.shard import HashedFile
from gpuload.read import mapped_file
from gpuload.read.shards import MappedShard, Window
from gpuload.store import Store
from gpuload.types import I64, Array

_MOST_NAME = 100  # bytes of a member's name in a USTAR header
_MASKS = MaskRules("stored", "no")  # a packed mask is as it is to be
# Of a sample that is not selected, whose image is a pixel.
_NO_MASK = np.zeros((1, 1), np.uint8)
_NO_PLACEMENT = Placement((1, 1), (1, 1), (0, 0), (1, 1))


@dataclass(frozen=True)
class CopyPlan:
    """What a copy is to be.

    Attributes:
        dataset: That is copied.
        encoding: How its images are stored.
        fields: Of the copy, its image first as in the set.
    """

    dataset: Dataset
    encoding: Encoding
    fields: tuple[Field, ...]

    @property
    def image(self) -> Field:
        """The field of the images of the copy."""
        return next(field for field in self.fields if field.kind == "raw")

    @property
    def others(self) -> tuple[Field, ...]:
        """The fields beside the images."""
        return tuple(field for field in self.fields if field != self.image)


def plan_copy(dataset: Dataset, encoding: Encoding) -> CopyPlan:
    """What a copy of a set is to be."""
    image = dataset.manifest.image
    member = "npy" if image.name == "image" else f"{image.name}.npy"
    # A pixel stands for the image of a sample that is not selected, also where it has none.
    raw = replace(image, kind="raw", member=member, counts=None)
    fields = dataset.manifest.all_fields
    return CopyPlan(
        dataset,
        encoding,
        tuple(raw if field.name == image.name else field for field in fields),
    )


class MadeShard(NamedTuple):
    """A shard that was written: what the manifest says of it, its rows of the index, and DALI's index of it."""

    info: ShardInfo
    rows: pa.RecordBatch
    dali_index: str


class OpenedShard:
    """A shard of the set that is copied, mapped, with its rows of the index.

    Args:
        dataset: That is copied.
        number: Of the shard.
        store: Opens it; this waits for a download.
    """

    def __init__(self, dataset: Dataset, number: int, store: Store) -> None:
        mapped_file.install()
        self.number = number
        # The store compares what it downloads.
        self._was_compared = dataset.cache is not None
        self.owner = object()
        self.mapped = MappedShard(dataset, number, self.owner, store)
        self.lease = store.open(number)
        self.window = Window(
            dataset, [number], {number: self.mapped}, self.owner, store
        )

    def compare(self, is_stopped: Callable[[], bool]) -> None:
        """Compares its SHA-256 with the manifest's, whatever `Dataset(verify=…)` says: a copy of damaged bytes would
        stay when the shard was repaired, under the name of the good set.

        Args:
            is_stopped: Whether to give up.

        Raises:
            ShardError: they differ, or its bytes could not be read.
        """
        if self._was_compared:
            return
        try:
            self.mapped.check_digest(is_stopped)
        except ShardError:
            self.check()  # bytes that cannot be read are the reason to name
            raise

    def check(self) -> None:
        """Raises ShardError where its bytes could not be read, or have changed since they were compared."""
        fault = mapped_file.find_fault(self.owner)
        if fault is not None:
            raise ShardError(
                f"{fault[0]}: byte {fault[1]:,} cannot be read. Check the disk, or copy it again"
            )
        self.mapped.check_unchanged()


class StoppedError(Exception):
    """Making a shard was stopped."""


def make_shard(
    plan: CopyPlan,
    opened: OpenedShard,
    name: str,
    handle: int,
    is_stopped: Callable[[], bool],
) -> MadeShard:
    """Writes a shard of a copy.

    Args:
        plan: Of the copy.
        opened: The shard of the set.
        name: That the shard gets.
        handle: Of the file that is written to, which is empty.
        is_stopped: Whether to give up.

    Raises:
        DecodeError: a sample does not decode. ShardError: the shard is damaged. OSError: the disk is full.
        StoppedError: it gave up.
    """
    opened.compare(is_stopped)
    with os.fdopen(os.dup(handle), "wb") as file:
        hashed = HashedFile(file)
        making = _Making(plan, opened, TarWriter(hashed))
        for row in range(len(making.rows)):
            if is_stopped():
                raise StoppedError
            making.add(row)
        making.tar.finish()
        opened.check()
        file.flush()
    digest = hashed.hash.hexdigest()
    info = ShardInfo(name, len(making.rows), making.tar.size, digest)
    return MadeShard(info, making.index_rows(), dali_index_text(making.members))


class _Making:
    """A shard while it is being made."""

    def __init__(self, plan: CopyPlan, opened: OpenedShard, tar: TarWriter) -> None:
        dataset = plan.dataset
        self.plan = plan
        self.tar = tar
        self.rows: list[dict[str, Any]] = dataset.rows(opened.number).to_pylist()
        self.members: list[list[Member]] = []
        self._opened = opened
        self._made: list[dict[str, Any]] = []
        self._images = _DecodedImages(dataset, opened)
        joined = {f.name for file in dataset.manifest.joined for f in file.fields}
        self._joined = joined
        self._files = list(read_members(opened.lease.path))
        self._starts = [member.offset for member in self._files]

    def add(self, row: int) -> None:
        """Writes a sample."""
        values = self.rows[row]
        image = self.plan.image
        stored = self._store(self._images.pixels(row))
        stem = values["key"]
        if not is_missing(self.plan.dataset.manifest.image, values):
            old = self._member_of(values[image.offset_column])
            stem = split_name(old.name)[0]
        sample = _CopiedSample(self.tar, values, stem, stored)
        member = sample.append(f"{sample.stem}.{image.member}", stored.data)
        sample.row[image.offset_column] = member.offset + stored.header
        sample.row[image.bytes_column] = member.size - stored.header
        placement = stored.placement if self._images.is_copied(row) else None
        for field in self.plan.others:
            if isinstance(kind_of(field), PicturesKind):
                self._copy_list(sample, field)
            else:
                self._copy_field(sample, field, placement)
        self._made.append(sample.row)
        self.members.append(sample.members)

    def _store(self, pixels: Array) -> StoredImage:
        """An image as it is stored: as `pack` stores it, which costs half as much again where it is not resized."""
        encoding = self.plan.encoding
        if encoding.size is not None:
            return prepare_image(pixels, False, encoding)
        size = (pixels.shape[1], pixels.shape[0])
        placement = place(size, None, "shortest", enlarge=False)
        return store_raw(np.ascontiguousarray(pixels), "decoded", False, placement)

    def _copy_field(
        self, sample: "_CopiedSample", field: Field, placement: Placement | None
    ) -> None:
        """Copies a field, moved with its image.

        Args:
            sample: Of the copy.
            field: Of the sample.
            placement: Of the image; None for a sample that is not selected, of which all but masks stays.
        """
        values = sample.values
        row = sample.row
        moved = self._moved(sample, field, placement)
        if moved is None:
            offset = values[field.offset_column]
            old = self._member_of(offset)
            member = self._copy_member(sample, old)
            header = offset - old.offset
            row.update({name: values[name] for name in kind_of(field).columns(field)})
        else:
            extension = field.member.partition(";")[0]
            member = sample.append(f"{sample.stem}.{extension}", moved.content)
            header = moved.header
            row.update(moved.values)
        row[field.offset_column] = member.offset + header
        row[field.bytes_column] = member.size - header

    def _moved(
        self, sample: "_CopiedSample", field: Field, placement: Placement | None
    ) -> StoredMember | None:
        """The value of a field that is stored anew; None where its member stays as it is."""
        kind = kind_of(field)
        values = sample.values
        columns = {name: values[name] for name in kind.columns(field)}
        if placement is None and isinstance(kind, MaskKind):
            return kind.store(field, _NO_MASK, _NO_PLACEMENT, _MASKS)
        if placement is None or not placement.changes:
            if field.name not in self._joined:
                return None
            return StoredMember(kind.dump(field, columns), 0, columns)
        if isinstance(kind, MaskKind):
            content = self._content(self._member_of(values[field.offset_column]))
            return kind.store(field, content, placement, _MASKS)
        if kind.stays_in_shard:
            return None
        if field.instances_of is not None:
            columns[field.instances_of] = values[field.instances_of]
        return kind.store(field, columns, placement)

    def _copy_list(self, sample: "_CopiedSample", field: Field) -> None:
        """Copies a list of pictures."""
        names = list_columns(field.name)
        values = sample.values
        row = sample.row
        row.update({name: values[name] for name in kind_of(field).columns(field)})
        offsets = list[int]()
        for offset in values[names.offsets]:
            old = self._member_of(offset)
            member = self._copy_member(sample, old)
            offsets.append(member.offset + offset - old.offset)
        row[names.offsets] = offsets
        ends = [
            offset + size
            for offset, size in zip(offsets, values[names.sizes], strict=True)
        ]
        start = min(offsets, default=row[self.plan.image.offset_column])
        row[field.offset_column] = start
        row[field.bytes_column] = max(ends, default=start) - start

    def _copy_member(self, sample: "_CopiedSample", old: Member) -> Member:
        """The copy of a member, which several fields may share."""
        if old.offset not in sample.copied:
            sample.copied[old.offset] = sample.append(old.name, self._content(old))
        return sample.copied[old.offset]

    def _member_of(self, offset: int) -> Member:
        """The member that a byte of the shard belongs to."""
        return self._files[bisect_right(self._starts, offset) - 1]

    def _content(self, member: Member) -> bytes:
        data = self._opened.mapped.data
        return bytes(data[member.offset : member.offset + member.size])

    def index_rows(self) -> pa.RecordBatch:
        """The rows of the index."""
        schema = index_schema(self.plan.fields)
        columns = [
            array_of([row[column.name] for row in self._made], column.type)
            for column in schema
        ]
        return pa.record_batch(columns, schema=schema)


class _CopiedSample:
    """A sample while it is written.

    Args:
        tar: Of the shard.
        values: Its row of the index of the set.
        stem: Of the names of its members.
        image: As it is stored.

    Attributes:
        row: Of the index of the copy.
        members: Written so far.
        copied: Members that were copied, by the offset of the old one.
    """

    def __init__(
        self, tar: TarWriter, values: dict[str, Any], stem: str, image: StoredImage
    ) -> None:
        self.values = values
        self.stem = stem
        self.row: dict[str, Any] = {
            "key": values["key"],
            "source": values["source"],
            "width": image.width,
            "height": image.height,
        }
        self.members: list[Member] = []
        self.copied: dict[int, Member] = {}
        self._tar = tar

    def append(self, name: str, content: bytes) -> Member:
        """Writes a member. A name that USTAR has no place for is replaced: the index tells where members lie."""
        if len(name.encode()) > _MOST_NAME or not name.isascii():
            stem, extension = split_name(name)
            name = f"{hashlib.sha256(stem.encode()).hexdigest()[:32]}.{extension}"
        member = self._tar.append(name, content)
        self.members.append(member)
        return member


class _DecodedImages:
    """The images of a shard, as a loader decodes them.

    Args:
        dataset: Of the images.
        opened: The shard.
    """

    def __init__(self, dataset: Dataset, opened: OpenedShard) -> None:
        first = int(dataset.first_samples[opened.number])
        count = opened.mapped.rows.num_rows
        self._dataset = dataset
        self._samples: I64 = np.arange(first, first + count)
        selected = dataset.stored_samples(np.arange(len(dataset)))
        self._is_copied = np.isin(self._samples, selected)
        self._set = dataset.manifest.pixels
        image = dataset.manifest.image.name
        stored = find_stored([dataset], image, self._set)
        pictures = opened.window.read(self._samples, (), ()).image
        sizes = pictures.sizes
        refuse_large(dataset, self._samples[self._is_copied], sizes[self._is_copied])
        windows = np.zeros((count, 4), np.int64)
        windows[:, 2:] = sizes
        self._decodes_to = Pixels.of_field(dataset.manifest.image)
        if self._decodes_to == GRAY and not stored.raw:
            self._decodes_to = RGB
        factors = np.ones(count, np.int64)
        self._plan = DecodePlan(pictures, windows, factors, stored.source, stored.plain)
        self._decoder = ImageDecoder(stored)
        self._path = opened.mapped.path

    def is_copied(self, row: int) -> bool:
        """Whether a sample is selected."""
        return bool(self._is_copied[row])

    def pixels(self, row: int) -> Array:
        """(height, width, channels); one black pixel for a sample that is not selected.

        Raises:
            DecodeError: it does not decode.
        """
        if not self.is_copied(row):
            return np.zeros((1, 1, self._set.channels), self._set.stored)
        owners, broken = self._decoder.decode(self._plan, row)
        if broken:
            key = self._dataset.keys([int(self._samples[row])])[0]
            raise DecodeError(
                f"{self._path}: sample {key!r} does not decode: {broken[row]}. Leave it out by "
                "gpuload.Dataset(exclude=…); `python -m gpuload verify --quarantine` lists all such samples"
            )
        picture = self._plan.pictures[row]
        pixels = _copied_pixels(picture, self._decodes_to)
        del owners  # of the memory that was copied
        return pixels[..., : self._set.channels]


def _copied_pixels(picture: Any, pixels: Pixels) -> Array:
    """A copy of decoded pixels, (height, width, channels).

    Args:
        picture: Of `PICTURE`.
        pixels: What they are.
    """
    height = int(picture["height"])
    width = int(picture["width"])
    stride = int(picture["stride"])
    size = (height - 1) * stride + width * pixels.bytes
    address = int(picture["pixels"])
    memory = memoryview((ctypes.c_uint8 * size).from_address(address))
    dtype = np.dtype(pixels.stored)
    strides = (stride, pixels.bytes, dtype.itemsize)
    shape = (height, width, pixels.channels)
    return np.ndarray(shape, dtype, memory, strides=strides).copy()
