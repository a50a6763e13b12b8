"""What a reader gives: the stored bytes of each sample, whichever shards, passes and data sets a batch comes from."""

import ctypes
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load

import gpuload
from gpuload import Augment
from gpuload.augment import View
from gpuload.augment.pictures import MovedMask
from gpuload.draws import BATCH, each_key, make_key
from gpuload.order.epoch import EpochOrder
from gpuload.order.sampling import find_samplings
from gpuload.order.stream import Part, Stream
from gpuload.read import reader as read
from gpuload.read.batch import Batch, MemberViews, StoredPictures
from gpuload.read.batches import BatchReader, WantedFields
from gpuload.read.reader import Reader
from gpuload.store import FolderStore

AUGMENTS = [Augment(8), Augment((5, 9), vertical_flip=0.5)]


def datasets_of(data: Any) -> tuple[gpuload.Dataset, ...]:
    return data.datasets if isinstance(data, gpuload.Mixture) else (data,)


def make(data: Any, weights: Any = None) -> tuple[BatchReader, Stream]:
    datasets = datasets_of(data)
    samplings = find_samplings(datasets, None if weights is None else gpuload.Weights(weights), shuffle=True)
    stream = Stream(data, samplings, seed=5, window=2, shuffle=True)
    masks = (MovedMask("mask", "image", 0),)
    wanted = WantedFields(("label", "key", "boxes"), ("features",), masks, decodes=True)
    return BatchReader(datasets, lambda: stream, wanted), stream


def rows_of(batch: Batch) -> list[Any]:
    """All that is told of each sample: its number, image, size, columns, members, data set, key and crops."""
    assert len(batch) == len(batch.samples) == len(batch.sources) == len(batch.keys)
    assert list(batch.pictures) == list(batch.views) == ["image", "mask"]
    images, masks = (files_of(pictures) for pictures in batch.pictures.values())
    assert batch.bytes == sum(map(len, images)) + sum(map(len, masks))
    crops, *others = ([crops_of(views, row) for row in range(len(batch))] for views in batch.views.values())
    assert others == [crops]
    columns = [batch.columns[name].tolist() for name in ("label", "key", "boxes")]
    features = [member.tobytes() for member in batch.members["features"]]
    samples, sources, keys = batch.samples.tolist(), batch.sources.tolist(), batch.keys.tolist()
    sizes = batch.image.widths.tolist(), batch.image.heights.tolist()
    assert batch.pictures["mask"].sizes.tolist() == batch.image.sizes.tolist()
    return list(zip(samples, images, *sizes, *columns, features, masks, sources, keys, crops, strict=True))


def files_of(pictures: StoredPictures) -> list[bytes]:
    """The bytes of each, by all ways that lead to them."""
    files = [file.tobytes() for file in pictures.contents]
    assert not any(
        file.flags.writeable for file in pictures.contents
    )  # it would write to the shard, or end the process
    assert [pictures.contents[row].tobytes() for row in range(len(pictures))] == files
    assert [ctypes.string_at(*span) for span in pictures.spans.tolist()] == files
    assert pictures.bytes == sum(map(len, files)) and not pictures.raw.any()
    return files


def crops_of(views: tuple[View, ...], row: int) -> list[Any]:
    return [[part[row].tolist() for part in view.crops[:6]] for view in views]


def single_rows(reader: BatchReader, count: int) -> list[Any]:
    """The first rows of the stream, each read by itself."""
    return [rows_of(next(reader.read([Part(at, at + 1, at)], AUGMENTS)))[0] for at in range(count)]


@pytest.fixture(params=["one", "mixed", "weighted"])
def source(request: pytest.FixtureRequest, dataset: gpuload.Dataset) -> tuple[Any, Any]:
    """Data and weights: one set, two that are mixed, and one whose samples come more than once in a pass."""
    halves = [(dataset.subset(range(6)), 2), (dataset.subset(range(4, 11)), 1)]
    found = {"one": (dataset, None), "mixed": (gpuload.mix(halves), None), "weighted": (dataset, np.arange(11.0))}
    return found[request.param]


def test_a_batch_holds_what_is_stored(source: Any, dataset: gpuload.Dataset) -> None:
    """Over the ends of three passes, sample by sample: against the disk, and against the order."""
    reader, stream = make(*source)
    rows = single_rows(reader, 40)
    stored = [row for shard in range(3) for row in dataset.rows(shard).to_pylist()]
    for at, (sample, image, width, height, label, key, boxes, features, mask, number, random, crops) in enumerate(rows):
        (part,) = stream.slices(at, at + 1)
        expected = datasets_of(source[0])[part.source].stored_samples(part.order[part.start : part.stop])
        assert (sample, number) == (int(expected[0]), part.source)
        row, shard = stored[sample], dataset.shard_paths[sample // 4].read_bytes()
        names = ("width", "height", "label", "key", "boxes")
        assert [width, height, label, key, boxes] == [row[name] for name in names]
        for name, found in (("image", image), ("features", features), ("mask", mask)):
            assert found == shard[row[f"{name}_offset"] : row[f"{name}_offset"] + row[f"{name}_bytes"]]
        repeats = part.order.repeats(part.start, part.stop)
        assert random == int(np.ravel(each_key(make_key(part.seed, part.epoch, BATCH), repeats))[0])
        sizes = np.array([[width], [height]], np.int32)
        for view, augment in enumerate(AUGMENTS):
            drawn = augment.draw(part.seed, part.epoch, expected, *sizes, view, repeats).crops
            assert crops[view] == [one[0].tolist() for one in drawn[:6]]
    if source[1] is not None:
        assert len({row[0] for row in rows[:11]}) < 11  # some came more than once
    reader.close()


def test_samples_of_a_batch_are_taken_with_all_that_is_theirs(source: Any) -> None:
    """In any order, and more than once; from a part of what was read at once, and from one that was merged."""
    reader, _ = make(*source)
    for batch in reader.read([Part(2, 9, 9), Part(9, 20, 20)], AUGMENTS):
        whole = replace(batch, bucket=3, fields={"p": list(range(len(batch))), "q": {"r": np.arange(len(batch))}})
        wanted = np.array([3, 0, 3, len(batch) - 1])
        taken, rows = whole.take(wanted), rows_of(batch)
        assert rows_of(taken) == [rows[row] for row in wanted]
        assert (taken.stop, taken.read_s, taken.bucket) == (batch.stop, batch.read_s, 3)
        assert taken.fields["p"] == taken.fields["q"]["r"].tolist() == wanted.tolist()
        assert taken.draws(0).tolist() == batch.draws(0)[wanted].tolist()
    reader.close()


def test_batches_are_parts_of_the_stream(source: Any) -> None:
    """Read together or apart, adjoining or not, over the ends of windows, passes and shards."""
    reader, _ = make(*source)
    rows = single_rows(reader, 60)
    for parts in (
        [(0, 60, 60)],
        [(0, 7, 7), (7, 19, 19), (19, 20, 21)],
        [(3, 5, 8), (8, 20, 20), (20, 31, 32), (40, 41, 50), (41, 60, 60)],
        [(12, 12, 13), (12, 30, 30)],
    ):
        again, _ = make(*source)
        batches = list(again.batches((Part(*part) for part in parts), AUGMENTS))
        assert [batch.stop for batch in batches] == [stop for _, _, stop in parts]
        for batch, (first, last, _) in zip(batches, parts, strict=True):
            assert rows_of(batch) == rows[first:last] and batch.read_s > 0
        again.close()
    reader.close()
    assert reader.disk_s() > 0


def test_some_batches_are_read_at_a_time(dataset: gpuload.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = make(dataset)
    (alone,) = reader.read([Part(0, 4, 4)], AUGMENTS)
    assert isinstance(alone.image.contents, MemberViews)  # out of one pass, so that nothing is copied
    asked: list[int] = []

    def parts() -> Any:
        for first in range(0, 50, 4):
            asked.append(first)
            yield Part(first, min(first + 4, 50), first + 8)  # another rank has as many

    for enough in (9, 12):
        monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", enough)
        assert next(reader.batches(parts(), AUGMENTS)).stop == 8 and asked == [0, 4, 8]
        asked.clear()
    batches = reader.batches(parts(), AUGMENTS)
    assert asked == []
    first = next(batches)
    assert asked == [0, 4, 8] and len(first) == 4 and first.stop == 8
    assert [batch.stop for batch in (next(batches), next(batches))] == [12, 16] and len(asked) == 3
    assert next(batches).stop == 20 and len(asked) == 6
    assert [len(batch) for batch in batches] == [4] * 8 + [2]
    assert list(reader.batches(iter([]), AUGMENTS)) == []
    reader.close()


class NotedStore(FolderStore):
    """Of the calls of a reader, the last plan and how many there were of others."""

    planned: list[int]
    begun = closed = 0

    def begin(self) -> None:
        self.begun += 1

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        self.planned = [int(number) for number in numbers]

    def close(self) -> None:
        self.closed += 1


def test_a_store_is_told_what_will_be_needed(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, sizes = NotedStore(gpuload.Dataset(packed).shard_paths), gpuload.Dataset(packed).shard_sizes  # type: ignore[arg-type]
    monkeypatch.setattr(gpuload.Dataset, "open_store", lambda dataset, trusts: store)
    with load(packed, drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        assert [sum(1 for _ in loader) for _ in range(2)] == [13, 13]
    # The 97 samples of an epoch are read at once: all of its shards were planned, and those of the next.
    orders = [EpochOrder(sizes, seed=0, epoch=epoch, window=3) for epoch in (1, 2)]
    assert store.planned == [shard for order in orders for window in range(4) for shard in order.window_shards(window)]
    assert (store.begun, store.closed) == (2, 1)


def test_shards_of_two_windows_are_mapped(packed: Path) -> None:
    """Those that are read, and those of the next window, which are read ahead; in whichever window a batch begins."""
    dataset = gpuload.Dataset(packed)
    order = EpochOrder(dataset.shard_sizes, seed=1, epoch=0, window=2)
    starts = order.window_starts.tolist()
    windows = [order.window_shards(number).tolist() for number in range(5)]
    reader = Reader(dataset, ("key",))
    mapped: dict[int, Any] = {}
    for first, last, expected in (
        (0, 5, windows[0] + windows[1]),
        (starts[1] - 1, starts[1], windows[0] + windows[1]),
        (starts[1] - 1, starts[1] + 1, windows[0] + windows[1] + windows[2]),
        (starts[1] + 1, starts[2], windows[1] + windows[2]),
        (starts[3], starts[3], windows[3] + windows[4]),
        (starts[4], starts[5], windows[4]),
    ):
        jobs = dict(reader.ahead._jobs)
        batch = reader.read(order, first, last)
        assert batch.samples.tolist() == order[first:last].tolist()
        assert batch.columns["key"].to_pylist() == dataset.keys(batch.samples)
        found, ahead = reader._window.shards, reader.ahead._jobs
        assert sorted(found) == sorted(expected) and [shard.number for shard in ahead] == expected  # read in this order
        entered = windows[order.window_at(first) : order.window_at(max(first, last - 1)) + 1]
        assert reader._needed == [shard for window in entered for shard in window]  # the others are not waited for
        assert all(job.wanted == (shard in ahead) for shard, job in jobs.items())  # others are cancelled
        assert all(found[number] is mapped[number] for number in found.keys() & mapped.keys())  # mapped once
        mapped = dict(found)
    assert len(reader.read(order, 97, 97)) == 0
    reader.close()
    assert reader._window.shards == {} and len(reader.read(order, 0, 3)) == 3
    reader.close()


@pytest.mark.parametrize("notice", ["read", "check"])
def test_after_an_error_every_shard_is_mapped_again(
    packed: Path, tmp_path: Path, notice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next loop: what is mapped of a shard that could not be read may hold zeros."""
    monkeypatch.setattr("gpuload.read.reader._LOOK_S", -1)
    dataset = gpuload.Dataset(shutil.copytree(packed, tmp_path / "train"))
    order = EpochOrder(dataset.shard_sizes, seed=1, epoch=0, window=5)
    reader = Reader(dataset)
    expected = [image.tobytes() for image in reader.read(order, 0, 5).image.contents]
    mapped = dict(reader._window.shards)
    reader.begin()
    assert len(reader.read(order, 0, 5)) == 5 and reader._window.shards == mapped
    shard = dataset.shard_paths[order.window_shards(1)[0]]
    whole = shard.read_bytes()
    os.truncate(shard, 4096)
    # A page that is touched before the sizes are compared tells of it first.
    truncated = "is 4,096 bytes, manifest.json says|was truncated to 4,096 bytes while"
    reader._window.shards[int(order.window_shards(1)[0])].data[-1].item()  # as a decoder would, which gets a zero
    describe, others = read._describe, list[BaseException | None]()

    def describe_late(path: Path, at: int) -> str:  # another thread looks meanwhile
        with ThreadPoolExecutor() as threads:
            monkeypatch.setattr(read, "_describe", describe)
            others.append(threads.submit(reader.check).exception())
        return describe(path, at)

    monkeypatch.setattr(read, "_describe", describe_late)
    for look in (True, False):
        with pytest.raises(gpuload.ShardError, match=truncated):
            reader.read(order, 0, 5) if notice == "read" else reader.check(look)
    assert [type(error) for error in others] == [gpuload.ShardError]
    shard.write_bytes(whole)
    reader.begin()
    assert [image.tobytes() for image in reader.read(order, 0, 5).image.contents] == expected
    assert all(one is not mapped[number] for number, one in reader._window.shards.items())
    mapped = dict(reader._window.shards)
    reader.begin()
    reader.read(order, 0, 5)
    assert reader._window.shards == mapped
    reader.close()
