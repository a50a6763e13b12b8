"""Two decoders for each batch: each sample has the pixels of the one that it is given to, and a batch is whole."""

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import damage
from loaders import drain, load
from made_batches import make_batch
from opened import open_runner
from painted import pack_painted

import gpuload
from gpuload import Augment
from gpuload.cli import main
from gpuload.decode.both import DALI, NATIVE, Divide, Join, find_dalis_faults, is_for_cpu, stand_in
from gpuload.decode.interface import BatchDecodeError, Decoded, Fault, Stored
from gpuload.decode.runner import Job, OnPart, Runner, Stage
from gpuload.draws import BATCH, make_key
from gpuload.read.batch import Batch
from gpuload.transforms import ColorJitter, RandomErasing

SHARE = 0.4
EVERYTHING = ("index", "image", "mask", "boxes", "caption", "key")
AUGMENTS = {
    "plain": Augment(12),
    "transforms": Augment(12, transforms=[ColorJitter(0.4), RandomErasing(p=0.5)], dtype="float16"),
    "image": Augment(12, normalize="image", layout="channels_last"),
    "pads": Augment((40, 90), crop="pad_or_crop", dtype="uint8", vertical_flip=0.5),
    "bfloat16": Augment(12, dtype="bfloat16", interpolation="bicubic"),
}


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_painted(tmp_path_factory.mktemp("painted"), count=40)


@pytest.fixture(scope="module")
def raw(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("raw")
    options = ["--encode", "raw", "--size", "24", "--fit", "stretch", "--workers", "1"]
    assert main(["pack", str(photos), str(out), *options]) == 0
    return out / "train"


def for_cpu(seed: int, epoch: int, samples: Any, share: float) -> np.ndarray:
    """What `is_for_cpu` gives, for samples of any order."""
    samples = np.asarray(samples)
    image = [np.zeros(1, np.uint8)] * len(samples)
    batch = make_batch(Augment(8), image, [(1, 1)] * len(samples))
    keys = np.full(len(samples), make_key(seed, epoch, BATCH), np.uint64)
    encoded = type(batch.encoded)(**{**vars(batch.encoded), "samples": samples})
    return is_for_cpu(Batch(encoded, (), batch.views, batch.sources, keys, 0, 0.0), share)


def test_which_decoder_is_a_function_of_seed_epoch_sample_and_share() -> None:
    samples = np.arange(20_000)
    chosen = for_cpu(1, 2, samples, 0.3)
    assert abs(chosen.mean() - 0.3) < 0.02
    order = np.random.default_rng(0).permutation(20_000)
    assert (for_cpu(1, 2, order, 0.3) == chosen[order]).all()
    for other in (for_cpu(2, 2, samples, 0.3), for_cpu(1, 3, samples, 0.3)):
        assert abs((chosen & other).mean() - 0.09) < 0.01  # independent
    more = for_cpu(1, 2, samples, 0.6)
    assert (more | ~chosen).all() and more.sum() > chosen.sum()
    assert not for_cpu(1, 2, samples, 0.0).any() and for_cpu(1, 2, samples, 1.0).all()
    # A change would send other samples to the CPU in runs that are resumed.
    assert np.flatnonzero(for_cpu(0, 0, np.arange(40), 0.25)).tolist() == GOLDEN


GOLDEN = [3, 4, 9, 10, 16, 17, 21, 22, 23, 28, 29, 30, 34, 35, 36]  # of seed 0, epoch 0, samples 0..39, share 0.25


def fields_of(loader: gpuload.DaliIterator) -> dict[int, dict[str, Any]]:
    """By sample, what a batch holds of it."""
    found = {}
    for batch in (one._asdict() for one in loader):  # type: ignore[attr-defined]
        for row, index in enumerate(batch["index"].tolist()):
            found[index] = {name: _row(value, row) for name, value in batch.items()}
    return found


def _row(value: Any, row: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[row]
    if isinstance(value, list):
        return value[row]
    return tuple(_row(part, row) for part in value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("name", AUGMENTS)
def test_each_sample_is_that_of_its_decoder(painted: Path, name: str) -> None:
    def all_of(**options: Any) -> dict[int, dict[str, Any]]:
        with load(painted, 9, augment=AUGMENTS[name], fields=EVERYTHING, drop_last=False, **options) as loader:
            return fields_of(loader)

    found = all_of(decoder=gpuload.Both(cpu=SHARE))
    expected = {decoder: all_of(decoder=decoder) for decoder in ("dali", "native")}
    counts = {"dali": 0, "native": 0}
    for index, to_cpu in zip(range(40), for_cpu(0, 0, np.arange(40), SHARE), strict=True):
        decoder = "native" if to_cpu else "dali"
        counts[decoder] += 1
        for field, value in found[index].items():
            assert same(value, expected[decoder][index][field]), (index, field)
    assert len(found) == 40 and min(counts.values()) > 8


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_a_half_may_be_empty(packed: Path, share: float) -> None:
    found = drain([load(packed, 8, decoder=gpuload.Both(cpu=share), drop_last=False)])
    by_dali, by_native = (dict(drain([load(packed, 8, decoder=name, drop_last=False)])) for name in ("dali", "native"))
    to_cpu = for_cpu(0, 0, [index for index, _ in found], share)
    for (index, pixels), native in zip(found, to_cpu, strict=True):
        assert pixels == (by_native if native else by_dali)[index]
    assert len(found) == 97 and to_cpu.sum() == {0.0: 0, 1.0: 97}.get(share, to_cpu.sum())


def test_raw_images_and_a_stand_in_of_them(raw: Path) -> None:
    for share in (0.0, 0.5, 1.0):
        with load(raw, 8, decoder=gpuload.Both(cpu=share), augment=Augment(24, crop="none", dtype="uint8")) as loader:
            found = drain([loader])
        with load(raw, 8, decoder="native", augment=Augment(24, crop="none", dtype="uint8")) as loader:
            assert found == drain([loader])  # not resized: the same by either


def test_views_share_the_division(packed: Path) -> None:
    views = [Augment(12, dtype="uint8"), Augment(20, dtype="uint8")]
    fields = ("index", "image")

    def all_of(**options: Any) -> dict[int, list[bytes]]:
        with load(packed, 8, augment=views, fields=fields, **options) as loader:
            return {
                int(number): [view[row].numpy().tobytes() for view in images]
                for index, images in loader
                for row, number in enumerate(index)
            }

    found, native, dali = all_of(decoder=gpuload.Both(cpu=0.5)), all_of(decoder="native"), all_of(decoder="dali")
    for number, to_cpu in zip(found, for_cpu(0, 0, list(found), 0.5), strict=True):
        assert found[number] == (native if to_cpu else dali)[number]


@pytest.mark.parametrize("half", ["dali", "native"])
def test_a_damaged_image_of_either_half_is_named(packed: Path, tmp_path: Path, half: str) -> None:
    to_cpu = for_cpu(0, 0, np.arange(97), SHARE)
    sample = int(np.flatnonzero(to_cpu == (half == "native"))[12])
    damaged = Path(shutil.copytree(packed, tmp_path / "damaged"))
    dataset = gpuload.Dataset(damaged)
    shard = sample // 10
    row = dataset.rows(shard).slice(sample % 10, 1).to_pylist()[0]
    with dataset.shard_paths[shard].open("r+b") as file:
        file.seek(row["image_offset"])
        file.write(bytes(row["image_bytes"]))
    loader = load(damaged, 8, shuffle=False, decoder=gpuload.Both(cpu=SHARE), fields=("index", "image"))
    for _ in range(2):
        loader.set_epoch(0)
        seen: list[int] = []
        with pytest.raises(
            gpuload.DecodeError, match=rf"shard-00000{shard}.tar: sample '{row['key']}' does not decode"
        ):
            for index, _ in loader:
                seen += index.tolist()
        assert seen == list(range(sample // 8 * 8))


class Made(Stage):
    """A decoder whose pixels are its samples' numbers. broken: samples that do not decode; `raises` or is told."""

    def __init__(self, mark: float, broken: Iterable[int] = (), raises: bool = False) -> None:
        self.mark, self.broken, self.raises, self.sizes = mark, set(broken), raises, list[int]()
        self.name = f"made-{mark}"

    def begin(self, job: Job) -> None:
        batch = job.batch
        self.sizes.append(len(batch))
        samples = batch.encoded.samples.tolist()
        faults = {row: Fault(f"{s}") for row, s in enumerate(samples) if s in self.broken and batch.keys[row]}
        if faults and self.raises:
            raise BatchDecodeError(batch, faults)
        pixels = np.array(samples, np.float32)[:, None, None, None] + np.full((1, 3, 2, 2), self.mark, np.float32)
        job.decoded = Decoded((pixels,), ((),), 0.0, 0.5, queue_depth=2.0, broken=faults)


def both_of(dali: Stage, native: Stage, share: float) -> Runner:
    return Runner([Divide(Stored(), share), OnPart(NATIVE, native), OnPart(DALI, dali), Join()], 2)


def halves_of(batch: Batch, share: float) -> tuple[list[int], list[int]]:
    """The rows for DALI, and those for the CPU."""
    to_cpu = is_for_cpu(batch, share)
    return np.flatnonzero(~to_cpu).tolist(), np.flatnonzero(to_cpu).tolist()


def made(count: int) -> Batch:
    return make_batch(Augment(2), [np.zeros(1, np.uint8)] * count, [(1, 1)] * count)


def test_what_is_broken_is_told_by_rows_of_the_whole_batch() -> None:
    batch = made(40)
    halves = halves_of(batch, 0.5)
    assert sorted([*halves[0], *halves[1]]) == list(range(40)) and min(map(len, halves)) > 5
    bad = [*halves[0][1:3], *halves[1][1:4]]
    told = list(both_of(Made(0.0, bad), Made(0.5, bad), 0.5).decode(iter([made(1), batch])))
    assert [dict(decoded.broken) for _, decoded in told] == [{}, {row: Fault(f"{row}") for row in bad}]
    for native, expected in ((Made(0.5), bad[:2]), (Made(0.5, bad), bad)):
        both = both_of(Made(0.0, bad, raises=True), native, 0.5)
        with pytest.raises(BatchDecodeError, match=f"{len(expected)} of 40 samples do not decode") as caught:
            list(both.decode(iter([made(1), batch, made(2)])))
        assert caught.value.batch is batch
        assert caught.value.faults == {row: Fault(f"{row}") for row in expected}
        both.close()


def test_an_error_may_be_of_a_batch_that_comes_later() -> None:
    """DALI's, since it is at work on several."""
    fed: list[Batch] = []
    all_fed = threading.Event()

    class Feed(Stage):
        name = "feed"

        def begin(self, job: Job) -> None:
            fed.append(job.batch)
            if len(fed) == 3:
                all_fed.set()

    class Early(Made):
        def begin(self, job: Job) -> None:
            assert all_fed.wait(250)
            if job.batch is fed[1]:
                raise BatchDecodeError(fed[2], {1: Fault("early")})
            super().begin(job)

    batches = [made(count) for count in (20, 21, 22)]
    stages = [OnPart(DALI, Feed()), OnPart(NATIVE, Made(0.5)), OnPart(DALI, Early(0.25))]
    decoding = Runner([Divide(Stored(), 0.5), *stages, Join()], 2).decode(iter(batches))
    assert next(decoding)[0] is batches[0]
    with pytest.raises(BatchDecodeError) as caught:
        next(decoding)
    assert caught.value.batch is batches[2]
    assert caught.value.faults == {halves_of(batches[2], 0.5)[0][1]: Fault("early")}


def test_only_what_is_for_dali_is_looked_at() -> None:
    batch = made(40)
    rows, _ = halves_of(batch, 0.5)
    seen: list[int] = []

    def find(half: Batch) -> dict[int, Fault]:
        seen.extend(half.encoded.samples.tolist())
        return {2: Fault("bad")}

    assert find_dalis_faults(find, 0.5, batch) == {rows[2]: Fault("bad")} and seen == rows
    assert find_dalis_faults(find, 1.0, batch) == {} and seen == rows


def test_work_and_batches_ahead_are_those_of_both() -> None:
    ((_, decoded),) = both_of(Made(0.25), Made(0.5), 0.5).decode(iter([made(6)]))
    assert (decoded.work_s, decoded.queue_depth) == (1.0, 4.0)


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
def test_a_replacement_is_decoded_by_its_own_decoder(packed: Path, tmp_path: Path, on_corrupt: str) -> None:
    """Whichever decoder the bad sample had; and a sample is refused only by the one that it is given to."""
    bad = sorted({*range(0, 97, 5), *range(40, 48)})
    damaged = damage(packed, tmp_path / "damaged", bad)
    options: dict[str, Any] = {"drop_last": False, "fields": ("index", "image"), "augment": Augment(12)}
    by: dict[str, dict[int, torch.Tensor]] = {}
    for decoder in ("dali", "native"):
        with load(packed, 8, decoder=decoder, **options) as loader:
            by[decoder] = {int(n): image for index, images in loader for n, image in zip(index, images, strict=True)}
    options |= {"on_corrupt": gpuload.OnCorrupt(on_corrupt, most=1.0)}
    with load(damaged, 8, decoder=gpuload.Both(cpu=SHARE), **options) as loader:
        found = list(loader)
        assert sorted(sample.index for sample in loader.report().samples) == bad
    came: list[int] = []
    for index, images, *marks in found:
        to_cpu = for_cpu(0, 0, index.numpy(), SHARE)
        for row, (number, image) in enumerate(zip(index.tolist(), images, strict=True)):
            came.append(number)
            if marks and marks[0][row]:
                assert number in bad and not image.any()
            else:
                assert number not in bad and torch.equal(image, by["native" if to_cpu[row] else "dali"][number])
    assert len(came) == 97 and (sorted(came) == list(range(97))) == (on_corrupt == "mark")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_rows_are_put_together_in_order(share: float) -> None:
    batches = [made(count) for count in (1, 2, 30, 1, 7)]
    dali, native = Made(0.25), Made(0.5)
    both = both_of(dali, native, share)
    found = list(both.decode(iter(batches)))
    both.close()
    for (batch, decoded), expected in zip(found, batches, strict=True):
        assert batch is expected
        numbers = np.arange(len(batch)) + np.where(is_for_cpu(batch, share), 0.5, 0.25)
        np.testing.assert_array_equal(np.asarray(decoded.images[0])[:, 0, 0, 0], numbers.astype(np.float32))
    assert min(dali.sizes) >= 1 and sum(native.sizes) == sum(is_for_cpu(b, share).sum() for b in batches)


def test_a_call_that_is_left_reads_nothing_beside_the_next() -> None:
    reading, most, lock = 0, 0, threading.Lock()

    def source() -> Iterator[Batch]:
        nonlocal reading, most
        for _ in range(40):
            with lock:
                reading += 1
                most = max(most, reading)
            time.sleep(0.001)
            with lock:
                reading -= 1
            yield made(6)

    both = both_of(Made(0.25), Made(0.5), 0.5)
    for _ in range(8):
        assert sum(1 for _ in islice(both.decode(source()), 3)) == 3
    assert most == 1
    both.close()


@pytest.mark.parametrize("masks", [0, 2])
@pytest.mark.parametrize("is_raw", [False, True])
def test_a_stand_in_decodes(masks: int, is_raw: bool) -> None:
    stored = Stored(raw=is_raw, mask_fills=(0,) * masks)
    forms = [Augment(8).form, Augment(16, crop="pad_or_crop").form]
    empty = np.zeros(0, np.uint8)
    batch = make_batch([Augment(8), Augment(16, crop="pad_or_crop")], [empty], [(1, 1)], masks=[[empty]] * masks)
    decoder = open_runner("dali", forms, stored, 2, num_threads=1)
    ((_, decoded),) = decoder.decode(iter([stand_in(batch, stored)]))
    assert [np.asarray(images).shape for images in decoded.images] == [(1, 3, 8, 8), (1, 3, 16, 16)]
    assert [len(view) for view in decoded.masks] == [masks] * 2
    decoder.close()


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("decoder", [gpuload.Dali, gpuload.Both])
def test_two_units_are_not_deterministic(decoder: Any, share: float) -> None:
    name = decoder.__name__
    with pytest.raises(
        gpuload.ArgumentError, match=rf"{name}\(hardware={share:g}, deterministic=True\): which unit decodes"
    ):
        decoder(hardware=share, deterministic=True)


def test_encoded_and_raw_images_together_are_refused(packed: Path, raw: Path) -> None:
    with pytest.raises(gpuload.ArgumentError, match="decoder='both': one of the data sets holds encoded images and"):
        load(gpuload.mix([(packed, 0.5), (raw, 0.5)]), decoder="both", fields=("image",))  # type: ignore[arg-type]
