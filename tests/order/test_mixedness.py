"""The numbers for shuffle quality: known at the ends, and a warning for sorted shards."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from images import encode, photo

import gpuload
from gpuload.cli import main
from gpuload.order.mixedness import expected_classes, is_sorted_by_class, measure_mixing, smallest_good_window


@pytest.fixture(scope="module")
def sorted_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 20, a shard each, in this order."""
    source = tmp_path_factory.mktemp("sorted")
    data = encode(photo())
    for number in range(240):
        path = source / f"class{number // 20:02d}" / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    out = tmp_path_factory.mktemp("packed")
    assert main(["pack", str(source), str(out), "--no-shuffle", "--maxcount", "20", "--workers", "1"]) == 0
    return out / "train"


def test_expected_classes_against_drawing() -> None:
    sizes = np.array([50, 30, 15, 4, 1])
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), sizes)
    drawn = [len(np.unique(rng.permutation(labels)[:10])) for _ in range(4000)]
    assert abs(expected_classes(sizes, 10) - np.mean(drawn)) < 0.05
    assert expected_classes(sizes, 100) == pytest.approx(5)
    assert expected_classes(sizes, 1) == pytest.approx(1)


def test_distance_is_near_0_for_one_window_and_large_for_windows_of_one_shard(sorted_set: Path) -> None:
    dataset = gpuload.Dataset(sorted_set)
    assert measure_mixing(dataset, 12, 24).distance < 0.01
    # A window that is one shard of twelve: between 0.5 (in the middle) and 11/12 (at an end) away.
    assert 0.65 < measure_mixing(dataset, 1, 24).distance < 0.75
    distances = [measure_mixing(dataset, window, 24).distance for window in (1, 2, 3, 6, 12)]
    assert distances == sorted(distances, reverse=True)


def test_sorted_shards_show_in_the_classes_of_a_batch(sorted_set: Path, packed: Path) -> None:
    dataset = gpuload.Dataset(sorted_set)
    poor, good = measure_mixing(dataset, 2, 24), measure_mixing(dataset, 12, 24)
    assert poor.is_poor and not good.is_poor
    assert poor.classes < 4 and good.classes == pytest.approx(good.expected_classes, abs=0.7)
    assert smallest_good_window(dataset, 24) == 12
    assert not measure_mixing(gpuload.Dataset(packed), 2, 8).is_poor


def test_info_tells_it(sorted_set: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(packed), "--window", "4", "--batch-size", "8"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "samples 97 in 10 shards" in said and "classes 3: ant, bee, cat" in said
    assert "window 4 of 10 shards" in said and "from a full shuffle" in said and "Warning" not in said
    assert main(["info", str(sorted_set), "--window", "2", "--batch-size", "24"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the shards are sorted. To mend it, use DaliIterator(window=12), or pack again without --no-shuffle" in said
    assert main(["info", str(packed / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_loader_warns_of_sorted_shards(sorted_set: Path, packed: Path) -> None:
    options = {"batch_size": 24, "augment": gpuload.Augment(8), "device": "cpu"}
    assert is_sorted_by_class(gpuload.Dataset(sorted_set), 2)
    with pytest.warns(
        UserWarning, match=r"sorted by class.*Pack them again without --no-shuffle, or raise window.*info"
    ) as warned:
        gpuload.DaliIterator(sorted_set, window=2, **options)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpuload.DaliIterator(sorted_set, window=12, **options)
        gpuload.DaliIterator(sorted_set, window=2, shuffle=False, **options)
        gpuload.DaliIterator(packed, window=1, **options)
