"""benchmarks/compare_accuracy.py: nets trained with each loader, and whether they are equally good."""

import json
from pathlib import Path

import compare_accuracy
import numpy as np
import pytest
from accuracy.equivalence import compare
from images import encode, smooth_image, write_files
from PIL import Image


def rows(loader: str, accuracies: list[float]) -> list[dict]:
    return [
        {"set": "digits", "loader": loader, "seed": seed, "accuracy": accuracy}
        for seed, accuracy in enumerate(accuracies)
    ]


def test_differences_are_taken_seed_by_seed() -> None:
    """Accuracies that vary by 10 % between seeds, and by 0.1 % between loaders of one seed."""
    reference = [0.80, 0.85, 0.90, 0.95]
    near = [accuracy + change for accuracy, change in zip(reference, (0.001, -0.001, 0.001, -0.001), strict=True)]
    found = compare([*rows("a", reference), *rows("b", near), *rows("c", [0.79, 0.84, 0.89, 0.94])], "a")
    assert found["digits", "b"].is_equivalent and not found["digits", "c"].is_equivalent
    assert found["digits", "c"].difference == pytest.approx(-0.01)
    # Student's t of 3 degrees of freedom: 2.3534 for 90 %, times the standard error.
    assert found["digits", "b"].difference_error == pytest.approx(2.3534 * 0.001 * (4 / 3) ** 0.5 / 2, rel=1e-4)


def test_one_seed_shows_nothing() -> None:
    found = compare([*rows("a", [0.9]), *rows("b", [0.9, 0.9])], "a")
    assert found["digits", "b"].runs == 1 and not found["digits", "b"].is_equivalent


def test_runs_are_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Photos of two classes, of which one is dark; each loader's net tells them apart, and is trained once."""
    rng = np.random.default_rng(0)
    files = {}
    for number in range(160):
        image = np.asarray(smooth_image(rng, 40, 40)) // 4 + (number % 2) * 160
        name = f"{('train', 'val')[number >= 128]}/{'ab'[number % 2]}/{number}.jpg"
        files[name] = encode(Image.fromarray(image.astype(np.uint8)))
    write_files(tmp_path / "photos", files)
    record = tmp_path / "runs.jsonl"
    arguments = [str(record), "--sets", "photos", "--photos", str(tmp_path / "photos"), "--seeds", "1"]
    loaders = ["DataLoader + torchvision", "gpuload", "gpuload, set sorted by class"]
    assert compare_accuracy.main([*arguments, "--loaders", *loaders[:2]]) == 0
    first = record.read_text()
    assert compare_accuracy.main([*arguments, "--loaders", *loaders]) == 0
    assert record.read_text().startswith(first)
    found = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["loader"] for row in found] == loaders
    assert all(row["accuracy"] == row["own_accuracy"] for row in found[:2])  # Pillow's pixels in both
    assert min(row["accuracy"] for row in found[:2]) > 0.9
    assert "| photos | gpuload | 1 |" in capsys.readouterr().out
