"""benchmarks/soak.py: a short run is without faults, and faults would be seen."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import soak


def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "_EACH", 2)
    path = tmp_path / "soak.json"
    code = soak.main(["--epochs", "1", "--images", "60", "--decoder", "native", "--json", str(path)])
    assert code == 0, capsys.readouterr().out
    result = json.loads(path.read_text())
    assert result["epochs"] == 10 == len(result["records"]) and result["resumed"] == 5 and len(result["checksums"]) == 2


def test_lost_samples_and_other_pixels_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, loops, calls = soak.epoch, soak.loops, count()

    def spoilt(*given: Any, **stop: Any) -> tuple[list[str], int]:
        (keys, checksum), number = epoch(*given, **stop), next(calls)
        return keys[: len(keys) - (number == 0)], checksum + (number == 1)

    monkeypatch.setattr(soak, "epoch", spoilt)
    monkeypatch.setattr(soak, "loops", lambda decoders: loops(decoders)[:1])
    faults = soak.soak(tmp_path, ["native"], 1, 0, 60)["faults"]
    wanted = ["its keys are not those of the set", "the checksum of its pixels is another one"]
    assert [fault.split(": ", 1)[1] for fault in faults] == wanted


def test_growth_is_told_from_noise() -> None:
    flat = [100 + number % 7 for number in range(60)]
    assert abs(soak.drift(flat)) < 1
    assert soak.drift([value + number for number, value in enumerate(flat)]) == pytest.approx(60, abs=4)
    assert soak.drift([*flat[:30], 10_000, *flat[30:]]) < 1  # one outlier
    assert soak.drift([5, 6]) == 0
