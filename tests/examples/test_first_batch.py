"""tools/first_batch.py: what it times, and the figures it leaves."""

import json
from pathlib import Path

import first_batch
import pytest

import gpuload


def test_it_times_whole_processes(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, record = len(gpuload.Dataset(packed / "train")), tmp_path / "figures.json"
    options = ["--runs", "2", "--batch-size", "32", "--size", "32", "--json", str(record)]
    assert first_batch.main([str(packed / "train"), *options]) == 0
    found = json.loads(record.read_text())
    assert record.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(found["runs"]) == 2
    assert "cores" in found["machine"][0]
    for run in found["runs"]:
        assert run["samples"] == samples
        assert 0 < run["open_s"] < run["all_s"]
        assert run["compiled"] == 0
        parts = run["open_s"] + run["construct_s"] + run["first_batch_s"]
        assert parts == pytest.approx(run["all_s"])
    said = capsys.readouterr().out
    assert f"{samples:,} samples: first batch {found['median_s']:.2f} s after opening the data, the median of 2" in said


def test_a_cold_process_compiles_and_its_time_counts_from_its_start(
    packed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "figures.json"
    options = ["--cold", "--runs", "1", "--batch-size", "32", "--size", "32", "--json", str(record)]
    assert first_batch.main([str(packed / "train"), *options]) == 0
    found = json.loads(record.read_text())
    (run,) = found["runs"]
    assert found["median_s"] == run["import_s"] + run["all_s"] > run["all_s"]
    assert run["compiled"] >= 1  # the resize
    assert "to import torch and gpuload" in capfd.readouterr().out


def test_a_folder_that_is_not_packed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert first_batch.main([str(tmp_path / "none")]) == 1
    assert "no such folder" in capfd.readouterr().err
