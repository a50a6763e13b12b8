"""Reports and single samples of a set at a URL are those of the folder, and each shard is downloaded once."""

import json
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload import cli


def test_single_samples_at_a_url(proxy: Any, packed: Path, tmp_path: Path) -> None:
    here, there = gpuload.Dataset(packed), gpuload.Dataset(f"{proxy.url}/train", cache=tmp_path)
    for number in (0, 5, 96):
        one, other = here[number], there[number]
        assert one.pop("image").tobytes() == other.pop("image").tobytes() and one == other
    asked = {path: count for path, count in proxy.asked.items() if path.endswith(".tar")}
    assert asked == {"/train/shard-000000.tar": 1, "/train/shard-000009.tar": 1}
    assert "<img" not in there._repr_html_()  # which would download shards


def test_a_report_at_a_url(proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    facts = []
    for name, folder in (("there", f"{proxy.url}/train"), ("here", str(packed))):
        assert cli.main(["report", folder, "-o", f"{name}.html", "--seconds", "0"]) == cli.DONE
        facts.append(json.loads((tmp_path / f"{name}.json").read_text()))
    for name in ("extremes", "duplicates", "classes", "histograms", "files", "looked_at"):
        assert facts[0][name] == facts[1][name]
    assert str(tmp_path) not in (tmp_path / "there.html").read_text()
    assert all(count == 1 for path, count in proxy.asked.items() if path.endswith(".tar"))
