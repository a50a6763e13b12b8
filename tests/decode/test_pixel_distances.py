"""What docs/loading.md promises of the distance between the decoders' pixels is what was measured, and still holds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from images import encode, smooth_image
from loaders import load

import gpuload

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "benchmarks" / "results" / "pixel-differences.json").read_text())["rows"]


def largest(column: str, figure: str, reduced: bool) -> int:
    return max(row[column][figure] for row in ROWS if row["reduced"] <= reduced)


def promised() -> list[int]:
    """Levels of 255: inside an image, inside where it was decoded in full size, at its edges, and of 99.9 % of all."""
    page = " ".join((ROOT / "docs" / "loading.md").read_text().split())
    [levels] = re.findall(
        r"decoded photos differ by at most (\d+) of 255 levels inside the image \((\d+) where it was decoded at full "
        r"size\) and by at most (\d+) along its edges; 99.9 % of all values differ by at most (\d+)",
        page,
    )
    return [int(level) for level in levels]


def test_the_promise_is_that_of_the_record() -> None:
    assert promised() == [
        largest("native-dali-inside", "max", True),
        largest("native-dali-inside", "max", False),
        largest("native-dali", "max", True),
        largest("native-dali", "p99.9", True),
    ]


@pytest.mark.parametrize("crop", ["random", "none"])
@pytest.mark.parametrize(("width", "height", "full"), [(100, 75, True), (500, 375, False)])
def test_the_promise_holds(tmp_path: Path, crop: str, width: int, height: int, full: bool) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": encode(smooth_image(rng, width, height), quality=95)} for _ in range(16)]
    gpuload.pack(samples, tmp_path, workers=1, shuffle=False)
    augment = gpuload.Augment(64, crop=crop, flip=0, dtype="uint8")
    views = []
    for decoder in ("native", "dali"):
        options = {"augment": augment, "fields": ["image"], "decoder": decoder, "shuffle": False}
        with load(tmp_path / "train", 16, **options) as loader:
            [(images,)] = list(loader)
        views.append(images.numpy().astype(int))
    inside, inside_full, edges, most = promised()
    apart = np.abs(views[0] - views[1])
    assert 0 < apart.max() <= edges  # 0: the two were the same decoder
    assert np.percentile(apart, 99.9) <= most
    assert apart[..., 1:-1, 1:-1].max() <= (inside_full if full else inside)
