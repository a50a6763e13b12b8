"""The numbers for shuffle quality: known at the ends, and a warning for sorted shards."""

from math import comb
from pathlib import Path

import numpy as np
import pytest
from images import encode, photo

import gpuload
from gpuload.cli import main
from gpuload.order.epoch import measure_mixing, smallest_good_window


@pytest.fixture(scope="module")
def sorted_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 20, a shard each, in this order."""
    out, data = tmp_path_factory.mktemp("packed"), encode(photo())
    samples = ({"image": data, "label": f"class{number // 20:02d}"} for number in range(240))
    gpuload.pack(samples, out, shuffle=False, maxcount=20, workers=1, progress=False)
    return out / "train"


def test_distance_is_near_0_for_one_window_and_large_for_windows_of_one_shard(sorted_set: Path) -> None:
    dataset = gpuload.Dataset(sorted_set)
    # A window that is one shard of twelve: between 0.5 (in the middle) and 11/12 (at an end) away.
    exact = np.mean([max(shard / 12, 1 - (20 * shard + 19) / 240) for shard in range(12)])
    assert measure_mixing(dataset, 1, 24).distance == pytest.approx(exact)
    assert measure_mixing(dataset, 12, 24).distance <= 1 / 240 + 1e-12
    distances = [measure_mixing(dataset, window, 24).distance for window in (1, 2, 3, 6, 12)]
    assert distances == sorted(distances, reverse=True)


def test_sorted_shards_show_in_the_classes_of_a_batch(sorted_set: Path, packed: Path) -> None:
    dataset = gpuload.Dataset(sorted_set)
    poor, good = measure_mixing(dataset, 2, 24), measure_mixing(dataset, 12, 24)
    assert poor.is_poor and not good.is_poor
    exact = 12 * (1 - comb(220, 24) / comb(240, 24))  # each class of 20 is missed by so many batches of 24
    assert poor.classes < 4 and good.expected_classes == pytest.approx(exact, abs=0.4)
    assert good.classes == pytest.approx(exact, abs=0.7)
    assert smallest_good_window(dataset, 24) == 12
    assert not measure_mixing(gpuload.Dataset(packed), 2, 8).is_poor
    # In order of shards a batch of 21 touches two of them, wherever it begins; of 20, one at twelve places of 221.
    assert measure_mixing(dataset, 1, 21).classes == 2
    assert 1.5 < (measure_mixing(dataset, 1, 20).classes or 0) < 2
    assert [measure_mixing(dataset, 1, size).classes for size in (1, 240, 1000)] == [1, 12, 12]


def test_info_tells_it(sorted_set: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, options, expected in (
        (packed, ["--window", "4", "--batch-size", "8"], ["samples 97 in 10 shards", "classes 3: ant, bee, cat"]),
        (packed, ["--window", "4"], ["window 4 of 10 shards", "from a full shuffle"]),
        (sorted_set, ["--window", "2", "--batch-size", "24"], ["the shards are sorted. To fix this, use gpuload.Sh"]),
    ):
        assert main(["info", str(folder), *options]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert all(words in said for words in expected) and ("sorted" in said) == (folder == sorted_set)
    assert "(window=12), or pack again without --no-shuffle" in said
    assert main(["info", str(packed.parent / "nowhere")]) == 2 and "no such folder" in capsys.readouterr().err


def test_info_tells_how_lanes_mix(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distances = []
    for lanes in ([], ["--lanes", "4"]):
        assert main(["info", str(packed), "--window", "1", "--batch-size", "8", *lanes]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("mixed at a time, in each of 4 lanes" in said) == bool(lanes)
        distances.append(float(said.partition("distance ")[2].split()[0]))
    assert distances[1] < 0.7 * distances[0]
    assert main(["info", str(packed), "--lanes", "11"]) == 2
    assert "--lanes 11: expected a whole number in 1..10" in capsys.readouterr().err.replace("\n", " ")
    assert np.isfinite(distances).all()
