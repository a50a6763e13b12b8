"""benchmarks/sequences.py: a few sequences hold, and what is not as documented would be seen."""

from typing import Any

import pytest
import sequences

import gpuload
from gpuload.order.stream import Epochs, Position


def test_sequences_hold(capsys: Any) -> None:
    assert sequences.main(["--count", "12"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("12 sequences held")
    assert all(name in second for name in ("epochs", "errors", "left", "resumes", "steps", "stopped"))


def skip_a_sample(epochs: Epochs, position: Position) -> Position:
    return Position(position.epoch + 1, position.begin + max(epochs.samples, position.samples) + 1, 0)


def lose_the_rest(loader: gpuload.DaliIterator, epoch: int) -> None:
    loader.set_epoch(epoch)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Epochs, "following", skip_a_sample), (gpuload.DaliIterator, "_move_on", lose_the_rest)],
)
def test_faults_are_seen(owner: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(owner, name, fault)
    assert sequences.main(["--count", "40"]) == 1
    assert "sequence " in capsys.readouterr().out
