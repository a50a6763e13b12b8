"""Sampling by weights and classes, and stratified mixtures, as a loader gives them."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import drain, load, world

import gpuload
from gpuload import transforms
from gpuload.cli import main

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
    rows = drain([load(mixture, 8, steps_per_epoch=30)])
    assert sorted(sample for sample, _ in rows[:160] if sample < 40)[::3] == sorted(range(40))


def test_a_state_belongs_to_its_weights(packed: Path) -> None:
    weighted, plain = load(packed, 8, sampling=gpuload.Weights(WEIGHTS)), load(packed, 8)
    others = [gpuload.Weights(WEIGHTS[::-1]), gpuload.Balance("label"), gpuload.Weights(WEIGHTS, num_samples=90)]
    cases = [(load(packed, 8, sampling=other), weighted) for other in others]
    for loader, made in [*cases, (plain, weighted), (weighted, plain)]:
        with pytest.raises(gpuload.StateError, match="was made with sampling=.*, this loader has sampling="):
            loader.load_state_dict(made.state_dict())
    load(packed, 4, sampling=gpuload.Weights(list(WEIGHTS))).load_state_dict(weighted.state_dict())


def test_weights_of_a_packed_column(tmp_path: Path, photos: Path) -> None:
    files = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.jpg"))[:6]
    table = tmp_path / "table.csv"
    table.write_text("path,label,hardness\n" + "".join(f"{file},0,{number}.5\n" for number, file in enumerate(files)))
    command = ["pack", str(photos), str(tmp_path / "out"), "--labels", str(table), "--column", "target=hardness"]
    assert main(command) == 0
    dataset = gpuload.Dataset(tmp_path / "out" / "train")
    rows = drain([load(dataset, 6, sampling=gpuload.Weights("target", num_samples=180))])
    counts = Counter(dataset.keys([sample])[0] for sample, _ in rows)
    assert sorted(counts.values()) == [5, 15, 25, 35, 45, 55]
    with pytest.raises(
        gpuload.ArgumentError, match=r"Balance\('target'\): .*train has no such numbers .*'width', 'height', 'label'"
    ):
        load(dataset, 6, sampling=gpuload.Balance("target"))


BAD = [
    (gpuload.Weights(WEIGHTS[1:]), r"one number for each of 97 samples, found float64 of shape \(96,\)"),
    (gpuload.Weights([[1], [1, 2]]), "one number for each of 97 samples, found"),
    (gpuload.Weights(np.full(97, "a")), "one number for each of 97 samples, found <U1 of"),
    (gpuload.Weights("hardness"), r"Weights\('hardness'\): .*train has no such numbers.*'width', 'height'"),
    (gpuload.Balance("key"), r"Balance\('key'\): .*train has no such numbers"),
    (gpuload.Weights(-WEIGHTS), "Weights: .*train: sample 1 has the weight -0.25, expected a finite"),
    (gpuload.Weights(np.where(WEIGHTS > 0.9, np.nan, 1)), "train: sample 4 has the weight nan"),
    (gpuload.Weights(np.zeros(97)), "has 0 samples with a weight above 0"),
    (gpuload.Weights(WEIGHTS, replacement=False, num_samples=90), "has 77 samples with a weight above 0, .* 90"),
    (
        gpuload.Balance("label", replacement=False, num_samples=97),
        r"3 classes, the smallest of \d+ samples. Use num_samples of at most",
    ),
]


@pytest.mark.parametrize(("sampling", "message"), BAD)
def test_what_cannot_be_sampled_is_refused(packed: Path, sampling: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(packed, 8, sampling=sampling)
    with pytest.raises(gpuload.ArgumentError, match="shuffle=False.: samples are drawn at random. Use True"):
        load(packed, 8, sampling=sampling, shuffle=False)


def test_what_needs_a_number_of_samples_and_what_takes_none(packed: Path) -> None:
    for make in (gpuload.Balance, gpuload.Weights):
        with pytest.raises(gpuload.ArgumentError, match=r"\(replacement=False\): .* needs num_samples"):
            make("label", replacement=False)
    mixture = gpuload.mix([(packed, 1), (packed, 1)])
    with pytest.raises(gpuload.ArgumentError, match="Balance: is for a single data set, found a mixture of 2"):
        load(mixture, 8, sampling=gpuload.Balance("label", num_samples=10))


@pytest.mark.parametrize("replacement", [True, False])
def test_the_fingerprint_of_weights(packed: Path, replacement: bool) -> None:
    """States of runs hold it."""
    weights = gpuload.Weights(WEIGHTS, replacement=replacement, num_samples=50)
    content = repr((50, "<f8", not replacement)).encode() + WEIGHTS.tobytes()
    of_each_set = hashlib.sha256(content).hexdigest()[:16]
    with load(packed, 8, sampling=weights) as loader:
        assert loader.state_dict()["sampling"] == hashlib.sha256(of_each_set.encode()).hexdigest()[:16]
