"""`DaliIterator`: every sample once, the same for any ranks, batches and threads, and after any stop."""

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loaders import DECODER, drain, load, world

import gpuload
from gpuload.installed import cuda_extra, install_command
from gpuload.order.epoch import EpochOrder


@pytest.fixture(scope="module", params=["dali", "native"], autouse=True)
def each_decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is of both decoders."""
    DECODER["decoder"] = request.param
    yield
    DECODER["decoder"] = "auto"


@pytest.fixture(scope="module")
def epochs(packed: Path, each_decoder: None) -> list[list[tuple[int, bytes]]]:
    """Three epochs, whole, by one process."""
    with load(packed, 8, drop_last=False, window=3) as loader:
        return [drain([loader]) for _ in range(3)]


def test_an_epoch_holds_every_sample_once_in_the_order_of_the_order(packed: Path, epochs: Any) -> None:
    dataset = gpuload.Dataset(packed)
    for epoch, rows in enumerate(epochs):
        order = EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=3)
        assert [sample for sample, _ in rows] == order[:].tolist()
    assert epochs[0] != epochs[1] != epochs[2]


def test_images_labels_and_keys_belong_together(packed: Path, photos: Path) -> None:
    from PIL import Image

    dataset = gpuload.Dataset(packed)
    augment = gpuload.Augment(16, crop="none", dtype="uint8")
    fields = ("label", "key", "index", "image")
    count = 0
    for labels, keys, index, images in load(packed, 10, augment=augment, fields=fields, drop_last=False):
        assert labels.dtype == index.dtype == torch.int64
        assert labels.tolist() == dataset.labels[index].tolist()
        assert keys == dataset.keys(index)
        for label, key, image in zip(labels, keys, images, strict=True):
            path = photos / dataset.classes[label] / f"{key.split('-')[1]}.jpg"
            expected = np.asarray(Image.open(path).resize((16, 16), Image.Resampling.BILINEAR))
            # The decoders differ a little (IDCT, chroma); another image differs by 40 and more.
            assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected).mean() < 3
            count += 1
    assert count == 97


@pytest.mark.parametrize(
    ("size", "batch_size", "options"),
    [
        (1, 5, {}),
        (1, 97, {}),
        (1, 200, {}),
        (2, 8, {}),
        (3, 4, {}),
        (5, 7, {"num_threads": 2}),
        (1, 8, {"prefetch": 5}),
    ],
)
def test_order_and_crops_do_not_depend_on_who_cuts_them(
    packed: Path, epochs: Any, size: int, batch_size: int, options: dict[str, Any]
) -> None:
    loaders = world(packed, size, batch_size, drop_last=False, window=3, **options)
    for rows in epochs[:2]:
        assert drain(loaders) == rows


def test_training_drops_the_rest_and_evaluation_does_not(packed: Path, epochs: Any) -> None:
    loader = load(packed, 8, window=3)
    assert len(loader) == 12
    assert [len(labels) for _, _, labels in loader] == [8] * 12
    loader.set_epoch(0)
    assert drain([loader]) == epochs[0][:96]

    plain = load(packed, 8, shuffle=False)
    assert len(plain) == 13
    assert [len(labels) for _, _, labels in plain] == [8] * 12 + [1]
    assert [sample for sample, _ in drain([plain])] == list(range(97))


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_evaluation_over_ranks_takes_equal_steps_and_each_sample_once(packed: Path, size: int) -> None:
    loaders = world(packed, size, 8, shuffle=False)
    steps = len(loaders[0])
    counts = [[(len(images), len(labels)) for _, images, labels in loader] for loader in loaders]
    assert [len(count) for count in counts] == [steps] * size
    assert all(images == labels for count in counts for images, labels in count)
    assert sum(labels for count in counts for _, labels in count) == 97
    for loader in loaders:
        loader.set_epoch(0)
    assert [sample for sample, _ in drain(loaders)] == list(range(97))


def test_a_rank_without_samples_gets_an_empty_batch(packed: Path) -> None:
    # 97 samples in global batches of 32 leave one, which is rank 0's.
    loader = load(packed, 8, rank=3, world_size=4, drop_last=False, augment=gpuload.Augment(12, dtype="bfloat16"))
    *_, (index, images, labels) = loader
    assert images.shape == (0, 3, 12, 12) and images.dtype == torch.bfloat16
    assert index.shape == labels.shape == (0,) and labels.dtype == torch.int64


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_sets_smaller_than_the_world(packed: Path, samples: int) -> None:
    few = gpuload.Dataset(packed).subset(range(40, 40 + samples))
    for batch_size in (1, 8):
        loaders = world(few, 4, batch_size, drop_last=False)
        assert [len(loader) for loader in loaders] == [1] * 4
        for _ in range(2):
            assert sorted(sample for sample, _ in drain(loaders)) == list(range(40, 40 + samples))
    with pytest.raises(gpuload.ArgumentError, match=r"batch_size 1 x world_size 4: is larger than .*drop_last=False"):
        load(few, 1, rank=0, world_size=4)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_resumed_run_sees_exactly_the_rest(packed: Path, epochs: Any, data: st.DataObject) -> None:
    size, batch_size = data.draw(st.integers(1, 3), "ranks before"), data.draw(st.integers(1, 20), "batch before")
    loaders = world(packed, size, batch_size, drop_last=False, window=3)
    epoch = data.draw(st.integers(0, 1), "epoch")
    for _ in range(epoch):
        drain(loaders)
    steps = data.draw(st.one_of(st.sampled_from([0, 1, len(loaders[0]) - 1, len(loaders[0])]), st.integers(0, 97)))
    steps = min(steps, len(loaders[0]))
    iterators = [iter(loader) for loader in loaders]
    for _ in range(steps):
        for iterator in iterators:
            next(iterator)
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert all(state == states[0] for state in states)
    done = min(steps * size * batch_size, 97)
    assert states[0]["samples"] == done and states[0]["epoch"] == epoch

    size, batch_size = data.draw(st.integers(1, 3), "ranks after"), data.draw(st.integers(1, 20), "batch after")
    loaders = world(packed, size, batch_size, drop_last=False, window=3)
    for loader in loaders:
        loader.load_state_dict(states[0])
        loader.set_epoch(epoch)  # as training loops do; it must not go back to the epoch's start
    assert drain(loaders) == epochs[epoch][done:]
    assert drain(loaders) == epochs[epoch + 1]


def test_the_state_after_an_epoch_is_the_next_ones_start(packed: Path, epochs: Any) -> None:
    loader = load(packed, 8, drop_last=False, window=3)
    drain([loader])
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    fresh = load(packed, 8, drop_last=False, window=3)
    fresh.load_state_dict(state)
    assert drain([fresh]) == epochs[1]


def test_the_state_counts_batches_handed_out_and_not_those_decoded_ahead(packed: Path) -> None:
    loader = load(packed, 8, prefetch=6)
    next(iter(loader))
    state = loader.state_dict()
    assert state["samples"] == 8
    assert len(json.dumps(state)) < 1000


def test_leaving_a_loop_early_starts_the_next_epoch(packed: Path, epochs: Any) -> None:
    loader = load(packed, 8, drop_last=False, window=3)
    assert drain([loader], steps=2) == epochs[0][:16]
    assert drain([loader], steps=1) == epochs[1][:8]
    assert drain([loader]) == epochs[2]
    loader.set_epoch(1)
    assert drain([loader]) == epochs[1]


def test_a_dataloader_may_fork_workers_after_a_dropped_loader(packed: Path) -> None:
    script = (
        "import gc, sys, torch, gpuload\n"
        "gc.disable()  # so that what is dropped is still there when workers are forked, and goes in them\n"
        "class Collects(torch.utils.data.Dataset):\n"
        "    __len__ = lambda self: 2\n"
        "    __getitem__ = lambda self, number: gc.collect() * 0 + number\n"
        "def use():\n"
        "    loader = gpuload.DaliIterator(\n"
        "        sys.argv[1], 8, augment=gpuload.Augment(12), device='cpu', decoder=sys.argv[2]\n"
        "    )\n"
        "    next(iter(loader))\n"
        "    list(loader)\n"
        "use()\n"
        "batches = torch.utils.data.DataLoader(Collects(), num_workers=1, timeout=20, multiprocessing_context='fork')\n"
        "print([int(number) for number in batches])\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(packed), DECODER["decoder"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 1]\n", done.stderr


def test_a_loop_that_counts_batches_leaves_the_next_epoch_whole(packed: Path, epochs: Any) -> None:
    loader = load(packed, 8, drop_last=False, window=3)
    for rows in epochs:  # never asked for a batch after the last: as Lightning does
        batches = zip(range(len(loader)), loader, strict=False)
        assert [int(i) for _, (index, _, _) in batches for i in index] == [sample for sample, _ in rows]


def test_a_loop_starts_with_its_first_batch(packed: Path, epochs: Any) -> None:
    loader = load(packed, 8, drop_last=False, window=3)
    unused = [iter(loader) for _ in range(3)]
    assert loader.state_dict()["epoch"] == 0
    late = iter(loader)
    loader.set_epoch(2)
    assert [int(i) for i in next(late)[0]] == [sample for sample, _ in epochs[2][:8]]
    loader.set_epoch(0)
    assert drain([loader]) == epochs[0]
    loader.close()
    with pytest.raises(gpuload.GpuloadError, match="is closed; construct a new one"):
        next(unused[0])


def test_an_old_loop_does_not_go_on_beside_a_new_one(packed: Path) -> None:
    loader = load(packed)
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(gpuload.GpuloadError, match="ended by a later one.*construct two"):
        next(old)


def test_two_loaders_over_one_dataset(packed: Path, epochs: Any) -> None:
    dataset = gpuload.Dataset(packed)
    first, second = (load(dataset, 8, drop_last=False, window=3) for _ in range(2))  # type: ignore[arg-type]
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) == 13
    assert all(torch.equal(a[1], b[1]) for a, b in pairs)


def test_batches_that_are_kept_do_not_change(packed: Path) -> None:
    loader = load(packed, 8)
    kept = [(images, images.clone()) for _, images, _ in loader]
    drain([loader])
    assert len(kept) == 12
    assert all(torch.equal(images, copy) for images, copy in kept)
    assert len({images.data_ptr() for images, _ in kept}) == 12


def test_batches_may_be_written_to(packed: Path) -> None:
    for output in ("torch", "numpy"):
        _, images, labels = next(iter(load(packed, output=output)))
        images[:] = 0
        labels[:] = 0
    assert gpuload.Dataset(packed).labels.max() == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_dtype_and_layout(packed: Path, dtype: Any, layout: Any) -> None:
    augment = gpuload.Augment((12, 20), dtype=dtype, layout=layout)
    _, images, _ = next(iter(load(packed, augment=augment)))
    assert images.shape == (8, 3, 12, 20)
    assert images.dtype == getattr(torch, dtype)
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert images.is_contiguous(memory_format=form)
    _, reference, _ = next(iter(load(packed, augment=gpuload.Augment((12, 20), dtype="uint8"))))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (augment.mean, augment.std))
    expected = reference.float() if dtype == "uint8" else (reference / 255 - mean) / std
    torch.testing.assert_close(images.float(), expected, atol=0.02 if dtype == "bfloat16" else 0.002, rtol=0)


def test_numpy_output_without_torch(packed: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gpuload, numpy as np\n"
        "augment = gpuload.Augment(12)\n"
        f"loader = gpuload.DaliIterator({str(packed)!r}, 8, augment=augment, device='cpu', output='numpy')\n"
        "images, labels = next(iter(loader))\n"
        "print(type(images) is np.ndarray, images.shape, images.dtype, labels.dtype)\n"
        f"try: gpuload.DaliIterator({str(packed)!r}, 8, augment=augment, device='cpu')\n"
        "except gpuload.MissingPackageError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[0] == "True (8, 3, 12, 12) float32 int64"
    extra = cuda_extra() or "cpu"
    assert f"output='torch': torch is not installed. `{install_command(extra)}` brings it. Or use output=" in said


def test_a_damaged_image_is_named_and_the_loader_lives_on(packed: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(packed, tmp_path / "train"))
    dataset = gpuload.Dataset(copy)
    row = dataset.rows(2).slice(4, 1).to_pylist()[0]
    with dataset.shard_paths[2].open("r+b") as shard:
        shard.seek(row["image_offset"])
        shard.write(b"\0" * row["image_bytes"])
    loader = load(copy, 8, shuffle=False)
    seen = []
    with pytest.raises(
        gpuload.DecodeError, match=rf"shard-000002.tar: sample '{row['key']}' does not decode \(byte .*: it is .*. Pack"
    ):
        for index, _, _ in loader:
            seen += index.tolist()
    assert seen == list(range(24))  # the batch of 24..31 holds the damaged one
    assert loader.state_dict()["samples"] == 24
    assert next(iter(loader))[0].tolist() == list(range(8))


def reading_threads() -> set[threading.Thread]:
    """Those of loaders that other tests have left may end at any time."""
    gc.collect()
    return {thread for thread in threading.enumerate() if thread.name == "gpuload-read-ahead"}


def test_close_stops_the_threads(packed: Path) -> None:
    before = reading_threads()
    with load(packed) as loader:
        _, images, _ = next(iter(loader))
        assert len(reading_threads() - before) == 1
    assert not reading_threads() - before
    assert images.sum() > 0
    with pytest.raises(gpuload.GpuloadError, match="is closed; construct a new one"):
        iter(loader)
    loader.close()


def test_a_loader_that_is_forgotten_leaves_no_thread(packed: Path) -> None:
    before = reading_threads()
    loader = load(packed)
    next(iter(loader))
    assert len(reading_threads() - before) == 1
    del loader
    ends = time.monotonic() + 10  # a thread that is just beginning the next batch still holds it
    while reading_threads() - before and time.monotonic() < ends:
        time.sleep(0.01)
    assert not reading_threads() - before


def test_repr_shows_what_was_chosen(packed: Path) -> None:
    assert repr(load(packed)) == (
        f"DaliIterator('{packed}': 97 samples, 12 batches of 8 (1 left out of each epoch), rank 0 of 1, on cpu by {DECODER['decoder']} with 1 thread)"
    )
    for batch_size, drop_last, batches in ((8, False, "13 batches of 8"), (97, True, "1 batch of 97")):
        assert f"97 samples, {batches}, rank 0 of 1" in repr(load(packed, batch_size, drop_last=drop_last))


def test_a_function_does_not_change_the_decoder_that_was_asked_for(packed: Path) -> None:
    augment = gpuload.Augment(12, dtype="uint8", function=lambda sample, rng: sample)
    with load(packed, augment=augment) as loader, load(packed, augment=augment, decoder="auto") as other:
        assert (loader.decoder, other.decoder) == (DECODER["decoder"], "native")


def test_what_ranks_must_have_in_common(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    monkeypatch.setattr("gpuload.iterator.compare_ranks", lambda *given: compared.append(given))
    loader = load(packed, 4, rank=1, world_size=3, drop_last=False)
    loader.check_ranks(7)
    settings = {"batch_size": 4, "drop_last": False, "batches": 9, "lanes": 1}
    assert compared == [(loader.ranks, {**loader.state_dict(), **settings}, 7)]


def test_ranks_come_from_torchruns_environment(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    loader = load(packed, 4, num_threads=None)
    assert (loader.ranks.rank, loader.ranks.world_size) == (3, 4)
    assert len(loader) == 97 // 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert load(packed, 4, num_threads=None).num_threads == max(1, loader.num_threads * 2)
    monkeypatch.setenv("RANK", "three")
    with pytest.raises(gpuload.ArgumentError, match="environment variable RANK='three': expected a whole number"):
        load(packed)


def test_ranks_come_from_torch_distributed(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # what torch.distributed knows comes first
    monkeypatch.setenv("WORLD_SIZE", "4")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert (load(packed).ranks.rank, load(packed).ranks.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"DaliIterator\(batch_size=0\): expected a whole number in 1..2147483647"),
        ({"prefetch": 0}, r"DaliIterator\(prefetch=0\): expected a whole number in 1..4096"),
        ({"window": -1}, r"DaliIterator\(window=-1\): expected a whole number of at least 1"),
        (
            {"batch_size": 98},
            r"batch_size 98: is larger than .*train \(97 samples\).* smaller batch_size, or drop_last=F",
        ),
        ({"batch_size": 50, "rank": 0, "world_size": 2}, "batch_size 50 x world_size 2: is larger than"),
        ({"rank": 1}, "rank=1, world_size=None: give both, or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2: expected 0 <= rank < world_size"),
        ({"device": "gpu"}, r"DaliIterator\(device='gpu'\): expected 'auto', 'cpu', 'cuda' or 'cuda:0'"),
        ({"device": "cpu:1"}, r"device='cpu:1'\): expected"),
        ({"output": "jax"}, r"output='jax'\): expected one of 'torch', 'numpy', 'cupy'"),
        ({"output": "numpy", "augment": gpuload.Augment(8, dtype="bfloat16")}, "output='numpy': has no bfloat16"),
        ({"fields": ("image", "caption")}, "has no field 'caption'; its fields are 'image', 'label'"),
    ],
)
def test_impossible_arguments_are_refused(packed: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(packed, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_gpu_that_is_not_there(packed: Path) -> None:
    with pytest.raises(gpuload.DeviceError, match=r"device='cuda': needs GPU 0, and none can be used here .*'auto'"):
        load(packed, device="cuda", decoder="auto")
    with pytest.raises(gpuload.DeviceError, match="output='cupy': CuPy arrays are on a GPU, and the device is the CPU"):
        load(packed, output="cupy")
    assert load(packed, device="auto").device == "cpu"


def test_states_of_another_set_or_order_are_refused(packed: Path, tmp_path: Path, photos: Path) -> None:
    state = load(packed).state_dict()
    loader = load(packed, seed=1)
    with pytest.raises(gpuload.StateError, match=r"made with seed=0, this loader has seed=1.*construct it with seed=0"):
        loader.load_state_dict(state)
    with pytest.raises(gpuload.StateError, match="made with window=8, this loader has window=4"):
        load(packed, window=4).load_state_dict(state)
    with pytest.raises(gpuload.StateError, match="made with shuffle=True, this loader has shuffle=False"):
        load(packed, shuffle=False).load_state_dict(state)
    with pytest.raises(gpuload.StateError, match="is not what state_dict.. of a loader returned"):
        load(packed).load_state_dict({"epoch": 3})
    other = {**state, "fingerprint": "0" * 16, "dataset_samples": 1234}
    with pytest.raises(
        gpuload.StateError, match=r"another data set \(1,234 samples, fingerprint 0+\); .*train has 97, fingerprint"
    ):
        load(packed).load_state_dict(other)
    assert [len(labels) for _, _, labels in loader] == [8] * 12  # a refused state changes nothing
