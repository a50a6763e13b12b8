"""tools/scale.py, which simulates a large set: that it looks for space before it writes."""

import shutil
from pathlib import Path

import pytest
import scale


def test_too_little_space_is_found_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5_000_000_000))
    with pytest.raises(SystemExit, match="2"):
        scale.main([str(tmp_path / "new" / "scale")])
    said = capsys.readouterr().err
    assert "scale-100000000-10000: the index of 100,000,000 samples takes 7.4 GB, and 5.0 GB are free there. " in said
    assert list(tmp_path.iterdir()) == []


def test_the_space_it_asks_for_is_enough_and_not_much_more(tmp_path: Path) -> None:
    for samples, shards in ((25_600, 100), (102_400, 4)):
        folder = tmp_path / str(shards)
        scale.make(folder, samples, shards)
        written = sum((folder / name).stat().st_size for name in ("index.arrow", "manifest.json"))
        assert 0.7 < written / (samples * scale.SAMPLE_BYTES + shards * scale.SHARD_BYTES) < 1
