"""Batch transforms through `DaliIterator`: what they see and what comes out; and those of one's own, made of numbers and a
kernel."""

from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pytest
import torch
from fuzzing.loader import write_value
from images import encode, photo

import gpuload
from gpuload import ArgumentError, Augment
from gpuload.batchwise import CenterHole, CutMix, FieldBatch, MixUp, Operation, RandomMixer

EVERY: dict[str, list[Any]] = {
    "choice": [RandomMixer([MixUp(1.0), CutMix()], p=[0.3, 0.7])],
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


def test_packed_arrays_keep_their_dtype_whatever_their_shape(tmp_path: Path) -> None:
    sample = {"image": encode(photo()), "depth": np.ones((2, 3, 4), np.float32)}
    gpuload.pack([sample] * 12, tmp_path, workers=1, progress=False)
    options: dict[str, Any] = {"fields": ("image", "depth"), "augment": Augment(16, dtype="bfloat16")}
    with load(tmp_path / "train", "native", [lambda batch: None], **options) as loader:
        image, depth = next(iter(loader))
    assert (image.dtype, depth.dtype, depth.shape[1:]) == (torch.bfloat16, torch.float32, (2, 3, 4))


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
        ([MixUp(), CutMix()], {}, r"MixUp.* and CutMix.* would mix the labels twice. Use RandomMixer"),
        ([MixUp(num_classes=2)], {}, "the data set has 3 classes; give as many"),
        ([CenterHole((17, 16))], {}, r"the hole is larger than the image, 16×16"),
        ([CenterHole((16, 17))], {}, r"the hole is larger than the image, 16×16"),
        ([CenterHole(14)], {"augment": {0: Augment(16), 5: Augment(12)}}, r"the hole is larger than the image, 12×12"),
        ([CenterHole(4), CenterHole(4)], {}, "adds the field 'middle', which already exists"),
        ([CenterHole(4, target="label")], {}, "adds the field 'label', which already exists"),
        ([CenterHole(4, target="corrupt")], {"on_corrupt": "mark"}, "on_corrupt='mark' adds as 'corrupt'"),
        ([CenterHole(4, fill=0.5)], {"augment": Augment(16, dtype="uint8")}, "the images are uint8; fill must be"),
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
    with pytest.raises(ArgumentError, match=message):
        load(packed, "auto", transforms, **options)


def test_a_field_that_was_removed_is_named(packed: Path, decoder: str) -> None:
    with (
        load(packed, decoder, [forget]) as loader,
        pytest.raises(ArgumentError, match="removed .* 'label', which"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("mixer", [MixUp(num_classes=3), RandomMixer([MixUp(num_classes=3), CutMix(num_classes=3)])])
def test_labels_that_are_no_class_are_not_mixed(tmp_path: Path, mixer: Any) -> None:
    """A negative number is not the last class. The packed label is named with its sample, a changed one without."""
    label = 5
    image = encode(photo(np.random.default_rng(0), 24, 24))
    samples = ({"image": image, "label": number % 3} for number in range(24))
    gpuload.pack(samples, tmp_path / "packed", workers=1)
    folder = tmp_path / "packed/train"
    write_value(folder, (folder / "index.arrow").read_bytes(), "label", 7, label)
    key = gpuload.Dataset(folder).keys([7])[0]

    def change(batch: FieldBatch) -> None:
        batch.fields["label"][:] = -2

    for transforms, message in (
        (
            [mixer],
            rf"sample '{key}': its 'label' is {label}, which is no class, and .*cannot mix it. Leave out samples",
        ),
        ([change, mixer], "a label is -2, expected a class in 0..2. Leave out samples without a class"),
    ):
        with (
            load(folder, "native", transforms) as loader,
            pytest.raises(ArgumentError, match=message),
        ):
            list(loader)


# Made of numbers and a kernel


class Fade(Operation):
    def draw(self, draws: Any, height: int, width: int) -> Any:
        assert (height, width) == (12, 12)
        return 0.5 + draws(0) / 2

    def kernel(self, numbers: Any, images: Any) -> Any:
        return (images * numbers[:, None, None, None]).to(images.dtype)


class SwapHalf(Operation):
    """Images and labels of two fields, in place and anew."""

    uses = ("label", "image")

    def draw(self, draws: Any, height: int, width: int) -> Any:
        return np.stack([draws(0) < 0.5, draws(1) < 2], 1)

    def kernel(self, numbers: Any, labels: Any, images: Any) -> Any:
        assert numbers.dtype == torch.bool and numbers[:, 1].all()
        images.mul_(0)
        return torch.where(numbers[:, 0], -labels, labels), images


def rows(ranks: Any) -> dict[int, Any]:
    found = {}
    for batches in zip(*ranks, strict=True):
        for index, images, labels in batches:
            found |= {
                int(i): (image.numpy().tobytes(), label.tolist())
                for i, image, label in zip(index, images, labels, strict=True)
            }
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_it_is_done_to_each_image(packed: Path, dtype: Any, layout: Any) -> None:
    augment = Augment(12, dtype=dtype, layout=layout)
    with loaders.load(packed, augment=augment) as loader:
        expected = [images for _, images, _ in loader]
    with loaders.load(packed, augment=augment, batch_transforms=[Fade()]) as loader:
        found = [images for _, images, _ in loader]
    for before, after in zip(expected, found, strict=True):
        assert before.dtype == after.dtype
        factor = after.float().flatten(1).norm(dim=1) / before.float().flatten(1).norm(dim=1)
        assert ((factor > 0.49) & (factor <= 1.01)).all() and len(factor.unique()) > 1


@pytest.mark.parametrize("transforms", [[Fade()], [MixUp(alpha=1), Fade()], [SwapHalf()], [Fade(), SwapHalf(), Fade()]])
def test_its_numbers_are_those_of_the_sample(packed: Path, transforms: Any) -> None:
    """As those of gpuload's own operations: for any ranks and batch size (MixUp's partner depends on them)."""
    options: dict[str, Any] = {"batch_transforms": transforms, "drop_last": False}
    with loaders.load(packed, 8, **options) as loader:
        expected, again = rows([loader]), rows([loader])
    assert expected != again  # another epoch
    with loaders.load(packed, 8, num_threads=3, **options) as loader:
        assert rows([loader]) == expected
    if not isinstance(transforms[0], MixUp):
        assert rows(loaders.world(packed, 3, 5, **options)) == expected


def test_what_it_makes_is_checked(packed: Path) -> None:
    def wrong(match: str, draw: Any = None, kernel: Any = None, **options: Any) -> None:
        class Wrong(Operation):
            def draw(self, draws: Any, height: int, width: int) -> Any:
                return draws(0) if draw is None else draw(draws)

            def kernel(self, numbers: Any, images: Any) -> Any:
                return images if kernel is None else kernel(images)

        with (
            pytest.raises(ArgumentError, match=match),
            loaders.load(packed, batch_transforms=[Wrong()], **options) as loader,
        ):
            list(loader)

    wrong(r"Wrong: draw returned .* \(\), expected \(8,\) or \(8, K\)", lambda draws: 1.0)
    wrong(r"draw returned .* \(2,\), expected \(8,\)", lambda draws: draws(0)[:2])
    wrong(r"batch_transforms\[0\]: asks for draw number 256, expected 0..255", lambda draws: draws(256))
    wrong(r"Wrong: kernel returned None, expected torch.uint8 \(8, 3, 12, 12\) on cpu", kernel=lambda images: None)
    wrong(r"kernel returned torch.float32", kernel=lambda images: images.float())
    wrong(r"kernel returned torch.uint8 \(8, 1, 12, 12\)", kernel=lambda images: images[:, :1])
    wrong(r"kernel returned .*, torch.uint8 .*, expected torch", kernel=lambda images: (images, images))
    wrong(r"Wrong: needs the field 'image'; fields are 'index'", fields=("index",))
    with pytest.raises(TypeError, match="abstract"):
        Operation()  # type: ignore[abstract]
