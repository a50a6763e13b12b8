"""examples/recipe.py: the same net with both loaders."""

import json
from pathlib import Path

import numpy as np
import pytest
import recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def test_both_loaders_train_to_about_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, picture = tmp_path / "recipe.json", tmp_path / "recipe.png"
    options = ["--images", "300", "--epochs", "2", "--size", "16", "--plot", str(picture), "--json", str(record)]
    assert recipe.main(options) == 0
    said = capsys.readouterr().out
    assert "300 drawn shapes, 2 epochs: " in said and "times as fast with gpuload" in said
    found = json.loads(record.read_text())
    for name in recipe.LOADERS:
        (run,) = found[name]["runs"]
        assert len(run["losses"]) == len(run["seconds"]) == 2 * (240 // 64)
        assert run["seconds"] == sorted(run["seconds"]) and 0 <= found[name]["accuracies"][0] <= 1
    first = [found[name]["runs"][0]["losses"][0] for name in recipe.LOADERS]
    assert abs(first[0] - first[1]) < 0.2  # the same initial weights, other samples
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_shapes_are_made_by_number() -> None:
    one, again, other = (np.asarray(recipe.draw_shape(number)["image"]) for number in (3, 3, 13))
    assert (one == again).all() and (one != other).any()
    assert [recipe.draw_shape(number)["label"] for number in range(10)] == list(recipe.SHAPES)
    with pytest.raises(SystemExit):
        recipe.main(["--images", "50"])


def test_smoothing() -> None:
    assert recipe.smooth([2.0, 4.0, 6.0], 2).tolist() == [2, 3, 5]
