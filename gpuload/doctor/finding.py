"""What a check says."""

from dataclasses import dataclass, field
from typing import Any, Literal

# ok: as it should be. note: nothing needs to be done, but it explains something. attention: it works, slower or less
# safely than it could. broken: something does not work.
Grade = Literal["ok", "note", "attention", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    name: what, in a word or two. said: what was found. remedy: what to do about it. data: the numbers behind it, JSON.
    """

    name: str
    grade: Grade
    said: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        return self.grade in ("ok", "note")


def size(count: float) -> str:
    """A number of bytes, in words."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
