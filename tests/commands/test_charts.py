"""The charts beside the records of tools/ and of `tune`: drawn from the committed records, and where they are not drawn."""

import json
import sys
from pathlib import Path

import bench_pack
import benchmark.plot
import numpy as np
import pytest
from PIL import Image

from gpuload.commands.charts import bars

RESULTS = Path(__file__).parents[2] / "tools" / "results"


def record(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("pack-2-cores", lambda found, path: bench_pack.plot(found["folders"], path)),
    ],
)
def test_the_chart_of_a_record(name: str, draw: object, tmp_path: Path) -> None:
    draw(record(name), tmp_path / "chart.png")  # type: ignore[operator]
    with Image.open(tmp_path / "chart.png") as made, Image.open(RESULTS / f"{name}.png") as kept:
        assert made.size == kept.size and np.asarray(made).std() > 5


@pytest.mark.parametrize("dark", [False, True])
def test_the_benchmark_stands_out(tmp_path: Path, dark: bool) -> None:
    found = record("cpu-2-cores")
    benchmark.plot.plot(found["loaders"], found["ceiling"], "title", tmp_path / "chart.png", dark)
    with Image.open(tmp_path / "chart.png") as image:
        pixels = np.asarray(image.convert("RGBA")).reshape(-1, 4)
    own = tuple(int(benchmark.plot.OWN[at : at + 2], 16) for at in (1, 3, 5))
    shown = {tuple(pixel) for pixel in pixels[pixels[:, 3] == 255][:, :3].tolist()}
    ink = tuple(int(benchmark.plot.INK[dark][at : at + 2], 16) for at in (1, 3, 5))
    assert own in shown and ink in shown
    assert (pixels[:, 3] == 0).mean() > 0.4  # the background is the page's


def test_no_chart_where_there_is_nothing_to_draw_or_to_draw_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chart.png"
    assert not bars([], "title", "images/s", path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not bars([("one", [1.0])], "title", "images/s", path)
    assert not path.exists()
    monkeypatch.undo()
    assert bars([("one", [1.0, 3.0]), ("two", [2.0])], "title", "images/s", path, highlight="one")
    assert path.read_bytes().startswith(b"\x89PNG")
