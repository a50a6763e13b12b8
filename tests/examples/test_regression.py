"""examples/regression.py: it learns, and times what it says."""

import json
from pathlib import Path
from statistics import median

import made_up
import pytest
import regression

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--size", "32", "--batch-size", "16"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up.make("hdf5", tmp_path_factory.mktemp("regression") / "road.h5", 400, 32)


@pytest.mark.parametrize(("encode", "dtype"), [("jpeg", "float32"), ("raw", "uint8")])
def test_learns(store: Path, encode: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, shards = tmp_path / "figures.json", tmp_path / "packed"
    options = ["--shards", str(shards), "--encode", encode, "--dtype", dtype, "--epochs", "4", "--json", str(record)]
    assert regression.main([str(store), *SMALL, *options]) == 0
    said = capsys.readouterr().out
    found = json.loads(record.read_text())
    explained = [epoch["explained"] for epoch in found["both"]]
    assert len(explained) == 4
    assert explained[-1] > 0.5
    assert explained[-1] > explained[0]
    assert found["samples"] == 400
    assert len(found["loader_alone"]) == len(found["net_alone"]) == 4
    assert found["own_bytes"] > 0
    for what, times in (("loader alone", found["loader_alone"]), ("both", found["both"])):
        assert f"{what:13} {median(one['seconds'] for one in times):7.2f} s per epoch" in said


def test_its_ratio_is_that_of_the_same_epoch() -> None:
    both, alone, net = ([{"seconds": value} for value in values] for values in ((8, 9, 50), (1, 2, 5), (4, 9, 10)))
    assert regression.ratio(both, alone, net, max) == 2  # of 2, 1 and 5
    assert regression.ratio(both, alone, net, lambda a, n: a + n) == 8 / 5


def test_a_target_that_is_not_there(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = tmp_path / "packed"
    assert regression.main([str(store), *SMALL, "--shards", str(shards), "--target", "angle"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "'angle'" in error
    assert "'target'" in error
