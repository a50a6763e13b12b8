"""benchmarks/signals.py: a short run is without faults, and faults would be seen."""

import json
from pathlib import Path

import pytest
import signals


def test_a_short_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "signals.json"
    code = signals.main(["--signals", "150", "--decoder", "native", "--json", str(path)])
    assert code == 0, capfd.readouterr().out
    result = json.loads(path.read_text())
    assert result["signals"] >= 150 and set(result["during"]) >= {"loop", "construct", "preview"}


def test_what_differs_is_told() -> None:
    expected = [[1], [2], [3], [4]]
    assert signals._difference([[1], [3], [4], [5]], expected) == "batch 1 is lost"
    assert signals._difference([[1], [3], [2], [4]], expected) == "batch 1 is not that of the undisturbed run"
