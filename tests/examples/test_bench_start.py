"""benchmarks/bench_start.py: new processes of two loaders, warm and cold, and what follows from when batches came."""

import json
from pathlib import Path

import bench_start
import pytest
from timing.process import Start


@pytest.mark.usefixtures("quick_python")
def test_first_seconds_of_two_loaders(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "start.json"
    options = ["--loaders", "gpuload", "torch", "--rounds", "1", "--seconds", "0.5", "--size", "32"]
    options += ["--batch-size", "16", "--threads", "1", "--json", str(figures)]
    assert bench_start.main([str(packed), *options]) == 0
    said = capsys.readouterr().out
    assert "images in 1 s" in said and "in 0.5 s" in said and said.count("cold") == 2
    record = json.loads(figures.read_text())
    assert [loader["name"] for loader in record["loaders"]] == ["gpuload", "torch"]
    for loader in record["loaders"]:
        for state in ("warm", "cold"):
            [found] = loader["rounds"][state]
            assert 0 < found["loader_s"] < found["first_batch_s"]
            assert found == loader[state]


def test_figures_of_when_batches_came() -> None:
    start = Start(opened=2.0, came=[2.5, 2.9, 3.5, 6.0, 7.0, 9.9, 10.5])
    assert bench_start.figures_of(start, batch_size=10, seconds=8) == {
        "first_batch_s": 2.5,
        "loader_s": 0.5,
        "images_1_s": 20,
        "images": 60,
        "images_per_s_then": 7.5,  # three batches in 4 s
    }


def test_what_cannot_be_measured(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_start.main([str(packed), "--loaders", "ffcv"]) == 2
    assert "left out: ffcv: ffcv is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        bench_start.main([str(packed), "--rounds", "0"])
    assert "--rounds and --seconds: expected at least 1" in capsys.readouterr().err
