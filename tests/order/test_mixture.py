"""What a mixture is: its shares, length and fingerprint."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload.order.stream import ShuffledBlocks


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


def test_shares_are_rounded_to_the_nearest() -> None:
    assert ShuffledBlocks((0.0003, 0.9997), 0).drawn(4096).tolist() == [1, 4095]
