"""A run over a set with samples that do not decode: what comes in their place, and that nothing else changes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import damage, zero
from loaders import FIELDS, load, same
from opened import pretend_gpu
from painted import pack_painted

import gpuload
from gpuload import Augment
from gpuload.decode.faults import _Call
from gpuload.read.batch import Batch

# Of 97 samples in batches of 8: alone, the last of its batch, two neighbours, the whole batch of 40..47, the last batch.
BAD = (0, 15, 25, 26, *range(40, 48), 96)

Batches = list[list[Any]]


# "uploading": the CPU decoder as for a GPU.
all_decoders = pytest.mark.parametrize("decoder", ["dali", "native", "both", "uploading"], indirect=True)


@pytest.fixture(params=["dali", "native"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "uploading":
        return str(request.param)
    pretend_gpu(monkeypatch)
    return "native"


@pytest.fixture(scope="module")
def bad(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(packed, tmp_path_factory.mktemp("bad") / "train", BAD)


def epoch(loader: gpuload.DaliIterator) -> Batches:
    return [list(batch) for batch in loader]


def skipping(folder: Any, decoder: str, **options: Any) -> gpuload.DaliIterator:
    options = {"fields": ("index", "image", "label", "key"), "on_corrupt": "skip", **options}
    if options["on_corrupt"] in ("skip", "mark"):
        options["on_corrupt"] = gpuload.OnCorrupt(options["on_corrupt"], most=1.0)
    return load(folder, decoder=decoder, **options)


@all_decoders
def test_the_next_of_the_batch_comes_in_its_place_as_a_whole(packed: Path, bad: Path, decoder: str) -> None:
    with skipping(packed, decoder, shuffle=False) as undamaged, skipping(bad, decoder, shuffle=False) as loader:
        clean, found, counted = epoch(undamaged), epoch(loader), loader.metrics().bytes
    order = list(range(97))
    order[0], order[15], order[25], order[26], order[40:48], order[96] = 1, 8, 27, 27, [48] * 8, 1
    assert [n for batch in found for n in batch[0].tolist()] == order
    assert [len(batch[0]) for batch in found] == [len(batch[0]) for batch in clean]
    images = torch.cat([batch[1] for batch in clean])
    labels = torch.cat([batch[2] for batch in clean])
    keys = [key for batch in clean for key in batch[3]]
    # The last batch's only sample is replaced by one of the next epoch, whose crop is another.
    assert torch.equal(torch.cat([batch[1] for batch in found])[:96], images[order][:96])
    assert torch.equal(torch.cat([batch[2] for batch in found]), labels[order])
    assert [key for batch in found for key in batch[3]] == [keys[n] for n in order]
    stored = np.concatenate([gpuload.Dataset(bad).rows(shard).column("image_bytes") for shard in range(10)])
    assert counted == stored[order].sum()


@all_decoders
def test_a_resumed_run_and_its_states_are_exact(packed: Path, bad: Path, decoder: str) -> None:
    with skipping(packed, decoder, fields=FIELDS) as clean, skipping(bad, decoder, fields=FIELDS) as loader:
        states = [clean.state_dict() for _ in range(2) for _ in clean]
        found = [(batch, loader.state_dict()) for _ in range(2) for batch in loader]
    whole, found = [batch for batch, _ in found], [state for _, state in found]
    assert found == states
    for stop in (1, 5, 11, 13):
        with skipping(bad, decoder, fields=FIELDS) as loader:
            loader.load_state_dict(states[stop - 1])
            rest = epoch(loader)
        assert same(rest, whole[stop : 12 if stop < 12 else 24])


def test_ranks_take_the_same_number_of_steps_and_only_bad_samples_differ(packed: Path, bad: Path, decoder: str) -> None:
    """Ranks with batches of one sample, all of whose samples may be bad."""
    for batch_size, drop_last in ((1, True), (3, False)):
        for rank in range(3):
            options = {"rank": rank, "world_size": 3, "drop_last": drop_last, "batch_size": batch_size}
            with skipping(packed, decoder, **options) as clean, skipping(bad, decoder, **options) as loader:
                wanted, found = epoch(clean), epoch(loader)
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                good = [row for row, sample in enumerate(other[0].tolist()) if sample not in BAD]
                assert torch.equal(one[0][good], other[0][good]) and torch.equal(one[1][good], other[1][good])
                assert not set(one[0].tolist()) & set(BAD) and len(one[0]) == len(other[0])


@pytest.mark.parametrize("pause", [0.001, 0.003, 0.01])
def test_no_batch_is_lost_where_a_fault_comes_before_the_batches_after_it_are_read_again(
    packed: Path, bad: Path, decoder: str, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of one bad sample after another is decoded again, with those after it, which come slowly."""
    read = _Call._input

    def slowly(call: _Call) -> Iterator[Batch]:
        for batch in read(call):
            yield batch
            time.sleep(pause)

    with skipping(packed, decoder, batch_size=1) as loader:
        wanted = epoch(loader)
    monkeypatch.setattr(_Call, "_input", slowly)
    with skipping(bad, decoder, batch_size=1, prefetch=8) as loader:
        found = epoch(loader)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one[0] == other[0] or other[0].item() in BAD


@all_decoders
def test_marked_samples_stay_with_zeros(packed: Path, bad: Path, decoder: str) -> None:
    options: Any = {"shuffle": False, "augment": Augment(12)}
    with (
        skipping(packed, decoder, **options) as undamaged,
        skipping(bad, decoder, on_corrupt="mark", **options) as loader,
    ):
        clean, found = epoch(undamaged), epoch(loader)
        assert loader.report().corrupt == len(BAD)
    corrupt = torch.cat([batch[4] for batch in found])
    assert corrupt.dtype == torch.bool and corrupt.nonzero().flatten().tolist() == sorted(BAD)
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[2], other[2]) and one[3] == other[3]
        assert not one[1][one[4]].any()
        assert torch.equal(one[1][~one[4]], other[1][~one[4]])


@pytest.mark.parametrize(("output", "layout"), [("torch", "channels_last"), ("numpy", "NCHW")])
def test_marks_come_in_every_form_of_a_batch(bad: Path, decoder: str, output: Any, layout: Any) -> None:
    gray = [gpuload.transforms.RandomGrayscale(0.5)]
    views = [Augment(12, transforms=gray, layout=layout), Augment(8, layout=layout)]
    fields = ("image",)
    with skipping(bad, decoder, on_corrupt="mark", augment=views, output=output, fields=fields) as one:
        for batch in (batch._asdict() for batch in one):  # type: ignore[attr-defined]
            assert list(batch) == ["image", "corrupt"]
            marks = np.asarray(batch["corrupt"])
            assert marks.dtype == bool
            for view in batch["image"]:
                sums = np.abs(np.asarray(view)).reshape(len(marks), -1).sum(axis=1)
                assert ((sums == 0) == marks).all()


@all_decoders
def test_a_mask_that_does_not_decode_counts_as_its_sample(tmp_path: Path, decoder: str) -> None:
    whole = pack_painted(tmp_path, count=14)
    options: Any = {"fields": ("index", "image", gpuload.Mask("mask", fill=9)), "shuffle": False, "drop_last": False}
    folder = damage(damage(whole, tmp_path / "one", [3, 5], field="mask"), tmp_path / "two", [4])
    with skipping(whole, decoder, batch_size=4, **options) as loader:
        clean = epoch(loader)
    with skipping(folder, decoder, batch_size=4, **options) as loader:
        found = epoch(loader)
        reasons = {sample.index: sample for sample in loader.report().samples}
    assert [n for batch in found for n in batch[0].tolist()] == [0, 1, 2, 0, 6, 6, 6, 7, 8, 9, 10, 11, 12, 13]
    assert torch.equal(found[0][2][3], clean[0][2][0]) and torch.equal(found[1][2][0], clean[1][2][2])
    offsets = {row["key"]: row for n in range(3) for row in gpuload.Dataset(folder).rows(n).to_pylist()}
    assert reasons[3].offset == offsets[reasons[3].key]["mask_offset"]
    assert reasons[4].offset == offsets[reasons[4].key]["image_offset"]
    with skipping(folder, decoder, batch_size=4, on_corrupt="mark", **options) as loader:
        found = epoch(loader)
    assert [row.nonzero().flatten().tolist() for *_, row in found] == [[3], [0, 1], [], []]
    assert (found[0][2][3] == 9).all() and not found[1][1][:2].any()
    message = r"the mask 'mask' of sample '.*' does not decode \(byte [\d,]+\): it "
    raising = skipping(folder, decoder, batch_size=4, on_corrupt="raise", **options)
    with raising as loader, pytest.raises(gpuload.DecodeError, match=message):
        epoch(loader)


def test_subsets_mixtures_virtual_epochs_and_batch_transforms(packed: Path, bad: Path, decoder: str) -> None:
    few = gpuload.Dataset(bad).subset(np.arange(20, 60))
    mixture = gpuload.mix([(bad, 0.5), (packed, 0.3), (few, 0.2)])
    fields = ("index", "dataset", "image", "label")
    with skipping(
        mixture, decoder, steps_per_epoch=27, batch_transforms=[gpuload.batchwise.MixUp()], fields=fields
    ) as loader:
        batches = epoch(loader)
        assert loader.report().corrupt > 0
    assert len(batches) == 27 and all(len(index) == 8 for index, *_ in batches)
    seen = {(d, n) for index, dataset, *_ in batches for n, d in zip(index.tolist(), dataset.tolist(), strict=True)}
    assert {d for d, n in seen if n in BAD} == {1}  # of the sound set alone


BROKEN = {
    "zeros": zero,
    "cut off": lambda data: data[: len(data) // 2],
    "zeros at the end": lambda data: data[:300] + bytes(len(data) - 300),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_the_report_says_which_and_where(
    packed: Path, tmp_path: Path, decoder: str, broken: Callable[[bytes], bytes]
) -> None:
    bad = damage(packed, tmp_path / "bad", BAD, broken)
    with skipping(bad, decoder, shuffle=False, drop_last=False) as loader:
        epoch(loader)
        first = loader.report()
        epoch(loader)
        report = loader.report()
    assert first.corrupt == len(BAD) and report.corrupt == 2 * len(BAD)
    assert [sample.index for sample in report.samples] == sorted(BAD) == [sample.index for sample in first.samples]
    assert {(sample.epoch, sample.times) for sample in report.samples} == {(0, 2)}
    assert [sample.key for sample in first.samples] == gpuload.Dataset(bad).keys(sorted(BAD))
    for sample in first.samples:
        place, shard = slice(sample.offset, sample.offset + sample.bytes), Path(sample.shard)
        data, whole = (path.read_bytes()[place] for path in (shard, packed / shard.name))
        assert len(data) == sample.bytes and data == broken(whole).ljust(len(data), b"\0") != whole
        assert sample.reason and "\n" not in sample.reason


def test_the_report_is_bounded(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.loader.pipeline._MOST_LISTED", 5)
    with skipping(bad, "native", shuffle=False) as loader:
        epoch(loader)
        assert len({*loader.report().samples}) == 5 and loader.report().corrupt == len(BAD)


@pytest.mark.parametrize(
    ("most", "fits"), [(len(BAD), True), (len(BAD) - 1, False), (0, False), (0.14, True), (0.13, False)]
)
@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
def test_more_than_max_corrupt_ends_the_run(bad: Path, on_corrupt: Any, most: float, fits: bool) -> None:
    with skipping(bad, "native", on_corrupt=gpuload.OnCorrupt(on_corrupt, most=most), shuffle=False) as loader:
        if fits:
            assert len(epoch(loader) + epoch(loader)) == 26  # it counts anew in each epoch
            return
        message = rf"epoch 0: \d+ corrupt samples? of .* 97, more than OnCorrupt\(most={most}\) allows"
        with pytest.raises(gpuload.DecodeError, match=message):
            epoch(loader)
        assert most or loader.state_dict()["samples"] == 0


@pytest.mark.parametrize("decoder", ["dali", "native"])
def test_the_error_names_key_shard_byte_and_reason(bad: Path, decoder: str) -> None:
    row = gpuload.Dataset(bad).rows(0).slice(0, 1).to_pylist()[0]
    says = rf"shard-000000.tar: sample '{row['key']}' does not decode \(byte {row['image_offset']}\): it is .*\. Pack it again"
    with load(bad, decoder=decoder, shuffle=False) as loader, pytest.raises(gpuload.DecodeError, match=says) as caught:
        epoch(loader)
    assert "\n" not in str(caught.value)


def test_all_of_a_rank_may_be_corrupt(packed: Path, tmp_path: Path) -> None:
    """A share of 1.0 is no limit, also for the rank that has one sample more than others."""
    every = damage(packed, tmp_path / "all", range(97))
    for rank in range(3):
        with skipping(every, "native", on_corrupt="mark", rank=rank, world_size=3, drop_last=False) as loader:
            assert all(bad.all() for *_, bad in loader)
