"""examples/switch.py on a small set: three ways to train, the figures and the picture."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def switch(transforms: ModuleType) -> ModuleType:
    """The example, which imports torchvision."""
    import switch as example

    return example


def test_three_ways(switch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    options = ["--images", "128", "--batch-size", "8", "--epochs", "2", "--seeds", "1"]
    options += ["--folder", str(tmp_path), "--json", str(figures), "--plot", str(picture)]
    assert switch.main(options) == 0
    record = json.loads(figures.read_text())
    assert list(record["runs"]) == ["dataloader", "gpuload", "function"]
    for (run,) in record["runs"].values():
        assert 0.1 < run["accuracy"] <= 1 and run["images_per_s"] > 0
    said = capsys.readouterr().out
    assert said.count("accuracy") == 3 and picture.read_bytes().startswith(b"\x89PNG")


def test_options(switch: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--images", "100"], "--images 100: expected at least 16 batches of 50"),
        (["--epochs", "1"], "expected at least 2 epochs"),
    ):
        with pytest.raises(SystemExit):
            switch.main(options)
        assert message in capsys.readouterr().err
