"""What the trials of the loaders came to: the rows of the table."""

import statistics
from collections.abc import Sequence
from typing import Any

from counting.table import title

Trial = dict[str, Any]  # the fields of `counting.trials.Trial`

HEADS = (
    "loader",
    "its state",
    "kills",
    *(
        f"{ranks}: {what}"
        for ranks in ("as many ranks", "another number")
        for what in ("lost", "doubled", "order kept")
    ),
    "next batch",
)


def rows(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row for each loader. records: of a JSON file of `benchmarks/kill_and_count.py`."""
    found = []
    for record in records:
        trials = record["trials"]
        same = [trial for trial in trials if trial["ranks"] == trial["resumed_on"]]
        other = [trial for trial in trials if trial["ranks"] != trial["resumed_on"]]
        version = record["version"].partition("+")[0]
        name = f"{title(record['loader'])} {version}"
        kills = str(len(trials))
        found.append(
            [
                name,
                record["means"],
                kills,
                *outcome(same),
                *outcome(other),
                next_batch(same),
            ]
        )
    return found


def outcome(trials: Sequence[Trial]) -> list[str]:
    """[samples lost, samples doubled, order kept]: of the kill with the most, and in how many of the kills."""
    if not trials:
        return ["", "", ""]
    done = [trial for trial in trials if not trial["error"]]
    kept = sum(trial["same_order"] for trial in done)
    failed = len(trials) - len(done)
    if not done:
        return [f"error {failed} of {failed} times", "", ""]
    cells = [_most(done, "lost"), _most(done, "doubled"), _share(kept, len(done))]
    if failed:
        cells[0] += f"; error {failed} of {len(trials)} times"
    return cells


def next_batch(trials: Sequence[Trial]) -> str:
    """The median of those that had a batch left."""
    seconds = [
        trial["next_batch_s"] for trial in trials if trial["next_batch_s"] is not None
    ]
    return f"{statistics.median(seconds):.2f} s" if seconds else ""


def is_exact(trial: Trial) -> bool:
    return bool(
        not trial["error"]
        and not trial["lost"]
        and not trial["doubled"]
        and trial["same_order"]
    )


def _most(trials: Sequence[Trial], what: str) -> str:
    most = max(trial[what] for trial in trials)
    return f"up to {most}" if most else "0"


def _share(kept: int, of: int) -> str:
    if kept == of:
        return "yes"
    return f"{kept} of {of} times" if kept else "no"
