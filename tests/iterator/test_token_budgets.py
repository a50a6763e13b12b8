"""Loaders with a budget of tokens: patches of whole images, no more than the budget, each sample once, on any ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from images import encode, photo
from loaders import load

import gpuload
from gpuload import ArgumentError, Augment, Budget, Patches, StateError

PATCH, MOST = 4, 40
AUGMENT = Augment(None, Patches(PATCH, MOST), dtype="uint8")
SIZES = [(16, 24), (24, 16), (9, 31), (40, 40), (12, 12), (16, 26)]  # (height, width) in pixels
FIELDS = ("image", "index", "label")


def load_tokens(data: Any, tokens: int = 160, **options: Any) -> gpuload.DaliIterator:
    usual = {"augment": AUGMENT, "fields": FIELDS, "shuffle": gpuload.Shuffle(window=2), "decoder": "native"}
    budget = Budget(tokens, options.pop("multiple", None))
    return load(data, budget, **{**usual, **options})  # type: ignore[arg-type]


def world(data: Any, ranks: int, tokens: int, **options: Any) -> list[gpuload.DaliIterator]:
    return [load_tokens(data, tokens, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


Sequence = list[tuple[int, ...]]


def steps(loaders: Any, count: int | None = None) -> Sequence:
    """The samples of each global batch of an epoch, or of its first ones."""
    made: Sequence = []
    for batches in zip(*loaders, strict=True):
        parts = [
            index.tolist()[: len(index) - loader.padding]
            for (_, index, _), loader in zip(batches, loaders, strict=True)
        ]
        made.append(tuple(sample for part in parts for sample in part))
        if len(made) == count:
            break
    return made


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 images of six shapes, in 22 shards."""
    folder = tmp_path_factory.mktemp("shapes")
    which = np.random.default_rng(0).permutation(np.arange(150) % 6).tolist()
    images = [encode(photo(number, width, height), "PNG") for number, (height, width) in enumerate(SIZES)]
    samples = ({"image": images[shape], "label": shape} for shape in which)
    gpuload.pack(samples, folder, workers=1, maxcount=7, shuffle=False)
    return folder / "train"


def image_of(patches: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(height, width, 3), put together from the patches of one image without padding."""
    rows, columns = places.max(axis=0) + 1
    image = np.zeros((rows * PATCH, columns * PATCH, 3), np.uint8)
    for patch, (row, column) in zip(patches, places.tolist(), strict=True):
        part = patch.reshape(PATCH, PATCH, 3)
        image[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = part
    return image


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_patches_are_those_of_the_stretched_image(shapes: Path, output: str) -> None:
    """Row by row, then padding; of the size that is nearest to the image's own."""
    sizes = {(16, 24): (16, 24), (24, 16): (24, 16), (9, 31): (8, 32), (40, 40): (24, 24), (12, 12): (12, 12),
             (16, 26): (16, 24)}  # fmt: skip
    stretched = {}
    for size in sizes.values():
        for images, index, _ in load(
            shapes, augment=Augment(size, crop="none", dtype="uint8"), drop_last=False, fields=FIELDS
        ):
            stretched |= {(int(i), size): image.numpy() for i, image in zip(index, images, strict=True)}
    seen = 0
    for batch in load_tokens(shapes, drop_last=False, output=output):
        image, index, labels = batch
        patches, places, valid = (np.asarray(image[name]) for name in ("patches", "patch_coord", "patch_valid"))
        assert (patches.dtype, places.dtype, valid.dtype) == (np.uint8, np.int64, np.bool_)
        assert patches.shape == (*valid.shape, PATCH * PATCH * 3) and places.shape == (*valid.shape, 2)
        assert valid.size <= 160 and valid.sum(axis=1).max() == valid.shape[1]
        assert not patches[~valid].any() and not places[~valid].any()
        for row, sample in enumerate(np.asarray(index).tolist()):
            length = int(valid[row].sum())
            assert valid[row, :length].all()
            size = sizes[SIZES[int(labels[row])]]
            image = image_of(patches[row, :length], places[row, :length])
            expected = stretched[sample, size].transpose(1, 2, 0)
            assert image.shape == expected.shape
            assert np.abs(image.astype(int) - expected).max() <= 1
            seen += 1
    assert seen == 150


@pytest.mark.parametrize("drop_last", [True, False, "exact"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_sample_comes_once_on_any_ranks(shapes: Path, ranks: int, drop_last: Any) -> None:
    loaders = world(shapes, ranks, 160, drop_last=drop_last)
    for _ in range(2):
        samples = [sample for step in steps(loaders) for sample in step]
        assert len(samples) == len(set(samples)) == loaders[0].num_samples
        assert 150 - len(samples) < ranks if drop_last is True else len(samples) == 150
    assert {len(loader) for loader in loaders} == {len(steps(loaders))}


@pytest.mark.parametrize("stopped", [1, 3, 9])
def test_a_run_resumes_on_other_ranks(shapes: Path, stopped: int) -> None:
    """Where the multiple and all tokens stay the same. What waits is copied from earlier shards."""
    whole = world(shapes, 1, 480, multiple=6)
    expected = [step for _ in range(3) for step in steps(whole)]
    first = world(shapes, 2, 240, multiple=6)
    made = [*steps(first), *steps(first, stopped)]
    later = world(shapes, 3, 160, multiple=6)
    for loader in later:
        loader.load_state_dict(first[0].state_dict())
    made += steps(later) + steps(later)
    assert made == expected


def test_a_state_of_another_budget_is_refused(shapes: Path) -> None:
    state = load_tokens(shapes, 160).state_dict()
    for other, name in (
        (load_tokens(shapes, 200), "batch_tokens=160, this loader has batch_tokens=200"),
        (load_tokens(shapes, 160, multiple=2), "batch_multiple=1"),
        (load_tokens(shapes, 160, augment=Augment(None, Patches(PATCH, 30))), "buckets='patches-4-40'"),
        (load(shapes, 4, shuffle=gpuload.Shuffle(window=2)), "buckets='patches-4-40'"),
    ):
        with pytest.raises(StateError, match=f"was made with {name}"):
            other.load_state_dict(state)


def test_little_is_padded(shapes: Path) -> None:
    """Each batch but the last ones is of nearly equal lengths."""
    valid = [batch.image["patch_valid"] for batch in load_tokens(shapes, 400, drop_last=False)]
    shares = [float(one.float().mean()) for one in valid]
    # Of 25, 25, 75 and 25 images of 9, 16, 24 and 36 patches: so many batches of 400 // 9, 16, 25 and 37.
    whole = 25 // 44 + 25 // 25 + 75 // 16 + 25 // 10
    assert len(shares) > whole and min(shares[:whole]) >= 0.95


def test_samples_that_do_not_decode(shapes: Path, tmp_path: Path) -> None:
    broken = damage(shapes, tmp_path / "broken", [3, 60, 149])
    options: dict[str, Any] = {"drop_last": False, "num_threads": 2}
    whole = {int(i): b for batch in load_tokens(shapes, **options) for i, b in _rows(batch)}
    marked = [(i, b, bad) for batch in load_tokens(broken, on_corrupt=gpuload.OnCorrupt("mark", most=0.5), **options)
              for (i, b), bad in zip(_rows(batch), batch.corrupt.tolist(), strict=True)]  # fmt: skip
    assert len(marked) == 150 and sum(bad for _, _, bad in marked) == 3
    assert all(not np.frombuffer(b, np.uint8).any() if bad else b == whole[i] for i, b, bad in marked)
    loader = load_tokens(broken, on_corrupt=gpuload.OnCorrupt("skip", most=0.5), **options)
    assert all(b == whole[i] for batch in loader for i, b in _rows(batch))
    assert loader.report().corrupt == 3


def _rows(batch: Any) -> list[tuple[int, bytes]]:
    """Each sample and its patches without padding."""
    patches, valid = batch.image["patches"], batch.image["patch_valid"]
    rows = zip(batch.index.tolist(), patches, valid, strict=True)
    return [(sample, own[is_valid].numpy().tobytes()) for sample, own, is_valid in rows]


def test_a_fixed_number_of_samples_may_be_patches_too(shapes: Path) -> None:
    images, _, _ = next(iter(load(shapes, 8, augment=AUGMENT, fields=FIELDS)))
    assert images["patches"].shape[::2] == (8, PATCH * PATCH * 3)
    halves = load(shapes, 8, augment=Augment(None, Patches(PATCH, MOST), dtype="bfloat16", flip=0.5))
    patches = next(iter(halves)).image["patches"]
    assert str(patches.dtype) == "torch.bfloat16" and repr(halves).count("batches of 8")


def test_patches_are_not_shown(shapes: Path) -> None:
    with pytest.raises(ArgumentError, match="preview: shows images, and Patches makes none"):
        load_tokens(shapes).preview()


def test_dali_makes_no_patches(shapes: Path) -> None:
    for decoder in ("dali", "both"):
        with pytest.raises(ArgumentError, match=f"decoder='{decoder}': does not"):
            load_tokens(shapes, decoder=decoder)


BUCKETS = Augment(gpuload.Buckets([(8, 8)]), crop="cover")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"augment": Augment(8)},
            r"counts the patches of images of their own sizes. Use augment=gpuload.Augment\(None",
        ),
        ({"augment": BUCKETS}, "counts the patches of images of their own sizes"),
        ({"augment": [AUGMENT, AUGMENT]}, "Patches makes one view of each sample, and there are 2"),
        ({"augment": {0: AUGMENT, 2: Augment(None, Patches(8), dtype="uint8")}}, "augment: patch differs, 4 and 8"),
        ({"sampling": gpuload.Balance("label")}, "whole batches, and sampling= needs other epochs"),
        ({"steps_per_epoch": 3}, "and steps_per_epoch= needs other epochs"),
        ({"drop_last": "even"}, "and drop_last='even' needs other epochs"),
        ({"shuffle": gpuload.Shuffle(lanes=2)}, r"and Shuffle\(lanes=...\) needs other epochs"),
        ({"multiple": 3, "rank": 0, "world_size": 2}, r"Budget\(multiple=3\): is no multiple of 2 ranks"),
        ({"tokens": 36}, "36 tokens over all ranks, and 1 images of 37 tokens, the longest, have more"),
        ({"batch_transforms": [gpuload.batchwise.MixUp()]}, "not a list of images, patches or several views"),
        ({"multiple": 151, "tokens": 10_000}, "has 150 samples, fewer than 151, so an epoch has no batch"),
    ],
)
def test_what_budgets_do_not_go_with(shapes: Path, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load_tokens(shapes, **options)
    mixture = gpuload.mix([(shapes, 1), (shapes, 1)])
    with pytest.raises(ArgumentError, match="and a mixture needs other epochs"):
        load_tokens(mixture)
