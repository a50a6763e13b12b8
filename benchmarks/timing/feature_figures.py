"""`benchmarks/bench.py --with`: measures features, each beside the same loader without it, and tells what they cost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from timing.contenders import CONTENDERS, why_not
from timing.course import Course
from timing.features import FEATURES, names_of
from timing.process import Round
from timing.work import Work

Row = dict[str, Any]


def compare(
    features: Sequence[str],
    work: Work,
    pythons: dict[str, str],
    rounds: int,
    record: Row,
    path: Path | None,
) -> list[Row]:
    """A row for each feature and loader. record: what is written to `path`, with the rows, after each feature."""
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for number, feature in enumerate(features, start=1):
        course = Course(work, pythons, {})
        pairs = names_of(feature)
        for pair in pairs:
            reason = next(
                (
                    why
                    for name in pair
                    if (why := why_not(CONTENDERS[name], work.raw)) is not None
                ),
                None,
            )
            if reason is None:
                course.take(list(pair))
            else:
                course.leave_out(pair[1], reason)
        course.prepare()
        course.run_warm(rounds, None)
        rows += ratios(
            feature, {name: result.warm for name, result in course.results.items()}
        )
        left_out |= course.left_out
        if path is not None and rows:
            complete = {
                **record,
                "complete": number == len(features),
                "left_out": left_out,
                "features": rows,
            }
            temporary = path.with_name(path.name + ".tmp")
            temporary.write_text(json.dumps(complete, indent=1) + "\n")
            temporary.replace(path)
    return rows


def ratios(feature: str, turns: Mapping[str, Sequence[Round]]) -> list[Row]:
    """A row for each loader: images/s with the feature, and over those without it, round by round; and the processor
    time that it takes more for an image.

    turns: of each contender; those that could not run are missing.
    """
    rows = []
    for without, name in names_of(feature):
        if not (turns.get(without) and turns.get(name)):
            continue
        pairs = list(zip(turns[name], turns[without], strict=True))
        ratios = [turn.rate / other.rate for turn, other in pairs]
        more = [
            1e6 * (turn.cpu_s / turn.images - other.cpu_s / other.images)
            for turn, other in pairs
        ]
        rows.append(
            {
                "feature": feature,
                "what": FEATURES[feature].what,
                "loader": name.partition("+")[0],
                "images_per_s": median(turn.rate for turn, _ in pairs),
                "without": median(other.rate for _, other in pairs),
                "ratio": median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "cpu_us": median(1e6 * turn.cpu_s / turn.images for turn, _ in pairs),
                "more_cpu_us": median(more),
                "rounds": [[asdict(turn), asdict(other)] for turn, other in pairs],
            }
        )
    return rows


def print_ratios(rows: Sequence[Row], title: str, lines: Sequence[str]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False)
    table = Table(title=title, title_justify="left", box=None)
    for head in (
        "with",
        "loader",
        "images/s",
        "without",
        "ratio",
        "min–max",
        "CPU µs more",
    ):
        table.add_column(
            head, justify="left" if head in ("with", "loader") else "right"
        )
    for row in rows:
        table.add_row(
            row["feature"],
            row["loader"],
            f"{row['images_per_s']:,.0f}",
            f"{row['without']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f}–{row['ratio_max']:.2f}",
            f"{row['more_cpu_us']:+,.0f}",
        )
    console.print(table)
