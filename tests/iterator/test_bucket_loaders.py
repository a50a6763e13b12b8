"""Loaders with buckets: one size a batch, the same samples for any ranks, decoder and resume, none lost."""

import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_sets import AUGMENT, COUNT, SHAPES, SIZES, Step, all_samples, load, make_samples, steps, world
from damaged import damage

import gpuload
from gpuload import ArgumentError, Augment, Buckets, StateError
from gpuload.read.reader import Reader


def in_sizes(sizes: Any) -> Augment:
    return replace(AUGMENT, size=Buckets(sizes))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buckets")
    gpuload.pack(make_samples(), folder, workers=1, maxcount=7, shuffle=False)
    return folder / "train"


@pytest.fixture(scope="module")
def three_epochs(packed: Path) -> list[Step]:
    loader = load(packed)
    assert len(loader) == 12
    return steps([loader], epochs=3)


def test_each_batch_is_of_one_bucket_and_its_samples_belong_there(packed: Path, three_epochs: list[Step]) -> None:
    texts = {int(i): text for index, text in load(packed, fields=("index", "text"), drop_last=False)
             for i, text in zip(index, text, strict=True)}  # fmt: skip
    assert all(texts[sample] == str(bucket) for bucket, samples, _ in three_epochs for sample in samples)
    assert {bucket for bucket, _, _ in three_epochs} == {0, 1, 2, 3}
    assert all(len(samples) == 12 for _, samples, _ in three_epochs)


def test_what_is_left_comes_in_the_next_epoch(packed: Path) -> None:
    """13 epochs of 144 samples are 12.48 passes, of which at most 4 × 11 samples wait."""
    counts = Counter(all_samples(steps([load(packed)], epochs=13)))
    assert set(counts) == set(range(COUNT)) and set(counts.values()) <= {10, 11, 12, 13}
    assert sum(counts.values()) == 13 * 144 and sum(count >= 12 for count in counts.values()) > 150 - 44


def test_masks_and_views(tmp_path: Path) -> None:
    samples = list(make_samples())
    for number, sample in enumerate(samples):
        sample["mask"] = np.full(SHAPES[int(sample["text"])][::-1], number % 200, np.uint8)
    gpuload.pack(samples, tmp_path, workers=1, maxcount=20)
    views = [AUGMENT, replace(AUGMENT, crop="center_cover", flip=1)]
    loader = load(tmp_path / "train", augment=views, fields=("image", "mask", "bucket", "crop_top_left"))
    for images, masks, bucket, places in loader:
        size = SIZES[int(bucket[0])]
        assert [tuple(view.shape[-2:]) for view in (*images, *masks)] == [size] * 4
        assert all(bool((mask == mask[:, :1, :1]).all()) for mask in masks)
        assert all(place.tolist() == [[0, 0]] * 12 for place in places)  # each image has the shape of its bucket


def test_a_rare_bucket_holds_few_samples_in_memory(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that wait are copied once each, and only those of this rank."""
    copied: list[int] = []
    real = Reader.copy
    monkeypatch.setattr(Reader, "copy", lambda self, samples: copied.extend(samples.tolist()) or real(self, samples))  # type: ignore[func-returns-value]
    loaders = world(packed, 2, 6)
    expected = steps(loaders, epochs=4)
    assert 0 < len(copied) < len(all_samples(expected)) * 0.8
    for loader in loaders:
        assert len(loader._pipeline.reader._held) <= 4 * 6  # type: ignore[attr-defined]
        loader.set_epoch(0)
    copied.clear()
    assert steps(loaders) == expected[:12] and 0 < len(copied) < 144 * 0.8  # also where an earlier epoch is read again


def test_a_batch_that_failed_is_read_again(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its samples of earlier windows, whose copies were dropped with all that was mapped in that loop."""
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    loader, found, failed = load(shutil.copytree(packed, tmp_path / "train")), list[list[int]](), 0
    for shard in (tmp_path / "train").glob("*.tar"):
        shard.unlink()
    while len(found) < 12:
        try:
            for _, index, *_ in loader:
                found.append(index.tolist())
        except gpuload.ShardError as error:
            (name,) = re.findall(r"shard-\d+\.tar", str(error))
            shutil.copy(packed / name, tmp_path / "train")
            loader.load_state_dict(loader.state_dict())  # goes on where it was
            failed += 1
    assert failed > 10 and found == [samples for _, samples, _ in steps([load(packed)])]


def test_checksums_are_compared_of_shards_that_are_only_looked_up(packed: Path) -> None:
    loader = load(gpuload.Dataset(packed, verify="sha256"))
    steps([loader], epochs=2)
    resumed = load(gpuload.Dataset(packed, verify="sha256"))
    resumed.load_state_dict(loader.state_dict())
    assert steps([resumed]) == steps([load(packed)], epochs=3)[24:]


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
def test_samples_that_do_not_decode(packed: Path, tmp_path: Path, on_corrupt: str, decoder: str) -> None:
    folder = damage(packed, tmp_path / "train", [40])
    options = {"decoder": decoder, "on_corrupt": gpuload.OnCorrupt(on_corrupt, most=9), "drop_last": False}  # type: ignore[arg-type]
    with load(folder, 1, **options) as loader:  # batches of one: another bucket's sample may take its place
        found = [(tuple(images.shape[2:]), int(bucket[0])) for images, _, bucket, *_ in loader]
        assert len(found) == COUNT and all(SIZES[bucket] == size for size, bucket in found)
        assert loader.report().corrupt == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"augment": [AUGMENT, Augment(16, dtype="uint8")]}, r"augment: Buckets differs"),
        ({"augment": Augment(16)}, "fields: 'bucket' is the number of a batch's bucket, and there are none"),
        ({"shuffle": gpuload.Shuffle(lanes=2)}, "Buckets, Repeated and Shuffle.*Use one of them"),
        ({"drop_last": False, "sampling": gpuload.Weights(np.ones(COUNT))}, "with a mixture or sampling= each epoch has other samples"),
        ({"batch_transforms": [gpuload.batchwise.CenterHole(12)], "fields": ("image",)}, "CenterHole"),
    ],
)  # fmt: skip
def test_what_is_refused(packed: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        load(packed, **options)


def test_states_of_other_buckets_and_batches_are_refused(packed: Path) -> None:
    state = load(packed).state_dict()
    others = [world(packed, 2, 12)[0], load(packed, augment=in_sizes(SIZES[::-1])), load(packed, drop_last=False)]
    plain = load(packed, augment=Augment(8), fields=("image",))
    cases = [*((loader, state) for loader in (*others, plain)), (load(packed), plain.state_dict())]
    cases.append((load(packed), {name: value for name, value in state.items() if name != "bucket_batch"}))
    for loader, made in cases:
        with pytest.raises(StateError, match="was made with (buckets|bucket_batch)=.*, this loader has"):
            loader.load_state_dict(made)
    load(packed, augment=in_sizes(tuple(SIZES))).load_state_dict(state)
