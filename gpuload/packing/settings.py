"""The types of what may be given for each setting of `PackOptions`, for type checkers and editors.

`PackOptions` holds the rules, the defaults and the values that the rules return. A test compares the two.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypedDict

from gpuload.fields.motion import Fit

Share = float | str  # 0.1, or "10%"


class PackSettings(TypedDict, total=False):
    """The settings that `gpuload.pack` takes by name, see `PackOptions`."""

    encode: Literal["keep", "jpeg", "raw"]
    size: int | Sequence[int] | str | None
    fit: Fit
    enlarge: bool
    quality: int | None
    lossless: bool
    check: Literal["full", "header"]
    max_pixels: int
    mode: str
    keep: Iterable[str] | str
    points: Literal["auto", "no"]
    jpeg: Literal["keep", "baseline"]
    png: Literal["keep", "points"]
    page: int | None
    depth: int | None
    alpha: Literal["ask", "white", "drop"]
    bands: Iterable[int] | str | None
    scale: Iterable[float] | str | None
    window: Iterable[float] | str | None
    icc: Literal["keep", "srgb"]
    damaged: Literal["reject", "keep"]
    masks: Literal["ask", "stored", "levels"]
    turn_masks: Literal["auto", "yes", "no"]
    resize: Mapping[str, str] | Iterable[str] | str
    class_numbers: Iterable[str] | str
    val: Share
    splits: Iterable[tuple[str, float]] | str | None
    shuffle: bool
    seed: int
    maxcount: int
    maxsize: int | str | None
    dedup: bool
    max_rejected: Share
    workers: int | None
    time_limit_s: float
    engine: Literal["local", "ray"]
    address: str | None
    resume: bool
    append: bool
    overwrite: bool
