"""benchmarks/kill_and_count.py: kills of real processes, and what is counted of them."""

import json
from pathlib import Path
from typing import Any

import kill_and_count
import pytest
from counting.loaders import GLOBAL_BATCH
from counting.report import HEADS, outcome, rows
from counting.runs import Step
from counting.samples import SAMPLES
from counting.trials import count


def test_kills_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other loader has no state, so what it doubles is known: what came before the kill."""
    figures = tmp_path / "kills.json"
    options = ["--loaders", "gpuload", "torch", "--pairs", "1:2", "--json", str(figures)]
    assert kill_and_count.main(options) == 0
    said = capsys.readouterr().out
    assert "`state_dict` of any rank" in said and "DataLoader 2." in said
    own, other = json.loads(figures.read_text())["loaders"]
    [trial] = own["trials"]
    assert (trial["ranks"], trial["resumed_on"], trial["lost"], trial["doubled"]) == (1, 2, 0, 0)
    assert trial["same_order"] and trial["next_batch_s"] > 0 and 0 < trial["after"] <= trial["killed_at"] + 20
    [trial] = other["trials"]
    assert (trial["error"], trial["whole_lost"], trial["whole_doubled"]) == ("", 0, 0)
    epoch_steps = SAMPLES // GLOBAL_BATCH
    assert trial["doubled"] == GLOBAL_BATCH * ((trial["after"] - 1) % epoch_steps + 1)
    assert trial["lost"] == 0 and not trial["same_order"]


def test_a_loader_that_cannot_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert kill_and_count.main(["--loaders", "ffcv", "--pairs", "1:1"]) == 2
    assert "left out: ffcv: ModuleNotFoundError: No module named 'ffcv'" in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["2", "2:4", "0:1", "two:two"])
def test_pairs_are_checked(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        kill_and_count.main(["--pairs", pair])
    assert f"--pairs {pair}: expected two numbers of ranks from 1 to 3, such as 2:3" in capsys.readouterr().err


def steps_of(*epochs: list[int]) -> list[Step]:
    return [Step(number, epoch, tuple(numbers), 0.0) for number, (epoch, numbers) in enumerate(enumerate(epochs), 1)]


def test_lost_and_doubled_samples() -> None:
    every = [*range(SAMPLES)]
    assert count(steps_of(every, every)) == (0, 0)
    assert count(steps_of(every[3:], every)) == (3, 0)
    assert count(steps_of(every, [*every, 7, 7, 8])) == (0, 3)
    assert count(steps_of([*every[1:], 5], every)) == (1, 1)  # one does not make up for the other
    assert count(steps_of(every)) == (SAMPLES, 0)


def trial(**fields: Any) -> dict[str, Any]:
    plain = {"ranks": 2, "resumed_on": 2, "lost": 0, "doubled": 0, "same_order": True, "next_batch_s": 0.5, "error": ""}
    return {**plain, **fields}


def test_outcomes() -> None:
    assert outcome([trial(), trial()]) == ["0", "0", "yes"]
    assert outcome([trial(lost=3, same_order=False), trial(doubled=5)]) == ["up to 3", "up to 5", "1 of 2 times"]
    assert outcome([trial(error="no", same_order=False)]) == ["error 1 of 1 times", "", ""]
    assert outcome([trial(error="no"), trial(same_order=False)]) == ["0; error 1 of 2 times", "0", "no"]
    assert outcome([]) == ["", "", ""]
    record = {"loader": "torch", "version": "2", "means": "no state"}
    [row] = rows(
        [{**record, "trials": [trial(), trial(resumed_on=1, lost=1, next_batch_s=9), trial(next_batch_s=0.7)]}]
    )
    assert row == ["DataLoader 2", "no state", "3", "0", "0", "yes", "up to 1", "0", "yes", "0.60 s"] and len(
        row
    ) == len(HEADS)
