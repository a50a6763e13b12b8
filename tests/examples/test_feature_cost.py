"""The script that measures what buckets and captions cost, on a small set."""

import json
import sys
from pathlib import Path

import pytest
from bucket_sets import make_samples

import gpuload

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import feature_cost


def test_each_feature_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpuload.pack(make_samples(), tmp_path / "set", workers=1)
    usual = [str(tmp_path / "set" / "train"), "--size", "16", "--batch-size", "8", "--rounds", "1", "--seconds", "0.05"]
    figures = tmp_path / "figures.json"
    assert feature_cost.main([*usual, "--captions", "text", "--no-images", "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())["features"]
    assert set(found) == {"buckets", "captions", "tokens"} and all(figure["time"] > 0 for figure in found.values())
    assert capsys.readouterr().out.count("processor time x") == 3
    assert feature_cost.main([*usual, "--features", "captions"]) == 2
    assert "has no field 'captions'" in capsys.readouterr().err
