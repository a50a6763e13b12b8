"""Reads batches: where order, shards and augmentation meet.

With buckets, each batch is of one bucket, and its samples may be far apart. A batch is complete when the current window
contains its last sample; its other samples are in that window or in earlier ones. They are copied before reading leaves
a window: at most a batch of each bucket, so neither memory nor the shards in use grow with the data set, however rare a
bucket is. A resumed run fetches them first.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuload.augment import Augment
from gpuload.augment.pictures import DrawnViews, MovedList, MovedPicture
from gpuload.counted import counted
from gpuload.disk.dataset import Dataset, refuse_large
from gpuload.disk.tiles import TileWindows
from gpuload.draws import BATCH, each_key, make_key
from gpuload.fields.rows import Ragged, merge, take
from gpuload.order.buckets import BucketedStream, BucketPlan, Members, before
from gpuload.order.stream import Epochs, Part, PassSlice, Stream
from gpuload.read.batch import Batch, check_numbers, chosen, swapped
from gpuload.read.reader import Reader
from gpuload.types import I64, Bools

# Samples read at a time, in one batch or in several consecutive ones. While a decoder fills the caches, starting a
# batch of 256 takes 0.94 ms of Python, four times as long as alone, but 0.47 ms if four are read at once: 154,000 raw
# images of 64×64 a second instead of 104,000 (2 cores, 2026-11).
_READ_AT_ONCE = 1024

# Gives a batch with the fields that are computed where it is read.
AddFields = Callable[[Batch], Batch]


class _Pass(NamedTuple):
    """What decides the draws of samples: the number of their data set, and the seed and the epoch of the pass."""

    source: int
    seed: int
    epoch: int


class WantedFields(NamedTuple):
    """What is read of each sample besides its image.

    Attributes:
        columns: Names of index columns, such as "label".
        members: Names of fields that stay in the shard and are no pictures.
        pictures: Those that are decoded, in the order in which their views are made.
        decodes: Whether pictures are decoded, so that the data sets' `max_pixels` apply.
    """

    columns: Sequence[str] = ()
    members: Sequence[str] = ()
    pictures: Sequence[MovedPicture] = ()
    decodes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the pictures that are read."""
        return tuple(picture.name for picture in self.pictures)


class BatchReader:
    """Reads any part of a stream, which it makes for itself.

    Args:
        datasets: Of the stream.
        make_stream: Makes it.
        wanted: What to read of each sample.
        add_fields: Adds the fields that are computed during reading to a batch.
    """

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        make_stream: Callable[[], Stream],
        wanted: WantedFields,
        add_fields: AddFields = lambda batch: batch,
    ) -> None:
        self._add_fields = add_fields
        self._readers = [
            Reader(
                dataset, wanted.columns, wanted.members, dataset.verify, wanted.names
            )
            for dataset in datasets
        ]
        self._decodes = wanted.decodes
        # Costs nothing if the manifests rule larger images out.
        self._checks_sizes = wanted.decodes and any(
            not 0
            < dataset.manifest.width * dataset.manifest.height
            <= dataset.max_pixels
            for dataset in datasets
        )
        self._pictures = tuple(wanted.pictures)
        self._datasets = datasets
        self._stream = make_stream()
        self._is_remote = any(dataset.cache is not None for dataset in datasets)

    def batches(
        self, parts: Iterator[Part], augments: Sequence[Augment]
    ) -> Iterator[Batch]:
        """Starts a loop and reads some parts at a time, as `read`."""
        self.begin()
        for adjoining in self._read_together(parts):
            yield from self.read(adjoining, augments)

    def _read_together(self, parts: Iterator[Part]) -> Iterator[list[Part]]:
        """Parts that adjoin, some at a time. None of them waits for the shards of a later one."""
        adjoining: list[Part] = []
        samples = 0
        # The first batch of a set at a URL does not wait for more of the shard than it needs.
        enough = 1 if self._is_remote else _READ_AT_ONCE
        for part in parts:
            if adjoining and not self._may_join(part, adjoining[-1]):
                yield adjoining
                adjoining = []
                samples = 0
            adjoining.append(part)
            samples += part.samples
            if samples >= enough:
                yield adjoining
                enough = min(2 * samples, _READ_AT_ONCE)
                adjoining = []
                samples = 0
        if adjoining:
            yield adjoining

    def _may_join(self, part: Part, before: Part) -> bool:
        """Whether a part is read together with the one before it."""
        if part.first != before.last or part.share != before.share:
            return False
        return not self._is_remote or self._is_downloaded(part)

    def begin(self) -> bool:
        """Starts a loop. Returns whether the samples of an earlier one may be used."""
        usable = [reader.begin() for reader in self._readers]
        return all(usable)

    def read(
        self, parts: Sequence[Part], augments: Sequence[Augment]
    ) -> Iterator[Batch]:
        """A batch for each of some parts that adjoin, read together and divided afterwards.

        Args:
            parts: Of this rank, in ascending order.
            augments: Each makes a view of every batch.
        """
        begun = time.perf_counter()
        waited_s = self.download_s()
        batches = deque(self._read(parts, augments))
        read_s = (time.perf_counter() - begun) / len(batches)
        download_s = (self.download_s() - waited_s) / len(batches)
        while batches:  # no variable keeps a batch while the next one is read
            begun = time.perf_counter() - read_s
            complete = [self._add_fields(batches.popleft())]
            yield replace(
                complete.pop(),
                read_s=time.perf_counter() - begun,
                download_s=download_s,
            )

    def _is_downloaded(self, part: Part) -> bool:
        """Whether a part can be read without waiting for a download."""
        slices = self._stream.slices(part.first, part.last, part.share)
        return all(
            self._readers[run.source].is_here(run.order, run.start, run.stop)
            for run in slices
        )

    def _read(
        self, parts: Sequence[Part], augments: Sequence[Augment]
    ) -> Iterator[Batch]:
        slices = self._stream.slices(parts[0].first, parts[-1].last, parts[0].share)
        drawn = [self._read_slice(run, augments) for run in slices]
        merged = _merge_passes(drawn, [run.rows for run in slices])
        if len(parts) == 1:
            yield _placed(merged, parts[0].stop)
            return
        begin = 0
        for part in parts:
            end = begin + part.samples
            yield _placed(take(merged, slice(begin, end)), part.stop)
            begin = end

    def _read_slice(self, run: PassSlice, augments: Sequence[Augment]) -> Batch:
        batch = self._readers[run.source].read(run.order, run.start, run.stop)
        repeats = run.order.repeats(run.start, run.stop)
        tiling = self._datasets[run.source].tiling
        tiles = None
        if tiling is not None:
            samples = run.order[run.start : run.stop]
            tiles = tiling.windows(samples, batch.image.sizes)
        drawn_by = _Pass(run.source, run.seed, run.epoch)
        return self._draw(batch, augments, drawn_by, repeats, tiles)

    def _draw(
        self,
        batch: Batch,
        augments: Sequence[Augment],
        drawn_by: _Pass,
        repeats: I64 | None,
        tiles: TileWindows | None = None,
    ) -> Batch:
        """Samples of one pass with their draws.

        Args:
            batch: The samples.
            augments: Each makes a view of every picture.
            drawn_by: The pass.
            repeats: As `EpochOrder.repeats`.
            tiles: If the samples are tiles, where these lie.
        """
        image = next(iter(batch.pictures))
        sizes = batch.image.sizes
        if self._checks_sizes:
            refuse_large(self._datasets[drawn_by.source], batch.samples, sizes)
        if tiles is not None:
            numbers = tiles.numbers
            repeats = numbers if repeats is None else numbers + (repeats << 32)
        drawn = DrawnViews(
            drawn_by.seed,
            drawn_by.epoch,
            batch.samples,
            repeats,
            augments,
            views={},
            sizes={image: sizes if tiles is None else tiles.sizes},
        )
        views = drawn.draw(image, augments, first_view=0)
        if tiles is not None:
            views = tuple(view.moved(tiles.corners, sizes) for view in views)
        drawn = drawn._replace(views={image: views}, sizes={image: sizes})
        keys = np.empty(len(batch), np.uint64)
        batch_key = make_key(drawn_by.seed, drawn_by.epoch, BATCH)
        keys[:] = each_key(batch_key, repeats)
        sources = np.full(len(batch), drawn_by.source)
        batch = replace(batch, sources=sources, keys=keys)
        batch = self._with_pictures(batch, drawn)
        if self._decodes:
            self._refuse_large_pictures(batch, drawn_by.source)
        return batch

    def _refuse_large_pictures(self, batch: Batch, source: int) -> None:
        """Raises ShardError if a further picture has more pixels than its data set may, of which no manifest tells."""
        for picture in self._pictures:
            owners = batch.owners(picture.name)
            samples = batch.samples if owners is None else batch.samples[owners]
            sizes = batch.stored(picture.name).sizes
            refuse_large(self._datasets[source], samples, sizes, picture.name)

    def _with_pictures(self, batch: Batch, drawn: DrawnViews) -> Batch:
        """The samples, some of whose pictures change places or are left out, with the views of all.

        Args:
            batch: The samples.
            drawn: With the views of their images.
        """
        stored = batch
        for picture in self._pictures:
            name = picture.name
            if isinstance(picture, MovedList):
                if isinstance(drawn.views.get(picture.like), Ragged):
                    check_numbers(stored, name, picture.like)
                batch = chosen(batch, name, picture.choose)
            if picture.swapped_with:
                mirror = drawn.rows_of(picture.swapped_with)[0].crops.mirror
                batch = swapped(batch, name, picture.swapped_with, mirror)
            drawn = drawn.with_picture(picture, batch.sizes(name))
        return replace(batch, views=drawn.views)

    def disk_s(self) -> float:
        """Total busy time of the read-ahead threads so far, in seconds."""
        return sum((reader.ahead.busy_s for reader in self._readers), 0.0)

    def download_s(self) -> float:
        """Seconds that reading has waited for downloads so far."""
        return sum((reader.download_s for reader in self._readers), 0.0)

    def check(self, look: bool = False) -> None:
        """As `Reader.check`."""
        for reader in self._readers:
            reader.check(look)

    def interrupt(self) -> None:
        """As `Reader.interrupt`."""
        for reader in self._readers:
            reader.interrupt()

    def close(self) -> None:
        """Stops the reading threads and releases the shards; batches already returned stay valid."""
        for reader in self._readers:
            reader.close()


def _placed(drawn: Batch, stop: int, bucket: int | None = None) -> Batch:
    """The samples as a part of the global batch that ends at a position of the stream."""
    return replace(drawn, stop=stop, bucket=bucket)


def _merge_passes(drawn: Sequence[Batch], rows: Sequence[I64]) -> Batch:
    """Joins samples of several passes; those of each go to its rows. Usually there is one, and nothing is copied."""
    return drawn[0] if len(drawn) == 1 else merge(drawn, rows)


def check_space(
    datasets: Sequence[Dataset], window: int, batch_size: int, lanes: int = 1
) -> None:
    """Raises ArgumentError if the shards in use at a time do not fit into the cache of a remote set.

    Args:
        datasets: Those that the loader reads.
        window: Shards that are in use at a time, of each lane.
        batch_size: Samples in a batch of this rank.
        lanes: The number of lanes that this node reads.
    """
    for dataset in datasets:
        if dataset.cache is not None:
            sizes = sorted(
                (shard.bytes for shard in dataset.manifest.shards), reverse=True
            )
            # Two windows, and the shards read at once, the first of which may begin with its last sample.
            samples = (batch_size + _READ_AT_ONCE) * len(dataset.shard_paths)
            spanned = -(-samples // max(1, int(dataset.first_samples[-1])))
            windows = f"two windows of {counted(window, 'shard')}" + (
                f" in each of {lanes} lanes" if lanes > 1 else ""
            )
            dataset.cache.require(
                sum(sizes[: 2 * window * lanes + spanned]), windows, window > 1
            )


def read_alone(
    open_reader: Callable[[], BatchReader], augments: Sequence[Augment], position: int
) -> Batch:
    """The sample at a position of the stream, which replaces undecodable ones.

    This is rare and may happen in any thread, so it uses a separate reader.
    """
    with closing(open_reader()) as reader:
        (batch,) = reader.read([Part(position, position + 1, position)], augments)
    return batch


class BucketedReader(BatchReader):
    """Reads any part of a stream divided by buckets. Parts must be read in ascending order.

    Args:
        plan: The buckets.
        epochs: Of the loader, with the buckets.
        datasets: As of `BatchReader`.
        make_stream: As of `BatchReader`.
        wanted: As of `BatchReader`.
        add_fields: As of `BatchReader`.
    """

    def __init__(
        self,
        plan: BucketPlan,
        epochs: Epochs,
        datasets: tuple[Dataset, ...],
        make_stream: Callable[[], Stream],
        wanted: WantedFields,
        add_fields: AddFields = lambda batch: batch,
    ) -> None:
        super().__init__(datasets, make_stream, wanted, add_fields)
        self._bucketed = BucketedStream(self._stream, plan, epochs)
        self._output_sizes = plan.sizes
        # Of each data set, the pass and the window that is read.
        self._fronts: dict[int, tuple[int, int]] = {}
        # One sample each, by its position in the stream.
        self._held: dict[int, Batch] = {}
        self._position = 0
        self._holds = False
        self._is_first = False
        self._sized: tuple[Sequence[Augment], dict[int, tuple[Augment, ...]]] = ((), {})

    def begin(self) -> bool:
        if not (is_usable := super().begin()):
            self._held = {}
        self._holds = True
        self._is_first = True
        return is_usable

    def _is_downloaded(self, part: Part) -> bool:
        return False  # its windows are unknown before it is drawn

    def _read(
        self, parts: Sequence[Part], augments: Sequence[Augment]
    ) -> Iterator[Batch]:
        return (self._read_part(part, augments) for part in parts)

    def _read_part(self, part: Part, augments: Sequence[Augment]) -> Batch:
        has_samples = part.first < part.last
        batch = self._bucketed.batch_at(part.first if has_samples else part.stop - 1)
        members = batch.members[part.first - batch.start : part.last - batch.start]
        if part.first < self._position:
            self._fronts = {}
        self._position = part.first
        sized = self._sized_augments(augments, batch.bucket)
        # Even an empty part needs a window.
        guides = members if len(members) else batch.members[-1:]
        passes = []
        rows = []
        for source in np.unique(guides["source"]).tolist():
            self._advance(source, guides[guides["source"] == source])
            of_source = np.flatnonzero(members["source"] == source)
            epochs = members["epoch"][of_source]
            for epoch in np.unique(epochs).tolist() or [0]:
                of_pass = of_source[epochs == epoch]
                passes.append(
                    self._draw_members(source, epoch, members[of_pass], sized)
                )
                rows.append(of_pass)
        return _placed(_merge_passes(passes, rows), part.stop, batch.bucket)

    def _sized_augments(
        self, augments: Sequence[Augment], bucket: int
    ) -> tuple[Augment, ...]:
        """The augmentations with the output size of a bucket, which are kept until others are given."""
        if not self._output_sizes:  # images have their own
            return tuple(augments)
        if self._sized[0] is not augments:
            self._sized = augments, {}
        by_bucket = self._sized[1]
        if bucket not in by_bucket:
            size = self._output_sizes[bucket]
            by_bucket[bucket] = tuple(augment.for_size(size) for augment in augments)
        return by_bucket[bucket]

    def _draw_members(
        self, source: int, epoch: int, members: Members, augments: Sequence[Augment]
    ) -> Batch:
        """Samples of one pass with their draws."""
        seed, _ = self._bucketed.stream.order(source, epoch)
        batch = self._gather(source, members)
        repeats = members["repeat"].astype(np.int64)
        return self._draw(batch, augments, _Pass(source, seed, epoch), repeats)

    def _gather(self, source: int, members: Members) -> Batch:
        """Samples from the window, or else from the copies."""
        is_here = self._is_here(source, members)
        here = np.flatnonzero(is_here)
        copied = np.flatnonzero(~is_here)
        batch = self._readers[source].gather(members["sample"][here])
        if not len(copied):
            return batch
        self._hold(source, members[copied])
        copies = [
            self._held.pop(position)
            for position in members["position"][copied].tolist()
        ]
        merged: Batch = merge([batch, *copies], [here, *copied[:, None]])
        return merged

    def _is_here(self, source: int, members: Members) -> Bools:
        """bool (n,): whether samples are in the current window."""
        epoch, window = self._fronts[source]
        starts = self._bucketed.stream.order(source, epoch)[1].window_starts
        return before(members, epoch, starts[window + 1]) & ~before(
            members, epoch, starts[window]
        )

    def _advance(self, source: int, members: Members) -> None:
        """Moves to the window of a batch's last sample, and copies samples that are needed later."""
        epoch = int(members["epoch"][-1])
        place = int(members["place"][-1])
        order = self._bucketed.stream.order(source, epoch)[1]
        front = epoch, order.window_at(place)
        if front > self._fronts.get(source, (-1, -1)):
            if self._holds:
                self._hold_waiting(source, epoch, int(order.window_starts[front[1]]))
            self._fronts[source] = front
        epoch, window = self._fronts[source]
        self._readers[source].enter(
            self._bucketed.stream.order(source, epoch)[1], window, window
        )

    def _hold_waiting(self, source: int, epoch: int, place: int) -> None:
        """Copies the samples before a place in a pass that are needed later."""
        waiting = self._bucketed.waiting()
        if self._is_first:  # not reached by an earlier loop
            wanted = set(waiting["position"].tolist())
            self._held = {
                position: sample
                for position, sample in self._held.items()
                if position in wanted
            }
            self._is_first = False
        of_source = waiting[waiting["source"] == source]
        self._hold(source, of_source[before(of_source, epoch, place)])

    def _hold(self, source: int, members: Members) -> None:
        """Copies the samples that are not copied yet."""
        positions = members["position"].tolist()
        new = [
            row for row, position in enumerate(positions) if position not in self._held
        ]
        if new:
            copies = self._readers[source].copy(members["sample"][new])
            self._held.update(zip((positions[row] for row in new), copies, strict=True))
