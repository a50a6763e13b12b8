"""Batch transforms through `DaliIterator`: what they see, what comes out, and that all of it is drawn again alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import same

import gpuload
from gpuload import Augment
from gpuload.batchwise import CenterHole, CutMix, FieldBatch, MixUp, RandomChoice

EVERY: dict[str, list[Any]] = {
    "mixup": [MixUp()],
    "choice": [RandomChoice([MixUp(1.0), CutMix()], p=[0.3, 0.7])],
    "all": [MixUp(1.0), CenterHole((4, 6), fill=1.0, target="inner")],
}


def load(packed: Path, decoder: str, transforms: Any, **options: Any) -> gpuload.DaliIterator:
    usual = {
        "augment": Augment(16),
        "fields": ("image", "label", "index"),
        "device": "cpu",
        "num_threads": 1,
        "shuffle": gpuload.Shuffle(window=3),
    }
    return gpuload.DaliIterator(packed, 12, decoder=decoder, batch_transforms=transforms, **{**usual, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["choice", "all"])
def test_a_resumed_run_draws_the_same(packed: Path, decoder: str, which: str) -> None:
    with load(packed, decoder, EVERY[which]) as loader:
        first = list(loader)
        batches = iter(loader)
        kept = [next(batches) for _ in range(3)]
        state = loader.state_dict()
        rest = list(batches)
    with load(packed, decoder, EVERY[which]) as resumed:
        resumed.load_state_dict(state)
        assert same(resumed, rest)
    assert not same(kept, first[:3])
    with load(packed, decoder, EVERY[which], seed=1) as other:
        assert not same(other, first)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_dtype_and_layout_stay_as_asked_for(packed: Path, decoder: str, dtype: Any, layout: Any) -> None:
    augment = Augment((12, 16), dtype=dtype, layout=layout)
    with load(packed, decoder, EVERY["all"], augment=augment) as loader:
        images, soft, _, inner = next(iter(loader))
    assert images.dtype == inner.dtype == getattr(torch, dtype) and soft.dtype == torch.float32
    assert images.shape == (12, 3, 12, 16) and inner.shape == (12, 3, 4, 6)
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert images.is_contiguous(memory_format=memory)
    assert (images[:, :, 4:8, 5:11] == 1).all() and inner.float().std() > 0
    with load(packed, decoder, [MixUp(1.0)], augment=augment) as whole:
        mixed, _, _ = next(iter(whole))
    assert torch.equal(mixed[:, :, 4:8, 5:11], inner)
    images[:] = 0  # it is the caller's own


def test_as_numpy_arrays(packed: Path, decoder: str) -> None:
    with load(packed, decoder, EVERY["all"], output="numpy") as loader, load(packed, decoder, EVERY["all"]) as tensors:
        for batch, expected in zip(loader, tensors, strict=True):
            assert all(type(field) is np.ndarray for field in batch)
            assert all(np.array_equal(field, other.numpy()) for field, other in zip(batch, expected, strict=True))


class AddTwo:
    """The user's own: adds two fields, in the order "small", "before"."""

    adds = ("small", "before")

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, batch: FieldBatch) -> None:
        self.seen.append(list(batch.fields))
        batch.fields["small"] = batch.fields["image"][:, :, ::4, ::4].copy()
        batch.fields["before"] = batch.fields["label"] * 2


def test_added_fields_come_after_those_asked_for_or_where_they_are_named(packed: Path, decoder: str) -> None:
    own = AddTwo()
    usual: dict[str, Any] = {"augment": Augment(16, dtype="bfloat16")}
    with load(packed, decoder, [own, CenterHole(4)], fields=("key", "label", "image"), **usual) as loader:
        batch = next(iter(loader))._asdict()  # type: ignore[attr-defined]
        assert list(batch) == ["key", "label", "image", "before", "middle", "small"]
    assert own.seen[0] == ["key", "label", "image"]
    assert batch["small"].dtype == torch.bfloat16 and batch["before"].dtype == torch.int64
    assert torch.equal(batch["before"], 2 * batch["label"]) and len(batch["key"]) == 12
    named = ("small", "image", "middle", "label")
    with load(packed, decoder, [AddTwo(), CenterHole(4)], fields=named, **usual) as loader:
        assert list(next(iter(loader))._fields) == ["small", "image", "middle", "label", "before"]


def test_a_function_may_replace_what_it_likes(packed: Path, decoder: str) -> None:
    drawn = np.full((2, 97), -1.0)

    def flatten(batch: FieldBatch) -> None:
        drawn[loader.state_dict()["epoch"], batch.fields["index"]] = batch.draws(0)
        batch.fields["image"] = batch.fields["image"].mean(axis=(2, 3))
        batch.fields["label"] = batch.fields["label"] + (batch.draws(0) < 0.5) * 10

    with load(packed, decoder, [flatten]) as loader, load(packed, decoder, []) as plain:
        batches = list(loader)
        tens = torch.cat([labels for _, labels, _ in batches]) // 10
        for (means, labels, _), (images, expected, _) in zip(batches, plain, strict=True):
            torch.testing.assert_close(means, images.mean(dim=(2, 3)), atol=1e-4, rtol=1e-4)
            assert torch.equal(labels % 10, expected)
        for _ in loader:
            pass
    assert 30 < int(tens.sum()) < 66
    both = drawn[:, (drawn >= 0).all(axis=0)]
    assert both.shape[1] > 90 and (np.abs(both[0] - both[1]) > 1e-3).mean() > 0.9  # other ones in each epoch


@pytest.mark.parametrize(
    ("which", "output"), [("mixup", "torch"), ("choice", "numpy"), ("all", "torch"), ("all", "numpy")]
)
def test_a_rank_without_samples_keeps_step(packed: Path, decoder: str, which: str, output: str) -> None:
    """Of two samples, a fourth rank gets one again, or with drop_last="exact" an empty batch."""
    few = gpuload.Dataset(packed).subset(range(2))

    def only_batch(rank: int, drop_last: Any) -> Any:
        options: dict[str, Any] = {"rank": rank, "world_size": 4, "drop_last": drop_last, "output": output}
        with load(few, decoder, EVERY[which], **options) as loader:
            (batch,) = loader
            assert loader.padding == (rank == 3 and drop_last is False)
            return batch

    first, again, empty = only_batch(0, False), only_batch(3, False), only_batch(3, "exact")
    assert [len(field) for field in again] == [1] * len(again) and [len(field) for field in empty] == [0] * len(empty)
    for batch in (again, empty):
        assert [(a.shape[1:], a.dtype) for a in batch] == [(a.shape[1:], a.dtype) for a in first]


NO_IMAGE: dict[str, Any] = {"fields": ("label", "index")}


def forget(batch: FieldBatch) -> None:
    del batch.fields["label"]


class Named(AddTwo):
    """Names one field by a text."""

    def __init__(self, attribute: str) -> None:
        setattr(self, attribute, "label")


@pytest.mark.parametrize(
    ("transforms", "options", "message"),
    [
        ([MixUp()], NO_IMAGE, r"MixUp\(.*needs the field 'image'; fields are 'label', 'index'"),
        ([CutMix()], {"fields": ("image",)}, r"CutMix\(.*needs the field 'label'"),
        ([MixUp(), CutMix()], {}, r"MixUp.* and CutMix.* would mix the labels twice. Use RandomChoice"),
        ([MixUp(num_classes=2)], {}, "the data set has 3 classes; give as many"),
        ([CenterHole(17)], {}, r"the hole is larger than the image, 16×16"),
        ([CenterHole(14)], {"augment": {0: Augment(16), 5: Augment(12)}}, r"the hole is larger than the image, 12×12"),
        ([CenterHole(4), CenterHole(4)], {}, "adds the field 'middle', which already exists"),
        ([CenterHole(4, target="label")], {}, "adds the field 'label', which already exists"),
        ([CenterHole(4, fill=0.5)], {"augment": Augment(16, dtype="uint8")}, "the images are uint8; fill must be"),
        (["mixup"], {}, "batch_transforms: 'mixup' is not a function of a batch"),
        ([Named("adds")], {}, "batch_transforms: .*Named.*, or its adds or softens is no tuple of names"),
        ([Named("softens")], {}, "batch_transforms: .*Named.*, or its adds or softens is no tuple of names"),
        ([MixUp()], {"augment": [Augment(16)] * 2}, "batch_transforms: change one view of a batch"),
        ([MixUp()], {"fields": ("image", gpuload.OneHot())}, r"MixUp\(.*: makes soft labels .*; ask for 'label'"),
        ([], {"fields": ("image", "label", "image")}, r"fields=\('image', 'label', 'image'\): two have the same"),
        ([], {"fields": ("label", gpuload.OneHot("label"))}, r"fields=\('label', 'label'\): two have the same name"),
        ([], {"fields": ("image", "middle")}, "has no field 'middle'"),
    ],
)
def test_what_can_be_said_before_the_first_batch(
    packed: Path, transforms: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(packed, "auto", transforms, **options)


def test_a_field_that_was_removed_is_named(packed: Path, decoder: str) -> None:
    with (
        load(packed, decoder, [forget]) as loader,
        pytest.raises(gpuload.ArgumentError, match="removed .* 'label', which"),
    ):
        next(iter(loader))
