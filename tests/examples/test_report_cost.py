"""tools/report_cost.py: what a report costs, measured in a process of its own."""

import json
from pathlib import Path

import pytest
import report_cost


def test_the_record(packed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert report_cost.main([str(packed), "--images", "50", "--json", str(tmp_path / "cost.json")]) == 0
    record = json.loads((tmp_path / "cost.json").read_text())
    assert json.loads(capfd.readouterr().out.partition("{")[2].join(["{", ""])) == record
    assert record["images"] == 50 and record["cores"] >= 1
    assert 0 < record["page_bytes"] < 5e6 and record["seconds"] > 0 and record["cpu_seconds"] > 0
    assert 1e7 < record["max_own_bytes"] <= record["max_rss_bytes"]


def test_a_report_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        report_cost.main([str(tmp_path)])
    assert stopped.value.code == 2
