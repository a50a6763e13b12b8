"""Makes decoded copies, or waits while other processes of the node do: each makes shards that no other one makes.

A shard that is being made is a file that its process has locked, so shards of a process that was killed are made by the
others, or by the next run. The manifest is written last, by the process that finds all shards there.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gpuload.checks import COUNT, PATH, checked, choice, function, instance, optional
from gpuload.decoded_copies.places import CopiesFolder, CopyFacts
from gpuload.decoded_copies.shard import (
    CopyPlan,
    OpenedShard,
    StoppedError,
    make_shard,
    plan_copy,
)
from gpuload.disk import Manifest, ShardInfo
from gpuload.disk.commit import open_index
from gpuload.disk.copied import ENTRY, CopiedFrom, write_selection
from gpuload.disk.dataset import Dataset, selected_as
from gpuload.disk.manifest import FILE_NAME, dali_index_path
from gpuload.disk.tar import member_span
from gpuload.errors import ArgumentError, FormatError, OutputError
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.machine.ranks import count_threads, find_ranks
from gpuload.packing.options import Encoding
from gpuload.packing.output import describe
from gpuload.packing.own_files import shard_name
from gpuload.store.cache import CACHE_SIZE, CachePart
from gpuload.store.files import locked, write_atomically
from gpuload.types import F64, I64

_VERSION = 1  # of the bytes of copies: another one makes them anew
_POLL_S = 0.05  # while other processes make shards
_FINISH_S = 600  # to wait for another process that writes the index
# To wait for other processes that make shards, while none of these grows.
_STUCK_S = 300
# What is there beside the data: of a member, its header, what it is filled up with, and its line in DALI's index; of a
# shard, its end and its part of index and manifest; of a set, what each has.
_MEMBER_BYTES = 2 * member_span(0) + 256
_SHARD_BYTES = 20_000
_SET_BYTES = 50_000

CopyFit = Literal["shortest", "longest"]
Watch = Callable[[int, int], None]


@checked(
    "decoded",
    dataset=instance("a gpuload.Dataset", Dataset),
    size=optional(COUNT),
    fit=choice("shortest", "longest"),
    folder=optional(PATH),
    limit=optional(CACHE_SIZE),
    threads=optional(COUNT),
    watch=function("a function of two numbers"),
)
def decoded(
    dataset: Dataset,
    size: int | None = None,
    *,
    fit: CopyFit = "shortest",
    folder: str | Path | None = None,
    limit: int | str | None = None,
    threads: int | None = None,
    watch: Watch = lambda done, of: None,
) -> Dataset:
    """A copy of a data set with decoded images, made once for all processes of a machine and for later runs.

    The first process that asks makes it; others that ask meanwhile make other shards of it, and all return once it is
    whole. What a killed process has left is used by the next one, and shards that a copy has lost are made again.
    Before a shard is decoded, its SHA-256 is compared with the manifest's, whatever `verify` says.

    The copy has the same samples in the same order, so that a state of the one is a state of the other. Without a size
    its batches are those of the set, bit for bit, except where a loader shrinks JPEGs to a sixth or less, which it
    decodes at a part of their size. With a size, crops are drawn for the smaller images. Copies that were used longest
    ago are removed where a new one needs their room, but none that a process has opened.

    Args:
        dataset: What is copied: a whole set, a selection, or tiles. Only selected images take room.
        size: Largest length of the shorter side in pixels, to which images are resized as `pack --size` does; None: as
            they are.
        fit: The side that is meant: the "shortest" or the "longest".
        folder: On a local disk, or in memory, such as "/dev/shm/gpuload". By default the folder of the cache.
        limit: Largest size of all copies there: bytes, or such as "200GB". By default nine tenths of what is free on
            the disk, and in memory half.
        threads: That decode; by default this rank's share of the cores.
        watch: Called with the number of shards that are there and the number of all.

    Returns:
        The copy, with the selection or the tiles of the data set.

    Raises:
        ArgumentError: there is no room; the message says how much it takes. It is a copy already, or has a size with
            tiles or with further pictures, which only `pack` resizes.
        DecodeError: an image does not decode. ShardError: a shard cannot be read, or is not the one of the manifest.
        RemoteError: a shard cannot be downloaded. OutputError: the folder cannot be written.
    """
    assert not isinstance(limit, str)  # the rule gives a number
    _refuse(dataset, size)
    resized = "" if size is None else f"{size} {fit}"
    selected = np.unique(dataset.stored_samples(np.arange(len(dataset))))
    copies = CopiesFolder(folder, limit)

    def describe_copy() -> CopyFacts:
        size_bytes = _count_bytes(dataset, selected, size, fit)
        return CopyFacts(str(dataset.folder), len(selected), resized, size_bytes)

    path = copies.hold(_name_of(dataset, selected, resized), describe_copy)
    copied = CopiedFrom(dataset.manifest.fingerprint, resized, None)
    plan = plan_copy(dataset, _encoding_of(dataset, size, fit))
    building = _Building(plan, path, copied, selected)
    building.run(threads or count_threads(find_ranks(None, None)), watch)
    copy = Dataset(path, verify=dataset.verify, max_pixels=dataset.max_pixels)
    return selected_as(copy, dataset)


def _refuse(dataset: Dataset, size: int | None) -> None:
    """Raises ArgumentError for what cannot be copied."""
    if dataset.copied is not None:
        raise ArgumentError(
            f"decoded: {dataset.folder} is a decoded copy already. Give the data set that it was made of"
        )
    without = len(dataset.samples_without_image())
    if without:
        image = dataset.manifest.image
        raise ArgumentError(
            f"decoded: {without:,} samples of {dataset.folder} have no {image.name!r}. Leave them out: "
            f"dataset.filter(pc.field({image.bytes_column!r}) > 0)"
        )
    if size is None:
        return
    if dataset.tiling is not None:
        raise ArgumentError(
            f"decoded(size={size}): tiles lie in images of their own size. Leave size out, or make tiles of the copy"
        )
    for field in dataset.fields.values():
        if isinstance(kind_of(field), PictureKind | PicturesKind):
            raise ArgumentError(
                f"decoded(size={size}): {dataset.folder} has further pictures ({field.name!r}), whose values may "
                "change with their size. Leave size out, or pack the set with --size and --resize"
            )


def _encoding_of(dataset: Dataset, size: int | None, fit: CopyFit) -> Encoding:
    """How images are stored in a copy."""
    mode = dataset.manifest.pixels.mode
    most = dataset.max_pixels
    if size is None:
        return Encoding(encode="raw", mode=mode, max_pixels=most)
    sides = (size, size)
    return Encoding(encode="raw", mode=mode, max_pixels=most, size=sides, fit=fit)


def _name_of(dataset: Dataset, selected: I64, resized: str) -> str:
    """The name of a copy: a digest of all that its bytes depend on."""
    manifest = dataset.manifest
    described = [
        _VERSION,
        manifest.fingerprint,
        [file.sha256 for file in manifest.joined],
        [field.as_json() for field in manifest.all_fields],
        manifest.classes,
        manifest.mean,
        manifest.std,
        hashlib.sha256(selected.tobytes()).hexdigest(),
        resized,
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


def _count_bytes(
    dataset: Dataset, selected: I64, size: int | None, fit: CopyFit
) -> int:
    """Bytes that a copy takes at most."""
    total = _SET_BYTES + selected.nbytes
    image = dataset.manifest.image.name
    pixel_bytes = dataset.manifest.pixels.bytes
    others = [field for field in dataset.fields.values() if field.name != image]
    packed = {field.name for field in dataset.manifest.fields}
    for first, rows in dataset.all_rows():
        is_selected = np.isin(np.arange(first, first + rows.num_rows), selected)
        sizes = _sizes_in(rows)
        if size is not None:
            sizes = _resized(sizes, size, fit)
        pixels = np.where(is_selected, sizes.prod(axis=1), 1)
        total += int(pixels.sum()) * pixel_bytes
        total += rows.num_rows * (1 + len(others)) * _MEMBER_BYTES + _SHARD_BYTES
        for field in others:
            if field.name in packed:
                total += int(numbers_of(rows.column(field.bytes_column)).sum())
        total += 2 * rows.nbytes  # in the index, and before in files of their own
    return total


def _sizes_in(rows: pa.RecordBatch) -> F64:
    """float64 (N, 2): width and height of the image in each row of the index."""
    sides = [numbers_of(rows.column(side)) for side in ("width", "height")]
    return np.stack(sides, axis=1).astype(np.float64)


def _resized(sizes: F64, size: int, fit: CopyFit) -> F64:
    """float64 (N, 2): the sizes of images, resized as `place` resizes each."""
    meant = sizes.min(axis=1) if fit == "shortest" else sizes.max(axis=1)
    ratios = np.minimum(1, size / np.maximum(1, meant))
    return np.maximum(1, np.rint(sizes * ratios[:, None]))


class _Building:
    """A copy that is being made.

    Args:
        plan: What it is to be.
        folder: Of the copy.
        copied: What its manifest says of the set.
        selected: int64 (n,), the numbers of the samples that are copied.
    """

    def __init__(
        self, plan: CopyPlan, folder: Path, copied: CopiedFrom, selected: I64
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._copied = copied
        self._selected = selected
        self._shards = len(plan.dataset.shard_paths)
        self._stop = threading.Event()
        self._running: dict[Future[None], int] = {}
        self._missing_before: list[int] = []
        # Of all processes: the sizes of what is being made and what is missing; and when it was seen to change.
        self._progress: tuple[dict[str, int], list[int]] = ({}, [])
        self._progress_s = time.monotonic()

    def run(self, threads: int, watch: Watch) -> None:
        """Makes the shards that no other process makes, and returns once the copy is whole.

        Raises:
            DecodeError, ShardError, RemoteError, OutputError: as `decoded`.
        """
        try:
            self._forget_lost_shards()
            if self._is_whole():
                return
            self._make_shards(threads, watch)
            self._finish()
        except OSError as error:
            raise OutputError(
                f"{self._folder}: cannot be written ({error.strerror}). Free some space, or give another folder="
            ) from None

    def _forget_lost_shards(self) -> None:
        """Where shards were deleted or truncated, makes a whole copy one that lacks these alone, and lets no note say
        that they are there."""
        with self._locked():
            was_whole = self._is_whole()
            lost = self._lost_of_whole() if was_whole else self._lost_by_notes()
            for number in lost:
                self._note(number, "done").unlink(missing_ok=True)
            if was_whole and lost:  # last: until then nobody asks for notes
                (self._folder / FILE_NAME).unlink()

    def _lost_of_whole(self) -> list[int]:
        """The shards of a whole copy that are not there; if there are any, writes notes about all others."""
        manifest = Manifest.read(self._folder)
        numbers = range(self._shards)
        lost = [
            number
            for number in numbers
            if not self._is_there(number, manifest.shards[number])
        ]
        try:
            index = open_index(self._folder, manifest)
            if not lost:
                return lost
            rows = {number: index.shard(number) for number in numbers}
        except FormatError:  # shards are of no use without their index
            return list(numbers)
        for number in sorted(set(numbers).difference(lost)):
            self._write_rows(number, rows[number])
            self._write_done(number, manifest.shards[number])
        return lost

    def _lost_by_notes(self) -> list[int]:
        """The shards of an incomplete copy that were done, and are not there."""
        lost = list[int]()
        for number in range(self._shards):
            with suppress(FileNotFoundError):
                if not self._is_there(number, self._read_done(number)):
                    lost.append(number)
        return lost

    def _is_there(self, number: int, info: ShardInfo) -> bool:
        """Whether a shard has its size, and DALI's index beside it."""
        path = self._path(number)
        return dali_index_path(path).exists() and _size_of(path) == info.bytes

    def _make_shards(self, threads: int, watch: Watch) -> None:
        store = self._plan.dataset.open_store()
        store.begin()
        with ThreadPoolExecutor(threads) as pool:
            try:
                while missing := self._missing():
                    if missing != self._missing_before:
                        watch(self._shards - len(missing), self._shards)
                        store.plan(missing)
                        self._missing_before = missing
                    self._start(missing, threads, store, pool)
                    self._await_one()
            finally:
                self._stop.set()
                store.close()
        watch(self._shards, self._shards)

    def _start(
        self, missing: list[int], threads: int, store: Any, pool: ThreadPoolExecutor
    ) -> None:
        """Starts shards that no one makes, up to one for each thread."""
        for number in missing:
            if len(self._running) >= threads:
                return
            if number in self._running.values():
                continue
            part = self._claim(number)
            if part is None:
                continue
            try:
                opened = OpenedShard(self._plan.dataset, number, store)
            except BaseException:
                part.drop()
                raise
            self._running[pool.submit(self._make, number, part, opened)] = number

    def _await_one(self) -> None:
        """Waits for a shard of this process, or some time for those of others."""
        if not self._running:
            self._refuse_to_wait_for_ever()
            time.sleep(_POLL_S)
            return
        ended, _ = wait(self._running, _POLL_S, FIRST_COMPLETED)
        for future in ended:
            del self._running[future]
            future.result()

    def _refuse_to_wait_for_ever(self) -> None:
        """Raises OutputError where other processes hold all shards that are missing, and write nothing."""
        sizes = {path.name: _size_of(path) for path in self._folder.glob("*.part")}
        progress = (sizes, self._missing())
        now = time.monotonic()
        if progress != self._progress:
            self._progress = progress
            self._progress_s = now
        if now - self._progress_s > _STUCK_S:
            raise OutputError(
                f"{self._folder}: another process makes {min(sizes, default='a shard')}, and has written nothing for "
                f"{_STUCK_S:g} s; it may be suspended. End it, and this process or the next one makes the shard"
            )

    def _claim(self, number: int) -> CachePart | None:
        """The right to make a shard; None if another process has it, or the shard is there."""
        part = CachePart(self._path(number))
        if not part.is_held():
            return None
        # In this order: what is done is forgotten only once the manifest is there.
        if self._note(number, "done").exists() or self._is_whole():
            part.drop()
            return None
        return part

    def _make(self, number: int, part: CachePart, opened: OpenedShard) -> None:
        name = self._path(number).name
        try:
            made = make_shard(self._plan, opened, name, part.number, self._stop.is_set)
            write_atomically(
                dali_index_path(self._path(number)), made.dali_index.encode("ascii")
            )
            self._write_rows(number, made.rows)
            part.finish()
            self._write_done(number, made.info)
        except StoppedError:
            pass
        finally:
            part.drop()

    def _finish(self) -> None:
        """Writes the index and the manifest, unless another process has done so."""
        with self._locked():
            if not self._is_whole():
                describe(self._folder, self._manifest(), self._rows())
            for number in range(self._shards):
                self._note(number, "rows").unlink(missing_ok=True)
                self._note(number, "done").unlink(missing_ok=True)

    def _manifest(self) -> Manifest:
        of_set = self._plan.dataset.manifest
        copied = self._copied
        if len(self._selected) < of_set.samples:
            digest = write_selection(self._folder, self._selected)
            copied = copied._replace(selection=digest)
        infos = [self._read_done(number) for number in range(self._shards)]
        return replace(
            of_set,
            shards=tuple(infos),
            fields=self._plan.fields,
            packing={ENTRY: copied._asdict()},
            joined=(),
        )

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._shards):
            with pa.memory_map(str(self._note(number, "rows")), "r") as file:
                yield pa.ipc.open_file(file).get_batch(0)

    def _write_rows(self, number: int, rows: pa.RecordBatch) -> None:
        write_atomically(self._note(number, "rows"), _as_file(rows))

    def _write_done(self, number: int, info: ShardInfo) -> None:
        content = json.dumps(asdict(info)).encode()
        write_atomically(self._note(number, "done"), content)

    def _read_done(self, number: int) -> ShardInfo:
        """What the manifest is to say of a shard that is done."""
        return ShardInfo(**json.loads(self._note(number, "done").read_text()))

    def _locked(self) -> AbstractContextManager[None]:
        """Held while the index and the manifest are written or removed."""
        failure = OutputError(
            f"{self._folder}: another process has been writing its index for {_FINISH_S} s; it may be suspended"
        )
        return locked(self._folder / "lock", _FINISH_S, failure)

    def _missing(self) -> list[int]:
        """Shards that are not there."""
        missing = [
            number
            for number in range(self._shards)
            if not self._note(number, "done").exists()
        ]
        return [] if self._is_whole() else missing

    def _is_whole(self) -> bool:
        return (self._folder / FILE_NAME).exists()

    def _path(self, number: int) -> Path:
        return self._folder / shard_name(number)

    def _note(self, number: int, kind: str) -> Path:
        """A file about a shard, until the manifest is there: "rows" of the index; "done", what the manifest says."""
        return self._path(number).with_suffix(f".{kind}")


def _size_of(path: Path) -> int:
    """0 for a file that is gone."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _as_file(rows: pa.RecordBatch) -> pa.Buffer:
    """An Arrow file of one record batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()
