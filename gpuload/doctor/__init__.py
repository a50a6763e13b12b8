"""The findings of `python -m gpuload doctor`, and the conclusion from all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.filesize import decimal

from gpuload.counted import counted

# ok: as it should be. note: nothing needs to be done, but it explains something. attention: it works, slower or less
# safely than it could. broken: something does not work.
Grade = Literal["ok", "note", "attention", "broken"]

# What a check returns: the fields of `Finding` but its name. None: there is nothing to check.
Told = tuple[Grade, str, str, dict[str, Any]]
Answer = Told | None


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Of the check.
        grade: How bad it is.
        said: What was found.
        remedy: What to do about it.
        data: The numbers behind it, JSON.
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
    return decimal(int(count))


def conclude(findings: Sequence[Finding]) -> list[str]:
    """A few sentences: which decoder is used, what limits it, and how many findings need attention."""
    working = [finding.data for finding in findings if "decoder" in finding.data]
    trials = [data for data in working if "images_per_s" in data]
    if trials:
        sentences = _of_speed(trials, _disk_rate(findings))
    elif working:
        sentences = [
            "Give a packed folder to measure how fast it loads: `python -m gpuload doctor shards/train`."
        ]
    else:
        sentences = [
            "No decoder works here, so nothing can be loaded. See above for what is missing or broken."
        ]
    grades = Counter(finding.grade for finding in findings)
    parts = []
    if grades["broken"]:
        parts.append(f"{counted(grades['broken'], 'thing')} broken")
    if grades["attention"]:
        parts.append(f"{grades['attention']} to attend to")
    if parts:
        sentences.append(f"{', '.join(parts)}; see the arrows above.")
    else:
        sentences.append("Nothing needs attention.")
    return sentences


def _disk_rate(findings: Sequence[Finding]) -> float | None:
    """The bytes/s of the disk of the set, where they were measured."""
    for finding in findings:
        if finding.name == "disk":
            return finding.data.get("bytes_per_s")
    return None


def _of_speed(trials: Sequence[dict[str, Any]], disk: float | None) -> list[str]:
    """What the measured speeds tell of the machine.

    Args:
        trials: Of the decoders that work.
        disk: Its bytes/s, where they are known.
    """
    # What device="auto" and decoder="auto" take: a GPU, else the native decoder.
    used = min(
        trials,
        key=lambda trial: (
            not trial["device"].startswith("cuda"),
            trial["decoder"] != "native",
        ),
    )
    rate = used["images_per_s"]
    taken = used["bytes_per_s"]
    sentences = [
        f"device='auto' decodes by {used['decoder']} on {used['device']}: {rate:,.0f} images/s, in random crops "
        "of 224. Training that takes fewer does not wait."
    ]
    if disk is None or disk >= taken:
        sentences.append(
            f"What limits is {used['binds'].replace('_', '-')}. {used['advice']}."
        )
    else:
        sentences.append(
            "The disk limits the first epoch, and every one of a set that does not fit into memory: "
            f"{size(disk)}/s, and this decoder takes {size(taken)}/s. Use a faster disk or "
            "`pack --encode jpeg --size 256`."
        )
    fastest = max(trials, key=lambda trial: float(trial["images_per_s"]))
    if fastest["images_per_s"] > 1.1 * rate:
        sentences.append(
            f"DaliIterator(device={fastest['device']!r}, decoder={fastest['decoder']!r}) is faster here."
        )
    return sentences
