"""The result of a check, and the conclusion from all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuload.counted import counted

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


def conclude(findings: Sequence[Finding]) -> list[str]:
    """A few sentences: which decoder is used, what limits it, and how many things need attention."""
    told = []
    working = [one for one in findings if "decoder" in one.data]
    trials = [one for one in working if "images_per_s" in one.data]
    used = min(trials, key=_choice, default=None)
    if used is not None:
        told += _of_speed(used, findings)
        fastest = max(trials, key=lambda one: one.data["images_per_s"])
        if fastest.data["images_per_s"] > 1.1 * used.data["images_per_s"]:
            data = fastest.data
            told.append(f"DaliIterator(device={data['device']!r}, decoder={data['decoder']!r}) is faster here.")
    elif any(one.name == "URL" for one in findings):
        told.append("The set at the URL cannot be opened, so that nothing was measured.")
    elif not working:
        told.append("No decoder works here, so nothing can be loaded. See above for what is missing or broken.")
    else:
        told.append("Give a packed folder to measure how fast it loads: `python -m gpuload doctor shards/train`.")
    broken, others = (sum(one.grade == grade for one in findings) for grade in ("broken", "attention"))
    if broken or others:
        parts = [f"{counted(broken, 'thing')} broken"] * bool(broken) + [f"{others} to attend to"] * bool(others)
        told.append(f"{', '.join(parts)}; see the arrows above.")
    else:
        told.append("Nothing needs attention.")
    return told


def _choice(trial: Finding) -> tuple[bool, bool]:
    """The smallest is what device='auto', decoder='auto' would take: a GPU, else the native decoder."""
    return not trial.data["device"].startswith("cuda"), trial.data["decoder"] != "native"


def _of_speed(used: Finding, findings: Sequence[Finding]) -> list[str]:
    data = used.data
    rate = data["images_per_s"]
    told = [
        f"device='auto' decodes by {data['decoder']} on {data['device']}: {rate:,.0f} images/s, in random crops "
        "of 224. Training that takes fewer does not wait."
    ]
    disk = next((one.data.get("bytes_per_s") for one in findings if one.name == "disk"), None)
    stored = next((one.data["bytes"] for one in findings if one.name == "set"), 0)
    memory = next((one.data for one in findings if one.name == "memory"), {})
    free = min(memory.get("available") or 0, memory.get("limit") or memory.get("available") or 0)
    if disk is not None and disk < data["bytes_per_s"]:
        slower = f"The disk limits: {size(disk)}/s, and this decoder takes {size(data['bytes_per_s'])}/s."
        if stored < 0.8 * free:
            told.append(f"{slower} In the first epoch alone: the set fits into memory ({size(free)} free).")
        else:
            told.append(
                f"{slower} The set does not fit into memory ({size(free)} free), so that holds for every epoch. Use a "
                "faster disk, such as a local NVMe drive, or smaller images (`pack --encode jpeg --size 256`)."
            )
    else:
        told.append(f"What limits is {data['binds'].replace('_', '-')}. {data['advice']}.")
    return told
