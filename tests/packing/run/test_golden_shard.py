"""A shard and its index, byte for byte; `tests/golden/regenerate_shard.py` says when they may be changed."""

import importlib.util
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"


def test_golden_shard(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("regenerate_shard", GOLDEN / "regenerate_shard.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    packed = script.pack_golden(tmp_path / "out")
    assert sorted(path.name for path in packed.glob("shard-*")) == sorted(script.FILES)
    for name in script.FILES:
        assert (packed / name).read_bytes() == (GOLDEN / name).read_bytes(), name
    assert (GOLDEN / script.FILES[0]).stat().st_size == pytest.approx(20_480, abs=10_240)
