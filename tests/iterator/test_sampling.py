"""Sampling by weights and classes, repeated samples, and stratified mixtures, as a loader gives them."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import drain, load, world

import gpuload
from gpuload import ArgumentError, Repeated, transforms

WEIGHTS = np.arange(97) % 5 / 4.0


def test_repeats_differ_in_every_random_number(packed: Path) -> None:
    weights = np.zeros(97)
    weights[[3, 50]] = 1
    jitter = [transforms.ColorJitter(0.5), transforms.RandomErasing(1.0)]
    augment = gpuload.Augment(12, crop="none", transforms=jitter)
    options: dict[str, Any] = {"fields": ("index", "image"), "sampling": gpuload.Weights(weights, num_samples=40)}
    views = [images for _, images in load(packed, 10, augment=[augment, augment], **options)]
    assert len({image.numpy().tobytes() for batch in views for images in batch for image in images}) == 80
    drawn: list[float] = []
    loader = load(packed, 10, augment=augment, batch_transforms=[lambda batch: drawn.extend(batch.draws(0))], **options)
    assert sum(len(images) for _, images in loader) == 40 == len(set(drawn))


def test_a_subset_takes_weights_of_its_own(packed: Path) -> None:
    samples, table = [5, 30, 31, 90], gpuload.Dataset(packed).column("width").to_numpy()
    part = gpuload.Dataset(packed).subset(samples)
    rows = drain([load(part, 2, sampling=gpuload.Weights([1, 0, 2, 1], num_samples=40))])
    assert Counter(sample for sample, _ in rows) == {5: 10, 31: 20, 90: 10}
    rows = drain([load(part, 2, sampling=gpuload.Weights("width", num_samples=400))])
    counts = np.bincount([sample for sample, _ in rows], minlength=97)[samples]
    assert (np.abs(counts - table[samples] / table[samples].sum() * 400) < 1).all()


def test_a_mixture_is_sampled_in_each_of_its_sets(packed: Path) -> None:
    whole = gpuload.Dataset(packed)
    first, second = whole.subset(range(40)), whole.subset(range(40, 97))
    mixture = gpuload.mix([(first, 1), (second, 1)])
    weights = np.zeros(97)
    weights[[1, 2, 60]] = 1, 3, 1
    rows = drain([load(mixture, 8, steps_per_epoch=512, sampling=gpuload.Weights(weights))])
    counts = Counter(sample for sample, _ in rows)
    assert set(counts) == {1, 2, 60} and counts[60] == 2048 and abs(counts[2] - 1536) <= 40
    labels = whole.labels
    rows = drain([load(mixture, 8, steps_per_epoch=512, sampling=gpuload.Balance("label"))])
    of_first = Counter(labels[sample] for sample, _ in rows if sample < 40)
    assert max(of_first.values()) - min(of_first.values()) <= 20


def test_a_stratified_mixture_holds_the_shares_in_every_batch(packed: Path) -> None:
    whole = gpuload.Dataset(packed)
    parts = [(whole.subset(range(40)), 3), (whole.subset(range(40, 97)), 1)]
    mixture = gpuload.mix(parts, batches="stratified")
    for batches in zip(*world(mixture, 2, 4, fields=("dataset",), steps_per_epoch=30), strict=True):
        assert [sources.tolist().count(0) for (sources,) in batches] == [3, 3]


def test_a_state_belongs_to_its_weights(packed: Path) -> None:
    weighted, plain = load(packed, 8, sampling=gpuload.Weights(WEIGHTS)), load(packed, 8)
    others = [gpuload.Weights(WEIGHTS[::-1]), gpuload.Balance("label"), gpuload.Weights(WEIGHTS, num_samples=90)]
    cases = [(load(packed, 8, sampling=other), weighted) for other in others]
    cases.append((load(packed, sampling=Repeated(2)), load(packed, sampling=Repeated(3))))
    for loader, made in [*cases, (plain, weighted), (weighted, plain)]:
        with pytest.raises(gpuload.StateError, match="was made with sampling=.*, this loader has sampling="):
            loader.load_state_dict(made.state_dict())
    load(packed, 4, sampling=gpuload.Weights(list(WEIGHTS))).load_state_dict(weighted.state_dict())


def test_weights_of_a_packed_column(tmp_path: Path) -> None:
    samples = ({"image": encode(photo()), "label": 0, "hardness": number + 0.5} for number in range(6))
    gpuload.pack(samples, tmp_path, workers=1, shuffle=False)
    rows = drain([load(tmp_path / "train", 6, sampling=gpuload.Weights("hardness", num_samples=180))])
    assert Counter(sample for sample, _ in rows) == {0: 5, 1: 15, 2: 25, 3: 35, 4: 45, 5: 55}
    with pytest.raises(gpuload.ArgumentError, match=r"Balance\('hardness'\): .* 'label'$"):
        load(tmp_path / "train", 6, sampling=gpuload.Balance("hardness"))  # no whole numbers


NOT_STORED = "shuffle=False.: samples are drawn at random. Use True"
BAD = [
    (gpuload.Weights(WEIGHTS[1:]), r"one number for each of 97 samples, found float64 of shape \(96,\)"),
    (gpuload.Weights([[1], [1, 2]]), "one number for each of 97 samples, found"),
    (gpuload.Weights(np.full(97, "a")), "one number for each of 97 samples, found <U1 of"),
    (gpuload.Weights("hardness"), r"Weights\('hardness'\): .*train has no such numbers.*'width', 'height'"),
    (gpuload.Weights(-WEIGHTS), "Weights: .*train: sample 1 has the weight -0.25, expected a finite"),
    (gpuload.Weights(np.where(WEIGHTS > 0.9, np.nan, 1)), "train: sample 4 has the weight nan"),
    (gpuload.Weights(np.zeros(97)), "has 0 samples with a weight above 0"),
    (gpuload.Weights(WEIGHTS, replacement=False, num_samples=90), "has 77 samples with a weight above 0, .* 90"),
    (gpuload.Balance("label", replacement=False, num_samples=97), r"3 classes, the smallest of \d+ samples. Use num"),
]


@pytest.mark.parametrize(("sampling", "message"), BAD)
def test_what_cannot_be_sampled_is_refused(packed: Path, sampling: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(packed, 8, sampling=sampling)
    with pytest.raises(gpuload.ArgumentError, match=NOT_STORED):
        load(packed, 8, sampling=sampling, shuffle=False)


def test_what_needs_a_number_of_samples_and_what_takes_none(packed: Path) -> None:
    for make in (gpuload.Balance, gpuload.Weights):
        with pytest.raises(gpuload.ArgumentError, match=r"\(replacement=False\): .* needs num_samples"):
            make("label", replacement=False)
    mixture: Any = gpuload.mix([(packed, 1), (packed, 1)])
    for sampling in (gpuload.Balance("label", num_samples=10), Repeated(3)):
        with pytest.raises(ArgumentError, match=": is for a single data set, found a mixture of 2"):
            load(mixture, 8, sampling=sampling)
    for options in ({"drop_last": "even"}, {"shuffle": gpuload.Shuffle(lanes=2)}):
        with pytest.raises(ArgumentError, match="Use one of them"):
            load(packed, sampling=Repeated(3), **options)
    with pytest.raises(ArgumentError, match=NOT_STORED):
        load(packed, sampling=Repeated(3), shuffle=False)


@pytest.mark.parametrize("replacement", [True, False])
def test_the_fingerprint_of_weights(packed: Path, replacement: bool) -> None:
    """States of runs hold it."""
    weights = gpuload.Weights(WEIGHTS, replacement=replacement, num_samples=50)
    content = repr((50, "<f8", not replacement)).encode() + WEIGHTS.tobytes()
    of_each_set = hashlib.sha256(content).hexdigest()[:16]
    with load(packed, 8, sampling=weights) as loader:
        assert loader.state_dict()["sampling"] == hashlib.sha256(of_each_set.encode()).hexdigest()[:16]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_take_turns_as_with_rasampler(packed: Path, size: int) -> None:
    """RASampler's parts of `order`, each element three times: every world-th element."""
    options = {"sampling": Repeated(3), "fields": ("index",), "shuffle": gpuload.Shuffle(window=2)}
    ranks = world(packed, size, 12 // size, **options)
    assert {len(loader) for loader in ranks} == {97 // 12}
    (alone,) = [load(packed, 12, **options)]
    stream = [number for _ in range(4) for (index,) in alone for number in index.tolist()]
    for rank, loader in enumerate(ranks):
        own = [number for _ in range(4) for (index,) in loader for number in index.tolist()]
        # An epoch is 97 samples of the stream, of which 8 batches of 12 are handed out.
        places = [97 * epoch + place for epoch in range(4) for place in range(96)]
        assert own == [stream[96 * (at // 97) + at % 97] for at in places if at % size == rank]


def test_repeated_samples_come_equally_often(packed: Path) -> None:
    """In three epochs thrice, with other crops: 291, some of which are alike."""
    loader = load(packed, 97, sampling=Repeated(3), fields=("index", "image"))
    epochs = [
        [(int(i), image.numpy().tobytes()) for i, image in zip(*batch, strict=True)]
        for _ in range(3)
        for batch in loader
    ]
    assert all(len({index for index, _ in epoch}) in (33, 34) for epoch in epochs)
    assert set(Counter(index for epoch in epochs for index, _ in epoch).values()) == {3}
    assert len({pixels for epoch in epochs for _, pixels in epoch}) > 280
