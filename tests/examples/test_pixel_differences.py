"""tools/pixel_differences.py: that what the documents promise of pixels is what was measured, and still holds."""

import json
import re
from pathlib import Path

import numpy as np
import pixel_differences
import pytest
from images import encode, smooth_image

import gpuload

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "tools" / "results" / "pixel-differences.json").read_text())["rows"]


def largest(column: str, figure: str, reduced: bool) -> float:
    return max(row[column][figure] for row in ROWS if row["reduced"] <= reduced)


def test_the_table_is_that_of_the_record() -> None:
    design = (ROOT / "gpuload" / "DESIGN.md").read_text()
    assert "\n".join(pixel_differences.table(ROWS)) in design


def test_the_promise_is_that_of_the_record() -> None:
    page = " ".join((ROOT / "docs" / "loading.md").read_text().split())
    [promised] = re.findall(
        r"inside an image, decoded photos differ by at most (\d+) of 255 levels \((\d+) where the image was decoded in full "
        r"size\), along its edges by at most (\d+), and 99.9 % of all values by at most (\d+)",
        page,
    )
    assert [int(number) for number in promised] == [
        largest("native-dali-inside", "max", True),
        largest("native-dali-inside", "max", False),
        largest("native-dali", "max", True),
        largest("native-dali", "p99.9", True),
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Of generated images, of which a few are so large that they are decoded at a reduced size."""
    rng = np.random.default_rng(0)
    sizes = [(500, 375)] * 6 + [(1000, 700)] * 2
    samples = [{"image": encode(smooth_image(rng, *size), quality=95)} for size in sizes]
    folder = tmp_path_factory.mktemp("differences")
    gpuload.pack(samples, folder / "packed", workers=1, shuffle=False)
    return pixel_differences.rows_of(pixel_differences.measure(folder / "packed" / "train", [64], 32))


def test_a_fresh_run_stays_within_what_is_promised(found: list[dict]) -> None:
    assert {(row["crop"], row["reduced"]) for row in found} >= {("random", False), ("none", False), ("none", True)}
    for row in found:
        for column in pixel_differences.COLUMNS:
            for figure in ("mean", "p99.9", "max"):
                assert row[column][figure] <= largest(column, figure, row["reduced"]), (
                    row,
                    column,
                    figure,
                )
        assert row["native-dali"]["max"] > 0  # the two were not the same decoder


def test_the_figures_of_a_distribution() -> None:
    counts = np.zeros(256, np.int64)
    counts[[0, 1, 9]] = 900, 99, 1
    assert pixel_differences.summary(counts) == {"mean": 0.108, "p99.9": 1, "max": 9}
