"""The images of a set that are least like the others: the smallest, darkest, most blurred, …"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.report.columns import Columns
from gpuload.report.files import FileFacts
from gpuload.report.pixels import Looks
from gpuload.report.samples import describe
from gpuload.report.splits import Split
from gpuload.types import I64

_SHOWN = 12


@dataclass(frozen=True)
class _Ranking:
    """What images are ranked by. what: how it is measured. values: (rank by, smallest first), by the split's number."""

    name: str
    title: str
    what: str
    values: Callable[[int], tuple[I64, npt.NDArray[Any]]]
    text: Callable[[float], str]


def find_extremes(
    splits: Sequence[Split], columns: Sequence[Columns], looks: Sequence[Looks], files: Sequence[FileFacts]
) -> list[dict[str, Any]]:
    """For each ranking the images at its end, over all splits, the most extreme first."""
    found = []
    images = sum(len(table.numbers) for table in columns)
    for ranking in _rankings(columns, looks, files):
        ends: list[tuple[float, int, int]] = []
        for n in range(len(splits)):
            numbers, values = ranking.values(n)
            finite = np.flatnonzero(np.isfinite(values))
            count = min(_SHOWN + 1, len(finite))
            if count:
                first = finite[np.argpartition(values[finite], count - 1)[:count]]
                ends += [(float(values[row]), n, int(numbers[row])) for row in first.tolist()]
        ends.sort()
        if len(ends) > _SHOWN and ends[_SHOWN - 1][0] == ends[_SHOWN][0]:  # what many share is not extreme
            ends = [end for end in ends if end[0] < ends[_SHOWN][0]]
        ends = ends[:_SHOWN]
        if not ends or images < 2 or (len(ends) > 1 and ends[0][0] == ends[-1][0]):
            continue
        items = [describe(splits[n], number, ranking.text(value)) for value, n, number in ends]
        found.append({"name": ranking.name, "title": ranking.title, "what": ranking.what, "samples": items})
    return found


def _rankings(columns: Sequence[Columns], looks: Sequence[Looks], files: Sequence[FileFacts]) -> list[_Ranking]:
    def stored(values: Callable[[Columns], npt.NDArray[Any]]) -> Callable[[int], tuple[I64, npt.NDArray[Any]]]:
        return lambda n: (columns[n].numbers, values(columns[n]).astype(np.float64))

    def seen(values: Callable[[Looks], npt.NDArray[Any]]) -> Callable[[int], tuple[I64, npt.NDArray[Any]]]:
        return lambda n: (looks[n].numbers, values(looks[n]).astype(np.float64))

    def aspect(table: Columns) -> npt.NDArray[Any]:
        return np.abs(np.log(table.widths / np.maximum(table.heights, 1)))

    def quality(n: int) -> tuple[I64, npt.NDArray[Any]]:
        values = files[n].qualities.astype(np.float64)
        return looked_at[n], np.where(values > 0, values, np.nan)

    looked_at = [facts.numbers for facts in files]
    return [
        _Ranking(
            "darkest", "Darkest", "the level that 95 % of the pixels stay below", seen(lambda f: f.bright_parts),
            lambda v: f"{v:.0%}",
        ),
        _Ranking(
            "brightest", "Brightest", "the level that 95 % of the pixels are above", seen(lambda f: -f.dark_parts),
            lambda v: f"{-v:.0%}",
        ),
        _Ranking(
            "blurriest", "Most blurred", "deviation of the Laplacian of the small image", seen(lambda f: f.sharpness),
            lambda v: f"{v:.1f}",
        ),
        _Ranking(
            "least-informative", "Least informative", "entropy of the brightness, at most 6 bits",
            seen(lambda f: f.entropy), lambda v: f"{abs(v):.2f} bits",
        ),
        _Ranking(
            "aspect", "Oddest in aspect", "longer : shorter side", stored(lambda t: -aspect(t)),
            lambda v: f"{np.exp(-v):.2f} : 1",
        ),
        _Ranking(
            "smallest", "Smallest", "in pixels", stored(lambda t: t.widths.astype(np.int64) * t.heights),
            lambda v: f"{v / 1e6:.2f} MP" if v >= 1e5 else f"{v:,.0f} px",
        ),
        _Ranking(
            "largest", "Largest", "in pixels", stored(lambda t: -t.widths.astype(np.int64) * t.heights),
            lambda v: f"{-v / 1e6:.2f} MP" if -v >= 1e5 else f"{-v:,.0f} px",
        ),
        _Ranking(
            "lightest", "Fewest bytes for its pixels", "stored bits per pixel",
            stored(lambda t: 8 * t.bytes / np.maximum(t.widths.astype(np.int64) * t.heights, 1)),
            lambda v: f"{v:.2f} bits/px",
        ),
        _Ranking(
            "quality", "Most compressed", "quality of the JPEG, as libjpeg counts it", quality, lambda v: f"{v:.0f}",
        ),
    ]  # fmt: skip
