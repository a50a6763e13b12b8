"""`gpuload info`: options that it refuses. What it says: tests/order/test_mixedness.py."""

from pathlib import Path

import pytest

from gpuload import cli


@pytest.mark.parametrize("option", ["--window", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_options_that_cannot_be(packed: Path, capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert cli.main(["info", str(packed), option, value]) == cli.WRONG
    said = capsys.readouterr()
    assert said.err == f"gpuload: {option} {value}: expected a whole number of at least 1\n" and said.out == ""


def test_larger_than_the_set(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(packed), "--window", "10000", "--batch-size", "10000"]) == cli.DONE
    assert "10 of 10 shards mixed at a time" in capsys.readouterr().out


def test_samples_that_shuffled_epochs_leave_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch_size, said in (
        (8, "shuffled: 12 batches of 8 on one rank, 1 sample left out"),
        (97, None),
        (96, "1 batch"),
    ):
        assert cli.main(["info", str(packed), "--batch-size", str(batch_size)]) == cli.DONE
        out = " ".join(capsys.readouterr().out.split())
        assert ("left out" in out and said in out) if said else "left out" not in out
    assert "drop_last=False keeps them" in out
