"""tools/dali_leak.py: what DALI keeps of each pipeline is measured."""

import json
from pathlib import Path

import dali_leak
import pytest


def test_it_tells_bytes_of_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        dali_leak, "build_and_release", lambda decodes: held.append(bytearray(1 << 18 if decodes else 1))
    )
    held: list[bytearray] = []
    assert dali_leak.main(["--pipelines", "20", "--json", str(tmp_path / "leak.json")]) == 0
    result = json.loads((tmp_path / "leak.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    without, decoding = result["bytes_per_pipeline"].values()
    assert without < 1000 and decoding == pytest.approx(1 << 18, rel=0.05)


def test_it_builds_pipelines() -> None:
    dali_leak.build_and_release(decodes=True)
    with pytest.raises(SystemExit):
        dali_leak.main(["--pipelines", "0"])
