"""What a mixture is: its shares, length and fingerprint, and which way of dividing positions it asks for."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload
from gpuload import Mixture
from gpuload.order.mixture import ShuffledBlocks, Stratified, interleave, open_data


@pytest.fixture
def halves(packed: Path) -> tuple[gpuload.Dataset, gpuload.Dataset]:
    dataset = gpuload.Dataset(packed)
    return dataset.subset(range(40)), dataset.subset(range(40, 97))


def test_weights_become_shares(halves: Any) -> None:
    mixture = gpuload.mix([(halves[0], 3), (halves[1], 1)])
    assert (mixture.shares, mixture.batches, len(mixture)) == ((0.75, 0.25), "shuffled", 97)
    assert mixture.classes == ("ant", "bee", "cat") and mixture.folder == " + ".join(str(one.folder) for one in halves)
    assert gpuload.mix([(halves[0], 0.3), (halves[1], 0.1)]).shares == pytest.approx((0.75, 0.25))


def test_a_fingerprint_is_of_sets_shares_and_batches(halves: Any) -> None:
    first, second = halves
    kinds = [gpuload.mix([(first, 1), (second, weight)]) for weight in (1, 2)]
    kinds += [gpuload.mix([(second, 1), (first, 1)]), gpuload.mix([(first, 1), (first, 1)])]
    kinds.append(gpuload.mix([(first, 1), (second, 1)], batches="stratified"))
    found = [kind.fingerprint for kind in kinds]
    assert len(set(found)) == len(found) and all(len(one) == 16 for one in found)
    assert gpuload.mix([(first, 5), (second, 5)]).fingerprint == found[0]
    # States of runs hold it: [fingerprints, shares], and `batches` where it is not "shuffled".
    for mixture, more in ((kinds[0], []), (kinds[-1], ["stratified"])):
        content = json.dumps([[first.fingerprint, second.fingerprint], [0.5, 0.5], *more])
        assert mixture.fingerprint == hashlib.sha256(content.encode()).hexdigest()[:16]


def test_positions_are_divided_as_asked(halves: Any) -> None:
    parts = [(halves[0], 3), (halves[1], 1)]
    shuffled, stratified = interleave(gpuload.mix(parts), 5), interleave(gpuload.mix(parts, batches="stratified"), 5)
    assert isinstance(shuffled, ShuffledBlocks) and isinstance(stratified, Stratified)
    assert shuffled.sources(0, 500).tolist() == ShuffledBlocks((0.75, 0.25), 5).sources(0, 500).tolist()
    assert stratified.sources(0, 8).tolist() == Stratified((0.75, 0.25)).sources(0, 8).tolist()
    assert np.bincount(stratified.sources(4, 8)).tolist() == [3, 1]


def test_data_of_any_form_is_opened(halves: Any, packed: Path) -> None:
    mixture = gpuload.mix([(halves[0], 3), (str(packed), 1)])
    assert open_data(mixture) == (mixture, mixture)
    for given in (packed, str(packed), gpuload.Dataset(packed)):
        data, alone = open_data(given)
        assert isinstance(data, gpuload.Dataset) and len(data) == 97
        assert alone.datasets == (data,) and alone.shares == (1.0,)
        assert alone.classes == ("ant", "bee", "cat") and alone.folder == str(packed)


def test_samples_are_left_out_of_any_form(halves: Any, packed: Path) -> None:
    keys = gpuload.Dataset(packed).keys(np.array([3, 50, 51]))
    data, alone = open_data(gpuload.Dataset(packed, exclude=keys))
    assert len(data) == len(alone) == 94 and alone.datasets == (data,)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.6), r"Mixture\(shares=\(0.5, 0.6\)\): expected 2 numbers above 0 that sum to 1. Use gpuload.mix"),
        ((1.0,), r"Mixture\(shares=\(1.0,\)\): expected 2 numbers"),
        ((1.0, 0.0), r"Mixture\(shares=\(1.0, 0.0\)\): expected 2 numbers above 0"),
        ((0.4, 0.3, 0.3), "expected 2 numbers above 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(halves: Any, shares: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        Mixture(halves, shares)
    with pytest.raises(gpuload.ArgumentError, match=r"Mixture\(datasets=.*expected a tuple of gpuload.Dataset"):
        Mixture(("shards",), (1.0,))  # type: ignore[arg-type]
    with pytest.raises(gpuload.ArgumentError, match=r"Mixture\(batches='mixed'\)"):
        Mixture(halves, (0.5, 0.5), "mixed")  # type: ignore[arg-type]
