"""`DaliIterator`: every sample once, the same for any ranks, batches and threads, and after any stop."""

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loaders import DECODER, drain, load, skip_without_dali, world
from PIL import Image

import gpuload
from gpuload.order.epoch import EpochOrder


@pytest.fixture(scope="module", params=["dali", "native"], autouse=True)
def each_decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is of both decoders."""
    skip_without_dali(request.param)
    DECODER["decoder"] = request.param
    yield
    DECODER["decoder"] = "auto"


@pytest.fixture(scope="module")
def epochs(packed: Path, each_decoder: None) -> list[list[tuple[int, bytes]]]:
    """Three epochs, whole, by one process."""
    with load(packed, 8, drop_last=False, shuffle=gpuload.Shuffle(window=3)) as loader:
        return [drain([loader]) for _ in range(3)]


def test_an_epoch_holds_every_sample_once_in_the_order_of_the_order(packed: Path, epochs: Any) -> None:
    dataset = gpuload.Dataset(packed)
    for epoch, rows in enumerate(epochs):
        order = EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=3)
        assert [sample for sample, _ in rows] == order[:].tolist()
    assert epochs[0] != epochs[1] != epochs[2]


def test_images_labels_and_keys_belong_together(packed: Path, photos: Path) -> None:
    dataset = gpuload.Dataset(packed)
    augment = gpuload.Augment(16, crop="none", dtype="uint8")
    fields = ("label", "key", "index", "image")
    loader, expected = load(packed, 10, augment=augment, fields=fields, drop_last=False), {}
    for path in photos.rglob("*.jpg"):
        expected[path.stem] = np.asarray(Image.open(path).resize((16, 16), Image.Resampling.BILINEAR)), path.parent.name
    for labels, keys, index, images in loader:
        assert labels.dtype == index.dtype == torch.int64
        assert labels.tolist() == dataset.labels[index].tolist() and keys == dataset.keys(index)
        for label, key, image in zip(labels, keys, images, strict=True):
            pixels, name = expected.pop(key.split("-")[1])
            # The decoders differ a little (IDCT, chroma); another image differs by 40 and more.
            assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - pixels).mean() < 3
            assert dataset.classes[label] == name
    assert not expected


def test_sets_smaller_than_the_world(packed: Path) -> None:
    samples, own = 2, [40, 41]
    few = gpuload.Dataset(packed).subset(own)
    for batch_size in (1, 8):
        loaders = world(few, 4, batch_size, drop_last=False)
        assert [len(loader.sampler) for loader in loaders] == [1] * 4  # rounded up
        for _ in range(2):
            (parts,) = zip(*loaders, strict=True)
            assert [loader.padding for loader in loaders] == [int(rank >= samples) for rank in range(4)]
            assert sorted(int(index[0]) for index, *_ in parts[:samples]) == own
            assert {int(index[0]) for index, *_ in parts} == set(own)
        assert sorted(sample for sample, _ in drain(world(few, 4, batch_size, drop_last="exact"))) == own


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_resumed_run_sees_exactly_the_rest(packed: Path, epochs: Any, data: st.DataObject) -> None:
    size, batch_size = data.draw(st.integers(1, 3), "ranks before"), data.draw(st.integers(1, 20), "batch before")
    loaders = world(packed, size, batch_size, drop_last=False, shuffle=gpuload.Shuffle(window=3))
    epoch = data.draw(st.integers(0, 1), "epoch")
    for _ in range(epoch):
        drain(loaders)
    steps = data.draw(st.one_of(st.sampled_from([0, 1, len(loaders[0]) - 1, len(loaders[0])]), st.integers(0, 97)))
    steps = min(steps, len(loaders[0]))
    for _, *_ in zip(range(steps), *loaders, strict=False):
        pass
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert all(state == states[0] for state in states)
    done = states[0]["samples"]
    least = 0 if steps < len(loaders[0]) - 1 else size - 1  # the batch before the last may give some up to it
    assert min(steps * size * batch_size, 97) - done in range(least + 1) and states[0]["epoch"] == epoch

    size, batch_size = data.draw(st.integers(1, 3), "ranks after"), data.draw(st.integers(1, 20), "batch after")
    loaders = world(packed, size, batch_size, drop_last=False, shuffle=gpuload.Shuffle(window=3))
    for loader in loaders:
        loader.load_state_dict(states[0])
        loader.set_epoch(epoch)  # as training loops do; it must not go back to the epoch's start
    assert drain(loaders) == epochs[epoch][done:]
    assert drain(loaders) == epochs[epoch + 1]


def test_a_sampler_only_moves_forward(packed: Path, epochs: Any) -> None:
    """As training loops call it that count epochs of their own. The loader itself goes anywhere."""
    options: dict[str, Any] = {"drop_last": False, "shuffle": gpuload.Shuffle(window=3)}
    loader = load(packed, 8, **options)
    for epoch in range(2):
        loader.sampler.set_epoch(0)
        assert drain([loader]) == epochs[epoch]
    stopped = load(packed, 8, **options)
    stopped.sampler.set_epoch(1)
    drain([stopped], 5)
    loader.load_state_dict(stopped.state_dict())
    for epoch in (0, 1, 2):
        loader.sampler.set_epoch(epoch)  # it does not leave the position that was loaded
    assert drain([loader]) == epochs[1][40:]
    assert drain([loader]) == epochs[2]
    loader.set_epoch(1)
    loader.sampler.set_epoch(2)
    assert drain([loader]) == epochs[2]
    with pytest.raises(gpuload.ArgumentError, match=r"DaliIterator.sampler.set_epoch\(epoch=-1\): expected a whole"):
        loader.sampler.set_epoch(-1)


def reading_threads() -> set[threading.Thread]:
    """Those of loaders that other tests have left may end at any time."""
    gc.collect()
    return {thread for thread in threading.enumerate() if thread.name == "gpuload-read-ahead"}


def test_a_loop_starts_with_its_first_batch(packed: Path, epochs: Any) -> None:
    before = reading_threads()
    loader = load(packed, 8, drop_last=False, shuffle=gpuload.Shuffle(window=3), prefetch=6)
    unused = [iter(loader) for _ in range(3)]
    assert loader.state_dict()["epoch"] == 0
    late = iter(loader)
    loader.set_epoch(2)
    assert [int(i) for i in next(late)[0]] == [sample for sample, _ in epochs[2][:8]]
    assert loader.state_dict()["samples"] == 8  # not those decoded ahead
    assert len(reading_threads() - before) == 1
    loader.set_epoch(0)
    assert drain([loader]) == epochs[0]
    with pytest.raises(gpuload.GpuloadError, match="ended by a later one.*construct two"):
        next(late)
    loader.close()
    assert not reading_threads() - before
    with pytest.raises(gpuload.GpuloadError, match="is closed; construct a new one"):
        next(unused[0])


def test_repr_shows_what_was_chosen(packed: Path) -> None:
    assert repr(load(packed)) == (
        f"DaliIterator('{packed}': 97 samples, 12 batches of 8 (1 left out of each epoch), rank 0 of 1, on cpu by {DECODER['decoder']} with 1 thread)"
    )
    for batch_size, drop_last, batches in ((8, False, "13 batches of 8"), (97, True, "1 batch of 97")):
        assert f"97 samples, {batches}, rank 0 of 1" in repr(load(packed, batch_size, drop_last=drop_last))


def test_a_function_does_not_change_the_decoder_that_was_asked_for(packed: Path) -> None:
    augment = gpuload.Augment(12, dtype="uint8", transforms=[gpuload.transforms.Function(lambda sample, rng: sample)])
    with load(packed, augment=augment) as loader, load(packed, augment=augment, decoder="auto") as other:
        assert (loader.decoder, other.decoder) == (DECODER["decoder"], "native")


def test_ranks_come_from_torch_distributed(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # what torch.distributed knows comes first
    monkeypatch.setenv("WORLD_SIZE", "4")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert (load(packed).ranks.rank, load(packed).ranks.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
